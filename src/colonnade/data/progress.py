"""How far a reader is, for whoever waits for it."""

from collections.abc import Callable

Progress = Callable[[str, float], None]  # what is being done, and the part of it that is done (0 to 1)


def silent(what: str, part: float) -> None:
    """Nobody waits."""
