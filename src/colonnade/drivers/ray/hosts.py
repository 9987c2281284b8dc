"""Simulated roles in Ray actors: the clock stays in this process, events go to the actors, effects come back.

A role has two halves: an `Away` in the simulator, and the role itself in a `Host`, where its model and columns stay. A
job's result stays there, too. Only a reference to it comes here and goes back with the event. A host does one thing
at a time, so a role never gets an event while it computes. If a host is lost, its roles' states are lost: that raises
WorkerLost, and all roles must be made again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from colonnade.drivers.simulator.engine import Simulator
from colonnade.drivers.simulator.simulated_node import SimulatedNode
from colonnade.protocol.errors import ColonnadeError, ConfigError, WorkerLost
from colonnade.protocol.events import Effect, Event, WorkDone
from colonnade.protocol.messages import Payload
from colonnade.protocol.role import Role, RoleSummary

__all__ = ["Away", "away"]

ROOM_S = 60.0  # wait so long for a first free CPU
MORE_ROOM_S = 15.0  # then so long for as many CPUs as there are
CALLS: dict[str, Callable[..., Any]] = {
    "compute": lambda role, job: role.compute(job),
    "save": lambda role: role.save(),
    "load": lambda role, state: role.load(state),
    "validate": lambda role: role.validate(),
    "summary": lambda role: role.summary(),
}


class Host:
    """Holds several roles. It runs as a Ray actor."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._roles: dict[str, Role] = {}

    def ready(self) -> None:
        """Return when the actor is up."""

    def take(self, name: str, make: Callable[[Any], Role], setup: Any, saved: Any) -> None:
        """Make a role and load its saved state."""
        self._roles[name] = make(setup)
        self._roles[name].load(saved)

    def handle(self, name: str, event: Event, now: int) -> Sequence[Effect]:
        return self._roles[name].handle(event, now)

    def done(self, name: str, token: int, result: Payload, now: int) -> Sequence[Effect]:
        """Give the role the end of a job, whose result is at this host."""
        return self._roles[name].handle(WorkDone(token, result), now)

    def give_back(self, name: str) -> Any:
        """Return the role's state and remove the role."""
        return self._roles.pop(name).save()

    def call(self, name: str, what: str, *values: Any) -> Any:
        """Call one of `CALLS` on a role."""
        return CALLS[what](self._roles[name], *values)


class Ticket:
    """The promise of a result that is at a host."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def result(self) -> Payload:
        """Fetch the result, for a checkpoint."""
        payload: Payload = _fetch(self.reference)
        return payload


class Away:
    """Stands in the simulator for a role at a host."""

    def __init__(self, role: Role, host: Any, make: Callable[[Any], Role], setup: Any) -> None:
        self.name, self._host, self._here = role.name, host, role
        _fetch(host.take.remote(self.name, make, setup, role.save()))

    def come_home(self) -> Role:
        """The original role object, with the state that it reached at the host."""
        self._here.load(_fetch(self._host.give_back.remote(self.name)))
        return self._here

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Wait for the effects: nothing else happens in this simulation before they are known."""
        if isinstance(event, WorkDone) and isinstance(event.result, Ticket):
            effects: Sequence[Effect] = _fetch(
                self._host.done.remote(self.name, event.token, event.result.reference, now)
            )
        else:
            effects = _fetch(self._host.handle.remote(self.name, event, now))
        return effects

    def start(self, job: Payload) -> Ticket:
        """Start computing at the host without waiting."""
        return Ticket(self._host.call.remote(self.name, "compute", job))

    def compute(self, job: Payload) -> Payload:
        """Compute at the host and wait for the result."""
        return self.start(job).result()

    def save(self) -> Any:
        """The role's state at the host."""
        return self._ask("save")

    def load(self, state: Any) -> None:
        self._ask("load", state)

    def validate(self) -> None:
        self._ask("validate")

    def summary(self) -> RoleSummary:
        found: RoleSummary = self._ask("summary")
        return found

    def _ask(self, what: str, *values: Any) -> Any:
        return _fetch(self._host.call.remote(self.name, what, *values))


def _fetch(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ColonnadeError):
            raise error.cause from None
        if not isinstance(error.cause, RayError):
            raise error from None
        cause: Exception = error.cause
    except RayError as error:
        cause = error
    _dismiss()
    raise WorkerLost(f"a Ray worker was lost ({type(cause).__name__})")


def _cpus() -> float:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found.get("CPU", 0.0)


def _hosts(count: int) -> list[Any]:
    """Start hosts once for all runs of a connection, because a worker takes seconds to load torch.

    There may be fewer than `count`, if CPUs are taken.
    """
    session = ray.get_runtime_context().get_job_id()
    if _reused.get("session") != session:
        _reused.update(session=session, hosts=[])
    hosts: list[Any] = _reused["hosts"]
    hosts += [ray.remote(Host).options(num_cpus=1).remote() for _ in range(len(hosts), count)]
    up = _up(hosts)
    for host in hosts:
        if host not in up:
            ray.kill(host)
    _reused["hosts"] = up
    return up[:count]


def _up(hosts: list[Any]) -> list[Any]:
    """The hosts that got a CPU within `MORE_ROOM_S` after the first one; raises ConfigError if there is none."""
    asked = {host.ready.remote(): host for host in hosts}
    ray.wait(list(asked), num_returns=1, timeout=ROOM_S)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=MORE_ROOM_S)
    up = [asked[reference] for reference in done if _answers(reference)]
    if not up:
        _dismiss()
        advice = f"none of the cluster's {_cpus():g} CPUs became free within {ROOM_S:.0f} s: try again later"
        raise ConfigError("--workers", "ray", advice)
    return up


def _answers(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayError:
        return False
    return True


def _dismiss() -> None:
    """Kill all hosts: those that are left hold only a part of the state."""
    for host in _reused.pop("hosts", []):
        ray.kill(host)
    _reused.clear()


_reused: dict[str, Any] = {}


@contextmanager
def away(simulator: Simulator, make: Callable[[Any], Role], setups: dict[str, Any]) -> Iterator[None]:
    """While this context is open, the roles in `setups` are at Ray's workers, at most one worker per CPU.

    At its end the roles come back with their states, unless a worker was lost.
    """
    nodes = [node for node in simulator.nodes if node.role.name in setups]
    hosts = _hosts(max(1, min(len(nodes), int(_cpus()))))
    try:
        for index, node in enumerate(nodes):
            there = Away(node.role, hosts[index % len(hosts)], make, setups[node.role.name])
            node.role, node.start = there, there.start
            simulator.resume(node)  # its state is there, its key is not
        yield
    except WorkerLost:
        raise  # the state is lost
    except BaseException:
        _come_home(simulator, nodes)
        raise
    _come_home(simulator, nodes)


def _come_home(simulator: Simulator, nodes: Sequence[SimulatedNode]) -> None:
    for node in nodes:
        if isinstance(node.role, Away):
            node.role, node.start = node.role.come_home(), None
            simulator.resume(node)
