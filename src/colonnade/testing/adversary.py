"""One federation in the simulator with one Byzantine member, and the checks that its honest members must pass.

The harness treats refusals as a network node does: a refused message is not taken, and the conversation starts again.
After `MOST_REFUSALS` refusals the liar counts as lost. So does a liar that owes something for `network.give_up_s`, and
one for which the run waits for ever. `network.give_up_s` is ten times the method's own patience, as by default.

A case is a federation, the liar's name and a seed. It repeats exactly.
"""

import json
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Any

from colonnade.config.resolve import Federation
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator.simulated_node import SimulatedNode
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS, Event, PeerLost, Received
from colonnade.protocol.messages import Message
from colonnade.protocol.role import SERVER, Coordinating, Role
from colonnade.testing.liar import Letter, Liar, brief
from colonnade.testing.lies import ABSURD, Forge
from colonnade.testing.watched import Fault, Watched, accounts

__all__ = ["Calm", "Casts", "Outcome", "absurd", "attempt", "record"]

MOST_REFUSALS = 8  # as network.max_refusals
PATIENCE_S = 60.0  # of a method without `protocol.patience_s`
GIVE_UP = 10  # times the patience: the default of network.give_up_s, 600 s
SPARE_BYTES = 200_000  # by which an honest role's state may exceed that of an honest run
HANG_S = 10.0  # for one case, of computing time
SMALL_RUN = 2**20  # more than any honest count
LONGEST_RUN = 2**40  # a step, round or number from here on is absurd, whatever a role may believe its server


@dataclass(frozen=True, slots=True)
class Calm:
    """What an honest run of the federation did."""

    letters: tuple[Letter, ...]
    turns: dict[str, int]  # events that each role handled
    events: int
    bytes: dict[str, int]  # size of each role's state
    updates: int
    reason: str
    random: frozenset[str]  # fields of messages and states that hold random numbers


@dataclass(slots=True)
class Outcome:
    """What the liar achieved."""

    end: str = ""  # "finished", "ended" with a reason that names the liar, or "waits" for the liar
    reason: str = ""
    lost: bool = False  # the others gave the liar up
    refused: int = 0  # messages
    fault: str = ""  # see `Fault.kind`; "": none
    what: str = ""
    where: str = ""  # the event that the honest role was handling
    lies: list[str] = field(default_factory=list)


class Casts:
    """Roles of a federation in their initial state. Making new ones would take most of a case's time."""

    def __init__(self, setting: Federation) -> None:
        self._setting = setting
        self._initial = {role.name: state.pack(role.save()) for role in setting.roles()}
        self._free: list[list[Role]] = []

    def take(self) -> list[Role]:
        """Return roles as `setting.roles()` would."""
        if not self._free:
            return self._setting.roles()
        roles = self._free.pop()
        for role in roles:
            role.load(state.unpack(self._initial[role.name]))
        return roles

    def give_back(self, roles: list[Role]) -> None:
        """Keep roles for a later case, unless they have ledgers, which cannot start again."""
        if not any(map(accounts, roles)):
            self._free.append(roles)


def make_simulator(
    setting: Federation, roles: Sequence[Role], on_event: Callable[[int, str, Event], None] | None = None
) -> Simulator:
    """Make a simulator that checks every invariant."""
    method, config = setting.method, setting.config
    peers, codec = method.capabilities.peers, Codec(method.payloads)
    return Simulator(roles, codec, config.clock, config.train.seed, check=True, peers=peers, on_event=on_event)


def record(setting: Federation) -> Calm:
    """Run the federation without a liar, and keep what was said."""
    letters: list[Letter] = []
    turns = Counter[str]()

    def note(time: int, name: str, event: Event) -> None:
        turns[name] += 1

    simulator = make_simulator(setting, setting.roles(), note)
    simulator.on_send = lambda name, send, _: letters.append(Letter(name, send.to, send.message, send.evaluation))
    if simulator.run() != "finished":
        raise ValueError(f"{setting.method.name}: the honest run does not end")
    sizes = {node.role.name: len(state.pack(node.role.save())) for node in simulator.nodes}
    server = simulator.principal
    updates = server.role.summary()["updates"]
    random = {name for letter in letters for name in _large(letter.message)}
    random |= {name for node in simulator.nodes for name in _large_in(node.role.save())}
    return Calm(tuple(letters), dict(turns), simulator.number, sizes, updates, server.finished, frozenset(random))


