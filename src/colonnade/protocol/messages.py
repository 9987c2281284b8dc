"""What crosses between roles: frozen structs of plain values and numpy arrays.

A method defines its own messages as subclasses of `Message`; jobs, results and records derive from
`Payload`, so that one codec serves the wire and the checkpoint. Arrays in a payload are never changed
after it was made: the simulator hands over the same object that a network would have copied.
"""

from typing import Any, ClassVar

import msgspec
import numpy.typing as npt

__all__ = ["Array", "Elsewhere", "EvaluationReply", "EvaluationRequest", "Message", "Payload"]

Array = npt.NDArray[Any]


class Elsewhere:
    """What stands for an array whose elements lie on a GPU: shape, dtype and nbytes, and `np.asarray` fetches it."""

    __slots__ = ()


class Payload(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Anything that the codec can turn into bytes; its class name is its tag."""


class Message(Payload, frozen=True):
    """Something that one role sends to another."""

    plainly: ClassVar[str] = ""  # what leaves its sender, for a person who is no engineer


class EvaluationRequest(Message, frozen=True, omit_defaults=True):
    """Server → party: the embeddings of test rows start..stop, from your committed state."""

    number: int
    start: int
    stop: int
    best: int = 0  # the best evaluation so far, where that matters (`train.patience`)
    last: bool = False  # the run ends with this one: go back to the best


class EvaluationReply(Message, frozen=True):
    """Party → server: those rows, and the step of the party's model that they come from."""

    plainly: ClassVar[str] = "for each row held out for judging, the numbers that the party's network makes of it"

    number: int
    start: int
    step: int
    values: Array  # (stop - start, width)
