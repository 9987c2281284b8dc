"""What a peer may not send, and numbers that leave the finite range: errors name the peer and the rule."""

import numpy as np
import pytest

from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Query, Skip
from colonnade.protocol import state
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import PeerJoined, Received, Resumed, Started, Work, WorkDone
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest, Message

ROWS = np.arange(4, dtype=np.int32)
GOOD = np.ones((4, 6), np.float32)


@pytest.fixture
def roles(resolve):
    def make(method="vafl", **train):
        tables = {
            "protocol": {"name": method} | ({} if method == "sync" else {"table": "zeros"}),
            "model": {"party": "linear", "embedding": [5, 6, 7], "server": "linear"},
            "train": {"batch_size": 4} | train,
        }
        server, *parties = resolve(tables, parties=3).roles()
        server.handle(Started(b""), 0)
        for party in parties:
            server.handle(PeerJoined(party.name), 0)
        return server, parties

    return make


def walked(server, m=1, step=0):
    """The rows that party m (from 0) has to send."""
    return (server.walks[m] if hasattr(server, "walks") else server.walk).batch(step)


@pytest.mark.parametrize(
    ("rows", "values", "cause"),
    [
        (ROWS, np.ones((4, 5), np.float32), r"embeddings of shape \(4, 5\), expected \(4, 6\) float32"),
        (ROWS, np.ones((3, 6), np.float32), r"embeddings of shape \(3, 6\), expected \(4, 6\)"),
        (ROWS, np.ones(24, np.float32), r"embeddings of shape \(24,\)"),
        (ROWS, np.ones((4, 6), np.float64), "float32"),
        (ROWS.astype(np.int64), GOOD, "row numbers"),
        (ROWS + 1435, GOOD, r"row numbers outside 0\.\.1437"),
        (ROWS - 1, GOOD, "row numbers outside"),
        (ROWS[:, None], GOOD, "row numbers"),
        (ROWS[0].reshape(()), GOOD, "row numbers"),
    ],
)
def test_a_bad_upload_names_the_party(rows, values, cause, roles):
    server, _ = roles()
    with pytest.raises(RemoteProtocolError, match=cause) as caught:
        server.handle(Received("party-2", Embeddings(0, 4, rows, values)), 0)
    assert caught.value.peer == "party-2" and str(caught.value).startswith("party-2: ")
    assert not server.table.values.any(), "nothing of it was kept"
    assert server.handle(Received("party-2", Embeddings(0, 4, walked(server), GOOD)), 0), "the next one is taken"


@pytest.mark.parametrize("batch", [-1, 5])
def test_a_batch_is_among_the_rows(batch, roles):
    with pytest.raises(RemoteProtocolError, match="party-2: .*batch"):
        roles()[0].handle(Received("party-2", Embeddings(0, batch, ROWS, GOOD)), 0)


def refused(role, event, cause):
    """Expect the error and an unchanged role: the driver drops the sender and continues."""
    before = state.pack(role.save())
    with pytest.raises(RemoteProtocolError, match=cause):
        role.handle(event, 0)
    role.validate()
    assert state.pack(role.save()) == before


@pytest.mark.parametrize("step", [-1, 2**40])
def test_a_step_is_a_number_that_a_run_can_reach(step, roles):
    server, _ = roles()
    refused(server, Received("party-2", Embeddings(step, 4, ROWS, GOOD)), f"party-2: embeddings of step {step}")


def test_a_query_about_what_was_never_uploaded(roles):
    with pytest.raises(RemoteProtocolError, match="party-1: queries step 3, which it has not uploaded"):
        roles()[0].handle(Received("party-1", Query(3)), 0)


def test_coordinated_rounds_know_no_queries(roles):
    server, _ = roles("sync")
    server.handle(Received("party-2", Embeddings(0, 4, walked(server), GOOD)), 0)
    refused(server, Received("party-2", Query(0)), "party-2: server does not expect a Query")


@pytest.mark.parametrize(
    ("start", "values"),
    [(0, np.ones((359, 5), np.float32)), (0, np.ones((359, 1), np.float32)), (300, np.ones((359, 6), np.float32)),
     (-1, np.ones((1, 6), np.float32)), (0, np.ones((359, 6), np.float64)),
     (0, np.ones((2, 6), np.float32))],
)  # fmt: skip
def test_a_bad_evaluation_reply_names_the_party(start, values, roles):
    server, _ = roles()
    upload = Embeddings(0, 4, walked(server, 0), np.ones((4, 5), np.float32))
    server.handle(Received("party-1", upload), 0)  # begins an evaluation
    refused(server, Received("party-2", EvaluationReply(1, start, 0, values)), r"^party-2: .*evaluation")


@pytest.mark.parametrize(
    ("values", "update", "cause"),
    [
        (np.ones((4, 9), np.float32), 0, r"gradient of shape \(4, 9\) for 4 rows"),
        (np.ones((3, 5), np.float32), 0, "gradient of shape"),
        (np.ones((4, 5)), 0, ".*expected width 5 float32"),
        (np.ones((4, 5), np.int32), 0, ".*expected width 5 float32"),
        (np.ones((4, 5), np.float32), -1, "gradient of update -1"),
    ],
)
def test_a_bad_gradient_names_the_server(values, update, cause, roles):
    _, (party, *_) = roles(batch_size=4)
    (work,) = party.handle(Started(b""), 0)
    party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    refused(party, Received("server", Gradient(0, update, values)), f"^server: {cause}")


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (5, 4), (359, 400), (0, 0), (0, -1)])
def test_a_bad_evaluation_request_names_the_server(start, stop, roles):
    _, (party, *_) = roles()
    refused(
        party, Received("server", EvaluationRequest(1, start, stop)), rf"^server: asks for held-out rows {start}\.\."
    )


