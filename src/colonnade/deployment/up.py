"""A whole federation on this machine: every role is a process, over loopback, with throw-away certificates.

    FOLDER/config.toml, metrics.jsonl, summary.json, …    as of any run
    FOLDER/nodes/certificates/                            keys that only this run uses, and that renew themselves
    FOLDER/nodes/NAME/                                    config, share of the data, log and state of one role

Each process reads its own folder only. A process that is killed is started again and continues.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from scipy.sparse import issparse

from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import load_partition, make_plan, privacy_of, refuse_unbuildable
from colonnade.config.schema import Config, from_dict, read_toml, to_dict
from colonnade.config.settle import settled
from colonnade.config.trust import modules_of
from colonnade.data import Partition, party_share, save_share, server_share
from colonnade.deployment.own_side import limits_of
from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.renewal import freshen
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.results.folder import RunFolder
from colonnade.results.summary import Summary
from colonnade.results.track import check_track
from colonnade.results.trained import find_run, keep_continuation

__all__ = [
    "FAREWELL_S",
    "Child",
    "FederationUp",
    "prepare_up",
    "refuse_network",
    "refuse_windows",
    "reopen_folder",
    "reopen_up",
]

RESTARTS = 5  # of one process within a minute; after that it has failed
FAREWELL_S = 15.0
FRESHEN_S = 3600.0  # between two looks at the certificates
COPIED = ("metrics.jsonl", "summary.json", "timeline.json", "staleness.json", "live.json")

SET_HERE = ("address", "parties", "certificate", "key", "authority", "members")  # of [network]

OnStatus = Callable[[dict[str, Any]], None]


def refuse_windows(what: str) -> None:
    """Raise on Windows, which has no SIGTERM and does not end a process with its parent."""
    if sys.platform == "win32":
        raise ColonnadeError(f"{what} needs Linux or macOS; on Windows start each role in its own terminal, or use WSL")


def refuse_network(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for keys of `[network]` that a federation on one machine sets itself."""
    for key in SET_HERE:
        if key in given:
            own = {
                "address": "the system chooses a free port and writes it to DIR/nodes/server/run/address",
                "parties": "data.parties or data.split names them",
            }.get(key, "every run makes its own certificates")
            advice = (
                f"this command starts all roles: {own}; leave the key out, or use colonnade serve and colonnade join"
            )
            raise ConfigError(f"network.{key}", given[key], advice)


def prepare_up(
    config: Config,
    out: Path,
    data: Partition | None = None,
    load_data: Callable[..., Partition] = load_partition,
    kind: "type[FederationUp] | None" = None,
    continues: Path | None = None,
) -> "FederationUp":
    """Make the folders of all roles. All checks happen here; raises ConfigError.

    `continues` is the folder of the run from whose networks this one starts.
    """
    RunFolder.refuse_used(out)
    config.diagnose.refuse_apart()
    check_track(config.track)
    before = None if continues is None else find_run(continues)
    if data is None:
        data = load_data(config) if before is None else load_data(config, before=before.fitted())
    config = settled(config, len(data.y_train), data.validation)
    plan = make_plan(config, data.parties, len(data.y_train), data.task, data.validation)
    if plan.method.joint is not None:
        raise ConfigError("protocol.name", plan.method.name, "runs in the simulator only: remove --driver")
    if any(issparse(block) for block in data.train):
        raise ConfigError("data.sparse", True, "sparse tables run in the simulator only: remove --driver")
    refuse_unbuildable(config, data, before)
    kind = kind or FederationUp
    kind.refuse(config, data.parties)
    RunFolder.create(out, config, before)
    nodes = out / "nodes"
    throw_away(data.parties, nodes / "certificates")
    for name in (SERVER, *data.parties):
        (nodes / name).mkdir(parents=True, mode=0o700)
        if before is not None and name in before.members:
            (nodes / name / "run").mkdir(mode=0o700)
            keep_continuation(nodes / name / "run", before.only(name))
    tested = len(data.y_test) - data.validation
    rows = (len(data.y_train) + data.validation, tested) if plan.method.capabilities.party_labels else None
    if rows is None:
        save_share(server_share(data), nodes / SERVER / "share.safetensors")
    for index, name in enumerate(data.parties):
        save_share(party_share(data, index, plan.method.capabilities.party_labels), nodes / name / "share.safetensors")
    up = kind(config, out, data.parties, (*data.notes, *privacy_of(config).notes(len(data.y_train))))
    up.write_config(SERVER, "127.0.0.1:0", rows)
    return up


