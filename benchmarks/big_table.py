"""A table of ten million rows: memory of a server, and of ten parties, that are processes of their own.

    python benchmarks/big_table.py [--rows 10000000] [--seconds 120] [--table file] [--dtype float16] [--out DIR]

10 parties of 4 columns each (normal numbers; the label is a linear rule over all of them), linear models of width 16,
`vafl` with `table = "zeros"`, batches of 256, over mutual TLS on this machine (`up`). The resident memory of every
process is read four times a second. The limit for the server:

    1.2 × touched part of the table + 500 MB

where the touched part is computed in two ways: `written` is the blocks that a party wrote × their bytes, `pages` what
the file occupies on disk, since one row touches its whole page. The first is the smaller one and counts.
With `--table memory` the table is an array, and a checkpoint copies it.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from colonnade.config.schema import from_dict
from colonnade.data import Encoder, Partition, Scaler, Task
from colonnade.deployment.up import FederationUp, prepare_up

PARTIES, COLUMNS, WIDTH, BATCH, TEST_ROWS = 10, 4, 16, 256, 10_000
MB = 1e6


def partition(rows: int, bar: Progress) -> Partition:
    """Made party by party, without another copy."""
    train, test, score = [], [], np.zeros(rows + TEST_ROWS, np.float32)
    task = bar.add_task("making columns", total=PARTIES)
    for party in range(PARTIES):
        draw = np.random.default_rng(party)
        x = draw.standard_normal((rows + TEST_ROWS, COLUMNS), np.float32)
        score += x @ draw.standard_normal(COLUMNS).astype(np.float32)
        train.append(x[:rows])
        test.append(x[rows:])
        bar.advance(task)
    y = (score > 0).astype(np.int64)
    names = tuple(f"c{column}" for column in range(COLUMNS))
    columns = tuple(tuple(f"p{party}{name}" for name in names) for party in range(PARTIES))
    return Partition(
        name="synthetic", parties=tuple(f"party-{party + 1}" for party in range(PARTIES)), columns=columns,
        train=tuple(train), test=tuple(test), y_train=y[:rows], y_test=y[rows:], task=Task("binary", ("0", "1")),
        encoders=tuple(Encoder(held, (None,) * COLUMNS, None) for held in columns),
        scalers=(Scaler(np.zeros(COLUMNS), np.ones(COLUMNS)),) * PARTIES,
        indices=tuple(np.arange(COLUMNS) + COLUMNS * party for party in range(PARTIES)), width=COLUMNS * PARTIES,
        shapes=((COLUMNS,),) * PARTIES,
    )  # fmt: skip


def tables(seconds: float, table: str, dtype: str) -> dict[str, Any]:
    return {
        "protocol": {"name": "vafl", "table": "zeros"},
        "model": {"party": "linear", "embedding": WIDTH, "server": "linear"},
        "train": {"batch_size": BATCH, "seconds": seconds, "learning_rate": 0.02, "eval_every": f"{seconds / 4} s"},
        "server": {"table": table, "table_dtype": dtype},
    }


class Watch:
    """The resident memory of a federation's processes over time."""

    def __init__(self, up: FederationUp) -> None:
        self._up, self._began = up, time.monotonic()
        self.peaks: dict[str, float] = {}  # MB, of VmHWM
        self.own: dict[str, float] = {}  # MB, peak RssAnon: without file pages, which the system may take back
        self.resident: dict[str, list[tuple[float, float]]] = {}  # MB, of VmRSS
        self.first_update_s: float | None = None
        self.at_first_update: dict[str, float] = {}  # MB, of VmRSS

    def look(self, status: dict[str, Any] | None) -> None:
        """Called by `up` every quarter of a second."""
        now = time.monotonic() - self._began
        if status is not None and status["updates"] and self.first_update_s is None:
            self.first_update_s = now
            self.at_first_update = {name: seen[-1][1] for name, seen in self.resident.items()}
        for name, child in self._up.children.items():
            if child.process is None or child.code is not None:
                continue
            memory = _status(child.process.pid)
            if memory:
                self.peaks[name] = max(self.peaks.get(name, 0.0), memory["VmHWM"])
                self.own[name] = max(self.own.get(name, 0.0), memory["RssAnon"])
                self.resident.setdefault(name, []).append((now, memory["VmRSS"]))