@pytest.mark.parametrize(
    "rows", [ROWS.astype(np.int64), ROWS[:, None], ROWS[0].reshape(()), ROWS - 1, ROWS + 1435, ROWS.astype(np.float32)]
)
def test_a_bad_request_for_fresh_rows_names_the_server(rows, roles):
    _, (party, *_) = roles()
    refused(party, Received("server", FreshRequest(1, rows)), r"^server: asks for row numbers outside 0\.\.1437")


def test_a_gradient_of_another_step_is_dropped_and_counted(roles):
    _, (party, *_) = roles(batch_size=4)
    (work,) = party.handle(Started(b""), 0)
    early = Gradient(step=0, update=0, values=np.ones((4, 5), np.float32))
    assert party.handle(Received("server", early), 0) == [], "not uploaded yet"
    party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    other = Gradient(step=7, update=0, values=np.ones((4, 5), np.float32))
    assert party.handle(Received("server", other), 0) == []
    assert party.summary()["dropped"] == 2


def test_parties_of_a_coordinated_round_must_send_the_same_rows(roles):
    server, _ = roles("sync")
    widths, good = (5, 6, 7), walked(server)
    for m in (0, 1):
        upload = Embeddings(0, 4, good, np.ones((4, widths[m]), np.float32))
        server.handle(Received(f"party-{m + 1}", upload), 0)
    server.evaluation.running, server.state.due = False, ""
    for rows in (ROWS, good[::-1].copy(), np.repeat(good[:1], 4)):
        other = Embeddings(0, 4, rows, np.ones((4, 7), np.float32))
        refused(server, Received("party-3", other), "party-3: sent rows for step 0 that differ from the agreed walk")
    for batch in (0, 3):
        other = Embeddings(0, batch, good, np.ones((4, 7), np.float32))
        refused(server, Received("party-3", other), f"party-3: sent a batch of {batch} among 4 rows for step 0")
    effects = server.handle(Received("party-3", Embeddings(0, 4, good, np.ones((4, 7), np.float32))), 0)
    assert any(isinstance(effect, Work) for effect in effects), "the right ones are taken"


def test_a_loss_that_is_not_finite_ends_training_and_names_the_batch(roles):
    server, _ = roles()
    server.network.theta.fill_(np.nan)
    effects = server.handle(Received("party-2", Embeddings(0, 4, walked(server), GOOD)), 0)
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    with pytest.raises(
        TrainingDiverged, match=r"not finite at update 0 \(batch of party-2\); lower train.learning_rate"
    ):
        server.handle(WorkDone(work.token, server.compute(work.job)), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -2e6, 3e38])
def test_absurd_embeddings_are_refused_and_change_nothing(value, roles):
    server, _ = roles()
    bad = GOOD.copy()
    bad[0, 0] = value
    before = state.pack(server.save())
    with pytest.raises(RemoteProtocolError, match=r"party-2: embeddings that are not finite, or beyond ±1e\+06"):
        server.handle(Received("party-2", Embeddings(0, 4, ROWS, bad)), 0)
    assert state.pack(server.save()) == before


@pytest.mark.parametrize("method", ["vafl", "t-sync", "sync", "centralised"])
def test_too_large_a_rate_diverges_in_every_method(method, simulate):
    tables = {"protocol": {"name": method}, "train": {"learning_rate": 1e18, "updates": 200, "batch_size": 200}}
    with pytest.raises(TrainingDiverged, match="not finite at update|embeddings have left"):
        simulate(tables)


class Stranger(Message, frozen=True):
    """A message that no role knows."""


def everyone(roles, resolve):
    server, (party, *_) = roles()
    return server, party, resolve({"protocol": {"name": "centralised"}}).roles()[0]


def test_unknown_events_and_jobs_are_a_bug_on_this_side(roles, resolve):
    for role in everyone(roles, resolve):
        with pytest.raises(LocalProtocolError, match="no rule for Stranger"):
            role.handle(Stranger(), 0)
        with pytest.raises(LocalProtocolError, match="no job Stranger"):
            role.compute(Stranger())


def test_an_unexpected_message_is_the_senders_fault(roles, resolve):
    for role in everyone(roles, resolve):
        refused(role, Received("x", Stranger()), f"x: {role.name} does not expect a Stranger")


def test_which_messages_each_role_accepts(roles):
    server, (party, *_) = roles()
    gradient = Gradient(0, 0, np.ones((4, 5), np.float32))
    upload = Embeddings(0, 4, ROWS, np.ones((4, 5), np.float32))
    refused(server, Received("party-1", gradient), "party-1: server does not expect a Gradient")
    refused(server, Received("party-1", Skip(1)), "does not expect a Skip")
    refused(server, Received("nobody", upload), "nobody: server does not expect a Embeddings")
    refused(party, Received("server", upload), "server: party-1 does not expect a Embeddings")
    refused(party, Received("party-2", gradient), "party-2: party-1 does not expect a Gradient")


def test_a_new_key_after_a_restart_changes_nothing_and_asks_for_nothing(roles, resolve):
    for role in everyone(roles, resolve):
        before = state.pack(role.save())
        assert role.handle(Resumed(b"key"), 0) == []
        assert state.pack(role.save()) == before


def test_evaluation_answers_while_a_job_runs_and_changes_nothing(roles):
    _, (party, *_) = roles(batch_size=4)
    party.handle(Started(b""), 0)
    before = party.network.digest(), party.state.busy, party.state.step
    (work,) = party.handle(Received("server", EvaluationRequest(1, 100, 9999)), 0)
    assert work.aside and work.amount == 0
    (reply,) = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    assert reply.message.start == 100 and len(reply.message.values) == 359 - 100
    assert (party.network.digest(), party.state.busy, party.state.step) == before