def _large(message: Message) -> Iterator[str]:
    """Names of the fields with numbers beyond any step, round or count of a small run."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and abs(number) > SMALL_RUN for number in numbers):
            yield name


def _large_in(tree: Any, name: str = "") -> Iterator[str]:
    """The same of a state."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _large_in(value, key if isinstance(key, str) else name)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _large_in(value, name)
    elif isinstance(tree, int) and abs(tree) > SMALL_RUN:
        yield name


class _Case:
    def __init__(self, setting: Federation, liar: str, seed: int, calm: Calm, casts: Casts) -> None:
        self.setting, self.calm, self.casts, self.outcome = setting, calm, casts, Outcome()
        self.draw, self.used = Random(seed), [casts.take()]
        self.simulator = make_simulator(setting, self.used[0])
        self.by_name: dict[str, SimulatedNode] = {node.role.name: node for node in self.simulator.nodes}
        forge = Forge(setting.method.payloads, self.draw)
        self.liar = Liar(self.by_name[liar].role, forge, self.draw, calm.letters, calm.turns[liar])
        self.honest: list[Watched] = []
        for name, node in self.by_name.items():
            if name != liar:
                self.honest.append(Watched(node.role, self.liar, self.simulator.codec))
                node.role = self.honest[-1]
        self.by_name[liar].role = self.liar
        self.simulator.on_refusal = self._refused
        self.progress: tuple[object, int] = (None, 0)  # the last that was seen, and when
        self.most_events = 10 * calm.events + 3000
        patience_s = getattr(setting.options, "patience_s", PATIENCE_S)
        self.give_up_ns = round(GIVE_UP * patience_s * NANOSECONDS)

    def run(self) -> Outcome:
        outcome, restart_at = self.outcome, self.draw.randrange(2 * self.calm.events)
        try:
            with _limit(HANG_S):
                self._run(restart_at)
                self._check_end()
        except Fault as fault:
            if fault.kind == "named":
                outcome.end, outcome.reason = "ended", fault.what
            else:
                self._note(fault)
        else:
            for roles in self.used:
                self.casts.give_back(roles)
        return outcome

    def _note(self, fault: Fault) -> None:
        outcome = self.outcome
        outcome.fault, outcome.what = fault.kind, f"{fault.role}: {fault.what}"
        event = next((one.event for one in self.honest if one.name == fault.role), None)
        outcome.where = brief(event.message) if isinstance(event, Received) else type(event).__name__
        outcome.lies = [lie.line() for lie in self.liar.told]

    def _run(self, restart_at: int) -> None:
        simulator = self.simulator
        while True:
            waiting = simulator.number < restart_at
            more = simulator.advance(1 if waiting else 500)
            if waiting and simulator.number >= restart_at:
                self._restart()
            if simulator.number > self.most_events:
                if self.liar.name == SERVER and simulator.now > NANOSECONDS:
                    return  # its parties train, or try again, without an end, because no other member can end the run
                raise Fault("hang", SERVER, f"no end after {simulator.number} events" + self._waits())
            if not more and not (simulator.status == "stalled" and self._collect_debts()):
                return
            if self.liar.name != SERVER and not self._looked_around():
                return  # also after the liar was lost: parties may repeat their questions without an end

    def _restart(self) -> None:
        """Restart all honest roles from their saved states."""
        self.used.append(self.casts.take())
        fresh = {role.name: role for role in self.used[-1]}
        for watched in self.honest:
            watched.restart(fresh[watched.name], self.simulator.now)

    def _coordinator(self) -> Coordinating:
        role: Any = next(one.role for one in self.honest if one.name == SERVER)
        coordinator: Coordinating = role
        return coordinator

    def _looked_around(self) -> bool:
        """Collect debts if there was no progress for too long; False if the run cannot continue."""
        role = self._coordinator()
        progress = role.progress.k, role.progress.rows
        if progress != self.progress[0]:
            self.progress = progress, self.simulator.now
        return self.simulator.now - self.progress[1] <= self.give_up_ns or self._collect_debts()

    def _collect_debts(self) -> bool:
        """Lose the liar if it alone owes something. If others owe something, too, a node would end the run."""
        if self.liar.name != SERVER and self.liar.name not in self._coordinator().owes():
            raise Fault("hang", SERVER, f"the liar is {self.liar.name}" + self._waits())
        return self.liar.name != SERVER and len(self._coordinator().owes()) == 1 and self._lose()

    def _waits(self) -> str:
        if self.liar.name == SERVER:
            return ""
        role = self._coordinator()
        return f", {role.progress.k} updates of {self.calm.updates}, in debt: {role.owes() or 'no party'}"

    # As a network node does.

    def _refused(self, node: SimulatedNode, error: RemoteProtocolError) -> None:
        self.outcome.refused += 1
        if self.outcome.refused <= MOST_REFUSALS:
            self.simulator.restart_conversation(node.role.name, error.peer)
        else:
            self._lose()

    def _lose(self) -> bool:
        """Give the liar up; False if it was given up before."""
        if self.outcome.lost:
            return False
        self.outcome.lost = self.liar.muted = True
        # What the others owe from here on is a new debt: a node gives them `network.give_up_s` again.
        self.progress = self.progress[0], self.simulator.now
        self.simulator.status = "running"
        peers = self.setting.method.capabilities.peers or self.liar.name == SERVER
        for watched in self.honest:
            self.simulator.cut(watched.name, self.liar.name)
            if peers or watched.name == SERVER:
                self.simulator.tell(watched.name, PeerLost(self.liar.name))
        return True

    # The end.

    def _check_end(self) -> None:
        for watched in self.honest:
            self._check_state(watched)
            try:
                json.dumps(watched.summary(), allow_nan=False)
            except ValueError as error:
                raise Fault("summary", watched.name, str(error)) from error
        if self.liar.name == SERVER:
            self.outcome.end = "ended"  # no honest member is left that could end the run
        else:
            self._check_reason()
        self._restart()

    def _check_state(self, watched: Watched) -> None:
        saved, honest = len(state.pack(watched.save())), self.calm.bytes[watched.name]
        if saved > 3 * honest + SPARE_BYTES:
            raise Fault("memory", watched.name, f"a state of {saved} bytes, {honest} in an honest run")
        hearsay = SERVER in (watched.name, self.liar.name) or self.setting.method.capabilities.peers
        if found := absurd(watched.save(), self.calm.random, LONGEST_RUN if hearsay else 0):
            raise Fault("absurd", watched.name, f"remembers {found}")

    def _check_reason(self) -> None:
        role, outcome, liar = self._coordinator(), self.outcome, self.liar.name
        finished = outcome.reason = self.by_name[SERVER].finished
        if not finished:
            outcome.end, outcome.reason = "waits", ", ".join(role.owes())
            if liar not in role.owes():
                raise Fault("hang", SERVER, f"the liar is {liar}" + self._waits())
            return
        outcome.end = "ended" if liar in finished else "finished"
        if liar in finished:
            return
        if others := [one.name for one in self.honest if one.name in finished and one.name != SERVER]:
            raise Fault("blame", SERVER, f"ends because of {', '.join(others)}: {finished}")
        most = 2 * self.setting.training.batch_size * len(self.setting.parties)  # twice: a rest joins the last batch
        if finished != self.calm.reason or role.progress.rows > most * max(1, role.progress.k):
            told = f"{finished!r} after {role.progress.k} updates and {role.progress.epochs:.1f} epochs"
            raise Fault("early", SERVER, f"{told}; an honest run: {self.calm.reason!r} after {self.calm.updates}")


def absurd(tree: Any, random: Container[str], least: int = 0, path: str = "") -> str:
    """Find the first number in a state, of at least this size, that only a liar can have named."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, dict):
        items = ((key, value) for key, value in tree.items() if key not in random)
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    elif isinstance(tree, int) and any(abs(tree - lie) < 3 for lie in ABSURD if abs(lie) >= least):
        return f"{path} = {tree}"
    return next(filter(None, (absurd(value, random, least, f"{path}.{key}") for key, value in items)), "")


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise Fault if the case takes longer. Call it in the main thread; there is no limit on Windows."""
    if sys.platform == "win32":
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Fault("hang", "", f"still computing after {seconds:g} s: " + "".join(traceback.format_stack(frame)[-3:]))

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(setting: Federation, liar: str, seed: int, calm: Calm, casts: Casts) -> Outcome:
    """Run the federation with this member lying."""
    return _Case(setting, liar, seed, calm, casts).run()
