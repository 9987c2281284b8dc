"""Discrete events on a virtual clock: real training, virtual time."""

from colonnade.drivers.simulator.clock import ClockConfig, Compute, Fault, Link, ServerClock
from colonnade.drivers.simulator.engine import Simulator

__all__ = ["ClockConfig", "Compute", "Fault", "Link", "ServerClock", "Simulator"]
