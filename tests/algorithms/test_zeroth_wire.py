"""What a zeroth-order party receives, and which questions the server does not answer."""

from itertools import count, pairwise

import numpy as np
import pytest

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Query, Skip
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.data import from_arrays, split
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import PeerJoined, Received, Send, Started, Work, WorkDone
from colonnade.protocol.messages import EvaluationRequest

METHODS = ("cascaded", "zoo", "syn-zoo", "frozen")


def tables(method="cascaded", train=None, **options):
    return {
        "protocol": {"name": method, **options},
        "model": {"party": "mlp:8", "embedding": 5, "server": "linear"},
        "clock": {"compute": {"kind": "exponential", "mean_s": 0.01}},
        "train": {"epochs": 2, "batch_size": 32, "learning_rate": 0.01} | (train or {}),
    }


def arrays(message):
    return [value for name in message.__struct_fields__ if isinstance(value := getattr(message, name), np.ndarray)]


def down(run):
    """Every message that a party received."""
    return [event.message for _, role, event in run.events if role != "server" and isinstance(event, Received)]


def up(run):
    return [event for _, role, event in run.events if role == "server" and isinstance(event, Received)]


# --- down


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cascaded", {"directions": 3, "max_delay": 4}),
        ("cascaded", {"directions": 3, "t": 2, "distribution": "sphere"}),
        ("cascaded", {"directions": 3, "difference": "central"}),
        ("zoo", {"directions": 3}),
        ("syn-zoo", {"directions": 3}),
        ("frozen", {}),
    ],
)
def test_only_scalars_go_down(method, options, simulate):
    run = simulate(tables(method, {"epochs": 1}, **options))
    messages = down(run)
    assert {type(message) for message in messages} <= {Losses, FreshRequest, Skip, EvaluationRequest}
    losses = [message for message in messages if isinstance(message, Losses)]
    assert len(losses) > 50
    scalars = 1 + options.get("directions", 0) * (2 if "difference" in options else 1)
    for message in losses:
        (values,) = arrays(message)
        assert values.shape == (scalars,) and values.dtype == np.float64 and np.isfinite(values).all()
    for message in messages:
        if isinstance(message, FreshRequest):
            assert message.rows.dtype == np.int32, "row numbers"
        elif not isinstance(message, Losses):
            assert arrays(message) == []
    assert ("max_delay" in options) == any(isinstance(message, FreshRequest) for message in messages)


@pytest.fixture(scope="module")
def three_directions(simulate):
    return simulate(tables(directions=3))


def test_the_losses_are_those_of_the_batch_and_close_together(three_directions):
    """ĥ − h is of the order of μ: nothing else hides in the scalars."""
    values = np.array([message.values for message in down(three_directions) if isinstance(message, Losses)])
    assert (np.abs(values[:, 1:] - values[:, :1]) < 0.05).all() and (values[:, 1:] != values[:, :1]).all()


def test_probes_go_up_as_they_should(three_directions):
    batches = [e.message for e in up(three_directions) if isinstance(e.message, Embeddings) and e.message.batch]
    assert batches and all(type(message) is Probe for message in batches)
    assert all(message.perturbed.shape == (3, len(message.rows), 5) for message in batches)


def test_no_direction_is_used_twice(simulate):
    """Otherwise two answers would be about the same question."""
    run = simulate(tables())
    seeds = [event.result.directions for _, _, event in run.events
             if isinstance(event, WorkDone) and type(event.result).__name__ == "Perturbed"]  # fmt: skip
    assert len(seeds) > 50 and len(set(seeds)) == len(seeds)


# --- the rules


@pytest.fixture
def served(resolve, monkeypatch):
    """A server that has started, with three parties and 1438 rows.

    Unless `walks`, a party chooses its rows: the rules do not depend on the agreed walk.
    """

    def make(method="cascaded", walks=False, **options):
        if not walks:
            monkeypatch.setattr("colonnade.algorithms.zeroth.server.are_same", lambda sent, agreed: True)
        server, *_ = resolve(tables(method, **options), parties=3).roles()
        server.handle(Started(b"key"), 0)
        for m in range(3):
            server.handle(PeerJoined(f"party-{m + 1}"), 0)
        server.evaluation.running, server.state.due = False, ""
        return server

    return make


