"""Drivers own clocks, links and threads; roles do not."""
