"""FedVS that continues with a slow party's last share: exact for the shared weights, blinded by T + 1."""

import itertools
from collections import Counter

import numpy as np
import pytest

from colonnade.algorithms.fedvs.answered import free_position, tells_apart
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.blinders import rows_to_blind, total_blinding
from colonnade.algorithms.fedvs.coding import average_in_plain, blinding_of
from colonnade.algorithms.fedvs.messages import Answer, Declined, Gradient, ModelShare, ShareModels, Sum
from colonnade.algorithms.fedvs.pace import Pace
from colonnade.algorithms.fedvs.sharer import Sharer
from colonnade.privacy import field
from colonnade.privacy.sharing import LagrangeCode, _alpha
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received

MODEL = {"party": "polynomial:1", "embedding": 8, "server": "mlp:8", "aggregate": "mean"}
SLOW = {"compute": [{"mean_s": 0.1}, *[{"mean_s": 0.01}] * 3]}


def tables(name="fedvs", clock=SLOW, train=None, **protocol):
    usual = {"batch_size": 64, "learning_rate": 0.5, "eval_every": 100, "updates": 30}
    return {"protocol": {"name": name, **protocol}, "model": MODEL, "clock": clock, "train": usual | (train or {})}


def rounds_of(run):
    """Every round's gradient, and the time when the second party received it."""
    return [(time, event.message) for time, role, event in run.events if role == "party-2" and is_gradient(event)]


def is_gradient(event):
    return isinstance(getattr(event, "message", None), Gradient)


def interval_s(run):
    times = [time for time, _ in rounds_of(run)]
    return (times[-1] - times[4]) / (len(times) - 5) / 1e9


@pytest.fixture
def shared(monkeypatch):
    """Every model shared in training: coded columns, weights and rounding by party and number."""
    found, share = {}, Sharer.share_model

    def recording(self, job):
        if not job.testing:
            found[id(self), job.trained] = self._train, job.weights, job.rounding
        return share(self, job)

    monkeypatch.setattr(Sharer, "share_model", recording)
    return found


@pytest.fixture
def decoded(monkeypatch):
    """The average embeddings of every round."""
    from colonnade.algorithms.fedvs import server

    found, average = [], server.average

    def recording(values, count, bits):
        made = average(values, count, bits)
        found.extend([made] if made.ndim == 2 else [])  # of test rows: one array for each segment
        return made

    monkeypatch.setattr(server, "average", recording)
    return found


def test_every_sum_is_that_of_the_weights_that_were_shared(simulate, shared, decoded):
    """Sums are exact to the last bit, with new and with old shares. A run takes half of the time that waiting takes."""
    run = simulate(tables())
    gradients = [message for _, message in rounds_of(run)]
    sharers, bits = [party.sharer for party in run.parties], (run.server.options.l_x, run.server.options.l_w)
    for message, values in zip(gradients, decoded, strict=False):
        rows = run.server.walk.rows(message.position)
        parts = [shared[id(sharers[n]), which] for n, which in zip(message.summed, message.trained, strict=True)]
        plain = average_in_plain([(x[rows], weights, seed) for x, weights, seed in parts], *bits)
        assert np.array_equal(values, plain)
    assert len(decoded) == 30 and all(message.summed == [0, 1, 2, 3] for message in gradients)
    used = [message.trained[0] for message in gradients]
    steps = [party.network.steps for party in run.parties]
    assert 5 < len(set(used)) < 20 and used == sorted(used), (
        "the server reuses the slow party's shares and never goes back to older ones"
    )
    assert all(message.trained[1:] == [message.round] * 3 for message in gradients), (
        "the other parties' shares are always new"
    )
    assert min(steps[1:]) >= 29 and abs(steps[0] - len(set(used))) <= 1
    assert run.server.summary()["method"]["old_shares_summed"] > 10
    waiting = simulate(tables("wait"))
    assert interval_s(run) < 0.5 * interval_s(waiting)


def test_with_equal_speeds_nothing_is_old(simulate):
    run = simulate(tables(clock={}, train={"updates": 8}))
    assert all(message.trained == [message.round] * 4 for _, message in rounds_of(run))


def test_a_step_is_as_long_as_those_that_were_missed(resolve):
    party = resolve(tables(catch_up=3)).roles()[1]
    found = []
    for trained, stepping in ((0, 0), (1, 2), (3, 5), (6, 40)):
        party.lasting.trained, party.lasting.stepping = trained, stepping
        found.append(party.lasting.missed())
    assert found == [1, 2, 3, 3]


def test_a_share_is_not_summed_more_often_than_allowed(simulate):
    slower = {"compute": [{"mean_s": 1.0}, *[{"mean_s": 0.01}] * 3]}
    for most in (2, 6):
        run = simulate(tables(clock=slower, max_stale=most, train={"updates": 20}))
        counts = Counter(message.trained[0] for _, message in rounds_of(run))
        assert max(counts.values()) == most + 1


