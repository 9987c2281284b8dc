"""Batches drawn independently (`train.sampling = "iid"`): all members draw the same rows, others are refused."""

from functools import cache

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.batches import Draws, Walk, walk_of, walks_of
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.algorithms.zeroth.messages import Probe
from colonnade.algorithms.zeroth.server import by_chance
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import PeerJoined, Received, Started
from colonnade.protocol.seeds import generator

ROWS, BATCH, WIDTH = 32, 8, 2


@cache
def data():
    x = np.random.default_rng(0).standard_normal((ROWS + 8, 3)).astype(np.float32)
    made = colonnade.from_arrays(x, (x.sum(1) > 0).astype(np.int64))
    return colonnade.split(made, parties=3, test_fraction=0.2, validation_fraction=0)


def tables(name, protocol=None, **train):
    return {
        "protocol": {"name": name, **(protocol or {})},
        "model": {"party": "linear", "embedding": WIDTH, "server": "linear", "aggregate": "mean"},
        "train": {"batch_size": BATCH, "epochs": 4, "learning_rate": 0.05, "sampling": "iid", **train},
    }


def test_a_batch_by_hand():
    """The third batch of party 1: eight of the 32 rows, drawn by the generator that its path names."""
    expected = generator(5, "batches", 1, 2).choice(ROWS, BATCH, replace=False)
    assert Draws(ROWS, BATCH, 5, "batches", 1).batch(2).tolist() == expected.tolist()


def test_draws_are_independent_and_every_row_is_as_likely():
    draws, count = Draws(20, 5, 0, "b"), 4000
    batches = np.stack([draws.batch(position) for position in range(count)])
    assert all(len(set(batch)) == 5 for batch in batches.tolist()) and batches.dtype == np.int32
    hits = np.bincount(batches.ravel(), minlength=20)
    assert np.abs(hits - count / 4).max() < 6 * np.sqrt(count * 0.25 * 0.75)
    first = np.bincount(batches[:, 0], minlength=20)  # a smaller batch is the beginning of the whole one
    assert np.abs(first - count / 20).max() < 6 * np.sqrt(count * 0.05 * 0.95)
    both = (batches[:-1] == 3).any(1) & (batches[1:] == 3).any(1)  # a row in two batches in turn: never on a walk
    assert abs(both.sum() - count / 16) < 6 * np.sqrt(count / 16)


def test_members_agree_without_a_message():
    training = federation(from_dict(tables("vafl")), data()).training
    assert training.sampling == "iid"
    own, shared = walks_of(training, 3, False), walks_of(training, 3, True)
    assert all(isinstance(walk, Draws) for walk in (*own, *shared))
    for step in (0, 7, 3):
        assert np.array_equal(shared[0].batch(step), walk_of(training, None).batch(step))
        assert np.array_equal(own[1].batch(step), walk_of(training, 1).batch(step))
        assert not np.array_equal(own[1].batch(step), own[2].batch(step))
        assert shared[0].size(step) == len(shared[0].batch(step)) == BATCH


ASYNCHRONOUS = ["vafl", "t-sync", "swift", "cascaded", "zoo", "frozen"]
ROUNDS = ["sync", "syn-zoo", "flex", "wait", "ignore", "wait-dp"]


@pytest.mark.parametrize("name", [*ASYNCHRONOUS, *ROUNDS])
def test_every_method_trains_on_draws(name, simulate):
    run = simulate(tables(name), data=data())
    assert run.status == "finished" and run.server.k > 0
    sent = [event.message.rows[: event.message.batch] for _, role, event in run.events
            if role == "server" and isinstance(event, Received) and isinstance(event.message, Embeddings)
            and event.message.batch and event.sender == "party-1"]  # fmt: skip
    if name in ("flex", "wait", "ignore", "wait-dp"):
        return  # their uploads name no rows
    drawn = walk_of(run.federation.training, 0 if name in ASYNCHRONOUS else None)
    assert len(sent) >= 10 and all(
        np.array_equal(rows, drawn.batch(step)[: len(rows)]) for step, rows in enumerate(sent)
    )


@pytest.mark.parametrize("name", ["asysqn-sgd", "synsqn-svrg", "afsaga"])
def test_linear_methods_train_on_draws(name, simulate):
    walk, draws = (simulate(tables(name, sampling=how), data=data()) for how in (None, "iid"))
    weights = [[party.trained()[party.name]["weight"].tolist() for party in run.parties] for run in (walk, draws)]
    assert (weights[0] == weights[1]) == (name == "afsaga"), "SAGA has always drawn its batches"


