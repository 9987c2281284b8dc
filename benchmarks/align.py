"""Time and memory to align the ids of two parties, over the real network on one machine.

    python benchmarks/align.py [--ids 1000000] [--common 0.5] [--labels]

Writes two CSV files of this many ids, with a part of them in common, starts the server and both parties as
`colonnade align server.toml bank.toml shop.toml` does, and checks the result against the plain intersection:

    rows/s      ids of one table / seconds from the first process's start to the last one's end
    ratio       those seconds / the bare library's for what one party raises (its own ids, then the other's), this run
    peak MB     the most memory that each process ever had

With `--labels` the server has the same ids as a third table, and takes part.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import tomli_w

from colonnade.cli import main as cli
from colonnade.cli.align_bars import Bars
from colonnade.data import load_alignment
from colonnade.deployment.align_all import AlignAll
from colonnade.deployment.up import Child
from colonnade.drivers.processes.certificates import throw_away
from colonnade.privacy.blinding import Blinder

PARTIES = ("bank", "shop")
SAMPLE = 20_000
BARE_CHUNK = 4096


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
    for name in ("server", *PARTIES):
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
    """Seconds that the library alone takes for the ids one member raises."""
    blinder, texts = Blinder(bytes(32)), [f"C{number:09}" for number in range(SAMPLE)]
    start = time.perf_counter()
    points = blinder.hashed(texts)
    hashed = time.perf_counter() - start
    start = time.perf_counter()
    for place in range(0, SAMPLE, BARE_CHUNK):
        blinder.raised(points[place : place + BARE_CHUNK])
    raised = time.perf_counter() - start
    print(
        f"bare library: {hashed / SAMPLE * 1e6:.0f} µs to hash and raise an id, {raised / SAMPLE * 1e6:.0f} µs to raise"
    )
    return count * (hashed + others * raised) / SAMPLE


def check(folder: Path, tables: dict[str, list[str]]) -> int:
    """Check that all members have the same ids in the same order, and that these are the plain intersection."""
    orders = []
    for name, table in tables.items():
        rows = load_alignment(folder / name / "aligned.safetensors").rows
        orders.append([table[row] for row in rows])
    assert all(order == orders[0] for order in orders), "the orders differ"
    wanted = set.intersection(*map(set, tables.values()))
    assert set(orders[0]) == wanted and len(orders[0]) == len(wanted), "not the intersection"
    return len(wanted)


def main() -> None:
    if "--child" in sys.argv:
        run_child(sys.argv[sys.argv.index("--child") + 1 :])
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ids", type=int, default=1_000_000)
    arguments.add_argument("--common", type=float, default=0.5)
    arguments.add_argument("--labels", action="store_true")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = write_folders(folder, options.ids, options.common, options.labels)
        before = bare_s(options.ids, len(tables) - 1)
        start = time.perf_counter()
        with Bars() as bars:
            paths = [folder / who / f"{who}.toml" for who in ("server", *PARTIES)]
            summaries = asyncio.run(Measured(paths).run(lambda status: bars.show(status["bars"])))
        seconds = time.perf_counter() - start
        assert summaries["server"]["status"] == "finished", summaries["server"]["note"]
        common = check(folder, tables)
        peaks = {who: (folder / who / "peak_mb").read_text() for who in ("server", *PARTIES)}
        after = bare_s(options.ids, len(tables) - 1)
    bare = (before + after) / 2
    traffic = summaries["server"]["bytes_up"] + summaries["server"]["bytes_down"]
    print(f"{len(tables)} tables of {options.ids:,} ids, {common:,} in common, as in the plain intersection")
    print(
        f"  {seconds:.0f} s, {options.ids / seconds:,.0f} rows/s; bare library {bare:.0f} s, ratio {seconds / bare:.2f}"
    )
    print(
        f"  to and from the server {traffic / 1e6:.0f} MB, relayed {summaries['server']['bytes_relayed'] / 1e6:.0f} MB"
    )
    print(f"  peak MB: {', '.join(f'{who} {peak}' for who, peak in peaks.items())}")


if __name__ == "__main__":
    main()
