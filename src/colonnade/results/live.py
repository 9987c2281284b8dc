"""live.json: how a run stands while it is under way, for `colonnade watch`.

The file is replaced about once a second. Making it takes at most a hundredth of the run's time: if it takes long, it is
made less often. It is not synced, because after a power cut there is nothing to watch.

    format      1
    started     when this process began, in seconds since 1970; `changed`: when the file was written
    next_s      the file is written again after about so many seconds
    status      as of `colonnade status`, as far as the driver knows it
    summary     the keys of summary.json that the figures need
    timeline    as timeline.json, in fewer bins; `staleness`: as staleness.json
    privacy     party → ε so far, and its budget if that is known
    events      the last 200: what happened when, to which party
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from colonnade.protocol.foreign import harmless

__all__ = ["LIVE", "Event", "Events", "LiveFile", "coarser", "events_in", "read_live"]

LIVE = "live.json"
FORMAT = 1
EVERY_S = 1.0
SHARE = 0.01  # of the run's time, at most
BINS, ROLES = 200, 60  # of the timeline
MOST_EVENTS, MOST_ROUTINE = 200, 40
LONGEST_TEXT = 240
MAX_LIVE_BYTES = 16 * 2**20

_ROUTINE = ("evaluation", "checkpoint")
# Lines of the log → kinds of events. Other lines count if they are warnings.
_KINDS = {
    "joined": "joined", "disconnected": "away", "lost": "lost", "refused": "refused", "waiting": "waiting",
    "evaluated": "evaluation", "checkpoint": "checkpoint", "listening": "run", "continuing": "run", "ended": "run",
}  # fmt: skip


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""

    kind: str  # joined, back, away, lost, refused, waiting, remark, warning, evaluation, checkpoint or run
    text: str
    who: str = ""  # the party that it is about
    clock_s: float = 0.0  # on the run's clock
    at: float | None = None  # in seconds since 1970; None in the simulator


class Events:
    """The last events. Evaluations and checkpoints do not push out the others."""

    def __init__(self, clock_s: Callable[[], float], before: Iterable[Event] = ()) -> None:
        self._clock_s = clock_s
        self._notable: deque[Event] = deque(maxlen=MOST_EVENTS - MOST_ROUTINE)
        self._routine: deque[Event] = deque(maxlen=MOST_ROUTINE)
        self._left: set[str] = set()  # parties that were here and went
        for event in before:
            self._take(event)

    def add(self, kind: str, text: str, who: str = "", at: float | None = None) -> None:
        """Take note of an event now."""
        self._take(Event(kind, harmless(text, LONGEST_TEXT), harmless(who, LONGEST_TEXT), self._clock_s(), at))

    def _take(self, event: Event) -> None:
        if event.kind in ("away", "lost"):
            self._left.add(event.who)
        elif event.kind in ("joined", "back"):
            self._left.discard(event.who)
        (self._routine if event.kind in _ROUTINE else self._notable).append(event)

    def gone(self, who: str) -> None:
        """Take note that a party is not connected, unless that is known."""
        if who not in self._left:
            self.add("away", "connection lost", who, time.time())

    def from_log(self, level: str, what: str, fields: Mapping[str, Any]) -> None:
        """Take note of a line of the log, if it is worth showing."""
        kind, rest = _KINDS.get(what), dict(fields)
        who = str(
            rest.pop("peer", None) or rest.pop("party", None) or rest.get("on" if what == "waiting" else "host", "")
        )
        if kind is None:
            if level not in ("warning", "error"):
                return
            kind = "remark" if "party" in fields else "warning"
        if kind == "joined" and who in self._left:
            kind = "back"
        self.add(kind, _words(what, rest), who, time.time())

    def all(self, others: Iterable[Event] = ()) -> list[Event]:
        """The events in the order of the clock, with those that another source knows."""
        found = sorted(
            [*self._notable, *self._routine, *others], key=lambda event: (event.clock_s, event.kind == "run")
        )
        return found[-MOST_EVENTS:]


def _words(what: str, fields: Mapping[str, Any]) -> str:
    said = {key: _number(value) for key, value in fields.items() if value not in (None, "")}
    known = _WORDS.get(what)
    if known is not None and known[1] <= said.keys():
        return known[0].format(**said)
    return f"{what}: {', '.join(f'{key} {value}' for key, value in said.items())}" if said else what


# A line of the log → its words for a reader, and the fields that they need.
_WORDS = {
    "evaluated": ("{value} on the {rows} rows, update {update}", {"value", "rows", "update"}),
    "checkpoint": ("checkpoint {number} at update {update}", {"number", "update"}),
    "waiting": ("the run has waited {s} s: {owes}", {"s", "owes"}),
    "joined": ("connected", set[str]()),
    "disconnected": ("{cause}", {"cause"}),
    "lost": ("counts as lost after {silent_s} s of silence", {"silent_s"}),
    "refused": ("refused: {cause}", {"cause"}),
    "ended": ("ended: {status}", {"status"}),
    "listening": ("listens at {address}", {"address"}),
}


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class LiveFile:
    """Writes live.json of one run."""

    def __init__(self, folder: Path, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = folder / LIVE, every_s
        self._started, self._due_at = time.time(), 0.0
        self.content: dict[str, Any] = {}

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_at

    def write(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file. A disk that is full does not end the run."""
        began, used = time.monotonic(), time.thread_time()
        head = {"format": FORMAT, "started": self._started, "changed": time.time()}
        self.content = {**make(), **head}
        used = time.thread_time() - used
        wait_s = max(self._every_s, used / SHARE)
        self.content["next_s"] = round(wait_s, 3)
        with suppress(OSError):
            self._replace(msgspec.json.encode(self.content))
        self._due_at = began + max(wait_s, (time.monotonic() - began) / SHARE)

    def _replace(self, text: bytes) -> None:
        temporary = self._path.with_name(f".{LIVE}.tmp")
        temporary.write_bytes(text)
        temporary.replace(self._path)


def read_live(folder: Path) -> dict[str, Any] | None:
    """Return live.json; None if there is none, or if it cannot be read."""
    path = folder / LIVE
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= MAX_LIVE_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) and found.get("format") == FORMAT else None
    return None


def events_in(live: Mapping[str, Any] | None) -> list[Event]:
    """Return the events of an earlier live.json; [] if they cannot be read."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert((live or {}).get("events", []), list[Event])
    return []


def coarser(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return a timeline in at most `BINS` bins, of at most `ROLES` roles."""
    states = [name for name in ("busy", "transit", "offline", "unknown") if timeline.get(name) is not None]
    bins = len(timeline["busy"][0]) if timeline["busy"] else 0
    step = max(1, -(-bins // BINS))
    length = np.full(bins, timeline["bin_s"])
    if bins:  # the last bin may be shorter
        length[-1] = max(timeline["end_s"] - (bins - 1) * timeline["bin_s"], 1e-9)
    starts = np.arange(0, bins, step)
    whole = np.add.reduceat(length, starts) if bins else length
    found: dict[str, Any] = {"transit": None} | {
        name: np.round(np.add.reduceat(np.array(timeline[name][:ROLES]) * length, starts, axis=1) / whole, 3).tolist()
        for name in states
        if bins
    }
    return {"roles": timeline["roles"][:ROLES], "bin_s": timeline["bin_s"] * step, "end_s": timeline["end_s"], **found}
