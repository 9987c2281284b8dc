"""Leaving because the privacy budget is spent: a party says so once, and the server treats it as lost for good."""

from copy import copy
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import EvaluateRows
from colonnade.algorithms.judging import Judging
from colonnade.privacy.guard import Guard, Release, Withheld
from colonnade.protocol.events import Effect, Event, PeerJoined, Resumed, Send, Started, WorkDone
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.role import SERVER

__all__ = ["LEAVING_PAYLOADS", "Guarded", "Withdrawing", "Withdrawn"]


class Withdrawn(Message, frozen=True):
    """Party → server: nothing more comes from me, and why."""

    why: str


LEAVING_PAYLOADS = (Withdrawn, Withheld, Release)
LONGEST = 200  # letters of a reason: it is shown to people


class Guarded:
    """A party behind a guard; its `handle` asks `guarded` first."""

    guard: Guard
    withdrawn: str  # why it uploads no more

    def guarded(self, event: Event) -> list[Effect] | None:
        """What the guard does about an event; None: the role goes on with it."""
        match event:
            case Started(entropy=entropy):
                self.guard.key.renew(entropy)
            case Resumed(entropy=entropy):
                self.guard.key.renew(entropy)
                self.guard.resume()
            case WorkDone(result=Withheld(why=why)):
                return self._withdraw(why)
            case WorkDone(result=result):
                self.guard.note(result)
            case PeerJoined(peer=peer, anew=True) if peer == SERVER and self.withdrawn:
                return [Send(SERVER, Withdrawn(self.withdrawn))]  # it may have forgotten
        return [] if self.withdrawn else None

    def embed(self, x: Array, rows: Array, number: int) -> Array | None:
        """See `protocol.role.Embedding`, and `chassis.Member.embed`."""
        places: dict[int, int] = {}
        copies = [places.setdefault(row, len(places)) for row in rows.tolist()]
        distinct = np.array(list(places), np.int64)
        release = Release(self.guard.draws + number, "prediction", distinct, "any") if self.guard.on else None
        alike: Any = copy(self)
        alike._x_test = x[distinct]
        read = alike.compute(EvaluateRows(number, 0, len(distinct), release=release))
        if isinstance(read, Withheld):
            return None
        values: Array = alike.decode_tests(read.values)
        return values[copies]

    def _withdraw(self, why: str) -> list[Effect]:
        """Jobs that are still running are dropped when they end."""
        if self.withdrawn:
            return []
        self.withdrawn = why
        return [Send(SERVER, Withdrawn(why))]


class Withdrawing(Judging):
    """A server whose parties may withdraw."""

    withdrawn: dict[str, str]  # who, and why
    _options: Any
    _parties: tuple[str, ...]

    def withdraw(self, sender: str, why: str) -> list[Effect]:
        """Go on without it, as without one that is lost; where all are needed, or nobody is left, the run ends."""
        if sender in self.withdrawn:
            return []
        self.withdrawn[sender] = why[:LONGEST]
        waits = self._options.on_lost == "wait"
        if not waits and len(self.withdrawn) < len(self._parties):
            return self._lost(sender)
        self.present.pop(sender, None)
        return [*self.evaluation.lose(sender), *self._end(f"{sender} withdrew: {self.withdrawn[sender]}")]

    def join(self, peer: str) -> None:
        """It is within reach; one that has withdrawn is not counted on."""
        if peer not in self.withdrawn:
            self.present[peer] = True

    def _lost(self, peer: str) -> list[Effect]:
        raise NotImplementedError
