"""A role: a state machine that does no I/O.

`handle` is short, changes state and returns effects. `compute` is pure: it reads the role's parameters and
the job, changes nothing that `save` would show, and may run on another thread while `handle` goes on.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from colonnade.protocol.events import Effect, Event
from colonnade.protocol.messages import Payload

__all__ = ["EVALUATION", "SERVER", "Coordinating", "Counts", "Following", "Role"]

SERVER = "server"  # the name of the role that all others know
EVALUATION = "evaluate"  # the kind of a job that belongs to evaluation: no time, no trace


class Role(Protocol):
    """What a driver knows of a server or a party."""

    name: str

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Take one event and say what is to be done; if it raises RemoteProtocolError, nothing has changed."""

    def compute(self, job: Payload) -> Payload:
        """Do a job that `handle` asked for."""

    def save(self) -> Any:
        """The whole state as plain values and arrays (see `protocol.state`)."""

    def load(self, state: Any) -> None:
        """Become what `save` described; caches start empty."""

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant of the state does not hold."""

    def summary(self) -> dict[str, Any]:
        """What the role can say of the run when it is over."""


class Counts(Protocol):
    """How far a run is."""

    k: int  # updates of the global model
    rows: int  # party-rows processed

    @property
    def epochs(self) -> float:
        """An epoch is N·M party-rows."""


class Coordinating(Role, Protocol):
    """The role that counts, evaluates and ends the run."""

    @property
    def progress(self) -> Counts:
        """How far the run is."""

    def waits_for(self) -> list[str]:
        """The parties that the next step needs."""


@runtime_checkable  # looked at when a process begins, never for an event
class Following(Role, Protocol):
    """A party that knows which update the server's last answer belonged to."""

    @property
    def k(self) -> int:
        """That update."""
