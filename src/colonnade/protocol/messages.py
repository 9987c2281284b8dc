"""Messages between roles: frozen structs of plain values and numpy arrays.

A method defines its own messages as subclasses of `Message`. Jobs, results and records derive from `Payload`, so one
codec serves the wire and the checkpoint. An array in a payload never changes once the payload is made, because the
simulator hands over the same object that a network would have copied.
"""

from typing import Any, ClassVar

import msgspec
import numpy.typing as npt

__all__ = ["Array", "Elsewhere", "EvaluationReply", "EvaluationRequest", "Message", "Payload"]

Array = npt.NDArray[Any]


class Elsewhere:
    """Stands for an array whose elements lie on a GPU: has shape, dtype and nbytes; `np.asarray` fetches it."""

    __slots__ = ()


class Payload(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of everything that the codec turns into bytes; the class name is the tag."""


class Message(Payload, frozen=True):
    """A payload that one role sends to another."""

    plainly: ClassVar[str] = ""  # what leaves its sender, in words for a reader who is not an engineer


class EvaluationRequest(Message, frozen=True, omit_defaults=True):
    """Server → party: send the embeddings of test rows start..stop, from your committed state."""

    number: int
    start: int
    stop: int
    best: int = 0  # number of the best evaluation so far, if it matters (`train.patience`)
    last: bool = False  # the run ends with this evaluation: go back to the best weights


class EvaluationReply(Message, frozen=True):
    """Party → server: the embeddings of those rows, and the step of the party's model that made them."""

    plainly: ClassVar[str] = "for each held-out row, the numbers that the party's network makes of it"

    number: int
    start: int
    step: int
    values: Array  # (stop - start, width)
