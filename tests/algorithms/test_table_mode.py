"""The server's table holds embeddings in training mode: batches, warm-up, further rows and fresh rows alike."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator.checkpoint import load, save
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import Received, Send, Started, Work, WorkDone

KEEP = 0.75
BATCH = 50


def dropped(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Dropout(1 - KEEP))


def normalised(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs, affine=False))


def both(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.Dropout(1 - KEEP))


@pytest.fixture
def make(resolve, monkeypatch):
    """A federation whose parties have one of the networks above."""
    module = types.ModuleType("networks_of_a_test")
    module.dropped, module.normalised, module.both = dropped, normalised, both
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def federation(network, method="vafl", **protocol):
        tables = {
            "protocol": {"name": method, **protocol},
            "model": {"party": f"networks_of_a_test:{network}", "embedding": 6, "server": "linear"},
            "train": {"batch_size": BATCH, "learning_rate": 0.1, "updates": 30, "eval_every": 15},
            "clock": {"compute": {"kind": "exponential", "mean_s": 0.01}},
        }
        return resolve(tables, "breast-cancer", parties=3)

    return federation


def done(party, effects):
    """Do the one job among these effects; return the next effects."""
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    return party.handle(WorkDone(work.token, party.compute(work.job)), 0)


def uploaded(effects):
    (message,) = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Embeddings)]
    return message


def warm_up(party):
    return uploaded(done(party, party.handle(Started(b"key"), 0)))


def fresh(party, rows, request=1):
    return uploaded(done(party, party.handle(Received("server", FreshRequest(request, np.int32(rows))), 0)))


def mask(party, message):
    """The numbers of an upload that Dropout has left."""
    exact = party.network.read(party.x[message.rows])
    left = message.values != 0
    np.testing.assert_allclose(message.values, np.where(left, exact / KEEP, 0), rtol=1e-5)
    assert 0.6 < left.mean() < 0.9
    return left


METHODS = ("vafl", "t-sync", "cascaded", "zoo", "frozen")


@pytest.mark.parametrize("method", METHODS)
def test_dropout_drops_in_warm_up_and_fresh_rows_each_time_others(method, make):
    party = make("dropped", method, max_delay=5).roles()[1]
    first = mask(party, warm_up(party))
    rows = np.arange(len(first))
    second, third = (mask(party, fresh(party, rows, request)) for request in (1, 2))
    assert (first != second).any() and (second != third).any()


def test_dropout_drops_further_rows_and_otherwise_than_in_the_batch(make):
    party = make("dropped", table="zeros", extra_rows=1.0).roles()[1]
    left = mask(party, uploaded(done(party, party.handle(Started(b"key"), 0))))
    assert (left[:BATCH] != left[BATCH:]).any()


@pytest.mark.parametrize("method", METHODS)
def test_batchnorm_normalises_a_message_by_its_own_rows_and_keeps_its_averages(method, make):
    party = make("normalised", method, max_delay=5).roles()[1]
    before = state.pack(party.network.save())
    values = warm_up(party).values
    rows = np.arange(BATCH + 10, dtype=np.int32)
    for found in (values, fresh(party, rows).values):
        np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(found.std(0), 1, rtol=1e-3)
    assert not np.allclose(values, party.network.read(party.x), atol=0.1), "evaluation mode is another thing"
    assert state.pack(party.network.save()) == before


def test_batchnorm_normalises_further_rows_by_themselves(make):
    party = make("normalised", table="zeros", extra_rows=1.5).roles()[1]
    message = uploaded(done(party, party.handle(Started(b"key"), 0)))
    for found in (message.values[:BATCH], message.values[BATCH:]):
        np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)


def test_a_single_fresh_row_is_normalised_in_the_company_of_a_batch(make):
    party = make("normalised", table="zeros", max_delay=5).roles()[1]
    row = np.int32([7])
    (work,) = party.handle(Received("server", FreshRequest(1, row)), 0)
    assert work.amount == 0.5, "a forward pass of a batch"
    with torch.no_grad():
        linear = party.network.reader[0](torch.from_numpy(party.x)).numpy()
    beside = np.concatenate([linear[row], linear[party.walk.batch(0)][: BATCH - 1]])
    expected = (linear[row] - beside.mean(0)) / np.sqrt(beside.var(0) + 1e-5)
    np.testing.assert_allclose(party.compute(work.job).values, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("network", ["dropped", "normalised", "both"])
def test_fresh_rows_leave_the_batch_in_work_alone(network, make):
    gradients = []
    for asked in (False, True):
        party = make(network, table="zeros", max_delay=5).roles()[1]
        done(party, party.handle(Started(b"key"), 0))
        if asked:
            fresh(party, np.arange(20))
        values = np.full((BATCH, 6), 0.1, np.float32)
        (work,) = party.handle(Received("server", Gradient(0, 0, values)), 0)
        gradients.append((party.compute(work.job).gradient, party.state.buffers))
    np.testing.assert_array_equal(gradients[0][0], gradients[1][0])
    assert state.pack(gradients[0][1]) == state.pack(gradients[1][1])


@pytest.mark.parametrize("method", ["vafl", "cascaded"])
def test_such_networks_repeat_themselves_and_resume_bit_for_bit(method, make):
    setting = make("both", method, max_delay=5, **({"extra_rows": 0.5} if method == "vafl" else {}))

    def simulator():
        return Simulator(setting.roles(), Codec(setting.method.payloads), setting.config.clock, 0,
                         full_trace=True, check=True)  # fmt: skip

    def outcome(made):
        return made.trace.hexdigest, state.pack(save(made))

    whole, begun, resumed = (simulator() for _ in range(3))
    whole.run()
    begun.advance(whole.trace.events // 2)
    load(resumed, state.unpack(state.pack(save(begun))))
    resumed.run()
    assert outcome(resumed) == outcome(whole)
    assert whole.principal.role.state.fresh_rows
