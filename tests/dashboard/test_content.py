"""What the page says: of a run that is under way, silent, over, or of another form."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from colonnade.dashboard.content import content, duration, size
from colonnade.dashboard.figures import Figures
from colonnade.dashboard.page import _made
from colonnade.dashboard.source import FolderSource, State, record_of
from colonnade.protocol.errors import ConfigError


@pytest.fixture
def under_way(finished: Path, tmp_path: Path) -> Path:
    """The folder as it was before the end."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in ("summary.json", "timeline.json", "staleness.json"):
        (folder / name).unlink()
    change(folder, lambda live: live["status"].update(state="training", fraction=0.5))
    return folder


def change(folder: Path, how: Any, at: float | None = None) -> None:
    live = json.loads((folder / "live.json").read_text())
    how(live)
    live["changed"] = at or time.time()
    (folder / "live.json").write_text(json.dumps(live))


def shown(folder: Path, **others: Any) -> dict[str, Any]:
    return content(FolderSource(folder).state(), Figures(), **others)


def test_a_finished_run(finished: Path) -> None:
    found = shown(finished)
    assert found["state"] == {"word": "finished", "tone": "calm", "detail": ""}
    assert found["progress"]["fraction"] == 1 and found["progress"]["left"].startswith("took ")
    assert found["over"] and found["about"] == "vafl, 3 parties, simulator, seed 0"
    assert [tile["label"] for tile in found["tiles"]][:3] == ["accuracy", "loss", "updates"]


def test_a_run_under_way_has_the_same_figures(finished: Path, under_way: Path) -> None:
    before, after = shown(under_way), shown(finished)
    assert before["state"]["word"] == "training" and before["progress"]["done"] == "50%"
    assert before["progress"]["left"].startswith("about ")
    assert set(before["figures"]) == set(after["figures"])
    for name in ("metric", "loss", "ages", "bytes"):
        assert before["figures"][name] == after["figures"][name]


def test_a_party_that_is_away_is_shown_with_the_share_of_its_time(under_way: Path) -> None:
    change(under_way, lambda live: live["status"]["parties"][1].update(state="away", last_seen_s=75.0))
    party = shown(under_way)["parties"][1]
    assert (party["name"], party["state"], party["tone"]) == ("party-2", "away for 1 min 15 s", "bad")
    assert sum(party["shares"].values()) == pytest.approx(1, abs=0.01)


def test_a_dead_process_is_told_from_a_slow_one(under_way: Path) -> None:
    now = time.time()
    change(under_way, lambda live: live.update(next_s=1.0), at=now - 40)
    assert shown(under_way, now=now)["state"]["word"] == "no news for 40 s"
    change(under_way, lambda live: live.update(next_s=20.0), at=now - 40)
    assert shown(under_way, now=now)["state"]["word"] == "training"


def test_a_stopped_run_is_not_said_to_be_silent(under_way: Path) -> None:
    change(under_way, lambda live: live["status"].update(state="stopped"), at=time.time() - 1000)
    assert shown(under_way)["state"]["word"] == "stopped"


def test_a_run_that_goes_on_after_its_summary_is_under_way(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    change(folder, lambda live: live["status"].update(state="waiting", waits_for=["party-1"], waited_s=9.0))
    found = shown(folder)
    assert not found["over"] and found["state"]["detail"] == "Waits for party-1, for 9 s."


def test_rows_that_are_added_or_cut_back_are_followed(under_way: Path) -> None:
    source, path = FolderSource(under_way), under_way / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    assert len(source.state().record.rows) == 3
    with path.open("ab") as file:
        file.write(lines[3] + lines[4][:20])
    assert len(source.state().record.rows) == 4, "a line that is not complete is left out"
    with path.open("ab") as file:
        file.write(lines[4][20:])
    assert len(source.state().record.rows) == 5
    other = path.with_name("other")
    other.write_bytes(b"".join(lines[:2]))
    other.replace(path)
    assert len(source.state().record.rows) == 2


def test_the_budget_is_beside_what_was_spent(under_way: Path) -> None:
    spent = {"party-1": {"epsilon": 1.5, "delta": 1e-5, "budget": 4.0}, "party-2": {"epsilon": 2.0, "budget": None}}
    change(under_way, lambda live: live.update(privacy=spent))
    found = shown(under_way)
    assert [party["epsilon"] for party in found["parties"]] == ["1.5 of 4", "2", ""]
    assert found["tiles"][-1] == {"label": "ε", "value": "2", "note": "of 4 (the smallest budget)"}
    assert found["figures"]["privacy"]["data"][0]["x"] == [1.5, 2.0]


def test_a_name_with_brackets_is_no_markup_for_plotly(under_way: Path) -> None:
    def rename(live: dict[str, Any]) -> None:
        live["timeline"]["roles"][1] = "<a href='x'>&%{x}"
        live["summary"]["utilisation"] = {"<b>": 0.5}

    change(under_way, rename)
    text = json.dumps(shown(under_way)["figures"], ensure_ascii=False)
    assert "<a" not in text and "<b>" not in text and "‹a href" in text


def test_another_form_is_said_and_not_raised(under_way: Path) -> None:
    for how in (
        lambda live: live.update(summary={"protocol": "vafl"}),
        lambda live: live.update(events=[{}]),
        lambda live: live.update(timeline={"roles": ["server"]}),
        lambda live: live["status"].update(parties=[3]),
    ):
        before = (under_way / "live.json").read_text()
        change(under_way, how)
        assert "has another form" in _made(FolderSource(under_way), Figures())["trouble"]
        (under_way / "live.json").write_text(before)
    for text in ("", "{", "[]", '{"format": 99}'):
        (under_way / "live.json").write_text(text)
        assert shown(under_way)["state"] == {
            "word": "starting", "tone": "warn", "detail": "the run has not written live.json yet"
        }  # fmt: skip


def test_a_figure_is_drawn_again_only_if_it_changed(finished: Path) -> None:
    state, figures = FolderSource(finished).state(), Figures()
    first = content(state, figures)["figures"]
    again = content(state, figures)["figures"]
    assert all(again[name] is figure for name, figure in first.items())


def test_a_run_without_anything_yet(finished: Path) -> None:
    live = json.loads((finished / "live.json").read_text())
    live["status"]["state"] = "training"
    found = content(State("run", live, record_of(live, []), heard_at=time.time()), Figures())
    assert found["tiles"][0]["value"] == "–" and "metric" not in found["figures"]


def test_folders_that_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        FolderSource(tmp_path)
    (tmp_path / "sync-seed0").mkdir()
    (tmp_path / "sync-seed0" / "config.toml").touch()
    with pytest.raises(ConfigError, match="is a comparison; .*sync-seed0"):
        FolderSource(tmp_path)
    with pytest.raises(ConfigError, match="folder of a party"):
        FolderSource(tmp_path / "sync-seed0")


def test_words_for_people() -> None:
    assert [duration(seconds) for seconds in (0.4, 59, 185, 600, 7800, 200_000)] == [
        "0 s", "59 s", "3 min 5 s", "10 min", "2 h 10 min", "2 days 7 h"
    ]  # fmt: skip
    assert [size(count) for count in (0, 999, 1500, 2.5e9, 3e15)] == ["0 B", "999 B", "1.5 kB", "2.5 GB", "3000.0 TB"]
