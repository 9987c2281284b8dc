"""VAFL's first steps against pencil and paper (numpy): Alg. 1, its order †, and Alg. 2; without a driver.

One column and one weight per party, h_m = w_m·x_m; the aggregate is the sum s = Σ h_m. Regression: the output is
a·s, ℓ = mean (a·s − y)². Logistic: the output is s itself, ℓ = mean log-loss.
"""

import numpy as np
import pytest

from colonnade.algorithms.training import StepRule
from colonnade.algorithms.vafl.config import TSyncOptions, VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, Gradient, Query
from colonnade.protocol.events import Received, Send, SetTimer, TimerFired, Work

X = [[1.0, -2.0, 0.5], [0.3, 0.7, -1.0], [2.0, 1.0, -1.5]]
Y = np.array([1.0, 0.0, -1.0]) / np.std([1.0, 0.0, -1.0])  # mean 0 and deviation 1: standardising changes nothing
W, A, ETA_0, ETA = [1.0, 2.0, -0.5], 0.5, 0.1, 0.2


def squared(a, s, y):
    """(∂ℓ/∂h rows, ∂ℓ/∂a) of mean (a·s − y)²."""
    d = 2 * (a * s - y) / len(y)
    return d * a, float(d @ s)


def logistic(s, y):
    return (1 / (1 + np.exp(-s)) - y) / len(y)


def sent(effects, to, kind):
    (effect,) = [e for e in effects if isinstance(e, Send) and e.to == to and isinstance(e.message, kind)]
    return effect.message


def weight(role):
    return float(role.network.theta[0])


def test_alg_1_two_updates(tiny, regression):
    run = tiny(VaflOptions(table="zeros"), X[:2], Y, W, A, regression)
    table, a, w = np.zeros((3, 2)), A, list(W)
    server = run.server
    for k, m in enumerate((0, 1)):  # party 1 first, then party 2, which uses the rows that party 1 left in the table
        upload = sent(run.start(m), "server", Embeddings)
        rows, x = upload.rows, np.array(X[m])[upload.rows]
        assert (upload.step, upload.batch, len(rows), upload.reply) == (0, 2, 2, True)
        np.testing.assert_allclose(upload.values[:, 0], w[m] * x, rtol=1e-6)
        table[rows, m] = w[m] * x

        g_h, g_a = squared(a, table[rows].sum(1), Y[rows])  # one pass, before any step
        _, effects = run.work(server, run.told(server, Received(run.names[m], upload)))
        a -= ETA_0 * g_a
        assert weight(server) == pytest.approx(a, rel=1e-6)
        reply = sent(effects, run.names[m], Gradient)
        assert (reply.step, reply.update) == (0, k)
        np.testing.assert_allclose(reply.values[:, 0], g_h, rtol=1e-5)

        party = run.parties[m]
        run.work(party, run.told(party, Received("server", reply)))
        w[m] -= ETA * float(g_h @ x)
        assert weight(party) == pytest.approx(w[m], rel=1e-5)
        np.testing.assert_allclose(server.table.values, table, rtol=1e-6)
        assert server.k == k + 1
    assert len(set(run.parties[0].walk.batch(0)) & set(run.parties[1].walk.batch(0))) >= 1  # their rows did overlap


def test_alg_1_logistic_without_a_server_model(tiny, binary):
    y = np.array([1, 0, 1])
    run = tiny(VaflOptions(table="zeros"), X[:2], y, W, None, binary, batch=3)
    table, w = np.zeros((3, 2)), list(W)
    for m in (0, 1):
        upload = sent(run.start(m), "server", Embeddings)
        rows, x = upload.rows, np.array(X[m])[upload.rows]
        table[rows, m] = w[m] * x
        g_h = logistic(table[rows].sum(1), y[rows])
        result, effects = run.work(run.server, run.told(run.server, Received(run.names[m], upload)))
        assert result.theta_0.shape == (0,)
        reply = sent(effects, run.names[m], Gradient)
        np.testing.assert_allclose(reply.values[:, 0], g_h, rtol=1e-5)
        run.work(run.parties[m], run.told(run.parties[m], Received("server", reply)))
        w[m] -= ETA * float(g_h @ x)
        assert weight(run.parties[m]) == pytest.approx(w[m], rel=1e-5)


def test_a_second_step_of_one_party_moves_on_from_its_new_weight(tiny, regression):
    run = tiny(VaflOptions(table="zeros"), X[:1], Y, W, A, regression, batch=3)
    party, a, w = run.parties[0], A, W[0]
    effects = run.start(0)
    for step in range(3):
        upload = sent(effects, "server", Embeddings)
        rows, x = upload.rows, np.array(X[0])[upload.rows]
        assert upload.step == step
        np.testing.assert_allclose(upload.values[:, 0], w * x, rtol=1e-5)
        g_h, g_a = squared(a, w * x, Y[rows])
        _, effects = run.work(run.server, run.told(run.server, Received("party-1", upload)))
        _, effects = run.work(party, run.told(party, Received("server", sent(effects, "party-1", Gradient))))
        a, w = a - ETA_0 * g_a, w - ETA * float(g_h @ x)
        assert (weight(run.server), weight(party)) == (pytest.approx(a, rel=1e-5), pytest.approx(w, rel=1e-5))
        _, effects = run.work(party, effects)


