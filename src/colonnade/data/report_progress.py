"""The callback with which a reader reports its progress."""

from collections.abc import Callable

ReportProgress = Callable[[str, float], None]  # what is being done, and the part of it that is done (0 to 1)


def silent(what: str, part: float) -> None:
    """Ignore the progress."""
