"""`smaller_batches`: the server measures which party is slow and tells it once; that party then uses half batches."""

import numpy as np
import pytest

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, Gradient, Pace
from colonnade.algorithms.vafl.pacing import Paces, Trail, sizes
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import PeerJoined, PeerLost, Received, Send

BATCH = 32


def upload(paces, party, times, rows=BATCH):
    """The last size that the server sends to the party at one of these times (s)."""
    told = [paces.measure(party, rows, round(time * 1e9), BATCH) for time in times]
    return next((size for size in reversed(told) if size is not None), None)


def test_by_hand():
    """The median of the last nine intervals per row; half batches if it is at least twice the fastest."""
    paces = Paces(("a", "b"))
    assert upload(paces, 0, [0]) is None and paces.medians[0] == float("inf"), "no interval"
    assert upload(paces, 0, [1, 50, 51, 52]) is None and paces.medians[0] == 1e9 / BATCH, "one long pause"
    assert upload(paces, 1, [0, 1.9]) is None
    assert upload(paces, 1, [3.9, 5.9, 7.9]) == 16
    assert upload(paces, 1, 10 + np.arange(9) * 1.0, 16) is None, "half of the rows in half of the time"
    assert upload(paces, 1, 30 + np.arange(9) * 0.8, 16) is None, "1.6 times: neither slow nor quick"
    assert upload(paces, 1, 40 + np.arange(9) * 0.5, 16) == BATCH
    assert upload(paces, 1, 50 + np.arange(9) * 10.0) == 16


def test_absence_is_no_pace_and_lost_memory_is_told_again():
    paces = Paces(("a", "b"))
    upload(paces, 0, np.arange(9))
    assert upload(paces, 1, np.arange(9) * 2.0) == 16
    paces.interrupt(1)
    upload(paces, 1, [100.0])
    assert len(paces.intervals[1]) == 8
    paces.forget(1)
    assert upload(paces, 1, [200.0, 202.0]) == 16


def test_sizes():
    assert sizes(64) == [64, 32] and sizes(8) == [8, 4] and sizes(5) == [5, 4] and sizes(3) == [3, 3]


@pytest.mark.parametrize("rows", [64, 37])
def test_every_epoch_has_each_row_once_whatever_the_sizes(rows):
    walk, walked, seen = Walk(rows, 8, 0), 0, []
    turns = iter([8, 8, 4, 4, 4, 8, 4, 4, 4] * 20)
    while walked < 2 * rows:
        batch = walk.rows_from(walked, next(turns))
        walked += len(batch)
        seen.append(batch)
    found = np.concatenate(seen)
    assert sorted(found[:rows]) == sorted(found[rows:]) == list(range(rows))
    np.testing.assert_array_equal(seen[0], walk.batch(0))


@pytest.fixture(params=[1, 2])
def run(request, tiny, regression):
    options = VaflOptions(table="zeros", smaller_batches=True, in_flight=request.param)
    return tiny(options, [np.arange(64.0) / 64] * 2, np.ones(64), [1.0, 1.0], None, regression, batch=BATCH)


