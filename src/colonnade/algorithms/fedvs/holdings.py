"""The shares that a party holds of the others: coded data, and the coded models and blinding of one exchange.

With `stale = "allow"`, a coded model lasts until its party shares a newer one. The party also keeps the previous model,
because another evaluator may not have the newer one yet. Blinding is for one exchange only.
"""

from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.fedvs.messages import DataShare, ModelShare, ShareModels
from colonnade.privacy.field import MAX_INNER, P
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import transient

__all__ = ["FINGERPRINTS", "LAST_ROUND", "NEVER", "CodedData", "Exchange", "Key", "check_elements"]

Key = tuple[int, int]  # round (or number of an evaluation) and attempt
NEVER: Key = (-1, 0)
LAST_ROUND = 2**40
FINGERPRINTS = 2**48  # a version or a mark is below this number: see `sharer`


def check_elements(sender: str, what: str, values: Array, shape: tuple[int, ...]) -> None:
    """Raise RemoteProtocolError if `values` is not an array of field elements of this shape."""
    if values.shape != shape or values.dtype != np.uint32:
        raise RemoteProtocolError(sender, f"{what} of shape {values.shape} ({values.dtype}), expected {shape} uint32")
    if values.size and int(values.max()) >= P:
        raise RemoteProtocolError(sender, f"{what} with numbers outside the field (p = {P})")


def _key_of(share: ModelShare) -> Key:
    return share.round, share.attempt


@dataclass(slots=True)
class CodedData:
    """X̃_n of every party n that has shared its data; shares arrive in chunks."""

    places: int
    version: dict[int, int] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    together: tuple[list[int], Array] | None = transient(lambda: None)  # shares of S side by side, once asked for
    columns: dict[int, slice] = transient(dict)  # where each party's share is in them
    gathered: tuple[int, Array] | None = transient(lambda: None)  # their lines of one batch: its number, the lines
    complete: list[int] | None = transient(lambda: None)  # what `held` returns

    def put(self, n: int, version: int, values: Array) -> None:
        """Store a whole share, e.g. of the party's own data."""
        self.version[n], self.filled[n], self.values[n] = version, len(values), values
        self.together = self.gathered = self.complete = None

    def take(self, sender: str, n: int, message: DataShare) -> bool:
        """Take a chunk; True if it was the last one."""
        values, start = message.values, message.start
        terms = values.shape[1] if values.ndim == 2 else 0
        known = 0 <= message.version < FINGERPRINTS
        if not (known and 0 < terms <= MAX_INNER and start >= 0 and 0 < len(values) <= self.places - start):
            cause = f"coded data of shape {values.shape} from place {start} of {self.places}, version {message.version}"
            raise RemoteProtocolError(sender, cause)
        check_elements(sender, "coded data", values, (len(values), terms))
        goes_on = self.version.get(n) == message.version and start == self.filled[n]
        if n in self.values and terms != self.values[n].shape[1]:
            raise RemoteProtocolError(
                sender, f"coded data of {terms} columns, expected {self.values[n].shape[1]} as before"
            )
        if start and not goes_on:
            raise RemoteProtocolError(sender, f"coded data from place {start}, before the preceding places arrived")
        if not goes_on:
            self.version[n], self.values[n] = message.version, np.empty((self.places, terms), np.uint32)
            self.together = self.gathered = None
        self.values[n][start : start + len(values)] = values
        self.filled[n], self.complete = start + len(values), None
        return self.filled[n] == self.places

    def held(self) -> list[int]:
        """The parties whose complete share is here, in ascending order. The list must not be changed."""
        if self.complete is None:
            self.complete = sorted(n for n, filled in self.filled.items() if filled == self.places)
        return self.complete

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

    def rows_at(self, position: int, batch: Array, parties: list[int]) -> Array:
        """The same for batch number `position`. Its lines are gathered once, for all parties."""
        if self.together is None or not self.columns.keys() >= set(parties):
            self._join(self.held())
        if self.together is None or not self.columns.keys() >= set(parties):
            return self.rows(batch, parties)
        if self.gathered is None or self.gathered[0] != position:
            self.gathered = position, self.together[1][batch]
        lines = self.gathered[1]
        if parties == self.together[0]:
            return lines
        return np.concatenate([lines[:, self.columns[n]] for n in parties], axis=1)

    def _join(self, parties: list[int]) -> None:
        """Join the shares once: they never change, and a batch is then one copy of whole lines."""
        whole = np.concatenate([self.values[n] for n in parties], axis=1)
        ends = np.cumsum([self.terms(n) for n in parties])
        self.values |= dict(zip(parties, np.split(whole, ends[:-1], axis=1), strict=True))
        self.columns = {n: slice(end - self.terms(n), end) for n, end in zip(parties, ends.tolist(), strict=True)}
        self.together, self.gathered = (parties, whole), None


