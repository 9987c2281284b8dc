"""Training rows or test rows, as a party sees them: all parties' coded data, and the newest exchange over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from colonnade.algorithms.fedvs.blinders import rows_to_blind, total_blinding
from colonnade.algorithms.fedvs.holdings import FINGERPRINTS, CodedData, Exchange
from colonnade.algorithms.fedvs.messages import CodedSum, CodedTerms, Holding, ModelShare, ShareModels, Sum
from colonnade.privacy.field import total
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Side"]

NOTHING: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class Side(Component):
    """The shares held, their versions, and the sums they allow. `lasting`: models outlast an exchange."""

    testing: bool = field(metadata=UNSAVED)
    blinded: bool = field(metadata=UNSAVED)
    data: CodedData
    lasting: bool = field(default=False, metadata=UNSAVED)
    colluders: int = field(default=0, metadata=UNSAVED)  # T
    exchange: Exchange = field(default_factory=Exchange)

    def begin(self, order: ShareModels) -> None:
        """Start a new exchange; drop early blinding for the wrong number of places."""
        exchange = self.exchange
        exchange.begin(order, self.blinded)
        if self.lasting:
            for n in [n for n in exchange.named if len(exchange.blindings[n]) != self.rows_to_blind(n)]:
                del exchange.named[n], exchange.blindings[n]

    def take(self, sender: str, n: int, message: ModelShare, shape: tuple[int, int]) -> bool:
        """Take a share; False if it is useless."""
        if message.model.ndim != 2 or message.blinding.ndim != 2:
            shapes = f"{message.model.shape} and {message.blinding.shape}"
            raise RemoteProtocolError(sender, f"a model and blinding of shapes {shapes}, not of two dimensions")
        if len(message.blinding) > self.data.places:
            raise RemoteProtocolError(sender, f"blinding for {len(message.blinding)} places of {self.data.places}")
        if not (0 <= message.version < FINGERPRINTS and 0 <= message.mark < (FINGERPRINTS if self.lasting else 1)):
            raise RemoteProtocolError(sender, f"a model share of version {message.version}, mark {message.mark}")
        if self.lasting:
            rows = self.rows_to_blind(n) if message.mark else 0
            return self.exchange.take_lasting(sender, n, message, shape, rows)
        return self.exchange.take(sender, n, message, shape)

    def rows_to_blind(self, n: int) -> int:
        """How many places of the exchange party n blinds."""
        exchange = self.exchange
        if n not in exchange.awaited or not exchange.blinded_places:
            return 0
        return len(rows_to_blind(exchange.awaited, n, exchange.blinded_places, self.colluders))

    def is_at(self, round: int, attempt: int) -> bool:
        """Whether this is the newest exchange."""
        return (round, attempt) == self.exchange.key

    def held(self) -> list[int]:
        """The parties whose model and data are here, and, if they blind the exchange, their blinding."""
        data, exchange = self.data.held(), self.exchange
        lacking = [
            n for n in exchange.awaited if n not in exchange.named or exchange.find(n, exchange.named[n][0]) is None
        ]
        return [n for n in sorted(exchange.models) if n in data and n in exchange.among and n not in lacking]

    def is_complete(self) -> bool:
        """Whether an exchange has begun, and the shares of all its parties are here."""
        exchange = self.exchange
        if len(exchange.named) < len(exchange.awaited) or len(exchange.models) < len(exchange.among):
            return False  # known without a closer look, after most messages
        return bool(exchange.among) and not set(self.held()) < set(exchange.among)

    def holding(self, clipped: int, made: Mapping[int, int]) -> Holding:
        """The report on shares that are here; `made` are models whose terms for the coming sum are ready."""
        found = [(n, version, trained) for n in self.held() for version, trained in self._versions(n, made)]
        numbers, versions, trained = ([one[i] for one in found] for i in range(3))
        which = trained if self.lasting else []
        return Holding(*self.exchange.key, numbers, versions, clipped, which, testing=self.testing)

    def _versions(self, n: int, made: Mapping[int, int] = NOTHING) -> list[tuple[int, int]]:
        """Versions of n's data, model and blinding together, with the number of the weights; the one to sum is last."""
        exchange, data = self.exchange, self.data.version[n]
        if n in exchange.named:
            version, mark = exchange.named[n]
            found = exchange.find(n, version)
            return [(version ^ data ^ mark, found[0])] if found else []
        newest = exchange.versions[n] ^ data, exchange.trained[n]
        if not self.lasting or n not in exchange.previous:
            return [newest]
        version, trained, _ = exchange.previous[n]
        before = version ^ data, trained
        return [newest, before] if made.get(n) == version else [before, newest]

    def weights(self, message: Sum) -> dict[int, int] | None:
        """The parties of S and the numbers of their weights; None if a share is not here in the agreed version."""
        held = self.held()
        found = {n: dict(self._versions(n)) if n in held else {} for n in message.summed}
        pairs = list(zip(message.summed, message.versions, strict=True))
        if not all(version in found[n] for n, version in pairs):
            return None
        return {n: found[n][version] for n, version in pairs}

    def sum_job(self, message: Sum, batch: Array) -> CodedSum:
        """Eq. (5): the batch's rows of all data in S, the models, and the sum of the blinding."""
        exchange, summed = self.exchange, message.summed
        w = np.concatenate([exchange.models[n] for n in summed])
        blinding = total([exchange.blindings[n][: len(batch)] for n in summed])
        return CodedSum(*exchange.key, self.testing, summed, self.data.rows(batch, summed), w, blinding)

    # Models that last.

    def agreed(self, message: Sum) -> dict[int, int]:
        """The parties of S, with the version of each model alone."""
        exchange, data = self.exchange, self.data.version
        marks = {n: mark for n, (_, mark) in exchange.named.items()}
        pairs = zip(message.summed, message.versions, strict=True)
        return {n: version ^ data[n] ^ marks.get(n, 0) for n, version in pairs}

    def expected(self, made: Mapping[int, int] = NOTHING) -> dict[int, int]:
        """The models that the sum of this exchange will most likely have, as far as known: party → version."""
        exchange, data = self.exchange, self.data.version
        marks = {n: mark for n, (_, mark) in exchange.named.items()}
        return {n: self._versions(n, made)[-1][0] ^ data[n] ^ marks.get(n, 0) for n in self.held()}

    def terms_job(
        self, position: int, batch: Array, wanted: Mapping[int, int], groups: Sequence[list[int]]
    ) -> CodedTerms:
        """The job for the terms of Eq. (5) of these parties and versions, which must be here; a product per group."""
        numbers, exchange = [n for group in groups for n in group], self.exchange
        found = [exchange.find(n, wanted[n]) for n in numbers]
        models = [one[1] for one in found if one is not None]
        ends = np.cumsum([sum(self.data.terms(n) for n in group) for group in groups]).tolist()
        x, sizes = self.data.rows_at(position, batch, numbers), [len(group) for group in groups]
        return CodedTerms(position, numbers, [wanted[n] for n in numbers], x, np.concatenate(models), ends, sizes)

    def blinding(self, places: int, width: int) -> Array:
        """The sum of all blinding of the exchange, for its first `places` places."""
        if not self.blinded:
            return np.zeros((0, width), np.uint32)
        return total_blinding(self.exchange.blindings, self.exchange.places, width, self.colluders)[:places]
