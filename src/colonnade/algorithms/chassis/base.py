"""What servers and parties share: dispatch of events, the outbox, sealed state, save and load.

A role's attributes are of three kinds. Settings are fixed when the role is made. Components save themselves (a network,
a table, a guard). Everything else that changes is a field of the typed `state`. Once the role has started, the chassis
refuses assignments to any other attribute, so that a checkpoint holds everything that changes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar

from colonnade.algorithms.chassis.rules import ANYONE, Rules, Sender, find
from colonnade.protocol.errors import CheckpointError, LocalProtocolError, RemoteProtocolError
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
    """What changes while a role runs. A method's state derives from it."""

    jobs: int = 0  # jobs started so far: the token of the newest


class Saves(Protocol):
    """A component of a role that saves itself: a network, a table, a guard."""

    def save(self) -> Any:
        """Return plain values and arrays (see `protocol.state`)."""

    def load(self, saved: Any) -> None:
        """Restore what `save` returned, in place."""


def _saves(value: object) -> TypeGuard[Saves]:
    """As `isinstance(value, Saves)`, which takes much longer; most attributes of a role are no components."""
    kind = type(value)
    return hasattr(kind, "save") and hasattr(kind, "load")


class _Turn:
    """One call of `handle`: its time and the effects so far."""

    __slots__ = ("effects", "now")

    def __init__(self) -> None:
        self.now = 0
        self.effects: list[Effect] = []


class Chassis(Generic[S]):
    """The base of all roles. `senders` says which peers are the server and which are parties."""

    handlers: ClassVar[Rules] = Rules()
    refuses: ClassVar[tuple[type[Message], ...]] = ()  # messages that a base class handles and this role refuses
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

    # Hooks that a role overrides.

    def started(self, entropy: bytes) -> None:
        """Handle the first event of a run."""

    def resumed(self, entropy: bytes) -> None:
        """Take the new key after a restart. Produce no effects."""

    def joined(self, peer: str, reset: bool) -> None:
        """Handle a peer within reach. `reset`: the conversation starts again, and messages in transit are gone."""

    def peer_lost(self, peer: str) -> None:
        """Handle a peer that is out of reach."""

    def rang(self, timer: str, due: int) -> None:
        """Handle a timer whose name is made at run time, so that no function can declare it."""
        raise LocalProtocolError(f"{self.name}: no handler for the timer {timer}")

    def gate(self, event: Event) -> bool:
        """Return True if this call dealt with the event, so that its handler must not see it."""
        return False

    def loaded(self) -> None:
        """Rebuild transient fields after `load`."""

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant of the state does not hold."""

    # Events.

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Dispatch one event and return its handler's effects. If the handler raises, its earlier effects are lost."""
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
            self.joined(event.peer, event.reset)
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
        found = self.handlers.messages.get(kind) or find(self.handlers.messages, kind)  # `find` runs once per type
        if found is None or (self._senders.get(sender) != found[1] and found[1] != ANYONE):
            raise self.unexpected(sender, message)
        found[0](self, sender, message)

    def unexpected(self, sender: str, message: Message) -> RemoteProtocolError:
        """Return the error for a message that this role, or this choice of options, does not expect."""
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
        """Return the function that computes a job, and whether its result must pass the privacy guard."""
        found = find(self.handlers.jobs, type(job))
        if found is None:
            raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")
        return found

    # The outbox: effects leave in the order in which the handler adds them.

    @property
    def now(self) -> int:
        """The time of the current event, in nanoseconds."""
        return self._turn.now

    def do(self, effects: Iterable[Effect]) -> None:
        """Add the effects that a component of the role has made."""
        self._turn.effects.extend(effects)

    def send(self, to: str, message: Message, *, evaluation: bool = False) -> None:
        """Send a message. With `evaluation` it is outside the clock, the trace and the byte totals."""
        self._turn.effects.append(Send(to, message, evaluation))

    def work(
        self, kind: str, amount: float, job: Payload, *,
        aside: bool = False, blind: bool = False, repeatable: bool = False,
    ) -> int:  # fmt: skip
        """Start a job of `amount` local steps; return its token."""
        self.state.jobs += 1
        self._turn.effects.append(Work(self.state.jobs, kind, amount, job, aside, blind, repeatable))
        return self.state.jobs

    def cancel(self, token: int) -> None:
        """Drop a job's result."""
        self._turn.effects.append(CancelWork(token))

    def wake(self, timer: str, at: int) -> None:
        """Set a timer at the time `at` (ns). It replaces a timer of the same name."""
        self._turn.effects.append(SetTimer(timer, at))

    def forget_timer(self, timer: str) -> None:
        self._turn.effects.append(CancelTimer(timer))

    # State.

    def save(self) -> dict[str, Any]:
        """Return the typed state as plain values, and the state of every component that saves itself."""
        parts = {name: part.save() for name, part in self._components().items()}
        return {"state": self._form.plain(self.state)} | parts

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `save` returned, and seal the role. A component that an earlier release lacked starts fresh."""
        self._seal()
        object.__setattr__(self, "state", self._form.typed(state["state"]))
        parts = self._components()
        if unknown := sorted(state.keys() - parts.keys() - {"state"}):
            raise CheckpointError(f"the checkpoint of {self.name} is of a newer release: it has {', '.join(unknown)}")
        for name, part in parts.items():
            if name in state:
                part.load(state[name])
        self.loaded()

    def _components(self) -> dict[str, Saves]:
        """Find the attributes that save themselves, also those in tuples."""
        found: dict[str, Saves] = {}
        for name, value in vars(self).items():
            if _saves(value):
                found[name] = value
            elif isinstance(value, tuple):
                found |= {f"{name}.{place}": one for place, one in enumerate(value) if _saves(one)}
        return found

    def _seal(self) -> None:
        changing = [name for name, value in vars(self).items() if isinstance(value, _CHANGING)]
        if changing:
            raise LocalProtocolError(
                f"{self.name}: {', '.join(changing)} may change, but is not saved in checkpoints; make it a "
                "field of the state, or a tuple"
            )
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: object) -> None:
        if self._sealed:
            raise LocalProtocolError(
                f"{self.name}: {name} is not a field of the state, so checkpoints would not save it"
            )
        object.__setattr__(self, name, value)
