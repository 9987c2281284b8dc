"""A module as a flat vector: the same numbers as plain torch, no hidden state, and reading changes nothing."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.models import Network, OptimiserSpec, Regulariser, ServerRegulariser
from colonnade.models.held import Held
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError

SGD = OptimiserSpec()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def with_dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def rows(count=5, width=4, seed=1):
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def plain_gradient(module, x, output_gradient):
    """By torch alone, as one vector."""
    module.zero_grad()
    module(torch.from_numpy(x)).backward(torch.from_numpy(output_gradient))
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.requires_grad]).numpy()


def vector(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]).numpy()


def test_parameters_are_views_of_one_vector():
    module = mlp()
    expected = vector(module)
    network = Network(module, SGD)
    np.testing.assert_array_equal(network.theta.numpy(), expected)
    network.theta.zero_()
    assert all(not p.any() for p in [*network.parameters, *network.reader.parameters()])


@pytest.mark.parametrize("make", [mlp, with_batchnorm, Tied])
def test_forward_and_backward_are_torchs_own(make):
    oracle, network = make(), Network(make(), SGD)
    x = rows()
    with torch.no_grad():
        expected = copy.deepcopy(oracle)(torch.from_numpy(x)).numpy()
    output = network.forward(x, key=0, seed=0)
    np.testing.assert_array_equal(output, expected)
    g = rows(5, output.shape[1], seed=2)
    np.testing.assert_allclose(network.backward(x, 0, 0, g), plain_gradient(oracle, x, g), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [mlp, with_batchnorm, with_dropout, Tied])
def test_a_lost_cache_changes_no_bit(make):
    x, other = rows(), rows(seed=9)
    network = Network(make(), SGD)
    output = network.forward(x, key=3, seed=11)
    g = rows(5, output.shape[1], seed=2)
    hit, buffers = network.backward(x, 3, 11, g), network.buffers_after_forward()
    network.forward(other, key=4, seed=12)  # the cache now holds another batch
    np.testing.assert_array_equal(network.backward(x, 3, 11, g), hit)
    fresh = Network(make(), SGD)  # nothing was ever cached here
    np.testing.assert_array_equal(fresh.backward(x, 3, 11, g), hit)
    for one, two in zip(buffers, fresh.buffers_after_forward(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_dropout_draws_from_the_given_seed_only():
    network = Network(with_dropout(), SGD)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (network.forward(rows(), 0, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_batchnorm_is_committed_by_apply_alone():
    network, oracle, x = Network(with_batchnorm(), SGD), with_batchnorm(), rows()
    before = network.read(x)
    digest = network.digest()
    for key in range(3):
        network.forward(x, key, 0)
    np.testing.assert_array_equal(network.read(x), before)
    assert network.digest() == digest
    buffers = network.buffers_after_forward()
    network.apply(np.zeros(len(network.theta), np.float32), 0.1, buffers)
    oracle(torch.from_numpy(x))  # one pass in training mode, although `forward` was tried several times
    for committed, expected in zip(network.reader.buffers(), oracle.buffers(), strict=True):
        assert torch.equal(committed, expected)
    assert not np.array_equal(network.read(x), before)


@pytest.mark.parametrize("make", [with_batchnorm, with_dropout])
def test_reading_moves_nothing(make):
    network, x = Network(make(), SGD), rows()
    network.forward(x, 0, 0)
    expected = make().eval()(torch.from_numpy(x)).detach().numpy()
    torch.manual_seed(5)
    before, saved, g = torch.get_rng_state(), state.pack(network.save()), np.ones((5, 2), np.float32)
    np.testing.assert_array_equal(network.read(x), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert state.pack(network.save()) == saved
    undisturbed = Network(make(), SGD)
    undisturbed.forward(x, 0, 0)
    np.testing.assert_array_equal(network.backward(x, 0, 0, g), undisturbed.backward(x, 0, 0, g))


def test_frozen_parameters_stay():
    module = mlp()
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    network, x = Network(module, SGD), rows()
    assert len(network.theta) == 6 * 2 + 2
    gradient = network.backward(x, 0, 0, np.ones((5, 2), np.float32))
    before = network.read(x)
    network.apply(gradient, 0.5)
    assert torch.equal(network.reader[0].weight, frozen) and torch.equal(module[0].weight, frozen)
    assert not np.array_equal(network.read(x), before)


def test_tied_parameters_are_one():
    network, x = Network(Tied(), SGD), rows()
    assert len(network.theta) == 4 * 4 + 4 + 4
    network.apply(network.backward(x, 0, 0, np.ones((5, 4), np.float32)), 0.5)
    assert torch.equal(network.reader.first.weight, network.reader.second.weight)


def test_a_network_without_parameters():
    network, x = Network(nn.Identity(), OptimiserSpec("adam")), rows()
    np.testing.assert_array_equal(network.forward(x, 0, 0), x)
    gradient = network.backward(x, 0, 0, x)
    network.apply(gradient, 0.1)
    assert gradient.shape == (0,) and network.steps == 1


OPTIMISERS = [
    (OptimiserSpec("sgd"), torch.optim.SGD),
    (OptimiserSpec("momentum"), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    (OptimiserSpec("momentum", {"nesterov": True}), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True)),
    (OptimiserSpec("sgd", {"weight_decay": 0.1}), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    (OptimiserSpec("adam", {"betas": (0.8, 0.9)}), lambda p, lr: torch.optim.Adam(p, lr, betas=(0.8, 0.9))),
    (OptimiserSpec("Adam", {"weight_decay": 0.1}), lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1)),
    (OptimiserSpec("AdamW"), torch.optim.AdamW),
    (OptimiserSpec("AdamW", {"weight_decay": 0.1}), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)),
    (OptimiserSpec("adam", {"amsgrad": True}), lambda p, lr: torch.optim.Adam(p, lr, amsgrad=True)),
]


@pytest.mark.parametrize(("spec", "make"), OPTIMISERS, ids=lambda case: getattr(case, "name", ""))
def test_optimisers_step_for_step(spec, make):
    oracle, network = mlp(), Network(mlp(), spec)
    optimiser = make(oracle.parameters(), 0.0)
    for step in range(5):
        x, g, rate = rows(seed=step), rows(5, 2, seed=100 + step), 0.1 / (1 + step)
        plain_gradient(oracle, x, g)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        network.apply(network.backward(x, step, 0, g), rate)
        np.testing.assert_allclose(network.theta.numpy(), vector(oracle), rtol=1e-5, atol=1e-6)
    assert network.steps == 5


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_the_own_adam_has_the_bits_of_torch(name):
    spec = OptimiserSpec(name, {"weight_decay": 0.1})
    theta, other = torch.from_numpy(rows(1, 40)[0]), nn.Parameter(torch.from_numpy(rows(1, 40)[0].copy()))
    own, torchs = spec.over(theta), spec.build(other)
    for step in range(20):
        own.step(torch.from_numpy(rows(1, 40, seed=step)[0]), 0.1)
        other.grad = torch.from_numpy(rows(1, 40, seed=step)[0])
        torchs.param_groups[0]["lr"] = 0.1
        torchs.step()
        assert torch.equal(theta, other.detach()), step


@pytest.mark.parametrize("kind", ["none", "l1", "l2"])
def test_regulariser_gradients(kind):
    network = Network(mlp(), SGD, Regulariser(kind, 0.3))
    theta = network.theta.clone().requires_grad_()
    penalty = {"none": theta.sum() * 0, "l1": 0.3 * theta.abs().sum(), "l2": 0.15 * (theta**2).sum()}[kind]
    (expected,) = torch.autograd.grad(penalty, theta)
    gradient = rows(1, len(theta))[0]
    before = gradient.copy()
    network.apply(gradient, 0.5)
    stepped = (theta - 0.5 * (torch.from_numpy(before) + expected)).detach()
    np.testing.assert_allclose(network.theta.numpy(), stepped, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(gradient, before)  # a message's array is nobody's to change


@pytest.mark.parametrize(("max_norm", "gradient"), [(None, [3.0, 4.0]), (10.0, [3.0, 4.0]), (1.0, [0.6, 0.8])])
def test_a_long_gradient_is_shortened(max_norm, gradient):
    """(3, 4) has norm 5. The regulariser counts: θ = (1, 0) with l2 = 0.5 makes it (3.5, 4), of norm √28.25."""
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
    network = Network(copy.deepcopy(layer), OptimiserSpec(max_norm=max_norm))
    network.apply(np.array([3.0, 4.0], np.float32), 0.1)
    np.testing.assert_allclose(network.theta, np.array([1.0, 0.0]) - 0.1 * np.array(gradient), rtol=1e-6)
    network = Network(copy.deepcopy(layer), OptimiserSpec(max_norm=max_norm), Regulariser("l2", 0.5))
    network.apply(np.array([3.0, 4.0], np.float32), 0.1)
    length = 1.0 if max_norm == 1.0 else np.sqrt(28.25)
    expected = np.array([1.0, 0.0]) - 0.1 * np.array([3.5, 4.0]) / np.sqrt(28.25) * length
    np.testing.assert_allclose(network.theta, expected, rtol=1e-6)


def test_no_gradient_is_shortened_to_no_gradient():
    network = Network(mlp(), OptimiserSpec(max_norm=1.0))
    before = network.vector().copy()
    network.apply(np.zeros_like(before), 0.1)
    np.testing.assert_array_equal(network.vector(), before)


@pytest.mark.parametrize(
    ("settings", "key"), [({"kind": "l3"}, "kind"), ({"kind": "l2", "weight": -1.0}, "weight"),
                          ({"kind": "l2", "weight": float("nan")}, "weight")],
)  # fmt: skip
def test_regulariser_refusals(settings, key):
    with pytest.raises(ConfigError, match=f"train.regulariser.{key}"):
        Regulariser(**settings)
    with pytest.raises(ConfigError, match=f"train.server_regulariser.{key}"):
        ServerRegulariser(**settings)


@pytest.mark.parametrize(
    "spec",
    [
        OptimiserSpec("sdg"),
        OptimiserSpec("sgd", {"momentun": 1}),
        OptimiserSpec("adam", {"betas": (2.0, 2.0)}),
        OptimiserSpec("adam", {"betas": 0.9}),
        OptimiserSpec("AdamW", {"weight_decay": -0.1}),
        OptimiserSpec("AdamW", {"eps": "small"}),
        OptimiserSpec("sgd", {"lr": 1.0}),
    ],
)
def test_optimiser_refusals(spec):
    with pytest.raises(ConfigError, match=r"^train\.optimiser"):
        spec.check()


@pytest.mark.parametrize("spec", [case[0] for case in OPTIMISERS], ids=lambda spec: spec.name)
@pytest.mark.parametrize("make", [with_batchnorm, with_dropout])
def test_save_and_load_continue_identically(spec, make):
    def train(network, steps):
        for step in steps:
            x, g = rows(seed=step), rows(5, 2, seed=100 + step)
            network.forward(x, step, step)
            buffers = network.buffers_after_forward()
            network.apply(network.backward(x, step, step, g), 0.1, buffers)

    whole, halves = Network(make(), spec), Network(make(), spec)
    train(whole, range(6))
    train(halves, range(3))
    saved = state.unpack(state.pack(halves.save()))
    resumed = Network(make(), spec)
    resumed.load(saved)
    assert resumed.digest() == halves.digest() != whole.digest()
    train(resumed, range(3, 6))
    assert resumed.digest() == whole.digest()
    assert state.pack(resumed.save()) == state.pack(whole.save())


def test_what_was_saved_does_not_move_with_the_network():
    network = Network(mlp(), OptimiserSpec("adam"))
    network.apply(np.ones(len(network.theta), np.float32), 0.1)
    saved = network.save()
    before = copy.deepcopy(saved)
    network.apply(np.ones(len(network.theta), np.float32), 0.1)
    np.testing.assert_array_equal(saved["theta"], before["theta"])
    assert state.pack(saved) == state.pack(before)


def test_read_only_arrays_are_taken():
    network, x = Network(mlp(), SGD), rows()
    g = np.ones((5, 2), np.float32)
    expected = network.backward(x, 0, 0, g)
    x.flags.writeable = g.flags.writeable = False
    np.testing.assert_array_equal(network.backward(x, 1, 0, g), expected)


def test_a_loaded_copy_has_forgotten_its_forward_pass():
    """Without that, a role that goes back would use the graph of other rows under the same key."""
    network = Network(nn.Linear(1, 1, bias=False), SGD)
    held = Held(network, 1)
    held.at(0).forward(np.ones((4, 1), np.float32), 0, 0)
    held.load({})
    gradient = held.at(0).backward(np.full((1, 1), 3, np.float32), 0, 0, np.ones((1, 1), np.float32))
    assert gradient.tolist() == [3.0]
