"""Keeps a running member's certificate and list of members up to date.

The process looks at its files every few seconds, and at once on SIGHUP. New files are used without a restart. Files
that cannot be used are refused with a warning, and the old ones stay. A certificate that expires within 30 days is
warned of once a day.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from colonnade.deployment.own_side import OwnSide
from colonnade.drivers.processes.identity import Identity, certificate_days, fingerprint
from colonnade.drivers.processes.members import Members
from colonnade.protocol.errors import ConfigError

__all__ = ["WARNING_DAYS", "Membership"]

LOOK_S = 2.0
DAY_S = 86_400.0
WARNING_DAYS = 30

Stamps = tuple[tuple[int, int, int] | None, ...]


class Membership:
    """Watches the files of one member, and tells `changed` when the member has new ones."""

    def __init__(
        self,
        side: OwnSide,
        changed: Callable[[], None],
        days_of_others: Callable[[], Mapping[str, int]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._side, self._changed, self._days_of_others, self._clock = side, changed, days_of_others, clock
        self._used = self._seen = self._stamps()
        self._warned_at: dict[str, float] = {}
        self._now = asyncio.Event()

    def days(self) -> dict[str, int]:
        """Whole days until each certificate expires: this member's, the authority's, and those of members it saw."""
        return certificate_days(self._side.identity) | dict(self._days_of_others())

    async def watch(self) -> None:
        """Look at the files and at the dates, until the task is cancelled."""
        self._look_on_hangup()
        self.look(at_once=True)  # they may have changed while the data were loaded
        while True:
            self.warn()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._now.wait()
            except TimeoutError:
                self.look()
            else:
                self._now.clear()
                self.look(at_once=True)

    def look(self, at_once: bool = False) -> None:
        """Use the files if they have changed and are the same as at the last look: a copy may be under way."""
        stamps, before = self._stamps(), self._seen
        self._seen = stamps
        if stamps == self._used and not at_once:
            return
        if stamps == before or at_once:
            self._used = stamps  # also if they are refused: each version is refused once
            self._load()

    def _load(self) -> None:
        side = self._side
        before, own = side.pins, side.identity
        try:
            side.reload()
            if own != side.identity or before.tables() != side.pins.tables():
                self._changed()
        except ConfigError as error:
            side.identity, side.pins = own, before
            side.log.warning("refused new certificates or a new list of members; the old ones stay", cause=str(error))
            return
        if own != side.identity:
            self._tell()
        self._say(own, before)

    def _say(self, own: Identity, before: Members) -> None:
        side = self._side
        if own.certificate != side.identity.certificate:
            days = certificate_days(side.identity)[side.identity.name]
            side.log.info("certificate renewed", fingerprint=fingerprint(side.identity.certificate)[:16], days=days)
        if change := before.change_to(side.pins):
            fields = {key: ",".join(names) for key, names in change._asdict().items() if names}
            side.log.info("members changed", **fields)

    def _tell(self) -> None:
        for tell in self._side.on_renewed:
            try:
                tell()
            except ConfigError as error:
                self._side.log.warning("refused a new certificate; the old one stays", cause=str(error))

    def warn(self) -> None:
        """Log each certificate that expires soon, once a day."""
        now = self._clock()
        for name, days in self.days().items():
            if days < WARNING_DAYS and now - self._warned_at.get(name, -DAY_S) >= DAY_S:
                self._warned_at[name] = now
                what = "a certificate expires soon" if days >= 0 else "a certificate has expired"
                what = f"{what}: the federation renews it with `colonnade certs renew {name}`"
                self._side.log.warning(what, member=name, days=days)

    def _stamps(self) -> Stamps:
        network = self._side.config.network
        files = (network.certificate, network.key, network.authority, network.members)
        return tuple(_stamp(Path(str(file))) for file in files)

    def _look_on_hangup(self) -> None:
        """Look at once on SIGHUP. If the terminal of this process was closed, stop as before."""
        if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
            return
        had_terminal = _has_terminal()

        def hung_up() -> None:
            if had_terminal and not _has_terminal():
                signal.raise_signal(signal.SIGTERM)
            self._now.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
