"""Replacements for a party's block if the party is away or does not have an id, in the order of the policy.

    cached      the block that this party last sent for this id; not if the party is here and no longer has the id
    fallback    a vector for all ids: learned with `train.party_dropout`, else the mean of the training embeddings
    refuse      nothing: the id gets no prediction

Under any policy the server refuses an id for which no block is a party's own (sent now, or cached). Its prediction
would not depend on the id.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from colonnade.algorithms.table import blocks_of
from colonnade.protocol.messages import Array

__all__ = ["AWAY", "CACHED", "FALLBACK", "LACKS", "SENT", "Cache", "StandIns", "why_refused"]

SENT, CACHED, FALLBACK, AWAY, LACKS = range(5)  # kinds of block; the last two have no replacement


class Cache:
    """The newest blocks of each party by id, in memory only. The oldest are dropped first."""

    def __init__(self, parties: int, rows: int) -> None:
        self._rows = rows
        # As bytes: for a thousand ids, a thousand small arrays take longer than the network.
        self._of: list[OrderedDict[str, bytes]] = [OrderedDict() for _ in range(parties)]

    def update(self, party: int, ids: Sequence[str], has: Array, values: Array) -> None:
        """Store the blocks of the ids that the party has (the rows of `values`, float32) as the newest ones.

        Drop the blocks of the ids that it no longer has.
        """
        blocks, data, width, at = self._of[party], values.tobytes(), values.itemsize * values.shape[1], 0
        for id, there in zip(ids, has.tolist(), strict=True):
            if there:
                blocks[id] = data[at : at + width]
                blocks.move_to_end(id)
                at += width
            else:
                blocks.pop(id, None)
        while len(blocks) > self._rows:
            blocks.popitem(last=False)

    def get(self, party: int, id: str) -> Array | None:
        """Return the block if it is cached."""
        found = self._of[party].get(id)
        return None if found is None else np.frombuffer(found, np.float32)


class StandIns:
    """Fills in missing blocks."""

    def __init__(self, policy: Sequence[str], widths: Sequence[int], cache_rows: int, least: int) -> None:
        self._policy, self._least = policy, least
        self.blocks = blocks_of(widths)
        self.cache = Cache(len(widths), cache_rows) if "cached" in policy else None
        self.fallback: dict[int, Array] = {}  # party → vector

    def learned(self, vectors: Mapping[int, Array]) -> None:
        """Store the vectors that replace parties."""
        self.fallback |= vectors

    def sent(self, party: int, ids: Sequence[str], has: Array, values: Array) -> None:
        """Update the cache from a party's answer: keep the blocks it sent, drop the ids it lacks."""
        if self.cache is not None:
            self.cache.update(party, ids, has, values)

    def fill(self, h: Array, what: Array, ids: Sequence[str]) -> None:
        """Write what the policy allows into the blocks of h that are AWAY or LACKS, and record it in `what`."""
        if not np.count_nonzero(what):
            return  # all blocks are SENT
        for party, block in enumerate(self.blocks):
            for row in np.flatnonzero(what[:, party] >= AWAY).tolist():
                self._fill_one(h, what, row, party, block, ids[row])
        own = (what <= CACHED).sum(1)
        what[(own < self._least)[:, None] & (what == FALLBACK)] = AWAY  # too few blocks are parties' own

    def _fill_one(self, h: Array, what: Array, row: int, party: int, block: slice, id: str) -> None:
        for step in self._policy:
            if step == "cached" and self.cache is not None and what[row, party] == AWAY:
                cached = self.cache.get(party, id)
                if cached is not None:
                    h[row, block], what[row, party] = cached, CACHED
                    return
            elif step == "fallback" and party in self.fallback:
                h[row, block], what[row, party] = self.fallback[party], FALLBACK
                return


def why_refused(what: Sequence[int], parties: Sequence[str], away: Sequence[str]) -> str:
    """Return why a row has no prediction; "" if it has one. `what`: the kind of each party's block."""
    if max(what) <= FALLBACK:
        return ""
    if min(what) > CACHED:
        return "no party has this id" if not away else f"no party that answered has this id; away: {', '.join(away)}"
    missing = [name for name, code in zip(parties, what, strict=True) if code > CACHED]
    return (
        f"too few parties have this id, and nothing replaces {', '.join(missing)}; see predict.away and "
        "predict.min_parties"
    )
