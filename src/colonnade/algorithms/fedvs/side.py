"""Training rows or test rows, as a party sees them: everybody's coded data, and the newest exchange over them."""

from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.fedvs.holdings import CodedData, Exchange
from colonnade.algorithms.fedvs.messages import CodedSum, Holding, ShareModels, Sum
from colonnade.privacy.field import total
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Side"]


@dataclass(slots=True, eq=False)
class Side(Component):
    """What is held, in which versions, and what can be summed of it."""

    testing: bool = field(metadata=UNSAVED)
    blinded: bool = field(metadata=UNSAVED)
    data: CodedData
    exchange: Exchange = field(default_factory=Exchange)

    def begin(self, order: ShareModels) -> None:
        """A new exchange."""
        self.exchange.begin(order, self.blinded)

    def is_at(self, round: int, attempt: int) -> bool:
        """Whether this is the newest exchange."""
        return (round, attempt) == self.exchange.key

    def held(self) -> list[int]:
        """Whose model and data are here."""
        data = self.data.held()
        return [n for n in sorted(self.exchange.models) if n in data]

    def is_complete(self) -> bool:
        """Whether the shares of all that take part are here."""
        return not set(self.held()) < set(self.exchange.among)

    def holding(self, clipped: int) -> Holding:
        """Whose shares are here."""
        held = self.held()
        versions = [self._version(n) for n in held]
        return Holding(*self.exchange.key, held, versions, clipped, testing=self.testing)

    def _version(self, n: int) -> int:
        """Of n's data and model together."""
        return self.exchange.versions[n] ^ self.data.version[n]

    def holds(self, message: Sum) -> bool:
        """Whether all shares of S are (still) here in the versions that were agreed upon."""
        held = self.held()
        return [self._version(n) if n in held else None for n in message.summed] == message.versions

    def sum_job(self, message: Sum, batch: Array) -> CodedSum:
        """Eq. (5): the batch's rows of everybody's data, everybody's model, and the sum of the blinding."""
        exchange, summed = self.exchange, message.summed
        w = np.concatenate([exchange.models[n] for n in summed])
        blinding = total([exchange.blindings[n][: len(batch)] for n in summed])
        return CodedSum(*exchange.key, self.testing, summed, self.data.rows(batch, summed), w, blinding)
