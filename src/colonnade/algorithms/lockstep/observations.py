"""What an attacker sees of `sync`: embeddings with row numbers go up, ∂ℓ/∂h_m comes down. Parties share one walk."""

from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.observations import GRADIENTS, Observations
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.algorithms.vafl.observations import EmbeddingsPen, read_answer, read_upload

__all__ = ["OBSERVATIONS"]

OBSERVATIONS = Observations[SyncOptions](
    answers=GRADIENTS, answer=read_answer, silent=(Embeddings,), upload=read_upload, pen=EmbeddingsPen
)
