"""What eavesdroppers read: all messages between one benign party and the server, and nothing else.

Between real processes that wire is under TLS; the eavesdropper is whoever ends it, or a wire without.
"""

from collections.abc import Callable

import numpy as np

from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Query, Skip
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.attacks.clients import UNKNOWN, Place, estimated, label_of
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.seeds import generator

__all__ = ["Ear", "known_direction", "random_direction", "unreadable"]

Direction = Callable[[np.random.Generator, Probe], Array]  # (directions, batch, width): what stands for u


def random_direction(random: np.random.Generator, probe: Probe) -> Array:
    """Sec. VI-B: u is the party's secret, so any u must do."""
    drawn: Array = random.standard_normal(probe.perturbed.shape)
    return drawn


def known_direction(random: np.random.Generator, probe: Probe) -> Array:
    """A sharper ear: ĉ − c lies open on the wire and is what u did to the embeddings."""
    difference: Array = probe.perturbed - probe.values[: probe.batch].astype(np.float64)
    return difference


def unreadable(message: Message) -> ConfigError:
    """An answer that is not understood must not pass for one that tells nothing."""
    advice = "no attacker here can read this; docs/attacks.md says how to add one that can"
    return ConfigError("--protocols", f"answers with {type(message).__name__}", advice)


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
        """Uploads are kept until their answer passes by."""
        match message:
            case Embeddings(step=step, batch=batch) if batch:
                self._uploads[step] = message
            case Gradient(step=step, values=values):
                self._read(step, values)
            case Losses(step=step, values=values):
                probe = self._uploads.get(step)
                if isinstance(probe, Probe):
                    self._read(step, estimated(values, self._direction(self._random, probe)))
            case Embeddings() | Query() | Skip() | FreshRequest():
                pass
            case _:
                raise unreadable(message)

    def _read(self, step: int, gradient: Array) -> None:
        upload = self._uploads.pop(step, None)
        if upload is None:
            return
        rows = upload.rows[: upload.batch]
        new = self.guesses[rows] == UNKNOWN
        self.guesses[rows[new]] = label_of(gradient)[new]
        self.heard += 1