def test_alg_2_two_of_three(tiny, regression):
    """t = 2: the server waits for two, averages their gradients of θ_0 (App. D: 1/t) and answers each."""
    run = tiny(TSyncOptions(table="zeros", t=2), X, Y, W, A, regression)
    server, table = run.server, np.zeros((3, 3))
    first, second = (sent(run.start(m), "server", Embeddings) for m in (2, 0))
    for m, upload in ((2, first), (0, second)):
        table[upload.rows, m] = W[m] * np.array(X[m])[upload.rows]
    assert not np.array_equal(first.rows, second.rows), "the case is about two different batches"

    assert run.told(server, Received("party-3", first)) == [], "one is not enough"
    result, effects = run.work(server, run.told(server, Received("party-1", second)))
    g = {m: squared(A, table[upload.rows].sum(1), Y[upload.rows]) for m, upload in ((2, first), (0, second))}
    assert float(result.theta_0[0]) == pytest.approx((g[2][1] + g[0][1]) / 2, rel=1e-5)
    assert weight(server) == pytest.approx(A - ETA_0 * (g[2][1] + g[0][1]) / 2, rel=1e-6)
    assert server.k == 1
    replies = [effect for effect in effects if isinstance(effect, Send)]
    assert sorted(reply.to for reply in replies) == ["party-1", "party-3"]
    for m, name in ((2, "party-3"), (0, "party-1")):
        message = sent(effects, name, Gradient)
        np.testing.assert_allclose(message.values[:, 0], g[m][0], rtol=1e-5)
        run.work(run.parties[m], run.told(run.parties[m], Received("server", message)))
        x = np.array(X[m])[(first if m == 2 else second).rows]
        assert weight(run.parties[m]) == pytest.approx(W[m] - ETA * float(g[m][0] @ x), rel=1e-5)


def test_alg_2_same_rows_share_one_pass(tiny, regression):
    run = tiny(TSyncOptions(table="zeros", batches="shared", t=2), X, Y, W, A, regression)
    uploads = [sent(run.start(m), "server", Embeddings) for m in (0, 1)]
    np.testing.assert_array_equal(uploads[0].rows, uploads[1].rows)
    run.told(run.server, Received("party-1", uploads[0]))
    effects = run.told(run.server, Received("party-2", uploads[1]))
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    assert len(work.job.batches) == 1 and work.amount == 1.0
    rows = uploads[0].rows
    s = sum(W[m] * np.array(X[m])[rows] for m in (0, 1))
    run.work(run.server, effects)
    assert weight(run.server) == pytest.approx(A - ETA_0 * squared(A, s, Y[rows])[1], rel=1e-6)


def test_query_first(tiny, regression):
    """Alg. 1 † (lines 6, 7, 4, 5): upload; later query, gradient from the table of that moment, update, new batch."""
    run = tiny(VaflOptions(table="zeros", order="query-first", pause_s=1.0), X[:2], Y, W, A, regression)
    server, party, table, a = run.server, run.parties[0], np.zeros((3, 2)), A

    effects = run.start(0)
    upload = sent(effects, "server", Embeddings)
    (timer,) = [effect for effect in effects if isinstance(effect, SetTimer)]
    assert not upload.reply
    table[upload.rows, 0] = W[0] * np.array(X[0])[upload.rows]
    _, effects = run.work(server, run.told(server, Received("party-1", upload)))
    a -= ETA_0 * squared(a, table[upload.rows].sum(1), Y[upload.rows])[1]
    assert weight(server) == pytest.approx(a, rel=1e-6)
    assert effects == [], "no gradient was asked for"

    other = sent(run.start(1), "server", Embeddings)  # meanwhile party 2 changes the table and θ_0
    table[other.rows, 1] = W[1] * np.array(X[1])[other.rows]
    run.work(server, run.told(server, Received("party-2", other)))
    a -= ETA_0 * squared(a, table[other.rows].sum(1), Y[other.rows])[1]

    query = sent(run.told(party, TimerFired("activate", timer.at)), "server", Query)
    assert query.step == 0
    g_h, _ = squared(a, table[upload.rows].sum(1), Y[upload.rows])
    _, effects = run.work(server, run.told(server, Received("party-1", query)))
    reply = sent(effects, "party-1", Gradient)
    np.testing.assert_allclose(reply.values[:, 0], g_h, rtol=1e-5)
    assert (reply.step, reply.update) == (0, 2)
    assert weight(server) == pytest.approx(a, rel=1e-6), "a query does not step θ_0"
    assert server.k == 2

    _, effects = run.work(party, run.told(party, Received("server", reply)))
    w = W[0] - ETA * float(g_h @ np.array(X[0])[upload.rows])
    assert weight(party) == pytest.approx(w, rel=1e-5)
    _, effects = run.work(party, effects)  # without a pause: the next batch, from the new weight
    fresh = sent(effects, "server", Embeddings)
    assert fresh.step == 1
    np.testing.assert_allclose(fresh.values[:, 0], w * np.array(X[0])[fresh.rows], rtol=1e-5)


def test_both_sides_of_an_update_use_the_rate_of_the_same_k(tiny, regression):
    rule = StepRule("inverse", K0=1.0)  # η/(k + 1)
    run = tiny(VaflOptions(table="zeros"), X[:1], Y, W, A, regression, batch=3, rule=rule)
    party, a, w = run.parties[0], A, W[0]
    effects = run.start(0)
    for k in range(3):
        upload = sent(effects, "server", Embeddings)
        x = np.array(X[0])[upload.rows]
        g_h, g_a = squared(a, w * x, Y[upload.rows])
        _, effects = run.work(run.server, run.told(run.server, Received("party-1", upload)))
        _, effects = run.work(party, run.told(party, Received("server", sent(effects, "party-1", Gradient))))
        a, w = a - ETA_0 / (k + 1) * g_a, w - ETA / (k + 1) * float(g_h @ x)
        assert (weight(run.server), weight(party)) == (pytest.approx(a, rel=1e-5), pytest.approx(w, rel=1e-5))
        _, effects = run.work(party, effects)
