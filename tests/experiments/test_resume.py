"""Killed runs that continue: they end the same as without the kill; a run that cannot continue says why."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import apply_overrides, from_dict
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.protocol.errors import CheckpointError
from colonnade.results.folder import RunFolder

from ..starting import Popen, run

TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 3},
    "model": {"party": "linear", "embedding": 4},
    "protocol": {"name": "vafl", "max_delay": 20},
    "clock": {"compute": {"kind": "exponential", "mean_s": 0.02}},
    "train": {"updates": 400, "batch_size": 16, "eval_every": 100, "checkpoint_every": 50, "seed": 4},
}
TOML = """
[data]
source = "digits"
parties = 3
[model]
party = "linear"
embedding = 4
[protocol]
name = "vafl"
max_delay = 20
[clock]
compute = {kind = "exponential", mean_s = 0.02}
[train]
updates = 1000
batch_size = 16
eval_every = 100
checkpoint_every = 50
seed = 4
"""
CHECKPOINT, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


def config(**overrides: Any) -> Any:
    return from_dict(apply_overrides(TABLES, {key.replace("__", "."): value for key, value in overrides.items()}))


def result(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Summary and metrics without the values that depend on wall time, and the data of the pictures."""
    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for entry in (summary, *rows):
        del entry["wall_s"]
    return summary, rows, [(folder / name).read_text() for name in ("timeline.json", "staleness.json")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    summary = prepare(config(), out=folder).execute()
    assert (summary["status"], summary["updates"]) == ("finished", 400)
    return folder


@pytest.fixture(scope="module")
def cut_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cut"
    cut_off(folder, 2)
    return folder


@pytest.fixture
def folder(tmp_path: Path, cut_run: Path) -> Path:
    """The folder of a run that was interrupted."""
    return Path(shutil.copytree(cut_run, tmp_path / "run"))


class Killed(Exception):
    """Raised instead of a SIGKILL."""


def cut_off(folder: Path, checkpoints: int, **overrides: Any) -> Run:
    """A run that stops, without a message, after this many checkpoints and some more events."""
    run = prepare(config(**overrides), out=folder)
    seen: list[int] = [0]

    def kill(current: Run) -> None:
        file = folder / CHECKPOINT
        if file.exists() and file.stat().st_ino != seen[-1]:
            seen.append(file.stat().st_ino)
        if len(seen) > checkpoints:
            raise Killed

    with pytest.raises(Killed):
        run.execute(kill)
    assert not (folder / "summary.json").exists()
    return run


def command(*arguments: object) -> list[str]:
    start = "import sys; from colonnade.cli.main import main; sys.argv[0] = 'colonnade'; main()"
    return [sys.executable, "-c", start, *map(str, arguments)]


ENVIRONMENT = {**os.environ, "COLUMNS": "1000", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def wait_for(process: subprocess.Popen[str], file: Path) -> None:
    """Wait until the file is there or the process has ended, for at most two minutes."""
    for _ in range(12_000):
        if file.exists() or process.poll() is not None:
            return
        time.sleep(0.01)
    raise AssertionError(f"{file.name} did not appear")


def test_killed_and_resumed_ends_like_never_killed(tmp_path: Path) -> None:
    """A longer run than the others: the signal must reach the process before it has finished."""
    (tmp_path / "run.toml").write_text(TOML)
    folder, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    prepare(config(train__updates=1000), out=undisturbed).execute()
    process = Popen(
        command("run", tmp_path / "run.toml", "--out", folder),
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(process, folder / CHECKPOINT)
    finally:
        process.send_signal(signal.SIGKILL)
        output = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, output
    assert (folder / CHECKPOINT).exists()
    assert not (folder / "summary.json").exists()
    killed_rows = (folder / "metrics.jsonl").read_text().splitlines()
    assert 0 < len(killed_rows) < len(result(undisturbed)[1])

    again = run(
        command("run", "--resume", folder), env=ENVIRONMENT, text=True, capture_output=True, timeout=300, check=False
    )
    assert again.returncode == 0, again.stderr
    assert result(folder) == result(undisturbed)


@pytest.mark.parametrize("checkpoints", [4])
def test_cut_off_anywhere(tmp_path: Path, undisturbed: Path, checkpoints: int) -> None:
    cut_off(tmp_path / "run", checkpoints)
    resumed = reopen(config(), tmp_path / "run")
    assert resumed.simulator.trace.events > 0
    resumed.execute()
    assert result(tmp_path / "run") == result(undisturbed)


def test_cut_off_twice(folder: Path, undisturbed: Path) -> None:
    before = (folder / CHECKPOINT).read_bytes()

    def kill(current: Run) -> None:
        if (folder / CHECKPOINT).read_bytes() != before:
            raise Killed

    with pytest.raises(Killed):
        reopen(config(), folder).execute(kill)
    reopen(config(), folder).execute()
    assert result(folder) == result(undisturbed)


def test_cut_off_before_the_first_checkpoint(tmp_path: Path, undisturbed: Path) -> None:
    run = prepare(config(), out=tmp_path / "run")
    run.simulator.advance(100)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    assert run.rows
    reopen(config(), tmp_path / "run").execute()
    assert result(tmp_path / "run") == result(undisturbed)


@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_the_optimisers_memory_is_resumed_too(tmp_path: Path, optimiser: str) -> None:
    settings = {"train__optimiser": optimiser, "train__learning_rate": 0.01, "train__updates": 250}
    prepare(config(**settings), out=tmp_path / "whole").execute()
    cut_off(tmp_path / "cut", 1, **settings)
    reopen(config(**settings), tmp_path / "cut").execute()
    assert result(tmp_path / "cut") == result(tmp_path / "whole")


@pytest.mark.parametrize(
    "settings",
    [
        {"protocol": {"name": "sync"}, "train__updates": 150},
        {"protocol": {"name": "t-sync", "t": 2, "pause_s": 0.05}, "train__updates": 250},
        {"protocol": {"name": "centralised"}, "train__updates": 1500},
        {
            "train__updates": None,
            "train__seconds": 3.0,
            "train__checkpoint_every": "1 s",
            "train__eval_every": "0.5 s",
        },
        {"train__trace": "full", "train__updates": 250},
        {
            "clock__faults": [
                {"party": "party-1", "kind": "crash", "at_s": 0.5, "until_s": 3.0},
                {"party": "party-2", "kind": "loss", "rate": 0.1},
                {"party": "party-3", "kind": "duplicate", "rate": 0.1},
            ],
            "train__updates": 300,
        },
    ],
    ids=["sync", "t-sync", "centralised", "seconds", "full trace", "faults"],
)
def test_every_kind_of_run_is_resumed(tmp_path: Path, settings: dict[str, Any]) -> None:
    prepare(config(**settings), out=tmp_path / "whole").execute()
    cut_off(tmp_path / "cut", 1, **settings)
    reopen(config(**settings), tmp_path / "cut").execute()
    assert result(tmp_path / "cut") == result(tmp_path / "whole")


def test_a_finished_run_resumed_is_the_same_run(tmp_path: Path, undisturbed: Path) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    reopen(config(), folder).execute()
    assert result(folder) == result(undisturbed)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"train__seed": 5}, "train.seed: 4 there, 5 here"),
        ({"protocol__max_delay": 3}, "protocol.max_delay: 20 there, 3 here"),
        ({"clock__compute": {"mean_s": 0.02}}, "clock.compute.kind: 'exponential' there, 'fixed' here"),
    ],
)
def test_another_config_is_refused_by_its_key(folder: Path, overrides: dict[str, Any], named: str) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        reopen(config(**overrides), folder)
    assert named in str(caught.value)
    assert str(folder) in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="this folder holds no run"):
            reopen(config(), folder)


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_truncated_checkpoints_are_refused_clearly(folder: Path, keep: int) -> None:
    rows = (folder / "metrics.jsonl").read_bytes()
    for name in (CHECKPOINT, BEFORE):
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged.*no earlier checkpoint can be used: start a new run") as caught:
        reopen(config(), folder)
    assert str(folder / CHECKPOINT) in str(caught.value) and str(folder / BEFORE) in str(caught.value)
    assert (folder / "metrics.jsonl").read_bytes() == rows  # no record was discarded


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_the_checkpoint_costs_only_the_time_since_the_one_before(
    folder: Path, undisturbed: Path
) -> None:
    flip(folder / CHECKPOINT, -1)
    reopen(config(), folder).execute()
    summary, *rest = result(folder)
    assert f"{folder / CHECKPOINT}: " in summary["note"] and "damaged" in summary["note"]
    calm, *calm_rest = result(undisturbed)
    assert (summary | {"note": ""}, *rest) == (calm, *calm_rest)


