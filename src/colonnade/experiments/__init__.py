"""Runs in the simulator, comparisons, sweeps, rankings, and the privacy report."""
