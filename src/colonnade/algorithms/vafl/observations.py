"""What an attacker sees of `vafl` and `t-sync`: embeddings with row numbers go up, ∂ℓ/∂h_m comes down."""

import numpy as np

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.observations import (
    GRADIENTS,
    Answer,
    Asking,
    Batches,
    Observations,
    Pen,
    Upload,
)
from colonnade.algorithms.training import Training
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Pace, Query, Skip
from colonnade.protocol.messages import Message

__all__ = ["OBSERVATIONS", "EmbeddingsPen", "read_answer", "read_upload"]


class EmbeddingsPen(Pen):
    """Uploads as `Embeddings`. Rows that the server asks for again are zeros."""

    def upload(self, upload: Upload, now: int) -> Message:
        """Return a batch without further rows."""
        return Embeddings(upload.step, len(upload.rows), upload.rows, upload.values)

    def reply(self, message: Message, step: int, width: int) -> Message | None:
        """Answer a `FreshRequest` with zeros, because a server with `max_delay` waits for the rows."""
        if not isinstance(message, FreshRequest):
            return None
        zeros = np.zeros((len(message.rows), width), np.float32)
        return Embeddings(step, 0, message.rows, zeros, request=message.request)


def read_upload(message: Message, walk: Batches) -> Upload | None:
    """Read the rows and values that `Embeddings` name."""
    if not isinstance(message, Embeddings):
        return None
    renewed = len(message.rows) - message.batch
    return Upload(message.step, message.rows, message.values, renewed=renewed)


def read_answer(message: Message) -> Answer | None:
    """Read ∂ℓ/∂h of the uploaded batch, or the step of a `Skip`."""
    match message:
        case Gradient(step=step, values=values):
            return Answer(step, values, step + 1)
        case Skip(step=step):
            return Answer(step - 1, None, step)
    return None


def _walk(training: Training, options: VaflOptions, index: int) -> Batches:
    return walk_of(training, None if options.batches == "shared" else index)


def _asking(options: VaflOptions) -> Asking:
    return Asking(coordinated=False)


OBSERVATIONS = Observations[VaflOptions](
    answers=GRADIENTS,
    answer=read_answer,
    silent=(Embeddings, Query, FreshRequest, Pace),
    upload=read_upload,
    pen=EmbeddingsPen,
    walk=_walk,
    asking=_asking,
)
