"""A Byzantine member: an honest role whose messages are replaced, dropped, repeated, delayed or joined by lies.

The honest role inside keeps the conversation going, so that lies arrive in every phase of a run. Its own lies may
confuse it: its errors do not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from colonnade.protocol.events import Effect, Event, Received, Send, Work, WorkDone
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import Role, RoleSummary
from colonnade.testing.lies import Forge

__all__ = ["Letter", "Liar"]

FLOOD = 60  # copies of one message
MOST_LIES = 40  # turns with a lie


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of an honest run."""

    sender: str
    to: str
    message: Message
    evaluation: bool


@dataclass(frozen=True, slots=True)
class Lie:
    """What the liar said at one turn."""

    turn: int
    way: str
    messages: tuple[Message, ...]

    def line(self) -> str:
        """For a report."""
        return f"turn {self.turn}: {self.way} " + " ".join(map(brief, self.messages[:3]))


class Broken(Payload, frozen=True):
    """The result of a job that failed inside the liar."""


class Liar:
    """Wraps a role. `turns` is how many events the role handles in an honest run: lies begin within them."""

    def __init__(self, role: Role, forge: Forge, draw: Random, letters: Sequence[Letter], turns: int) -> None:
        self.name, self._role, self._forge, self._draw = role.name, role, forge, draw
        self._letters = letters
        self._peers = sorted({letter.to for letter in letters if letter.sender == role.name})
        self._begin = draw.randrange(turns + 1)
        self._chance = draw.choice((0.0, 0.0, 0.1, 0.5))  # of another lie at each later turn
        self._turn = 0
        self._lies = 0
        self._sent: list[Send] = []
        self._held: list[Send] = []
        self._lane: int | None = None
        self.muted = False  # says nothing more: silent by its own choice, or given up by the others
        self.told: list[Lie] = []
        self._lies_sent: set[int] = set()  # ids of the messages in `told`, which lives as long

    def just_lied(self, event: Event) -> bool:
        """Whether this is one of its lies."""
        return isinstance(event, Received) and id(event.message) in self._lies_sent

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        if isinstance(event, WorkDone) and event.token == self._lane:
            self._lane = None
        if self.muted:
            return ()
        try:
            effects: Sequence[Effect] = [] if _is_broken(event) else self._role.handle(event, now)
        except Exception:  # the honest role inside stumbles over its own lies
            effects = []
        self._turn += 1
        due = self._turn > self._begin and (not self._lies or self._draw.random() < self._chance)
        sends = [effect for effect in effects if isinstance(effect, Send)]
        rest = [effect for effect in effects if not isinstance(effect, Send) and self._can(effect)]
        sends = [send for send in sends if self._forge.can_send(send.message)]
        self._sent += sends
        if due and self._lies < MOST_LIES:
            sends = self._lie(sends)
        elif self._held:
            sends, self._held = [*sends, *self._held], []
        return [*sends, *rest]

    def _can(self, effect: Effect) -> bool:
        """The simulator has one lane for a role; a confused role may ask for a second one."""
        if isinstance(effect, Work) and not effect.aside:
            if self._lane is not None:
                return False
            self._lane = effect.token
        return True

    def _lie(self, sends: list[Send]) -> list[Send]:
        self._lies += 1
        ways = [
            self._replaced,
            self._replaced,
            self._replaced,
            self._joined,
            self._joined,
            self._foreign,
            self._invented,
        ]
        ways += [self._replayed, self._flooded, self._contradicted, self._dropped, self._delayed, self._silenced]
        way = self._draw.choice(ways)
        found = way(sends)
        self.told.append(Lie(self._turn, way.__name__[1:], tuple(send.message for send in found)))
        self._lies_sent |= {id(send.message) for send in found}
        return found

    def _false(self, send: Send) -> Send | None:
        forged = self._forge.forged(send.message)
        if forged is None:
            return None
        return Send(send.to, forged, send.evaluation)

    def _some(self, sends: list[Send]) -> Send | None:
        """One of these, or an earlier message of this role, or one of an honest run."""
        own = [letter for letter in self._letters if letter.sender == self.name]
        if sends:
            return self._draw.choice(sends)
        if self._sent and (not own or self._draw.random() < 0.7):
            return self._draw.choice(self._sent)
        return _send(self._draw.choice(own)) if own else None

    def _replaced(self, sends: list[Send]) -> list[Send]:
        some = self._some(sends)
        false = self._false(some) if some is not None else None
        if false is None:
            return sends
        if not any(send is some for send in sends):  # `in` would compare arrays
            return [*sends, false]
        return [false if send is some else send for send in sends]

    def _joined(self, sends: list[Send]) -> list[Send]:
        some = self._some([])
        false = self._false(some) if some is not None else None
        return sends if false is None else [*sends, false]

    def _foreign(self, sends: list[Send]) -> list[Send]:
        """Say what another role said in an honest run."""
        letter = self._draw.choice(self._letters)
        message = (
            self._forge.forged(letter.message) if self._draw.random() < 0.3 else self._forge.delivered(letter.message)
        )
        return [*sends, *self._addressed(message, letter.evaluation)]

    def _invented(self, sends: list[Send]) -> list[Send]:
        return [*sends, *self._addressed(self._forge.invented(), self._draw.random() < 0.1)]

    def _addressed(self, message: Message | None, evaluation: bool) -> list[Send]:
        if message is None or not self._peers:
            return []
        return [Send(self._draw.choice(self._peers), message, evaluation)]

    def _replayed(self, sends: list[Send]) -> list[Send]:
        some = self._some([])
        if some is None:
            return sends
        return [*sends, some]

    def _flooded(self, sends: list[Send]) -> list[Send]:
        some = self._some(sends)
        if some is None:
            return sends
        return [*sends, *[some] * FLOOD]

    def _contradicted(self, sends: list[Send]) -> list[Send]:
        """Say everything twice, the second time differently."""
        return [one for send in sends for one in (send, self._false(send)) if one is not None]

    def _dropped(self, sends: list[Send]) -> list[Send]:
        return []

    def _delayed(self, sends: list[Send]) -> list[Send]:
        self._held += sends
        return []

    def _silenced(self, sends: list[Send]) -> list[Send]:
        self.muted = self._draw.random() < 0.5
        return []

    def compute(self, job: Payload) -> Payload:
        try:
            return self._role.compute(job)
        except Exception:
            return Broken()

    def save(self) -> Any:
        return None

    def load(self, state: Any) -> None:
        """A liar does not restart."""

    def validate(self) -> None:
        """A liar has no invariants."""

    def summary(self) -> RoleSummary:
        return {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)


def _is_broken(event: Event) -> bool:
    return isinstance(event, WorkDone) and isinstance(event.result, Broken)


def _send(letter: Letter) -> Send:
    return Send(letter.to, letter.message, letter.evaluation)


def brief(value: object) -> str:
    """A message in a line, without the elements of its arrays."""
    if isinstance(value, Payload):
        fields = ", ".join(f"{name}={brief(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{type(value).__name__}({fields})"
    if isinstance(value, np.ndarray):
        span = f" {value.min()}..{value.max()}" if value.size else ""
        return f"<{value.dtype} {value.shape}{span}>"
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
