"""Frozen networks: the numbers of torch, and only where nothing but the speed may differ."""

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.data.task import Task
from colonnade.models import Network, Objective, OptimiserSpec, ServerNetwork
from colonnade.models.frozen import MOST_PRODUCTS, freeze

ROUNDING = 1e-6


def mlp(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=bias), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def rows(count, width=4):
    return np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize("module", [mlp(), mlp(bias=False), nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.ReLU())])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_a_frozen_network_has_the_outputs_of_torch(module, count):
    found, x = freeze(module), rows(count)
    before = x.copy()
    assert found is not None
    assert found.takes(x)
    np.testing.assert_allclose(found(x), module(torch.from_numpy(x)).detach(), rtol=0, atol=ROUNDING)
    assert np.array_equal(x, before)
    assert np.array_equal(found(x), found(x))


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, x, output: 2 * output)
    return layer


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.Identity(),
        nn.Sequential(),
        Twice(4, 3),
        hooked(),
        nn.Linear(4, 3, dtype=torch.float64),
        nn.Linear(2**10, 2**9),
    ],
)
def test_other_layers_and_large_ones_stay_with_torch(module):
    assert freeze(module) is None


def test_only_few_rows_of_the_right_shape_and_type_are_taken():
    found = freeze(nn.Linear(4, 2**14))
    most = MOST_PRODUCTS // 2**16
    assert found.takes(rows(most))
    assert not found.takes(rows(most + 1))
    assert not found.takes(rows(0))
    assert not found.takes(rows(1, 5))
    assert not found.takes(rows(1)[0])
    assert not found.takes(rows(1).astype(np.float64))


@pytest.mark.parametrize("change", ["apply", "load", "settle_on", "follow"])
def test_new_weights_are_read_after_any_change(change):
    network, x = Network(mlp(), OptimiserSpec()), rows(2)
    plain = network.read(x)
    network.freeze()
    frozen = network.read(x)
    assert not np.shares_memory(frozen, network.read(x))
    np.testing.assert_allclose(frozen, plain, rtol=0, atol=ROUNDING)
    other = Network(mlp(), OptimiserSpec())
    other.apply(np.ones(len(other.theta), np.float32), 0.5)
    match change:
        case "apply":
            network.apply(np.ones(len(network.theta), np.float32), 0.5)
        case "load":
            network.load(other.save())
        case "settle_on":
            network.settle_on(other.snapshot())
        case "follow":
            network.follow(other)
    assert np.array_equal(network.read(x), other.read(x)), "the bits of torch again"


def test_a_network_that_is_not_frozen_never_leaves_torch():
    network, x = Network(mlp(), OptimiserSpec()), rows(1)
    assert np.array_equal(network.read(x), mlp()(torch.from_numpy(x)).detach())


@pytest.mark.parametrize("how", ["concat", "sum", "mean", "max"])
@pytest.mark.parametrize(("kind", "outputs"), [("binary", 1), ("multiclass", 3), ("regression", 1)])
def test_a_server_predicts_the_same_frozen(how, kind, outputs):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6 if how == "concat" else 2, 8), nn.ReLU(), nn.Linear(8, outputs))
    classes = {"binary": ("a", "b"), "multiclass": ("a", "b", "c"), "regression": ()}[kind]
    objective = Objective(Task(kind, classes), np.array([1.0, 2.0, 5.0]))
    network, h = ServerNetwork(module, OptimiserSpec(), objective, how, 3), 3 * rows(5, 6)
    plain = network.predict(h)
    network.freeze()
    found = network.predict(h)
    assert found.dtype == plain.dtype == np.float64
    np.testing.assert_allclose(found, plain, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("kind", "outputs"), [("binary", 1), ("multiclass", 2)])
def test_extreme_outputs_become_probabilities_without_overflow(kind, outputs):
    objective = Objective(Task(kind, ("a", "b")), np.array([0, 1]))
    output = np.array([[-1e4], [-40.0], [0.0], [40.0], [1e4]], np.float32) * np.array(
        [[1.0, 0.0][:outputs]], np.float32
    )
    found = objective.predict_here(output)
    np.testing.assert_allclose(found, objective.predict(torch.from_numpy(output)), rtol=1e-12, atol=0)
