"""FedVS with stragglers that share in time: the same bits as without them; and runs with too few parties left."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from colonnade.algorithms.fedvs.messages import (
    Answer,
    Declined,
    Gradient,
    ModelShare,
    ShareModels,
    Sum,
    WhoHolds,
)
from colonnade.algorithms.fedvs.sum_agreement import agree, mutually_prepared
from colonnade.data import load, split
from colonnade.protocol.events import PeerLost, Received

MFEAT = Path(__file__).parents[2] / ".." / "shared" / "data" / "mfeat"
MODEL = {"party": "polynomial:1", "embedding": 16, "server": "linear", "aggregate": "mean"}
CALM = {"compute": {"mean_s": 0.01}}
UNEVEN = {"compute": {"kind": "exponential", "mean_s": 0.05}}
USUAL = {"batch_size": 64, "learning_rate": 0.5, "eval_every": "100 epochs"}


def is_training(message, kind):
    return type(message) is kind and not message.testing


def tables(clock, train, **protocol):
    protocol = {"name": "fedvs", "stale": "refuse", **protocol}
    return {"protocol": protocol, "model": MODEL, "clock": clock, "train": USUAL | train}


def weights(run):
    return [role.summary()["weights"] for role in run.roles.values()]


def outcome(run):
    """Keep the attributes few and small: pytest would print a whole simulation for minutes."""
    parties = [party.summary() for party in run.parties]
    return SimpleNamespace(
        weights=weights(run),
        accuracy=run.records[-1].values["accuracy"],
        decided=len(set(deciding_answers(run))),
        unfinished=[own.get("unfinished") for own in parties],
        left_out=[own["left_out"] for own in parties],
    )


def deciding_answers(run):
    """For each round, the parties whose R answers the server decoded."""
    needed, rounds = run.server.summary()["method"].get("needed"), {}
    for _, role, event in run.events:
        message = getattr(event, "message", None)
        if role == "server" and type(message) is Answer and len(rounds.setdefault(message.round, [])) < needed:
            rounds[message.round].append(event.sender)
    return [frozenset(who) for who in rounds.values()]


def test_stragglers_change_nothing_on_digits(simulate):
    """N = 8, R = 5: three stragglers in every round, different ones each time."""
    train, method = {"epochs": 8, "learning_rate": {"server": 1.0, "party": 6.0}}, {"K": 2, "T": 1}
    data = split(load("digits"), parties=8, scale="minmax", test_fraction=0.4)
    calm, uneven = (outcome(simulate(tables(clock, train, **method), data=data)) for clock in (CALM, UNEVEN))
    assert calm.weights == uneven.weights
    assert calm.decided == 1 and uneven.decided > 20
    assert min(uneven.unfinished) > 20 and max(uneven.left_out) == 0
    plain = outcome(simulate(tables(CALM, train) | {"protocol": {"name": "wait", "K": 2}}, data=data))
    assert uneven.accuracy == pytest.approx(plain.accuracy, abs=0.005) and plain.accuracy > 0.85


@pytest.mark.skipif(not MFEAT.is_dir(), reason="no mfeat data at ../shared/data")
def test_stragglers_change_nothing_on_six_views(simulate):
    """N = 6, R = 3, as in FedVS: one view for each party, of 6 to 240 columns."""
    data = split(load("mfeat", dir=MFEAT), parties=6, how="views", scale="minmax", test_fraction=0.4)
    train, method = {"epochs": 7, "learning_rate": 1.0}, {"K": 1, "T": 1}
    calm, uneven = (outcome(simulate(tables(clock, train, **method), data=data)) for clock in (CALM, UNEVEN))
    assert calm.weights == uneven.weights
    assert uneven.decided > 10 and max(uneven.left_out) == 0
    plain = outcome(simulate(tables(CALM, train) | {"protocol": {"name": "wait", "K": 1}}, data=data))
    assert uneven.accuracy == pytest.approx(plain.accuracy, abs=0.005) and plain.accuracy > 0.85


def test_other_rounding_is_another_run(simulate):
    """Other rounding gives other weights; otherwise the equal bits above would prove little."""
    one, other = (weights(simulate(tables(CALM, {"updates": 5}, l_w=bits), parties=6)) for bits in (12, 11))
    assert one != other


def hand(resolve, by_hand, lost=lambda sender, to, message: False, updates=3, **protocol):
    train = {"updates": updates, "eval_every": 100, "batch_size": 32}
    return by_hand(resolve(tables(CALM, train, **{"K": 1, "T": 1} | protocol), parties=5), lost)


def is_share_of(name, kind=ModelShare):
    return lambda sender, to, message: sender == name and is_training(message, kind)


def test_a_party_that_misses_the_sharing_deadline_is_left_out_of_sum_and_divisor(resolve, by_hand):
    world = hand(resolve, by_hand, is_share_of("party-2"), updates=1).pump()
    assert world.server.state.doing == "sharing" and set(world.server.waits_for()) >= {"party-1", "party-3"}
    world.fire("deadline").pump()
    assert len(world.heard(WhoHolds)) == 5 - len([1 for p in world.parties if p.name == "party-2"])
    summed = world.heard(Sum)[0].summed
    assert summed == [0, 2, 3, 4] and world.heard(Gradient)[0].summed == summed
    steps = {party.name: party.network.steps for party in world.parties}
    assert steps == {"party-1": 1, "party-2": 0, "party-3": 1, "party-4": 1, "party-5": 1}
    assert world.server.summary()["method"]["left_out_of_sums"] == {"party-2": 1}


def test_a_late_party_skips_to_the_newest_round(resolve, by_hand):
    world = hand(resolve, by_hand, is_share_of("party-2"), updates=6).pump()
    for _ in range(3):
        world.fire("deadline").pump()
    assert world.server.state.round == 3 and world.parties[1].training.exchange.key[0] == 3
    world.lost = lambda sender, to, message: False
    world.fire("deadline").pump()
    while not world.finished:
        world.fire("deadline").pump()
    assert world.server.k == 6 and world.parties[1].network.steps == 2, "it was part of the last two rounds"


def test_too_few_answers_are_tried_again_with_fresh_masks_and_names(resolve, by_hand):
    silent = ("party-1", "party-3", "party-4")
    world = hand(
        resolve, by_hand, lambda sender, to, message: sender in silent and is_training(message, Answer), updates=1
    )
    world.pump()
    assert world.server.state.doing == "answering" and world.server.waits_for() == list(silent)
    world.lost = lambda sender, to, message: False
    world.fire("deadline").pump()
    method = world.server.summary()["method"]
    assert world.finished and method["retries"] == 1
    assert method["missing_at_retries"] == dict.fromkeys(silent, 1)
    note = world.server.summary()["note"]
    assert "repeated 1 times" in note and "missing: party-1 (1×), party-3 (1×), party-4 (1×)" in note
    assert "protocol.deadline_s" in note
    shares = [m for s, to, m in world.counted if (s, to) == ("party-1", "party-2") and type(m) is ModelShare]
    first, second = ([m for m in shares if m.round == 0 and m.attempt == attempt] for attempt in (1, 2))
    assert (first[0].model != second[0].model).mean() > 0.99 and (first[0].blinding != second[0].blinding).mean() > 0.99
    assert [message.position for message in world.heard(Sum, "party-2")] == [0, 0], "the same set, the same rows"
    calm = hand(resolve, by_hand, updates=1).pump()
    assert [p.network.digest() for p in calm.parties] == [p.network.digest() for p in world.parties]
    assert calm.server.summary()["note"] == ""


def test_another_set_has_other_rows(resolve, by_hand):
    """The difference of two sums over the same rows would be party-2's embedding."""
    world = hand(resolve, by_hand, lambda sender, to, message: is_training(message, Answer), updates=1).pump()
    world.lost = is_share_of("party-2")
    world.fire("deadline").pump()  # the server tries again
    world.fire("deadline").pump()  # the sharing deadline
    (first, second) = (message for message in world.heard(Sum, "party-1"))
    assert first.summed == [0, 1, 2, 3, 4] and second.summed == [0, 2, 3, 4]
    walk = world.server.walk
    assert not set(walk.rows(first.position)) & set(walk.rows(second.position))


