"""What a role is told (events) and what it asks for (effects).

    events   Started · Resumed · Received · WorkDone · TimerFired · PeerJoined · PeerLost
    effects  Send · Work · CancelWork · SetTimer · CancelTimer · Emit · Finish

Times are integer nanoseconds of the driver's clock.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from colonnade.protocol.messages import Message, Payload

__all__ = [
    "NANOSECONDS",
    "CancelTimer",
    "CancelWork",
    "Effect",
    "Emit",
    "Event",
    "Finish",
    "PeerJoined",
    "PeerLost",
    "Promised",
    "Received",
    "Resumed",
    "Send",
    "SetTimer",
    "Started",
    "TimerFired",
    "Work",
    "WorkDone",
    "once_made",
]

NANOSECONDS = 1_000_000_000


class Started(msgspec.Struct, frozen=True, gc=False):
    """The role begins; `entropy` keys its cryptographic generator."""

    entropy: bytes


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """The role was loaded from a checkpoint and its log replayed; a new key, since none is ever saved. No effects."""

    entropy: bytes


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message arrived."""

    sender: str
    message: Message


class Promised:
    """A result that a driver may still be computing: of a job that is `blind`."""

    def then(self, use: Callable[[Any], None]) -> None:
        """Call this with the result, before anything else of the role is computed or asked for."""
        raise NotImplementedError


class WorkDone(msgspec.Struct, frozen=True, gc=False):
    """A job ended with this result."""

    token: int
    result: Any  # a Payload; of a blind job it may be Promised


class TimerFired(msgspec.Struct, frozen=True, gc=False):
    """The timer `name`, set for `due`, went off."""

    name: str
    due: int


class PeerJoined(msgspec.Struct, frozen=True, gc=False):
    """A peer is (again) within reach.

    `anew`: one of the two lost its memory, and whatever was under way between them, both ways, is gone.
    """

    peer: str
    anew: bool = False


class PeerLost(msgspec.Struct, frozen=True, gc=False):
    """A peer has not been heard of for the configured time."""

    peer: str


Event = Started | Resumed | Received | WorkDone | TimerFired | PeerJoined | PeerLost


class Send(msgspec.Struct, frozen=True, gc=False):
    """Deliver this message, once.

    `evaluation`: the message serves measuring only. The simulator delivers it outside clock and trace, and every driver
    counts its bytes as `bytes_eval`.
    """

    to: str
    message: Message
    evaluation: bool = False


class Work(msgspec.Struct, frozen=True, gc=False):
    """Run `role.compute(job)`; `amount` is its size in local steps on one batch.

    One job at a time runs on the role's lane. A job `aside` (answering others, evaluating) runs beside it. What follows
    from the end of a `blind` one does not depend on its result, which changes nothing but the role's network: the role
    gives it to `once_made`, and a driver may hand over a promise.
    """

    token: int
    kind: str
    amount: float
    job: Payload
    aside: bool = False
    blind: bool = False


class CancelWork(msgspec.Struct, frozen=True, gc=False):
    """Drop the result of this job."""

    token: int


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Fire at `at`; replaces a timer of the same name."""

    name: str
    at: int


class CancelTimer(msgspec.Struct, frozen=True, gc=False):
    """Forget this timer."""

    name: str


class Emit(msgspec.Struct, frozen=True, gc=False):
    """Something for people: a measurement for the run's folder."""

    record: Payload


class Finish(msgspec.Struct, frozen=True, gc=False):
    """This role has ended, and why."""

    reason: str


Effect = Send | Work | CancelWork | SetTimer | CancelTimer | Emit | Finish


def once_made(result: Payload | Promised, use: Callable[[Any], None]) -> None:
    """What a role does with the result of a `blind` job: now, or as soon as there is one."""
    if isinstance(result, Promised):
        result.then(use)
    else:
        use(result)
