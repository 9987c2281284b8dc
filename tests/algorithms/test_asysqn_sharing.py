"""Shared sums: all parties step on each, no party waits for another one's step, and only the named party's count."""

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.asysqn.config import AfOptions, AsySvrgOptions, SynOptions
from colonnade.algorithms.asysqn.messages import Ask, Missing, Round, Stepped, Summed, Totals
from colonnade.algorithms.asysqn.sharing import Pipeline
from colonnade.protocol.errors import CheckpointError, RemoteProtocolError
from colonnade.protocol.events import PeerLost, Received, Send

from .test_asysqn_by_hand import SIGNS, Parties, X, Y
from .test_asysqn_disputes import coordinator, say

SHARED = AfOptions(ahead=0, l2=0.1, share=True)


def shared(options=SHARED, weights=(0.5, -0.25, 2.0)):
    parties = Parties(options, X, Y)
    for name, weight in zip(parties.names, weights, strict=True):
        parties.roles[name].estimator.state.w = np.array([weight, 0.0])
    parties.begin(0, 1, 2)
    parties.settle()
    return parties


def announce(parties, number, initiator):
    for name in parties.names:
        parties.tell(name, Received("server", Round(number, initiator)))


def told(parties, kind):
    return [(name, message) for name, message in parties.told if isinstance(message, kind)]


def test_all_parties_step_on_one_sum():
    """w_ℓ − 0.5·(Σ slope_i·x_i/2 + 0.1·w_ℓ) at θ = 0.5·x_1 − 0.25·x_2 + 2·x_3, for every party."""
    parties = shared()
    assert not parties.of(Ask), "no party asks before the coordinator announces a sum"
    announce(parties, 1, 1)
    parties.settle()
    theta = 0.5 * np.array(X[0]) - 0.25 * np.array(X[1]) + 2.0 * np.array(X[2])
    slopes = -SIGNS / (1 + np.exp(SIGNS * theta))
    for name, column, w in zip(parties.names, X, (0.5, -0.25, 2.0), strict=True):
        by_hand = w - 0.5 * (slopes @ np.array(column) / 2 + 0.1 * w)
        assert parties.roles[name].estimator.w[0] == pytest.approx(by_hand, rel=1e-8)
    asks = parties.of(Ask)
    assert {(sender, len(ask.rows), ask.round) for sender, _, ask in asks} == {("party-2", 0, 1)}, "rows do not travel"
    assert told(parties, Summed) == [("party-2", Summed(1))]
    assert {(name, step.round) for name, step in told(parties, Stepped)} == {(name, 1) for name in parties.names}


def test_a_second_shared_step_by_hand():
    parties = shared()
    for number, initiator in ((1, 0), (2, 2)):
        announce(parties, number, initiator)
        parties.settle()
    weights = np.array([0.5, -0.25, 2.0])
    for _ in range(2):
        theta = weights @ np.array(X)
        slopes = -SIGNS / (1 + np.exp(SIGNS * theta))
        weights = weights - 0.5 * (np.array(X) @ slopes / 2 + 0.1 * weights)
    np.testing.assert_allclose([role.estimator.w[0] for role in parties.roles.values()], weights, rtol=1e-7)


def test_only_the_totals_of_the_named_party_count_and_once():
    parties = shared()
    role, false = parties.roles["party-1"], Totals(0, 1, np.array([5.0, 5.0]))
    parties.tell("party-1", Received("party-3", false))  # before the announcement: kept, but never used
    parties.tell("party-1", Received("server", Round(1, 1)))
    assert not role.state.lane and not role.state.ready
    parties.tell("party-1", Received("party-2", Totals(0, 1, np.array([1.0, 1.0]))))
    parties.tell("party-1", Received("party-2", Totals(0, 1, np.array([9.0, 9.0]))))
    parties.settle()
    assert role.estimator.steps == 1 and role.state.dropped == 1
    np.testing.assert_array_equal(role.state.newest.theta, [1.0, 1.0])


def test_totals_may_come_before_their_announcement():
    parties = shared()
    parties.tell("party-1", Received("party-2", Totals(0, 1, np.array([1.0, 1.0]))))
    parties.tell("party-1", Received("server", Round(1, 1)))
    parties.settle()
    assert parties.roles["party-1"].estimator.steps == 1


def test_a_party_far_behind_leaves_the_oldest_sums_out():
    parties = shared()
    role = parties.roles["party-1"]
    for number in range(1, 5):  # the first is on the lane, and one more waits
        parties.tell("party-1", Received("server", Round(number, 1)))
        parties.tell("party-1", Received("party-2", Totals(0, number, np.full(2, float(number)))))
    parties.settle()
    assert (role.estimator.steps, role.state.dropped, role.state.newest.position) == (2, 2, 4)


@pytest.mark.parametrize(
    ("message", "sender", "why"),
    [
        (Totals(0, 1, np.array([np.nan, 1.0])), "party-2", "finite numbers"),
        (Totals(0, 1, np.zeros(3)), "party-2", "margins of shape"),
        (Totals(0, 1, np.zeros(2), 2**50), "party-2", "margins of"),
        (Ask(5, [0, 1, 2], False, np.zeros(1, np.int32), round=1), "party-2", "not a batch"),
        (Ask(5, [0, 1, 2], True, np.zeros(0, np.int32), round=1), "party-2", "not a batch"),
        (Ask(5, [0, 1, 2], False, np.zeros(0, np.int32), round=2**50), "party-2", "not a batch"),
        (Round(0, 1), "server", "impossible round"),
        (Round(1, 3), "server", "impossible round"),
    ],
)
def test_impossible_messages_are_refused(message, sender, why):
    with pytest.raises(RemoteProtocolError, match=why):
        shared().tell("party-1", Received(sender, message))