def probe(rows, step=0, batch=None, width=5, directions=1, **fields):
    rows = np.array(rows, np.int32)
    batch = len(rows) if batch is None else batch
    values = np.ones((len(rows), width), np.float32)
    return Probe(step, batch, rows, values, **{"perturbed": np.ones((directions, batch, width), np.float32)} | fields)


def first_rows(server):
    """Rows that a party may ask about first: those of the walk in coordinated rounds, else any few."""
    return server.walk.batch(0) if hasattr(server, "walk") else range(8)


def refused(server, message, cause, sender="party-1"):
    """The error names sender and rule, and the server's state is unchanged."""
    before = state.pack(server.save())
    with pytest.raises(RemoteProtocolError, match=cause) as caught:
        server.handle(Received(sender, message), 0)
    assert caught.value.peer == sender
    server.validate()
    assert state.pack(server.save()) == before


@pytest.mark.parametrize("method", ["cascaded", "zoo", "frozen"])
def test_a_batch_that_is_too_small(method, served):
    server, count = served(method), int(method != "frozen")
    for size in (1, 7):
        refused(
            server,
            probe(range(size), directions=count),
            rf"^party-1: asks about {size} rows.*protocol\.min_batch = 8",
        )
    refused(server, probe(range(20), batch=0, directions=count), "asks about 0 rows.*protocol.min_batch")  # a warm-up
    refused(server, probe([], directions=count), "0 rows without a batch")
    refused(server, probe(range(20), batch=7, directions=count), "a batch of 7 among 20 rows")
    server.handle(Received("party-1", probe(range(8), directions=count)), 0)
    assert server.questions.counts[0].sum() == 8


def test_a_batch_that_is_too_small_for_a_coordinated_round(served):
    """The walk's batches are large enough, and the rule does not depend on that."""
    server = served("syn-zoo")
    walk = server.walk
    for size in (0, 1, 7, 8):
        refused(server, probe(walk.batch(0)[:size]), f"^party-1: sent a batch of {size} among {size} rows for step 0")
    refused(server, probe(walk.batch(0), batch=7), "a batch of 7 among 32 rows")
    server.handle(Received("party-1", probe(walk.batch(0))), 0)
    assert server.questions.counts[0].sum() == 32
    for size in (1, 7):
        small = Walk(server.rows, size, 0, "batches")
        walk.batch, walk.size = small.batch, small.size
        cause = rf"^party-2: asks about {size} rows.*protocol\.min_batch = 8"
        refused(server, probe(small.batch(0)), cause, "party-2")


def test_a_row_twice_in_one_batch(served):
    server = served()
    refused(server, probe([0] * 8), "party-1: asks about a row twice in one batch; each row may occur once")
    refused(server, probe([0, 1, 2, 3, 4, 5, 6, 7, 7]), "twice in one batch")
    refused(server, probe([*range(8), 7], batch=8), "a batch of 8 among 9 rows")  # nor beside the batch
    ask(server, probe(range(8)))
    ask(server, probe([7, *range(8, 15)], 1))  # in the next batch it may


def test_a_row_twice_in_a_coordinated_round(served):
    """The walk has no row twice, and the rule does not depend on that."""
    server = served("syn-zoo")
    agreed = server.walk.batch(0)
    twice = np.append(agreed[:-1], agreed[0])
    refused(server, probe(twice), "party-1: sent rows for step 0 that differ from the agreed walk")
    server.walk.batch = lambda step: twice
    refused(server, probe(twice), "party-1: asks about a row twice in one batch; each row may occur once")


def ask(server, message, sender="party-1"):
    """Ask and get an answer."""
    effects = server.handle(Received(sender, message), 0)
    for work in [effect for effect in effects if isinstance(effect, Work) and effect.kind == "step"]:
        server.handle(WorkDone(work.token, server.compute(work.job)), 0)


def test_a_row_asked_too_often(served):
    server = served(extra_queries=3)
    for step in range(4):  # once as every party may, and three extra times
        ask(server, probe(range(8), step))
    cause = r"^party-1: asks about a row 5 times; protocol\.extra_queries allows 4 so far"
    refused(server, probe(range(8), 4), cause)
    refused(server, probe([7, *range(20, 30)], 4), "a row 5 times")
    ask(server, probe(range(8, 16), 4))
    ask(server, probe(range(8), 0), "party-2")
    refused(server, probe(range(8), 5), "a row 5 times")


