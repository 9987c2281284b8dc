"""Zeroth-order steps against pencil and paper (numpy, float64): VFL-Cascaded Alg. 1, App. B Alg. 2; no driver anywhere.

One column and one weight per party, c_m = w_m·x_m; the aggregate is the sum s = Σ c_m, the output a·s, and
ℓ = mean (a·s − y)². A direction has one number: u ~ N(0, 1), or ±1 on the sphere; one case has two, for φ(d) = d.
"""

import numpy as np
import pytest

from colonnade.algorithms.training import StepRule
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest
from colonnade.algorithms.zeroth.config import CascadedOptions, FrozenOptions, SynZooOptions, ZooOptions
from colonnade.algorithms.zeroth.directions import directions
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.protocol.events import Received, Send, Work, WorkDone

X = [[1.0, -2.0, 0.5], [0.3, 0.7, -1.0], [2.0, 1.0, -1.5]]
Y = np.array([1.0, 0.0, -1.0]) / np.std([1.0, 0.0, -1.0])  # mean 0 and deviation 1: standardising changes nothing
W, A, ETA_0, ETA, MU = [1.0, 2.0, -0.5], 0.5, 0.1, 0.2, 0.01
KEYS = (b"one", b"two", b"three")
BOTH = pytest.mark.parametrize("distribution", ["gaussian", "sphere"])
FREE = {"smoothing": MU, "min_batch": 1}


def loss(a, s, y):
    """A mean over the batch, in float64."""
    return float(np.mean((a * s - y) ** 2))


def slope(a, s, y):
    """∂ℓ/∂a."""
    return float(np.mean(2 * (a * s - y) * s))


def sent(effects, to, kind):
    (effect,) = [e for e in effects if isinstance(e, Send) and e.to == to and isinstance(e.message, kind)]
    return effect.message


def weight(role):
    return float(role.network.theta[0])


def drawn(party, options):
    """u of the current batch, rebuilt from its seed: (directions, 1) in float64."""
    return directions(party.drawn.seed, options.directions, 1, options.distribution).astype(float)


def step_of_server(run, m, upload):
    """The server's whole step on an upload: the job's result and the losses for party m."""
    result, effects = run.work(run.server, run.told(run.server, Received(run.names[m], upload)))
    return result, sent(effects, run.names[m], Losses)


def take(run, m, reply):
    return run.work(run.parties[m], run.told(run.parties[m], Received("server", reply)))


def probe_of(run, m):
    return sent(run.start(m, KEYS[m]), "server", Probe)


@pytest.fixture
def made(tiny, regression):
    def make(options, parties=2, **settings):
        return tiny(options, X[:parties], Y, W, A, regression, **settings)

    return make


@BOTH
@pytest.mark.parametrize("count", [1, 3])
def test_cascaded_two_updates(made, distribution, count):
    options = CascadedOptions(table="zeros", directions=count, distribution=distribution, **FREE)
    run, table, a, w = made(options), np.zeros((3, 2)), A, list(W)
    for k, m in enumerate((0, 1)):  # party 1 first, then party 2, which uses the rows that party 1 left in the table
        upload = probe_of(run, m)
        rows, x = upload.rows, np.array(X[m])[upload.rows]
        u = drawn(run.parties[m], options)
        assert (upload.step, upload.batch, upload.perturbed.shape) == (0, 2, (count, 2, 1))
        np.testing.assert_allclose(upload.values[:, 0], w[m] * x, rtol=1e-6)
        np.testing.assert_allclose(upload.perturbed[:, :, 0], (w[m] + MU * u) * x, rtol=1e-6)
        if distribution == "sphere":
            assert abs(u) == pytest.approx(1)

        table[rows, m] = w[m] * x
        h = loss(a, table[rows].sum(1), Y[rows])
        hats = [loss(a, table[rows].sum(1) + MU * one[0] * x, Y[rows]) for one in u]
        result, reply = step_of_server(run, m, upload)
        a_before, a = a, a - ETA_0 * slope(a, table[rows].sum(1), Y[rows])
        assert weight(run.server) == pytest.approx(a, rel=1e-6), "by backpropagation"
        assert (reply.step, reply.update) == (0, k)

        assert reply.values.shape == (1 + count,) and reply.values.dtype == np.float64, "scalars, one per direction"
        np.testing.assert_allclose(reply.values, [h, *hats], rtol=1e-6)
        after = loss(a, table[rows].sum(1), Y[rows])
        assert abs(reply.values[0] - after) > 100 * abs(reply.values[0] - h), "from before the server's step"
        # Both of a pair at the same w_0: a difference across the step would be another number altogether.
        true = np.array(hats) - h
        np.testing.assert_allclose(reply.values[1:] - reply.values[0], true, rtol=1e-4)
        assert a != a_before and result.losses == [pytest.approx(h, rel=1e-6)]

        take(run, m, reply)
        w[m] -= ETA * float(np.mean(true / MU * u[:, 0]))  # φ(1) = 1 either way
        assert weight(run.parties[m]) == pytest.approx(w[m], rel=1e-4)
        np.testing.assert_allclose(run.server.table.values, table, rtol=1e-6)  # only c, never ĉ
        assert run.server.k == k + 1
    assert len(set(run.parties[0].walk.batch(0)) & set(run.parties[1].walk.batch(0))) >= 1  # their rows did overlap


