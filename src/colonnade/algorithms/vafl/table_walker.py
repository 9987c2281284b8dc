"""Parties of a server with a table. They send all rows once before the first step, pause between activations, and
answer requests for rows that are too old.
"""

from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np

from colonnade.algorithms.batches import Order, Rows, are_distinct, is_rows, rows_per_message
from colonnade.algorithms.chassis import on, timer
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.sane import STEPS
from colonnade.algorithms.vafl.messages import Embed, Embedded, Embeddings, FreshRequest
from colonnade.algorithms.vafl.walker import Walker, WalkerState
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.role import SERVER
from colonnade.protocol.seeds import generator

__all__ = ["TableWalker", "TableWalkerState"]

MOST_ANSWERS = 64  # requests of the server in computation: an honest server waits for each answer


@dataclass(slots=True, kw_only=True)
class TableWalkerState(WalkerState):
    """The state beside the current batch: the warm-up, pauses, and requests of the server."""

    pauses: np.random.Generator
    warmed: int  # rows that the warm-up has sent
    asides: int = 0  # answers begun so far
    answers: dict[int, tuple[int, Rows]] = field(default_factory=dict)  # token → request and rows in computation

    @classmethod
    def of(cls, setup: PartySetup[Options], *, warm: bool) -> Self:
        """Return the initial state; without `warm`, the warm-up counts as done."""
        pauses = generator(setup.training.seed, "pause", setup.index)
        return cls(pauses=pauses, warmed=0 if warm else len(setup.train))


T = TypeVar("T", bound=TableWalkerState)


class TableWalker(Walker[T], Generic[T]):
    """A `Walker` with a warm-up. `pause_s` is the mean of the exponential pause between two activations, in seconds."""

    def __init__(self, setup: PartySetup[Options], state: T, walk: Order, *, pause_s: float) -> None:
        super().__init__(setup, state, walk)
        self.pause_s = pause_s

    def begin(self) -> None:
        """Alg. 1 l. 3: activate the party, once all its rows are at the server."""
        if self.state.warmed < len(self.x):
            self._warm_up()
        else:
            self.activated()

    def activated(self) -> None:
        """Start the next batch."""
        self.select()

    def learned(self) -> None:
        """Wait for the next activation."""
        self.pause()

    def pause(self) -> None:
        """Alg. 1 l. 3: parties are activated at exponential intervals."""
        if self.pause_s:
            self.wake("activate", self.now + round(self.state.pauses.exponential(self.pause_s) * NANOSECONDS))
        else:
            self.begin()

    @timer("activate")
    def activate(self, due: int) -> None:
        """End a pause. A busy party is embedding its batch again."""
        if not self.state.busy:
            self.begin()

    def embedded(self, token: int, result: Embedded) -> None:
        """Handle embeddings of rows that the server asked for, of a piece of the warm-up, or of a batch."""
        s = self.state
        if token in s.answers:
            request, rows = s.answers.pop(token)
            self.send(SERVER, Embeddings(s.step, 0, rows, result.values, request=request))
        elif s.warmed < len(self.x):
            self._warmed_up(result)
        else:
            super().embedded(token, result)

    # The warm-up: all rows once, in pieces, before the first step.

    def _warm_up(self) -> None:
        s = self.state
        s.busy = True
        s.rows = np.arange(s.warmed, min(s.warmed + rows_per_message(self.width), len(self.x)), dtype=np.int32)
        self._renew("warm-up", "warm-up", s.rows, s.warmed)

    def _warmed_up(self, result: Embedded) -> None:
        s = self.state
        self.check_own(result.values)
        s.busy = False
        if s.rows[0] == s.warmed:  # else the warm-up has restarted meanwhile
            self.send(SERVER, Embeddings(s.step, 0, s.rows, result.values))
            s.warmed += len(s.rows)
        self.begin()

    def _renew(self, kind: str, what: str, rows: Rows, number: int, *, aside: bool = False) -> int:
        """Start a pass over rows that are not trained on; return its token."""
        step, release = self.state.step if aside else 0, self.guard.plan(what, rows)
        job = Embed(step, 0, None, self.x[rows], self.renew_seed(what, number), release=release)
        amount = self.renewing(len(rows)) / self.training.batch_size
        return self.work(kind, amount, job, aside=aside, repeatable=not self.guard.on)

    # Sec. 2.3.

    @on(FreshRequest, SERVER)
    def fresh(self, sender: str, message: FreshRequest) -> None:
        """Answer a request for rows that are too old, while the party's own step continues."""
        s, rows = self.state, message.rows
        if not is_rows(rows, len(self.x)):
            raise RemoteProtocolError(sender, f"asks for row numbers outside 0..{len(self.x) - 1}")
        possible = 0 < message.request < STEPS and len(rows) > 0 and are_distinct(rows)
        if not possible or len(s.answers) >= MOST_ANSWERS:
            asked = f"request {message.request} for {len(rows)} rows, with {len(s.answers)} unanswered"
            raise RemoteProtocolError(sender, f"makes a request that cannot be: {asked}")
        s.asides += 1
        s.answers[self._renew("answer", "fresh rows", rows, s.asides, aside=True)] = (message.request, rows)

    def conversation_reset(self) -> None:
        """Drop all requests of the server, and send again what may be lost."""
        s = self.state
        for token in s.answers:
            self.cancel(token)
        s.answers = {}
        if s.warmed < len(self.x):
            s.warmed = 0  # a piece is always running; the next one begins here
        else:
            super().conversation_reset()

    def validate(self) -> None:
        """Raise LocalProtocolError unless the warm-up is within the rows."""
        if self.state.warmed == len(self.x):
            super().validate()
        if not 0 <= self.state.warmed <= len(self.x):
            raise LocalProtocolError(f"{self.name}: warm-up at row {self.state.warmed} of {len(self.x)}")
