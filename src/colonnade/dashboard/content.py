"""What the page shows, as plain JSON: texts and numbers here, figures by the report's code.

The page sets all texts as text, never as HTML. plotly.js reads a little HTML in labels, so names lose their brackets.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from colonnade.dashboard.figures import Figures
from colonnade.dashboard.source import State, still_runs
from colonnade.report.records import Record
from colonnade.results.verdict import flaw_of

__all__ = ["content"]

QUIET_S = 10.0  # without news for longer, and for longer than three times the usual pause: said on the page
RECENT = 20  # a role's state now: the last part of so many of the timeline
SHOWN_PARTIES = 60
SHOWN_EVENTS = 100
DRIVERS = {"sim": "simulator", "processes": "processes", "ray": "Ray"}
GOOD, WARN, BAD, CALM = "good", "warn", "bad", "calm"
TONES = {
    "training": GOOD, "finished": CALM, "connected": GOOD, "waiting": WARN, "away": BAD, "lost": BAD, "given up": BAD,
    "not here yet": WARN, "failed": BAD, "diverged": BAD, "stalled": BAD, "stopped": WARN,
}  # fmt: skip


def content(state: State, figures: Figures, now: float | None = None) -> dict[str, Any]:
    """Return everything that changes on the page."""
    now = time.time() if now is None else now
    status, record = dict(state.live.get("status", {})), _tamed(state.record)
    summary: Mapping[str, Any] = record.summary if record is not None else {}
    if state.over:
        status |= {"state": summary["status"], "fraction": 1.0, "clock_s": summary["clock_s"]}
    silent_s = _silent(state, now)
    return {
        "name": state.name,
        "about": _about(summary),
        "state": _state(state, status, summary, silent_s),
        "progress": _progress(status, summary, state.over, silent_s),
        "tiles": list(_tiles(status, record, summary, state)),
        "parties": _parties(status, record, state),
        "events": _events(state.live.get("events", [])),
        "figures": figures.of(record, {_tame(name): one for name, one in _privacy(state).items()}),
        "simulated": summary.get("driver") == "sim",
        "over": state.over,
    }


def _tamed(record: Record | None) -> Record | None:
    """Return the record with names that plotly.js shows as they are."""
    if record is None:
        return None
    summary: Any = dict(record.summary)
    for key in ("utilisation", "bytes_by_kind"):
        summary[key] = {_tame(name): value for name, value in summary.get(key, {}).items()}
    lanes = record.timeline
    if lanes is not None:
        lanes = {**lanes, "roles": [_tame(name) for name in lanes["roles"]]}
    return replace(record, label=_tame(record.label), summary=summary, timeline=lanes)


def _tame(name: str) -> str:
    return name.replace("<", "‹").replace(">", "›").replace("&", "+").replace("%{", "%(")


def _silent(state: State, now: float) -> float | None:
    """Return for how long a run that should be under way has told nothing; None if that is usual."""
    if state.over or state.heard_at is None or not still_runs(state.live):
        return None
    silent_s = now - state.heard_at
    return silent_s if silent_s > max(QUIET_S, 3 * state.live.get("next_s", 1.0)) else None


# Words.


def _about(summary: Mapping[str, Any]) -> str:
    if not summary:
        return ""
    driver = DRIVERS.get(summary["driver"], summary["driver"])
    return f"{summary['protocol']}, {summary['parties']} parties, {driver}, seed {summary['seed']}"


def _state(
    state: State, status: Mapping[str, Any], summary: Mapping[str, Any], silent_s: float | None
) -> dict[str, str]:
    word = status.get("state", "starting")
    if silent_s is not None:
        detail = state.trouble or "The process that trains may have ended, or its machine may be asleep."
        return {"word": f"no news for {duration(silent_s)}", "tone": BAD, "detail": detail}
    detail = state.trouble
    if state.over:
        detail = ". ".join(filter(None, (*summary.get("warnings", ()), summary.get("note", ""))))
        tone = WARN if word == "finished" and flaw_of(summary) else TONES.get(word, WARN)
        return {"word": word, "tone": tone, "detail": detail}
    if word == "waiting" and status.get("waits_for"):
        named = ", ".join(status["waits_for"][:5]) + (", …" if len(status["waits_for"]) > 5 else "")
        detail = f"Waits for {named}, for {duration(status.get('waited_s', 0))}."
    return {"word": word, "tone": TONES.get(word, WARN), "detail": detail}


def _progress(
    status: Mapping[str, Any], summary: Mapping[str, Any], over: bool, silent_s: float | None
) -> dict[str, Any]:
    fraction = min(1.0, max(0.0, float(status.get("fraction") or 0.0)))
    left = ""
    if not over and silent_s is None and 0.01 < fraction < 1 and summary.get("wall_s"):
        left = f"about {duration(summary['wall_s'] * (1 - fraction) / fraction)} left"
    elif over and summary.get("wall_s"):
        left = f"took {duration(summary['wall_s'])}"
    return {"fraction": round(fraction, 4), "done": f"{fraction:.0%}", "left": left}


def duration(seconds: float) -> str:
    """Write a time for people: `40 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 and rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


# Numbers.


def _tiles(
    status: Mapping[str, Any], record: Record | None, summary: Mapping[str, Any], state: State
) -> Iterator[dict[str, str]]:
    if record is None:
        return
    last, metric = record.rows[-1] if record.rows else {}, summary["metric"]
    on = f"{last['rows']} rows" if last.get("rows") else ""
    target = f", target {summary['target']:g}" if summary.get("target") is not None else ""
    yield _tile(metric, _short(last.get("value")), on + target)
    yield _tile("loss", _short(last.get("loss")), on)
    rate = f"{status['updates_per_s']:.1f} a second" if still_runs(state.live) and not state.over else ""
    yield _tile("updates", f"{summary['updates']:,}", rate or f"epoch {summary['epochs']:.1f}")
    yield _tile("clock", duration(summary["clock_s"]), "virtual" if summary["driver"] == "sim" else "real time")
    up, down = summary.get("bytes_up", 0), summary.get("bytes_down", 0)
    yield _tile("data sent", size(up + down), f"{_whole(f'↑ {size(up)}')} {_whole(f'↓ {size(down)}')}")
    ages = summary.get("staleness", {})
    yield _tile("staleness", f"{ages.get('mean', 0):.1f}", f"updates; at most {ages.get('max', 0):.0f}")
    if spent := _privacy(state):
        worst = max(spent.values(), key=lambda one: one.get("epsilon") or 0)
        budgets = [one["budget"] for one in spent.values() if one.get("budget")]
        note = f"of {min(budgets):.3g} (the smallest budget)" if budgets else "largest of all parties"
        yield _tile("ε", _short(worst.get("epsilon")), note)


def _tile(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}


def _whole(text: str) -> str:
    """Return a text that a line does not break."""
    return text.replace(" ", "\u00a0")


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _privacy(state: State) -> dict[str, dict[str, Any]]:
    """Return ε and budget by party: at the end as the parties sent it, before as far as they have told."""
    told = {name: dict(one) for name, one in state.live.get("privacy", {}).items()}
    final = state.record.summary.get("privacy") if state.over and state.record is not None else None
    for name, one in (final or {}).get("parties", {}).items():
        told[name] = {"budget": None} | told.get(name, {}) | {"epsilon": one["epsilon"], "delta": one["delta"]}
    return told


def _parties(status: Mapping[str, Any], record: Record | None, state: State) -> list[dict[str, Any]]:
    """Return a line for each party, with the shares of its states in the last part of the timeline."""
    known = {party["name"]: party for party in status.get("parties", [])}
    names = list(known) or (record.parties if record is not None else [])
    shares, spent = _recent(record), _privacy(state)
    return [
        {
            "name": name,
            "state": _word_of(known.get(name, {}), state.over),
            "tone": CALM if state.over else TONES.get(known.get(name, {}).get("state", ""), WARN),
            "shares": shares.get(_tame(name), {}),
            "staleness": _short(known.get(name, {}).get("staleness")),
            "up": _bytes_of(known.get(name, {}), "bytes_up"),
            "down": _bytes_of(known.get(name, {}), "bytes_down"),
            "owes": _debt(known.get(name, {}), state.over),
            "epsilon": _spent_of(spent.get(name)),
        }
        for name in names[:SHOWN_PARTIES]
    ]


def _word_of(party: Mapping[str, Any], over: bool) -> str:
    word = str(party.get("state", ""))
    if over:
        return "finished" if word in ("connected", "") else word
    seen = party.get("last_seen_s")
    return f"{word} for {duration(seen)}" if word in ("away", "lost") and seen else word


def _bytes_of(party: Mapping[str, Any], key: str) -> str:
    return size(party[key]) if key in party else ""


def _debt(party: Mapping[str, Any], over: bool) -> str:
    owed_s = party.get("owed_s")
    return f"owes {party['owes']} for {duration(owed_s)}" if owed_s and owed_s >= 5 and not over else ""


def _spent_of(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    return _short(one.get("epsilon")) + (f" of {one['budget']:.3g}" if one.get("budget") else "")


def _recent(record: Record | None) -> dict[str, dict[str, float]]:
    """Return by role the shares of busy, transit, offline and waiting in the last bins; unknown time does not count."""
    lanes = record.timeline if record is not None else None
    if lanes is None:
        return {}
    found = {}
    for index, role in enumerate(lanes["roles"]):
        rows = {name: lanes[name][index] for name in ("busy", "transit", "offline") if lanes.get(name)}
        unknown = (lanes.get("unknown") or [[0.0] * len(rows["busy"])] * len(lanes["roles"]))[index]
        last = [place for place, share in enumerate(unknown) if share < 0.5][-max(1, len(unknown) // RECENT) :]
        if last:
            shares = {name: sum(row[place] for place in last) / len(last) for name, row in rows.items()}
            shares["waiting"] = max(0.0, 1 - sum(shares.values()))
            found[role] = {name: round(share, 3) for name, share in shares.items()}
    return found


def _events(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: event.get(key) for key in ("kind", "who", "text", "at")} | {"clock": f"{event['clock_s']:.1f} s"}
        for event in reversed(events[-SHOWN_EVENTS:])
    ]
