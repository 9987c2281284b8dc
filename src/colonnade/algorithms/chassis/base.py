"""What servers and parties share: dispatch of events, the outbox, sealed state, save and load.

A role's attributes are of three kinds. Settings are fixed when the role is made. Components save themselves (a network,
a table, a guard). Everything else that changes is a field of the typed `state`. Once the role has started, the chassis
refuses any other attribute, so that nothing that changes can be missing from a checkpoint.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from colonnade.algorithms.chassis.rules import ANYONE, Rules, Sender, find
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    CancelTimer,
    CancelWork,
    Effect,
    Event,
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
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.saved import form_of

__all__ = ["Chassis", "RoleState", "Saves"]

S = TypeVar("S", bound="RoleState")

_CHANGING = (list, dict, set, deque, bytearray)


@dataclass(slots=True, kw_only=True)
class RoleState:
    """What changes while a role runs; a method's state derives from it."""

    jobs: int = 0  # asked for so far: the token of the newest


@runtime_checkable
class Saves(Protocol):
    """A component of a role that saves itself: a network, a table, a guard."""

    def save(self) -> Any:
        """Plain values and arrays (see `protocol.state`)."""

    def load(self, saved: Any) -> None:
        """Take over what `save` returned, in place."""


class _Turn:
    """One call of `handle`: its time, and the effects asked for so far."""

    __slots__ = ("effects", "now")

    def __init__(self) -> None:
        self.now = 0
        self.effects: list[Effect] = []


