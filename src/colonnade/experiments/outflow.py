"""What leaves each party in a run of a config: messages, receivers and bytes, from a simulation of its start.

The real roles exchange real messages, and the codec gives the length of each. A long run is simulated in part. The
second half of that part is extrapolated to the rest; evaluations are added by their number.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import msgspec

from colonnade.config.resolve import federation
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.drivers.simulator import ClockConfig
from colonnade.experiments.dry_run import Part, fastest_s, one_fast_clock
from colonnade.experiments.run import Run
from colonnade.protocol.errors import ConfigError, TrainingDiverged
from colonnade.protocol.events import Send
from colonnade.protocol.messages import Message
from colonnade.protocol.role import SERVER

__all__ = ["OTHERS", "Flow", "Outflow", "outflow"]

SIMULATED = 300  # updates, at most
OTHERS = "the other parties"
Show = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Flow:
    """The messages of one kind that one party sends to the server, or to other parties, in a whole run."""

    sender: str
    receiver: str  # SERVER or OTHERS
    kind: str
    what: str  # in plain words
    messages: float
    size_bytes: float  # of all messages together
    most: float = 0.0  # messages of a party that is far faster than the others

    @property
    def most_bytes(self) -> float:
        """Bytes of a party that is far faster than the others."""
        return self.size_bytes * self.most / self.messages


@dataclass(frozen=True, slots=True)
class Outflow:
    flows: list[Flow]
    whole: bool  # the whole run was simulated; otherwise the rest is extrapolated
    updates: int  # number that were simulated
    uneven: bool  # whether `Flow.most` was simulated: only for methods whose parties do not wait for each other


Key = tuple[str, str, type[Message]]  # sender, receiver, kind
Sums = dict[Key, tuple[float, float]]  # messages and bytes


class _Meter:
    """Counts what the parties of a run send; counts evaluations separately."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.training: Sums = defaultdict(lambda: (0.0, 0.0))
        self.judging: dict[int, Sums] = defaultdict(lambda: defaultdict(lambda: (0.0, 0.0)))
        run.simulator.on_send = self._sent

    def _sent(self, sender: str, effect: Send, size: int) -> None:
        if sender == SERVER:
            return
        sums = self.judging[len(self._run.rows)] if effect.evaluation else self.training
        key = sender, SERVER if effect.to == SERVER else OTHERS, type(effect.message)
        messages, total = sums[key]
        sums[key] = messages + 1, total + size


def outflow(config: Config, data: Partition, show: Show) -> Outflow:
    """Measure with the speeds of [clock] and, if it matters, for a party that is far faster than the others."""
    try:
        return _measured(config, data, show)
    except TrainingDiverged:  # the config's rates may not suit made-up rows; messages do not depend on them
        train = msgspec.structs.replace(config.train, learning_rate=0.0, optimiser="sgd")
        return _measured(msgspec.structs.replace(config, train=train), data, show)


def _measured(config: Config, data: Partition, show: Show) -> Outflow:
    part = Part.of(config, data, SIMULATED).beyond_the_start(data)
    parties, method = len(data.parties), federation(part.config, data).method
    uneven = bool(method.capabilities.local_updates) and parties > 1
    flows, updates = _simulated(part, data, part.config.clock, False, lambda done: show(done / (1 + uneven)))
    if uneven:
        clock = one_fast_clock(fastest_s(config, parties), parties)
        fast, _ = _simulated(part, data, clock, True, lambda done: show((1 + done) / 2))
        most = {flow.kind: flow.messages for flow in fast if flow.sender == data.parties[0]}
        flows = [replace(flow, most=max(flow.messages, most.get(flow.kind, 0.0))) for flow in flows]
    return Outflow(flows, not part.more, updates, uneven)


def _simulated(part: Part, data: Partition, clock: ClockConfig, up: bool, show: Show) -> tuple[list[Flow], int]:
    """Return what every party sends in the whole run (with `up`: at most), and the number of simulated updates."""
    run = Run(federation(msgspec.structs.replace(part.config, clock=clock), data), None)
    meter, rest = _Meter(run), 1.0
    half: Sums = {}

    def look(run: Run) -> None:
        nonlocal half, rest
        show(run.fraction)
        if part.more and not half and 0.5 <= run.fraction < 1.0:
            half, rest = dict(meter.training), 1.0 - run.fraction

    ended = run.execute(look)
    if ended["status"] == "diverged":
        raise TrainingDiverged(ended["note"])
    if ended["status"] != "finished":
        advice = f"a run of this config does not reach its end: {ended['note']}"
        raise ConfigError("CONFIG", ended["status"], advice)
    total: Sums = defaultdict(lambda: (0.0, 0.0))
    for key, sums in meter.training.items():
        _add(total, key, sums)
        before = half.get(key, (0.0, 0.0))
        later, times = (sums[0] - before[0], sums[1] - before[1]), part.more / rest
        if up:
            times = ceil(times) * (1 + 1 / max(1.0, later[0]))  # each stretch may contain one more message
        _add(total, key, later, times)
    looks = list(meter.judging.values())
    for look_sums in looks:
        for key, one in look_sums.items():
            _add(total, key, one)
    for key, one in looks[0].items() if looks else ():  # the last evaluation uses the test rows
        _add(total, key, one, max(0, part.evaluations(run)))
    flows = [Flow(sender, to, kind.__name__, _plainly(kind), *total[sender, to, kind]) for sender, to, kind in total]
    return flows, run.standing.updates


def _add(total: Sums, key: Key, one: tuple[float, float], times: float = 1.0) -> None:
    total[key] = total[key][0] + times * one[0], total[key][1] + times * one[1]


def _plainly(kind: type[Message]) -> str:
    """Return the method's own plain words, or the first line of the message's docstring without the direction."""
    first = (kind.__doc__ or kind.__name__).strip().splitlines()[0]
    return kind.plainly or first.partition(": ")[2] or first
