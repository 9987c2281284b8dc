"""The methods, each a small package of roles that do no I/O."""

from colonnade.algorithms.registry import METHODS, find_method

__all__ = ["METHODS", "find_method"]
