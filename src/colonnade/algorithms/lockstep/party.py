"""A party of the lock-step baseline: it walks as all others do, and skips to their step when it is behind."""

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
    """Beside the batch in work."""

    skipped: int = 0  # steps left out to catch up with the others


T = TypeVar("T", bound=LockStepWalkerState)


def common_walk(setup: PartySetup[Options], smallest: int = 1) -> Walk:
    """The walk of all parties."""
    training = setup.training
    return Walk(len(setup.train), training.batch_size, training.seed, "batches", smallest=smallest)


class LockStepWalker(Walker[T], Generic[T]):
    """One batch after the other, without pauses."""

    def begin(self) -> None:
        """The first batch."""
        self.select()

    def learned(self) -> None:
        """The next one."""
        self.select()

    @on(Skip, SERVER)
    def skip(self, sender: str, message: Skip) -> None:
        """The others are further: on to their step, learning nothing from the batches between."""
        s = self.state
        if not s.uploaded or s.busy or message.step <= s.step:
            s.dropped += 1  # of no use any more; if this party is still behind, its next upload is answered so, too
            return
        s.skipped += message.step - s.step
        s.step, s.uploaded = message.step, False
        self.select()

    def validate(self) -> None:
        """No party skips what it has not come to."""
        super().validate()
        if not 0 <= self.state.skipped <= self.state.step:
            raise LocalProtocolError(f"{self.name}: {self.state.skipped} steps skipped of {self.state.step}")

    def told(self) -> RoleSummary:
        """What it adds to its summary."""
        return super().told() | {"skipped": self.state.skipped}


class Party(LockStepWalker[LockStepWalkerState], FirstOrder[LockStepWalkerState]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[SyncOptions]) -> None:
        super().__init__(setup, LockStepWalkerState(), common_walk(setup))
