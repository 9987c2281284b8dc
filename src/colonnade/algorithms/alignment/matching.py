"""Find the points that enough sets have in common: the server's work on the sets, and all that it can see.

The server sees sets of points, in orders that their owners keep secret, and which points are in which of the sets. So
it learns how many ids any choice of members has in common, but not which ids.
"""

from collections.abc import Sequence

import numpy as np

from colonnade.algorithms.alignment.messages import Matched
from colonnade.protocol.messages import Array

__all__ = ["match"]


def match(names: Sequence[str], sets: Sequence[Array], at_least: int, needed: Sequence[int] = ()) -> Matched:
    """The points (uint8 (points, 32)) that are in at least `at_least` of the sets and in all `needed` ones.

    Places are in the order of the points.
    """
    owners = np.repeat(np.arange(len(sets)), [len(points) for points in sets])
    groups = _equal(np.concatenate(sets))
    count = int(groups.max()) + 1
    presence = np.zeros((count, len(sets)), np.bool_)
    presence[groups, owners] = True
    sizes = presence.sum(axis=0)
    for name, points, distinct in zip(names, sets, sizes, strict=True):
        if distinct != len(points):
            return Matched(0, [], presence[:0], f"{name} sends {len(points) - distinct} ids more than once")
    common = (presence.sum(axis=1) >= at_least) & presence[:, list(needed)].all(axis=1)
    place = np.where(common, np.cumsum(common) - 1, -1).astype(np.int32)
    starts = np.cumsum([len(points) for points in sets])[:-1]
    return Matched(int(common.sum()), np.split(place[groups], starts), presence[common])


def _equal(points: Array) -> Array:
    """One number per point, the same for equal points, in the order of the points, which are as good as random."""
    words = np.ascontiguousarray(points).view("<u8")  # (points, 4)
    order = np.argsort(words[:, 0])
    first, new = _changes(words[order])
    if (first != new).any():  # only a member that lies sends two points with the same first word
        order = np.lexsort(words.T)
        _, new = _changes(words[order])
    groups = np.empty(len(points), np.int64)
    groups[order] = np.cumsum(new)
    return groups


def _changes(words: Array) -> tuple[Array, Array]:
    """Whether the first word differs from that of the row before, and whether any word does."""
    differ = np.zeros(words.shape, np.bool_)
    differ[1:] = words[1:] != words[:-1]
    return differ[:, 0], np.logical_or.reduce(differ, axis=1)