def test_an_evaluator_declines_the_same_rows_over_another_set(resolve, by_hand):
    world = hand(resolve, by_hand, updates=1)
    world.pump(until=lambda: world.heard(Sum))
    party, message = world.parties[0], world.heard(Sum, "party-1")[0]
    party.handle(Received("server", message), 0)
    other = Sum(message.round, message.attempt, message.position, [0, 1, 2, 3], message.versions[:4])
    (effect,) = party.handle(Received("server", other), 0)
    assert type(effect.message) is Declined and party.summary()["declined"] == 1


def test_an_evaluator_with_another_version_of_a_partys_shares_declines(resolve, by_hand):
    world = hand(resolve, by_hand, updates=1)
    world.pump(until=lambda: world.heard(Sum))
    message = world.heard(Sum, "party-1")[0]
    other = Sum(message.round, message.attempt, message.position, message.summed, [1, *message.versions[1:]])
    (effect,) = world.parties[0].handle(Received("server", other), 0)
    assert type(effect.message) is Declined


def test_a_lost_party_is_not_waited_for(resolve, by_hand):
    world = hand(resolve, by_hand, lambda sender, to, message: sender == "party-5" and is_training(message, ModelShare))
    world.pump()
    world.tell("server", PeerLost("party-5"))
    world.pump()
    assert world.finished and world.server.k == 3
    assert [message.among for message in world.heard(ShareModels, "party-1")][-1] == [0, 1, 2, 3]


