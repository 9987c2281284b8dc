"""PeerJoined(reset=True): the messages between two roles are lost, and each role does its part to continue."""

import numpy as np
import pytest

from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.vafl.config import TSyncOptions, VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Query, Skip
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import (
    CancelWork,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest

RESET = PeerJoined("server", reset=True)
ROWS = 8


@pytest.fixture
def make(tiny, regression):
    """Three parties of one column, eight rows, batches of two."""

    def build(options=None, **settings):
        x = np.arange(3 * ROWS).reshape(3, ROWS) / 10
        options = options or VaflOptions(table="zeros")
        return tiny(options, x, np.ones(ROWS), [[1.0]] * 3, None, regression, **settings)

    return build


def messages(effects, kind=object):
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def works(effects):
    return [effect for effect in effects if isinstance(effect, Work)]


def upload(made, m, step=0, **fields):
    """What party m might send, and the server's answer."""
    rows = made.parties[m].walk.batch(step)
    sent = Embeddings(step, len(rows), rows, np.ones((len(rows), 1), np.float32), **fields)
    return made.told(made.server, Received(made.names[m], sent))


def gradient(made, m, step):
    values = np.ones((len(made.parties[m].state.rows), 1), np.float32)
    return Received("server", Gradient(step, 0, values))


def joined(made, m):
    """Tell the server that the conversation with party m restarts."""
    return made.told(made.server, PeerJoined(made.names[m], reset=True))


# --- a party


def test_an_uploaded_batch_is_embedded_and_sent_again(make):
    made = make()
    (first,) = messages(made.start(0))
    party = made.parties[0]
    again = made.told(party, RESET)
    assert party.state.busy and not party.state.uploaded
    assert made.told(party, gradient(made, 0, 0)) == [] and party.state.dropped == 1, "of the previous conversation"
    (second,) = messages(made.work(party, again)[1])
    assert second.step == first.step == 0
    np.testing.assert_array_equal(second.rows, first.rows)
    np.testing.assert_array_equal(second.values, first.values)
    assert works(made.told(party, gradient(made, 0, 0))), "and learns from it"


def test_a_computing_party_continues(make):
    made = make()
    party = made.parties[0]
    embedding = made.told(party, Started(b""))
    assert made.told(party, RESET) == [], "the upload is still to come"
    assert messages(made.work(party, embedding)[1], Embeddings)
    refining = made.told(party, gradient(made, 0, 0))
    assert made.told(party, RESET) == [], "the gradient has come"
    made.work(party, refining)
    assert party.state.step == 1


def test_the_conversation_with_another_peer_or_a_mere_return_changes_nothing(make):
    made = make()
    made.start(0)
    for event in (PeerJoined("party-2", reset=True), PeerJoined("server"), PeerLost("server"), Resumed(b"key")):
        assert made.told(made.parties[0], event) == [] and made.parties[0].state.uploaded


def test_query_first_uploads_again_before_it_queries(make):
    made = make(VaflOptions(table="zeros", order="query-first"))
    made.start(0)
    party = made.parties[0]
    _, effects = made.work(party, made.told(party, RESET))
    assert [type(message) for message in messages(effects)] == [Embeddings, Query]


def test_a_pause_that_ends_while_the_batch_is_embedded_again_starts_nothing(make):
    made = make(VaflOptions(table="zeros", order="query-first", pause_s=1.0))
    assert isinstance(made.start(0)[-1], SetTimer)
    party = made.parties[0]
    again = made.told(party, RESET)
    assert made.told(party, TimerFired("activate", 0)) == []
    _, effects = made.work(party, again)
    assert messages(effects, Embeddings) and isinstance(effects[-1], SetTimer), "the pause begins again"


def test_a_pause_between_two_batches_stays(make):
    made = make(VaflOptions(table="zeros", pause_s=1.0))
    made.start(0)
    party = made.parties[0]
    (pause,) = made.work(party, made.told(party, gradient(made, 0, 0)))[1]
    assert isinstance(pause, SetTimer)
    assert made.told(party, RESET) == []
    assert works(made.told(party, TimerFired("activate", 0)))


@pytest.mark.parametrize("done", [0, 1, 2])
def test_the_warm_up_begins_again_and_every_row_comes_once(done, make, monkeypatch):
    monkeypatch.setattr("colonnade.algorithms.vafl.table_walker.rows_per_message", lambda width: 3)  # 3, 3, 2
    made = make(VaflOptions())
    party = made.parties[0]
    effects = made.told(party, Started(b""))
    for _ in range(done):
        effects = made.work(party, effects)[1]
    assert made.told(party, RESET) == [], "a piece is running"
    sent = []
    while not any(message.batch for message in sent):
        effects = made.work(party, effects)[1]
        sent += messages(effects, Embeddings)
    assert np.concatenate([message.rows for message in sent if not message.batch]).tolist() == list(range(ROWS))


def test_nothing_that_was_asked_before_is_answered(make):
    """A server that went back numbers its requests again: an old answer must not pass for a new one."""
    made = make()
    made.start(0)
    party = made.parties[0]
    (answer,) = made.told(party, Received("server", FreshRequest(5, np.arange(3, dtype=np.int32))))
    (reading,) = party.handle(Received("server", EvaluationRequest(2, 0, 1)), 0)
    effects = made.told(party, RESET)
    assert {effect.token for effect in effects if isinstance(effect, CancelWork)} == {answer.token, reading.token}
    assert not party.state.answers and not party.reading.tokens
    other = np.array([6, 7], np.int32)
    (work,) = made.told(party, Received("server", FreshRequest(5, other)))
    assert work.token != answer.token
    (sent,) = messages(made.told(party, WorkDone(work.token, party.compute(work.job))))
    assert sent.request == 5 and sent.rows.tolist() == [6, 7]


# --- the server


def test_a_batch_in_line_is_forgotten_and_one_in_work_is_not(make):
    made = make()
    (step,) = works(upload(made, 0))
    upload(made, 1)
    upload(made, 2)
    assert joined(made, 1) == [] and joined(made, 0) == []
    assert [request.party for request in [*made.server.state.taken, *made.server.state.queue]] == [0, 2]
    effects = made.told(made.server, WorkDone(step.token, made.server.compute(step.job)))
    assert made.server.k == 1
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["party-1"], "party-1 may no longer want it"


def test_a_newer_batch_or_query_of_a_party_replaces_its_older_one(make):
    made = make(VaflOptions(table="zeros", order="query-first"))
    upload(made, 0)  # being computed
    for step in (0, 1):
        upload(made, 1, step, reply=False)
        for _ in range(2):
            made.told(made.server, Received("party-2", Query(step)))
    assert [(request.step, request.learn) for request in made.server.state.queue] == [(1, True), (1, False)]


def test_a_query_for_a_batch_of_before_is_refused(make):
    made = make(VaflOptions(table="zeros", order="query-first"))
    upload(made, 0, reply=False)
    joined(made, 0)
    with pytest.raises(RemoteProtocolError, match="party-1: queries step 0, which it has not uploaded"):
        made.server.handle(Received("party-1", Query(0)), 0)


def test_fresh_rows_are_asked_for_again(make):
    made = make(VaflOptions(table="zeros", max_delay=1))
    asked = until_asked(made)
    (again,) = messages(joined(made, 1), FreshRequest)
    assert again.request not in {request.request for request in asked.values()}
    assert again.rows.tolist() == asked["party-2"].rows.tolist()
    with pytest.raises(RemoteProtocolError, match="party-2: answers request 1, which it was not asked or has answered"):
        answer(made, 1, asked["party-2"])
    assert answer(made, 2, asked["party-3"]) == []
    assert works(answer(made, 1, again)), "now the step begins"


def test_rows_that_came_meanwhile_are_not_asked_for_again(make):
    made = make(VaflOptions(table="zeros", max_delay=1, batches="shared"))
    asked = until_asked(made)
    answer(made, 2, asked["party-3"])
    upload(made, 1, made.server.state.taken[0].step)  # the same rows, as a batch of its own
    assert works(joined(made, 1)), "nothing is too old any more: the step begins"


def until_asked(made):
    """Party 1 alone takes steps until the other parties' rows are too old."""
    for step in range(5):
        effects = upload(made, 0, step)
        if requests := {e.to: e.message for e in effects if isinstance(getattr(e, "message", None), FreshRequest)}:
            return requests
        made.work(made.server, effects)
    raise AssertionError


def answer(made, m, request):
    values = np.ones((len(request.rows), 1), np.float32)
    sent = Embeddings(0, 0, request.rows, values, request=request.request)
    return made.told(made.server, Received(made.names[m], sent))


def test_an_evaluation_does_not_wait_for_what_is_lost(make):
    made = make()
    server = made.server
    upload(made, 0)
    assert server.evaluation.running
    for m in (0, 2):
        server.handle(Received(made.names[m], EvaluationReply(1, 0, 0, np.ones((1, 1), np.float32))), 0)
    (work,) = works(server.handle(PeerJoined("party-2", reset=True), 0))
    server.handle(WorkDone(work.token, server.compute(work.job)), 0)
    assert not server.evaluation.running and server.evaluation.missing == ["party-2"]
    assert "party-2" in server.state.present


def test_a_party_that_was_never_announced_may_upload(make):
    made = make(TSyncOptions(table="zeros", t=2))
    for name in made.names:
        made.told(made.server, PeerLost(name))
    assert works(upload(made, 1)), "no other party is present"
    upload(made, 0)
    assert joined(made, 0) == []


# --- coordinated rounds


@pytest.fixture
def rounds(make):
    """A server between two rounds, with nothing to evaluate."""
    made = make(SyncOptions())
    made.server.state.due = ""
    return made


def skips(effects):
    return {effect.to: effect.message.step for effect in effects if isinstance(getattr(effect, "message", None), Skip)}


def test_a_party_behind_the_others_skips_to_them(rounds):
    rounds.server.state.round = 7
    upload(rounds, 0, 7)
    assert skips(upload(rounds, 1, 4)) == {"party-2": 7}
    assert skips(upload(rounds, 1, 7)) == {}
    assert works(upload(rounds, 2, 7))


def test_a_party_that_is_further_than_the_server_goes_back(rounds):
    """The server lost its state. No party moves the others."""
    upload(rounds, 0, 0)
    assert skips(upload(rounds, 2, 5)) == {"party-3": 0}
    assert [(request.party, request.step) for request in rounds.server.state.queue] == [(0, 0)]


def test_a_round_that_is_done_is_not_done_again(rounds):
    rounds.server.state.round = 3
    for m in range(3):
        effects = upload(rounds, m, 3)
    rounds.work(rounds.server, effects)
    assert rounds.server.state.round == 4
    assert skips(upload(rounds, 1, 3)) == {"party-2": 4}
    assert not rounds.server.state.queue


def test_a_party_that_sends_the_running_round_again_hears_of_the_next_when_it_is_done(rounds):
    for m in range(3):
        effects = upload(rounds, m, 0)
    joined(rounds, 1)
    assert skips(upload(rounds, 1, 0)) == {}
    _, after = rounds.work(rounds.server, effects)
    assert skips(after) == {"party-2": 1}
    assert [type(message) for message in messages(after)] == [Gradient] * 3 + [Skip], "its gradient comes first"


def test_a_party_skips_without_learning(rounds):
    rounds.start(0)
    party = rounds.parties[0]
    before = party.network.digest()
    effects = rounds.told(party, Received("server", Skip(3)))
    assert (party.state.step, party.state.skipped, party.state.uploaded) == (3, 3, False)
    (sent,) = messages(rounds.work(party, effects)[1], Embeddings)
    assert sent.step == 3 and sent.rows.tolist() == party.walk.batch(3).tolist()
    assert party.network.digest() == before and party.summary()["skipped"] == 3


def test_a_skip_to_the_own_step_is_dropped(rounds):
    rounds.start(0)
    party = rounds.parties[0]
    rounds.work(party, rounds.work(party, rounds.told(party, gradient(rounds, 0, 0)))[1])  # step 1 is uploaded
    assert rounds.told(party, Received("server", Skip(1))) == []
    assert (party.state.step, party.state.skipped, party.state.dropped) == (1, 0, 1)


def test_a_party_goes_back_to_the_step_of_the_server(rounds):
    rounds.start(0)
    party = rounds.parties[0]
    rounds.work(party, rounds.work(party, rounds.told(party, gradient(rounds, 0, 0)))[1])  # step 1 is uploaded
    (sent,) = messages(rounds.work(party, rounds.told(party, Received("server", Skip(0))))[1], Embeddings)
    assert sent.step == 0 and sent.rows.tolist() == party.walk.batch(0).tolist()
    assert (party.state.skipped, party.state.dropped) == (0, 0), "no step was left out"


def test_a_skip_that_meets_a_running_job_is_dropped(rounds):
    rounds.start(0)
    party = rounds.parties[0]
    rounds.told(party, RESET)
    assert rounds.told(party, Received("server", Skip(3))) == []
    assert (party.state.step, party.state.skipped) == (0, 0)


def test_only_coordinated_rounds_skip(make):
    made = make()
    made.start(0)
    with pytest.raises(RemoteProtocolError, match="server: party-1 does not expect a Skip"):
        made.parties[0].handle(Received("server", Skip(3)), 0)


def test_a_party_saved_after_a_skip_is_the_same(rounds):
    rounds.start(0)
    party, twin = rounds.parties[0], rounds.parties[1]
    rounds.told(party, Received("server", Skip(2)))
    twin.load(party.save())
    assert twin.summary()["skipped"] == 2 and twin.state.rows.tolist() == party.state.rows.tolist()