def reopen_up(
    config: Config, out: Path, predict: bool = False, kind: "type[FederationUp] | None" = None
) -> "FederationUp":
    """Continue a federation that was stopped, or start one that has ended for predictions."""
    reopen_folder(config, out)
    nodes = out / "nodes"
    if not (nodes / SERVER / "config.toml").is_file():
        raise ConfigError("--resume", str(out), "is not a run of --driver processes or ray")
    certificates = (nodes / "certificates").glob("*.pem")
    names = {path.stem for path in certificates} - {SERVER, "ca"}
    order = [name for name in _order(nodes) if name in names]
    kind = kind or FederationUp
    kind.refuse(config, tuple(order))
    freshen(order, nodes / "certificates")
    return kind(config, out, tuple(order), (), predict)


def reopen_folder(config: Config, out: Path) -> RunFolder:
    """Open the run folder; raises for another config. Only `resources` may differ, as the cluster may have changed."""
    there = out / "config.toml"
    resources = from_dict(read_toml(there)).resources if there.is_file() else config.resources
    return RunFolder.reopen(out, msgspec.structs.replace(config, resources=resources))


def _order(nodes: Path) -> list[str]:
    return list(tomllib.loads((nodes / SERVER / "config.toml").read_text(encoding="utf-8"))["network"]["parties"])


