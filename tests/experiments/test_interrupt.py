"""Ctrl-C in the middle of a race: finished runs are kept, and the resumed race ends the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from colonnade.config.resolve import load_partition
from colonnade.experiments.compare import Entry, compare, contestants, entries_of, race
from colonnade.experiments.interrupt import on_first_interrupt
from colonnade.experiments.run import Standing, reopen

from ..starting import Popen

TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 3},
    "model": {"party": "linear", "embedding": 4},
    "clock": {"compute": {"kind": "exponential", "mean_s": 0.02}},
    "train": {"updates": 40, "batch_size": 16, "eval_every": 10, "checkpoint_every": 10**6, "learning_rate": 0.1},
    "methods": {"long": {"protocol.name": "vafl", "train.updates": 600, "train.eval_every": 6}},
}
LABELS = ["sync", "long", "vafl"]
# The race in a process of its own; the tables come as JSON.
RACE = """
import json, sys
from colonnade.experiments.compare import compare
compare(json.loads(sys.argv[1]), sys.argv[2].split(","), 1, sys.argv[3])
"""


def ends(folder: Path) -> dict[str, Any]:
    """Every run's summary and metrics, without the values that depend on wall time."""
    found = {}
    for path in sorted(folder.glob("*/summary.json")):
        lines = (path.parent / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(path.read_text()), *map(json.loads, lines)]
        found[path.parent.name] = [{key: one[key] for key in one if key != "wall_s"} for one in records]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "race"
    compare(TABLES, LABELS, 1, folder)
    return ends(folder)


def test_a_race_that_is_interrupted_goes_on_to_the_same_end(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    folder = tmp_path / "race"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", RACE, json.dumps(TABLES), ",".join(LABELS), str(folder)]
    process = Popen(command, env=environment, text=True, stderr=subprocess.PIPE)
    metrics = folder / "long-seed0" / "metrics.jsonl"
    for _ in range(12_000):  # two minutes at most
        if process.poll() is not None or (metrics.is_file() and metrics.stat().st_size):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said, said
    assert list(ends(folder)) == ["sync-seed0"], "the first is finished, the second was cut off"
    assert (folder / "long-seed0" / "checkpoint.safetensors").is_file()
    rows = len(metrics.read_text().splitlines())
    assert 0 < rows < 100

    begun: list[float] = []
    compare(TABLES, LABELS, 1, folder, lambda _, entry, at: begun.append(at.clock_s) if at else None)
    assert begun[0] > 0, "the second did not begin again"
    assert ends(folder) == undisturbed
    assert len(ends(folder)) == 3


def test_a_race_in_processes_has_the_same_ends_and_after_ctrl_c_a_checkpoint(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    endless = {"protocol.name": "vafl", "train.updates": 10**7}
    entries = entries_of(contestants(TABLES | {"methods": {"endless": endless}}, ["sync", "endless", "vafl"]), 1)
    folder, ended, under_way = tmp_path / "race", set[str](), set[str]()

    def press(_: list[Entry], entry: Entry, at: Standing | None) -> None:
        (ended if at is None else under_way).add(entry.folder)
        if ended == {"sync-seed0", "vafl-seed0"} and at is not None and at.updates:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        race(entries, folder, press, workers=2)
    assert "endless-seed0" in under_way
    assert ends(folder) == {name: undisturbed[name] for name in ended}
    assert reopen(entries[1].config, folder / "endless-seed0", load_partition).standing.updates > 0


def test_the_first_asks_and_the_second_is_as_usual() -> None:
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        with on_first_interrupt(lambda: asked.append(1)):
            signal.raise_signal(signal.SIGINT)
            assert asked == [1]
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        asked.append(2)
    assert asked == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_ignored_stays_so_and_other_threads_change_nothing() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_first_interrupt(lambda: None):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    def elsewhere() -> None:
        with on_first_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[Any] = []
    thread = Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
