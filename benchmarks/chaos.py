"""Chaos on real processes: seeded random schedules of kills, cuts, black holes and delays, with checks afterwards.

    python benchmarks/chaos.py [--schedules 30] [--seed 0] [--workers 1]

A federation of four parties on digits, every role its own process, each party behind a TCP proxy of its own. A
schedule is drawn from its seed: `kill -9` and restart of parties and of the server, links that are cut, that swallow
everything, that are slow, and that break just after a message went through and before its acknowledgement came
back (TLS prevents repeated bytes, but the sender must find out whether to resend). After each schedule:

    no hang          all processes end by themselves within the deadline
    exactly once     over all logs of the nodes, each conversation is received as 1, 2, 3, …, each update of
                     the server and each step of a party is taken once, and they add up to what the summaries say
    nothing lost     a restarted node continues at or after its last checkpoint; metrics.jsonl only grows
    as good as calm  the accuracy (mean of the last five evaluations) is within a point of the calm runs' mean;
                     `sync` has the calm run's weights bit for bit

A node's two logs take turns at checkpoints; each is copied for the checks while the other is in use. Nothing is
written outside a temporary folder. The exit code is 1 if anything failed.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from colonnade.algorithms.method import SERVER
from colonnade.algorithms.registry import find_method
from colonnade.algorithms.vafl.messages import Embeddings, Refined, Stepped
from colonnade.config.schema import Config, from_dict
from colonnade.deployment.up import FederationUp, prepare_up
from colonnade.drivers.processes.journal import Record, read_journal
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import Received, WorkDone

PARTIES = 4
# Asynchronous training continues without an absent party, so it must last longer than a restart on a busy machine.
EPOCHS = {"vafl": 100.0, "t-sync": 100.0, "sync": 25.0}
DEADLINE_S = 120.0
FAREWELL_S = 30.0  # from the server's end to the last party's
POINT = 0.01
LAST = 5  # the mean of this many evaluations is a run's accuracy
METHODS = ("vafl", "vafl", "vafl", "t-sync", "sync")  # of schedule 0, 1, 2, …
UPLOAD_BYTES = 4000  # a batch's embeddings are longer, a heartbeat is shorter


def chaos_config(method: str, epochs: float | None = None, parties: int = PARTIES) -> Config:
    """Short times, so that parties are often lost and found again."""
    return from_dict(
        {
            # Every evaluation is of the 359 test rows: 144 validation rows are too few for a bound of one point.
            "data": {"source": "digits", "parties": parties, "validation_fraction": 0.0},
            "protocol": {"name": method},
            "train": {
                "epochs": EPOCHS[method] if epochs is None else epochs,
                "seed": 0,
                "checkpoint_every": 10**9,  # by time alone: no log is overwritten before it is copied
            },
            "network": {
                "heartbeat_s": 0.2,
                "lost_after_s": 1.0,
                "give_up_s": 40.0,
                "checkpoint_s": 1.0,
                "admit_late": False,  # on a busy machine a late party would learn less, even without faults
            },
        }
    )


# --- the proxy -----------------------------------------------------------------------------------------------------


class Link:
    """One proxied connection."""

    def __init__(self, party: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.party, self.server = party, server
        self.forgotten = False  # both ends believe in it, but nothing arrives

    def reset(self) -> None:
        """Drop the connection as a firewall would."""
        for writer in (self.party, self.server):
            _reset(writer)


class Proxy:
    """Between one party and the server; its faults affect all connections, also later ones."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._links: set[Link] = set()
        self._flows = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._refusing = False
        self._trap: asyncio.Event | None = None  # set when an upload has passed
        self._latency_s = 0.0
        self._listener: asyncio.Server | None = None
        self.address = ""
        for flow in self._flows.values():
            flow.set()

    async def start(self) -> None:
        """Listen on a port that the system chooses."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Close everything."""
        if self._listener is not None:
            self._listener.close()
        for link in list(self._links):
            link.reset()

    # Faults

    async def cut(self, duration_s: float) -> None:
        """Break the connections and reject new ones."""
        self._refusing = True
        for link in list(self._links):
            link.reset()
        await asyncio.sleep(duration_s)
        self._refusing = False

    async def swallow(self, directions: tuple[str, ...], duration_s: float, forget: bool) -> None:
        """Nothing arrives, and no side is told. Later the held data arrive, or the connections are forgotten."""
        for direction in directions:
            self._flows[direction].clear()
        await asyncio.sleep(duration_s)
        for link in self._links if forget else ():
            link.forgotten = True
        for direction in directions:
            self._flows[direction].set()

    async def slow(self, latency_s: float, duration_s: float) -> None:
        """Delay every piece."""
        self._latency_s = latency_s
        await asyncio.sleep(duration_s)
        self._latency_s = 0.0

    async def cut_after_upload(self) -> bool:
        """Let an upload through, hold back every answer, and break the line; return whether there was an upload."""
        self._trap = asyncio.Event()
        try:
            await asyncio.wait_for(self._trap.wait(), 3.0)
        except TimeoutError:
            return False
        finally:
            self._trap = None
        await asyncio.sleep(0.05)  # meanwhile the server handles it
        for link in list(self._links):
            link.reset()
        self._flows["down"].set()
        return True

    # Carrying

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._refusing:
                raise ConnectionRefusedError
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        link = Link(writer, to_server)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump("up", reader, to_server, link)),
            asyncio.ensure_future(self._pump("down", from_server, writer, link)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for side in (writer, to_server):
                side.close()

    async def _pump(self, way: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter, link: Link) -> None:
        while data := await source.read(2**16):
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            await self._flows[way].wait()
            if link.forgotten:
                continue
            sink.write(data)
            await sink.drain()
            if way == "up" and self._trap is not None and len(data) >= UPLOAD_BYTES and not self._trap.is_set():
                self._flows["down"].clear()
                self._trap.set()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    found = writer.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def journal_number(path: Path) -> int:
    """The number of the log in this file, or -1."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except FileNotFoundError:
        return -1
    return int.from_bytes(head[4:], "little") if len(head) == 12 else -1


# --- schedules -----------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """One fault, with its delay after the start of the previous one."""

    after_s: float
    kind: str  # kill, kill and flip, cut, swallow, slow, cut after upload, freeze
    role: str
    duration_s: float
    directions: tuple[str, ...] = ()
    forget: bool = False

    def __str__(self) -> str:
        how = f" {'+'.join(self.directions)}" if self.directions else ""
        return f"{self.kind}{how}{' for good' if self.forget else ''} {self.role} {self.duration_s:.1f}s"


WEIGHTS = {"kill": 3, "cut": 2, "swallow": 3, "slow": 1, "cut after upload": 3, "freeze": 1}
WAYS = (("up",), ("down",), ("up", "down"))


def draw_schedule(seed: int, parties: tuple[str, ...]) -> list[Fault]:
    """3 to 6 faults, at least one kill among them; they may overlap."""
    rng = random.Random(seed)
    kinds = ["kill", *rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randint(2, 5))]
    rng.shuffle(kinds)
    faults = []
    for kind in kinds:
        role = SERVER if kind == "kill" and rng.random() < 0.35 else rng.choice(parties)
        fault = Fault(rng.uniform(0.2, 1.6), kind, role, rng.uniform(0.1, 2.5))
        if kind == "swallow":
            fault = fault._replace(directions=rng.choice(WAYS), forget=rng.random() < 0.5)
        faults.append(fault)
    return faults


@dataclass
class Outcome:
    """The result of a run."""

    method: str
    faults: list[str] = field(default_factory=list)  # injected
    problems: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    parties: dict[str, dict[str, Any]] = field(default_factory=dict)
    last_accuracies: list[float] = field(default_factory=list)  # a single one varies by more than a point
    took_s: float = 0.0
    resets: int = 0  # conversations that began again from nothing
    spared: int = 0  # messages that a reconnecting sender held for lost and the other side had
    repeats: int = 0  # messages that came twice and were dropped
    restarts: int = 0
    damaged: int = 0  # files that a restarting node found damaged and did without
    events: int = 0  # in all logs, checked
    logs_missed: int = 0  # nodes with a log that could not be copied

    @property
    def accuracy(self) -> float:
        return mean(self.last_accuracies) if self.last_accuracies else 0.0

    def line(self) -> str:
        """One line of text."""
        kinds = Counter(fault.split()[0] for fault in self.faults)
        words = " ".join(f"{kind}×{count}" for kind, count in sorted(kinds.items())) or "calm"
        verdict = "ok  " if not self.problems else "FAIL"
        return (
            f"{verdict} {self.method:7} {self.took_s:5.1f} s  {self.summary.get('updates', 0):5} updates  "
            f"accuracy {self.accuracy:.4f}  {self.events:6} events  spared {self.spared}  repeats {self.repeats}  "
            f"resets {self.resets}  {words}{'  (logs missed)' if self.logs_missed else ''}"
        )


class Schedule:
    """A federation, its proxies and the faults."""

    def __init__(self, config: Config, folder: Path, faults: list[Fault]) -> None:
        self._config, self._folder, self._faults = config, folder, faults
        self._up: FederationUp = prepare_up(config, folder)
        self._proxies: dict[str, Proxy] = {}
        self._archive = folder / "archive"
        self._archive.mkdir()
        self._copies: dict[str, dict[int, Path]] = {name: {} for name in self._up.children}
        self._killed: dict[str, list[int]] = {name: [] for name in self._up.children}  # where in its log
        self._down: set[str] = set()  # those that we have killed and not yet started
        self.outcome = Outcome(config.protocol["name"])

    @property
    def parties(self) -> tuple[str, ...]:
        return self._up.parties

    async def run(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Run the schedule and all checks."""
        start = time.monotonic()
        archivist = asyncio.ensure_future(self._keep_logs())
        try:
            await asyncio.wait_for(self._live(), deadline_s)
        except TimeoutError:
            self._problem(f"not over after {deadline_s:.0f} s")
        finally:
            archivist.cancel()
            for proxy in self._proxies.values():
                proxy.stop()
            await self._end_all()
            self._copy_logs(all_of_them=True)
        self.outcome.took_s = time.monotonic() - start
        if not self.outcome.problems:
            self._check()
        return self.outcome

    async def _live(self) -> None:
        await self._start()
        chaos = asyncio.ensure_future(self._inject())
        try:
            while self._up.children[SERVER].code is None or SERVER in self._down:
                await asyncio.sleep(0.05)
                if not self._all_well():
                    return
        finally:
            chaos.cancel()
            await asyncio.gather(chaos, return_exceptions=True)
        await self._restart_the_dead()
        until = time.monotonic() + FAREWELL_S
        while any(self._up.children[name].code is None for name in self.parties):
            await asyncio.sleep(0.05)
            if time.monotonic() > until:
                late = [name for name in self.parties if self._up.children[name].code is None]
                self._problem(f"{', '.join(late)}: still there {FAREWELL_S:.0f} s after the server's end")
                return
        self._all_well()

    async def _start(self) -> None:
        server = self._up.children[SERVER]
        address = self._up.nodes / SERVER / "run" / "address"
        await server.start()
        while not address.exists():
            await asyncio.sleep(0.02)
            if not self._all_well():
                raise RuntimeError(server.last_words())
        for name in self.parties:
            proxy = self._proxies[name] = Proxy(address.read_text())
            await proxy.start()
            self._up.write_config(name, proxy.address)
            await self._up.children[name].start()
        while sum(row["event"] == "joined" for row in self._log(SERVER)) < len(self.parties):
            await asyncio.sleep(0.05)
            if not self._all_well():
                return

    def _all_well(self) -> bool:
        for name, child in self._up.children.items():
            if child.code not in (None, 0) and name not in self._down:
                self._problem(f"{name} ended with {child.code}: {child.last_words()}")
        return not self.outcome.problems

    # Faults

    async def _inject(self) -> None:
        running = []
        try:
            for fault in self._faults:
                await asyncio.sleep(fault.after_s)
                running.append(asyncio.ensure_future(self._do(fault)))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _do(self, fault: Fault) -> None:
        proxy = self._proxies.get(fault.role)
        actions: dict[str, Callable[[], Awaitable[object]]] = {
            "kill": lambda: self._kill(fault.role, fault.duration_s),
            "kill and flip": lambda: self._kill(fault.role, fault.duration_s, flip=True),
            "freeze": lambda: self._freeze(fault.role, fault.duration_s),
        }
        if proxy is not None:
            actions |= {
                "cut": lambda: proxy.cut(fault.duration_s),
                "swallow": lambda: proxy.swallow(fault.directions, fault.duration_s, fault.forget),
                "slow": lambda: proxy.slow(fault.duration_s / 10, fault.duration_s),
                "cut after upload": proxy.cut_after_upload,
            }
        self.outcome.faults.append(str(fault))
        if await actions[fault.kind]() is False:
            self.outcome.faults.remove(str(fault))

    async def _kill(self, name: str, pause_s: float, flip: bool = False) -> bool:
        child, checkpoint = self._up.children[name], self._up.nodes / name / "run" / "state" / "checkpoint.safetensors"
        while flip and not checkpoint.exists() and child.code is None:
            await asyncio.sleep(0.01)
        if name in self._down or child.process is None or child.code is not None:
            return False
        self._down.add(name)
        child.process.kill()
        await child.process.wait()
        self._killed[name].append(child.log.stat().st_size)
        if flip:
            data = bytearray(checkpoint.read_bytes())
            data[-1] ^= 1
            checkpoint.write_bytes(data)
        await asyncio.sleep(pause_s)
        await child.start()
        self._down.discard(name)
        self.outcome.restarts += 1
        return True

    async def _freeze(self, name: str, duration_s: float) -> bool:
        process = self._up.children[name].process
        if name in self._down or process is None or process.returncode is not None:
            return False
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(duration_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        return True

    async def _restart_the_dead(self) -> None:
        """Restart the nodes that were down when the server ended: they must find out by themselves."""
        for name in sorted(self._down):
            await self._up.children[name].start()
            self.outcome.restarts += 1
        self._down.clear()

    async def _end_all(self) -> None:
        for child in self._up.children.values():
            if child.process is not None and child.process.returncode is None:
                child.process.kill()
                await child.process.wait()

    # Logs

    async def _keep_logs(self) -> None:
        while True:
            self._copy_logs()
            await asyncio.sleep(0.01)

    def _copy_logs(self, all_of_them: bool = False) -> None:
        """A log is whole once the next has begun, and is written over some checkpoints later."""
        for name, copies in self._copies.items():
            state = self._up.nodes / name / "run" / "state"
            found = {journal_number(path): path for path in state.glob("journal-*.log")}
            found.pop(-1, None)
            for number, path in found.items():
                whole = number + 1 in found or all_of_them
                if not whole or number in copies:
                    continue
                copy = self._archive / f"{name}-{number}"
                shutil.copyfile(path, copy)
                if journal_number(path) == number:
                    copies[number] = copy

    def _log(self, name: str, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        path = self._up.children[name].log
        data = path.read_bytes()[start:end] if path.exists() else b""
        rows = []
        for line in data.splitlines():
            with contextlib.suppress(ValueError):  # a kill leaves torn lines, and errors are not JSON
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]

    def _problem(self, what: str) -> None:
        self.outcome.problems.append(what)

    def tails(self, lines: int = 12) -> str:
        """The newest log lines of all nodes, to find the cause of a failure."""
        parts = []
        for name, child in self._up.children.items():
            text = child.log.read_text(errors="replace") if child.log.exists() else ""
            parts.append("\n".join([f"--- {name}", *(line[:300] for line in text.splitlines()[-lines:])]))
        return "\n".join(parts)

    # Checks

    def _check(self) -> None:
        outcome = self.outcome
        for name in self._up.children:
            path = self._up.nodes / name / "run" / "summary.json"
            if not path.is_file():
                self._problem(f"{name}: no summary")
                return
            found = json.loads(path.read_text())
            if found["status"] != "finished":
                self._problem(f"{name}: {found['status']} {found['note']}")
            outcome.repeats += found["duplicates_dropped"]
            if name == SERVER:
                outcome.summary = found
            else:
                outcome.parties[name] = found
            rows = self._log(name)
            outcome.resets += sum(bool(row.get("reset")) for row in rows) if name == SERVER else 0
            outcome.spared += sum(row.get("known", 0) for row in rows if row["event"] == "joined")
            outcome.damaged += sum(row["event"] == "damaged file" for row in rows)
            self._check_goes_on(name)
        self._check_metrics()
        self._check_once()

    def _check_goes_on(self, name: str) -> None:
        for start in self._killed[name]:
            before = [row["update"] for row in self._log(name, 0, start) if row["event"] == "checkpoint"]
            after = [row["update"] for row in self._log(name, start) if row["event"] == "continuing"]
            if before and after and after[0] < before[-1]:
                self._problem(f"{name}: goes on at update {after[0]}, its checkpoint had {before[-1]}")

    def _check_metrics(self) -> None:
        lines = (self._up.nodes / SERVER / "run" / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        updates = [row["update"] for row in rows]
        self.outcome.last_accuracies = [row["accuracy"] for row in rows[-LAST:]]
        if any(later <= earlier for earlier, later in pairwise(updates)):
            self._problem(f"metrics.jsonl does not go forward: {updates}")

    def _check_once(self) -> None:
        outcome = self.outcome
        codec = Codec(find_method(outcome.method).payloads)
        uploads: Counter[str] = Counter()
        for name in self._up.children:
            records, complete = self._records(name, codec)
            outcome.events += len(records)
            outcome.logs_missed += not complete
            self._check_conversations(name, records, complete)
            kind, result = ("step", Stepped) if name == SERVER else ("refine", Refined)
            ends = [r for r in records if isinstance(r.event, WorkDone)]
            # A job that a checkpoint held leaves its result in the journal.
            tokens = [r.event.token for r in ends if r.again == kind or isinstance(r.event.result, result)]
            if any(later <= earlier for earlier, later in pairwise(tokens)):
                self._problem(f"{name}: a step was taken twice, or out of order")
            own = outcome.summary["updates"] if name == SERVER else outcome.parties[name]["steps"]
            if len(tokens) != own if complete else len(tokens) > own:
                self._problem(f"{name}: {len(tokens)} steps in its logs, {own} in its summary")
            for record in records if name == SERVER else ():
                if isinstance(record.event, Received) and isinstance(record.event.message, Embeddings):
                    uploads[record.event.sender] += record.event.message.batch > 0
        for name, found in outcome.parties.items():
            if found["steps"] > uploads[name] and not outcome.logs_missed:
                self._problem(f"{name}: {found['steps']} steps, but the server had {uploads[name]} uploads of it")
        steps = sum(found["steps"] for found in outcome.parties.values())
        each = {"vafl": 1, "sync": len(outcome.parties)}.get(outcome.method)
        # An upload that is sent again after a reset counts again.
        in_flight = len(outcome.parties) * (1 + outcome.resets)
        if each is not None and not 0 <= each * outcome.summary["updates"] - steps <= in_flight:
            self._problem(f"{outcome.summary['updates']} updates, but {steps} steps of all parties")

    def _records(self, name: str, codec: Codec) -> tuple[list[Record], bool]:
        """All events of a node's life, and whether none is missing (on a busy machine the copier may come late)."""
        copies = self._copies[name]
        records = [record for number in sorted(copies) for record in read_journal(copies[number], codec, number)[1]]
        return records, set(copies) == set(range(max(copies) + 1))

    def _check_conversations(self, name: str, records: list[Record], complete: bool) -> None:
        heard: dict[tuple[str, int], int] = {}
        for record in records:
            if isinstance(record.event, Received):
                key = (record.event.sender, record.conversation)
                gap = record.sequence - heard.get(key, 0)
                if gap < 1 or (gap > 1 and complete):
                    self._problem(f"{name}: message {record.sequence} of {key} after {heard.get(key, 0)}")
                    return
                heard[key] = record.sequence


def run_one(config: Config, folder: Path, faults: list[Fault], deadline_s: float = DEADLINE_S) -> Outcome:
    """Run one schedule; a failed outcome ends with the tails of the logs."""
    schedule = Schedule(config, folder, faults)
    outcome = asyncio.run(schedule.run(deadline_s))
    if outcome.problems:
        outcome.problems.append("\n".join([*(f"injected: {fault}" for fault in outcome.faults), schedule.tails()]))
    return outcome


def check_against_calm(outcome: Outcome, calm: list[Outcome]) -> None:
    """Asynchronous runs differ from one another; lock-step ones do not."""
    if outcome.problems:
        return
    if outcome.method == "sync":
        same = [outcome.parties[name]["weights"] == found["weights"] for name, found in calm[0].parties.items()]
        digests = {run.summary["weights_sha256"] for run in (outcome, calm[0])} - {None}
        if not all(same) or len(digests) > 1 or outcome.accuracy != calm[0].accuracy:
            outcome.problems.append("sync: the weights are not the calm run's")
    elif outcome.accuracy < mean(run.accuracy for run in calm) - POINT:
        outcome.problems.append(f"accuracy {outcome.accuracy:.4f}, calm {mean(run.accuracy for run in calm):.4f}")


def run_calm(method: str, folder: Path) -> Outcome:
    """Run without faults, in a folder that is removed afterwards."""
    try:
        return run_one(chaos_config(method), folder, [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_chaos(method: str, folder: Path, seed: int) -> Outcome:
    """Run the schedule of this seed, in a folder that is removed afterwards."""
    names = tuple(f"party-{index + 1}" for index in range(PARTIES))
    try:
        return run_one(chaos_config(method), folder, draw_schedule(seed, names))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", type=int, default=8, help="calm runs of each asynchronous method to compare with")
    parser.add_argument("--only", choices=sorted(set(METHODS)), help="one method only")
    parser.add_argument("--workers", type=int, default=1, help="federations at the same time; each has five processes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the folder is removed in any case
    methods = (options.only,) if options.only else METHODS
    with (
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        ProcessPoolExecutor(options.workers, get_context("spawn")) as pool,
    ):
        quiet = [
            (method, number)
            for method in dict.fromkeys(methods[: options.schedules])
            for number in range(1 if method == "sync" else options.calm)
        ]
        calm: dict[str, list[Outcome]] = {}
        places = [Path(folder) / f"calm-{method}-{number}" for method, number in quiet]
        for (method, number), outcome in zip(quiet, pool.map(run_calm, [m for m, _ in quiet], places), strict=True):
            calm.setdefault(method, []).append(_report(outcome, f"calm {number}"))
        seeds = range(options.seed, options.seed + options.schedules)
        chosen = [methods[number % len(methods)] for number in range(options.schedules)]
        places = [Path(folder) / f"schedule-{seed}" for seed in seeds]
        outcomes = []
        for method, seed, outcome in zip(chosen, seeds, pool.map(run_chaos, chosen, places, seeds), strict=True):
            check_against_calm(outcome, calm[method])
            outcomes.append(_report(outcome, f"seed {seed}"))
    _table(calm, outcomes)
    everything = [*outcomes, *(run for runs in calm.values() for run in runs)]
    return 1 if any(outcome.problems for outcome in everything) else 0


def _report(outcome: Outcome, what: str) -> Outcome:
    print(f"{what:8} {outcome.line()}", *outcome.problems, sep="\n    ", flush=True)
    return outcome


def _table(calm: dict[str, list[Outcome]], outcomes: list[Outcome]) -> None:
    head = "method   schedules  failed  faults  restarts  spared  repeats  reset"
    print(f"\n{head}   calm (lowest–highest)      chaos median  worst")
    for method, runs in calm.items():
        of = [outcome for outcome in outcomes if outcome.method == method]
        if not of:
            continue
        quiet, loud = [run.accuracy for run in runs], [outcome.accuracy for outcome in of]
        print(
            f"{method:8} {len(of):9}  {sum(bool(o.problems) for o in of):6}  {sum(len(o.faults) for o in of):6}  "
            f"{sum(o.restarts for o in of):8}  {sum(o.spared for o in of):6}  {sum(o.repeats for o in of):7}  "
            f"{sum(o.resets for o in of):6}   {mean(quiet):.4f} ({min(quiet):.4f}–{max(quiet):.4f})    "
            f"{median(loud):.4f}        {min(loud):.4f}"
        )


if __name__ == "__main__":
    sys.exit(main())
