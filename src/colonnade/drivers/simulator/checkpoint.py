"""The whole simulator as plain values: heap, timers, numbers, generators, hash chain, roles.

A simulator that was made in the same way and loads this state continues bit for bit as the saved one would have.
"""

from typing import Any

from colonnade.drivers.simulator.engine import Simulator, finished
from colonnade.drivers.simulator.simulated_node import Job
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import PeerJoined, PeerLost, Received, Started, TimerFired, Work, WorkDone

__all__ = ["load", "save", "tell_checkpointed", "work_in", "work_out"]

_PORT = ("busy_until", "receiving_until", "last_arrival")


def save(simulator: Simulator) -> dict[str, Any]:
    """Everything that changes during a run. Waits for the jobs that are being computed."""
    codec = simulator.codec
    simulator.settle()
    return {
        "now": simulator.now,
        "number": simulator.number,
        "pending": simulator.pending,
        "idle_timers": (simulator.idle_timers, simulator.idle_since),
        "trace": (simulator.trace.digest, simulator.trace.events),
        "traffic": simulator.traffic.save(),
        "timeline": simulator.timeline.save(),
        "speeds": simulator.speeds.save(),
        "heap": [(*entry[:4], _event_out(entry[4], codec), entry[5]) for entry in simulator.heap],
        "links": simulator.links.generator,
        "ports": [{name: getattr(port, name) for name in _PORT} for port in simulator.links.ports],
        "nodes": [
            {
                "plain": node.save(),
                "pace": node.pace.generator,
                "role": node.role.save(),
                "jobs": [(work_out(job.work, codec), job.start, job.end, job.order) for job in node.jobs.values()],
                "wait_jobs": [work_out(work, codec) for work in node.wait_jobs],
            }
            for node in simulator.nodes
        ],
    }


def load(simulator: Simulator, state: dict[str, Any]) -> None:
    """Restore what `save` returned. The simulator must be new and of the same run."""
    codec = simulator.codec
    simulator.now, simulator.number = state["now"], state["number"]
    simulator.idle_timers, simulator.idle_since = state["idle_timers"]
    simulator.trace.digest, simulator.trace.events = state["trace"]
    simulator.traffic.load(state["traffic"])
    simulator.timeline.load(state["timeline"])
    if "speeds" in state:  # an earlier release did not record them
        simulator.speeds.load(state["speeds"])
    simulator.heap = [(*entry[:4], _event_in(entry[4], codec), entry[5]) for entry in state["heap"]]
    simulator.pending = state["pending"]
    simulator.links.generator = state["links"]
    for port, saved in zip(simulator.links.ports, state["ports"], strict=True):
        for name in _PORT:
            setattr(port, name, saved[name])
    for node, saved in zip(simulator.nodes, state["nodes"], strict=True):
        node.load(saved["plain"])
        node.pace.generator = saved["pace"]
        node.role.load(saved["role"])
        jobs = [Job(work_in(work, codec), start, end, order) for work, start, end, order in saved["jobs"]]
        node.jobs = {job.work.token: job for job in jobs}
        node.wait_jobs = [work_in(work, codec) for work in saved["wait_jobs"]]
        simulator.resume(node)


def tell_checkpointed(simulator: Simulator, state: dict[str, Any]) -> None:
    """Tell the roles that this state is on the disk, so that they need not go back further."""
    for node, saved in zip(simulator.nodes, state["nodes"], strict=True):
        if node.storing is not None:
            node.storing.checkpointed(saved["role"])


def work_out(work: Work, codec: Codec) -> tuple[Any, ...]:
    """A requested job as plain values, for `work_in`."""
    return work.token, work.kind, work.amount, bytes(codec.encode(work.job)), work.aside


def work_in(fields: tuple[Any, ...], codec: Codec) -> Work:
    token, kind, amount, job, aside = fields
    return Work(token, kind, amount, codec.decode(job), aside)


def _event_out(event: Any, codec: Codec) -> Any:
    match event:
        case Received(sender=sender, message=message):
            return "received", sender, bytes(codec.encode(message))
        case WorkDone(token=token):
            return "done", token, bytes(codec.encode(finished(event).result))
        case TimerFired(name=name, due=due):
            return "timer", name, due
        case Started(entropy=entropy):
            return "started", entropy
        case PeerJoined(peer=peer, reset=reset):
            return "joined", peer, reset
        case PeerLost(peer=peer):
            return "lost", peer
    return event  # "crash" and "restart"


def _event_in(fields: Any, codec: Codec) -> Any:
    match fields:
        case ("received", sender, data):
            return Received(sender, codec.decode(data))  # type: ignore[arg-type]
        case ("done", token, data):
            return WorkDone(token, codec.decode(data))
        case ("timer", name, due):
            return TimerFired(name, due)
        case ("started", entropy):
            return Started(entropy)
        case ("joined", peer, reset):
            return PeerJoined(peer, reset)
        case ("lost", peer):
            return PeerLost(peer)
    return fields