class Child:
    """One role's process."""

    def __init__(self, name: str, command: list[str], log: Path, folder: Path | None = None) -> None:
        self.name, self._command, self.log, self._folder = name, command, log, folder
        self.process: asyncio.subprocess.Process | None = None
        self.starts: list[float] = []

    async def start(self) -> None:
        """Start the process, also after it ended."""
        self.starts = [*self.starts[-RESTARTS:], time.monotonic()]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this process, which then stops them in order
                env=environment,
                cwd=self._folder,
            )

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.returncode if self.process is not None else None

    @property
    def hopeless(self) -> bool:
        """Whether it ended too often to be started again."""
        return len(self.starts) > RESTARTS and self.starts[-1] - self.starts[-1 - RESTARTS] < 60.0

    def stop(self) -> None:
        """Ask the process to stop cleanly."""
        if self.process is not None and self.code is None:
            self.process.send_signal(signal.SIGTERM)

    async def gone(self, timeout_s: float) -> None:
        """Wait until the process has ended; kill it after `timeout_s`."""
        if self.process is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def last_words(self) -> str:
        """The last line of its log, for a message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].removeprefix("Error: ") if lines else "it printed no error"


class FederationUp:
    """Starts, watches and stops the roles of a federation. Here each role is a process."""

    def __init__(
        self, config: Config, out: Path, parties: tuple[str, ...], notes: tuple[str, ...], predict: bool = False
    ) -> None:
        self.config, self.out, self.parties, self.notes, self._predict = config, out, parties, notes, predict
        self.nodes = out / "nodes"
        self.server_run = self.nodes / SERVER / "run"
        self.children = {name: self._child(name) for name in (SERVER, *parties)}
        self.stopping = False
        self._fresh_at = time.monotonic()
        self.say: Callable[[str], None] = lambda text: None  # prints a line beside the table

    @staticmethod
    def refuse(config: Config, parties: tuple[str, ...]) -> None:
        """Raise for what cannot run this way, before anything is written."""
        refuse_windows("starting all roles on this machine")

    @property
    def address(self) -> str:
        """The server's address; empty until it listens."""
        path = self.server_run / "address"
        return path.read_text() if path.is_file() else ""

    def _child(self, name: str) -> Any:
        folder = self.nodes / name
        verb = ["serve"] if name == SERVER else ["join", "--party", name]
        command = [sys.executable, "-m", "colonnade", verb[0], str(folder / "config.toml"), *verb[1:]]
        command += ["--out", str(folder / "run"), "--log-json", "--parent", str(os.getpid())]
        command += ["--predict"] if self._predict else []
        for module in modules_of(self.config):  # the user wrote this config
            command += ["--trust", module]
        return Child(name, command, folder / "log.jsonl")

    def write_config(self, name: str, address: str, rows: tuple[int, int] | None = None) -> None:
        """Write one role's config.

        `rows`, for a server without labels: how many rows are to train or validate on, and how many to test on.
        """
        tables = to_dict(self.config)
        certificates, share = self.nodes / "certificates", str(self.nodes / name / "share.safetensors")
        tables["network"] |= {
            "parties": list(self.parties),
            "address": address,
            "certificate": str(certificates / f"{name}.pem"),
            "key": str(certificates / f"{name}.key"),
            "authority": str(certificates / "ca.pem"),
            "members": str(certificates / "members.toml"),
        }
        if name != SERVER:
            tables["network"].pop("metrics_port", None)  # the server has it: one port, one process
        tables.pop("methods", None)
        section = "server" if name == SERVER else "party"
        own = {"data": share} if rows is None else {"rows": sum(rows), "test_rows": rows[1]}
        tables[section] = tables.get(section, {}) | own
        budget = self.config.budget_of(name)
        tables["party"] |= {"budgets": {}} | ({"budget": msgspec.to_builtins(budget)} if budget is not None else {})
        (self.nodes / name / "config.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")

    async def run(self, on_status: OnStatus | None = None) -> Summary:
        """Run until the server ends; returns the summary."""
        try:
            await self.start()
            while self.children[SERVER].code not in (0, 1):  # killed: `look_after` starts it again
                await asyncio.sleep(0.25)
                await self.look_after()
                self._freshen()
                if on_status is not None and (status := await self.status()) is not None:
                    on_status(status)
            await self._farewell()
        finally:
            await self.stop()
        return self._collect()

    async def start(self) -> None:
        """Start the server, then the parties, which need its address."""
        server = self.children[SERVER]
        address = self.server_run / "address"
        before = address.stat().st_mtime_ns if address.exists() else None
        await server.start()
        while not address.exists() or address.stat().st_mtime_ns == before:
            await asyncio.sleep(0.05)
            await self.look_after()
            if server.code is not None:
                return
        for name in self.parties:
            self.write_config(name, self.address)
            await self.children[name].start()

    async def look_after(self) -> None:
        """Restart killed processes. If a process gave up by itself, raise ColonnadeError with its last line."""
        for child in self.children.values():
            code = child.code
            if code is None or (code == 0 and child.name != SERVER):
                continue
            if code < 0 and not child.hopeless and not self.stopping:
                await child.start()
            elif code not in (0, 1):
                raise ColonnadeError(f"{child.name} ended: {child.last_words()} (see {child.log})")

    def _freshen(self) -> None:
        """Renew certificates now and then: a run may last longer than they do. The roles notice the new files."""
        if time.monotonic() - self._fresh_at >= FRESHEN_S:
            self._fresh_at = time.monotonic()
            try:
                freshen(self.parties, self.nodes / "certificates")
            except ConfigError as error:
                self.say(f"cannot renew the certificates of this run: {error}")

    async def status(self) -> dict[str, Any] | None:
        """The server's status; None while it cannot answer."""
        try:
            certificates = self.nodes / "certificates"
            pair = certificates / f"{SERVER}.pem", certificates / f"{SERVER}.key"
            identity = Identity.load(*pair, certificates / "ca.pem")
            answer = await ask_status(identity, self.address, limits_of(self.config), timeout_s=2.0)
        except ColonnadeError:
            return None
        found: dict[str, Any] = json.loads(answer)
        return found

    async def _farewell(self) -> None:
        """Wait for the parties, which end by themselves after the server."""
        await asyncio.gather(*(self.children[name].gone(FAREWELL_S) for name in self.parties))

    async def stop(self) -> None:
        """Stop the processes that still run, the parties first, and copy the server's results."""
        self.stopping = True
        for name in (*self.parties, SERVER):
            self.children[name].stop()
        await asyncio.gather(*(child.gone(FAREWELL_S) for child in self.children.values()))
        for name in COPIED:
            made = self.server_run / name
            if made.is_file():
                shutil.copyfile(made, self.out / name)

    def _collect(self) -> Summary:
        path = self.out / "summary.json"
        if not path.is_file():
            raise ColonnadeError(f"server ended: {self.children[SERVER].last_words()}")
        summary: Summary = json.loads(path.read_text(encoding="utf-8"))
        return summary