def test_too_few_present_parties_wait_and_name_the_missing_ones(resolve, by_hand):
    world = hand(resolve, by_hand, lambda sender, to, message: is_training(message, Answer)).pump()
    for name in ("party-1", "party-2", "party-4"):
        world.tell("server", PeerLost(name))
    world.pump()
    assert not world.finished and world.server.waits_for() == ["party-1", "party-2", "party-4"]


def test_test_rows_go_through_the_code_and_change_nothing(simulate):
    often = simulate(tables(CALM, {"updates": 12, "eval_every": 1}), parties=5)
    rarely = simulate(tables(CALM, {"updates": 12, "eval_every": 12}), parties=5)
    one, other, traffic = often.simulator, rarely.simulator, often.simulator.traffic
    same = [weights(often) == weights(rarely), one.now == other.now, one.trace.events == other.trace.events]
    assert same == [True] * 3
    more = traffic.evaluation_bytes / other.traffic.evaluation_bytes
    assert more > 2
    assert traffic.by_kind == other.traffic.by_kind


def test_test_rows_in_chunks(simulate, monkeypatch):
    whole = simulate(tables(CALM, {"updates": 2}), parties=5).records
    for module in ("answered", "testing"):
        monkeypatch.setattr(f"colonnade.algorithms.fedvs.{module}.CHUNK_PLACES", 100)
    parts = simulate(tables(CALM, {"updates": 2}), parties=5).records
    assert [record.loss for record in parts] == pytest.approx([record.loss for record in whole], rel=1e-3)
    assert [record.values for record in parts] == [record.values for record in whole]


def test_a_run_that_can_never_continue_names_the_missing_parties(simulate):
    gone = [{"party": f"party-{n}", "kind": "crash", "at_s": 0.5} for n in (1, 2, 3)]
    run = simulate(tables(CALM | {"faults": gone, "lost_after_s": 0.1}, {"updates": 1000}), parties=5)
    assert run.status == "stalled" and run.server.waits_for() == ["party-1", "party-2", "party-3"]


def test_an_evaluation_without_enough_parties_has_no_value(resolve, by_hand):
    world = hand(
        resolve, by_hand, lambda sender, to, message: isinstance(message, Answer) and message.testing, updates=2
    ).pump()
    for _ in range(20):
        if world.finished:
            break
        world.fire(next(timer for name, timer in world.timers if "evaluation" in timer or timer == "deadline")).pump()
    assert world.finished and world.records[-1].loss != world.records[-1].loss
    assert world.server.k == 2


@pytest.mark.parametrize(
    "reports, found",
    [
        ({0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 2: {0, 1, 2, 3}, 3: {0, 1, 2, 3}}, ([0, 1, 2, 3], [0, 1, 2, 3])),
        ({0: {0, 1, 2}, 1: {0, 1, 2, 3}, 2: {0, 1, 2}, 3: {0, 1, 2, 3}}, ([0, 1, 2], [0, 1, 2, 3])),
        ({0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 2: {0, 1, 2, 3}, 3: {3}}, ([0, 1, 2, 3], [0, 1, 2])),
        ({0: {0, 1, 2, 3}, 1: {1}, 2: {2}, 3: {0, 1, 2, 3}}, None),
    ],
)  # fmt: skip
def test_the_summing_set(reports, found):
    held = {n: frozenset((m, 7) for m in own) for n, own in reports.items()}
    result = agree(held, needed=3, least=3)
    assert (result and ([n for n, _ in result[0]], result[1])) == found


def test_two_versions_of_the_same_data_are_never_summed_together():
    held = {n: frozenset({(0, 7), (1, 7), (2, 7 if n < 3 else 8)}) for n in range(4)}
    assert agree(held, 3, 2) == ([(0, 7), (1, 7), (2, 7)], [0, 1, 2])
    assert agree(held, 4, 2) == ([(0, 7), (1, 7)], [0, 1, 2, 3])


def test_a_party_without_data_does_not_take_part():
    assert mutually_prepared({0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 3]}) == [0, 1, 2]
    assert mutually_prepared({}) == []
