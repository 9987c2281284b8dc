"""All members of an alignment on this machine, each a process in its own folder, instead of several terminals."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from colonnade.algorithms.method import SERVER
from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.deployment.own_side import limits_of
from colonnade.deployment.up import FAREWELL_S, Child, refuse_windows
from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.dial import ask_status
from colonnade.protocol.errors import ColonnadeError, ConfigError

__all__ = ["AlignAll"]


class AlignAll:
    """Starts, watches and stops the members. Each runs in the folder of its config, so that relative paths work."""

    def __init__(self, paths: Sequence[Path]) -> None:
        refuse_windows("an alignment with all members on this machine")
        self._configs = {self._identity(path).name: path for path in paths}
        if SERVER not in self._configs or len(self._configs) != len(paths):
            advice = "name the configs of the server and of all parties, each once"
            raise ConfigError("CONFIG", [str(path) for path in paths], advice)
        self._server: Config = from_dict(read_toml(self._configs[SERVER]))
        absent = [name for name in self._server.network.parties if name not in self._configs]
        if absent:
            raise ConfigError("CONFIG", [str(path) for path in paths], f"the config of {', '.join(absent)} is missing")
        self.children = [self._child(name, path) for name, path in self._configs.items()]

    @staticmethod
    def _identity(path: Path) -> Identity:
        network, folder = from_dict(read_toml(path)).network, path.parent
        files = {"certificate": network.certificate, "key": network.key, "authority": network.authority}
        for key, file in files.items():
            if file is None:
                raise ConfigError(f"network.{key}", None, f"{path}: name the file; see colonnade certs --help")
        return Identity.load(*(folder / str(file) for file in files.values()))

    def _out(self, name: str) -> Path:
        return self._configs[name].parent.resolve() / "runs" / f"{name}-align"

    def _child(self, name: str, path: Path) -> Child:
        out = self._out(name)
        out.mkdir(parents=True, exist_ok=True)
        for old in ("log.jsonl", "summary.json"):  # of an earlier alignment
            (out / old).unlink(missing_ok=True)
        command = [sys.executable, "-m", "colonnade", "align", path.name, "--out", str(out), "--log-json"]
        return Child(name, [*command, "--parent", str(os.getpid())], out / "log.jsonl", path.parent)

    async def run(self, show: Callable[[dict[str, Any]], None]) -> dict[str, dict[str, Any]]:
        """Run until all members have ended; returns their summaries by name."""
        try:
            for child in self.children:
                await child.start()
            while any(child.code is None for child in self.children):
                await asyncio.sleep(0.25)
                for child in self.children:
                    if child.code not in (None, 0, 1):  # 1: the alignment was refused, and all members were told
                        raise ColonnadeError(f"{child.name} ended: {child.last_words()} (see {child.log})")
                await self._show(show)
        finally:
            for child in self.children:
                child.stop()
            await asyncio.gather(*(child.gone(FAREWELL_S) for child in self.children))
        return {name: self._summary(name) for name in self._configs}

    async def _show(self, show: Callable[[dict[str, Any]], None]) -> None:
        try:
            identity, address = self._identity(self._configs[SERVER]), self._server.network.address
            show(json.loads(await ask_status(identity, address, limits_of(self._server), timeout_s=2.0)))
        except ColonnadeError:
            pass  # not yet, or no longer

    def _summary(self, name: str) -> dict[str, Any]:
        path = self._out(name) / "summary.json"
        if not path.is_file():
            raise ColonnadeError(f"{name} ended before the alignment began (see {path.parent / 'log.jsonl'})")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
