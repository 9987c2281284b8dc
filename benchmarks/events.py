"""Events per second of the simulator against SimPy, on the same graph of messages and jobs without any computing.

    python benchmarks/events.py [--cycles 10000] [--rounds 7]

A cycle is four events: a party's job (exponential), its message to the server (three ints and 64 floats, through
the codec), the server's job (fixed, one at a time), its answer. The SimPy side has a process for every role and a
mailbox for each; it draws the same times, encodes the same messages and keeps the same hash chain. Every round
checks that both traces end in the same digest: same events, same times, same order, same bytes.

Links: latency alone, and latency with bandwidth (the sender's port, then the receiver's, one message at a time).
All run in one process, alternating; rates and ratios are medians over the rounds, set-up is not counted. SimPy runs
twice: with its own Store, as its manual teaches, and with a leaner mailbox written for this.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from statistics import median
from typing import Any

import numpy as np
import simpy

from colonnade.drivers.simulator import ClockConfig, Compute, Link, ServerClock, Simulator
from colonnade.drivers.simulator.clock import Pace
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import NANOSECONDS, Effect, Event, Finish, Received, Send, Started, Work, WorkDone
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.seeds import generator
from colonnade.protocol.trace import Trace

WORK, MESSAGE = 1, 2  # ranks in the trace
SERVER, SEED = 0, 0
JOB_S, SERVER_JOB_S, LATENCY_S, BANDWIDTH_MBPS = 1.0, 0.001, 0.005, 100.0


class Nothing(Payload, frozen=True):
    """A job, and its result."""


class Report(Message, frozen=True):
    """Party → server, and back."""

    party: int
    step: int
    count: int
    values: Array


CODEC = Codec((Nothing, Report))
NOTHING = Nothing()
VALUES = np.arange(64, dtype=np.float32)


def clock(bandwidth_mbps: float) -> ClockConfig:
    link = Link(LATENCY_S, bandwidth_mbps)
    server = ServerClock(Compute("fixed", SERVER_JOB_S), Link(0.0, bandwidth_mbps))
    return ClockConfig(Compute("exponential", JOB_S), link, server)


class Idle:
    """What a driver asks of a role, for roles that compute nothing."""

    name = ""

    def compute(self, job: Payload) -> Payload:
        return NOTHING

    def save(self) -> None:
        return None

    def load(self, state: None) -> None:
        pass

    def validate(self) -> None:
        pass

    def summary(self) -> dict[str, object]:
        return {}


class Party(Idle):
    """Repeats job, report and answer."""

    def __init__(self, number: int) -> None:
        self.name, self._number, self._step = f"party-{number}", number, 0

    def handle(self, event: Event, now: int) -> list[Effect]:
        kind = type(event)
        if kind is WorkDone:
            return [Send("server", Report(self._number, self._step, 64, VALUES))]
        if kind is Received:
            self._step += 1
        elif kind is not Started:
            return []
        return [Work(self._step, "step", 1.0, NOTHING)]


class Server(Idle):
    """Queues reports; each gets a job and an answer."""

    def __init__(self, cycles: int) -> None:
        self.name, self._left = "server", cycles
        self._line: deque[Report] = deque()

    def handle(self, event: Event, now: int) -> list[Effect]:
        kind, line = type(event), self._line
        if kind is Received:
            line.append(event.message)
            return [] if len(line) > 1 else [Work(self._left, "step", 1.0, NOTHING)]
        if kind is not WorkDone:
            return []
        report = line.popleft()
        effects: list[Effect] = [Send(f"party-{report.party}", report)]
        self._left -= 1
        if not self._left:
            return [*effects, Finish("done")]
        return [*effects, Work(self._left, "step", 1.0, NOTHING)] if line else effects


def begin(parties: int, cycles: int, config: ClockConfig) -> Simulator:
    """A simulator after its starts and joins, which are not measured."""
    roles = [Server(cycles), *(Party(i) for i in range(1, parties + 1))]
    simulator = Simulator(roles, CODEC, config, SEED)
    simulator.advance(len(simulator.heap))
    return simulator


def ours(parties: int, cycles: int, config: ClockConfig) -> tuple[float, Trace]:
    """Seconds and trace of the simulator."""
    simulator = begin(parties, cycles, config)
    start = time.perf_counter()
    simulator.run()
    return time.perf_counter() - start, simulator.trace


class Mailbox:
    """simpy.Store for one reader, with one event in the schedule per message instead of two."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._items, self._reader = env, deque[Report](), None

    def put(self, item: Report) -> None:
        if self._reader is None:
            self._items.append(item)
        else:
            reader, self._reader = self._reader, None
            reader.succeed(item)

    def get(self) -> simpy.Event:
        event = self._env.event()
        if self._items:
            event.succeed(self._items.popleft())
        else:
            self._reader = event
        return event


