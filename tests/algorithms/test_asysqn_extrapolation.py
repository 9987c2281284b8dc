"""Extrapolation from snapshots: by hand, against scikit-learn, and when the parties' records differ."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import colonnade
from colonnade.algorithms.asysqn.config import AfSvrgOptions, AsySvrgOptions
from colonnade.algorithms.asysqn.extrapolation import LARGEST, Snapshots, best_coefficients, window_of
from colonnade.algorithms.asysqn.losses import LOSSES
from colonnade.algorithms.asysqn.messages import Ask, Hold, Members, Take, Totals
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received

from .test_asysqn_by_hand import Parties, X, Y

RIDGE, LOGISTIC = LOSSES["ridge"], LOSSES["logistic"]
NO_ROWS = np.zeros(0, np.int32)


def test_squares_are_minimised_in_one_step():
    """f(a) = ½·mean((Σ a_i θ_i − y)²) + ½aᵀGa with Σ a = 1: by the normal equations of its two free coefficients."""
    draw = np.random.default_rng(0)
    thetas, y = list(draw.standard_normal((3, 50))), draw.standard_normal(50)
    weights = draw.standard_normal((3, 4))
    gram = 0.1 * weights @ weights.T
    a = best_coefficients(thetas, gram, RIDGE, y, 0.0)
    free = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    matrix = np.stack(thetas) @ np.stack(thetas).T / 50 + gram
    best = np.linalg.solve(free @ matrix @ free.T, free @ (np.stack(thetas) @ y / 50 - matrix[:, 2]))
    np.testing.assert_allclose(a, [*best, 1 - best.sum()], rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_objective_never_rises(seed):
    draw = np.random.default_rng(seed)
    x, w = draw.standard_normal((40, 6)), draw.standard_normal((4, 6)) * draw.choice([0.01, 1.0, 30.0])
    y = np.where(draw.random(40) < 0.5, 1.0, -1.0)
    gram = 0.05 * w @ w.T
    a = best_coefficients([x @ one for one in w], gram, LOGISTIC, y, 1e-12)

    def objective(point):
        return LOGISTIC.value(x @ point, y).mean() + 0.025 * point @ point

    if a is not None:
        assert a.sum() == pytest.approx(1.0) and np.abs(a).sum() <= LARGEST
        assert objective(a @ w) < objective(w[-1])


def test_an_error_of_the_sum_counts_against_the_gain():
    thetas, y = [np.zeros(4), np.full(4, 0.01)], np.array([1.0, 1.0, -1.0, 1.0])
    assert best_coefficients(thetas, np.zeros((2, 2)), LOGISTIC, y, 0.0) is not None
    assert best_coefficients(thetas, np.zeros((2, 2)), LOGISTIC, y, 1.0) is None


def test_the_record_keeps_the_newest_snapshots_and_their_products():
    weights = [np.array([1.0, 0.0]), np.array([1.0, 2.0]), np.array([0.0, 3.0])]
    record = Snapshots()
    for barrier, w in enumerate(weights, 1):
        tail = record.tail(w, 0.5, record.barriers, 2)
        assert tail[0] == 1.0 and len(tail) == 4
        record = record.renewed(barrier, w, np.full(3, float(barrier)), record.row(tail, 1), 2)
    assert record.barriers == [2, 3]
    np.testing.assert_allclose(record.gram, [[2.5, 3.0], [3.0, 4.5]])
    w, theta = record.moved(np.array([-1.0, 2.0]))
    assert w.tolist() == [-1.0, 4.0] and theta.tolist() == [4.0, 4.0, 4.0]


def test_parties_with_other_snapshots_are_seen():
    record = Snapshots(barriers=[1], weights=[np.ones(2)], thetas=[np.zeros(3)], gram=np.ones((1, 1)))
    assert not record.tail(np.ones(2), 0.5, [2], 4).any()
    assert not len(record.row(np.array([2.0, 1.0, 1.0, 0.0, 0.0, 0.0]), 3)), "one of three differs"
    assert not record.renewed(2, np.ones(2), np.zeros(3), np.zeros(0), 4).barriers


def test_large_tables_keep_fewer_snapshots():
    assert (window_of(1000), window_of(2**23), window_of(2**25)) == (10, 2, 0)


def snapshot(parties, barrier, initiator=0):
    for name in parties.names:
        parties.tell(name, Received("server", Hold(barrier)))
    parties.settle()
    parties.tell(parties.names[initiator], Received("server", Take(barrier)))
    parties.settle(300)


def resting(options):
    parties = Parties(options, X, Y)
    parties.begin(0, 1, 2)
    parties.settle()
    return parties


def set_weights(parties, weights):
    for name, w in zip(parties.names, weights, strict=True):
        parties.roles[name].estimator.state.w = np.array([w, 0.0])


def test_all_parties_move_to_the_same_point():
    """Two snapshots: w(a) = (1 − a)·w_1 + a·w_2, and the penalty of the whole model decides on a, too."""
    parties = resting(AfSvrgOptions(ahead=0, l2=0.1, share=True, extrapolate=True))
    first, second = np.array([0.5, -0.25, 2.0]), np.array([0.4, -0.2, 1.5])
    set_weights(parties, first)
    snapshot(parties, 1)
    set_weights(parties, second)
    snapshot(parties, 2, initiator=1)
    found = np.array([role.estimator.w[0] for role in parties.roles.values()])
    a = (found - first) / (second - first)
    assert np.ptp(a) < 1e-9 and abs(a[0] - 1.0) > 1e-3, "one coefficient for all, and a move"
    x, y = np.array(X), np.array([1.0, -1.0])

    def objective(w):
        return LOGISTIC.value(w @ x, y).mean() + 0.05 * w @ w

    assert objective(found) < objective(second)
    (totals, *_) = [message for _, _, message in parties.of(Totals) if message.barrier == 2]
    assert len(totals.values) == 2 + 12 and totals.values[2] == 3.0
    np.testing.assert_allclose(totals.values[3:5], [0.1 * first @ second, 0.1 * second @ second], rtol=1e-6)


def test_other_members_begin_a_new_record():
    parties = resting(AfSvrgOptions(ahead=0, l2=0.1, share=True, extrapolate=True))
    set_weights(parties, (0.5, -0.25, 2.0))
    snapshot(parties, 1)
    assert all(role.estimator.state.snapshots.barriers == [1] for role in parties.roles.values())
    parties.tell("party-1", Received("server", Members([0, 1])))
    parties.tell("party-1", Received("server", Members([0, 1, 2])))
    assert not parties.roles["party-1"].estimator.state.snapshots.barriers
    set_weights(parties, (0.4, -0.2, 1.5))
    snapshot(parties, 2, initiator=1)
    assert [role.estimator.w[0] for role in parties.roles.values()] == [0.4, -0.2, 1.5], "the records differ"
    assert not any(role.estimator.state.snapshots.barriers for role in parties.roles.values())


def test_the_record_is_saved():
    parties = resting(AfSvrgOptions(ahead=0, l2=0.1, share=True, extrapolate=True))
    set_weights(parties, (0.5, -0.25, 2.0))
    snapshot(parties, 1)
    role, other = parties.roles["party-1"], resting(AfSvrgOptions(ahead=0, l2=0.1, share=True, extrapolate=True))
    other.roles["party-1"].load(role.save())
    loaded = other.roles["party-1"].estimator.state.snapshots
    assert loaded.barriers == [1] and loaded.thetas[0].tolist() == role.estimator.state.snapshots.thetas[0].tolist()


@pytest.mark.parametrize(
    "ask",
    [
        Ask(5, [0, 1, 2], False, NO_ROWS, tests=True, history=[1]),
        Ask(5, [0, 1, 2], True, NO_ROWS, history=[2**50]),
        Ask(5, [0, 1, 2], True, NO_ROWS, history=[1] * 100),
    ],
)
def test_impossible_histories_are_refused(ask):
    parties = resting(AfSvrgOptions(ahead=0, l2=0.1, extrapolate=True))
    with pytest.raises(RemoteProtocolError, match="not a batch"):
        parties.tell("party-1", Received("party-2", ask))


def test_the_default_is_to_extrapolate_unless_a_rate_is_given():
    assert AsySvrgOptions().extrapolates(measured=True) and not AsySvrgOptions().extrapolates(measured=False)


@pytest.mark.parametrize("method", ["asysqn-svrg", "synsqn-svrg", "afsvrg"])
def test_the_objective_is_nearer_to_scikit_learns(method):
    data = colonnade.split(colonnade.load("breast-cancer"), parties=3, validation_fraction=0)
    x, y = np.hstack(data.train).astype(np.float64), np.where(data.y_train > 0, 1.0, -1.0)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=3000).fit(x, data.y_train)

    def objective(w, b):
        return LOGISTIC.value(x @ w + b, y).mean() + w @ w / (2 * len(y))

    best = objective(model.coef_[0], model.intercept_[0])
    above = {}
    for extrapolate in (False, True):
        run = colonnade.prepare(data, {"name": method, "extrapolate": extrapolate}, epochs=8.0, eval_every="100 epochs")
        run.execute()
        first, *rest = [node.role.trained() for node in run.simulator.nodes[1:]]
        blocks = [next(iter(one.values())) for one in (first, *rest)]
        w = np.concatenate([block["weight"] for block in blocks])
        above[extrapolate] = objective(w, blocks[0]["bias"][0]) / best - 1.0
    assert above[True] < 0.3 * above[False]
