"""Runs in the simulator, comparisons, sweeps, rankings."""
