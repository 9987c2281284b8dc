"""Alg. 2: the server's step is the mean over the t uploads, in one pass or several."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import colonnade
from colonnade.algorithms.vafl.messages import Batch, Step
from colonnade.algorithms.zeroth.messages import ProbedStep
from colonnade.protocol.events import Started

GENERATOR = np.random.default_rng(0)
ROWS = [GENERATOR.standard_normal((8, 12)).astype(np.float32) * (1 + place) + place for place in range(3)]


@pytest.fixture(scope="module")
def data():
    return colonnade.split(colonnade.load("digits"), parties=3)


def server_of(data, method, **settings):
    run = colonnade.prepare(data, protocol={"name": method, "t": 3}, embedding=4, updates=1, **settings)
    server = run.simulator.principal.role
    server.handle(Started(b"key"), 0)
    return server


def job_of(server, batches):
    return Step(0, batches) if not hasattr(server, "draw") else ProbedStep(0, 1, batches, [[] for _ in batches])


def test_a_batch_that_two_parties_sent_counts_twice(data):
    server = server_of(data, "t-sync")
    batches = [Batch(ROWS[place], np.arange(8) % 10, uploads) for place, uploads in enumerate((2, 1))]
    alone = [server.compute(Step(0, [batch])).theta_0 for batch in batches]
    together = server.compute(Step(0, batches)).theta_0
    np.testing.assert_allclose(together, (2 * alone[0] + alone[1]) / 3, rtol=1e-5, atol=1e-7)
    assert not np.allclose(together, (alone[0] + alone[1]) / 2)


def normalising(inputs, outputs):
    return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))


@pytest.mark.parametrize("method", ["t-sync", "cascaded", "zoo"])
def test_batchnorm_takes_all_batches_of_a_step_one_after_the_other(method, data):
    server = server_of(data, method, server_model=normalising)
    oracle = copy.deepcopy(server.network.reader).train()
    batches = [Batch(rows, np.arange(8) % 10) for rows in ROWS]
    for _ in range(2):  # the second step starts from what the first has committed
        result = server.compute(job_of(server, batches))
        server.network.apply(result.theta_0, 0.0, result.buffers)
        for rows in ROWS:
            oracle(torch.from_numpy(rows))
        found = dict(server.network.reader.named_buffers())
        for name, expected in oracle.named_buffers():
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


def test_random_layers_draw_for_every_batch_of_a_step(data):
    def dropping(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs, outputs), nn.Dropout(0.5))

    server = server_of(data, "t-sync", server_model=dropping)
    batch = Batch(ROWS[0], np.arange(8) % 10)
    losses = server.compute(Step(0, [batch, batch])).losses
    assert losses[0] != losses[1]
