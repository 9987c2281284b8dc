"""live.json of a run in the simulator."""

import time
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from colonnade.drivers.simulator.clock import Fault
from colonnade.results.live import Event, Events, LiveFile, coarser, events_in, read_live
from colonnade.results.summary import live_summary, traffic_fields

if TYPE_CHECKING:
    from colonnade.experiments.run import Run

__all__ = ["RunLive"]

_GOES = {"crash": "its process has crashed", "offline": "cannot be reached", "late": "it comes later"}


class RunLive:
    """Keeps live.json while a run with a folder is executed."""

    def __init__(self, run: "Run") -> None:
        assert run.folder is not None
        self._run, self._file = run, LiveFile(run.folder.path)
        before = [event for event in events_in(read_live(run.folder.path)) if event.clock_s <= run.clock_s]
        self.events = Events(lambda: run.clock_s, [event for event in before if event.kind not in ("away", "back")])
        self._seen = (time.monotonic(), run.standing.updates)
        self._per_s = 0.0

    def look(self) -> None:
        """Write the file if it is time."""
        if self._file.due:
            self._file.write(lambda: self._content("training"))

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Take note of a line of metrics.jsonl."""
        value = "not known" if row["value"] is None else f"{row['value']:.4g}"
        metric = self._run.federation.training.metric
        self.events.add("evaluation", f"{metric} {value} on the {row['rows']} rows, update {row['update']:,}")

    def close(self, state: str) -> None:
        """Write the last state: finished, diverged, stalled, stopped or failed."""
        self.events.add("run", state)
        if state != "failed":
            self._file.write(lambda: self._content(state))
        elif before := self._file.content:  # what failed cannot be asked any more
            status = {**before["status"], "state": state}
            self._file.write(lambda: {**before, "status": status, "events": self.events.all(self._faults())})

    def _content(self, state: str) -> dict[str, Any]:
        run, simulator = self._run, self._run.simulator
        if simulator.workers is not None and state == "training":
            simulator.settle()  # the threads that compute must not change what is read here
        principal = run.principal_summary()
        return {
            "status": self._status(state, principal.get("waits_for", [])),
            "summary": live_summary(
                run.federation.plan,
                principal,
                driver="sim",
                clock_s=run.clock_s,
                wall_s=run.wall_s,
                traffic=traffic_fields(simulator.traffic),
                utilisation={node.role.name: node.utilisation(simulator.now) for node in simulator.nodes},
            ),
            "timeline": coarser(run.timeline()),
            "staleness": run.staleness(),
            "privacy": self._privacy(),
            "events": self.events.all(self._faults()),
        }

    def _status(self, state: str, waits_for: list[str]) -> dict[str, Any]:
        run, standing, last = self._run, self._run.standing, self._run.rows[-1] if self._run.rows else {}
        now, updates = time.monotonic(), standing.updates
        if now > self._seen[0]:
            self._per_s = (updates - self._seen[1]) / (now - self._seen[0])
        self._seen = now, updates
        ages = last.get("staleness") or []
        away = {fault.party for fault in self._outages() if fault.at_s <= run.clock_s < _end(fault)}
        away |= {fault.party for fault in self._outages() if fault.kind == "late" and run.clock_s < fault.at_s}
        parties = [
            {
                "name": name,
                "state": "away" if name in away else "connected",
                "staleness": round(ages[index], 2) if index < len(ages) else None,
            }
            for index, name in enumerate(run.federation.plan.parties)
        ]
        return {
            "protocol": run.federation.method.name,
            "state": state,
            "updates": updates,
            "epochs": round(run.epochs, 3),
            "fraction": standing.fraction,
            "metric": run.federation.training.metric,
            "value": standing.value,
            "rows": last.get("rows", ""),
            "clock_s": run.clock_s,
            "updates_per_s": round(self._per_s, 2),
            "waits_for": waits_for,
            "waited_s": 0.0,
            "refused_by_limit": {},
            "parties": parties,
        }

    def _privacy(self) -> dict[str, Any]:
        config = self._run.federation.config
        found = {}
        for node in self._run.simulator.nodes:
            spent = node.guard.summary() if node.guard is not None and node.guard.on else None
            if spent is not None:
                budget, epsilon = config.budget_of(node.role.name), spent["epsilon"]
                found[node.role.name] = {
                    "epsilon": epsilon if isfinite(epsilon) else None,
                    "delta": spent["delta"],
                    "budget": budget and budget.epsilon,
                }
        return found

    def _outages(self) -> list[Fault]:
        faults = self._run.federation.config.clock.faults
        return [fault for fault in faults if fault.kind in _GOES]

    def _faults(self) -> Iterator[Event]:
        """The configured faults so far, as events."""
        now = self._run.clock_s
        for fault in self._outages():
            begins, ends = (0.0, fault.at_s) if fault.kind == "late" else (fault.at_s, fault.until_s)
            if begins <= now:
                yield Event("away", _GOES[fault.kind], fault.party, begins)
            if ends <= now:
                yield Event("joined" if fault.kind == "late" else "back", "connected", fault.party, ends)


def _end(fault: Fault) -> float:
    return fault.at_s if fault.kind == "late" else fault.until_s
