"""What a report is made from: runs as their folders hold them, grouped by label."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.experiments.ranking import ORACLE
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.role import Histogram
from colonnade.results.summary import Summary

__all__ = [
    "Progress",
    "Record",
    "by_label",
    "load_about",
    "load_attack",
    "load_records",
    "load_unsuitable",
    "without_oracles",
]

ATTACK = "attack.json"

Progress = Callable[[str, float], None]  # what is being done, and the part of all that is done
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Record:
    """One run: summary.json, metrics.jsonl, and what its figures need (None in folders of older releases)."""

    label: str
    summary: Summary
    rows: Rows
    timeline: dict[str, Any] | None = None
    staleness: Histogram | None = None
    config: str = field(default="", repr=False)

    @property
    def parties(self) -> list[str]:
        """The parties' names, in order."""
        roles = (
            self.timeline["roles"] if self.timeline else self.summary["utilisation"]
        )  # all roles, or those that sent theirs
        return [role for role in roles if role != "server"]


def load_records(folder: Path, on_progress: Progress = lambda text, done: None) -> list[Record]:
    """Load one record from a run's folder, or all finished runs of a comparison, in its order."""
    if (folder / "summary.json").exists():
        return [_record(folder, json.loads((folder / "summary.json").read_text(encoding="utf-8"))["protocol"])]
    found = sorted(path.parent for path in folder.glob("*/summary.json"))
    if not found and not (folder / ATTACK).exists():
        raise ConfigError(
            "DIR", str(folder), "holds no finished run, comparison or attack (no summary.json or attack.json)"
        )
    records, adapted = [], _adapted(folder)
    for index, path in enumerate(found):
        on_progress(f"reads {path.name}", index / len(found))
        label = path.name.rpartition("-seed")[0] or path.name
        records.append(_record(path, label, adapted.get(label, {})))
    order = {label: index for index, label in enumerate(adapted)}
    return sorted(records, key=lambda record: (order.get(record.label, len(order)), record.summary["seed"]))


def load_unsuitable(folder: Path) -> dict[str, str]:
    """Return the methods of a comparison that could not run: label → reason."""
    found: dict[str, str] | None = _json(folder / "unsuitable.json")
    return found or {}


def load_about(folder: Path) -> str:
    """Return the command's sentence about its comparison; "" if there is none."""
    path = folder / "about.txt"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def load_attack(folder: Path) -> dict[str, Any] | None:
    """Return attack.json, if the folder has one."""
    found: dict[str, Any] | None = _json(folder / ATTACK)
    return found


def _adapted(folder: Path) -> dict[str, dict[str, str]]:
    """Return the labels of comparison.json, in its order, and what each has instead of the configured model."""
    summaries: list[Summary] = _json(folder / "comparison.json") or []
    return {summary.get("label", summary["protocol"]): summary.get("adapted", {}) for summary in summaries}


def _record(path: Path, label: str, adapted: dict[str, str] | None = None) -> Record:
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    summary: Summary = _json(path / "summary.json")
    if adapted:
        summary["adapted"] = adapted
    return Record(
        label,
        summary,
        [json.loads(line) for line in lines],
        _json(path / "timeline.json"),
        _json(path / "staleness.json"),
        (path / "config.toml").read_text(encoding="utf-8"),
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.label, []).append(record)
    return groups


def without_oracles(groups: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """Leave out the methods that do not federate; an oracle alone is kept."""
    racing = {label: group for label, group in groups.items() if group[0].summary["protocol"] != ORACLE}
    return racing or groups
