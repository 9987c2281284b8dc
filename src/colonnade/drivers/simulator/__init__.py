"""The simulator: a discrete-event driver with real training on a virtual clock."""

from colonnade.drivers.simulator.clock import ClockConfig, Compute, Fault, Link, ServerClock
from colonnade.drivers.simulator.engine import Simulator

__all__ = ["ClockConfig", "Compute", "Fault", "Link", "ServerClock", "Simulator"]