class Chassis(Generic[S]):
    """The base of all roles; `senders` says which peers are the server and which are parties."""

    handlers: ClassVar[Rules] = Rules()
    refuses: ClassVar[tuple[type[Message], ...]] = ()  # messages that a base class handles and this role does not
    gated = False  # whether `gate` sees every event first
    _sealed = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = Rules.of(cls)
        for kind in cls.refuses:
            cls.handlers.messages.pop(kind, None)

    def __init__(self, name: str, senders: Mapping[str, Sender], state: S) -> None:
        self.name, self.state = name, state
        self._senders = MappingProxyType(dict(senders))
        kind: type = type(state)
        self._form = form_of(kind)
        self._turn = _Turn()

    # Hooks of a role.

    def started(self, entropy: bytes) -> None:
        """The first event of all."""

    def resumed(self, entropy: bytes) -> None:
        """After a restart: take over the new key; ask for nothing."""

    def joined(self, peer: str, anew: bool) -> None:
        """A peer is within reach; `anew`: what was under way with it is gone."""

    def peer_lost(self, peer: str) -> None:
        """A peer is out of reach."""

    def rang(self, timer: str, due: int) -> None:
        """A timer whose name is made while the role runs, so that no function can declare it."""
        raise LocalProtocolError(f"{self.name}: no handler for the timer {timer}")

    def gate(self, event: Event) -> bool:
        """Whether the event is dealt with and its handler must not see it."""
        return False

    def loaded(self) -> None:
        """Make transient fields again, after `load`."""

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant of the state does not hold."""

    # Events.

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Dispatch one event; returns what its handler asked for. A refusal forgets what was asked for before it."""
        turn = self._turn
        effects: list[Effect] = []
        turn.now, turn.effects = now, effects
        if self.gated and self.gate(event):
            return effects
        if isinstance(event, Received):
            self._received(event.sender, event.message)
        elif isinstance(event, WorkDone):
            self._work_done(event)
        elif isinstance(event, TimerFired):
            self._timer_fired(event)
        elif isinstance(event, PeerJoined):
            self.joined(event.peer, event.anew)
        elif isinstance(event, PeerLost):
            self.peer_lost(event.peer)
        elif isinstance(event, Started):
            self._seal()
            self.started(event.entropy)
        elif isinstance(event, Resumed):
            self._seal()
            self.resumed(event.entropy)
        else:
            raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")
        return effects

    def _received(self, sender: str, message: Message) -> None:
        kind = type(message)
        found = self.handlers.messages.get(kind) or find(self.handlers.messages, kind)  # `find` is for the first time
        if found is None or (self._senders.get(sender) != found[1] and found[1] != ANYONE):
            raise self.unexpected(sender, message)
        found[0](self, sender, message)

    def unexpected(self, sender: str, message: Message) -> RemoteProtocolError:
        """For a handler, too, whose message has no place in what the options choose."""
        return RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def _work_done(self, event: WorkDone) -> None:
        kind = type(event.result)
        found = self.handlers.results.get(kind) or find(self.handlers.results, kind)
        if found is None:
            raise LocalProtocolError(f"{self.name}: no handler for the result {kind.__name__}")
        found[0](self, event.token, event.result)

    def _timer_fired(self, event: TimerFired) -> None:
        found = self.handlers.timers.get(event.name)
        if found is None:
            self.rang(event.name, event.due)
        else:
            found[0](self, event.due)

    # Jobs.

    def compute(self, job: Payload) -> Payload:
        """Compute a job; changes no state."""
        return (self.handlers.jobs.get(type(job)) or self.rule_of(job))[0](self, job)

    def rule_of(self, job: Payload) -> tuple[Callable[[Any, Any], Payload], bool]:
        """The function that computes a job, and whether its result is released through the guard."""
        found = find(self.handlers.jobs, type(job))
        if found is None:
            raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")
        return found

    # The outbox: effects leave in the order in which the handler asks for them.

    @property
    def now(self) -> int:
        """The time of the event in hand, in nanoseconds."""
        return self._turn.now

    def do(self, effects: Iterable[Effect]) -> None:
        """Ask for what a component of the role has put together."""
        self._turn.effects.extend(effects)

    def send(self, to: str, message: Message, *, evaluation: bool = False) -> None:
        """Ask the driver to deliver a message; `evaluation`: outside clock, trace and byte totals."""
        self._turn.effects.append(Send(to, message, evaluation))

    def work(self, kind: str, amount: float, job: Payload, *, aside: bool = False, blind: bool = False) -> int:
        """Ask for a job of `amount` local steps; returns its token."""
        self.state.jobs += 1
        self._turn.effects.append(Work(self.state.jobs, kind, amount, job, aside, blind))
        return self.state.jobs

    def cancel(self, token: int) -> None:
        """Drop a job's result."""
        self._turn.effects.append(CancelWork(token))

    def wake(self, timer: str, at: int) -> None:
        """Set a timer; it replaces one of the same name."""
        self._turn.effects.append(SetTimer(timer, at))

    def forget_timer(self, timer: str) -> None:
        """Cancel a timer."""
        self._turn.effects.append(CancelTimer(timer))

    # State.

    def save(self) -> dict[str, Any]:
        """The state by its types, and every component that saves itself."""
        parts = {name: part.save() for name, part in self._components().items()}
        return {"state": self._form.plain(self.state)} | parts

    def load(self, state: dict[str, Any]) -> None:
        """Become what `save` described, and seal the role."""
        self._seal()
        object.__setattr__(self, "state", self._form.typed(state["state"]))
        for name, part in self._components().items():
            part.load(state[name])
        self.loaded()

    def _components(self) -> dict[str, Saves]:
        """Attributes that save themselves, and those in tuples: found, not listed."""
        found: dict[str, Saves] = {}
        for name, value in vars(self).items():
            if isinstance(value, Saves):
                found[name] = value
            elif isinstance(value, tuple):
                found |= {f"{name}.{place}": one for place, one in enumerate(value) if isinstance(one, Saves)}
        return found

    def _seal(self) -> None:
        changing = [name for name, value in vars(self).items() if isinstance(value, _CHANGING)]
        if changing:
            raise LocalProtocolError(
                f"{self.name}: {', '.join(changing)} may change, and no checkpoint would hold it; make it a field of "
                f"the state, or a tuple"
            )
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise LocalProtocolError(f"{self.name}: {name} is no field of the state, so no checkpoint would hold it")
        object.__setattr__(self, name, value)
