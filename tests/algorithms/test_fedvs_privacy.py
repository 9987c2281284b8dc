"""What a curious server and colluding parties see of FedVS, with and without blinding; and what noise costs."""

import itertools
from math import log, sqrt

import numpy as np
import pytest
from scipy import stats

from colonnade.algorithms.fedvs.coding import share_model
from colonnade.algorithms.fedvs.messages import Answer, ModelShare
from colonnade.privacy import field
from colonnade.privacy.gaussian import delta_of, epsilon_of, mu_for
from colonnade.privacy.sharing import LagrangeCode, _alpha
from colonnade.protocol.events import Received
from colonnade.protocol.messages import EvaluationRequest

TABLES = {
    "model": {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"},
    "train": {"batch_size": 16, "updates": 2, "learning_rate": 0.5},
}


def coefficients(answers, who, code):
    """ψ's coefficients, from the R answers that the server gets: (R, …)."""
    nodes = _alpha(code.segments + code.colluders, who)
    vandermonde = np.array([[pow(x, i, field.P) for i in range(len(nodes))] for x in nodes], np.uint64)
    return _solve(vandermonde, np.stack(answers).reshape(len(nodes), -1).astype(np.uint64))


def _solve(matrix, values):
    """Gauss in the field, in Python's integers."""
    size = len(matrix)
    rows = [[int(x) for x in row] + [int(v) for v in value] for row, value in zip(matrix, values, strict=True)]
    for i in range(size):
        pivot = pow(rows[i][i], -1, field.P)
        rows[i] = [x * pivot % field.P for x in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [(x - factor * y) % field.P for x, y in zip(rows[j], rows[i], strict=True)]
    return np.array([row[size:] for row in rows], np.uint64)


def recorded(resolve, by_hand, blinding):
    """The R answers of the first round, as the server has them."""
    world = by_hand(resolve(TABLES | {"protocol": {"name": "fedvs", "blinding": blinding}}, parties=4)).pump()
    answers = {s: m for s, _, m in reversed(world.counted) if type(m) is Answer and m.round == 0}
    who = sorted(world.server.index[name] for name in answers)[:3]
    return world, [answers[f"party-{n + 1}"].values for n in who], who


def test_without_blinding_the_server_learns_all_of_the_product(resolve, by_hand):
    """The leading coefficient of ψ is Σ Z_n V_n, of masks. The server does not need it and must not learn it."""
    world, answers, who = recorded(resolve, by_hand, blinding=False)
    code = world.server.code
    psi = coefficients(answers, who, code)
    party, batch = world.parties[0], world.server.walk.batch(0)
    expected = np.zeros_like(answers[0])
    for n in range(4):
        data = [other.training.data.rows(batch, [n]) for other in world.parties[:2]]
        slope = field.subtract(data[1], data[0])  # F and G are lines (K = T = 1), α = 3, 4
        shares = {
            to: m for s, to, m in world.counted if s == f"party-{n + 1}" and type(m) is ModelShare and m.round == 0
        }
        models = _line(shares, n)
        expected = field.add(expected, field.matmul(slope, models))
    assert party.training.exchange.key[0] > 0 and np.array_equal(psi[2], expected.ravel())


def _line(shares, n):
    """The slope of G_n, from two shares that other parties received."""
    one, other = sorted((int(name[-1]), message.model) for name, message in shares.items())[:2]
    gap = field.inverse(np.array(other[0] - one[0], np.uint32))
    return field.multiply(field.subtract(other[1], one[1]), gap)


def test_with_blinding_the_rest_is_uniform_and_the_sum_is_the_same(resolve, by_hand):
    world, answers, who = recorded(resolve, by_hand, blinding=True)
    _bare, plain, _ = recorded(resolve, by_hand, blinding=False)
    code = world.server.code
    assert np.array_equal(code.decode(answers, who), code.decode(plain, who))
    with_it, without = coefficients(answers, who, code), coefficients(plain, who, code)
    assert (with_it[2] != without[2]).mean() > 0.99
    counts = np.bincount((with_it[1:].ravel() * 16 // field.P).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_one_column_is_given_away_by_two_rounds_without_blinding():
    """ψ_1 = F·G_1 and ψ_2 = F·G_2 share F's root, so the server knows F up to a factor."""
    code = LagrangeCode(1, 1, 3)
    data = code.encode_data(np.array([[[700]]], np.uint32), np.array([[[123456]]], np.uint32))
    rounds = [(5, 99), (7, 1234)]
    models = [code.encode_model(np.array([[w]], np.uint32), np.array([[[mask]]], np.uint32)) for w, mask in rounds]
    psis = [
        coefficients([field.matmul(data[n], model[n]) for n in range(3)], range(3), code).ravel() for model in models
    ]
    slope = 123456 - 700  # F(1) = 700 and F(2) = 123456
    root = (slope - 700) * pow(slope, -1, field.P) % field.P
    values = [sum(int(c) * pow(root, i, field.P) for i, c in enumerate(psi)) % field.P for psi in psis]
    assert values == [0, 0]


def test_shares_that_one_party_gets_are_uniform_whatever_the_model():
    code = LagrangeCode(2, 1, 6)
    for weights in (np.zeros((40, 50)), np.full((40, 50), 0.75)):
        models, blindings = share_model(weights, 16, code, 12, b"r" * 32, b"m" * 32, b"b" * 32)
        for share in (models[3], blindings[3]):
            counts = np.bincount((share.ravel().astype(np.uint64) * 16 // field.P).astype(int), minlength=16)
            assert stats.chisquare(counts).pvalue > 1e-4


def test_every_exchange_has_fresh_masks(resolve, by_hand):
    world = by_hand(resolve(TABLES | {"protocol": {"name": "fedvs"}}, parties=4)).pump()
    shares = [m for s, to, m in world.said if (s, to) == ("party-1", "party-2") and isinstance(m, ModelShare)]
    assert len(shares) >= 4, "rounds and evaluations"
    for one, other in itertools.pairwise(shares):
        assert (one.model != other.model).mean() > 0.99
    blindings = [share.blinding[:8] for share in shares]
    assert all((one != other).mean() > 0.99 for one, other in itertools.pairwise(blindings))


def test_the_gaussian_mechanism():
    mu = mu_for(5.0, 1e-5)
    assert delta_of(mu, 5.0) == pytest.approx(1e-5, rel=1e-6) and epsilon_of(mu, 1e-5) == pytest.approx(5.0)
    for epsilon in (0.1, 0.5, 0.9):
        assert 1 / mu_for(epsilon, 1e-5) < sqrt(2 * log(1.25 / 1e-5)) / epsilon, "less noise than the textbook's"
    assert 1 / mu_for(5.0, 1e-5) > 0.5 and epsilon_of(0.0, 1e-5) == 0.0


def test_wait_dp_clips_perturbs_and_says_what_it_spent(simulate):
    tables = TABLES | {"protocol": {"name": "wait-dp", "clip": 0.5}, "train": TABLES["train"] | {"epochs": 3.0}}
    tables["train"] = {key: value for key, value in tables["train"].items() if key != "updates"}
    run = simulate(tables, parties=4)
    uploads = [e.message.values for _, role, e in run.events if role == "server" and hasattr(e, "message")]
    own, spent = run.server.summary()["method"], run.parties[0].summary()["privacy"]
    assert own["epsilon_per_release"] == 5.0 and own["sensitivity"] == 1.0
    assert own["sigma"] == pytest.approx(1 / mu_for(5.0, 1e-5))
    assert spent["mu"] == pytest.approx(mu_for(5.0, 1e-5) * sqrt(spent["rows"])) and spent["epsilon"] > 1000
    noise = np.concatenate([values.ravel() for values in uploads])
    assert noise.std() == pytest.approx(own["sigma"], rel=0.15)


def test_a_server_that_repeats_an_evaluation_gets_other_noise(simulate):
    """With the same noise twice, the difference of two answers would be the difference of two embeddings."""
    tables = TABLES | {"protocol": {"name": "wait-dp"}}
    party = simulate(tables, parties=4).simulator.nodes[1].role
    answers = []
    for _ in range(2):
        (work,) = party.handle(Received("server", EvaluationRequest(7, 0, 5)), 0)
        answers.append(party.compute(work.job).values)
    assert not np.isclose(*answers).any()
