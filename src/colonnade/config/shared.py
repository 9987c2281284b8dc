"""Which keys of a config all members must agree on. The other keys belong to one member and never leave its machine."""

from collections.abc import Mapping
from typing import Any

__all__ = ["LATER_TRAIN", "OWN_MODEL", "OWN_TRAIN", "SHARED_DATA", "SHARED_NETWORK", "is_shared", "shared_tables"]

SHARED_NETWORK = ("parties", "heartbeat_s", "lost_after_s", "max_message_mb", "max_in_flight", "admit_late")
SHARED_DATA = ("test_fraction", "validation_fraction", "split_seed")
OWN_TRAIN = ("checkpoint_every", "trace")  # each member may choose these itself
OWN_MODEL = ("device", "precision")
# Keys that release 0.1 lacks. At their defaults they are not compared: a member of that release can take part, and
# a run that it left can continue.
LATER_TRAIN = (
    "also",
    "huber_delta",
    "loss",
    "max_gradient_norm",
    "sampling",
    "server_regulariser",
    "step_every",
    "step_factor",
    "until_target",
    "warm_up",
)
_WHOLE = ("align", "protocol", "privacy")


def is_shared(section: str, key: str) -> bool:
    """Whether the handshake compares this key; `key` is the part after the first dot."""
    match section:
        case "model":
            return key.partition(".")[0] not in OWN_MODEL
        case "train":
            return key not in OWN_TRAIN
        case "data":
            return key in SHARED_DATA
        case "network":
            return key in SHARED_NETWORK
    return section in _WHOLE


def shared_tables(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The shared keys of a config's tables, as they were typed; a default that was left out stays out."""
    found = {
        section: {key: value for key, value in table.items() if is_shared(section, key)}
        for section, table in tables.items()
        if isinstance(table, Mapping)
    }
    return {section: table for section, table in found.items() if table}
