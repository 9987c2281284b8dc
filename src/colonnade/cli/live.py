"""The live table of a federation: for `up`, for `run` with processes or Ray, and for `status`."""

import asyncio
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from colonnade.deployment.up import FederationUp
    from colonnade.results.summary import Summary

__all__ = ["status_table", "up_with_table"]

SAY_OWED_AFTER_S = 5.0
WARNING_DAYS = 30  # before a certificate expires


def up_with_table(federation: "FederationUp", out: Console) -> "Summary":
    """Run a federation under its live table."""
    federation.say = lambda text: out.print(text, markup=False, highlight=False, soft_wrap=True)
    with Live(console=out, refresh_per_second=4, transient=True) as live:
        return asyncio.run(federation.run(lambda found: live.update(status_table(found))))


def status_table(status: dict[str, Any]) -> Group:
    table = Table("party", "state", "steps/s", "staleness", "up", "down", "last seen")
    colours = {"connected": "green", "away": "yellow", "lost": "red", "given up": "red"}
    for party in status["parties"]:
        colour = colours.get(party["state"], "dim")
        seen = "" if party["last_seen_s"] is None else f"{party['last_seen_s']:.0f} s ago"
        staleness = "" if party["staleness"] is None else f"{party['staleness']:.1f}"
        table.add_row(
            escape(party["name"]),
            f"[{colour}]{escape(party['state'])}[/]",
            f"{party['steps_per_s']:.1f}",
            staleness,
            _bytes(party["bytes_up"]),
            _bytes(party["bytes_down"]),
            seen,
        )
    metric = " ".join(filter(None, (status.get("rows"), status["metric"])))
    value = "" if status["value"] is None else f" · {metric} {status['value']:.4g}"
    head = f"{status['protocol']} · {status['state']} · update {status['updates']} ({status['updates_per_s']:.1f}/s)"
    lines = [escape(f"{head} · epoch {status['epochs']:.2f}{value} · {status['clock_s']:.0f} s")]
    if status["state"] == "waiting" and status["waits_for"]:
        names = escape(", ".join(status["waits_for"]))
        lines.append(f"[yellow]waits for {names} for {status['waited_s']:.0f} s[/]")
    lines += _debts(status["parties"])
    lines += _expiring(status.get("certificate_days", {}))
    if status["refused_by_limit"]:
        refused = escape(", ".join(f"{limit} {count}" for limit, count in status["refused_by_limit"].items()))
        lines.append(f"[yellow]refused: {refused}[/]")
    bar = Padding(ProgressBar(1.0, status["fraction"], width=60), 0, expand=False)  # a bar alone does not end its line
    return Group(*lines, bar, table)


def _expiring(days: dict[str, int]) -> list[str]:
    """The certificates that expire within 30 days, in one line."""
    soon = [f"{name} {left} days" for name, left in days.items() if left < WARNING_DAYS]
    return [f"[yellow]certificates to renew: {escape(', '.join(soon))}[/]"] if soon else []


def _debts(parties: list[dict[str, Any]]) -> list[str]:
    """What parties have owed for some time, a line for each debt."""
    owing: dict[str, list[str]] = {}
    for party in parties:
        if party["owed_s"] is not None and party["owed_s"] >= SAY_OWED_AFTER_S:
            owing.setdefault(party["owes"], []).append(f"{party['name']} ({party['owed_s']:.0f} s)")
    return [f"[yellow]{escape(what)}: owed by {escape(', '.join(names))}[/]" for what, names in owing.items()]


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} TB"
