"""timeline.json of a run of processes, by hand: a party's report, the server's view, and how they are joined."""

import msgspec
import numpy as np
import pytest

from colonnade.drivers.processes import timeline
from colonnade.drivers.processes.timeline import Attendance, Lane, Spells, picture
from colonnade.drivers.processes.wire import MAX_BIN_MS, Bye, Kind, LaneBins, open_envelope, read_control, seal_envelope
from colonnade.drivers.simulator.timeline import BINS
from colonnade.protocol import state
from colonnade.protocol.errors import CodecError

MS = 1_000_000


@pytest.fixture
def at(monkeypatch):
    """Set this process's clock, in milliseconds."""
    moment = [0]
    monkeypatch.setattr(timeline, "perf_counter_ns", lambda: moment[0])

    def turn(ms):
        moment[0] = ms * MS
        return moment[0]

    return turn


def test_a_party_notes_its_jobs_by_the_runs_clock_while_it_knows_it(at):
    lane = Lane()
    at(5)
    lane.begin()
    lane.end(at(7))  # not met yet: its time on the run's clock is unknown
    at(10)
    lane.know_clock(2 * MS)  # 8 ms behind this process
    at(11)
    lane.begin()
    lane.end(at(13))
    at(14)
    lane.begin()
    at(15)
    lane.lose_clock()
    at(20)
    lane.know_clock(8 * MS)  # the same job still runs
    lane.end(at(21))
    at(22)
    assert lane.bins() == LaneBins(
        1, [0, 0, 0, 1000, 1000, 0, 1000, 0, 1000, 0], [0, 0, 1000, 1000, 1000, 1000, 1000, 0, 1000, 1000]
    )


def test_a_running_job_counts_as_far_as_it_is(at):
    lane = Lane()
    lane.know_clock(0)
    lane.begin()
    at(3)
    assert lane.bins().busy == [1000] * 3
    lane.end(at(4))
    at(5)
    assert lane.bins().busy == [1000] * 4 + [0]


def test_after_a_kill_nothing_is_known_since_the_checkpoint(at):
    lane = Lane()
    lane.know_clock(0)
    at(1)
    lane.begin()
    at(2)
    saved = state.unpack(state.pack(lane.save()))
    at(4)
    lane.end(at(5))
    again = Lane()
    again.load(saved)
    at(100)
    again.know_clock(7 * MS)
    at(101)
    assert again.bins() == LaneBins(1, [0, 1000, 0, 0, 0, 0, 0, 0], [1000, 1000, 0, 0, 0, 0, 0, 1000])


def test_a_clock_that_goes_back_counts_nothing_twice():
    """A restarted server stands at its last event, which may be a while ago."""
    spells = Spells(1)
    spells.switch(0, True, 0)
    spells.switch(0, False, 6 * MS)
    spells.switch(0, True, 4 * MS)
    shares, width = spells.shares(5 * MS)
    assert width == MS and shares[0, :8].tolist() == [1] * 6 + [0] * 2


def test_a_long_run_is_told_in_few_bins(at):
    lane = Lane()
    lane.know_clock(0)
    for second in range(3600):
        at(1000 * second)
        lane.begin()
        lane.end(at(1000 * second + 250))
    at(3_600_000)
    told = lane.bins()
    assert told.bin_ms == 2**14 and len(told.busy) == -(-3_600_000 // 2**14) <= BINS
    assert sum(told.busy) * 2**14 / 1000 == pytest.approx(900_000, rel=1e-3), "milliseconds"
    assert len(msgspec.msgpack.encode(Bye("", 0.5, None, told))) < 3000


def seen(*rows):
    return np.array(rows, float), 2 * MS


def test_offline_comes_first_and_what_was_not_told_is_not_known():
    """Bins of 2 ms, the last of 1 ms; a reports bins of 1 ms, b bins of 4 ms, c reports nothing."""
    attendance = Attendance(["a", "b", "c"])
    for name, came in (("a", 0), ("b", 4), ("c", 2)):
        attendance.came(name, came * MS)
    attendance.left("c", 6 * MS)
    told = {
        "a": LaneBins(1, [0, 1000, 1000, 1000, 0, 0, 500], [1000] * 7),
        "b": LaneBins(4, [1000, 250], [1000, 1000]),
    }
    own, here = seen([0.5, 0, 0, 0.5], [1, 1, 0, 0.5]), attendance.shares(7 * MS)
    found = picture(("server", "a", "b", "c"), own, here, told, 7 * MS)
    assert (found["bin_s"], found["end_s"], found["transit"]) == (0.002, 0.007, None)
    assert dict(zip(found["roles"], found["busy"], strict=True)) == {
        "server": [0.5, 0, 0, 1],  # half of a whole bin is all of the last, which is half as long
        "a": [0.5, 1, 0, 0.5],
        "b": [0, 0, 0.25, 0.25],  # offline at first, whatever it reports
        "c": [0, 0, 0, 0],
    }
    assert dict(zip(found["roles"], found["offline"], strict=True)) == {
        "server": [0, 0, 0, 0],
        "a": [0, 0, 0, 0],
        "b": [1, 1, 0, 0],
        "c": [1, 0, 0, 1],
    }
    assert dict(zip(found["roles"], found["unknown"], strict=True)) == {
        "server": [0, 0, 1, 0],  # killed before this part was saved
        "a": [0, 0, 0, 0],
        "b": [0, 0, 0, 0],
        "c": [0, 1, 1, 0],
    }


def test_a_party_that_heard_the_end_is_known_until_then():
    told = {"a": LaneBins(2, [0, 1000], [0, 600])}  # its clock is early by more than a bin
    found = picture(("server", "a"), seen([0] * 4, [1] * 4), seen([1] * 4), told, 8 * MS)
    assert found["unknown"][1] == [1, 0, 0, 0] and found["busy"][1] == [0, 1, 0, 0]


BINS_REFUSED = {
    "a share above the whole": (1, [1001], [1000]),
    "a share below nothing": (1, [-1], [0]),
    "more bins than there are": (1, [0] * (BINS + 1), [0] * (BINS + 1)),
    "lists of other lengths": (1, [0, 0], [0]),
    "no power of two": (3, [0], [0]),
    "no length": (0, [0], [0]),
    "a length below nothing": (-2, [0], [0]),
    "bins of years": (2 * MAX_BIN_MS, [0], [0]),
}


@pytest.mark.parametrize("case", BINS_REFUSED)
def test_bins_that_cannot_be_are_refused(case):
    width, busy, known = BINS_REFUSED[case]
    lane = {"bin_ms": width, "busy": busy, "known": known}
    body = msgspec.msgpack.encode({"weights": "", "utilisation": 0.5, "privacy": None, "lane": lane})
    with pytest.raises(CodecError, match="bank: BYE cannot be read"):
        read_control(open_envelope(seal_envelope(Kind.BYE, 0, 0, body), "bank"), Kind.BYE, Bye, "bank")


def test_the_widest_bins_cost_no_memory():
    """A party may report bins of days, or only one bin: the picture uses the server's."""
    for told in (LaneBins(MAX_BIN_MS, [500] * BINS, [1000] * BINS), LaneBins(1, [500], [1000])):
        found = picture(("server", "a"), seen([0] * 4, [1] * 4), seen([1] * 4), {"a": told}, 8 * MS)
        assert np.shape(found["busy"]) == np.shape(found["unknown"]) == (2, 4)