def test_with_every_pass_once_more(served):
    server = served(extra_queries=0, train={"epochs": 9})
    rest, steps = np.array_split(np.arange(8, 1438), 45), count()  # batches as large as those of the walk
    for epoch in range(3):
        ask(server, probe(range(8), next(steps)))
        for rows in rest:
            step = next(steps)
            cause = rf"^party-1: asks about a row {epoch + 2} times.*allows {epoch + 1} so far"
            refused(server, probe(range(8), step), cause)
            ask(server, probe(rows, step))
    assert (server.questions.counts[0] == 3).all()


@pytest.mark.parametrize(
    "perturbed",
    [np.ones((0, 8, 5), np.float32), np.ones((2, 8, 5), np.float32), np.ones((1, 7, 5), np.float32),
     np.ones((1, 8, 4), np.float32), np.ones((1, 8, 5)), np.ones((8, 5), np.float32)],
)  # fmt: skip
def test_other_directions_than_agreed(perturbed, served):
    refused(
        served(),
        probe(range(8), perturbed=perturbed),
        r"party-1: perturbed embeddings of .*expected \(1, 8, 5\) float32",
    )


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_as_central_differences_need(count, served):
    perturbed = np.ones((count, 8, 5), np.float32)
    server = served(difference="central")
    refused(server, probe(range(8), perturbed=perturbed), r"perturbed embeddings of .*expected \(2, 8, 5\) float32")


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_given_for_the_asking(method, served):
    server = served(method)
    refused(server, Query(0), "party-1: server does not expect a Query")
    rows = np.array(first_rows(server), np.int32)
    bare = Embeddings(0, len(rows), rows, np.ones((len(rows), 5), np.float32))
    refused(server, bare, "party-1: a batch without its perturbed embeddings")
    ask(server, probe(rows, directions=int(method != "frozen")))
    assert server.questions.counts[0].sum() == len(rows)
    refused(server, Query(0), "does not expect a Query")


def test_what_any_upload_is_refused_for_is_not_counted(served):
    server = served()
    refused(server, probe(range(1431, 1439)), r"row numbers outside 0\.\.1437")
    refused(server, probe(range(8), width=4), "embeddings of shape")
    refused(server, probe(range(8), batch=9, perturbed=np.ones((1, 9, 5), np.float32)), "a batch of 9 among 8 rows")
    refused(server, probe(range(8), step=-1), "embeddings of step -1")
    refused(server, probe(range(8)), "nobody: server does not expect a Probe", "nobody")
    refused(server, Losses(0, 0, np.ones(2)), "does not expect a Losses")
    assert not server.questions.counts.any()


def test_rows_of_a_coordinated_round_must_agree(served):
    server = served("syn-zoo")
    agreed = server.walk.batch(0)
    server.handle(Received("party-1", probe(agreed)), 0)
    for rows in (server.walk.batch(1), agreed[::-1], (agreed + 1) % 1438):
        refused(server, probe(rows), "party-2: sent rows for step 0 that differ from the agreed walk", "party-2")
    assert not server.questions.counts[1].any()
    server.handle(Received("party-2", probe(agreed)), 0)
    np.testing.assert_array_equal(server.questions.counts[1], server.questions.counts[0])


@pytest.mark.parametrize("method", ["cascaded", "zoo", "frozen"])
@pytest.mark.parametrize("batches", ["own", "shared"])
def test_rows_are_those_of_the_agreed_walk(method, batches, served):
    server, directions = served(method, walks=True, batches=batches), int(method != "frozen")
    first, second = server.walks[0].batch(0), server.walks[0].batch(1)
    for rows in (second, first[::-1], first[:8], range(32)):
        refused(server, probe(rows, directions=directions), "party-1: sent rows for step 0 that differ from the agreed")
    others = probe(server.walks[1].batch(0), directions=directions)
    if batches == "own":
        refused(server, others, "differ from the agreed walk")
    ask(server, probe(first, directions=directions))
    refused(server, probe(first, 1, directions=directions), "party-1: sent rows for step 1 that differ from the agreed")
    ask(server, probe(second, 1, directions=directions))
    assert server.questions.counts[0].sum() == 64


def test_rows_without_a_batch_are_taken_without_an_answer(served):
    server = served()
    warm = Embeddings(0, 0, np.arange(3, dtype=np.int32), np.ones((3, 5), np.float32))
    assert server.handle(Received("party-1", warm), 0) == []
    assert not server.questions.counts.any()


