"""Roles of a simulation that live in Ray actors: the clock stays here, events go there, effects come back.

A role is one half of a pair: `Away` stands in the simulator, the role itself in a `Host`, where its model and its
columns stay. A job's result never comes here either: a reference to it does, and goes back with the event. A host
does one thing after the other, so a role is never asked while it computes. A host that is lost takes its roles'
states with it: that is a WorkerLost, after which all roles have to be made anew.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from colonnade.drivers.simulator.engine import Simulator
from colonnade.drivers.simulator.node import Node
from colonnade.protocol.errors import ColonnadeError, ConfigError, WorkerLost
from colonnade.protocol.events import Effect, Event, WorkDone
from colonnade.protocol.messages import Payload
from colonnade.protocol.role import Role, RoleSummary

__all__ = ["Away", "away"]

ROOM_S = 60.0  # for a first free CPU
MORE_ROOM_S = 15.0  # for as many as there are
CALLS: dict[str, Callable[..., Any]] = {
    "compute": lambda role, job: role.compute(job),
    "save": lambda role: role.save(),
    "load": lambda role, state: role.load(state),
    "validate": lambda role: role.validate(),
    "summary": lambda role: role.summary(),
}


class Host:
    """Holds several roles; an actor."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._roles: dict[str, Role] = {}

    def ready(self) -> None:
        """It is up."""

    def take(self, name: str, make: Callable[[Any], Role], setup: Any, saved: Any) -> None:
        """Make a role and let it become what was saved."""
        self._roles[name] = make(setup)
        self._roles[name].load(saved)

    def handle(self, name: str, event: Event, now: int) -> Sequence[Effect]:
        """An event of the simulator's."""
        return self._roles[name].handle(event, now)

    def done(self, name: str, token: int, result: Payload, now: int) -> Sequence[Effect]:
        """The end of a job, whose result is here."""
        return self._roles[name].handle(WorkDone(token, result), now)

    def give_back(self, name: str) -> Any:
        """The role's state; it is not needed here any more."""
        return self._roles.pop(name).save()

    def call(self, name: str, what: str, *values: Any) -> Any:
        """One of `CALLS`."""
        return CALLS[what](self._roles[name], *values)


class Ticket:
    """The promise of a result that lies at a host."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def result(self) -> Payload:
        """Fetched, for a checkpoint."""
        payload: Payload = _fetch(self.reference)
        return payload


class Away:
    """A role that lives elsewhere."""

    def __init__(self, role: Role, host: Any, make: Callable[[Any], Role], setup: Any) -> None:
        self.name, self._host, self._here = role.name, host, role
        _fetch(host.take.remote(self.name, make, setup, role.save()))

    def come_home(self) -> Role:
        """The role as it was, with what it has become there."""
        self._here.load(_fetch(self._host.give_back.remote(self.name)))
        return self._here

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Takes its time, as nothing else of this simulation happens before."""
        if isinstance(event, WorkDone) and isinstance(event.result, Ticket):
            effects: Sequence[Effect] = _fetch(
                self._host.done.remote(self.name, event.token, event.result.reference, now)
            )
        else:
            effects = _fetch(self._host.handle.remote(self.name, event, now))
        return effects

    def start(self, job: Payload) -> Ticket:
        """Compute there, and go on here."""
        return Ticket(self._host.call.remote(self.name, "compute", job))

    def compute(self, job: Payload) -> Payload:
        """And wait for it."""
        return self.start(job).result()

    def save(self) -> Any:
        """As it is there."""
        return self._ask("save")

    def load(self, state: Any) -> None:
        """There, too."""
        self._ask("load", state)

    def validate(self) -> None:
        """There."""
        self._ask("validate")

    def summary(self) -> RoleSummary:
        """Of the one there."""
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
    raise WorkerLost(f"a Ray worker is gone ({type(cause).__name__})")


def _cpus() -> float:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found.get("CPU", 0.0)


def _hosts(count: int) -> list[Any]:
    """Started once for all runs of a connection: a worker takes seconds to load torch. Fewer, where CPUs are taken."""
    session = ray.get_runtime_context().get_job_id()
    if _kept.get("session") != session:
        _kept.update(session=session, hosts=[])
    hosts: list[Any] = _kept["hosts"]
    hosts += [ray.remote(Host).options(num_cpus=1).remote() for _ in range(len(hosts), count)]
    up = _up(hosts)
    for host in hosts:
        if host not in up:
            ray.kill(host)
    _kept["hosts"] = up
    return up[:count]


def _up(hosts: list[Any]) -> list[Any]:
    """Those that found a CPU: all, if they soon do, and else the first."""
    asked = {host.ready.remote(): host for host in hosts}
    ray.wait(list(asked), num_returns=1, timeout=ROOM_S)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=MORE_ROOM_S)
    up = [asked[reference] for reference in done if _answers(reference)]
    if not up:
        _dismiss()
        advice = f"no CPU of the cluster, which has {_cpus():g}, came free within {ROOM_S:.0f} s: try again later"
        raise ConfigError("--workers", "ray", advice)
    return up


def _answers(reference: Any) -> bool:
    try:
        ray.get(reference)
    except RayError:
        return False
    return True


def _dismiss() -> None:
    """What is left holds half of a state."""
    for host in _kept.pop("hosts", []):
        ray.kill(host)
    _kept.clear()


_kept: dict[str, Any] = {}


@contextmanager
def away(simulator: Simulator, make: Callable[[Any], Role], setups: dict[str, Any]) -> Iterator[None]:
    """For a while these roles live at Ray's workers, one for each of its CPUs; then they come home."""
    nodes = [node for node in simulator.nodes if node.role.name in setups]
    hosts = _hosts(max(1, min(len(nodes), int(_cpus()))))
    try:
        for index, node in enumerate(nodes):
            there = Away(node.role, hosts[index % len(hosts)], make, setups[node.role.name])
            node.role, node.start = there, there.start
            simulator.resume(node)  # its state is there, its key is not
        yield
    except WorkerLost:
        raise  # there is no home to come from
    except BaseException:
        _come_home(simulator, nodes)
        raise
    _come_home(simulator, nodes)


def _come_home(simulator: Simulator, nodes: Sequence[Node]) -> None:
    for node in nodes:
        if isinstance(node.role, Away):
            node.role, node.start = node.role.come_home(), None
            simulator.resume(node)