def test_the_sphere_scales_by_the_dimension(tiny, regression):
    """Two columns, two weights: φ(d) = 2, and both weights move along the one u."""
    x = np.array([[1.0, 0.5], [-2.0, 1.0], [0.5, -1.0]])
    options = CascadedOptions(table="zeros", distribution="sphere", **FREE)
    run = tiny(options, [x], Y, [[1.0, 2.0]], A, regression, batch=3)
    upload = probe_of(run, 0)
    party = run.parties[0]
    (u,) = directions(party.drawn.seed, 1, 2, "sphere").astype(float)
    assert np.linalg.norm(u) == pytest.approx(1, abs=1e-6)
    w, rows = np.array([1.0, 2.0]), upload.rows
    h, hat = (loss(A, x[rows] @ v, Y[rows]) for v in (w, w + MU * u))
    take(run, 0, step_of_server(run, 0, upload)[1])
    np.testing.assert_allclose(party.network.theta.numpy(), w - ETA * 2 / MU * (hat - h) * u, rtol=1e-4)


@BOTH
def test_central_differences_and_a_mu_for_each_party(made, distribution):
    """ℓ is a square, so a central difference is exact however large μ is; a forward one is off by μ²u²ℓ″/2."""
    mus = [0.5, 0.01]
    options = CascadedOptions(
        table="zeros", directions=2, distribution=distribution, difference="central", smoothing=mus, min_batch=1
    )
    run, table, a, w = made(options), np.zeros((3, 2)), A, list(W)
    for m, mu in enumerate(mus):
        upload = probe_of(run, m)
        rows, x = upload.rows, np.array(X[m])[upload.rows]
        u = drawn(run.parties[m], options)[:, 0]
        moved = [(w[m] + mu * one) * x for one in (*u, *-u)]
        np.testing.assert_allclose(upload.perturbed[:, :, 0], moved, rtol=1e-5)
        table[rows, m] = w[m] * x
        s, y = table[rows].sum(1), Y[rows]
        hats = [loss(a, s - w[m] * x + c, y) for c in moved]
        _, reply = step_of_server(run, m, upload)
        np.testing.assert_allclose(reply.values, [loss(a, s, y), *hats], rtol=1e-5)
        exact = float(np.mean(2 * (a * s - y) * a * x))  # ∂ℓ/∂w_m
        a -= ETA_0 * slope(a, s, y)
        take(run, m, reply)
        w[m] -= ETA * float(np.mean(exact * u * u))
        assert weight(run.parties[m]) == pytest.approx(w[m], rel=1e-4)


@pytest.mark.parametrize(("given", "mu"), [(MU, MU), ([0.3, 0.4], 1e-3)])
def test_a_server_that_estimates_has_central_differences_too(made, given, mu):
    options = ZooOptions(table="zeros", difference="central", smoothing=given, server_directions=2, min_batch=1)
    run = made(options)
    upload = probe_of(run, 0)
    s, y = np.array(X[0])[upload.rows] * W[0], Y[upload.rows]
    u = directions(run.server.secret.seed("server", 1), 2, 1, "gaussian").astype(float)[:, 0]
    step_of_server(run, 0, upload)
    differences = [(loss(A + mu * one, s, y) - loss(A - mu * one, s, y)) / 2 for one in u]
    assert weight(run.server) == pytest.approx(A - ETA_0 * np.mean(np.array(differences) / mu * u), rel=1e-5)
    own = ZooOptions(table="zeros", smoothing=given, server_smoothing=0.7)
    assert own.mu_of(None) == 0.7 and options.mu_of(None) == mu


