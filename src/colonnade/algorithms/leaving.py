"""Leaving because the privacy budget is spent: a party says so once, and the server treats it as lost for good."""

from typing import ClassVar

from colonnade.privacy.guard import Release, Withheld
from colonnade.protocol.messages import Message

__all__ = ["LEAVING_PAYLOADS", "LONGEST", "Withdrawn"]


class Withdrawn(Message, frozen=True):
    """Party → server: nothing more comes from me, and why."""

    plainly: ClassVar[str] = "that the party leaves, and why"

    why: str


LEAVING_PAYLOADS = (Withdrawn, Withheld, Release)
LONGEST = 200  # letters of a reason: it is shown to people
