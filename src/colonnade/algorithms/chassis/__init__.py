"""The layer between the role contract and the methods: code that every role would otherwise repeat.

    Chassis        dispatch of events, the outbox, sealed state, save and load
    Counting       a role that counts, evaluates and ends the run
    Coordinator    a server that judges embeddings, and whose parties may withdraw
    Member         a party behind its privacy guard

docs/architecture.md says what each requires of a method.
"""

from colonnade.algorithms.chassis.base import Chassis, RoleState, Saves
from colonnade.algorithms.chassis.coordinator import (
    Coordinator,
    CoordinatorState,
    Counting,
    CountingState,
    evaluation_of,
)
from colonnade.algorithms.chassis.member import Member, MemberState
from colonnade.algorithms.chassis.rules import ANYONE, PARTY, Sender, done, done_blind, job, on, timer

__all__ = [
    "ANYONE",
    "PARTY",
    "Chassis",
    "Coordinator",
    "CoordinatorState",
    "Counting",
    "CountingState",
    "Member",
    "MemberState",
    "RoleState",
    "Saves",
    "Sender",
    "done",
    "done_blind",
    "evaluation_of",
    "job",
    "on",
    "timer",
]
