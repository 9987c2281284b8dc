"""Small federations of every method with one Byzantine member: nothing that it says hurts the honest members.

    python benchmarks/adversary.py [--cases 100000] [--methods sync,vafl] [--workers 2] [--out FILE] [--resume]
    python benchmarks/adversary.py --replay sync:194

The liar is one of the parties, or the server. It sends messages that the codec accepts, with fields at the extremes of
their types, at any time: changed, invented, repeated, contradictory, out of order, dropped (`colonnade.testing`). Every
honest role checks its invariants after every event, and is restarted from its saved state in the middle of the run. The
table counts, for each method:

    refused        cases in which an honest role refused a message
    lost           the liar was refused too often, or owed something for too long
    finished       the training went on to its end
    ended, waits   it ended with a reason that names the liar, or waits for the liar
    crash          an honest role failed, or broke an invariant of its state
    hang           no end, or the server waits without naming the liar
    resume         an honest role cannot continue from its saved state
    harm           an honest member is blamed, a refused message changed a role, a role remembers an absurd number or
                   much too much, a summary is no JSON, the training ended too early or diverged without naming the liar

Each fault is printed once, with the first case that shows it. `--replay` runs that case again and prints the lies.

Before the cases, a sweep gives every field of every message each of its extremes, at five moments of an honest run of
each method and variant (`--sweep 0.1`: a tenth of these messages). Exits with 1 if there was a fault.
"""

import argparse
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Table

from colonnade.testing.cases import METHODS_WITH_PARTIES, case, describe, sweep_case, variants_of
from colonnade.testing.sweep import Finding

BLOCK = 20  # cases of one method in a row, by one worker
MEMORY_BYTES = 8 * 2**30  # address space of a worker: a huge allocation fails instead of filling the machine
COLUMNS = ("refused", "lost", "finished", "ended", "waits", "crash", "hang", "resume", "harm")
HARM = ("blame", "changed", "memory", "absurd", "summary", "early", "diverged")


def prepare() -> None:
    """In each worker."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run_block(name: str, first: int, count: int) -> dict[str, Any]:
    """Run cases `first`, … of a method; counts and faults."""
    counts, faults = Counter[str](cases=count), []
    for seed in range(first, first + count):
        try:
            outcome = case(name, seed)
        except Exception as error:  # the simulator itself failed: this case is a fault, and the others still run
            counts["crash"] += 1
            faults.append({"seed": seed, "fault": "crash", "what": f"simulator: {error!r}", "where": ""})
            continue
        counts["refused"] += outcome.refused > 0
        counts["lost"] += outcome.lost
        counts["harm" if outcome.fault in HARM else outcome.fault or outcome.end] += 1
        if outcome.fault:
            faults.append({"seed": seed, "fault": outcome.fault, "what": outcome.what, "where": outcome.where})
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"method": name, "first": first, "counts": dict(counts), "faults": faults, "peak_mb": peak_mb}


def blocks(methods: list[str], cases: int) -> Iterator[tuple[str, int, int]]:
    """All methods in turn, so that a part of the run has seen all of them."""
    each = -(-cases // len(methods))
    for first in range(0, each, BLOCK):
        for name in methods:
            yield name, first, min(BLOCK, each - first)


def read(path: Path) -> list[dict[str, Any]]:
    """The blocks of an earlier run. The last line may be cut off."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def run_all(chosen: argparse.Namespace, methods: list[str]) -> list[dict[str, Any]]:
    """Run what is missing, with a bar; every block goes to the file at once."""
    out = Path(chosen.out)
    results = read(out) if chosen.resume else []
    out.write_text("".join(json.dumps(block) + "\n" for block in results), encoding="utf-8")
    done = {(block["method"], block["first"], block["counts"]["cases"]) for block in results}
    wanted = [block for block in blocks(methods, chosen.cases) if block not in done]
    words = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        Progress(*words, console=Console(stderr=True)) as progress,
        out.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(chosen.workers, get_context("spawn"), prepare) as pool,
    ):
        task = progress.add_task("0 faults", total=sum(count for *_, count in wanted))
        faults = 0
        for future in as_completed([pool.submit(run_block, *block) for block in wanted]):
            block = future.result()
            results.append(block)
            file.write(json.dumps(block) + "\n")
            file.flush()
            faults += len(block["faults"])
            progress.update(task, advance=block["counts"]["cases"], description=f"{faults} faults")
    return results


