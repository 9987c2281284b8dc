"""What a host tells about its own process: its audit log, its health, and its numbers for Prometheus."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from colonnade import __version__
from colonnade.deployment.own_side import OwnSide
from colonnade.drivers.health_file import HEALTH_FILE, REFRESH_S, write_health
from colonnade.drivers.processes.audit import AUDIT_FILE, AuditLog
from colonnade.drivers.processes.descriptors import descriptors_left
from colonnade.drivers.processes.metrics import serve_metrics
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.process_numbers import process_numbers
from colonnade.drivers.processes.spans import start_spans

__all__ = ["Vitals"]

ANSWER_S = 5.0  # within which the event loop answers a question from a thread


class Vitals:
    """Watches one node. `unready` gives the host's own reasons why the node cannot make progress."""

    def __init__(self, side: OwnSide, node: Node, aim: str, unready: Callable[[], list[str]]) -> None:
        self._side, self._node, self._aim, self._unready = side, node, aim, unready
        self._disk = ""  # why health.json could not be written
        self.causes: list[str] = ["starting"]
        self._changed = asyncio.Event()

    @contextmanager
    def running(self, numbers: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Serve metrics, keep the audit log and send spans while the process runs.

        First the metrics: if their port is taken, nothing has started, and ConfigError says so.
        """
        with self._measured(self._side.config.network.metrics_port, numbers), self._audited():
            stop_spans = start_spans(self._node.role.name, self._side.log)
            try:
                yield
            finally:
                self.over()
                stop_spans()

    # The audit log

    @contextmanager
    def _audited(self) -> Iterator[None]:
        """Keep the audit log open, and write when the process starts and why it fails."""
        network, log = self._side.config.network, self._side.log
        most_bytes = round(network.audit_mb * 2**20)
        log.audit = AuditLog(self._side.out / AUDIT_FILE, self._node.role.name, most_bytes, network.audit_files)
        log.audited("started", aim=self._aim, release=__version__)
        try:
            yield
        except BaseException as error:
            log.audited("failed", cause=type(error).__name__)  # not the text, which may name a row
            raise
        finally:
            log.close_audit()

    # Health

    async def watch(self) -> None:
        """Refresh the health regularly, until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(REFRESH_S)

    def refresh(self) -> None:
        """Look for causes, and write them to health.json."""
        causes = self.look()
        try:
            write_health(self._side.out, self._node.role.name, self._aim, os.getpid(), causes)
            self._disk = ""
        except OSError as error:
            self._disk = f"the disk cannot be written: {error.strerror}"
            causes = [*causes, self._disk]
        self._set(causes)

    def look(self) -> list[str]:
        """Why the process cannot make progress now; [] if it can."""
        node, audit = self._node, self._side.log.audit
        causes = self._unready()
        if node.error is not None:
            causes.append(f"failed: {type(node.error).__name__}")
        if self._disk:
            causes.append(self._disk)
        if audit is not None and audit.fault:
            causes.append(f"the audit log cannot be written: {audit.fault}")
        if not descriptors_left():
            causes.append("no descriptor is left")
        return causes

    def over(self) -> None:
        """The process ends: no file says that it lives."""
        self._set(["ended"])
        with contextlib.suppress(OSError):
            (self._side.out / HEALTH_FILE).unlink(missing_ok=True)

    def _set(self, causes: list[str]) -> None:
        changed = bool(causes) != bool(self.causes)
        self.causes = causes
        if changed:
            self._changed.set()
            self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait until the node becomes ready or unready."""
        await self._changed.wait()

    # Numbers

    @contextmanager
    def _measured(self, port: int | None, numbers: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Serve metrics and health on loopback; raises ConfigError if the port is taken."""
        if port is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def ask(answer: Callable[[], Any]) -> Any:
            """The answer of the event loop, for another thread; raises TimeoutError if the loop does not turn."""

            async def on_loop() -> Any:
                return answer()

            coroutine: Coroutine[Any, Any, Any] = on_loop()
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout=ANSWER_S)

        stop = serve_metrics(port, lambda: ask(lambda: self._all(numbers)), lambda: ask(self.look))
        try:
            yield
        finally:
            stop()

    def _all(self, numbers: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        node = self._node
        own = {
            "aim": self._aim,
            "release": __version__,
            "ready": not self.look(),
            "journal_bytes": node.journal_bytes,
            "checkpoint_age_s": node.checkpoint_age_s,
        }
        return own | process_numbers() | numbers()