@BOTH
def test_a_second_step_moves_on_from_the_new_weight_with_new_directions(made, distribution):
    options = CascadedOptions(table="zeros", distribution=distribution, directions=2, **FREE)
    run = made(options, 1, batch=3)
    party, a, w, seeds = run.parties[0], A, W[0], []
    effects = run.start(0, b"key")
    for step in range(3):
        upload = sent(effects, "server", Probe)
        x, y = np.array(X[0])[upload.rows], Y[upload.rows]
        u = drawn(party, options)
        seeds.append(party.drawn.seed)
        assert upload.step == step
        np.testing.assert_allclose(upload.values[:, 0], w * x, rtol=1e-4)
        h, a_next = loss(a, w * x, y), a - ETA_0 * slope(a, w * x, y)
        hats = np.array([loss(a, (w + MU * one[0]) * x, y) for one in u])
        _, effects = take(run, 0, step_of_server(run, 0, upload)[1])
        a, w = a_next, w - ETA * float(np.mean((hats - h) / MU * u[:, 0]))
        assert (weight(run.server), weight(party)) == (pytest.approx(a, rel=1e-4), pytest.approx(w, rel=1e-4))
        w, a = weight(party), weight(run.server)  # rounding does not add up
        _, effects = run.work(party, effects)
    assert len(set(seeds)) == 3


def server_draw(run, options):
    """The server's u, rebuilt from its key and the number of its draw."""
    seed = run.server.secret.seed("server", run.server.questions.draw)
    return directions(seed, options.server_directions, 1, options.distribution).astype(float)


@BOTH
@pytest.mark.parametrize("count", [1, 2])
def test_zoo_both_sides_estimate(made, distribution, count):
    options = ZooOptions(table="zeros", directions=count, server_directions=3, distribution=distribution, **FREE)
    run, table, a, w = made(options), np.zeros((3, 2)), A, list(W)
    for m in (0, 1):
        upload = probe_of(run, m)
        rows, x = upload.rows, np.array(X[m])[upload.rows]
        table[rows, m] = w[m] * x
        s, y, u = table[rows].sum(1), Y[rows], drawn(run.parties[m], options)
        h, hats = loss(a, s, y), np.array([loss(a, s + MU * one[0] * x, y) for one in u])
        _, reply = step_of_server(run, m, upload)
        np.testing.assert_allclose(reply.values, [h, *hats], rtol=1e-5)
        u_0 = server_draw(run, options)  # unperturbed c in both terms
        a -= ETA_0 * float(np.mean([(loss(a + MU * one[0], s, y) - h) / MU * one[0] for one in u_0]))
        assert weight(run.server) == pytest.approx(a, rel=1e-4)
        a = weight(run.server)
        take(run, m, reply)
        w[m] -= ETA * float(np.mean((hats - h) / MU * u[:, 0]))
        assert weight(run.parties[m]) == pytest.approx(w[m], rel=1e-4)
        np.testing.assert_allclose(run.server.table.values, table, rtol=1e-6)


@BOTH
def test_syn_zoo_a_round_of_two(made, distribution):
    """App. B Alg. 2: all parties' c in every term, one party's ĉ in its own difference, the server's u_0 in its own."""
    options = SynZooOptions(distribution=distribution, directions=2, server_directions=1, **FREE)
    run = made(options, rates=(0.05, 0.02))
    run.server.state.due = ""  # nothing to evaluate
    w, a = W[:2], A
    effects = [run.start(m, KEYS[m]) for m in (0, 1)]
    for step in (0, 1):
        uploads = [sent(found, "server", Probe) for found in effects]
        rows = uploads[0].rows
        np.testing.assert_array_equal(uploads[1].rows, rows)
        x, y = np.array(X[:2])[:, rows], Y[rows]
        us = [drawn(party, options)[:, 0] for party in run.parties]
        assert us[0][0] != us[1][0] or distribution == "sphere", "each its own"
        s = w @ x
        assert run.told(run.server, Received("party-1", uploads[0])) == [], "one is not enough"
        _, found = run.work(run.server, run.told(run.server, Received("party-2", uploads[1])))
        h = loss(a, s, y)
        u_0 = server_draw(run, options)[:, 0]
        a_next = a - 0.05 * float(np.mean([(loss(a + MU * one, s, y) - h) / MU * one for one in u_0]))
        assert weight(run.server) == pytest.approx(a_next, rel=1e-4)
        effects = []
        for m in (0, 1):
            reply = sent(found, run.names[m], Losses)
            hats = np.array([loss(a, s + MU * one * x[m], y) for one in us[m]])  # at the w_0 before its step
            np.testing.assert_allclose(reply.values[0], h, rtol=1e-4)
            np.testing.assert_allclose(reply.values[1:], hats, rtol=1e-4)
            _, next_batch = take(run, m, reply)
            w[m] -= 0.02 * float(np.mean((hats - h) / MU * us[m]))
            assert weight(run.parties[m]) == pytest.approx(w[m], rel=1e-4)
            w[m] = weight(run.parties[m])
            effects.append(run.work(run.parties[m], next_batch)[1])
        a = weight(run.server)
        assert run.server.k == step + 1 and not hasattr(run.server, "table"), "no table in coordinated rounds"


