"""Memory of a run with 100 parties, relative to what it must hold: the parties' data and the server's table.

    python benchmarks/memory.py [--data DIR] [--updates 1000] [--parties 100]

60,000 training and 10,000 test rows of 784 columns (random bytes, or MNIST from the IDX files in DIR) among 100
parties, embeddings of width 10, `vafl` with aggregate "sum" and no server model, batches of 600, four evaluations;
once without a folder and once writing checkpoints. Each in a fresh process:

    (peak RSS − RSS after imports) / (float32 data, train and test + float32 table, rows × Σ widths)

A tiny run, with a folder and a checkpoint, counts as imports: it triggers late imports. The data come as
`colonnade run` gets them: loaded and split inside the measured part.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import colonnade
from colonnade.data import Partition, from_arrays, load, split

ROWS, TEST_ROWS, COLUMNS, CLASSES, WIDTH, BATCH = 60_000, 10_000, 784, 10, 10, 600
MB = 2**20


def status_mb(field: str) -> float:
    """A line of /proc/self/status: VmRSS is the memory in use, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def partition(rows: int, test_rows: int, parties: int, data: str | None) -> Partition:
    """The parties' blocks; the bytes they are cut from are freed when this returns."""
    if data is not None:
        return split(load("mnist", dir=data), parties=parties)
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (rows + test_rows, COLUMNS), np.uint8)
    y = np.arange(len(x)) % CLASSES
    return split(from_arrays(x, y), parties=parties, scale="minmax", test_fraction=test_rows / len(x))


def train(data: Partition, updates: int, out: Path | None) -> dict[str, Any]:
    run = colonnade.prepare(
        data,
        protocol={"name": "vafl", "table": "zeros"},
        party_model="linear",
        server_model="none",
        embedding=WIDTH,
        aggregate="sum",
        batch_size=BATCH,
        learning_rate=0.01,
        updates=updates,
        eval_every=updates // 4,
        checkpoint_every=updates // 2,
        out=out,
    )
    return run.execute()


def measure(parties: int, updates: int, data: str | None, checkpoints: bool) -> dict[str, float]:
    """Measure in this process, which must be fresh."""
    with tempfile.TemporaryDirectory() as folder:
        train(partition(2 * BATCH, BATCH, 2, None), 8, Path(folder) / "tiny")
        imports_mb = status_mb("VmRSS")
        held = partition(ROWS, TEST_ROWS, parties, data)
        split_mb = status_mb("VmHWM") - imports_mb
        summary = train(held, updates, Path(folder) / "run" if checkpoints else None)
        peak_mb = status_mb("VmHWM") - imports_mb
        saved = Path(folder) / "run" / "checkpoint.safetensors"
        checkpoint_mb = saved.stat().st_size / MB if checkpoints else 0.0
    assert summary["status"] == "finished"
    return {
        "data": sum(block.nbytes for block in (*held.train, *held.test)) / MB,
        "table": len(held.y_train) * parties * WIDTH * 4 / MB,
        "imports": imports_mb,
        "split": split_mb,
        "peak": peak_mb,
        "checkpoint": checkpoint_mb,
    }


def report(name: str, mb: dict[str, float]) -> None:
    needed = mb["data"] + mb["table"]
    print(f"{name}: data {mb['data']:.0f} MB + table {mb['table']:.0f} MB = {needed:.0f} MB needed")
    print(
        f"  imports {mb['imports']:.0f} MB (not counted), peak of loading and splitting {mb['split']:.0f} MB, "
        f"peak of all {mb['peak']:.0f} MB, checkpoint {mb['checkpoint']:.0f} MB on disk"
    )
    print(f"  peak / needed {mb['peak'] / needed:.2f}   (at most 1.30)")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", help="folder of MNIST's four IDX files")
    arguments.add_argument("--updates", type=int, default=1000)
    arguments.add_argument("--parties", type=int, default=100)
    arguments.add_argument("--child", choices=("plain", "checkpoints"), help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.child:
        mb = measure(options.parties, options.updates, options.data, options.child == "checkpoints")
        print(json.dumps(mb))
        return
    for child in ("plain", "checkpoints"):
        command = [sys.executable, __file__, *sys.argv[1:], "--child", child]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report(child, json.loads(done.stdout))


if __name__ == "__main__":
    main()
