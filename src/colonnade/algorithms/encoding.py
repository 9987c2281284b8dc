"""How a party's embeddings travel: what `encode` makes of them is what leaves, whatever they are wanted for.

Batches, warm-up, further and fresh rows, perturbed embeddings and the answers to an evaluation all pass through the
party's `encode`. The server decodes them first of all: its table and its evaluation hold the same numbers. A method
that rounds, sparsifies or packs what it sends writes both functions into one class that its two roles inherit.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array, EvaluationReply

__all__ = ["Encoding", "arrived"]

M = TypeVar("M", bound=Any)  # a message with `values`


class Encoding:
    """Both directions, for both roles; here embeddings travel as they are."""

    exact_tests = False  # True: test rows travel as they are, and the method is judged on exact embeddings

    def encode(self, values: Array) -> Array:
        """(rows, width) float32 → an array of as many rows, of any type and width. Part of a job: state stays."""
        return values

    def decode(self, values: Array) -> Array:
        """The reverse, (rows, width) float32; whatever it raises is the fault of the party that sent the array."""
        return values

    def encode_tests(self, values: Array) -> Array:
        """The same for the rows that the method is judged on."""
        return values if self.exact_tests else self.encode(values)

    def decode_tests(self, values: Array) -> Array:
        """The reverse of `encode_tests`."""
        return values if self.exact_tests else self.decode(values)

    def decoded(self, sender: str, message: M) -> M:
        """A message with float32 embeddings in it, before anything is checked or changed."""
        decode = self.decode_tests if isinstance(message, EvaluationReply) else self.decode
        values = arrived(sender, message.values, decode)
        return message if values is message.values else msgspec.structs.replace(message, values=values)


def arrived(sender: str, values: Array, decode: Callable[[Array], Array]) -> Array:
    """A peer's array, decoded."""
    try:
        return decode(values)
    except Exception as error:  # a method's own code about the bytes of a stranger
        cause = f"embeddings of shape {values.shape} {values.dtype} that cannot be decoded: {str(error)[:200]}"
        raise RemoteProtocolError(sender, cause) from error