def test_frozen_parties_keep_their_weights_and_the_server_learns(made):
    run, table, a = made(FrozenOptions(table="zeros", min_batch=1)), np.zeros((3, 2)), A
    for m in (0, 1):
        upload = probe_of(run, m)
        rows = upload.rows
        assert upload.perturbed.shape == (0, 2, 1), "nothing perturbed goes up"
        table[rows, m] = W[m] * np.array(X[m])[rows]
        h = loss(a, table[rows].sum(1), Y[rows])
        _, reply = step_of_server(run, m, upload)
        a -= ETA_0 * slope(a, table[rows].sum(1), Y[rows])
        assert weight(run.server) == pytest.approx(a, rel=1e-6)
        np.testing.assert_allclose(reply.values, [h], rtol=1e-6)
        _, effects = take(run, m, reply)
        assert weight(run.parties[m]) == W[m] and run.parties[m].state.step == 1
        assert sent(run.work(run.parties[m], effects)[1], "server", Probe).step == 1


def test_two_of_three_are_averaged_and_each_is_told_its_own(made):
    """t = 2: both batches at the same w_0, App. D's 1/t for the server."""
    options = CascadedOptions(table="zeros", t=2, **FREE)
    run, table = made(options, 3), np.zeros((3, 3))
    uploads = {m: probe_of(run, m) for m in (2, 0)}
    assert not np.array_equal(uploads[2].rows, uploads[0].rows), "the case is about two different batches"
    assert run.told(run.server, Received("party-3", uploads[2])) == []
    for m, upload in uploads.items():
        table[upload.rows, m] = W[m] * np.array(X[m])[upload.rows]
    _, effects = run.work(run.server, run.told(run.server, Received("party-1", uploads[0])))
    slopes = [slope(A, table[upload.rows].sum(1), Y[upload.rows]) for upload in uploads.values()]
    assert weight(run.server) == pytest.approx(A - ETA_0 * np.mean(slopes), rel=1e-6)
    for m, upload in uploads.items():
        x, s, y = np.array(X[m])[upload.rows], table[upload.rows].sum(1), Y[upload.rows]
        u = drawn(run.parties[m], options)[0, 0]
        reply = sent(effects, run.names[m], Losses)
        h, hat = loss(A, s, y), loss(A, s + MU * u * x, y)
        np.testing.assert_allclose(reply.values, [h, hat], rtol=1e-6)
        take(run, m, reply)
        assert weight(run.parties[m]) == pytest.approx(W[m] - ETA * (hat - h) / MU * u, rel=1e-4)
    assert run.server.k == 1


def test_a_server_that_estimates_draws_a_direction_for_every_batch(made):
    """t = 2: u_{0,i} of App. B l. 9 belongs to batch i; one u for both would leave the mean as noisy as one of them."""
    options = ZooOptions(table="zeros", t=2, server_directions=1, **FREE)
    run, table = made(options, 3), np.zeros((3, 3))
    uploads = {m: probe_of(run, m) for m in (2, 0)}
    assert not np.array_equal(uploads[2].rows, uploads[0].rows), "the case is about two different batches"
    run.told(run.server, Received("party-3", uploads[2]))
    for m, upload in uploads.items():
        table[upload.rows, m] = W[m] * np.array(X[m])[upload.rows]
    run.work(run.server, run.told(run.server, Received("party-1", uploads[0])))
    names = [("server", 1), ("server", 1, 1)]
    us = [directions(run.server.secret.seed(*name), 1, 1, "gaussian").astype(float)[0, 0] for name in names]
    assert us[0] != us[1]
    estimates = []
    for u, upload in zip(us, uploads.values(), strict=True):
        s, y = table[upload.rows].sum(1), Y[upload.rows]
        estimates.append((loss(A + MU * u, s, y) - loss(A, s, y)) / MU * u)
    assert weight(run.server) == pytest.approx(A - ETA_0 * np.mean(estimates), rel=1e-4)


