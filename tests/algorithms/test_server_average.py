"""Alg. 2: the server's step is the mean over the t uploads, whichever of them share a pass."""

import numpy as np

import colonnade
from colonnade.algorithms.vafl.messages import Batch, Step


def test_a_batch_that_two_parties_sent_counts_twice():
    data = colonnade.split(colonnade.load("digits"), parties=3)
    run = colonnade.prepare(data, protocol={"name": "t-sync", "t": 3}, embedding=4, updates=1)
    server = run.simulator.principal.role
    generator = np.random.default_rng(0)
    batches = [
        Batch(generator.standard_normal((8, 12)).astype(np.float32), np.arange(8) % 10, uploads) for uploads in (2, 1)
    ]
    alone = [server.compute(Step(0, [batch])).theta_0 for batch in batches]
    together = server.compute(Step(0, batches)).theta_0
    np.testing.assert_allclose(together, (2 * alone[0] + alone[1]) / 3, rtol=1e-5, atol=1e-7)
    assert not np.allclose(together, (alone[0] + alone[1]) / 2)
