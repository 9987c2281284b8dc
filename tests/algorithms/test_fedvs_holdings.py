"""What a FedVS party holds of the other parties after a load."""

import numpy as np

from colonnade.algorithms.fedvs.holdings import CodedData
from colonnade.algorithms.fedvs.messages import ModelShare, ShareModels
from colonnade.algorithms.fedvs.side import Side
from colonnade.protocol import state

BOTH, PLACES = [0, 1], np.arange(3)


def elements(value, *shape):
    return np.full(shape, value, np.uint32)


def side_of(values):
    """Two parties' data of one column, joined side by side."""
    side = Side(False, True, CodedData(3))
    for n, value in zip(BOTH, values, strict=True):
        side.data.put(n, value, elements(value, 3, 1))
    side.data.rows(PLACES, BOTH)
    return side


def test_loaded_data_replace_those_that_were_joined_before():
    side = side_of((1, 2))
    side.load(state.unpack(state.pack(side_of((7, 8)).save())))
    assert side.data.rows(PLACES, BOTH).tolist() == [[7, 8]] * 3 and side.data.version == {0: 7, 1: 8}


def test_a_loaded_exchange_takes_what_came_before_its_order():
    """A party keeps a share of the next exchange until the server orders it, also across a restart."""
    before, after = side_of((1, 2)), side_of((1, 2))
    early = ModelShare(4, 1, 9, elements(5, 1, 2), elements(6, 3, 2))
    assert before.exchange.take("party-2", 1, early, (1, 2))
    after.load(state.unpack(state.pack(before.save())))
    after.begin(ShareModels(4, 1, BOTH, 3))
    assert after.held() == [1] and after.exchange.versions == {1: 9} and after.exchange.blinded_places == 3
    assert not after.exchange.take("party-2", 1, early, (1, 2)), "a second one is of no use"