@pytest.mark.parametrize(("count", "own"), [(1, 1), (3, 3), (1, 8)])
def test_a_server_that_estimates_is_charged_for_its_forward_passes_alone(made, count, own):
    run = made(ZooOptions(table="zeros", directions=count, server_directions=own, **FREE))
    effects = run.told(run.server, Received("party-1", probe_of(run, 0)))
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    assert work.amount == 0.5 * (1 + count + own), "h, ĥ of every direction of the party, and of every one of its own"


def test_same_rows_share_one_pass_and_have_one_base(made):
    run = made(CascadedOptions(table="zeros", t=2, batches="shared", **FREE))
    uploads = [probe_of(run, m) for m in (0, 1)]
    np.testing.assert_array_equal(uploads[0].rows, uploads[1].rows)
    run.told(run.server, Received("party-1", uploads[0]))
    effects = run.told(run.server, Received("party-2", uploads[1]))
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    assert len(work.job.batches) == 1 and len(work.job.probes[0]) == 2
    assert work.amount == 0.5 * 3 + 1, "three forward passes of half a step, and the server's step"
    _, effects = run.work(run.server, effects)
    values = [sent(effects, name, Losses).values for name in run.names]
    assert values[0][0] == values[1][0] and values[0][1] != values[1][1]


def test_rows_older_than_the_bound_are_asked_for_before_any_loss(made):
    """max_delay = 1: the third update on party 1's batches waits for party 2's fresh rows, and uses them."""
    options = CascadedOptions(table="warm", max_delay=1, **FREE)
    run = made(options, 2, batch=3)
    for m in (1, 0):
        effects = run.start(m, KEYS[m])
        warm = sent(effects, "server", Embeddings)
        assert not isinstance(warm, Probe) and warm.batch == 0
        run.told(run.server, Received(run.names[m], warm))
    party, a, w = run.parties[0], A, W[0]
    table = np.array([W[0] * np.array(X[0]), W[1] * np.array(X[1])]).T
    _, effects = run.work(party, effects)  # the first batch
    for k in range(3):
        upload = sent(effects, "server", Probe)
        rows = upload.rows
        asked = run.told(run.server, Received("party-1", upload))
        table[:, 0] = w * np.array(X[0])
        if k == 2:
            request = sent(asked, "party-2", FreshRequest)
            assert sorted(request.rows) == [0, 1, 2] and not any(isinstance(e, Work) for e in asked)
            fresh = np.array([[7.0], [8.0], [9.0]], np.float32)
            table[request.rows, 1] = fresh[:, 0]
            answer = Embeddings(0, 0, request.rows, fresh, request=request.request)
            asked = run.told(run.server, Received("party-2", answer))
        s, y, u = table[rows].sum(1), Y[rows], drawn(party, options)[0, 0]
        x = np.array(X[0])[rows]
        h, hat = loss(a, s, y), loss(a, s + MU * u * x, y)
        _, found = run.work(run.server, asked)
        reply = sent(found, "party-1", Losses)
        np.testing.assert_allclose(reply.values, [h, hat], rtol=1e-4)
        _, effects = take(run, 0, reply)
        a, w = weight(run.server), weight(party)
        _, effects = run.work(party, effects)


def test_both_sides_take_the_rate_of_the_same_update(made):
    options = CascadedOptions(table="zeros", **FREE)
    run = made(options, 2, rule=StepRule("inverse", K0=1.0))
    take(run, 0, step_of_server(run, 0, probe_of(run, 0))[1])
    a, upload = weight(run.server), probe_of(run, 1)
    s, y = run.server.table.values[upload.rows].sum(1), Y[upload.rows]
    result, reply = step_of_server(run, 1, upload)
    assert weight(run.server) == pytest.approx(a - ETA_0 / 2 * float(result.theta_0[0]), rel=1e-5), (s, y)
    u = drawn(run.parties[1], options)[0, 0]
    take(run, 1, reply)
    gradient = (reply.values[1] - reply.values[0]) / MU * u
    assert weight(run.parties[1]) == pytest.approx(W[1] - ETA / 2 * gradient, rel=1e-5)


def test_the_estimate_does_not_need_the_cache_of_the_drawn_directions(made):
    """After a restart the seed in the state gives the same bits again."""
    run = made(CascadedOptions(table="zeros", directions=3, **FREE))
    _, reply = step_of_server(run, 0, probe_of(run, 0))
    party = run.parties[0]
    (work,) = run.told(party, Received("server", reply))
    cached = party.compute(work.job).gradient
    np.testing.assert_array_equal(party.compute(work.job).gradient, cached)
    run.told(party, WorkDone(work.token, party.compute(work.job)))
