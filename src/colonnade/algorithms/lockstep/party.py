"""A party of the lock-step baseline. It shares the walk of all parties, and moves to the server's step if told to."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.chassis import on
from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.sane import is_step
from colonnade.algorithms.vafl.messages import Skip
from colonnade.algorithms.vafl.walker import FirstOrder, Walker, WalkerState
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["LockStepWalker", "LockStepWalkerState", "Party"]


@dataclass(slots=True, kw_only=True)
class LockStepWalkerState(WalkerState):
    """The state beside the current batch."""

    skipped: int = 0  # steps left out to catch up with the other parties


T = TypeVar("T", bound=LockStepWalkerState)


class LockStepWalker(Walker[T], Generic[T]):
    """Takes one batch after the other, without pauses."""

    def begin(self) -> None:
        self.select()

    def learned(self) -> None:
        self.select()

    @on(Skip, SERVER)
    def skip(self, sender: str, message: Skip) -> None:
        """Move to the server's step, forward or back, without learning from the batches between."""
        s = self.state
        if not is_step(message.step):
            raise RemoteProtocolError(sender, f"sends a Skip to step {message.step}")
        if not s.uploaded or s.busy or message.step == s.step:
            s.dropped += 1  # out of date; if the steps still differ, the next upload is answered with a Skip
            return
        s.skipped += max(0, message.step - s.step)
        s.step, s.uploaded = message.step, False
        self.select()

    def validate(self) -> None:
        """Raise LocalProtocolError for a step that no run has."""
        super().validate()
        if not is_step(self.state.step):
            raise LocalProtocolError(f"{self.name}: at step {self.state.step}")

    def told(self) -> RoleSummary:
        return super().told() | {"skipped": self.state.skipped}


class Party(LockStepWalker[LockStepWalkerState], FirstOrder[LockStepWalkerState]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[SyncOptions]) -> None:
        super().__init__(setup, LockStepWalkerState(), walk_of(setup.training, None))