class InSimPy:
    """The same graph as SimPy processes; times are integer nanoseconds there too."""

    def __init__(self, parties: int, config: ClockConfig, begun: Simulator, mailbox: type[Any]) -> None:
        self.env = env = simpy.Environment()
        self.trace = Trace()
        self.trace.digest, self.trace.events = begun.trace.digest, begun.trace.events
        self.number = begun.number - parties  # each party's first job is numbered by its process here
        self.mailboxes = [mailbox(env) for _ in range(parties + 1)]
        self.latency = round(LATENCY_S * NANOSECONDS)
        self.ns_per_byte = 8000 / config.server.network.bandwidth_mbps
        self.sending_until, self.receiving_until = [0] * (parties + 1), [0] * (parties + 1)
        names = ["server", *(f"party-{i}" for i in range(1, parties + 1))]
        computes = [config.server.compute, *(config.compute_of(i) for i in range(parties))]
        paces = zip(computes, names, strict=True)
        self.paces = [Pace(compute, generator(SEED, "pace", name)) for compute, name in paces]

    def party(self, index: int) -> Iterator[simpy.Event]:
        env, trace, pace, inbox, step = self.env, self.trace, self.paces[index], self.mailboxes[index], 0
        while True:
            self.number = number = self.number + 1
            yield env.timeout(pace.duration(1.0, env.now))
            trace.add(env.now, WORK, number, -1, index, 0, b"step")
            self.send(index, SERVER, Report(index, step, 64, VALUES))
            yield inbox.get()
            step += 1

    def server(self, cycles: int) -> Iterator[simpy.Event]:
        env, trace, pace, inbox = self.env, self.trace, self.paces[SERVER], self.mailboxes[SERVER]
        for _ in range(cycles):
            report = yield inbox.get()
            self.number = number = self.number + 1
            yield env.timeout(pace.duration(1.0, env.now))
            trace.add(env.now, WORK, number, -1, SERVER, 0, b"step")
            self.send(SERVER, report.party, report)

    def send(self, sender: int, receiver: int, report: Report) -> None:
        """A timeout for the transit, without a process: its callback puts the report into the mailbox."""
        env, frame, delay = self.env, CODEC.encode(report), self.latency
        self.number = number = self.number + 1
        if self.ns_per_byte:
            start = max(env.now, self.sending_until[sender])
            self.sending_until[sender] = end = start + round(frame.size * self.ns_per_byte)
            delay += end - env.now
        way = env.timeout(delay, (number, sender, receiver, frame.size, frame.header, report))
        way.callbacks.append(self.read_in if self.ns_per_byte else self.deliver)

    def read_in(self, way: simpy.Event) -> None:
        """At the receiver's port, which reads one message at a time."""
        env, (_, sender, receiver, size, header, report) = self.env, way.value
        self.number = number = self.number + 1
        end = max(env.now, self.receiving_until[receiver]) + round(size * self.ns_per_byte)
        self.receiving_until[receiver] = end
        read = env.timeout(end - env.now, (number, sender, receiver, size, header, report))
        read.callbacks.append(self.deliver)

    def deliver(self, way: simpy.Event) -> None:
        number, sender, receiver, size, header, report = way.value
        self.trace.add(self.env.now, MESSAGE, number, sender, receiver, size, header)
        self.mailboxes[receiver].put(report)


def in_simpy(parties: int, cycles: int, config: ClockConfig, mailbox: type[Any]) -> tuple[float, Trace]:
    """Seconds and trace of SimPy."""
    begun = begin(parties, cycles, config)
    model = InSimPy(parties, config, begun, mailbox)
    for index in range(1, parties + 1):
        model.env.process(model.party(index))
    server = model.env.process(model.server(cycles))
    start = time.perf_counter()
    model.env.run(until=server)
    return time.perf_counter() - start, model.trace


def compare(parties: int, cycles: int, rounds: int, bandwidth_mbps: float) -> None:
    config = clock(bandwidth_mbps)
    contestants: dict[str, Callable[[], tuple[float, Trace]]] = {
        "simulator": lambda: ours(parties, cycles, config),
        "SimPy, Store": lambda: in_simpy(parties, cycles, config, simpy.Store),
        "SimPy, own mailbox": lambda: in_simpy(parties, cycles, config, Mailbox),
    }
    before = begin(parties, cycles, config).trace.events
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        digests = set()
        for name, run in contestants.items():
            seconds, trace = run()
            rates[name].append((trace.events - before) / seconds)
            digests.add((trace.events, trace.hexdigest))
        if len(digests) > 1:
            raise SystemExit(f"the traces differ: {digests}")
    links = "latency" if bandwidth_mbps == inf else f"latency + {bandwidth_mbps:g} Mbit/s"
    print(f"{parties} parties, {links}, {trace.events - before} events, digest {trace.hexdigest[:12]}")
    print("  " + ", ".join(f"{name} {median(values):,.0f}/s" for name, values in rates.items()))
    print(f"  simulator / SimPy with Store        {ratio(rates, 'SimPy, Store'):.2f}   (at least 1.00)")
    print(f"  simulator / SimPy with own mailbox  {ratio(rates, 'SimPy, own mailbox'):.2f}")


def ratio(rates: dict[str, list[float]], other: str) -> float:
    """The median over the rounds: both sides of a round ran in succession, on an equally busy machine."""
    return median(mine / theirs for mine, theirs in zip(rates["simulator"], rates[other], strict=True))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cycles", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    for parties in (4, 100):
        for bandwidth_mbps in (inf, BANDWIDTH_MBPS):
            compare(parties, options.cycles, options.rounds, bandwidth_mbps)


if __name__ == "__main__":
    main()
