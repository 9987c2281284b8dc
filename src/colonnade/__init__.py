"""Colonnade: vertical federated learning that does not stop for its slowest member."""

__version__ = "0.1.0"
