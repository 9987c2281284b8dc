"""When each role was busy, in transit, waiting or offline: by hand, against a slow oracle, and in real runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.config.schema import from_dict
from colonnade.drivers.simulator import timeline as module
from colonnade.drivers.simulator.timeline import (
    BINS,
    BUSY,
    FIRST_BIN_NS,
    JOB_ENDED,
    JOB_STARTED,
    MESSAGE_ARRIVED,
    MESSAGE_LEFT,
    TRANSIT,
    WAITING,
    Timeline,
)
from colonnade.experiments.run import prepare

MS = FIRST_BIN_NS
ONE = ["party-1"]


def states(shares: dict[str, Any], role: int = 0) -> list[tuple[float, float, float]]:
    return list(zip(*(shares[state][role] for state in ("busy", "transit", "offline")), strict=True))


def test_by_hand() -> None:
    timeline = Timeline(ONE, [[]])
    timeline.note(JOB_STARTED, 0)
    timeline.note(JOB_ENDED, 3 * MS // 2)
    timeline.note(MESSAGE_LEFT, 3 * MS // 2)
    timeline.note(MESSAGE_ARRIVED, 2 * MS)
    shares = timeline.shares(4 * MS)
    assert states(shares) == [(1, 0, 0), (0.5, 0.5, 0), (0, 0, 0), (0, 0, 0)]
    assert (shares["bin_s"], shares["end_s"], shares["roles"]) == (0.001, 0.004, ONE)


def test_a_job_hides_messages_and_several_messages_are_one_transit() -> None:
    timeline = Timeline(ONE, [[]])
    timeline.note(MESSAGE_LEFT, 0)
    timeline.note(MESSAGE_LEFT, MS)
    timeline.note(JOB_STARTED, 2 * MS)
    timeline.note(MESSAGE_ARRIVED, 2 * MS)
    timeline.note(JOB_ENDED, 3 * MS)
    timeline.note(MESSAGE_ARRIVED, 4 * MS)
    assert states(timeline.shares(5 * MS)) == [(0, 1, 0), (0, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 0)]


def test_a_job_may_start_where_the_last_bin_ends() -> None:
    timeline = Timeline(ONE, [[]])
    timeline.note(JOB_STARTED, BINS * MS)
    timeline.note(JOB_ENDED, BINS * MS)
    timeline.note(JOB_STARTED, BINS * MS)
    shares = timeline.shares(BINS * MS)
    assert len(shares["busy"][0]) == BINS and not any(shares["busy"][0])


def test_an_outage_hides_everything_and_what_is_open_counts_to_the_end() -> None:
    timeline = Timeline(ONE, [[(MS, 2 * MS), (3 * MS, 2**62)]])
    timeline.note(JOB_STARTED, 0)
    assert states(timeline.shares(5 * MS)) == [(1, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 1), (0, 0, 1)]


def test_looking_changes_nothing() -> None:
    timeline = Timeline(ONE, [[]])
    timeline.note(JOB_STARTED, 0)
    assert timeline.shares(3 * MS) == timeline.shares(3 * MS)
    timeline.note(JOB_ENDED, MS)
    assert states(timeline.shares(2 * MS)) == [(1, 0, 0), (0, 0, 0)]


def test_the_last_bin_is_as_long_as_the_run() -> None:
    timeline = Timeline(ONE, [[]])
    timeline.note(JOB_STARTED, 0)
    assert states(timeline.shares(MS + MS // 4)) == [(1, 0, 0), (1, 0, 0)]
    assert states(Timeline(ONE, [[]]).shares(0)) == [(0, 0, 0)]


def test_bins_double_and_never_grow_in_number() -> None:
    timeline = Timeline(ONE, [[]])
    for hour in range(200):
        timeline.note(JOB_STARTED, hour * 3_600_000 * MS)
        timeline.note(JOB_ENDED, (hour * 3_600_000 + 900_000) * MS)
    shares = timeline.shares(200 * 3_600_000 * MS)
    assert BINS // 2 <= len(shares["busy"][0]) <= BINS
    assert np.mean(shares["busy"][0]) == pytest.approx(0.25, rel=0.02)


def test_many_roles_have_fewer_bins() -> None:
    timeline = Timeline([str(number) for number in range(5000)], [[]] * 5000)
    assert timeline.save()["ns"].nbytes == 2 * 5000 * 50 * 8


def test_roles_do_not_mix_and_folding_on_the_way_changes_nothing() -> None:
    generator = np.random.default_rng(0)
    moments = np.sort(generator.integers(0, 2000 * MS, 60_000)).tolist()
    roles = generator.integers(0, 3, 60_000).tolist()
    often, once = (Timeline(["a", "b", "c"], [[]] * 3) for _ in range(2))
    alone, busy = [Timeline(ONE, [[]]) for _ in range(3)], [False] * 3
    for role, now in zip(roles, moments, strict=True):
        what = JOB_ENDED if busy[role] else JOB_STARTED
        busy[role] = not busy[role]
        often.note(4 * role + what, now)
        once.note(4 * role + what, now)
        alone[role].note(what, now)
        often.fold_if_long()
    assert often.shares(2000 * MS) == once.shares(2000 * MS)
    assert once.shares(2000 * MS)["busy"] == [timeline.shares(2000 * MS)["busy"][0] for timeline in alone]


Steps = st.lists(st.tuples(st.sampled_from(["job", "send", "arrive"]), st.integers(0, 90 * MS)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(Steps, st.integers(0, 60))
def test_like_a_slow_oracle_also_when_saved_on_the_way(steps: list[tuple[str, int]], cut: int) -> None:
    outages = [(7 * MS, 50 * MS), (1000 * MS, 1500 * MS)]
    timeline, now, job, flying = Timeline(ONE, [outages]), 0, False, 0
    spans: list[tuple[int, int, int]] = []
    for number, (what, pause) in enumerate(steps):
        if number == cut:
            saved = timeline.save()
            timeline = Timeline(ONE, [outages])
            timeline.load(saved)
        spans.append((BUSY if job else TRANSIT if flying else WAITING, now, now + pause))
        now += pause
        if what == "job":
            timeline.note(JOB_ENDED if job else JOB_STARTED, now)
            job = not job
        elif what == "send":
            timeline.note(MESSAGE_LEFT, now)
            flying += 1
        elif flying:
            timeline.note(MESSAGE_ARRIVED, now)
            flying -= 1
    shares = timeline.shares(now)
    width = round(shares["bin_s"] * 1e9)
    for index, found in enumerate(states(shares)):
        left, right = index * width, min((index + 1) * width, now)
        total = [0, 0, 0]
        for state, start, end in spans:
            total[state] += uncovered(max(start, left), min(end, right), outages)
        offline = right - left - uncovered(left, right, outages)
        expected = (total[BUSY], total[TRANSIT], offline)
        assert found == pytest.approx([value / max(right - left, 1) for value in expected], abs=6e-4)


def uncovered(start: int, end: int, outages: list[tuple[int, int]]) -> int:
    hidden = sum(max(0, min(end, over) - max(start, begin)) for begin, over in outages)
    return max(0, end - start) - hidden if end > start else 0


needs_them = pytest.mark.skipif(module.Bins is None, reason="not compiled here")
Notes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 900 * MS)), max_size=40)


@needs_them
@settings(deadline=None)
@given(Notes, st.integers(0, 3), st.sampled_from([3, 1001]))
def test_compiled_bins_hold_what_numpy_folds(steps: list[tuple[int, int, int]], looks: int, roles: int) -> None:
    """Any notes, also those that no run makes: more ends than starts. 1,001 roles have an odd number of bins."""
    names = [str(role) for role in range(roles)]
    one, two, now = Timeline(names, [[]] * roles), folding(names), 0
    assert one._bins is not None
    for number, (role, kind, pause) in enumerate(steps):
        now += pause
        for timeline in (one, two):
            timeline.note(4 * role + kind, now)
        if number % 9 < looks:
            saved = two.save()
            assert one.shares(now) == two.shares(now)
            one.load(saved)
    assert one.shares(now) == two.shares(now)
    assert all(np.array_equal(found, two.save()[name]) for name, found in one.save().items())


def folding(names: list[str]) -> Timeline:
    """A timeline as without the compiled file."""
    found, module.Bins = module.Bins, None  # type: ignore[misc]
    try:
        return Timeline(names, [[]] * len(names))
    finally:
        module.Bins = found  # type: ignore[misc]


@needs_them
def test_compiled_bins_refuse_what_does_not_fit() -> None:
    ns, tracks = np.zeros((2, 50), np.int64), np.zeros((3, 1), np.int64)
    bins = module.Bins(ns, tracks, MS)
    for note in ((4, 0), (-1, 0), (0, -1), (0, 2**62)):
        with pytest.raises(ValueError, match="no role, or no time"):
            bins.note(*note)
    with pytest.raises(ValueError, match="no role, or no time"):
        bins.note_speed(1, 0, 0, 0)
    with pytest.raises(TypeError, match="has 2 numbers, not 1"):
        bins.note(0)  # type: ignore[call-arg]
    with pytest.raises(OverflowError):
        bins.note(0, 2**70)
    with pytest.raises(ValueError, match="bin of 0 ns"):
        bins.set_width(0)
    assert not ns.any() and bins.width() == MS
    for rows, state, width in ((ns, tracks, 0), (ns.astype(np.int32), tracks, MS), (ns[:, :1].copy(), tracks, MS),
                               (ns, tracks[:2], MS), (ns, tracks.astype(np.int32), MS)):  # fmt: skip
        with pytest.raises(ValueError, match="arrays of int64 that fit"):
            module.Bins(rows, state, width)
    with pytest.raises(ValueError, match="contiguous"):
        module.Bins(ns[:, ::2], tracks, MS)


@needs_them
def test_without_the_compiled_file_a_run_has_the_same_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = TABLES | {"clock": {"compute": {"kind": "exponential", "mean_s": 0.05}}}
    seen = []
    for found in (module.Bins, None):
        monkeypatch.setattr(module, "Bins", found)
        run = prepare(from_dict(calm))
        run.execute()
        assert (run.simulator.timeline._bins is None) is (found is None)
        seen.append(run.timeline())
    assert seen[0] == seen[1]


TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 3},
    "model": {"party": "linear", "embedding": 4},
    "clock": {"faults": [{"party": "party-2", "kind": "crash", "at_s": 1.0, "until_s": 2.0}], "lost_after_s": 0.2},
    "train": {"seconds": 3.0, "batch_size": 16, "eval_every": "1 s"},
}


def test_a_run_leaves_its_timeline(tmp_path: Path) -> None:
    summary = prepare(from_dict(TABLES), out=tmp_path / "run").execute()
    shares = json.loads((tmp_path / "run" / "timeline.json").read_text())
    assert shares["roles"] == ["server", "party-1", "party-2", "party-3"]
    assert shares["end_s"] == summary["clock_s"]
    width = np.full(len(shares["busy"][0]), shares["bin_s"])
    width[-1] = shares["end_s"] - shares["bin_s"] * (len(width) - 1)
    for role, name in enumerate(shares["roles"]):
        busy = np.dot(shares["busy"][role], width)
        assert busy / shares["end_s"] == pytest.approx(summary["utilisation"][name], abs=2e-3)
    assert np.dot(shares["offline"][2], width) == pytest.approx(1.0, abs=2e-3)
    total = np.sum([shares[state] for state in ("busy", "transit", "offline")], axis=0)
    assert total.max() <= 1.002
    staleness = json.loads((tmp_path / "run" / "staleness.json").read_text())
    width, counts = staleness["width"], staleness["counts"]
    middles = width * np.arange(len(counts)) + (width - 1) / 2
    assert 64 < len(counts) <= 128
    assert np.average(middles, weights=counts) == pytest.approx(summary["staleness"]["mean"], abs=width / 2)
