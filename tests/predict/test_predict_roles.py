"""The predicting server and party by hand: which parties are asked, what the server waits for, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from colonnade.algorithms import METHODS
from colonnade.algorithms.prediction.messages import (
    Ask,
    Asked,
    Compute,
    Computed,
    Declined,
    Find,
    Found,
    Mean,
    PartyDeclined,
    Question,
)
from colonnade.algorithms.prediction.party import MAX_ASKED, MAX_UNDER_WAY, PredictParty
from colonnade.algorithms.prediction.server import PredictServer
from colonnade.algorithms.prediction.standing_in import AWAY, FALLBACK, LACKS, SENT, StandIns
from colonnade.data import Lookup
from colonnade.predict.in_one_place import predictor_of
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import (
    CancelTimer,
    Emit,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.quota import Bucket
from colonnade.protocol.role import WITHHELD

SECOND = 10**9


class Network:
    """The probability is the sum of all blocks."""

    def predict(self, h):
        return np.stack([1 - h.sum(1), h.sum(1)], 1)


class Plain:
    def gathered(self, h):
        return h


class Trained:
    """A party's role: the embedding of x is (x, 10 x); it records that it got a key."""

    name = "shop"
    entropy = None

    def handle(self, event, now):
        self.entropy = event.entropy
        return []

    def embed(self, x, rows, number):
        return np.concatenate([x[rows], 10 * x[rows]], 1).astype(np.float32)


@pytest.fixture
def server():
    stand_ins = StandIns(("cached", "fallback", "refuse"), (1, 2), 10, 1)
    made = PredictServer(("bank", "shop"), (1, 2), Network(), Plain(), stand_ins, deadline_s=2.0)
    yield made
    made.validate()


@pytest.fixture
def party():
    table = Lookup({"a": 0, "b": 1}, np.array([[1.0], [2.0]], np.float32))
    return PredictParty(Trained(), table, 2, table.x)


def found(number, has, *rows, start=0):
    values = np.array(rows, np.float32) if rows else np.zeros((0, 2), np.float32)
    return Found(number, start, np.array(has), values)


def of_bank(number, *values):
    return Found(number, 0, np.ones(len(values), bool), np.array(values, np.float32)[:, None])


def computed(server, effects):
    """The answer of the last job among the effects."""
    work = next(effect for effect in effects if isinstance(effect, Work))
    result = server.compute(work.job)
    assert server.handle(WorkDone(work.token, result), 0) == [Emit(result)]
    return result


def test_all_present_parties_are_asked_and_the_answer_is_of_all(server):
    effects = server.handle(Asked(1, ["a", "b"], ["bank", "shop"]), 5)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == ["bank", "shop"]
    assert effects[0].message.ids == ["a", "b"] and SetTimer("1", 5 + 2 * SECOND) in effects
    assert server.handle(Received("bank", of_bank(1, 0.5, 0.25)), 6) == []
    effects = server.handle(Received("shop", found(1, [True, True], [1, 2], [3, 4])), 7)
    assert CancelTimer("1") in effects and not server.state.requests
    result = computed(server, effects)
    assert result.values[:, 1].tolist() == [3.5, 7.25] and (result.blocks == SENT).all() and result.away == []


def test_a_party_without_a_line_is_not_waited_for(server):
    server.handle(Received("shop", Mean(np.array([1, 1], np.float32))), 0)
    server.handle(Asked(1, ["a"], ["bank"]), 0)
    result = computed(server, server.handle(Received("bank", of_bank(1, 0.5)), 1))
    assert result.values[0, 1] == 2.5 and result.blocks.tolist() == [[SENT, FALLBACK]] and result.away == ["shop"]


def test_with_no_party_here_the_answer_comes_at_once(server):
    result = computed(server, server.handle(Asked(1, ["a"], []), 0))
    assert result.blocks.tolist() == [[AWAY, AWAY]] and result.away == ["bank", "shop"]


@pytest.mark.parametrize("event", [TimerFired("1", 0), PeerLost("shop"), PeerJoined("shop", True)])
def test_a_request_does_without_a_party_that_is_killed(server, event):
    server.handle(Asked(1, ["a"], ["bank", "shop"]), 0)
    server.handle(Received("bank", of_bank(1, 0.5)), 1)
    result = computed(server, server.handle(event, 2 * SECOND))
    assert result.blocks.tolist() == [[SENT, AWAY]] and result.away == ["shop"]
    assert server.handle(Received("shop", found(1, [True], [1, 2])), 3 * SECOND) == [], "it comes too late"


