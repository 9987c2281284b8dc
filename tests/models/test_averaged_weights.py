"""The average of a network's weights: its definition, which roles read it, and that a save keeps it."""

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.models import Network, OptimiserSpec

X = np.array([[1.0, 2.0], [-1.0, 0.5]], np.float32)


def network(average, name="sgd", **options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)) if options.pop("norm", False) else nn.Linear(2, 3)
    return Network(module, OptimiserSpec(name, options).averaging(average))


def test_by_hand():
    """θ̄_n = θ̄_{n−1} + 9/(n + 8)·(θ_n − θ̄_{n−1}); θ steps by −rate·gradient as without it."""
    averaged, plain = network(True), network(False)
    theta = expected = plain.vector().copy()
    for n, (size, rate) in enumerate([(1.0, 0.5), (-2.0, 0.1), (3.0, 0.2)], 1):
        gradient = np.full(len(theta), size, np.float32)
        averaged.apply(gradient, rate)
        plain.apply(gradient, rate)
        theta = theta - np.float32(rate) * gradient
        expected = expected + 9 / (n + 8) * (theta - expected)
        np.testing.assert_allclose(averaged.judged.numpy(), expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(averaged.vector(), plain.vector())
    weight, bias = expected[:6].reshape(3, 2), expected[6:]
    np.testing.assert_allclose(averaged.read(X), X @ weight.T + bias, rtol=1e-5)
    assert averaged.digest() != plain.digest() and plain.judged is plain.theta and plain.average is None


def test_training_reads_theta():
    averaged, plain = network(True), network(False)
    for made in (averaged, plain):
        made.apply(np.ones(9, np.float32), 0.5)
        made.apply(np.ones(9, np.float32), 0.5)
    np.testing.assert_array_equal(averaged.forward(X, 0, 0), plain.forward(X, 0, 0))
    np.testing.assert_array_equal(averaged.backward(X, 0, 0, np.ones((2, 3), np.float32)),
                                  plain.backward(X, 0, 0, np.ones((2, 3), np.float32)))  # fmt: skip
    np.testing.assert_allclose(averaged.renewed(X, 0, X[:0]), plain.renewed(X, 0, X[:0]), rtol=1e-6)
    assert np.abs(averaged.read(X) - plain.read(X)).max() > 0.01


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_save_keeps_it(name):
    first, second = network(True, name, norm=True), network(True, name, norm=True)
    first.apply(np.ones(15, np.float32), 0.5, first.buffers_after_forward())
    first.forward(X, 1, 0)
    first.apply(np.ones(15, np.float32), 0.5, first.buffers_after_forward())
    second.load(first.save())
    for made in (first, second):
        made.apply(np.full(15, 2.0, np.float32), 0.1)
    assert first.digest() == second.digest() and first.vector().tobytes() == second.vector().tobytes()
    np.testing.assert_array_equal(first.read(X), second.read(X))


def test_a_network_that_has_no_parameters_has_no_average_to_move():
    empty = Network(nn.Identity(), OptimiserSpec().averaging(True))
    empty.apply(np.zeros(0, np.float32), 0.1)
    np.testing.assert_array_equal(empty.read(X), X)
