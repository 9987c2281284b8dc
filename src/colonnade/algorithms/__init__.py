"""The methods, each a small package of roles that do no I/O."""

from colonnade.algorithms.registry import DEFAULT_METHOD, METHODS, find_method

__all__ = ["DEFAULT_METHOD", "METHODS", "find_method"]