def test_what_was_sent_once_is_there_when_its_party_is_not(server):
    server.handle(Asked(1, ["a"], ["bank", "shop"]), 0)
    server.handle(Received("bank", of_bank(1, 0.5)), 1)
    server.handle(Received("shop", found(1, [True], [1, 2])), 1)
    server.handle(Asked(2, ["a"], ["bank"]), 2)
    assert computed(server, server.handle(Received("bank", of_bank(2, 0.5)), 3)).values[0, 1] == 3.5


def test_an_id_that_a_party_does_not_have(server):
    server.handle(Asked(1, ["a", "x"], ["bank", "shop"]), 0)
    server.handle(Received("bank", of_bank(1, 0.5, 0.5)), 1)
    result = computed(server, server.handle(Received("shop", found(1, [True, False], [1, 2])), 1))
    assert result.blocks.tolist() == [[SENT, SENT], [SENT, LACKS]]


def test_many_ids_are_asked_for_in_pieces(server):
    ids = [str(number) for number in range(MAX_ASKED + 1)]
    sends = [effect for effect in server.handle(Asked(1, ids, ["shop"]), 0) if isinstance(effect, Send)]
    assert [len(send.message.ids) for send in sends] == [MAX_ASKED, 1] and sends[1].message.start == MAX_ASKED
    assert server.handle(Received("shop", found(1, [True], [1, 2], start=MAX_ASKED)), 1) == []
    effects = server.handle(Received("shop", found(1, [False] * MAX_ASKED)), 1)
    assert computed(server, effects).blocks[:, 1].tolist() == [LACKS] * MAX_ASKED + [SENT]


@pytest.mark.parametrize(
    "message",
    [
        found(1, [True, True], [1, 2]),
        found(1, [True]),
        found(1, [True], [1, 2, 3]),
        found(1, [True], [1, 1e9]),
        Found(1, 0, np.array([1], np.uint8), np.zeros((1, 2), np.float32)),
        Mean(np.zeros(3, np.float32)),
        Mean(np.full(2, 1e9, np.float32)),
        Ask(1, 0, ["a"]),
    ],
    ids=["too many", "too few", "too wide", "absurd", "no truth values", "wide mean", "absurd mean", "no answer"],
)
def test_an_answer_that_cannot_be_is_refused_and_changes_nothing(server, message):
    server.handle(Asked(1, ["a"], ["bank", "shop"]), 0)
    with pytest.raises(RemoteProtocolError, match="shop"):
        server.handle(Received("shop", message), 1)
    assert server.state.requests[1].owed == {"bank": [0], "shop": [0]} and not server.stand_ins.fallback


def test_a_party_embeds_what_it_has(party):
    work = party.handle(Received("server", Ask(4, 8, ["b", "x", "a"])), 0)[0]
    result = party.compute(work.job)
    assert (result.number, result.start, result.has.tolist()) == (4, 8, [True, False, True])
    assert result.values.tolist() == [[2, 20], [1, 10]]
    record, send = party.handle(WorkDone(work.token, result), 0)
    assert record == Emit(Question(3, 2, 0)), "recorded before it is sent"
    assert isinstance(send.message, Found) and send.message.values is result.values


def test_a_party_that_has_nothing_says_so(party):
    work = party.handle(Received("server", Ask(4, 0, ["x"])), 0)[0]
    assert party.compute(work.job).values.shape == (0, 2)


def test_noise_is_never_drawn_twice_alike(party):
    jobs = [party.handle(Received("server", Ask(1, 0, ["a"])), 0)[0].job for _ in range(2)]
    assert all(isinstance(job, Find) for job in jobs) and jobs[0].job != jobs[1].job


def test_a_party_tells_its_mean_at_the_start_and_to_a_server_that_has_forgotten(party):
    work = party.handle(Started(b"key"), 0)[0]
    assert party._trained.entropy == b"key"
    mean = party.compute(work.job)
    assert mean.values.tolist() == [1.5, 15]
    assert party.handle(WorkDone(work.token, mean), 0) == [Send("server", mean)]
    assert party.handle(PeerJoined("server", True), 0) == [Send("server", mean)]
    assert party.handle(PeerJoined("server"), 0) == []


