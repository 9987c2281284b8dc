"""What the members of a federation must agree on, and how they notice a difference.

The shared part of a config is everything that shapes the training, the members' names, and the digest of the
authority's public key. People compare its digest, for example by telephone. The handshake compares its content, so that
it can say what differs. Certificates are no part of it: each side checks them against its list when it connects.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from colonnade import __version__
from colonnade.algorithms import DEFAULT_METHOD
from colonnade.algorithms.method import SERVER
from colonnade.config.continuing import Continuation
from colonnade.config.schema import Config, TrainConfig, difference, to_dict
from colonnade.config.shared import LATER_TRAIN, OWN_MODEL, OWN_TRAIN, SHARED_DATA, SHARED_NETWORK
from colonnade.data.ids import digest_of_rows
from colonnade.drivers.processes.service import RetryLater
from colonnade.drivers.processes.wire import Hello
from colonnade.privacy.blinding import SUITE

__all__ = ["CONTINUES", "Terms", "shared_difference", "shared_digest", "shared_part", "shared_part_of_alignment"]

CODEC = 1  # release 0.1 compares it; since protocol 7 the agreed protocol says which codec is used
DTYPE = "float32"  # of embeddings on the wire
CURVE = "curve"  # the key of [align]'s shared part that says how ids become points
CONTINUES = "continues"  # the key of a HELLO's shared part with the run that a party continues
_IDENTITY = ("members", "federation")


def shared_part(config: Config, authority: str) -> dict[str, Any]:
    """The part of a settled config that must be the same for all members."""
    tables = to_dict(config)
    train = {key: value for key, value in tables["train"].items() if key not in OWN_TRAIN and not _is_later(key, value)}
    privacy = {"privacy": tables["privacy"]} if config.privacy.on else {}
    return (
        _always_shared("training", tables, authority)
        | privacy
        | {
            "model": {key: value for key, value in tables["model"].items() if key not in OWN_MODEL},
            "protocol": {"name": DEFAULT_METHOD} | tables["protocol"],
            "train": train,
            "data": {key: tables["data"][key] for key in SHARED_DATA},
        }
    )


def _is_later(key: str, value: Any) -> bool:
    return key in LATER_TRAIN and value == getattr(TrainConfig(), key)


def shared_part_of_alignment(config: Config, authority: str) -> dict[str, Any]:
    """The same for an alignment, which has no models. Equal ids must be equal points for all members."""
    shared = _always_shared("alignment", to_dict(config), authority)
    return shared | {"align": shared["align"] | {CURVE: SUITE}}


def _always_shared(aim: str, tables: Mapping[str, Any], authority: str) -> dict[str, Any]:
    return {
        "aim": aim,  # an aligning party at a training server gets this difference first
        "align": tables["align"],
        "codec": CODEC,
        "network": {key: tables["network"][key] for key in SHARED_NETWORK},
        "federation": {"authority": authority, "members": sorted((*tables["network"]["parties"], SERVER))},
    }


def shared_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first difference between two shared parts; None if there is none.

    Older releases wrote the members' fingerprints (`members`) instead of `federation`. These are not compared.
    """
    if "members" in there and "federation" not in there:
        there, here = ({key: part[key] for key in part if key not in _IDENTITY} for part in (there, here))
    return difference(dict(there), dict(here))


def shared_digest(shared: Mapping[str, Any]) -> str:
    """SHA-256 of the shared part in hex."""
    text = json.dumps(shared, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Terms:
    """The server's check of a party's HELLO."""

    def __init__(
        self,
        shared: dict[str, Any],
        rows: int,
        ids_sha256: str,
        widths: Mapping[str, int],
        before: Continuation | None = None,
    ) -> None:
        self._shared = json.loads(json.dumps(shared))  # as it looks after encoding and decoding
        self._before = before
        self._rows, self._ids, self._widths = rows, ids_sha256, widths
        self._whose = "the server"  # the owner of the ids

    def __call__(self, party: str, hello: Hello) -> str | None:
        """What differs, in words; None if nothing does."""
        if hello.shared.get("phase") != (phase := self._shared.get("phase")):
            if phase is None:
                return RetryLater(f"the server is still training: start {party} with --predict after the training")
            return f"the training has ended, and the server answers predictions: start {party} with --predict"
        if self._older_curve(hello.shared):
            return f"{party} has an older release, which hashes ids to another curve: install {__version__} there"
        there = dict(hello.shared)
        run = there.pop(CONTINUES, None)
        try:
            differs = shared_difference(there, self._shared)
        except (TypeError, RecursionError):  # keys that cannot be sorted, or tables nested too deep
            return f"{party} sends an invalid shared config"
        if differs:
            return f"the shared config differs: {differs} (there: {party}; here: the server)"
        return self._start_differs(party, run) or self._rows_differ(party, hello) or self._shape_differs(party, hello)

    def _older_curve(self, there: Mapping[str, Any]) -> bool:
        """Whether a party that aligns has release 0.1, which names no curve: its points are of P-256."""
        rules, named = there.get("align"), CURVE in self._shared.get("align", {})
        return named and there.get("aim") == "alignment" and isinstance(rules, dict) and CURVE not in rules

    def _start_differs(self, party: str, run: Any) -> str | None:
        """Compare the runs that the two continue. A party that is new continues none. Predictions do not ask."""
        before = self._before
        if "phase" in self._shared:
            return None
        if not isinstance(run, str | None):
            return f"{party} sends an invalid shared config"
        wanted = before.run if before is not None and party in before.former() else None
        if run == wanted or (before is not None and run == before.run and party in before.away()):
            return None
        theirs = f"{party} continues run {run!r:.36}"
        if before is None:
            return f"{theirs}, but the server starts a new run: start {party} without --continue, or the server with it"
        ours = f"the server continues run {before.run[:32]} ({before.folder})"
        if wanted is None:
            return f"{theirs}, but {ours}, in which {party} was not: start {party} without --continue"
        advice = f"start {party} with --continue FOLDER, where FOLDER is {party}'s folder of that run, and a new --out"
        return f"{ours}, in which {party} was; {theirs if run is not None else f'{party} starts untrained'}: {advice}"

    def _rows_differ(self, party: str, hello: Hello) -> str | None:
        if hello.rows != self._rows:
            return f"{party} has {hello.rows} rows, the server has {self._rows}: run colonnade align first"
        if not self._ids:  # a server without a table: the first party's ids count
            self._ids, self._whose = hello.ids_sha256, party
        if hello.ids_sha256 == self._ids:
            return None
        nameless = digest_of_rows(self._rows)
        if nameless in (hello.ids_sha256, self._ids):
            key = "server.id" if self._whose == "the server" else "party.id"
            who, key = (party, "party.id") if hello.ids_sha256 == nameless else (self._whose, key)
            return f"{who} has no ids to compare, but the other member has: set {key} to the column with the ids"
        return f"{party} has other ids than {self._whose}, or in another order: run colonnade align first"

    def _shape_differs(self, party: str, hello: Hello) -> str | None:
        if (hello.width, hello.dtype) != (self._widths[party], DTYPE):
            here = f"{self._widths[party]} of {DTYPE}"
            return f"{party} sends embeddings of width {hello.width} of {hello.dtype}, expected {here}"
        return None
