"""Training rows or test rows, as a party sees them: everybody's coded data, and the newest exchange over them."""

from typing import Any

import numpy as np

from colonnade.algorithms.fedvs.holdings import CodedData, Exchange
from colonnade.algorithms.fedvs.messages import CodedSum, Holding, OfRows, Sum
from colonnade.privacy.field import total
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER

__all__ = ["Side"]


class Side:
    """What is held, in which versions, and what can be summed of it."""

    def __init__(self, testing: bool, places: int, blinded: bool) -> None:
        self.testing = testing
        self.data, self.exchange = CodedData(places), Exchange(blinded)

    def is_at(self, round: int, attempt: int) -> bool:
        """Whether this is the newest exchange."""
        return (round, attempt) == self.exchange.key

    def held(self) -> list[int]:
        """Whose model and data are here."""
        data = self.data.held()
        return [n for n in sorted(self.exchange.models) if n in data]

    def tell_if_complete(self, clipped: int) -> list[Effect]:
        """The server is told once everybody's share is here."""
        exchange = self.exchange
        if exchange.told or set(self.held()) < set(exchange.among):
            return []
        exchange.told = True
        return [self.holding(clipped)]

    def holding(self, clipped: int) -> Send:
        """Whose shares are here."""
        held = self.held()
        versions = [self._version(n) for n in held]
        return self.send(SERVER, Holding(*self.exchange.key, held, versions, clipped, testing=self.testing))

    def send(self, to: str, message: OfRows) -> Send:
        """A message about these rows."""
        return Send(to, message, message.testing)

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

    def save(self) -> dict[str, Any]:
        """All of it."""
        return {"data": self.data.save(), "exchange": self.exchange.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.data.load(saved["data"])
        self.exchange.load(saved["exchange"])
