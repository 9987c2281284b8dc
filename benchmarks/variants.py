"""Methods with a setting beside their name: the value of each mechanism of `swift`, measured by leaving it out."""

from typing import Any

__all__ = ["ABLATION", "VARIANTS", "tables_of"]

Tables = dict[str, dict[str, Any]]


def _swift(train: dict[str, Any] | None = None, **protocol: Any) -> Tables:
    return {"protocol": {"name": "swift"} | protocol, "train": train or {}}


VARIANTS: dict[str, Tables] = {
    "swift-zeros": _swift(table="zeros"),
    "swift-warm": _swift(table="warm"),
    "swift-last-weights": _swift(average=False),
    "swift-one-in-flight": _swift(in_flight=1),
    "swift-three-in-flight": _swift(in_flight=3),
    "swift-whole-batches": _swift(smaller_batches=False),
    "swift-no-decay": _swift({"optimiser": "adam", "learning_rate": 0.01}),
    "swift-shared-batches": _swift(batches="shared"),
    "vafl-zeros": {"protocol": {"name": "vafl", "table": "zeros"}},
}
ABLATION = ("swift", *VARIANTS, "vafl")


def tables_of(name: str) -> Tables:
    """The config of a variant, or of a method with only its name."""
    return VARIANTS.get(name, {"protocol": {"name": name}})