@pytest.mark.parametrize("stale", ["allow", "refuse"])
def test_a_deadline_that_is_too_short_grows_and_that_is_said(simulate, stale):
    run = simulate(tables(deadline_s=0.001, stale=stale, train={"updates": 3}))
    own = run.server.summary()
    assert run.status == "finished" and run.server.k == 3
    assert own["method"]["deadline_s"] > 0.03 and "it has grown from 0.001 s to " in own["note"]


# --- blinding


@pytest.mark.parametrize("count, places, colluders", [(3, 32, 1), (13, 13, 1), (5, 64, 2), (2, 7, 1), (4, 2, 2)])
def test_every_place_is_blinded_by_one_more_than_collude(count, places, colluders):
    blinders = list(range(1, 2 * count, 2))
    rows = [rows_to_blind(blinders, n, places, colluders) for n in blinders]
    covered = Counter(np.concatenate(rows).tolist())
    assert covered == dict.fromkeys(range(places), min(colluders + 1, count))
    assert all(len(set(own.tolist())) == len(own) for own in rows)


def test_blinding_adds_nothing_where_sums_are_read():
    code, blinders, places = LagrangeCode(2, 1, 6), [0, 2, 3, 5], 9
    made = {}
    for n in blinders:
        rows = len(rows_to_blind(blinders, n, places, code.colluders))
        made[n] = blinding_of(rows, 3, code, bytes([n]) * 32)
    totals = [total_blinding({n: own[to] for n, own in made.items()}, places, 3, 1) for to in range(code.parties)]
    for who in itertools.combinations(range(code.parties), code.needed):
        assert not code.decode([totals[n] for n in who], who).any()


@pytest.mark.parametrize("segments, colluders, parties", [(1, 1, 4), (2, 1, 6), (1, 2, 5), (2, 2, 8)])
def test_one_polynomial_blinds_all_that_colluders_do_not_know(segments, colluders, parties):
    """Given its values at T points, a blinding polynomial is uniform among those that vanish at β_1 … β_K.

    These have R−K dimensions. Any T parties see T independent ones, which leaves R−K−T = K+T−1: as many as ψ has
    coefficients beside what is decoded and what the colluders compute themselves.
    """
    code = LagrangeCode(segments, colluders, parties)
    basis = np.eye(code.blinding_terms, dtype=np.uint32)[:, :, None]
    values = [code.blinding(basis)[n, :, 0].tolist() for n in range(parties)]  # a row for each party's point
    for who in itertools.combinations(range(parties), code.needed):
        assert rank([values[n] for n in who]) == code.needed - segments
    for who in itertools.combinations(range(parties), colluders):
        assert rank([values[n] for n in who]) == colluders
    assert code.needed - segments - colluders == segments + colluders - 1
    assert not set(_alpha(segments + colluders, range(parties))) & set(range(1, segments + 1))


def rank(rows):
    """Gauss in the field."""
    rows, found = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((row for row in rows[found:] if row[column] % field.P), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        rows.insert(found, pivot)
        scale = pow(pivot[column], -1, field.P)
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] * scale
            rows[i] = [(a - factor * b) % field.P for a, b in zip(rows[i], pivot, strict=True)]
        found += 1
    return found


def test_blinding_is_fresh_in_every_exchange_and_the_model_is_not_sent_twice(simulate):
    run = simulate(tables(train={"updates": 6}))
    shares = [
        event.message
        for _, role, event in run.events
        if role == "party-4" and isinstance(getattr(event, "message", None), ModelShare) and not event.message.testing
        if event.sender in ("party-1", "party-2")
    ]
    blindings = [share.blinding for share in shares if share.mark]
    assert len(blindings) >= 6 and len({share.mark for share in shares if share.mark}) == len(blindings)
    for one, other in itertools.pairwise(blindings):
        assert one.shape != other.shape or (one != other).mean() > 0.9
    models = [share.version for share in shares if len(share.model)]
    assert len(models) == len(set(models))


# --- what the server can subtract


@pytest.mark.parametrize(
    "other, apart",
    [
        ({0: 5, 1: 5, 2: 5, 3: 5}, False),  # the same sum
        ({0: 6, 1: 6, 2: 6, 3: 6}, False),  # the difference is of all four
        ({0: 5, 1: 6, 2: 6, 3: 6}, False),  # of three
        ({0: 5, 1: 5, 2: 6, 3: 6}, True),  # of two
        ({0: 5, 1: 5, 2: 5, 3: 6}, True),  # of one party
        ({0: 5, 1: 5, 2: 5}, True),  # an embedding
        ({0: 6, 1: 6, 2: 5}, True),
        ({0: 6, 1: 6, 2: 6}, False),
    ],
)
def test_which_sums_over_the_same_rows_are_refused(other, apart):
    before = {0: 5, 1: 5, 2: 5, 3: 5}
    assert tells_apart(before, other, 3) is apart and tells_apart(other, before, 3) is apart


