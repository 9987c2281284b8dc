"""What an attacker sees of `vafl` and `t-sync`: embeddings with their rows go up, ∂ℓ/∂h_m comes down."""

import numpy as np

from colonnade.algorithms.batches import Walk
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

__all__ = ["OBSERVATIONS", "EmbeddingsPen", "read_answer", "read_upload", "walk_of"]


class EmbeddingsPen(Pen):
    """Uploads as `Embeddings`; rows that the server wants again are zeros."""

    def upload(self, upload: Upload, now: int) -> Message:
        """A batch, and nothing else."""
        return Embeddings(upload.step, len(upload.rows), upload.rows, upload.values)

    def reply(self, message: Message, step: int, width: int) -> Message | None:
        """A server with `max_delay` waits for the rows that it asks for."""
        if not isinstance(message, FreshRequest):
            return None
        zeros = np.zeros((len(message.rows), width), np.float32)
        return Embeddings(step, 0, message.rows, zeros, request=message.request)


def read_upload(message: Message, walk: Batches) -> Upload | None:
    """`Embeddings` name their rows."""
    if not isinstance(message, Embeddings):
        return None
    renewed = len(message.rows) - message.batch
    return Upload(message.step, message.rows, message.values, renewed=renewed)


def read_answer(message: Message) -> Answer | None:
    """∂ℓ/∂h of the uploaded batch."""
    match message:
        case Gradient(step=step, values=values):
            return Answer(step, values, step + 1)
        case Skip(step=step):
            return Answer(step - 1, None, step)
    return None


def walk_of(training: Training, shared: bool, index: int, smallest: int = 1) -> Batches:
    """As `protocol.batches` says: one walk for all parties, or each its own."""
    path = ("batches",) if shared else ("batches", index)
    return Walk(training.rows, training.batch_size, training.seed, *path, smallest=smallest)


def _walk(training: Training, options: VaflOptions, index: int) -> Batches:
    return walk_of(training, options.batches == "shared", index)


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
