"""What attacking parties ask, and how they read the answers.

    symbol      here
    c, ĉ        `values`, `perturbed` of an Upload
    u, μ        a direction per row, `smoothing`
    h, ĥ        the answer's first number, and the others

A client is a plain object: `ask` makes the next question, `read` takes the answer, `guesses` holds a label per row, −1
if it knows nothing about the row. `stage.Intruder` carries the client as a party of the method.
"""

from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any

import numpy as np

from colonnade.algorithms.batches import Rows
from colonnade.algorithms.observations import Asking, Batches, Observations, Upload
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = ["Client", "GradientReader", "LossReader", "PackedRows", "Place", "RowByRow", "label_of"]

UNKNOWN = -1
GIVES_UP = 100  # after so many refused questions


@dataclass(frozen=True)
class Place:
    """What a party knows about the federation before it starts."""

    rows: int
    classes: int
    width: int
    index: int
    seed: int
    walk: Batches  # of an honest party
    asking: Asking
    seen: Observations[Any]  # what the method's messages show


def label_of(gradient: Array) -> Array:
    """Fu et al.: with softmax and cross-entropy only the label's ∂ℓ/∂y^c is negative.

    With one logit its sign is the label.
    """
    labels: Array = np.argmin(gradient, axis=1) if gradient.shape[1] > 1 else (gradient[:, 0] < 0).astype(np.int64)
    return labels


class Client:
    """An attacker in the place of a party."""

    effort = 1.0  # time of a question, in honest steps
    hurried = False  # whether it asks far more often than an honest party

    def __init__(self, place: Place) -> None:
        self.place = place
        self.random = generator(place.seed, "attack", place.index)
        self.guesses = np.full(place.rows, UNKNOWN, np.int64)
        self.rows: Rows = np.zeros(0, np.int32)  # of the question in flight
        self.refusals = 0

    def ask(self, step: int) -> Upload | None:
        """Return the question of this step; None when there is nothing left to ask."""
        raise NotImplementedError

    def read(self, answer: Array) -> None:
        """Take the server's answer to the last question."""
        raise NotImplementedError

    def refused(self) -> None:
        """Count a question that the server did not answer."""
        self.refusals += 1


class GradientReader(Client):
    """Sec. VI-B against methods that send gradients: upload a random c; the sign of ∂ℓ/∂h gives the label."""

    def ask(self, step: int) -> Upload | None:
        """c ~ N(0, 1)."""
        if step >= self.place.walk.per_epoch:
            return None
        self.rows = self.place.walk.batch(step)
        return Upload(step, self.rows, _normal(self.random, len(self.rows), self.place.width))

    def read(self, answer: Array) -> None:
        self.guesses[self.rows] = label_of(answer)


class LossReader(Client):
    """Sec. VI-B against methods that send losses: c and ĉ = c + μu, one question per batch, Eq. (3) as the gradient.

    # DEVIATION: the paper writes ĉ = c + u and divides by μ; it must be μu. u is drawn for each row: with one u for
    # the whole batch all rows get the same guess.
    """

    def ask(self, step: int) -> Upload | None:
        """c, u ~ N(0, 1)."""
        if step >= self.place.walk.per_epoch:
            return None
        self.rows = self.place.walk.batch(step)
        c = _normal(self.random, len(self.rows), self.place.width)
        self._u = _normal(self.random, self.place.asking.directions, *c.shape)
        return Upload(step, self.rows, c, c + np.float32(self.place.asking.smoothing) * self._u)

    def read(self, answer: Array) -> None:
        """φ/μ·(ĥ − h)·u, averaged over the directions; losses per sample are read per sample."""
        self.guesses[self.rows] = label_of(estimated(answer, self._u))


def estimated(answer: Array, u: Array) -> Array:
    """Eq. (3) up to a positive factor: Σ (ĥ − h)·u over the directions, (rows, width)."""
    differences = answer[1:] - answer[0]  # (directions,) or, per sample, (directions, rows)
    weights = differences.reshape(len(u), -1, 1)
    total: Array = (weights * u).sum(0)
    return total


