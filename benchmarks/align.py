"""Time and memory to align the ids of two parties, over the real network on one machine.

    python benchmarks/align.py [--ids 1000000] [--common 0.5] [--labels] [--against FOLDER] [--rounds 1]

Writes two CSV files of this many ids, with a part of them in common, starts the server and both parties as
`colonnade align server.toml bank.toml shop.toml` does, and checks the result against the plain intersection:

    rows/s      ids of one table / seconds from the first process's start to the last one's end
    ratio       those seconds / the bare functions' for what one party raises (its own ids, then the other's), this run
    processor   seconds of processor time of all processes
    peak MB     the most memory that each process ever had

With `--labels` the server has the same ids as a third table, and takes part. With `--against`, another checkout aligns
the same tables in turns with this one, `--rounds` times each, and the last line has the ratios of the medians.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import tomli_w

from colonnade.cli import main as cli
from colonnade.cli.align_bars import Bars
from colonnade.data import load_alignment
from colonnade.deployment.align_all import AlignAll
from colonnade.deployment.up import Child
from colonnade.drivers.processes.certificates import throw_away
from colonnade.privacy.blinding import Blinder

PARTIES = ("bank", "shop")
MEMBERS = ("server", *PARTIES)
SAMPLE = 32_768


@dataclass(frozen=True)
class Run:
    """What one alignment took."""

    seconds: float
    processor: float
    common: int
    traffic: int  # bytes
    relayed: int
    peaks: dict[str, str]


def peak_mb() -> float:
    """The peak memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


class Measured(AlignAll):
    """The same processes, which also write their peak memory to a file."""

    def _child(self, name: str, path: Path) -> Child:
        child = super()._child(name, path)
        arguments = child._command[child._command.index("align") :]
        return Child(name, [sys.executable, __file__, "--child", *arguments], child.log, path.parent)


def run_child(arguments: list[str]) -> None:
    """One process, as `colonnade` would run it, in the folder of its config."""
    sys.argv = ["colonnade", *arguments]
    try:
        cli.main()
    finally:
        Path("peak_mb").write_text(f"{peak_mb():.0f}")


def write_folders(folder: Path, count: int, common: float, labels: bool) -> dict[str, list[str]]:
    """Write folders, tables and configs of all members; return the ids of each table."""
    generator, both = random.Random(0), int(count * common)
    members = ["server", *PARTIES] if labels else list(PARTIES)
    tables: dict[str, list[str]] = {}
    for name in members:
        own = [f"{name[0].upper()}{number:09}" for number in range(count - both)]
        tables[name] = [*(f"C{number:09}" for number in range(both)), *own]
        generator.shuffle(tables[name])
    throw_away(PARTIES, folder / "keys")
    for name in MEMBERS:
        keys, home = folder / "keys", folder / name
        home.mkdir()
        network = {
            "parties": list(PARTIES), "address": "127.0.0.1:7459", "certificate": str(keys / f"{name}.pem"),
            "key": str(keys / f"{name}.key"), "authority": str(keys / "ca.pem"), "members": str(keys / "members.toml"),
        }  # fmt: skip
        config: dict[str, object] = {"network": network}
        if name in tables:
            (home / "ids.csv").write_text("\n".join(["id", *tables[name]]) + "\n")
            section = "server" if name == "server" else "party"
            config[section] = {"data": "ids.csv", "id": "id", "aligned": "aligned.safetensors"}
        (home / f"{name}.toml").write_text(tomli_w.dumps(config))
    return tables


def bare_s(count: int, others: int) -> float:
    """Seconds that the bare functions take for the ids one member raises."""
    blinder, texts = Blinder(bytes(32)), [f"C{number:09}" for number in range(SAMPLE)]
    start = time.perf_counter()
    points = blinder.hashed(texts)
    hashed = time.perf_counter() - start
    start = time.perf_counter()
    blinder.raised(points)
    raised = time.perf_counter() - start
    each = [f"{seconds / SAMPLE * 1e6:.0f} µs" for seconds in (hashed, raised)]
    print(f"bare functions: {each[0]} to hash and raise an id, {each[1]} to raise a point")
    return count * (hashed + others * raised) / SAMPLE


