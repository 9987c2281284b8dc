"""A party that holds back its part of a sum: who complains, and which parties the coordinator suspects."""

import numpy as np
import pytest

from colonnade.algorithms.asysqn.aggregation import Aggregations
from colonnade.algorithms.asysqn.config import AfOptions, SynOptions, SynSvrgOptions
from colonnade.algorithms.asysqn.coordinator import LinearCoordinator
from colonnade.algorithms.asysqn.disputes import Disputes
from colonnade.algorithms.asysqn.messages import (
    Ask,
    BeginTraining,
    FullPass,
    Held,
    Hello,
    Hold,
    Judged,
    Late,
    Masked,
    Masks,
    Members,
    Missing,
    Round,
    Stepped,
    Totals,
)
from colonnade.algorithms.method import ServerSetup
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import CancelWork, PeerJoined, Received, Send, Started, TimerFired, Work, WorkDone

from .test_asysqn_by_hand import BINARY, Parties, setups

COLUMNS = [[1.0, 2.0], [3.0, -1.0], [-2.0, 1.0], [0.5, 1.5]]  # of four parties
LABELS = [1, 0]
# Four parties, party 0 asks: on T1, 0 waits for 1 and 2, and 1 waits for 3; on T2, 0 for 3, 3 for 2, 2 for 1.


def four(options=None):
    return Parties(options or AfOptions(ahead=0, l2=0.1), COLUMNS, LABELS, batch=1)


def complaints(parties):
    return {(name, *message.parties) for name, message in parties.told if isinstance(message, Missing)}


def after_patience(parties, liar, kinds=(Masked, Masks)):
    """The complaints if this party sends no sums, and party-1's sum is late."""
    parties.lost = lambda sender, to, message: sender == liar and isinstance(message, kinds)
    parties.begin(0)
    parties.settle()
    (name, timer), *_ = parties.timers
    parties.tell(name, TimerFired(timer, 1), 1)
    parties.settle()
    return complaints(parties)


def test_each_party_names_the_children_whose_part_it_misses():
    assert after_patience(four(), "party-4") == {("party-1", 1, 3), ("party-2", 3)}
    assert after_patience(four(), "party-2") == {("party-1", 1, 3), ("party-4", 2), ("party-3", 1)}


def test_a_party_repeats_no_complaint():
    parties = four()
    after_patience(parties, "party-4")
    (ask, *_) = parties.of(Ask)
    parties.tell("party-2", Received("party-1", Ask(7, [0, 1, 2, 3], False, ask[2].rows)))
    before = len(parties.told)
    for _ in range(3):
        parties.tell("party-2", Received("party-1", Late(7)))
        parties.tell("party-2", Received("party-1", Late(8)))  # it knows of no such sum
    assert [message for _, message in parties.told[before:]] == [Missing(0, 7, [3])]


def of(*complaints):
    disputes = Disputes()
    for initiator, parent, *children in complaints:
        disputes.note(initiator, parent, 5, tuple(children))
    return disputes


@pytest.mark.parametrize(
    ("told", "suspects"),
    [
        ([], []),
        ([(0, 0, 1)], [0, 1]),  # one word against another
        ([(0, 1, 3)], [0, 1, 3]),  # the initiator may have asked them different questions
        ([(0, 0, 1, 3), (0, 1, 3)], [0, 3]),  # party 1 waits for party 3, and party 0 waits for both
        ([(0, 0, 3), (1, 1, 3)], [3]),  # two parties say the same of a third one
        ([(0, 0, 1), (0, 0, 2), (3, 0, 3)], [0]),  # a party that accuses all others
        ([(0, 0, 1), (2, 2, 3)], [0, 1, 2, 3]),  # no party alone explains it
    ],
)
def test_suspects_explain_all_complaints(told, suspects):
    assert of(*told).suspects(set()) == suspects


def test_what_the_coordinator_knows_itself_narrows_suspicion():
    assert of((0, 0, 1)).suspects({1, 2}) == [1]
    assert of().suspects({1, 2}) == []


def test_an_excuse_counts_for_the_same_sum_only():
    disputes = of((0, 0, 1))
    disputes.note(0, 1, 6, (3,))
    assert disputes.suspects(set()) == [0, 1] and disputes.suspects({1}) == [1]


def test_disputes_are_saved():
    disputes, other = of((0, 0, 1, 3), (0, 1, 3)), Disputes()
    other.load(state.unpack(state.pack(disputes.save())))
    assert other.suspects(set()) == [0, 3]
    other.settle(1)
    assert other.suspects(set()) == [0, 3]
    other.settle(0)
    assert not other.suspects(set())


