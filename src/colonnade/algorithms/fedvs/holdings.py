"""What a party holds of the others: coded data, and the coded models and blinding of one exchange."""

from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.fedvs.messages import DataShare, ModelShare, ShareModels
from colonnade.privacy.field import MAX_INNER, P
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import transient

__all__ = ["CodedData", "Exchange", "Key", "check_elements"]

Key = tuple[int, int]  # round (or number of an evaluation) and attempt
NEVER: Key = (-1, 0)
LAST_ROUND = 2**40


def check_elements(sender: str, what: str, values: Array, shape: tuple[int, ...]) -> None:
    """Refuse what is not an array of field elements of this shape."""
    if values.shape != shape or values.dtype != np.uint32:
        raise RemoteProtocolError(sender, f"{what} of shape {values.shape} ({values.dtype}), expected {shape} uint32")
    if values.size and int(values.max()) >= P:
        raise RemoteProtocolError(sender, f"{what} with numbers outside the field (p = {P})")


@dataclass(slots=True)
class CodedData:
    """X̃_n of every party n that has shared its data, chunk by chunk."""

    places: int
    version: dict[int, int] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    together: tuple[list[int], Array] | None = transient(lambda: None)  # of S side by side, once they were asked for

    def put(self, n: int, version: int, values: Array) -> None:
        """A whole share, as of the own data."""
        self.version[n], self.filled[n], self.values[n] = version, len(values), values
        self.together = None

    def take(self, sender: str, n: int, message: DataShare) -> bool:
        """A chunk; True if it was the last one."""
        values, start = message.values, message.start
        terms = values.shape[1] if values.ndim == 2 else 0
        if not 0 < terms <= MAX_INNER or not 0 < len(values) <= self.places - start:
            cause = f"coded data of shape {values.shape} from place {start} of {self.places}"
            raise RemoteProtocolError(sender, cause)
        check_elements(sender, "coded data", values, (len(values), terms))
        goes_on = self.version.get(n) == message.version and start == self.filled[n]
        if goes_on and terms != self.values[n].shape[1]:
            raise RemoteProtocolError(sender, f"coded data of {terms} columns, and {self.values[n].shape[1]} before")
        if start and not goes_on:
            raise RemoteProtocolError(sender, f"coded data from place {start}, without those before it")
        if not goes_on:
            self.version[n], self.values[n] = message.version, np.empty((self.places, terms), np.uint32)
            self.together = None
        self.values[n][start : start + len(values)] = values
        self.filled[n] = start + len(values)
        return self.filled[n] == self.places

    def held(self) -> list[int]:
        """Whose share is here in full."""
        return sorted(n for n, filled in self.filled.items() if filled == self.places)

    def terms(self, n: int) -> int:
        """Columns of n's share: D_n(d_n + 1)."""
        return int(self.values[n].shape[1])

    def rows(self, batch: Array, parties: list[int]) -> Array:
        """The shares of these parties side by side, at these places."""
        if self.together is None and parties == self.held():
            self._join(parties)
        if self.together is not None and parties == self.together[0]:
            return self.together[1][batch]
        return np.concatenate([self.values[n][batch] for n in parties], axis=1)

    def _join(self, parties: list[int]) -> None:
        """They never change: a batch is then one copy of whole lines."""
        whole = np.concatenate([self.values[n] for n in parties], axis=1)
        ends = np.cumsum([self.terms(n) for n in parties])
        self.values |= dict(zip(parties, np.split(whole, ends[:-1], axis=1), strict=True))
        self.together = parties, whole


@dataclass(slots=True)
class Exchange:
    """W̃_n and the blinding of every party that has shared its model in the newest exchange."""

    key: Key = NEVER
    among: list[int] = field(default_factory=list)
    places: int = 0  # of the answer
    blinded_places: int = 0  # as many, or none
    told: bool = False  # the server knows that all parties' shares are here
    versions: dict[int, int] = field(default_factory=dict)
    models: dict[int, Array] = field(default_factory=dict)
    blindings: dict[int, Array] = field(default_factory=dict)
    early_key: Key = NEVER  # of an exchange that the server has not yet told of
    early: dict[int, tuple[int, Array, Array]] = field(default_factory=dict)

    def begin(self, order: ShareModels, blinded: bool) -> None:
        """A new exchange; what came before its order is taken now."""
        self.key, self.among, self.places, self.told = (order.round, order.attempt), order.among, order.places, False
        self.blinded_places = order.places if blinded else 0
        early = self.early if self.early_key == self.key else {}
        self.versions, self.models, self.blindings = {}, {}, {}
        for n, share in early.items():
            if n in self.among and len(share[2]) == self.blinded_places:
                self.put(n, *share)
        self.early_key, self.early = NEVER, {}

    def put(self, n: int, version: int, model: Array, blinding: Array) -> None:
        """A share of the present exchange."""
        self.versions[n], self.models[n], self.blindings[n] = version, model, blinding

    def take(self, sender: str, n: int, message: ModelShare, shape: tuple[int, ...]) -> bool:
        """A share; False if it is of no use: too late, or the second of somebody who has lost its memory."""
        key = (message.round, message.attempt)
        if not (0 <= message.round < LAST_ROUND and message.attempt >= 0):
            raise RemoteProtocolError(sender, f"a model share of round {message.round}, attempt {message.attempt}")
        places = self.blinded_places if key == self.key else len(message.blinding)
        check_elements(sender, "a model share", message.model, shape)
        check_elements(sender, "a blinding share", message.blinding, (places, shape[1]))
        if key == self.key and n not in self.among:
            raise RemoteProtocolError(sender, f"a model share of round {key[0]}, attempt {key[1]}, that nobody asked")
        if key < self.key or (key != self.key and key < self.early_key):
            return False
        if key > max(self.key, self.early_key):
            self.early_key, self.early = key, {}
        if n in (self.models if key == self.key else self.early):
            return False
        share = (message.version, message.model, message.blinding)
        if key == self.key:
            self.put(n, *share)
        else:
            self.early[n] = share
        return True