def sweep_all(methods: list[str], share: float, workers: int) -> bool:
    """Sweep all methods; returns whether nothing was found."""
    wanted = [(name, place) for name in methods for place in range(len(variants_of(name)))]
    messages = refused = 0
    found: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), prepare) as pool:
        futures = {pool.submit(sweep_case, name, place, place, share): name for name, place in wanted}
        done = as_completed(futures)
        for future in track(done, "sweep", len(futures), console=Console(stderr=True)):
            swept = future.result()
            messages, refused = messages + swept.messages, refused + swept.refused
            for finding in swept.findings:
                kind = re.sub(r"\d[\d.e+-]*", "#", finding.what)[:160]
                found.setdefault((finding.field, kind), []).append((futures[future], finding))
    print(f"sweep: {messages} messages, {refused} refused, {len(found)} faults", flush=True)
    for examples in found.values():
        name, one = examples[0]
        print(
            f"{name} {one.role} {one.field}: {one.fault}: {one.what} ({len(examples)} messages) | {one.message}"[:600]
        )
    return not found


def report(results: list[dict[str, Any]], methods: list[str]) -> bool:
    """Print the table and one example of every fault; returns whether there was none."""
    totals = {name: Counter[str]() for name in methods}
    examples: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for block in results:
        if block["method"] in totals:
            totals[block["method"]].update(block["counts"])
        for fault in block["faults"]:
            kind = re.sub(r"\d[\d.e+-]*", "#", fault["what"])[:160]
            examples.setdefault((block["method"], fault["fault"], kind), []).append(fault)
    table = Table("method", "cases", *COLUMNS)
    for name, counts in [*totals.items(), ("all", sum(totals.values(), Counter[str]()))]:
        table.add_row(name, *(str(counts[title]) for title in ("cases", *COLUMNS)))
    console = Console(width=140, highlight=False)
    console.print(table)
    for (name, kind, _), found in sorted(examples.items(), key=lambda item: -len(item[1])):
        one = min(found, key=lambda fault: fault["seed"])
        line = f"{name}:{one['seed']} {kind} ({len(found)} cases) {one['what']} | {one['where']}"
        console.print(line[:600], markup=False, soft_wrap=True)
    return not examples


def replay(text: str) -> bool:
    """Run one case, METHOD:SEED, and print everything about it."""
    name, _, seed = text.rpartition(":")
    outcome = case(name, int(seed))
    print(f"{text}: {describe(name, int(seed))}")
    for line in outcome.lies:
        print(f"  {line}")
    lost = ", lost" if outcome.lost else ""
    print(f"  {outcome.fault or outcome.end}: {outcome.what or outcome.reason} ({outcome.refused} refused{lost})")
    if outcome.where:
        print(f"  while it handled {outcome.where}")
    return not outcome.fault


def main() -> int:
    """Run the cases and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of all methods together")
    parser.add_argument("--methods", default=",".join(METHODS_WITH_PARTIES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", default="adversary.jsonl", help="one line for each block of cases")
    parser.add_argument("--resume", action="store_true", help="keep what --out holds, and run what is missing")
    parser.add_argument("--sweep", type=float, default=1.0, help="the share of the sweep's messages; 0: no sweep")
    parser.add_argument("--replay", metavar="METHOD:SEED")
    chosen = parser.parse_args()
    if chosen.replay:
        prepare()
        return 0 if replay(chosen.replay) else 1
    methods, begin = chosen.methods.split(","), time.perf_counter()
    good = sweep_all(methods, chosen.sweep, chosen.workers) if chosen.sweep else True
    results = run_all(chosen, methods)
    good = report(results, methods) and good
    peak = max((block["peak_mb"] for block in results), default=0.0)
    cases = sum(block["counts"]["cases"] for block in results)
    print(f"{cases} cases, {time.perf_counter() - begin:.0f} s of this run, at most {peak:.0f} MB in a worker")
    print("no fault" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
