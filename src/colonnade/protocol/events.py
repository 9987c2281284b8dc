"""The inputs of a role (events) and its outputs (effects).

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
    """The role was loaded from a checkpoint, and its journal replayed.

    `entropy` is a new key, because no key is ever saved. The role returns no effects.
    """

    entropy: bytes


class Received(msgspec.Struct, frozen=True, gc=False):
    sender: str
    message: Message


class Promised:
    """The result of a `blind` job that the driver may still be computing."""

    def then(self, use: Callable[[Any], None]) -> None:
        """Call `use` with the result, before the role computes or is asked for anything else."""
        raise NotImplementedError


class WorkDone(msgspec.Struct, frozen=True, gc=False):
    """The job with this token ended."""

    token: int
    result: Any  # a Payload; for a blind job it may be Promised


class TimerFired(msgspec.Struct, frozen=True, gc=False):
    """The timer `name`, which was set for `due`, went off."""

    name: str
    due: int


class PeerJoined(msgspec.Struct, frozen=True, gc=False):
    """A peer is within reach, for the first time or again.

    `reset`: one of the two lost its memory. Everything under way between them, in both directions, is gone.
    """

    peer: str
    reset: bool = False


class PeerLost(msgspec.Struct, frozen=True, gc=False):
    """The driver has not heard from a peer for the configured time."""

    peer: str


Event = Started | Resumed | Received | WorkDone | TimerFired | PeerJoined | PeerLost


class Send(msgspec.Struct, frozen=True, gc=False):
    """Deliver this message once.

    `evaluation`: the message only serves measuring. The simulator delivers it outside clock and trace, and every driver
    counts its bytes as `bytes_eval`.
    """

    to: str
    message: Message
    evaluation: bool = False


class Work(msgspec.Struct, frozen=True, gc=False):
    """Run `role.compute(job)`; `amount` is its size in local steps on one batch.

    One job at a time runs on the role's lane. A job `aside` (answering others, evaluating) runs beside the lane. The
    role ignores the result of a `blind` job except to update its network: it passes the result to `once_made`. The
    driver may therefore hand over a promise and finish the job later. A `repeatable` job draws nothing secret: from the
    same state it gives the same result. A journal may therefore leave the result out, and a replay computes it again.
    """

    token: int
    kind: str
    amount: float
    job: Payload
    aside: bool = False
    blind: bool = False
    repeatable: bool = False


class CancelWork(msgspec.Struct, frozen=True, gc=False):
    """Drop the result of the job with this token."""

    token: int


class SetTimer(msgspec.Struct, frozen=True, gc=False):
    """Fire at `at`; replaces a timer of the same name."""

    name: str
    at: int


class CancelTimer(msgspec.Struct, frozen=True, gc=False):
    name: str


class Emit(msgspec.Struct, frozen=True, gc=False):
    """A record for the run's folder, e.g. a measurement."""

    record: Payload


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The role has ended, for this reason."""

    reason: str


Effect = Send | Work | CancelWork | SetTimer | CancelTimer | Emit | Finish


def once_made(result: Payload | Promised, use: Callable[[Any], None]) -> None:
    """Call `use` with the result of a `blind` job: now, or as soon as the promised result is there."""
    if isinstance(result, Promised):
        result.then(use)
    else:
        use(result)