class RowByRow(Client):
    """An adaptive client: one row at a time, class by class, until one ∂ℓ/∂y^c is negative.

    After a refusal it puts the same row many times into one batch, then alternates until it gives up.
    """

    effort, hurried = 0.0, True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._order = self.random.permutation(place.rows).astype(np.int32)
        self._at, self._class = 0, 0
        self._c = _normal(self.random, 1, place.width)
        self._classes: list[int] = []  # of the question in flight

    def ask(self, step: int) -> Upload | None:
        """Ask about the next classes of this row."""
        if self._at >= len(self._order) or self.refusals >= GIVES_UP:
            return None
        place = self.place
        copies = place.asking.min_batch if self.refusals % 2 else 1
        self.rows = np.repeat(self._order[self._at], copies)
        asked = np.arange(self._class, self._class + place.asking.directions) % place.width
        self._classes = asked.tolist()
        c = np.repeat(self._c, copies, 0)
        steps = np.float32(place.asking.smoothing) * np.eye(place.width, dtype=np.float32)[asked]
        return Upload(step, self.rows, c, c + steps[:, None, :])

    def read(self, answer: Array) -> None:
        """(ĥ − h)/μ is ∂ℓ/∂y^c of this one row."""
        negative = [c for c, rise in zip(self._classes, answer[1:] - answer[0], strict=True) if rise < 0]
        if self.place.width == 1:
            self._next_row(len(negative))
        elif negative:
            self._next_row(negative[0])
        else:
            self._class += len(self._classes)
            if self._class >= 2 * self.place.width:  # never negative, because of rounding: skip the row
                self._next_row(UNKNOWN)

    def _next_row(self, label: int) -> None:
        self.guesses[self._order[self._at]] = label
        self._at, self._class = self._at + 1, 0
        self._c = _normal(self.random, 1, self.place.width)


class PackedRows(Client):
    """An adaptive client that keeps every rule: it packs many labels as digits into ONE number.

    With y = −a·(0, 1, 2, …) and a large, softmax is certain of class 0 and the loss of a row is a·label, whatever the
    other parties add. The i-th row has a = 64 in c and 64·base^i in ĉ, so that batch·(ĥ − h)/64 = Σ (base^i −
    1)·label_i: a float64 holds about a dozen such digits. All other rows have ĉ = c and cancel. The client asks about
    the batches of the agreed walk: in coordinated rounds for one epoch, else until it knows every label.
    """

    effort, hurried = 0.0, True
    CERTAIN = np.float32(64.0)  # e^−64 is negligible, even against the others' embeddings
    BITS = 48  # of a float64's 53; the rest is for the rounding of sums

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        classes = place.classes
        self._base = 2 ** ceil(log2((classes - 1) / 0.61 + 1))  # lower digits stay under 0.61 of a unit
        self._digits = floor((self.BITS + log2((self._base - 1) / classes)) / log2(self._base))
        # One logit has loss a·(1 − label) at +a; several have loss a·label at −a·(0, 1, 2, …).
        self._ramp = np.ones(1, np.float32) if place.width == 1 else -np.arange(place.width, dtype=np.float32)
        self._chosen = np.zeros(0, np.int64)

    def ask(self, step: int) -> Upload | None:
        """Return the next batch; as many of its rows as fit into the answer carry a digit."""
        place = self.place
        if step >= place.walk.per_epoch and (place.asking.coordinated or (self.guesses != UNKNOWN).all()):
            return None
        self.rows = place.walk.batch(step)
        unknown = np.flatnonzero(self.guesses[self.rows] == UNKNOWN)
        self._chosen = unknown[: place.asking.directions * self._digits]
        c = _normal(self.random, len(self.rows), place.width)
        c[self._chosen] = self.CERTAIN * self._ramp
        perturbed = np.repeat(c[None], place.asking.directions, 0)
        for number, position in enumerate(self._chosen):
            direction, digit = divmod(number, self._digits)
            perturbed[direction, position] *= np.float32(self._base ** (digit + 1))
        return Upload(step, self.rows, c, perturbed)

    def read(self, answer: Array) -> None:
        """Decode from the greatest digit down."""
        sums = len(self.rows) * (answer[1:] - answer[0]) / float(self.CERTAIN)
        for direction, rest in enumerate(sums.tolist()):
            positions = self._chosen[direction * self._digits :][: self._digits]
            for digit in reversed(range(len(positions))):
                unit = self._base ** (digit + 1) - 1
                value = min(max(floor(rest / unit + 0.2), 0), self.place.classes - 1)
                rest -= value * unit
                self.guesses[self.rows[positions[digit]]] = value if self.place.width > 1 else 1 - value


def _normal(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)
