"""What eavesdroppers read: all messages between one benign party and the server, and nothing else.

Between real processes TLS protects these messages. The eavesdropper is a role that terminates TLS, or reads a
connection without it.
"""

from collections.abc import Callable

import numpy as np

from colonnade.algorithms.observations import LOSSES, Upload
from colonnade.attacks.clients import UNKNOWN, Place, estimated, label_of
from colonnade.attacks.wires import read_answer
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.seeds import generator

__all__ = ["Eavesdropper", "known_direction", "random_direction"]

# (generator, c, ĉ of a batch) → an estimate of u, (directions, batch, width).
Direction = Callable[[np.random.Generator, Array, Array], Array]


def random_direction(random: np.random.Generator, values: Array, perturbed: Array) -> Array:
    """Sec. VI-B: u is the party's secret, so the eavesdropper draws its own."""
    drawn: Array = random.standard_normal(perturbed.shape)
    return drawn


def known_direction(random: np.random.Generator, values: Array, perturbed: Array) -> Array:
    """A stronger eavesdropper: ĉ − c is visible on the wire, and is the effect of u on the embeddings."""
    difference: Array = perturbed - values.astype(np.float64)
    return difference


class Eavesdropper:
    """An eavesdropper on the wire of one party."""

    def __init__(self, place: Place, direction: Direction = random_direction) -> None:
        self.place, self._direction = place, direction
        self._random = generator(place.seed, "ear", place.index)
        self.guesses = np.full(place.rows, UNKNOWN, np.int64)
        self.heard = 0
        self._uploads: dict[int, Upload] = {}  # uploads without an answer so far, by step

    @property
    def heard_all_rows(self) -> bool:
        """Whether every row has been seen."""
        return bool((self.guesses != UNKNOWN).all())

    def hear(self, message: Message) -> None:
        """Keep an upload until its answer passes."""
        place, seen = self.place, self.place.seen
        said = seen.upload(message, place.walk) if seen.upload is not None else None
        if said is not None and said.batch:
            self._uploads[said.step] = said
        answer = read_answer(seen, message)
        if answer is None or answer.values is None:
            return
        upload = self._uploads.pop(answer.step, None)
        if upload is not None:
            self._answered(upload, answer.values)
        elif seen.upload is None:  # uploads show nothing: the rows follow from what all members know
            self._learn(place.walk.batch(answer.step), answer.values)

    def _answered(self, upload: Upload, answer: Array) -> None:
        rows, values = upload.rows[: upload.batch], upload.values[: upload.batch]
        if self.place.seen.answers != LOSSES:
            self._learn(rows, answer)
        elif upload.perturbed is not None:
            self._learn(rows, estimated(answer, self._direction(self._random, values, upload.perturbed)))

    def _learn(self, rows: Array, gradient: Array) -> None:
        new = self.guesses[rows] == UNKNOWN
        self.guesses[rows[new]] = label_of(gradient)[new]
        self.heard += 1
