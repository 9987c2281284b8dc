"""How large an embedding may be."""

from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["LARGEST", "are_sane"]

LARGEST = 1e6  # of an embedding: one absurd value in the server's table would end the training of all


def are_sane(values: Array) -> bool:
    """Whether embeddings are finite and of a size that training could have led to."""
    if isinstance(values, Elsewhere):
        return True  # nobody sent it over a wire; to look at it would stop the GPU, and the loss tells as well
    return not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST)
