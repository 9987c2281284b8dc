"""A party of the lock-step baseline. It shares the walk of all parties, and skips to their step when it is behind."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.chassis import on
from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.vafl.messages import Skip
from colonnade.algorithms.vafl.walker import FirstOrder, Walker, WalkerState
from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["LockStepWalker", "LockStepWalkerState", "Party", "common_walk"]


@dataclass(slots=True, kw_only=True)
class LockStepWalkerState(WalkerState):
    """The state beside the current batch."""

    skipped: int = 0  # steps left out to catch up with the other parties


T = TypeVar("T", bound=LockStepWalkerState)


def common_walk(setup: PartySetup[Options], smallest: int = 1) -> Walk:
    """Return the walk that all parties share."""
    training = setup.training
    return Walk(len(setup.train), training.batch_size, training.seed, "batches", smallest=smallest)


class LockStepWalker(Walker[T], Generic[T]):
    """Takes one batch after the other, without pauses."""

    def begin(self) -> None:
        self.select()

    def learned(self) -> None:
        self.select()

    @on(Skip, SERVER)
    def skip(self, sender: str, message: Skip) -> None:
        """Skip to the step of the other parties, which are further, without learning from the batches between."""
        s = self.state
        if not s.uploaded or s.busy or message.step <= s.step:
            s.dropped += 1  # out of date; if this party is still behind, its next upload is answered with a Skip
            return
        s.skipped += message.step - s.step
        s.step, s.uploaded = message.step, False
        self.select()

    def validate(self) -> None:
        """Raise LocalProtocolError if more steps are skipped than walked."""
        super().validate()
        if not 0 <= self.state.skipped <= self.state.step:
            raise LocalProtocolError(f"{self.name}: {self.state.skipped} steps skipped of {self.state.step}")

    def told(self) -> RoleSummary:
        return super().told() | {"skipped": self.state.skipped}


class Party(LockStepWalker[LockStepWalkerState], FirstOrder[LockStepWalkerState]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[SyncOptions]) -> None:
        super().__init__(setup, LockStepWalkerState(), common_walk(setup))
