"""Remarks of a coordinating role on single parties, for the operator's log."""

from colonnade.protocol.messages import Payload

__all__ = ["Remark"]


class Remark(Payload, frozen=True):
    """Something that the method noticed about a party, e.g. a wrong answer. The run goes on."""

    party: str
    text: str