def test_a_flipped_bit_in_the_only_checkpoint_is_refused(folder: Path) -> None:
    (folder / BEFORE).unlink()
    flip(folder / CHECKPOINT, 5000)
    with pytest.raises(CheckpointError, match="damaged: the checksum of its .* bytes is wrong; no earlier checkpoint"):
        reopen(config(), folder)


def test_killed_while_a_checkpoint_was_written(folder: Path, undisturbed: Path) -> None:
    (folder / f".{CHECKPOINT}.tmp").write_bytes((folder / CHECKPOINT).read_bytes()[:777])
    reopen(config(), folder).execute()
    assert result(folder) == result(undisturbed)


def test_killed_while_a_row_was_written(folder: Path, undisturbed: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"clock_s": 3.2, "wal')
    reopen(config(), folder).execute()
    assert result(folder) == result(undisturbed)


def test_killed_before_its_config_was_written_it_has_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has a config can be resumed, so the config comes last."""
    folder = tmp_path / "run"

    def killed(self: RunFolder, name: str, chunks: object) -> None:
        assert name == "config.toml"
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(config(), out=folder)
    assert [file.name for file in folder.iterdir()] == ["metrics.jsonl"]


def test_a_checkpoint_that_takes_long_is_followed_by_a_longer_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run with a table of many gigabytes would do little else than write it."""
    clock_s, saved_at = 0.0, []

    def counter() -> float:
        nonlocal clock_s
        clock_s += 1.0
        return clock_s

    prepared = prepare(config(train__checkpoint_every="1000 epochs"), out=tmp_path / "run")
    assert prepared.folder is not None
    save = prepared.folder.save_checkpoint

    def slow_save(content: dict[str, Any]) -> None:
        nonlocal clock_s
        save(content)
        clock_s += 50.0
        saved_at.append(clock_s)

    monkeypatch.setattr("colonnade.experiments.run.time.perf_counter", counter)
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 5)
    monkeypatch.setattr(prepared.folder, "save_checkpoint", slow_save)
    prepared.execute()
    pauses = [after - before for before, after in pairwise(saved_at)]
    assert pauses
    assert min(pauses) > 20 * 50.0