def sent(effects, kind):
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def test_a_party_walks_on_in_half_batches(run):
    party, waiting = run.parties[0], []
    effects, uploads = run.start(0), []
    run.told(party, Received("server", Pace(BATCH // 2)))
    while len(uploads) < 6:
        found = sent(effects, Embeddings)
        waiting, uploads = waiting + found, uploads + found
        if party.state.busy:
            _, effects = run.work(party, effects)
        else:
            oldest = waiting.pop(0)
            answer = Gradient(oldest.step, 0, np.zeros((oldest.batch, 1), np.float32))
            effects = run.told(party, Received("server", answer))
    whole = run.server.state.queue.most  # with two batches under way, the second was chosen before
    found, rows = [upload.batch for upload in uploads], np.concatenate([upload.rows for upload in uploads])
    assert found[:whole] == [BATCH] * whole and set(found[whole:]) == {BATCH // 2}
    assert sorted(rows[:64]) == list(range(64)), "each row once"


ROWS = 40


@pytest.fixture
def trail():
    return Trail((Walk(ROWS, BATCH, 0, "batches", 0),), ROWS, [BATCH, BATCH // 2], 2)


def walked(trail, lengths):
    """Take batches of these lengths, as a party sends them; returns their rows."""
    place, taken = 0, []
    for step, length in enumerate(lengths):
        taken.append(trail.walks[0].rows_from(place, length))
        assert trail.allows(0, step, taken[-1], step == 0)
        trail.note(0, step, taken[-1], step == 0)
        place += len(taken[-1])
    return place, taken


def test_the_server_follows_a_party_through_its_walk(trail):
    whole, half = BATCH, BATCH // 2
    place, taken = walked(trail, [whole, half, half, whole, half])
    step, following = len(taken), trail.walks[0].rows_from
    assert not trail.allows(0, step, following(place + 1, half), False), "not where the last one ended"
    assert not trail.allows(0, step, following(place, half)[::-1], False)
    assert not trail.allows(0, step, following(place, half - 1), False), "of no agreed size"
    assert not trail.allows(0, step, taken[-1], False)
    assert trail.allows(0, step, following(place, half), False)
    assert trail.allows(0, step + 1, following(place + half, half), False), "one batch was answered meanwhile"


def test_the_server_finds_a_party_that_returned_to_an_earlier_state(trail):
    _, taken = walked(trail, [BATCH // 2] * 12)
    for step in (11, 10, 3, 0):
        assert trail.allows(0, step, taken[step], True)
    assert not trail.allows(0, 3, trail.walks[0].rows_from(7 * ROWS, BATCH // 2), True), "not in its epochs"
    assert not trail.allows(0, 3, np.arange(BATCH // 2, dtype=np.int32), True)
    trail.note(0, 3, taken[3], True)
    assert trail.allows(0, 4, taken[4], False) and not trail.allows(0, 4, taken[6], False)


def test_a_server_without_memory_finds_the_place_too(trail):
    place, taken = walked(trail, [BATCH, BATCH // 2] * 20)
    empty = Trail(trail.walks, ROWS, trail.sizes, 2)
    assert empty.allows(0, 39, taken[39], True)
    empty.note(0, 39, taken[39], True)
    assert empty.allows(0, 40, trail.walks[0].rows_from(place, BATCH), False)
    assert not empty.allows(0, 40, trail.walks[0].rows_from(place + 8, BATCH), False)
    copy = Trail(trail.walks, ROWS, trail.sizes, 2)
    copy.load(empty.save())
    assert (copy.starts, copy.ends) == (empty.starts, empty.ends)


def test_too_many_places_are_not_searched(trail):
    assert trail.allows(0, 2**40 - 1, np.arange(BATCH, dtype=np.int32), True)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 64, -16])
def test_other_sizes_are_refused(run, rows):
    with pytest.raises(RemoteProtocolError, match="asks for batches of"):
        run.told(run.parties[0], Received("server", Pace(rows)))


def test_only_where_the_options_say_so(tiny, regression):
    run = tiny(VaflOptions(table="zeros"), [[1.0, 2.0]], np.ones(2), [1.0], None, regression)
    with pytest.raises(RemoteProtocolError, match="does not expect a Pace"):
        run.told(run.parties[0], Received("server", Pace(1)))
    with pytest.raises(ConfigError, match="whole batches"):
        VaflOptions(smaller_batches=True, extra_rows=1.0).check(2)


def test_the_slow_party_of_a_run_is_told_once(simulate):
    tables = {
        "protocol": {"name": "swift"},
        "model": {"party": "linear", "embedding": 4},
        "clock": {"compute": [{"mean_s": 0.01}] * 3 + [{"mean_s": 0.1}]},
        "train": {"batch_size": 32, "learning_rate": 0.1, "optimiser": "sgd", "seconds": 3.0},
    }
    run = simulate(tables)
    received = [(role, event) for _, role, event in run.events if isinstance(event, Received)]
    told = [(role, event.message.rows) for role, event in received if isinstance(event.message, Pace)]
    assert told == [("party-4", 16)]
    slow = [event.message for _, event in received if event.sender == "party-4"]
    rows = [message.batch for message in slow if isinstance(message, Embeddings)]
    assert rows[0] == 32 and rows[-1] == 16 and len(rows) > 30
    assert run.server.paces.medians[3] > 5 * run.server.paces.medians[0]


def test_the_server_stops_measuring_while_a_party_is_away(run):
    (first,) = sent(run.start(0), Embeddings)
    run.told(run.server, Received("party-1", first))
    assert run.server.paces.last[0] == 0
    run.told(run.server, PeerLost("party-1"))
    assert run.server.paces.last[0] is None
    run.told(run.server, PeerJoined("party-1", reset=True))
    assert not run.server.paces.known[0]