@pytest.mark.parametrize("ids", [[], ["a"] * (MAX_ASKED + 1), ["a" * 1000]], ids=["none", "too many", "too long"])
def test_a_question_that_is_too_much_is_declined(party, ids):
    record, send = party.handle(Received("server", Ask(1, 7, ids)), 0)
    assert record == Emit(Question(len(ids), 0, len(ids), "malformed"))
    assert send == Send("server", Declined(1, 7, "malformed"))


def test_a_quota_comes_back_with_time():
    lookup = Lookup({"a": 0, "b": WITHHELD}, np.array([[1]], np.float32))
    party = PredictParty(Trained(), lookup, 2, None, [Bucket(3, 60), Bucket(5, 86_400, used=1)])

    def ask(rows, now):
        return party.handle(Received("server", Ask(1, 0, ["a"] * rows)), now)[-1]

    assert isinstance(ask(2, 0), Work)
    assert ask(2, 0) == Send("server", Declined(1, 0, "quota")), "beyond the minute's"
    assert isinstance(ask(2, 40 * SECOND), Work), "2 of 3 are back after 40 s"
    assert ask(1, 4000 * SECOND) == Send("server", Declined(1, 0, "quota")), "beyond the day's"
    assert isinstance(ask(1, 80_000 * SECOND), Work)


def test_a_party_holds_a_bounded_number_of_questions(party):
    works = [party.handle(Received("server", Ask(1, 0, ["a"])), 0)[0] for _ in range(MAX_UNDER_WAY)]
    assert party.handle(Received("server", Ask(1, 0, ["a"])), 0)[1] == Send("server", Declined(1, 0, "quota"))
    party.handle(WorkDone(works[0].token, party.compute(works[0].job)), 0)
    assert isinstance(party.handle(Received("server", Ask(1, 0, ["a"])), 0)[0], Work)


def test_an_id_that_is_withheld_looks_like_one_that_the_party_lacks():
    party = PredictParty(Trained(), Lookup({"a": 0, "b": WITHHELD}, np.array([[1]], np.float32)), 2, None)
    work = party.handle(Received("server", Ask(1, 0, ["a", "b", "x"])), 0)[0]
    record, send = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    assert send.message.has.tolist() == [True, False, False]
    assert record == Emit(Question(3, 1, 1, "not aligned"))


def test_an_absurd_embedding_declines_the_question_and_ends_nothing():
    party = PredictParty(Trained(), Lookup({"a": 0}, np.array([[np.inf]], np.float32)), 2, None)
    work = party.handle(Received("server", Ask(1, 0, ["a"])), 0)[0]
    effects = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    assert effects == [Emit(Question(1, 0, 1, "unanswerable")), Send("server", Declined(1, 0, "unanswerable"))]


def test_a_party_that_declines_is_away_for_that_question(server):
    server.handle(Asked(1, ["a"], ["bank", "shop"]), 0)
    assert server.handle(Received("shop", Declined(1, 0, "\x1b]0;")), 0) == [Emit(PartyDeclined("shop", "unknown"))]
    effects = server.handle(Received("bank", of_bank(1, 5)), 0)
    assert computed(server, effects).away == ["shop"]
    assert server.handle(Received("shop", Declined(1, 0, "quota")), 0) == [], "too late"


def test_a_party_answers_only_the_server(party):
    for sender, message in (("shop", Ask(1, 0, ["a"])), ("server", Mean(np.zeros(2, np.float32)))):
        with pytest.raises(RemoteProtocolError, match="does not expect"):
            party.handle(Received(sender, message), 0)


def test_a_method_without_a_predictor_is_refused():
    with pytest.raises(ConfigError, match="protocol.name = 'vafl': never shows the server a party's own embedding"):
        predictor_of(replace(METHODS["vafl"], predictor=None))
    assert all(predictor_of(method) is method.predictor for method in METHODS.values())


def test_the_result_has_the_shape_of_its_rows(server):
    job = Compute(1, np.ones((3, 3), np.float32), np.zeros((3, 2), np.uint8), [])
    assert isinstance(server.compute(job), Computed) and server.compute(job).values.shape == (3, 2)
