"""Encoding of the embeddings that a party sends, whatever their purpose.

The party's `encode` handles batches, warm-up, further and fresh rows, perturbed embeddings and answers to an
evaluation. The server decodes them before it does anything else, so its table and its evaluation hold the same numbers.
A method that rounds, sparsifies or packs embeddings writes both functions in one class, which its two roles inherit.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array, EvaluationReply

__all__ = ["Encoding", "arrived"]

M = TypeVar("M", bound=Any)  # a message with `values`


class Encoding:
    """Both directions for both roles. This base class sends embeddings unchanged."""

    exact_tests = False  # True: test rows are sent unencoded, so the evaluation uses exact embeddings

    def encode(self, values: Array) -> Array:
        """Turn (rows, width) float32 into as many rows of any type and width. A job calls it: change no state."""
        return values

    def decode(self, values: Array) -> Array:
        """Return (rows, width) float32. Any exception counts as the fault of the party that sent the array."""
        return values

    def encode_tests(self, values: Array) -> Array:
        """Encode held-out rows; with `exact_tests`, return them unchanged."""
        return values if self.exact_tests else self.encode(values)

    def decode_tests(self, values: Array) -> Array:
        return values if self.exact_tests else self.decode(values)

    def decoded(self, sender: str, message: M) -> M:
        """Return the message with decoded float32 embeddings. Call it before checking the message or changing state."""
        decode = self.decode_tests if isinstance(message, EvaluationReply) else self.decode
        values = arrived(sender, message.values, decode)
        return message if values is message.values else msgspec.structs.replace(message, values=values)


def arrived(sender: str, values: Array, decode: Callable[[Array], Array]) -> Array:
    """Decode a peer's array; raise RemoteProtocolError if `decode` raises anything."""
    try:
        return decode(values)
    except Exception as error:  # the method's own code handles bytes from a peer
        cause = f"embeddings of shape {values.shape} {values.dtype} that cannot be decoded: {str(error)[:200]}"
        raise RemoteProtocolError(sender, cause) from error
