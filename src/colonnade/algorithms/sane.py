"""Limits of what any role may send."""

import numpy as np

from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["LARGEST", "STEPS", "are_sane", "is_finite", "is_step"]

LARGEST = 1e6  # of an embedding: one absurd value in the server's table would ruin the training for all parties
_SURELY = LARGEST**2 / 2  # squares with a smaller sum are all below LARGEST², however the sum is rounded
STEPS = 2**40  # no run has that many steps, rounds or updates


def are_sane(values: Array) -> bool:
    """Check that embeddings are finite and within ±LARGEST, the size that training can lead to."""
    if isinstance(values, Elsewhere):
        return True  # it came over no wire; reading it would stall the GPU, and the loss shows divergence as well
    if values.dtype.char in "fd" and np.vdot(values, values) < _SURELY:
        return True
    return not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST)


def is_finite(values: Array) -> bool:
    """Check that a peer's array holds neither NaN nor infinity."""
    return isinstance(values, Elsewhere) or all_finite(values)  # on the GPU of this process: see `are_sane`


def is_step(number: int) -> bool:
    """Check that a peer's number can be a step, a round or an update of a run."""
    return 0 <= number < STEPS