def _status(pid: int) -> dict[str, float]:
    """VmRSS, VmHWM and RssAnon in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    found = {line.split(":")[0]: line.split() for line in lines if line.startswith(("VmRSS", "VmHWM", "RssAnon"))}
    return {key: int(words[1]) * 1024 / MB for key, words in found.items()}


def touched(file: Path, rows: int, dtype: str) -> tuple[int, int]:
    """Blocks that hold anything except zeros, and rows that have such a block."""
    kind = np.dtype([("values", dtype, (PARTIES, WIDTH)), ("renewed", "<i4", (PARTIES,))])
    assert file.stat().st_size == rows * kind.itemsize
    blocks = lines = 0
    with file.open("rb") as handle:
        for start in _data_of(handle.fileno(), rows * kind.itemsize, kind.itemsize):
            held = np.frombuffer(os.pread(handle.fileno(), start[1] - start[0], start[0]), kind)["values"].any(2)
            blocks += int(held.sum())
            lines += int(held.any(1).sum())
    return blocks, lines


def _data_of(file: int, size: int, row: int) -> list[tuple[int, int]]:
    """Whole rows that are not in a hole of the file, in pieces of bounded size."""
    pieces, place = [], 0
    while place < size:
        try:
            start = os.lseek(file, place, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        stop = os.lseek(file, start, os.SEEK_HOLE)
        first, last = max(start // row * row, place), min(-(-stop // row) * row, size)
        step = 100_000 * row
        pieces += [(piece, min(piece + step, last)) for piece in range(first, last, step)]
        place = last
    return pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--table", choices=["memory", "file"], default="file")
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float16")
    parser.add_argument("--out", type=Path, help="where to make the run's folder, which is removed afterwards")
    given = parser.parse_args()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="big-table-", dir=given.out))
    try:
        measure(folder / "run", given, console)
    finally:
        shutil.rmtree(folder)


def measure(out: Path, given: argparse.Namespace, console: Console) -> None:
    began = time.monotonic()
    with Progress(console=console, transient=True) as bar:
        data = partition(given.rows, bar)
    made = time.monotonic()
    up = prepare_up(from_dict(tables(given.seconds, given.table, given.dtype)), out, data)
    shares_s, made_s = time.monotonic() - made, made - began
    del data
    share_mb = (up.nodes / "party-1" / "share.safetensors").stat().st_size / MB
    watch = Watch(up)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("training", total=1.0)

        def show(status: dict[str, Any]) -> None:
            watch.look(status)
            bar.update(task, completed=status["fraction"], description=f"training, {status['updates']} updates")

        summary = asyncio.run(up.run(show))
    report(up, watch, summary, given, console)
    console.print(
        f"columns made in {made_s:.0f} s, shares of {share_mb:.0f} MB each written in {shares_s:.0f} s, "
        f"first update {watch.first_update_s:.0f} s after the start of the processes"
    )


def report(
    up: FederationUp, watch: Watch, summary: dict[str, Any], given: argparse.Namespace, console: Console
) -> None:
    item = np.dtype(given.dtype).itemsize
    whole = given.rows * PARTIES * WIDTH * item / MB
    state = up.server_run / "state"
    checkpoint = (state / "checkpoint.safetensors").stat().st_size / MB
    console.print(
        f"{summary['updates']} updates in {summary['clock_s']:.0f} s ({summary['status']}), accuracy "
        f"{summary['value']:.3f}, checkpoint {checkpoint:.2f} MB, whole table {whole:.0f} MB"
    )
    peak = watch.peaks["server"]
    parties = sorted(watch.peaks[name] for name in up.parties)
    rss = watch.resident["server"]
    steps = [rss[round(place * (len(rss) - 1) / 8)] for place in range(9)]
    console.print("server, MB resident over time: " + ", ".join(f"{at:.0f} s {mb:.0f}" for at, mb in steps))
    own = sorted(watch.own[name] for name in up.parties)
    first = sorted(watch.at_first_update[name] for name in up.parties)
    console.print(f"server, peak (VmHWM) {peak:.0f} MB, of its own {watch.own['server']:.0f} MB")
    console.print(
        f"parties, peak {parties[0]:.0f} to {parties[-1]:.0f} MB, of their own {own[0]:.0f} to {own[-1]:.0f} MB; "
        f"at the first update {first[0]:.0f} to {first[-1]:.0f} MB"
    )
    result = {"rows": given.rows, "table": given.table, "dtype": given.dtype, "updates": summary["updates"]}
    result |= {
        "server_peak_mb": peak,
        "parties_peak_mb": [parties[0], parties[-1]],
        "checkpoint_mb": checkpoint,
        "whole_mb": whole,
    }
    if given.table == "file":
        blocks, rows = touched(state / "table" / "train.rows", given.rows, given.dtype)
        written = blocks * WIDTH * item / MB
        pages = (state / "table" / "train.rows").stat().st_blocks * 512 / MB
        for name, part in (("written", written), ("pages", pages)):
            allowed = 1.2 * part + 500
            verdict = "within" if peak <= allowed else "ABOVE"
            console.print(f"touched part by {name}: {part:.0f} MB, so {allowed:.0f} MB are allowed: {verdict}")
        console.print(f"{blocks} blocks written, in {rows} of {given.rows} rows")
        result |= {"written_mb": written, "pages_mb": pages, "blocks": blocks, "rows_touched": rows}
    console.print_json(json.dumps(result))


if __name__ == "__main__":
    main()