@dataclass(slots=True)
class Exchange:
    """W̃_n and the blinding of every party that has shared its model in the newest exchange."""

    key: Key = NEVER
    among: list[int] = field(default_factory=list)
    places: int = 0  # places of the answer
    blinded_places: int = 0  # the same number, or 0 without blinding
    awaited: list[int] = field(default_factory=list)  # models last: the parties that blind this exchange
    position: int = -1  # of the batch that will most likely be asked for
    evaluators: list[int] = field(default_factory=list)  # models last: parties that are asked first; none: all
    told: bool = False  # whether the server knows that all parties' shares are here
    versions: dict[int, int] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)  # number of the weights of each model
    models: dict[int, Array] = field(default_factory=dict)
    blindings: dict[int, Array] = field(default_factory=dict)
    previous: dict[int, tuple[int, int, Array]] = field(default_factory=dict)  # the previous version, weights, model
    named: dict[int, tuple[int, int]] = field(default_factory=dict)  # of parties that blind: version, mark
    early: dict[int, ModelShare] = field(default_factory=dict)  # of exchanges that are not ordered here yet

    def begin(self, order: ShareModels, blinded: bool) -> None:
        """Start a new exchange, and take the shares that came before its order."""
        self.key, self.among, self.places, self.told = (order.round, order.attempt), order.among, order.places, False
        self.blinded_places = order.places if blinded else 0
        self.awaited, self.position, self.evaluators = order.awaited, order.position, order.evaluators
        self.blindings, self.named = {}, {}
        if not self.awaited:
            self.versions, self.trained, self.models = {}, {}, {}
        for n, share in self.early.items():
            if _key_of(share) == self.key and self._expects(n, share):
                self._take(n, share)
        self.early = {n: share for n, share in self.early.items() if _key_of(share) > self.key}

    def _expects(self, n: int, share: ModelShare) -> bool:
        return n in self.among and (bool(self.awaited) or len(share.blinding) == self.blinded_places)

    def _take(self, n: int, share: ModelShare) -> None:
        if not self.awaited:
            self.put(n, share.version, share.trained, share.model, share.blinding)
        elif n in self.awaited and share.mark:
            self.blind(n, share.version, share.mark, share.blinding)

    def put(self, n: int, version: int, trained: int, model: Array, blinding: Array) -> None:
        """Store a share of the current exchange."""
        self.versions[n], self.trained[n], self.models[n], self.blindings[n] = version, trained, model, blinding

    def renew(self, n: int, version: int, trained: int, model: Array) -> None:
        """Store a model that lasts, and keep the previous one."""
        if n in self.models and self.versions[n] != version:
            self.previous[n] = self.versions[n], self.trained[n], self.models[n]
        self.versions[n], self.trained[n], self.models[n] = version, trained, model

    def blind(self, n: int, version: int, mark: int, blinding: Array) -> None:
        """Store the blinding of the current exchange, and the version of the model that belongs to it."""
        self.named[n], self.blindings[n] = (version, mark), blinding

    def take(self, sender: str, n: int, message: ModelShare, shape: tuple[int, ...]) -> bool:
        """Take a share; False if it is too late, or the second one of a party that has lost its memory."""
        key = self._check(sender, message, shape)
        if key < self.key or not self._fits(n, message, self.blinded_places):
            return False
        return self._take_or_keep(n, message, n in self.models)

    def take_lasting(self, sender: str, n: int, message: ModelShare, shape: tuple[int, ...], rows: int) -> bool:
        """Take a lasting model of any exchange, or blinding of `rows` rows; False if the share is useless."""
        model = message.model
        key = self._check(sender, message, shape if len(model) else (0, shape[1]))
        if len(model):
            self.renew(n, message.version, message.trained, model)
        if key < self.key or not self._fits(n, message, rows):
            return len(model) > 0
        return self._take_or_keep(n, message, n in self.named) or len(model) > 0

    def _check(self, sender: str, message: ModelShare, shape: tuple[int, ...]) -> Key:
        key = _key_of(message)
        if not all(0 <= number < LAST_ROUND for number in (*key, message.trained)):
            raise RemoteProtocolError(sender, f"a model share of round {message.round}, attempt {message.attempt}")
        check_elements(sender, "a model share", message.model, shape)
        check_elements(sender, "a blinding share", message.blinding, (len(message.blinding), shape[1]))
        return key

    def _fits(self, n: int, message: ModelShare, rows: int) -> bool:
        """Whether a share fits the order of its exchange. If not, the server may have sent the two parties different
        orders, so the sender is not to blame: the share is dropped.
        """
        return _key_of(message) != self.key or (n in self.among and len(message.blinding) == rows)

    def _take_or_keep(self, n: int, message: ModelShare, known: bool) -> bool:
        """Take a share of this exchange. Of a later one, keep the newest share of each party."""
        key = _key_of(message)
        if key == self.key:
            if not known:
                self._take(n, message)
            return not known
        if n in self.early and _key_of(self.early[n]) >= key:
            return False
        self.early[n] = message
        return True

    def find(self, n: int, version: int) -> tuple[int, Array] | None:
        """n's model of this version, and the number of its weights; None if it is not here."""
        if self.versions.get(n) == version:
            return self.trained[n], self.models[n]
        if n in self.previous and self.previous[n][0] == version:
            return self.previous[n][1:]
        return None
