"""A party leaves when its privacy budget is spent. It says so once, and the server treats it as lost permanently."""

from typing import ClassVar

from colonnade.privacy.guard import Release, Withheld
from colonnade.protocol.messages import Message

__all__ = ["LEAVING_PAYLOADS", "LONGEST", "Withdrawn"]


class Withdrawn(Message, frozen=True):
    """Party → server: this party sends nothing more, with the reason."""

    plainly: ClassVar[str] = "a notice that the party leaves, and why"

    why: str


LEAVING_PAYLOADS = (Withdrawn, Withheld, Release)
LONGEST = 200  # characters of a reason, because the server shows it to its operator
