"""Everything that is wrong with one member's set-up, before anything is dialled: `colonnade check`.

A command that starts a role stops at the first mistake. These checks go on, so that the operator corrects all mistakes
at once. They write nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import parties_of
from colonnade.config.schema import Config, from_dict, typed_tables
from colonnade.deployment.check_certificates import certificate_findings, name_in_certificate
from colonnade.deployment.check_machine import machine_findings
from colonnade.deployment.check_table import table_findings, trust_finding
from colonnade.deployment.finding import Finding, Findings, error, fine, tried, warning
from colonnade.protocol.errors import ConfigError
from colonnade.results.places import own_folder

__all__ = ["Checked", "check_member"]

MOST = 50  # wrong keys of a config that are reported


@dataclass(frozen=True, slots=True)
class Checked:
    """All findings about one member."""

    name: str | None  # of the member; None if the config cannot be read
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing keeps the member from taking part."""
        return all(one.status != "error" for one in self.findings)


def check_member(
    path: Path,
    settings: Sequence[str] = (),
    *,
    party: str | None = None,
    out: Path | None = None,
    trusted: Sequence[str] = (),
    dial: bool = False,
    now: datetime | None = None,
) -> Checked:
    """Check the config at `path` and all that it names; raises nothing that an operator could cause."""
    try:
        config, wrong = _read(path, settings)
    except ConfigError as unreadable:
        return Checked(None, (error("config", str(unreadable)),))
    name = party or _name(config, path)
    out = out or own_folder(path, name)
    found = [*_config(path, wrong), *_member(config, name, path)]
    trust = trust_finding(config, list(trusted))
    found += [trust] if trust is not None else []
    found += table_findings(config, name, path, trusted=trust is None or trust.status == "ok")
    found += certificate_findings(config, name, now)
    found += machine_findings(config, name, out, dial)
    return Checked(name, tuple(found))


def _read(path: Path, settings: Sequence[str]) -> tuple[Config, list[ConfigError]]:
    """The config without its wrong keys, and these; raises ConfigError if it is no TOML."""
    tables = typed_tables(path, settings)
    wrong: list[ConfigError] = []
    while True:
        try:
            return from_dict(tables), wrong
        except ConfigError as fault:
            wrong.append(fault)
            shorter = _without(tables, fault.key)
            if shorter == tables or len(wrong) >= MOST:
                raise fault from None
            tables = shorter


def _without(tables: Mapping[str, Any], dotted: str) -> dict[str, Any]:
    """The tables without a key, or without the nearest table around it that is there."""
    first, _, rest = dotted.partition(".")
    if not rest or not isinstance(inner := tables.get(first), Mapping):
        return {key: value for key, value in tables.items() if key != first}
    shorter = _without(inner, rest)
    return {key: value for key, value in tables.items() if key != first} | (
        {first: shorter} if shorter != inner else {}
    )


def _name(config: Config, path: Path) -> str:
    """The member whose config this is: as its certificate says, else as the file or its sections say."""
    shown = name_in_certificate(config)
    if shown is not None:
        return shown
    if path.stem in (SERVER, *config.network.parties):
        return path.stem
    return SERVER if config.party.data is None else path.stem


def _config(path: Path, wrong: Sequence[ConfigError]) -> Findings:
    yield from (error("config", str(fault)) for fault in wrong)
    if not wrong:
        yield fine("config", str(path))
    if path.resolve().parent != Path.cwd():
        text = f"paths in it start at {Path.cwd()}, where the command was typed"
        yield warning("folder", text, f"cd {os.path.relpath(path.resolve().parent)}")


def _member(config: Config, name: str, path: Path) -> Findings:
    def listed() -> str:
        parties = parties_of(config)
        if name not in (*parties, SERVER):
            raise ConfigError("network.parties", list(parties), f"has no {name!r}")
        return (
            f"{name}, of {', '.join(parties)} and the server"
            if name != SERVER
            else f"the server of {', '.join(parties)}"
        )

    yield tried("member", listed, f"correct network.parties in {path}, or choose the party with --party")