def test_no_combination_of_allowed_sums_is_of_fewer_parties_than_one_sum():
    """All sequences of four sums over four parties; between two sums each party steps or does not."""
    least, parties, tried = 3, 4, 0
    moves = list(itertools.product((0, 1), repeat=parties))
    for path in itertools.product(moves, repeat=3):
        sums = [dict.fromkeys(range(parties), 0)]
        for move in path:
            sums.append({n: sums[-1][n] + move[n] for n in range(parties)})
        sums = [one for i, one in enumerate(sums) if one not in sums[:i]]
        if any(tells_apart(one, other, least) for one, other in itertools.combinations(sums, 2)):
            continue
        tried += 1
        for few in itertools.combinations(range(parties), least - 1):
            hidden = [n for n in range(parties) if n not in few]  # if these cancel out, nothing is left
            unknown = sorted({(n, one[n]) for one in sums for n in hidden})
            matrix = [[int(one[n] == which) for n, which in unknown] for one in sums]
            assert rank(matrix) == len(sums)
    assert tried > 50


def test_where_all_rows_conflict_only_another_set_is_refused(resolve, monkeypatch):
    monkeypatch.setattr("colonnade.algorithms.fedvs.answered.TRIES", 20)
    training = resolve(tables(train={"batch_size": 512})).training
    walk = SegmentWalk(training.rows, training, 1)
    used = [(position, {0: 0, 1: 0, 2: 0}) for position in range(walk.per_epoch)]
    assert free_position(walk, walk.per_epoch, used[:1], {0: 0, 1: 0, 2: 1}, 3) == walk.per_epoch
    assert free_position(walk, walk.per_epoch, used, {0: 1, 1: 1, 2: 1}, 3) == walk.per_epoch
    assert free_position(walk, walk.per_epoch, used, {0: 0, 1: 0}, 2) is None


@pytest.fixture
def world(resolve, by_hand):
    """In the middle of the first round."""
    made = by_hand(resolve(tables(clock={}, train={"batch_size": 32, "updates": 2}), parties=5))
    return made.pump(until=lambda: made.heard(Sum))


def test_an_evaluator_declines_the_same_rows_over_another_set(world):
    party, message = world.parties[0], world.heard(Sum, "party-1")[0]
    party.handle(Received("server", message), 0)
    party.training.exchange.awaited = [0, 1]
    other = Sum(message.round, message.attempt, message.position, [0, 1, 2, 3], message.versions[:4])
    effects = party.handle(Received("server", other), 0)
    assert [type(effect.message) for effect in effects if hasattr(effect, "message")] == [Declined]


def test_orders_that_would_leave_places_without_blinding(world):
    party, message = world.parties[0], world.heard(Sum, "party-1")[0]
    round, attempt = party.training.exchange.key
    everyone = [0, 1, 2, 3, 4]
    versions = message.versions[:4]
    wrong = [
        (ShareModels(round, attempt + 1, everyone, 32, [0], 0), "an impossible exchange"),
        (ShareModels(round, attempt + 1, everyone, 32, [], 0), "an impossible exchange"),
        (ShareModels(round, attempt + 1, [0, 1, 2, 3], 32, [0, 4], 0), "an impossible exchange"),
        (Sum(round, attempt, message.position, [0, 1, 2, 3], versions), "must include the parties that blind"),
    ]
    for order, words in wrong:
        with pytest.raises(RemoteProtocolError, match=f"server: .*{words}"):
            party.handle(Received("server", order), 0)
    few = ModelShare(round, attempt, 1, np.zeros((0, 8), np.uint32), np.zeros((3, 8), np.uint32), 0, 7)
    before = dict(party.training.exchange.named)
    party.handle(Received("party-2", few), 0)
    assert party.training.exchange.named == before, "dropped: the server may have told party-2 another number of places"


def test_a_model_that_is_lost_is_asked_for(resolve, by_hand):
    """party-1 forgets party-2's model in the first round and receives it again before the sum."""
    made = by_hand(resolve(tables(clock={}, train={"batch_size": 32, "updates": 3}), parties=5))
    made.pump(until=lambda: made.heard(Gradient))
    del made.parties[0].training.exchange.models[1], made.parties[0].training.exchange.versions[1]
    made.pump()
    assert made.finished == "done" and [party.network.steps for party in made.parties] == [3] * 5
    assert {len(message.summed) for message in made.heard(Answer)} == {5}


def test_which_parties_a_round_waits_for():
    pace = Pace(3, 4)
    pace.begin(range(5), 0, 100)
    for n, took in enumerate((10, 12, 15, 29, 31)):
        pace.shared(n, 0, 100 + took)
    assert pace.prompt(range(5)) == [0, 1, 2, 3], "twice the third's 15 are 30"
    assert pace.prompt([0, 3, 4]) == [0, 3, 4], "R at least"
    pace.gradient(dict.fromkeys(range(5), 0), 0, 200)
    pace.gradient({4: 0}, 1, 300)
    assert pace.too_old(range(5), 4) == [] and pace.too_old(range(5), 5) == [0, 1, 2, 3, 4]
    pace.shared(4, 1, 212)
    assert pace.prompt(range(5)) == [0, 1, 2, 4], "its last time counts, and twice the third's 12 are 24"
    assert pace.too_old([4], 9) == []
