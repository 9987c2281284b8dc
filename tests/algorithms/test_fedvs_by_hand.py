"""FedVS rounds that pencil and paper can check, and rounds that must equal plaintext ones."""

import dataclasses

import numpy as np
import pytest
import torch

import colonnade
from colonnade.data import Task
from colonnade.models.polynomial import Polynomial, powers

X = np.array([[0.5, 1.0, 0.25], [-0.5, 0.25, -1.0]], np.float32)  # two rows, a column for each of three parties
Y = np.array([-1.0, 1.0])  # standardising does not change it
WEIGHTS = ([0.5, 0.25], [-0.25, 0.0], [1.0, -0.5])  # w_n and the bias, all of them exact in 2^-12
BARE = {"allow_unprotected": True}


def federation_of(resolve, weights=WEIGHTS, **protocol):
    tables = {
        "protocol": {"name": "fedvs", **protocol},
        "model": {"party": "polynomial:1", "embedding": 1, "server": "none", "aggregate": "mean"},
        "train": {"batch_size": 2, "updates": 1, "learning_rate": 0.3},
    }
    rows = np.concatenate([X, X, X])  # two thirds of the rows for training, all of them equal
    data = colonnade.split(
        colonnade.from_arrays(rows, np.tile(Y, 3)), parties=3, scale="none", test_fraction=1 / 3, validation_fraction=0
    )
    data = dataclasses.replace(
        data,
        train=tuple(X[:, [n]] for n in range(3)), test=tuple(X[:, [n]] for n in range(3)), y_train=Y, y_test=Y,
        task=Task("regression", ()),
    )  # fmt: skip
    setting = resolve(tables, data=data)
    for n, setup in enumerate(setting.parties):
        setting.parties[n] = dataclasses.replace(setup, model=given(weights[n]))
    return setting


def given(weights):
    def make(inputs, outputs):
        module = Polynomial(inputs, outputs, 1)
        with torch.no_grad():
            module.weight.copy_(torch.tensor(weights).reshape(-1, outputs))
        return module

    return make


@pytest.mark.parametrize("options", [{}, {"K": 2, "T": 0, **BARE}, {"K": 1, "T": 0, "blinding": False, **BARE}])
def test_one_round(resolve, by_hand, options):
    """h = (0.5, 0), (−0.25, −0.0625), (−0.25, −1.5); H = (0, −1.5625/3); ∇_H = H − y; ∇W_n = x̃_nᵀ·∇_H/3."""
    world = by_hand(federation_of(resolve, **options)).pump()
    assert world.finished == "done"
    (gradient,) = {message.values.tobytes() for _, _, message in world.said if type(message).__name__ == "Gradient"}
    order = world.server.walk.rows(0)
    at_rows = np.frombuffer(gradient, np.float32)[np.argsort(order)]
    np.testing.assert_allclose(at_rows, [1.0, -1.5625 / 3 - 1], rtol=1e-6)
    of_own = np.array([1.0, -1.5625 / 3 - 1]) / 3
    for party, weights, x in zip(world.parties, WEIGHTS, X.T, strict=True):
        expected = np.array(weights) - 0.3 * np.array([x @ of_own, of_own.sum()])
        np.testing.assert_allclose(party.network.vector(), expected, rtol=1e-6)
    assert world.records[0].loss == pytest.approx((1.0 + (1.5625 / 3 + 1) ** 2) / 2)


def test_the_network_and_its_powers():
    module, x = Polynomial(2, 3, 3), np.array([[0.5, -2.0], [1.0, 0.25]], np.float32)
    stacked = powers(x, 3)
    assert stacked[0].tolist() == [0.5, -2.0, 1.0, 0.25, 4.0, 1.0, 0.125, -8.0, 1.0]
    by_torch = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(stacked @ module.weight.detach().double().numpy(), by_torch, rtol=1e-5, atol=1e-6)


TABLES = {
    "data": {"scale": "minmax"},
    "model": {"party": "polynomial:2", "embedding": 8, "server": "linear", "aggregate": "mean"},
    "train": {"batch_size": 32, "updates": 60, "learning_rate": 0.5, "eval_every": 20},
}


@pytest.mark.parametrize("method", [{"K": 2, "T": 1}, {"K": 1, "T": 2}])
def test_rounds_are_those_of_wait_but_for_rounding(simulate, method):
    plain = simulate(TABLES | {"protocol": {"name": "wait", "K": method["K"]}}, parties=6).records
    coded = simulate(TABLES | {"protocol": {"name": "fedvs", **method}}, parties=6).records
    for one, other in zip(plain, coded, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=0.01) and other.update == one.update
    assert coded[-1].loss < 0.9 * coded[0].loss
