"""What eavesdroppers read: all messages between one benign party and the server, and nothing else.

Between real processes that wire is under TLS; the eavesdropper is whoever ends it, or a wire without.
"""

from collections.abc import Callable

import numpy as np

from colonnade.algorithms.vafl.messages import Embeddings, Gradient
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.attacks.clients import UNKNOWN, Place, estimated, label_of
from colonnade.attacks.wires import read_answer
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.seeds import generator

__all__ = ["Ear", "known_direction", "random_direction"]

Direction = Callable[[np.random.Generator, Probe], Array]  # (directions, batch, width): what stands for u


def random_direction(random: np.random.Generator, probe: Probe) -> Array:
    """Sec. VI-B: u is the party's secret, so any u must do."""
    drawn: Array = random.standard_normal(probe.perturbed.shape)
    return drawn


def known_direction(random: np.random.Generator, probe: Probe) -> Array:
    """A sharper ear: ĉ − c lies open on the wire and is what u did to the embeddings."""
    difference: Array = probe.perturbed - probe.values[: probe.batch].astype(np.float64)
    return difference


class Ear:
    """On the wire of one party."""

    def __init__(self, place: Place, direction: Direction = random_direction) -> None:
        self.place, self._direction = place, direction
        self._random = generator(place.seed, "ear", place.index)
        self.guesses = np.full(place.rows, UNKNOWN, np.int64)
        self.heard = 0
        self._uploads: dict[int, Embeddings] = {}  # of steps that were not answered yet

    @property
    def sated(self) -> bool:
        """Whether every row has passed by."""
        return bool((self.guesses != UNKNOWN).all())

    def hear(self, message: Message) -> None:
        """Uploads that name their rows are kept until their answer passes by."""
        if isinstance(message, Embeddings) and message.batch:
            self._uploads[message.step] = message
        answer = read_answer(message)
        if answer is None or answer.values is None:
            return
        upload = self._uploads.pop(answer.step, None)
        if isinstance(message, Losses):
            if isinstance(upload, Probe):
                self._learn(_rows(upload), estimated(answer.values, self._direction(self._random, upload)))
        elif isinstance(message, Gradient):
            if upload is not None:
                self._learn(_rows(upload), answer.values)
        else:  # rounds on a walk that all members know: no message names its rows
            self._learn(self.place.walk.batch(answer.step), answer.values)

    def _learn(self, rows: Array, gradient: Array) -> None:
        new = self.guesses[rows] == UNKNOWN
        self.guesses[rows[new]] = label_of(gradient)[new]
        self.heard += 1


def _rows(upload: Embeddings) -> Array:
    return upload.rows[: upload.batch]
