"""The largest value that an embedding may have."""

from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["LARGEST", "are_sane"]

LARGEST = 1e6  # of an embedding: one absurd value in the server's table would ruin the training for all parties


def are_sane(values: Array) -> bool:
    """Check that embeddings are finite and within ±LARGEST, the size that training can lead to."""
    if isinstance(values, Elsewhere):
        return True  # it came over no wire; reading it would stall the GPU, and the loss shows divergence as well
    return not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST)
