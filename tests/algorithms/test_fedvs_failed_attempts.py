"""The server of FedVS leaves out a party that spoils attempts, whatever the party says about the others."""

from collections.abc import Collection

import msgspec
import numpy as np
import pytest

from colonnade.algorithms import batches
from colonnade.algorithms.fedvs import answered
from colonnade.algorithms.fedvs.answered import free_position
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.failed_attempts import ROUNDS, FailedAttempts
from colonnade.algorithms.fedvs.messages import Gradient, Holding, ModelShare, Prepared, Sum
from colonnade.algorithms.fedvs.sum_agreement import SumAgreement
from colonnade.algorithms.remarks import Remark
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received

NAMES = ("party-1", "party-2", "party-3", "party-4")
MODEL = {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"}


def at_most(count: int):
    """A sum can do without this many parties."""

    def is_enough(left_out: Collection[int]) -> bool:
        return len(left_out) <= count

    return is_enough


def test_one_failed_attempt_leaves_out_no_party():
    failures = FailedAttempts()
    failures.note(3, {0: 2, 1: 1})
    assert failures.leave_out(3, at_most(1)) is None
    assert failures.suspects(3) == [0]


def test_the_party_with_the_highest_count_is_left_out_for_longer_each_time():
    failures, round = FailedAttempts(), 3
    for factor in (1, 2, 4):
        failures.note(round, {0: 1, 2: 2})
        failures.note(round, {1: 1, 2: 2})
        assert failures.leave_out(round, at_most(1)) == 2
        assert failures.suspects(round) == []
        until = round + factor * ROUNDS
        assert failures.left_out(until - 1) == [2]
        assert failures.left_out(until) == []
        round = until + ROUNDS
    assert failures.warnings(NAMES)[0].startswith("left out for some rounds, because attempts failed: party-3 (3×)")


@pytest.mark.parametrize("liar", [0, 1, 2, 3])
def test_a_liar_that_blames_one_party_after_the_other_is_left_out_in_the_end(liar):
    """Of each pair, the server cannot know which one lies. It can do without one party."""
    failures, attempts = FailedAttempts(), 0
    while failures.left_out(0) != [liar]:
        victim = next(n for n in range(4) if n != liar and n not in failures.left_out(0))
        failures.note(0, {liar: 1, victim: 1})
        failures.leave_out(0, at_most(1))
        attempts += 1
        assert attempts <= 8


def test_a_party_that_the_sum_needs_is_not_left_out_but_named():
    failures = FailedAttempts()
    for _ in range(5):
        failures.note(7, {1: 2, 2: 1})
        assert failures.leave_out(7, at_most(0)) is None
    assert failures.suspects(7) == [1]
    assert failures.suspects(8) == []


def test_counts_are_forgotten_after_some_rounds():
    failures = FailedAttempts()
    failures.note(0, {0: 5})
    failures.note(ROUNDS + 1, {1: 1})
    assert failures.leave_out(ROUNDS + 1, at_most(1)) is None
    assert failures.suspects(ROUNDS + 1) == [1]


def test_what_speaks_against_a_party():
    agreement = SumAgreement(False, NAMES, 3, 3)
    agreement.begin((0, 1), [0, 1, 2, 3], 8)
    agreement.ask()
    agreement.report("party-1", Holding(0, 1, [0, 1, 2], [10, 11, 12], 0))
    agreement.report("party-2", Holding(0, 1, [0, 1, 2], [99, 11, 12], 0))
    # 0 lacks 3; 1 lacks 3, and has another share of 0 than 0 itself; 2 and 3 have not reported.
    assert agreement.against() == {0: 2, 1: 2, 2: 1, 3: 3}


def test_the_others_train_on_without_a_party_that_spoils_every_attempt(resolve, by_hand):
    """Party 2 says that it lacks the data of party 3, so that party 3 is left out. Then it keeps its shares back."""

    def lost(sender, to, message):
        return sender == "party-2" and to != "party-1" and isinstance(message, ModelShare) and not message.testing

    protocol = {"name": "fedvs", "K": 1, "T": 1, "stale": "refuse", "min_summed": 4}
    tables = {"protocol": protocol, "model": MODEL, "train": {"updates": 3, "batch_size": 32, "eval_every": 100}}
    world = by_hand(resolve(tables, parties=5), lost).pump()
    world.server.handle(Received("party-2", Prepared([0, 1, 3, 4], 0, 1, -1, -1)), 0)
    spoilt = 0
    while not world.finished and spoilt < 20:
        world.fire("deadline").pump()
        spoilt += 1
    assert world.finished
    assert world.server.k == 3
    assert [message.summed for message in world.heard(Gradient, "party-1")] == [[0, 2, 3, 4]] * 3
    assert world.server.failures.times == {1: 1}
    assert "because attempts failed: party-2 (1×)" in world.server.summary()["warnings"][-1]
    left_out = [record for record in world.records if isinstance(record, Remark)]
    assert left_out == [Remark("party-2", "left out for 20 rounds: attempts at round 1 failed")]


def test_parties_that_wait_for_a_share_do_not_owe_it(resolve, by_hand):
    """All five parties are needed, and party 2 keeps its shares back."""

    def lost(sender, to, message):
        return sender == "party-2" and isinstance(message, ModelShare)

    protocol = {"name": "fedvs", "K": 1, "T": 1, "stale": "refuse", "min_summed": 5}
    world = by_hand(resolve({"protocol": protocol, "model": MODEL}, parties=5), lost).pump()
    for attempt in (2, 3, 4):
        world.fire("deadline").pump()
        assert world.server.owes() == {"party-2": f"its part of sharing for round 0, attempt {attempt}"}


def naive(walk, position, sums, weights, least):
    """As the definition says."""
    for fewest in (least, 0):
        others = [other for other, own in sums if answered.tells_apart(own, weights, fewest)]
        for place in range(position, position + answered.TRIES):
            if not any(np.isin(walk.batch(place), walk.batch(other)).any() for other in others):
                return place
    return None


def test_the_search_for_free_rows_finds_what_its_definition_says(resolve, monkeypatch):
    monkeypatch.setattr(answered, "TRIES", 30)
    training = resolve({"protocol": {"name": "fedvs"}, "model": MODEL, "train": {"batch_size": 256}}).training
    walk, draw = SegmentWalk(training.rows, training, 1), np.random.default_rng(0)
    found = set()
    for _ in range(60):
        sums = [
            (int(draw.integers(0, 3 * walk.per_epoch)), {n: int(draw.integers(0, 2)) for n in range(4)})
            for _ in range(draw.integers(0, 6))
        ]
        weights, position = {n: int(draw.integers(0, 2)) for n in range(4)}, int(draw.integers(0, 2 * walk.per_epoch))
        wanted = naive(walk, position, sums, weights, 3)
        assert free_position(walk, position, sums, weights, 3) == wanted
        found.add(None if wanted is None else min(wanted - position, 2))
    assert {0, 1, 2} <= found


def test_a_sum_far_away_makes_later_ones_no_slower(resolve, monkeypatch):
    """At most one permutation for each epoch of the search, and one for each sum that was answered for."""
    training = resolve({"protocol": {"name": "fedvs"}, "model": MODEL, "train": {"batch_size": 256}}).training
    walk, made = SegmentWalk(training.rows, training, 1), []
    permutation = batches._permutation
    monkeypatch.setattr(batches, "_permutation", lambda *path: made.append(path) or permutation(*path))
    far, weights = 2**31, {0: 0, 1: 0, 2: 0}
    sums = [(far + place * walk.per_epoch, {0: 0, 1: 0}) for place in range(20)]
    assert free_position(walk, 0, sums, weights, 3) is None
    assert len(made) <= 2 * (-(-answered.TRIES // walk.per_epoch) + len(sums) + 1)


def test_a_party_remembers_a_sum_once_and_refuses_too_many(resolve, by_hand, monkeypatch):
    monkeypatch.setattr(answered, "MOST_SUMS", 3)
    protocol = {"name": "fedvs", "K": 1, "T": 1, "stale": "refuse"}
    world = by_hand(resolve({"protocol": protocol, "model": MODEL, "train": {"batch_size": 32}}, parties=5))
    world.pump(until=lambda: world.heard(Sum, "party-1"))
    party, order = world.parties[0], world.heard(Sum, "party-1")[0]
    party.answered.sums = []
    for position in (0, 0, 1, 2):
        party.handle(Received("server", msgspec.structs.replace(order, position=position)), 0)
    assert [position for _, position, _ in party.answered.sums] == [0, 1, 2]
    before = state.pack(party.save())
    with pytest.raises(RemoteProtocolError, match="server: asks for more than .* sums with the same weights"):
        party.handle(Received("server", msgspec.structs.replace(order, position=3)), 0)
    assert state.pack(party.save()) == before
