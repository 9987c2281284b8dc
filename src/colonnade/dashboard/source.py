"""Where the page's content comes from: a run's folder, or a server that is asked once a second."""

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.wire import Question
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.report.records import Record, load_records
from colonnade.results.live import read_live

__all__ = ["FolderSource", "ServerSource", "Source", "State", "record_of", "still_runs"]

ASK_S = 1.0
MOST_ROWS = 100_000  # of metrics.jsonl that are kept
RUNNING = ("training", "waiting")


@dataclass(frozen=True, slots=True)
class State:
    """A run as far as it is known now."""

    name: str
    live: Mapping[str, Any] = field(default_factory=dict)  # content of live.json; {}: there is none
    record: Record | None = None  # for the report's figures
    over: bool = False  # the record is the final one
    trouble: str = ""  # why the newest state is not known
    heard_at: float | None = None  # when the content was written or received, in seconds since 1970


class Source(Protocol):
    """Gives the newest state; thread-safe."""

    def state(self) -> State: ...

    def close(self) -> None: ...


def still_runs(live: Mapping[str, Any]) -> bool:
    return live.get("status", {}).get("state") in RUNNING


def record_of(live: Mapping[str, Any], rows: list[dict[str, Any]]) -> Record | None:
    """Return the record that the report's figures take, of a run that is under way."""
    if "summary" not in live:
        return None
    return Record(live["summary"]["protocol"], live["summary"], rows, live.get("timeline"), live.get("staleness"))


class FolderSource:
    """Reads the folder of a run. A run of processes or on Ray keeps its state in the server's folder until its end."""

    def __init__(self, folder: Path) -> None:
        self._home, self._name = folder, folder.resolve().name
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int], list[dict[str, Any]]] = ((0, 0), [])
        self._final: tuple[float, Record] | None = None
        if not (folder / "config.toml").is_file():
            raise ConfigError("RUN_OR_ADDRESS", str(folder), _no_run(folder))
        if not (self._run() / "metrics.jsonl").is_file():
            advice = "holds no metrics.jsonl: it is the folder of a party; watch the server's folder, or its address"
            raise ConfigError("RUN_OR_ADDRESS", str(folder), advice)

    def _run(self) -> Path:
        inner = self._home / "nodes" / "server" / "run"
        return inner if (inner / "metrics.jsonl").is_file() else self._home

    def state(self) -> State:
        """Read what has changed."""
        with self._lock:
            folder = self._run()
            live = read_live(folder) or {}
            if (final := self._ended(folder, live)) is not None:
                return State(self._name, live, final, over=True)
            record = record_of(live, self._rows(folder / "metrics.jsonl"))
            trouble = "" if live else "the run has not written live.json yet"
            return State(self._name, live, record, trouble=trouble, heard_at=live.get("changed"))

    def close(self) -> None:
        """Nothing is open."""

    def _ended(self, folder: Path, live: Mapping[str, Any]) -> Record | None:
        """Return the final record; None if the run is under way, for the first time or again."""
        try:
            written = (folder / "summary.json").stat().st_mtime
        except OSError:
            return None
        if still_runs(live) and live["changed"] > written:
            return None
        if self._final is None or self._final[0] != written:
            with suppress(ValueError, OSError):
                self._final = written, load_records(folder)[0]
        return None if self._final is None else self._final[1]

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl. It grows, or a resumed run replaces it."""
        found = path.stat()
        (inode, size), rows = self._read
        if inode != found.st_ino or size > found.st_size:
            size, rows = 0, []
        with path.open("rb") as file:
            file.seek(size)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        with suppress(ValueError):
            rows = [*rows, *map(json.loads, whole)][-MOST_ROWS:]
        self._read = (found.st_ino, size + sum(map(len, whole))), rows
        return rows


def _no_run(folder: Path) -> str:
    inside = sorted(path.parent.name for path in folder.glob("*/config.toml"))
    if inside:
        return f"is a comparison; name one of its runs, for example: colonnade watch {folder / inside[0]}"
    return "holds no run (config.toml is missing)"


class ServerSource:
    """Asks a server for its status, in a thread of its own."""

    def __init__(self, identity: Identity, address: str, limits: Limits) -> None:
        self._identity, self._address, self._limits = identity, address, limits
        self._state = State(address, trouble="the server has not answered yet")
        self._rows: list[dict[str, Any]] = []
        self._closed = threading.Event()
        self._latest(asyncio.run(self._ask()))  # an address or a certificate that is wrong is refused at once
        self._thread = threading.Thread(target=lambda: asyncio.run(self._keep_asking()), daemon=True)
        self._thread.start()

    def state(self) -> State:
        return self._state

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._thread.join(timeout=2 * ASK_S)

    async def _keep_asking(self) -> None:
        while not self._closed.is_set():
            try:
                self._latest(await self._ask())
            except ColonnadeError as error:
                self._state = replace(self._state, trouble=str(error))
            await asyncio.sleep(ASK_S)

    async def _ask(self) -> dict[str, Any]:
        question = Question(len(self._rows))
        return cast(
            dict[str, Any], json.loads(await ask_status(self._identity, self._address, self._limits, 5.0, question))
        )

    def _latest(self, answer: dict[str, Any]) -> None:
        live = answer.pop("live", {})
        rows, begin = live.pop("rows", []), live.pop("rows_from", 0)
        if live.pop("rows_in_all", 0) < begin:  # the server has restarted, from an earlier checkpoint
            rows, begin = [], 0
        self._rows = [*self._rows[:begin], *rows][:MOST_ROWS]
        told = {**live, "status": answer}
        trouble = "" if live else "the server is of an earlier release: it tells no more than `colonnade status` shows"
        self._state = State(self._address, told, record_of(told, self._rows), False, trouble, time.time())