def check(folder: Path, tables: dict[str, list[str]]) -> int:
    """Check that all members have the same ids in the same order, and that these are the plain intersection."""
    orders = []
    for name, table in tables.items():
        rows = load_alignment(folder / name / "aligned.safetensors").rows
        (folder / name / "aligned.safetensors").unlink()
        orders.append([table[row] for row in rows])
    assert all(order == orders[0] for order in orders), "the orders differ"
    wanted = set.intersection(*map(set, tables.values()))
    assert set(orders[0]) == wanted and len(orders[0]) == len(wanted), "not the intersection"
    return len(wanted)


def run_once(folder: Path, tables: dict[str, list[str]]) -> Run:
    """Align the tables with the code of this process, and check the result."""
    used, start = os.times(), time.perf_counter()
    with Bars() as bars:
        paths = [folder / who / f"{who}.toml" for who in MEMBERS]
        summaries = asyncio.run(Measured(paths).run(lambda status: bars.show(status["bars"])))
    seconds, now = time.perf_counter() - start, os.times()
    server = summaries["server"]
    assert server["status"] == "finished", server["note"]
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    common = check(folder, tables)
    peaks = {who: (folder / who / "peak_mb").read_text() for who in MEMBERS}
    return Run(seconds, processor, common, server["bytes_up"] + server["bytes_down"], server["bytes_relayed"], peaks)


def run_other(checkout: Path, options: argparse.Namespace) -> Run:
    """The same in another process, with the other checkout's code and benchmark."""
    command = [sys.executable, __file__, "--ids", str(options.ids), "--common", str(options.common), "--json"]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(
        [*command, *["--labels"] * options.labels], env=environment, stdout=subprocess.PIPE, check=True
    )
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def compare(options: argparse.Namespace) -> None:
    """Both checkouts in turns, so that the machine's other work meets both."""
    here, there = Path(__file__).resolve().parents[1], options.against.resolve()
    runs: dict[Path, list[Run]] = {here: [], there: []}
    for _ in range(options.rounds):
        for checkout, found in runs.items():
            found.append(run_other(checkout, options))
            print(
                f"{checkout.name}: {found[-1].seconds:.1f} s, {found[-1].processor:.1f} s of processor time", flush=True
            )
    ours, theirs = (
        (median(run.seconds for run in found), median(run.processor for run in found)) for found in runs.values()
    )
    print(f"rows/s: {options.ids / ours[0]:,.0f} here, {options.ids / theirs[0]:,.0f} there")
    print(f"there / here: {theirs[0] / ours[0]:.2f} by the clock, {theirs[1] / ours[1]:.2f} by processor time")


def show(run: Run, tables: dict[str, list[str]], bare: float) -> None:
    count = len(tables[PARTIES[0]])
    print(f"{len(tables)} tables of {count:,} ids, {run.common:,} in common, as in the plain intersection")
    print(
        f"  {run.seconds:.0f} s, {count / run.seconds:,.0f} rows/s, {run.processor:.0f} s of processor time; "
        f"bare functions {bare:.0f} s, ratio {run.seconds / bare:.2f}"
    )
    print(f"  to and from the server {run.traffic / 1e6:.0f} MB, relayed {run.relayed / 1e6:.0f} MB")
    print(f"  peak MB: {', '.join(f'{who} {peak}' for who, peak in run.peaks.items())}")


def main() -> None:
    if "--child" in sys.argv:
        run_child(sys.argv[sys.argv.index("--child") + 1 :])
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ids", type=int, default=1_000_000)
    arguments.add_argument("--common", type=float, default=0.5)
    arguments.add_argument("--labels", action="store_true")
    arguments.add_argument("--against", type=Path, help="another checkout, to measure in turns with this one")
    arguments.add_argument("--rounds", type=int, default=1, help="of --against")
    arguments.add_argument("--json", action="store_true", help="print the measurements alone")
    options = arguments.parse_args()
    if options.against is not None:
        compare(options)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = write_folders(folder, options.ids, options.common, options.labels)
        if options.json:
            print(json.dumps(asdict(run_once(folder, tables))))
            return
        before = bare_s(options.ids, len(tables) - 1)
        run = run_once(folder, tables)
        after = bare_s(options.ids, len(tables) - 1)
    show(run, tables, (before + after) / 2)


if __name__ == "__main__":
    main()
