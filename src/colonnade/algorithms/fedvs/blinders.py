"""Assign places to blind: T + 1 parties blind each place, so at least one of them does not collude.

The places of an exchange are cut into as many blocks as there are blinding parties. The parties i, i+1, …, i+T of
these, cyclically, blind block i. All of them have the same amount of work: (T+1)/m of the places each.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from colonnade.privacy import field
from colonnade.protocol.messages import Array

__all__ = ["rows_to_blind", "total_blinding"]


def rows_to_blind(blinders: Sequence[int], n: int, places: int, colluders: int) -> Array:
    """The places that party n blinds, in ascending order. The array must not be changed."""
    return _blocks(len(blinders), blinders.index(n), places, colluders)


@lru_cache(maxsize=1024)
def _blocks(count: int, own: int, places: int, colluders: int) -> Array:
    """The places of the `own`-th of `count` blinding parties."""
    ends = [places * i // count for i in range(count + 1)]
    blocks = sorted({(own - t) % count for t in range(colluders + 1)})
    rows = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in blocks])
    rows.setflags(write=False)
    return rows


def total_blinding(blindings: Mapping[int, Array], places: int, width: int, colluders: int) -> Array:
    """The sum of all parties' blinding, for an answer of `places` places."""
    blinders, summed = sorted(blindings), np.zeros((places, width), np.uint32)
    for n in blinders:
        rows = rows_to_blind(blinders, n, places, colluders)
        summed[rows] = field.add(summed[rows], blindings[n])
    return summed