def test_a_party_takes_no_gradient(resolve):
    _, party, *_ = resolve(tables(table="zeros"), parties=3).roles()
    (work,) = party.handle(Started(b"key"), 0)
    party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    gradient = Gradient(0, 0, np.ones((len(party.state.rows), 5), np.float32))
    before = state.pack(party.save())
    with pytest.raises(RemoteProtocolError, match="server: party-1 does not expect a Gradient"):
        party.handle(Received("server", gradient), 0)
    assert state.pack(party.save()) == before


def test_what_was_counted_is_saved(served):
    server, twin = served(), served()
    ask(server, probe(range(8)))
    twin.load(state.unpack(state.pack(server.save())))
    np.testing.assert_array_equal(twin.questions.counts, server.questions.counts)
    ask(twin, probe(range(8), 1))
    assert server.questions.counts[0].max() == 1, "a copy"


def test_what_the_rules_do_not_stop(served):
    """docs/methods/zeroth.md says so: ĉ that differs from c in one row alone asks about that row alone."""
    server, message = served(), probe(range(8))
    message.perturbed[0, 3] += 2.0
    effects = server.handle(Received("party-1", message), 0)
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    batch, h = work.job.batches[0], work.job.batches[0].h.copy()
    h[3, :5] += 2.0
    base, moved = server.network.losses_at(None, [batch.h, h], batch.targets, work.job.seed)
    ((values,),) = server.compute(work.job).replies
    assert 8 * (values[1] - values[0]) == pytest.approx(moved[3] - base[3])


# --- an honest run breaks no rule


def few_rows(rows):
    draw = np.random.default_rng(rows)
    x, y = draw.standard_normal((rows + 10, 6)), draw.integers(0, 2, rows + 10)
    return split(from_arrays(x[:rows], y[:rows], x_test=x[rows:], y_test=y[rows:]), parties=3, validation_fraction=0)


@pytest.mark.parametrize("rest", range(8))
@pytest.mark.parametrize("options", [{}, {"batches": "shared"}, {"max_delay": 3}], ids=str)
def test_an_honest_run_meets_no_rule(rest, options, simulate):
    """A party may ask about a row only once in a pass here, and a pass has every row."""
    data, epochs = few_rows(24 + rest), 60 if rest == 7 else 20
    run = simulate(tables(extra_queries=0, train={"epochs": epochs, "batch_size": 8}, **options), data=data)
    assert run.status == "finished"
    asked = run.server.questions.counts
    assert asked.max() >= epochs - 1 and (asked.max(1) - asked.min(1) <= 1).all(), "evenly"
    sizes = {len(e.message.rows) for e in up(run) if isinstance(e.message, Probe)}
    assert sizes == ({8} if not rest else {8, 8 + rest})


@pytest.mark.parametrize("rest", [1, 7])
def test_honest_rounds_meet_no_rule(rest, simulate):
    run = simulate(tables("syn-zoo", extra_queries=0, train={"epochs": 60, "batch_size": 8}), data=few_rows(24 + rest))
    assert run.status == "finished" and (np.ptp(run.server.questions.counts, axis=1) <= 1).all()
    assert all(party.state.skipped == 0 for party in run.parties)


def test_a_rest_that_is_long_enough_is_a_batch_of_its_own(simulate):
    run = simulate(tables(train={"epochs": 3, "batch_size": 20}), data=few_rows(48))
    assert {len(e.message.rows) for e in up(run) if isinstance(e.message, Probe)} == {20, 8}


def test_a_batch_that_is_sent_again_is_answered(resolve):
    """Eight questions more than an even walk: a connection may break that often at the same batch."""
    server, party, *_ = resolve(tables(table="zeros"), parties=3).roles()
    server.handle(Started(b"key"), 0)
    for m in range(3):
        server.handle(PeerJoined(f"party-{m + 1}"), 0)
    server.evaluation.running, server.state.due = False, ""
    effects, seen = party.handle(Started(b"key"), 0), []
    for _ in range(9):
        (work,) = [effect for effect in effects if isinstance(effect, Work)]
        (send,) = [e for e in party.handle(WorkDone(work.token, party.compute(work.job)), 0) if isinstance(e, Send)]
        seen.append(send.message)
        ask(server, send.message)
        server.handle(PeerJoined("party-1", reset=True), 0)
        effects = party.handle(PeerJoined("server", reset=True), 0)
    for first, second in pairwise(seen):
        np.testing.assert_array_equal(first.values, second.values)
        assert not np.array_equal(first.perturbed, second.perturbed), "along another direction"
