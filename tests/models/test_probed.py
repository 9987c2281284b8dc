"""Networks evaluated at other parameters: all else is equal, losses are float64, buffers are the base pass's."""

import numpy as np
import pytest
import torch
from torch import nn

import colonnade
from colonnade.data import Task
from colonnade.models import Objective, OptimiserSpec, ServerNetwork
from colonnade.models.probed import ProbedNetwork, ProbedServerNetwork

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


def server(kind=ProbedServerNetwork):
    return kind(layers(), OptimiserSpec(), Objective(Task("multiclass", ("a", "b", "c")), Y), "concat", 2)


def test_at_the_same_parameters_and_seed_it_is_the_same():
    """Dropout and BatchNorm included: the two passes of a pair differ only in θ."""
    made = ProbedNetwork(layers(), OptimiserSpec())
    theta = made.theta.numpy().copy()
    np.testing.assert_array_equal(made.embed_at(theta, X, 7), made.embed(X, 7))
    assert not np.array_equal(made.embed_at(theta, X, 8), made.embed(X, 7)), "Dropout does draw"
    moved = made.embed_at(theta + 0.01, X, 7)
    assert not np.array_equal(moved, made.embed(X, 7))
    np.testing.assert_array_equal(made.theta.numpy(), theta)


def test_a_probe_leaves_the_buffers_of_the_base_pass_alone():
    made = ProbedNetwork(layers(), OptimiserSpec())
    made.embed(X, 0)
    before = made.buffers_after_forward()
    made.embed_at(made.theta.numpy() + 1, 3 * X, 0)
    for one, other in zip(made.buffers_after_forward(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    made.apply(np.zeros(0, np.float32), 0.1, before)
    assert made.save()["buffers"][1] == 1


def test_losses_are_those_of_float64_and_resolve_small_moves():
    made = server()
    (losses,) = made.losses_at(None, [X], Y, 3)
    assert losses.shape == (6,) and losses.dtype == np.float64
    single = made.objective.loss(made.run(torch.from_numpy(X), 3), torch.from_numpy(Y)).item()
    assert losses.mean() == pytest.approx(single, rel=1e-5)
    moves = []
    for step in (1e-4, 2e-4):
        theta = made.theta.numpy().copy()
        theta[-1] += np.float32(step)
        moves.append((made.losses_at(theta, [X], Y, 3)[0].mean() - losses.mean()) / step)
    assert moves[0] == pytest.approx(moves[1], rel=1e-2), "a slope, not rounding"
    np.testing.assert_array_equal(made.losses_at(None, [X], Y, 3)[0], losses)


def test_several_inputs_share_the_parameters():
    made = server()
    both = made.losses_at(None, iter([X, 2 * X]), Y, 3)
    np.testing.assert_array_equal(both[1], made.losses_at(None, [2 * X], Y, 3)[0])


def test_the_gradient_is_that_of_a_first_order_server():
    np.testing.assert_array_equal(server().gradient(X, Y, 3), server(ServerNetwork).gradients(X, Y, 3).theta_0)


def test_a_server_without_parameters_has_an_empty_gradient():
    made = ProbedServerNetwork(
        nn.Identity(), OptimiserSpec(), Objective(Task("multiclass", ("a", "b")), Y[:2]), "sum", 2
    )  # fmt: skip
    assert made.gradient(X, Y % 2, 0).shape == (0,)
    assert made.losses_at(None, [X], Y % 2, 0)[0].shape == (6,)


@pytest.mark.parametrize("method", ["cascaded", "zoo", "syn-zoo", "frozen"])
def test_batch_norm_follows_the_data_on_both_sides(method):
    """A server that estimates takes no gradient, and a frozen party does not learn, but both have seen batches."""
    data = colonnade.split(colonnade.load("digits"), parties=2)

    def normed(inputs, outputs):
        return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))

    run = colonnade.prepare(data, method, normed, normed, embedding=3, updates=8, learning_rate=1e-4)
    before = [node.role.network.theta.numpy().copy() for node in run.simulator.nodes]
    run.execute()
    for node, theta in zip(run.simulator.nodes, before, strict=True):
        averages, batches = node.role.network.save()["buffers"]
        assert batches >= 2 and averages[: len(averages) // 2].any(), node.role.name
        still = method == "frozen" and node.role.name != "server"
        assert np.array_equal(node.role.network.theta.numpy(), theta) == still, node.role.name