def test_sync_is_centralised_on_draws(simulate):
    sync, oracle = (simulate(tables(name, eval_every=1), data=data()) for name in ("sync", "centralised"))
    losses = [[record.loss for record in run.records] for run in (sync, oracle)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    walked = simulate(tables("sync", eval_every=1, sampling="walk"), data=data())
    assert not np.allclose(losses[0], [record.loss for record in walked.records], rtol=1e-4)


def roles(name, **protocol):
    server, *parties = federation(from_dict(tables(name, protocol)), data()).roles()
    server.handle(Started(b""), 0)
    server.state.due = ""
    for party in parties:
        server.handle(PeerJoined(party.name), 0)
    return server, parties


def upload(name, rows, step=0):
    rows = np.asarray(rows, np.int32)
    values = np.ones((len(rows), WIDTH), np.float32)
    if name in ("cascaded", "syn-zoo"):
        return Probe(step, len(rows), rows, values, perturbed=values[None])
    return Embeddings(step, len(rows), rows, values)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("vafl", {"table": "zeros"}),
        ("vafl", {"table": "zeros", "batches": "shared"}),
        ("t-sync", {"table": "zeros"}),
        ("swift", {}),
        ("cascaded", {"table": "zeros"}),
        ("sync", {}),
        ("syn-zoo", {}),
    ],
)
def test_a_party_that_sends_other_rows_is_refused(name, protocol, simulate):
    server, parties = roles(name, **protocol)
    good = parties[0].walk.batch(0)
    walked = Walk(ROWS, BATCH, 0, "batches", 0).batch(0)
    for lie in ((good + 1) % ROWS, good[::-1], parties[0].walk.batch(1), walked):
        with pytest.raises(RemoteProtocolError, match="party-1: sent rows for step 0 that differ"):
            server.handle(Received("party-1", upload(name, lie)), 0)
    server.handle(Received("party-1", upload(name, good)), 0)


def test_a_smaller_batch_is_the_beginning_of_a_draw_and_of_an_agreed_size():
    server, parties = roles("swift")
    good = parties[0].walk.batch(0)
    for lie in (good[:3], good[4:], good[1:5]):
        with pytest.raises(RemoteProtocolError, match="party-1: sent rows for step 0 that differ"):
            server.handle(Received("party-1", upload("swift", lie)), 0)
    server.handle(Received("party-1", upload("swift", good[:4])), 0)


def test_slow_parties_send_smaller_batches_of_their_draws(simulate):
    clock = {"compute": [{"mean_s": 0.1}, {"mean_s": 0.1}, {"mean_s": 0.5}]}
    run = simulate(tables("swift", epochs=30) | {"clock": clock}, data=data())
    sizes = {len(event.message.rows) for _, role, event in run.events
             if role == "server" and isinstance(event, Received) and isinstance(event.message, Embeddings)}  # fmt: skip
    assert run.status == "finished" and sizes >= {BATCH, BATCH // 2}


def test_questions_are_counted_as_chance_allows():
    """λ = 4: t² = 27.6·(8 + 2t/3), so t = 9.2 + √(84.8 + 221.1) = 26.7."""
    assert by_chance(0.0) == 19 and by_chance(4.0) == 27
    counts = np.random.default_rng(0).poisson(4.0, 10**6)
    assert counts.max() < 4 + by_chance(4.0)


def test_a_row_asked_far_more_often_than_by_chance():
    server, parties = roles("cascaded", table="zeros", extra_queries=0)
    server.questions.counts[0, parties[0].walk.batch(0)[0]] = 60
    with pytest.raises(RemoteProtocolError, match="party-1: asks about a row 61 times"):
        server.handle(Received("party-1", upload("cascaded", parties[0].walk.batch(0))), 0)


@pytest.mark.parametrize(
    ("settings", "key", "advice"),
    [
        (tables("fedvs"), "train.sampling", "fedvs does not support it: use one of"),
        (tables("vafl", {"extra_rows": 1.0}), "protocol.extra_rows", "further rows are those that come next on a walk"),
        (tables("afsaga", sampling="walk"), "train.sampling", "SAGA is biased on a walk"),
    ],
)
def test_refusals(settings, key, advice):
    with pytest.raises(ConfigError, match=advice) as caught:
        federation(from_dict(settings), data()).roles()
    assert caught.value.key == key