def coordinator(options):
    """A coordinator whose four parties train; returns it, and what it said last."""
    setup = setups(options, COLUMNS, LABELS)[0]
    made = LinearCoordinator(
        ServerSetup(
            options, setup.training, setup.names, (0,) * 4, "none", np.zeros(0), np.zeros(0), BINARY, "cpu", None
        )
    )
    made.handle(Started(b"server"), 0)
    for name in setup.names:
        made.handle(PeerJoined(name), 0)
        made.handle(Received(name, Hello("a" * 64, 2, 1, 2)), 0)
    said = made.handle(Received(made.state.judge, Judged(1, 0.7, {"accuracy": 0.5})), 0)
    assert any(isinstance(effect.message, BeginTraining) for effect in said if isinstance(effect, Send))
    return made


def say(role, name, message):
    effects = role.handle(Received(name, message), 0)
    role.validate()
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_accuser_and_accused_are_suspects_until_the_sum_is_complete():
    server = coordinator(AfOptions(ahead=0))
    assert set(server.owes()) == set(server.names), "a step"
    say(server, "party-1", Missing(0, 5, [1]))
    assert server.owes() == dict.fromkeys(["party-1", "party-2"], "its part of a sum that is late")
    assert "one of party-1, party-2 may hold it up" in server.summary()["note"]
    say(server, "party-3", Missing(2, 6, [3]))
    say(server, "party-1", Stepped(0, 1, 1, 0, [0, 1, 2, 3]))
    assert list(server.owes()) == ["party-3", "party-4"]
    say(server, "party-3", Stepped(0, 1, 1, 0, [0, 1, 2, 3]))
    assert set(server.owes()) == set(server.names)


def test_a_complaint_of_parties_that_are_no_children_is_not_heard():
    server = coordinator(AfOptions(ahead=0))
    say(server, "party-2", Missing(0, 5, [2]))
    assert set(server.owes()) == set(server.names)
    for wrong in (
        Missing(4, 5, [3]),
        Missing(0, -1, [3]),
        Missing(0, 5, [3, 3]),
        Missing(0, 5, [9]),
        Missing(0, 5, []),
    ):
        with pytest.raises(RemoteProtocolError, match="party-2: complains of impossible parties"):
            say(server, "party-2", wrong)


def test_after_a_late_sum_another_party_initiates_the_next_round():
    server = coordinator(SynOptions())
    first = server.state.asked
    assert list(server.owes()) == [server.names[first]], "the others wait for its sum"
    child = (first + 1) % 4
    rounds = say(server, server.names[first], Missing(first, 5, [child], given_up=True))
    assert rounds == [Round(2, (first + 1) % 4)] * 4
    assert set(server.owes()) == {server.names[first], server.names[child]}
    for party in range(4):
        if party != child:
            say(server, server.names[party], Stepped(2, 1, 1, 0, []))
    assert list(server.owes()) == [server.names[child]], "it is late, and was accused"
    say(server, server.names[child], Stepped(2, 1, 1, 0, []))
    assert list(server.owes()) == [server.names[server.state.asked]]


def test_an_initiator_that_leaves_a_party_out_is_named_with_it():
    server = coordinator(SynOptions())
    asked = server.state.asked
    left_out = (asked + 2) % 4
    for party in range(4):
        if party != left_out:
            say(server, server.names[party], Stepped(1, 1, 1, 0, []))
    assert set(server.owes()) == {server.names[asked], server.names[left_out]}
    lost = Missing(asked, 0, [asked], given_up=True)
    assert say(server, server.names[left_out], lost) == [Round(2, (asked + 1) % 4)] * 4


def test_a_round_goes_on_after_its_initiator_and_a_contributor_start_their_conversation_again():
    parties = four(SynOptions())
    parties.lost = lambda sender, to, message: sender == "party-4" and isinstance(message, Masked)
    parties.begin(0, 1, 2, 3)
    for name in parties.names:
        parties.queue.append((name, Received("server", Round(1, 0))))
    parties.settle()
    parties.lost = lambda sender, to, message: False
    parties.tell("party-1", PeerJoined("party-4", reset=True))
    parties.tell("party-4", PeerJoined("party-1", reset=True))
    assert ("party-4", Missing(0, 0, [0], given_up=True)) in parties.told, "the totals may have been lost"
    parties.settle()
    assert [role.estimator.steps for role in parties.roles.values()] == [1] * 4


def test_margins_of_a_round_count_only_from_its_initiator():
    parties = four(SynSvrgOptions())
    parties.begin(0, 1, 2, 3)
    parties.settle()
    role = parties.roles["party-2"]
    for sender, value in (("party-1", 0.25), ("party-4", 99.0), ("party-3", 99.0)):  # before the round is announced
        parties.tell("party-2", Received(sender, Totals(0, 1, np.array([value]))))
    parties.tell("party-2", Received("server", Round(1, 0)))
    assert role.state.stepping.theta.tolist() == [0.25]


