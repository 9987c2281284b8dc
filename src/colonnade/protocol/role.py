"""A role: a state machine that does no I/O.

`handle` is short, changes state and returns effects. `compute` is pure: it reads the role's parameters and
the job, changes nothing that `save` would show, and may run on another thread while `handle` goes on.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from colonnade.protocol.events import Effect, Event
from colonnade.protocol.messages import Payload
from colonnade.protocol.ports import Releases, Storage

__all__ = ["EVALUATION", "SERVER", "Releasing", "Role", "Storing"]

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


@runtime_checkable
class Storing(Role, Protocol):
    """A role with tables too large for a checkpoint: `save` then says where in its tables it stands."""

    def open(self, storage: Storage) -> None:
        """Use these tables from now on. The driver calls this before `load` and before any event."""

    def kept(self, state: Any) -> None:
        """The driver has written what `save` gave to the disk, and needs no older state any more."""


@runtime_checkable
class Releasing(Role, Protocol):
    """A party whose uploads may be perturbed and accounted."""

    @property
    def guard(self) -> Releases:
        """What stands between its network and the wire."""
