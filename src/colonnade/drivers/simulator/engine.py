"""The event loop of the simulator, on a virtual clock.

Heap key: (time in ns, rank, running number). Ranks at equal times: starts and faults, WorkDone, Received, TimerFired.

A job is computed when it starts, and its result is delivered when its virtual time is over. With `workers`, other
threads compute it in between. The clock then waits for the result when the job is due, or when its role has to do
anything else. For a blind job the role accepts the promise of the result.

Evaluation is delivered at once, or as soon as its receiver has started. It takes no virtual time and is no part of the
trace and the byte totals.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf
from time import perf_counter
from typing import Any

from colonnade.drivers.simulator.clock import ClockConfig, Pace
from colonnade.drivers.simulator.lanes import Lanes, Promise
from colonnade.drivers.simulator.links import NEVER, Links, Outages
from colonnade.drivers.simulator.simulated_node import Job, Route, SimulatedNode
from colonnade.drivers.simulator.speeds import MICRO, Speeds
from colonnade.drivers.simulator.timeline import MESSAGE_ARRIVED, MESSAGE_LEFT, Timeline
from colonnade.drivers.traffic import Traffic
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    CancelWork,
    Effect,
    Emit,
    Event,
    Finish,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Payload
from colonnade.protocol.role import EVALUATION, Role
from colonnade.protocol.seeds import derive, generator
from colonnade.protocol.trace import Trace, fixed_part

__all__ = ["Simulator", "finished"]

FIRST, WORK, MESSAGE, TIMER = range(4)
IDLE_TIMERS = 100  # after so many timers in a row with nothing else pending, the run is stalled

# (time, rank, number, node, event, extra); extra: (sender, header, size, message number) of a message.
Entry = tuple[int, int, int, int, Any, Any]


class Simulator:
    """Runs the roles until the principal role finishes."""

    # More attributes than Python keeps fast in a dictionary.
    __slots__ = (
        "_attended", "_check", "_down", "_duplicating", "_index", "_instant", "_lost_after", "_note", "_note_speed",
        "_on_emit", "_on_event", "_peers", "_record", "_seed", "_server", "_stack", "_timers",
        "_traffic", "codec", "heap", "idle_since", "idle_timers", "links", "nodes", "now", "number", "on_refusal",
        "on_send", "principal", "speeds", "status", "stopping", "timeline", "trace", "workers",
    )  # fmt: skip

    def __init__(
        self,
        roles: Iterable[Role],
        codec: Codec,
        clock: ClockConfig,
        seed: int,
        *,
        principal: str = "server",
        full_trace: bool = False,
        on_emit: Callable[[Payload, "Simulator"], None] | None = None,
        on_event: Callable[[int, str, Event], None] | None = None,
        check: bool = False,
        peers: bool = False,
    ) -> None:
        self.codec, self._on_emit, self._on_event, self._check = codec, on_emit, on_event, check
        self.on_send: Callable[[str, Send, int], None] | None = None  # gets sender, effect and bytes; evaluation, too
        # Gets the node and the error when a role refuses a message; None: the run fails.
        self.on_refusal: Callable[[SimulatedNode, RemoteProtocolError], None] | None = None
        self._attended = True  # set again by `advance`
        self.workers: Lanes | None = None  # computes the jobs; None: this thread does
        self.stopping = False  # `advance` returns after the current event; a signal handler may set it
        roles = list(roles)
        self._index = {role.name: index for index, role in enumerate(roles)}
        self._server = self._index.get("server")
        parties = [role.name for role in roles if role.name != "server"]
        faults = [[fault for fault in clock.faults if fault.party == role.name] for role in roles]
        self.nodes = [self._node(index, role, clock, parties, seed) for index, role in enumerate(roles)]
        links = [clock.link_of(parties.index(r.name)) if r.name in parties else clock.server.network for r in roles]
        self.links = Links(links, faults, generator(seed, "links"))
        self._duplicating = any(port.duplicates for port in self.links.ports)
        # When a role's process does not run. An offline role runs, but cannot be reached.
        self._down = [Outages([fault for fault in own if fault.kind in ("crash", "late")]) for own in faults]
        self.principal = self.nodes[self._index[principal]]
        self.now = 0
        self.number = 0
        self.trace = Trace(full=full_trace)
        self._record = self.trace.append
        self._traffic = Traffic()
        self.timeline = Timeline([role.name for role in roles], [port.outages.spans for port in self.links.ports])
        self.speeds = Speeds([role.name for role in roles])
        self._note, self._note_speed = self.timeline.note, self.speeds.note
        self.heap: list[Entry] = []
        self._instant: list[tuple[SimulatedNode, Event]] = []  # evaluation events to deliver now
        self._stack: list[tuple[SimulatedNode, Event]] = []  # those whose turn comes after the event being delivered
        self._timers = 0  # entries in the heap that are timers
        self.idle_timers = 0
        self.idle_since = 0  # the running number at the first of them
        self._seed, self._peers = seed, peers
        self._lost_after = round(clock.lost_after_s * NANOSECONDS)
        self.status = "running"
        self._schedule_starts()

    def _node(self, index: int, role: Role, clock: ClockConfig, parties: list[str], seed: int) -> SimulatedNode:
        party = role.name in parties
        compute = clock.compute_of(parties.index(role.name)) if party else clock.server.compute
        return SimulatedNode(index, role, Pace(compute, generator(seed, "pace", role.name)))

    def _schedule_starts(self) -> None:
        """Schedule all starts, crashes, joins and losses, which are known in advance."""
        for node in self.nodes:
            self._schedule_process(node)
        for node in self.nodes:
            outages = self.links.ports[node.index].outages
            self._push_to_watchers(outages.reachable_from(0), node, PeerJoined)
            for start, end in outages.spans:
                if start <= 0 or end - start <= self._lost_after:
                    continue
                self._push_to_watchers(start + self._lost_after, node, PeerLost)
                self._push_to_watchers(end, node, PeerJoined)

    def _schedule_process(self, node: SimulatedNode) -> None:
        begin = self._down[node.index].reachable_from(0)
        node.up = begin == 0
        if begin < NEVER:
            self._push(begin, FIRST, node.index, Started(self._entropy(node)))
        for start, end in self._down[node.index].spans:
            if start > 0:
                self._push(start, FIRST, node.index, "crash")
                if end < NEVER:
                    self._push(end, FIRST, node.index, "restart")

    def _entropy(self, node: SimulatedNode) -> bytes:
        """The same at every start, from the seed: a resumed run draws the same numbers as an uninterrupted one."""
        return derive(self._seed, "entropy", node.role.name).to_bytes(8, "little")

    def _push_to_watchers(self, time: int, node: SimulatedNode, kind: type[PeerJoined] | type[PeerLost]) -> None:
        """Schedule the news of a join or loss for all roles that watch this node.

        The server watches the parties, and the parties watch the server. With `peers`, parties also watch each other.
        A watcher whose process is down gets the news when it is up again.
        """
        watchers = range(len(self.nodes)) if self._peers or node.is_server else [self._server]
        for watcher in watchers:
            if watcher is None or watcher == node.index:
                continue
            heard = self._down[watcher].reachable_from(time)
            if heard < NEVER:
                self._push(heard, FIRST, watcher, kind(node.role.name))

    def _push(self, time: int, rank: int, node: int, event: Any, extra: Any = None) -> int:
        self.number = number = self.number + 1
        heappush(self.heap, (time, rank, number, node, event, extra))
        if rank == TIMER:
            self._timers += 1
        return number

    @property
    def pending(self) -> int:
        """How many entries in the heap are not timers."""
        return len(self.heap) - self._timers

    @pending.setter
    def pending(self, pending: int) -> None:
        self._timers = len(self.heap) - pending

    def advance(self, events: int = 1000, within_s: float = inf) -> bool:
        """Deliver up to `events` events; returns False when the run is over.

        It returns earlier if `stopping` is set, and after `within_s` seconds of real time. Ordinary messages and jobs
        are handled here, because calls of functions took a twentieth of an event's time.
        """
        limited, until = within_s < inf, perf_counter() + within_s
        heap, nodes, principal, note, simple = self.heap, self.nodes, self.principal, self._note, self.links.calm
        record, work, measure, leave = self._record, self._work, self.codec.measure, self.links.send
        watched = self._check or self._on_event is not None
        self._attended = watched or self.workers is not None or any(node.running is not None for node in nodes)
        # A message on a route that one has gone before, if links have no faults, takes the fewest steps.
        short_way = simple and self.on_send is None and not self.trace.full
        self.timeline.fold_if_long()
        self.speeds.fold_if_long()
        self.trace.hash_if_many()
        for _ in range(events):
            if self.stopping or (limited and perf_counter() > until):
                return True
            if principal.finished:
                self.status = "finished"
                return False
            if not heap:
                self.status = "stalled"
                return False
            time, rank, number, index, event, extra = heappop(heap)
            node, sender, size = nodes[index], -1, 0
            if rank == MESSAGE:
                self.idle_timers = 0
                sender, header, size, message_number = extra
                if not (simple and message_number > 0) and not self._arrives(node, time, event, extra):
                    continue
                note(4 * sender + MESSAGE_ARRIVED, time)
                if node.finished:
                    continue
            elif rank == WORK:
                self.idle_timers = 0
                token = event.token
                job = node.jobs.get(token)
                if job is None or job.order != number:
                    continue  # cancelled, or lost in a crash
                del node.jobs[token]
                if node.lane == token:
                    node.lane = None
                    note(node.job_ended, time)
                if type(event.result) is Promise and not (job.work.blind and event.result is node.running):
                    event = finished(event)  # the role reads the result, or a later job of the role is running
                header = job.work.kind.encode()
            elif rank == TIMER:
                self._timers -= 1
                if self._is_stalled():
                    return False
                if not self._timer_fires(node, time, number, event):
                    continue
                header = event.name.encode()
            else:
                self.idle_timers = 0
                if not self._reaches_role(node, time, event):
                    continue
                header = type(event).__name__.encode()
            self.now = time
            record(fixed_part(time, rank, number, sender, index, size) + header)
            if self._attended:
                self._attend(node, time, event)
            try:
                effects = node.role.handle(event, time)
            except RemoteProtocolError as error:
                self._refused(node, event, error)
            else:
                for effect in effects:  # as in `_perform`, but faster
                    kind = type(effect)
                    if kind is Send:
                        message, to, evaluation = effect.message, effect.to, effect.evaluation  # type: ignore[union-attr]
                        route = node.routes.get((type(message), to))
                        if route is None or evaluation or not short_way:
                            self._send(node, effect)  # type: ignore[arg-type]
                            continue
                        header, size, _ = measure(message)
                        route.messages += 1
                        route.bytes += size
                        receiver = route.receiver
                        arrival = time + route.latency if route.unlimited else leave(index, receiver, size, time)[0]
                        note(route.left, time)
                        self.number = number = self.number + 1
                        extra = (index, header, size, number if route.read_at_once else -number)
                        heappush(heap, (arrival, MESSAGE, number, receiver, Received(node.name, message), extra))
                    elif kind is Work:
                        work(node, effect)  # type: ignore[arg-type]
                    else:
                        self._perform_rest(node, effect)
            if self._check:
                node.role.validate()
            if self._instant:
                self._deliver_instants(time)
        return True

    def run(self) -> str:
        """Run to the end; returns "finished" or "stalled"."""
        while self.advance():
            pass
        return self.status

    def _is_stalled(self) -> bool:
        """Whether only timers remain that set themselves again: many fired in a row, all set after the first one."""
        self.idle_timers += 1
        if self.idle_timers == 1:
            self.idle_since = self.number
        if self.pending or self.idle_timers <= IDLE_TIMERS:
            return False
        waiting = (node.timers.values() for node in self.nodes if not node.finished)
        if any(number <= self.idle_since for numbers in waiting for number in numbers):
            return False  # a long pause, or the end of the run
        self.status = "stalled"
        return True

    def _attend(self, node: SimulatedNode, time: int, event: Event) -> None:
        """Show the event to the watcher, and let the role's last job end, unless the event ends a blind job."""
        if self._on_event is not None:
            self._on_event(time, node.name, event)
        if node.running is not None and not (type(event) is WorkDone and event.result is node.running):
            node.settle()

    def _arrives(self, node: SimulatedNode, time: int, event: Any, extra: Any) -> bool:
        """Whether a message has arrived now; if it arrives later, schedule that."""
        sender, header, size, message_number = extra
        if message_number < 0:  # has reached the port, but is not read in yet
            arrival = self.links.receive(node.index, size, time)
            self._push(arrival, MESSAGE, node.index, event, (sender, header, size, -message_number))
            return False
        if not node.up:  # crashed in the meantime: the sender repeats it
            back = self.links.ports[node.index].outages.reachable_from(time)
            if back < NEVER:
                self._push(back, MESSAGE, node.index, event, extra)
            elif message_number > node.seen.get(sender, 0):  # the receiver never returns
                node.seen[sender] = message_number
                self._note(4 * sender + MESSAGE_ARRIVED, time)
            return False
        if not message_number:  # evaluation that waited for the end of an outage
            self.now = time
            self._instant.append((node, event))
            self._deliver_instants(time)
            return False
        if message_number <= node.seen.get(sender, 0):
            self._traffic.duplicates_dropped += 1
            return False
        node.seen[sender] = message_number
        return True

    def _deliver_instants(self, time: int) -> None:
        """Deliver an event's effects before the next event, so that one answer at a time is in memory."""
        stack = self._stack
        while stack or self._instant:
            stack += reversed(self._instant)
            self._instant.clear()
            node, event = stack.pop()
            if node.running is not None:
                node.settle()
            try:
                effects = node.role.handle(event, time)
            except RemoteProtocolError as error:
                self._refused(node, event, error)
            else:
                self._perform(node, effects)

    def _refused(self, node: SimulatedNode, event: Event, error: RemoteProtocolError) -> None:
        """Report a refused message. Only a message can be refused: for other events the error is the role's own."""
        if self.on_refusal is None or not isinstance(event, Received):
            raise error
        self.on_refusal(node, error)

    def restart_conversation(self, one: str, other: str) -> None:
        """Drop all messages in transit between two roles, and tell both that their conversation starts again."""
        self.cut(one, other)
        for name, peer in ((one, other), (other, one)):
            self.tell(name, PeerJoined(peer, reset=True))

    def cut(self, one: str, other: str) -> None:
        """Drop all messages in transit between two roles."""
        pair, kept = {one, other}, []
        for entry in self.heap:
            if not self._is_between(pair, entry[3], entry[4]):
                kept.append(entry)
            elif entry[5][3]:  # not evaluation, which the timeline leaves out
                self._note(4 * entry[5][0] + MESSAGE_ARRIVED, self.now)
        heapify(kept)
        self.heap[:] = kept  # `advance` holds the list
        for waiting in (self._instant, self._stack):
            waiting[:] = [(node, event) for node, event in waiting if not self._is_between(pair, node.index, event)]

    def _is_between(self, pair: set[str], receiver: int, event: Any) -> bool:
        return isinstance(event, Received) and {event.sender, self.nodes[receiver].role.name} == pair

    def tell(self, name: str, event: PeerJoined | PeerLost) -> None:
        """Deliver this event to the role next."""
        self._push(self.now, FIRST, self._index[name], event)

    def _timer_fires(self, node: SimulatedNode, time: int, number: int, event: TimerFired) -> bool:
        """Whether this timer is still valid; if its role is down, it fires later."""
        if node.timers.get(event.name) != number or node.finished:
            return False  # replaced or cancelled
        if not node.up:
            back = self._down[node.index].reachable_from(time)
            if back < NEVER:
                node.timers[event.name] = self._push(back, TIMER, node.index, event)
            else:
                del node.timers[event.name]
            return False
        del node.timers[event.name]
        return True

    def _reaches_role(self, node: SimulatedNode, time: int, event: Any) -> bool:
        """Whether the event is for the role. A crash and a restart are not: they are dealt with here."""
        if event == "crash":
            self._crash(node, time)
        elif event == "restart":
            self._restart(node, time)
        elif not node.finished:
            if isinstance(event, Started):
                node.started_at, node.up = time, True
            return True
        return False

    def _crash(self, node: SimulatedNode, time: int) -> None:
        """End the process: its running jobs are lost, its journal is not."""
        node.up = False
        for job in node.jobs.values():
            node.charge(job.work, time - job.end)
        node.wait_jobs += [job.work for job in node.jobs.values()]
        node.jobs.clear()
        if node.lane is not None:
            node.lane = None
            self._note(node.job_ended, time)

    def _restart(self, node: SimulatedNode, time: int) -> None:
        """Restore the state at the crash, as checkpoint and journal would; jobs that were running run again."""
        self.now, node.up = time, True
        node.settle()
        node.role.load(node.role.save())
        self.resume(node)
        works, node.wait_jobs = node.wait_jobs, []
        self._perform(node, works)

    def resume(self, node: SimulatedNode) -> None:
        """Give the role, after a load, the key that no checkpoint holds. This event is not in the trace."""
        if node.started_at >= 0 and node.role.handle(Resumed(self._entropy(node)), self.now):
            raise LocalProtocolError(f"{node.role.name}: effects of Resumed, which has none")

    def _perform(self, node: SimulatedNode, effects: Iterable[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._send(node, effect)  # type: ignore[arg-type]
            elif kind is Work:
                self._work(node, effect)  # type: ignore[arg-type]
            else:
                self._perform_rest(node, effect)

    def _perform_rest(self, node: SimulatedNode, effect: Effect) -> None:
        match effect:
            case SetTimer(name=name, at=at):
                at = max(at, self.now)
                node.timers[name] = self._push(at, TIMER, node.index, TimerFired(name, at))
            case CancelTimer(name=name):
                node.timers.pop(name, None)
            case CancelWork(token=token):
                self._cancel(node, token)
            case Emit(record=record):
                if self._on_emit is not None:
                    self._on_emit(record, self)
            case Finish(reason=reason):
                node.finished = reason or "finished"

    def _cancel(self, node: SimulatedNode, token: int) -> None:
        job = node.jobs.pop(token, None)
        if job is not None:
            node.charge(job.work, self.now - job.end)
            if node.lane == token:
                node.lane = None
                self._note(node.job_ended, self.now)

    def _send(self, node: SimulatedNode, effect: Send) -> None:
        message, sender, now = effect.message, node.index, self.now
        receiver = self._index.get(effect.to)
        if receiver is None:
            raise LocalProtocolError(f"{node.name}: no role {effect.to!r} to send to")
        frame = self.codec.encode(message)
        size, event = frame.size, Received(node.name, message)
        if self.on_send is not None:
            self.on_send(node.name, effect, size)
        if effect.evaluation:
            self._traffic.evaluation_bytes += size
            self._send_evaluation(sender, receiver, event)
            return
        arrival, transmissions = self.links.send(sender, receiver, size, now)
        self._count(node, effect, size, transmissions)
        if arrival >= NEVER:
            self._traffic.undeliverable += 1
            return
        self._note(4 * sender + MESSAGE_LEFT, now)
        header = frame.header
        if self.trace.full:
            header += b"".join(buffer.tobytes() for buffer in frame.buffers)
        self.number = number = self.number + 1
        extra = (sender, header, size, -number if self.links.ports[receiver].ns_per_byte else number)
        heappush(self.heap, (arrival, MESSAGE, number, receiver, event, extra))
        if self._duplicating and self.links.duplicated(sender, receiver, now):
            self._count(node, effect, size, 1)
            self._push(arrival, MESSAGE, receiver, event, extra)

    def _count(self, node: SimulatedNode, effect: Send, size: int, transmissions: int) -> None:
        kind, to = type(effect.message), self._index[effect.to]
        if to == self._server or node.is_server:
            self._traffic.count(kind.__name__, to == self._server, size, transmissions)
            if (kind, effect.to) not in node.routes:
                node.routes[kind, effect.to] = Route(node.index, to, self.links)
        else:
            self._traffic.count_between(kind.__name__, size, transmissions)

    @property
    def traffic(self) -> Traffic:
        """What crossed the links so far."""
        for node in self.nodes:
            for (kind, _), route in node.routes.items():
                self._traffic.count_many(kind.__name__, not node.is_server, route.messages, route.bytes)
                route.messages = route.bytes = 0
        return self._traffic

    def _send_evaluation(self, sender: int, receiver: int, event: Received) -> None:
        ports = self.links.ports
        reached = max(ports[sender].outages.reachable_from(self.now), ports[receiver].outages.reachable_from(self.now))
        if reached == self.now and self.nodes[receiver].started_at >= 0:
            self._instant.append((self.nodes[receiver], event))
        elif reached < NEVER:
            self._push(reached, MESSAGE, receiver, event, (sender, b"", 0, 0))

    def _start(self, node: SimulatedNode, work: Work, end: int) -> Any:
        """A promise of the result. A role computes one job at a time."""
        if node.start is not None:
            return node.start(work.job)
        assert self.workers is not None
        due = None if work.blind else end
        node.running = self.workers.submit(node.index, due, node.role.compute, work.job)
        return node.running

    def settle(self) -> None:
        """Wait for all jobs that are being computed; raises what a job raised."""
        for node in self.nodes:
            node.settle()

    def _work(self, node: SimulatedNode, work: Work) -> None:
        if work.kind == EVALUATION:
            node.settle()
            self._instant.append((node, WorkDone(work.token, node.role.compute(work.job))))
            return
        now, token, amount = self.now, work.token, work.amount
        duration = node.pace.duration(amount, now) if amount else 0
        end = now + duration
        if work.aside:
            node.aside_ns += duration
        else:
            if node.lane is not None:
                raise LocalProtocolError(f"{node.name}: asks for {work.kind!r} while a job is running")
            node.lane = token
            node.busy_ns += duration
            self._note(node.job_started, now)
            if duration:
                self._note_speed(node.index, now, MICRO if amount == 1.0 else round(amount * MICRO), duration)
        here = self.workers is None and node.start is None
        result = node.role.compute(work.job) if here else self._start(node, work, end)
        self.number = number = self.number + 1
        heappush(self.heap, (end, WORK, number, node.index, WorkDone(token, result), None))
        node.jobs[token] = Job(work, now, end, number)


def finished(event: WorkDone) -> WorkDone:
    """The event with the result instead of its promise; waits for the result."""
    return event if isinstance(event.result, Payload) else WorkDone(event.token, event.result.result())