def test_a_sum_is_announced_once():
    parties = shared()
    announce(parties, 3, 1)
    with pytest.raises(RemoteProtocolError, match="announces the shared sum 3 after 3"):
        announce(parties, 3, 1)


def test_without_sharing_no_position_stands_for_rows():
    parties = Parties(AfOptions(ahead=0), X, Y)
    parties.begin()
    parties.settle()
    with pytest.raises(RemoteProtocolError, match="not a batch"):
        parties.tell("party-1", Received("party-2", Ask(5, [0, 1, 2], False, np.zeros(0, np.int32), round=1)))


def test_a_state_of_a_release_without_sharing_is_refused():
    role = shared().roles["party-1"]
    saved = role.save()
    del saved["state"]["awaited"]
    with pytest.raises(CheckpointError, match="whose parties shared no sums"):
        role.load(saved)


def test_the_default_is_to_share_unless_a_rate_is_given():
    assert AfOptions().shares(measured=True) and not AfOptions().shares(measured=False)
    assert AfOptions(share=True).shares(measured=False) and not AfOptions(share=False).shares(measured=True)
    assert not SynOptions().shares(measured=True)


# The coordinator.


def test_sums_under_way_are_limited():
    pipeline = Pipeline(1)
    for number in (1, 2):
        assert pipeline.is_due
        pipeline.announce(number, number)
    assert not pipeline.is_due and pipeline.awaited() == {1, 2}
    assert not pipeline.summed(1, 2), "it is another party's"
    assert pipeline.summed(1, 1) and not pipeline.is_due, "no party has stepped on it"
    pipeline.stepped(1)
    assert pipeline.is_due
    pipeline.announce(3, 0)
    assert pipeline.give_up(2) and not pipeline.give_up(2) and pipeline.open == {3: 0}
    pipeline.restart(3)
    assert pipeline.is_due and not pipeline.awaited()


def rounds(said):
    """The initiators of the sums that these messages announce, by number."""
    return {message.number: message.initiator for message in said if isinstance(message, Round)}


def step(number):
    return Stepped(number, 1, 1, 0, [0, 1, 2, 3])


def test_the_quickest_party_sets_the_pace():
    server = coordinator(SHARED)
    (first,) = server.pipeline.open.values()
    assert not rounds(say(server, server.names[first], Summed(1))), "no party has stepped on it"
    assert list(rounds(say(server, "party-3", step(1)))) == [2]
    assert not rounds(say(server, "party-1", step(1))), "a slower party needs no other sum"
    assert not rounds(say(server, "party-3", step(2))), "its totals are not there yet"


def test_a_party_cannot_complete_the_sums_of_others():
    server = coordinator(SHARED)
    (first,) = server.pipeline.open.values()
    other = server.names[(first + 1) % 4]
    assert not rounds(say(server, other, step(1)) + say(server, other, Summed(1)))
    with pytest.raises(RemoteProtocolError, match="has summed 2; the newest is 1"):
        say(server, other, Summed(2))
    assert server.waits_for() == [server.names[first]] and list(server.owes()) == [server.names[first]]


def test_another_party_aggregates_if_a_sum_is_given_up():
    server = coordinator(SHARED)
    (first,) = server.pipeline.open.values()
    child = min(server._children(first, first))
    announced = rounds(say(server, server.names[first], Missing(first, 5, [child], given_up=True)))
    assert list(announced) == [2] and 1 not in server.pipeline.open


def test_other_sums_follow_when_a_party_is_lost():
    server = coordinator(SHARED)
    effects = server.handle(PeerLost("party-4"), 0)
    announced = rounds(effect.message for effect in effects if isinstance(effect, Send))
    assert list(announced) == [2] and announced[2] != 3 and list(server.pipeline.open) == [2]


def test_no_sum_is_announced_at_a_barrier():
    server = coordinator(AsySvrgOptions(ahead=0, l2=0.1, share=True, snapshot_every=0.1))
    (first,) = server.pipeline.open.values()
    say(server, server.names[first], Summed(1))
    said = say(server, "party-3", step(1))
    assert server.state.phase == "holding" and not rounds(said) and not server.pipeline.open


# Runs.


def test_a_slow_party_does_not_stop_the_others():
    data = colonnade.split(colonnade.load("breast-cancer"), parties=4)
    steps, times = {}, {}
    for name in ("asysqn-svrg", "synsqn-svrg"):
        slow = [{"mean_s": 0.02}] * 3 + [{"mean_s": 0.4}]
        run = colonnade.prepare(data, name, clock={"compute": slow, "network": {"latency_s": 0.001}}, epochs=3.0)
        summary = run.execute()
        steps[name], times[name] = summary["method"]["steps"], summary["clock_s"]
    assert times["asysqn-svrg"] < 0.5 * times["synsqn-svrg"]
    assert 0 < 3 * steps["asysqn-svrg"]["party-4"] < steps["asysqn-svrg"]["party-1"]
