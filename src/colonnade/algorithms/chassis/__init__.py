"""The storey between the contract and the methods: what every role would otherwise write again."""

from colonnade.algorithms.chassis.base import Chassis, RoleState, Saves
from colonnade.algorithms.chassis.rules import PARTY, Sender, done, done_blind, job, on, timer

__all__ = ["PARTY", "Chassis", "RoleState", "Saves", "Sender", "done", "done_blind", "job", "on", "timer"]