def test_a_round_has_one_step_whatever_its_initiator_sends():
    """A second step could run when the snapshot's margins arrive: the party would drop them, and rest for ever."""
    role = four(SynSvrgOptions(l2=0.1)).roles["party-2"]
    (full,) = role.handle(Received("server", BeginTraining(2.0, [0, 1, 2, 3])), 0)
    role.handle(WorkDone(full.token, role.compute(full.job)), 0)
    role.handle(Received("server", Round(1, 0)), 0)
    (work,) = role.handle(Received("party-1", Totals(0, 1, np.zeros(1))), 0)
    role.handle(WorkDone(work.token, role.compute(work.job)), 0)
    assert role.handle(Received("server", Hold(1)), 0) == [Send("server", Held(1))]
    assert role.handle(Received("party-1", Totals(0, 1, np.ones(1))), 0) == [] and role.estimator.steps == 1
    (snapshot,) = role.handle(Received("party-3", Totals(1, 0, np.zeros(2))), 0)
    assert isinstance(snapshot.job, FullPass) and role.state.dropped == 1
    role.handle(Received("server", Round(2, 0)), 0)
    assert role.handle(Received("party-1", Totals(0, 2, np.zeros(1))), 0), "the next round"


def test_a_party_that_is_not_believed_stops_asking():
    parties = four()
    parties.begin(0, 1, 2, 3)
    parties.settle(200)
    parties.tell("party-2", Received("server", Members([0, 2, 3])))
    assert not parties.roles["party-2"].state.own


def test_no_sender_displaces_the_early_sums_of_another():
    sums = Aggregations(0, ("a", "b", "c", "d"), True, 2, 32, waiting=3, most=2)
    values = np.zeros(2, np.uint64)
    sums.receive(3, Masked(1, 7, b"asked", 0, values))
    for nonce in range(10, 20):
        sums.receive(2, Masked(1, nonce, b"asked", 0, values))
    assert list(sums.sums) == [(1, 7), (1, 17), (1, 18), (1, 19)]


def test_terms_that_are_never_finished_do_not_pile_up():
    """The oldest job is cancelled, and its rows still count as contributed."""
    parties = four()
    role = parties.roles["party-2"]
    role.handle(Received("server", Members([0, 1, 2, 3])), 0)
    rows, tokens, cancelled = np.zeros(1, np.int32), [], []
    for nonce in range(30):
        effects = role.handle(Received("party-1", Ask(nonce, [0, 1, 2, 3], False, rows)), 0)
        tokens += [effect.token for effect in effects if isinstance(effect, Work)]
        cancelled += [effect.token for effect in effects if isinstance(effect, CancelWork)]
        role.validate()
    assert len(role.state.asides) == len(role.fence.running) == role.sums.waiting
    assert cancelled == tokens[: -role.sums.waiting] and role.fence.members() == {(0, 1, 2, 3)}


def test_a_party_begins_after_the_term_that_stood_in_its_way():
    """At w = 0 only running terms over other parties are an obstacle, and the end of the job removes it."""
    role = Parties(AfOptions(ahead=0), COLUMNS, LABELS, batch=2).roles["party-2"]
    role.handle(Received("server", Members([0, 1, 2, 3])), 0)
    ask = Ask(7, [0, 1, 2, 3], False, np.arange(2, dtype=np.int32))
    (work,) = role.handle(Received("party-1", ask), 0)
    role.handle(Received("server", BeginTraining(2.0, [0, 1, 2])), 0)
    assert role.state.blocked and not role.state.own
    role.handle(WorkDone(work.token, role.compute(work.job)), 0)
    assert not role.state.blocked
    assert [term.opens.what for term in role.state.asides.values()] == ["batch"]


def test_a_unit_of_work_that_no_party_can_have_is_refused():
    role = four().roles["party-2"]
    with pytest.raises(RemoteProtocolError, match="invalid unit of 1e-300 nonzeros"):
        role.handle(Received("server", BeginTraining(1e-300, [0, 1, 2, 3])), 0)


@pytest.mark.parametrize("initiates", [True, False])
def test_a_round_of_a_state_of_release_0_1_goes_on(initiates):
    """That release saved whether a party initiates the round, and the margins of one sender at most."""
    parties = four(SynOptions(l2=0.1))
    party = parties.roles["party-2"]
    saved = party.save()
    old = {key: value for key, value in saved["state"].items() if key != "initiator"}
    early = {"position": 3, "theta": np.ones(1), "clock": 0, "members": ()}
    party.load(saved | {"state": old | {"initiates": initiates, "early": early, "round": 3}})
    assert (party.state.initiator == party.index) == initiates
    assert party.state.early[party.state.initiator].position == 3, "of the party that initiates, whichever that is"
