"""An honest role under observation: what a driver would not survive, and what must not happen, becomes a `Fault`."""

import traceback
from collections.abc import Sequence
from typing import Any

from colonnade.drivers.row_file import FileStorage
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Effect, Event, Received, Resumed, Send
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import SERVER, Releasing, Role, RoleSummary, Storing
from colonnade.testing.liar import Liar, brief

__all__ = ["Fault", "Watched", "accounts", "line_of"]


class Fault(Exception):
    """An honest member failed, or was harmed.

    crash     the role raised an error that ends its process, or broke an invariant
    hang      the run has no end, or waits and does not name the liar
    blame     an honest member is refused, or named as the reason of the end
    changed   the role refused a message and changed its state
    resume    a new role cannot continue from the saved state
    memory    the state is much larger than in an honest run
    absurd    the state holds a number that only the liar named
    summary   the summary is no strict JSON
    early     the training counts as finished, but is not
    diverged  the numbers left the finite range because of a party, and the error does not name the liar
    """

    def __init__(self, kind: str, role: str, what: str) -> None:
        super().__init__(f"{kind}: {role}: {what}")
        self.kind, self.role, self.what = kind, role, what


class Watched:
    """Passes events on to an honest role."""

    def __init__(self, role: Role, liar: Liar, codec: Codec) -> None:
        self.name, self.role, self._liar, self._codec = role.name, role, liar, codec
        self.event: Event | None = None  # the last one

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Raise Fault for every error except a refusal of the liar's message that leaves the state unchanged."""
        from_liar = isinstance(event, Received) and event.sender == self._liar.name
        self.event, before = event, None
        if from_liar and self._liar.just_lied(event):
            before = state.pack(self.role.save())
        try:
            effects = self.role.handle(event, now)
        except RemoteProtocolError as error:
            if not isinstance(event, Received):
                raise Fault("crash", self.name, f"RemoteProtocolError outside a message: {error}") from error
            if not from_liar or error.peer != self._liar.name:
                raise Fault("blame", self.name, f"refuses {event.sender}: {error}") from error
            if before is not None and state.pack(self.role.save()) != before:
                raise Fault("changed", self.name, f"refused a message and changed: {error}") from error
            raise
        except Exception as error:
            raise self._fault(error) from error
        for effect in effects:
            if isinstance(effect, Send):
                self._check_sent(effect.message)
        return effects

    def _fault(self, error: Exception, where: str = "") -> Fault:
        if isinstance(error, TrainingDiverged):
            # A server can lead its parties anywhere by small steps: a party that stops does the best it can.
            named = self._liar.name == SERVER or self._liar.name in str(error)
            return Fault("named" if named else "diverged", self.name, str(error))
        return Fault("crash", self.name, where + line_of(error))

    def _check_sent(self, message: Message) -> None:
        """Do as a node does before it sends."""
        try:
            frame = self._codec.encode(message)
        except Exception as error:
            raise Fault("crash", self.name, f"sends {brief(message)}: {line_of(error)}") from error
        if not all(map(all_finite, frame.buffers)):
            raise self._fault(TrainingDiverged(f"its {type(message).__name__} are not finite"))

    def compute(self, job: Payload) -> Payload:
        """Raise Fault for every error."""
        try:
            return self.role.compute(job)
        except Exception as error:
            raise self._fault(error, f"in the job {type(job).__name__}: ") from error

    def validate(self) -> None:
        """Raise Fault if an invariant is broken."""
        try:
            self.role.validate()
        except Exception as error:
            raise Fault("crash", self.name, f"invariant: {error}") from error

    def save(self) -> Any:
        return self.role.save()

    def load(self, saved: Any) -> None:
        self.role.load(saved)

    def summary(self) -> RoleSummary:
        return self.role.summary()

    def restart(self, fresh: Role, now: int) -> None:
        """Continue in a new role from the saved state, as after `kill -9`."""
        if accounts(self.role):
            fresh = self.role  # its ledger is in memory
        try:
            if isinstance(fresh, Storing):
                fresh.open(FileStorage())
            saved = state.pack(self.role.save())
            fresh.load(state.unpack(saved))
            if fresh.handle(Resumed(b"\0" * 8), now):
                raise ValueError("effects of Resumed, which has none")
            fresh.validate()
            if state.pack(fresh.save()) != saved:
                raise ValueError("the loaded role saves another state")
        except Exception as error:
            raise Fault("resume", self.name, line_of(error)) from error
        self.role = fresh


def accounts(role: Role) -> bool:
    """Whether the role keeps a privacy ledger."""
    return isinstance(role, Releasing) and role.guard.on


def line_of(error: Exception) -> str:
    """The error, and the place in Colonnade that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/colonnade/" in frame.filename]
    frames = [frame for frame in frames if "/testing/" not in frame.filename]
    place = f" at {frames[-1].filename.split('/colonnade/')[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:200]}{place}"
