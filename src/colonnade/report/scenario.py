"""What the runs have in common, in sentences: which parties are slow and by how much, the target, and the clock."""

from collections.abc import Sequence
from contextlib import suppress
from html import escape
from tomllib import loads

from colonnade.config.schema import from_dict
from colonnade.data.suggest import listing
from colonnade.drivers.simulator import ClockConfig
from colonnade.protocol.errors import ConfigError
from colonnade.report.records import Record
from colonnade.results.summary import Summary

__all__ = ["scenario"]

SLOWER = 1.5  # times slower than the fastest party: less is not mentioned


def scenario(records: Sequence[Record], about: str) -> str:
    """Return paragraphs; `about` is the command's sentence about its comparison."""
    if not records:
        return ""
    sentences = (_parties(records), _target(records[0].summary), _clock(records))
    paragraphs = (about, " ".join(filter(None, sentences)))
    return "".join(f"<p>{escape(text)}</p>" for text in paragraphs if text)


def _parties(records: Sequence[Record]) -> str:
    """Say how fast each party is in the simulator; nothing if runs differ in that, or have no parties."""
    names, clocks = max((record.parties for record in records), key=len), [_clock_of(record) for record in records]
    first = clocks[0]
    simulated = all(record.summary["driver"] == "sim" for record in records)
    if not (names and simulated) or first is None or any(clock != first for clock in clocks):
        return ""
    means = [first.compute_of(index).mean_s for index in range(len(names))]
    fastest = min(means)
    slow: dict[float, list[str]] = {}
    for name, mean_s in zip(names, means, strict=True):
        if fastest > 0 and mean_s >= SLOWER * fastest:
            slow.setdefault(mean_s / fastest, []).append(name)
    text = f"A step of a party takes {fastest:g} s on average"
    if slow:
        text += "; " + ", ".join(f"{factor:g} times as long for {listing(one)}" for factor, one in slow.items())
    faults = f" Faults hit {listing(sorted({fault.party for fault in first.faults}))}." if first.faults else ""
    return f"{text}.{faults}"


def _clock_of(record: Record) -> ClockConfig | None:
    """Return the clock of the run's config; None if the config is of a release with other keys."""
    with suppress(ConfigError):
        return from_dict(loads(record.config)).clock
    return None


def _target(summary: Summary) -> str:
    if summary["target"] is None:
        return ""
    rows = "validation" if summary.get("validation_rows") else "test"
    return f"The target is {summary['metric']} {summary['target']:g} on the {rows} rows."


def _clock(records: Sequence[Record]) -> str:
    if any(record.summary["driver"] != "sim" for record in records):
        return "The clock is real time, as the server measured it."
    wall_s = sum(record.summary["wall_s"] for record in records)
    return (
        "The clock is virtual: a simulator adds up the seconds that computing and messages would take, so the results "
        f"do not depend on this machine. In real time it took {wall_s:.0f} s."
    )
