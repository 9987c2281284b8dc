"""Quasi-Newton methods: one party's absurd count of steps must not make an honest party the one that is refused."""

import numpy as np

from colonnade.algorithms.asysqn.aggregation import Aggregations, place_of
from colonnade.algorithms.asysqn.messages import Ask, MarginsMade, Masked, digest_of
from colonnade.algorithms.sane import STEPS

NAMES = tuple(f"party-{number}" for number in range(6))


def test_an_honest_parent_passes_on_a_sum_that_its_own_parent_takes() -> None:
    members = tuple(range(6))
    nothing = np.zeros(2, np.uint64)
    ask = Ask(1, list(members), False, np.arange(2, dtype=np.int32))
    sums = [Aggregations(index, NAMES, True, 2, 20, 16, 100) for index in members]
    parents = {index: place_of(index, 0, members, True, 2)[0].parent for index in members}
    liar, parent = next((child, up) for child, up in parents.items() if up not in (None, 0))
    for index in (parent, parents[parent]):
        sums[index].open(0, ask, 2)
    sent = []
    for child in place_of(parent, 0, members, True, 2)[0].children:
        sent += sums[parent].receive(child, Masked(0, 1, digest_of(ask), STEPS - 1 if child == liar else 3, nothing))
    sent += sums[parent].contribute(0, 1, MarginsMade(1, 5, nothing, nothing))
    (masked,) = [one.message for one in sent if isinstance(one.message, Masked)]
    sums[parents[parent]].receive(parent, masked)  # refuses a clock of STEPS or more
