"""What the simulator keeps for one role: its lane, its timers and its computing time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from colonnade.drivers.row_file import FileStorage
from colonnade.drivers.simulator.clock import Pace
from colonnade.drivers.simulator.lanes import Promise
from colonnade.drivers.simulator.links import Links
from colonnade.drivers.simulator.timeline import JOB_ENDED, JOB_STARTED, MESSAGE_LEFT
from colonnade.protocol.events import Work
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.ports import Releases
from colonnade.protocol.role import SERVER, Releasing, Role, Storing

__all__ = ["Job", "Route", "SimulatedNode"]


class Job(msgspec.Struct, frozen=True, gc=False):
    """A running job: the request, when it started and ends (ns), and the number of its WorkDone."""

    work: Work
    start: int
    end: int
    order: int


class Route:
    """What stays the same for all messages of one kind from one role to another, and counts of them."""

    __slots__ = ("bytes", "latency", "left", "messages", "read_at_once", "receiver", "unlimited")

    def __init__(self, sender: int, receiver: int, links: Links) -> None:
        source, target = links.ports[sender], links.ports[receiver]
        self.receiver, self.latency = receiver, source.latency + target.latency
        self.unlimited, self.read_at_once = not source.ns_per_byte, not target.ns_per_byte  # no bandwidth to wait for
        self.left = 4 * sender + MESSAGE_LEFT  # for the timeline
        self.messages = self.bytes = 0  # that `Simulator.traffic` has not counted yet


@dataclass(slots=True)
class SimulatedNode:
    index: int
    role: Role
    pace: Pace
    jobs: dict[int, Job] = field(default_factory=dict)  # by token
    lane: int | None = None  # the token of the job on the lane
    timers: dict[str, int] = field(default_factory=dict)  # name → number of the valid TimerFired
    seen: dict[int, int] = field(default_factory=dict)  # newest message number by sender
    start: Callable[[Payload], Any] | None = None  # starts a job in the role's own process; returns a promise
    up: bool = True  # not crashed
    finished: str = ""
    started_at: int = -1
    busy_ns: int = 0
    aside_ns: int = 0
    wait_jobs: list[Work] = field(default_factory=list)  # interrupted by a crash, to be run again
    running: Promise | None = None  # the last job that the workers compute for this role
    routes: dict[tuple[type[Message], str], Route] = field(default_factory=dict)  # by message and receiver
    name: str = field(init=False)
    job_started: int = field(init=False)  # for the timeline
    job_ended: int = field(init=False)
    is_server: bool = field(init=False)
    storing: Storing | None = field(init=False)  # the role, if it has tables of its own
    guard: Releases | None = field(init=False)  # for a party that may perturb its uploads

    def __post_init__(self) -> None:
        role = self.role
        self.job_started, self.job_ended = 4 * self.index + JOB_STARTED, 4 * self.index + JOB_ENDED
        self.name, self.is_server = role.name, role.name == SERVER
        self.storing = role if isinstance(role, Storing) else None
        self.guard = role.guard if isinstance(role, Releasing) else None
        if self.storing is not None:
            self.storing.open(FileStorage())  # until a run with a folder opens it there

    def settle(self) -> None:
        """Wait until the last job no longer uses the role; raises what the job raised."""
        running, self.running = self.running, None
        if running is not None:
            running.result()

    def charge(self, work: Work, ns: int) -> None:
        """Add computing time; a negative `ns` returns what a cancelled job did not use."""
        if work.aside:
            self.aside_ns += ns
        else:
            self.busy_ns += ns

    def utilisation(self, now: int) -> float:
        """The share of the time since its start that the role's lane was busy."""
        lifetime = now - self.started_at
        if self.started_at < 0 or lifetime <= 0:
            return 0.0
        unfinished = sum(job.end - now for job in self.jobs.values() if not job.work.aside and job.end > now)
        return min(1.0, (self.busy_ns - unfinished) / lifetime)

    def save(self) -> dict[str, Any]:
        """The plain fields. `checkpoint` saves the role, the jobs and the pace."""
        return {name: getattr(self, name) for name in _PLAIN}

    def load(self, saved: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, saved[name])


_PLAIN = ("lane", "timers", "seen", "up", "finished", "started_at", "busy_ns", "aside_ns")
