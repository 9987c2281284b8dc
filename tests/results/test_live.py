"""live.json: its events, its pauses, its timeline, and what cannot be read."""

import json
from pathlib import Path

import numpy as np
import pytest

from colonnade.drivers.simulator.timeline import JOB_ENDED, JOB_STARTED, Timeline
from colonnade.results import live
from colonnade.results.live import MOST_EVENTS, Event, Events, LiveFile, coarser, events_in, read_live


def test_lines_of_the_log_become_events() -> None:
    events = Events(lambda: 3.0)
    for level, what, fields in (
        ("info", "joined", {"peer": "bank"}),
        ("info", "disconnected", {"peer": "bank", "cause": "connection lost"}),
        ("warning", "lost", {"peer": "bank", "silent_s": 10.0}),
        ("info", "joined", {"peer": "bank", "reset": True}),
        ("warning", "refused", {"peer": "shop", "host": "ipv4:10.0.0.1", "cause": "too many calls"}),
        ("warning", "refused", {"host": "ipv4:10.0.0.2", "cause": "no member called"}),
        ("warning", "its answers are wrong", {"party": "shop"}),
        ("warning", "the certificate expires soon", {"days": 3}),
        ("warning", "waiting", {"on": "bank,shop", "absent": "none", "owes": "an upload", "s": 5}),
        ("info", "evaluated", {"update": 40, "value": 0.91234567, "rows": "test", "missing": 0}),
        ("info", "checkpoint", {"number": 2, "update": 50, "clock_s": 9.0}),
        ("debug", "slow handler", {"ms": 9.0}),
        ("info", "note", {"about": "the data"}),
    ):
        events.from_log(level, what, fields)
    assert [(event.kind, event.who, event.text) for event in events.all()] == [
        ("joined", "bank", "connected"),
        ("away", "bank", "connection lost"),
        ("lost", "bank", "counts as lost after 10 s of silence"),
        ("back", "bank", "connected"),
        ("refused", "shop", "refused: too many calls"),
        ("refused", "ipv4:10.0.0.2", "refused: no member called"),
        ("remark", "shop", "its answers are wrong"),
        ("warning", "", "the certificate expires soon: days 3"),
        ("waiting", "bank,shop", "the run has waited 5 s: an upload"),
        ("evaluation", "", "0.9123 on the test rows, update 40"),
        ("checkpoint", "", "checkpoint 2 at update 50"),
    ]
    assert all(event.clock_s == 3.0 and event.at is not None for event in events.all())


def test_a_party_that_is_gone_without_a_line_is_away_once() -> None:
    events = Events(lambda: 1.0)
    events.from_log("info", "joined", {"peer": "bank"})
    events.gone("bank")
    events.gone("bank")
    events.from_log("info", "joined", {"peer": "bank"})
    assert [event.kind for event in events.all()] == ["joined", "away", "back"]


def test_another_members_text_is_short_and_printable() -> None:
    events = Events(lambda: 0.0)
    events.from_log("warning", "refused", {"peer": "a\x1b[31m", "cause": "x\n" * 10_000})
    (event,) = events.all()
    assert event.who == "a\\x1b[31m" and event.text.isprintable() and len(event.text) <= 240


def test_evaluations_do_not_push_out_a_loss() -> None:
    clock = iter(range(100_000))
    events = Events(lambda: float(next(clock)))
    events.add("lost", "gone", "bank")
    for _ in range(10 * MOST_EVENTS):
        events.add("evaluation", "better")
    assert events.all()[0].who == "bank" and len(events.all()) <= MOST_EVENTS
    for _ in range(10 * MOST_EVENTS):
        events.add("refused", "again")
    assert len(events.all([Event("away", "", "shop", 0.5)] * 300)) == MOST_EVENTS


def test_a_restarted_server_keeps_the_events_and_knows_who_left() -> None:
    before = Events(lambda: 1.0)
    before.from_log("warning", "lost", {"peer": "bank", "silent_s": 10})
    saved = {"events": json.loads(json.dumps([{"kind": e.kind, "text": e.text, "who": e.who} for e in before.all()]))}
    again = Events(lambda: 2.0, events_in(saved))
    again.from_log("info", "joined", {"peer": "bank"})
    assert [event.kind for event in again.all()] == ["lost", "back"]
    assert events_in({"events": [{"kind": 3}]}) == events_in({"events": "x"}) == events_in(None) == []


def test_the_file_is_written_again_later_if_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: moment[0])
    monkeypatch.setattr(live.time, "thread_time", lambda: moment[0])
    file = LiveFile(tmp_path)

    def make(takes: float) -> dict[str, int]:
        moment[0] += takes
        return {"status": 1}

    assert file.due
    file.write(lambda: make(0.001))
    assert not file.due and read_live(tmp_path)["next_s"] == 1.0
    moment[0] += 1.0
    assert file.due
    file.write(lambda: make(0.5))
    assert read_live(tmp_path)["next_s"] == 50.0
    moment[0] += 49.0
    assert not file.due
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"], "no temporary file is left"


def test_a_folder_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    file = LiveFile(tmp_path / "gone")
    file.write(lambda: {"status": {}})
    assert file.content["format"] == 1 and read_live(tmp_path / "gone") is None


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    LiveFile(tmp_path).write(lambda: {"privacy": {"a": {"epsilon": float("inf")}}, "value": float("nan")})
    found = read_live(tmp_path)
    assert found["privacy"]["a"]["epsilon"] is None and found["value"] is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', '{"format": 2}', "[" * 100_000])
def test_what_is_not_live_json_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_text(text)
    assert read_live(tmp_path) is None


def test_fewer_bins_keep_the_time_in_each_state() -> None:
    lanes = Timeline(["server", "a"], [[], [(3_000_000, 9_000_000)]])
    for start in range(0, 790_000_000, 2_000_000):
        lanes.note(0 + JOB_STARTED, start)
        lanes.note(0 + JOB_ENDED, start + 500_000)
    now = 790_500_000
    whole = lanes.shares(now)
    few = coarser(whole)
    assert len(few["busy"][0]) <= live.BINS < len(whole["busy"][0])
    assert few["roles"] == whole["roles"] and few["end_s"] == whole["end_s"] == now / 1e9
    for name in ("busy", "offline"):
        assert in_s(few, name) == pytest.approx(in_s(whole, name), abs=0.003)


def in_s(timeline: dict, name: str) -> list[float]:
    count = len(timeline[name][0])
    length = np.minimum(timeline["bin_s"], timeline["end_s"] - timeline["bin_s"] * np.arange(count))
    return (np.array(timeline[name]) @ length).tolist()


def test_an_empty_timeline_stays_empty() -> None:
    few = coarser({"roles": [], "bin_s": 0.001, "end_s": 0.0, "busy": [], "transit": None, "offline": []})
    assert few["roles"] == [] and few["end_s"] == 0
