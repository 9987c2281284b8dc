"""Memory and time to read a large CSV file and split it among 8 parties.

    python benchmarks/load_csv.py [--gb 0.2] [--columns 64]

Writes a synthetic file (numbers of 6 digits, one column of categories per party, a label) to a temporary folder,
reads it as `colonnade run` does in a fresh process, and deletes it:

    (peak RSS − RSS after imports) / float32 arrays of all parties, train and test      at most 1.5

A tiny file is read first and counts as imports: it triggers late imports.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.data import Partition

PARTIES, PATTERN_ROWS = 8, 20_000
MB, GB = 2**20, 2**30


def status_mb(field: str) -> float:
    """A line of /proc/self/status: VmRSS is the memory in use, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def write(path: Path, size_bytes: float, columns: int) -> None:
    """The same 20,000 rows repeated: the measurement does not depend on the values."""
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(PATTERN_ROWS, columns))
    words = generator.choice(["north", "south", "east", "west"], PATTERN_ROWS)
    each = columns // PARTIES
    names = [f"region{i // each}" if i % each == 0 else f"n{i}" for i in range(columns)]
    lines = []
    for row, word in zip(numbers, words, strict=True):
        cells = [word if i % each == 0 else f"{value:.6f}" for i, value in enumerate(row)]
        lines.append(",".join(cells) + f",{int(row[1] > 0)}\n")
    pattern = "".join(lines).encode()
    with path.open("wb") as file:
        file.write((",".join(names) + ",y\n").encode())
        if size_bytes < len(pattern):
            file.write("".join(lines[:100]).encode())
        for _ in range(int(size_bytes // len(pattern))):
            file.write(pattern)


def read(path: Path) -> Partition:
    return load_partition(from_dict({"data": {"source": str(path), "label": "y", "parties": PARTIES}}))


def measure(folder: Path) -> dict[str, float]:
    """Measure in this process, which must be fresh."""
    read(folder / "tiny.csv")
    imports_mb = status_mb("VmRSS")
    start = time.perf_counter()
    held = read(folder / "large.csv")
    seconds = time.perf_counter() - start
    return {
        "rows": len(held.y_train) + len(held.y_test),
        "seconds": seconds,
        "arrays": sum(block.nbytes for block in (*held.train, *held.test)) / MB,
        "imports": imports_mb,
        "peak": status_mb("VmHWM") - imports_mb,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--gb", type=float, default=0.2, help="size of the file in GiB")
    arguments.add_argument("--columns", type=int, default=64, help="a multiple of 8, from 16")
    arguments.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.columns % PARTIES or options.columns < 2 * PARTIES:
        arguments.error("--columns must be a multiple of 8, from 16")
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "tiny.csv", 0, options.columns)
        write(folder / "large.csv", options.gb * GB, options.columns)
        size = (folder / "large.csv").stat().st_size
        command = [sys.executable, __file__, "--child", name]
        result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    print(f"{size / GB:.2f} GiB, {result['rows']:,} rows, {options.columns} columns, {PARTIES} parties")
    print(f"  arrays {result['arrays']:.0f} MB, imports {result['imports']:.0f} MB (not counted)")
    print(f"  peak {result['peak']:.0f} MB, peak / arrays {result['peak'] / result['arrays']:.2f}   (at most 1.50)")
    print(f"  {result['seconds']:.1f} s, {result['rows'] / result['seconds']:,.0f} rows/s")


if __name__ == "__main__":
    main()
