"""What `colonnade check` finds: one line for each thing that it has looked at."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from colonnade.protocol.errors import ColonnadeError

__all__ = ["Finding", "Findings", "error", "fine", "tried", "warning"]


class Finding(NamedTuple):
    """One check. An error keeps the member from taking part; a warning may do so later."""

    name: str
    status: Literal["ok", "warning", "error"]
    text: str
    next: str = ""  # what to do, if the text does not say it


Findings = Iterator[Finding]


def fine(name: str, text: str) -> Finding:
    return Finding(name, "ok", text)


def warning(name: str, text: str, next: str = "") -> Finding:
    return Finding(name, "warning", text, next)


def error(name: str, text: str, next: str = "") -> Finding:
    return Finding(name, "error", text, next)


def tried(name: str, check: Callable[[], str], next: str = "") -> Finding:
    """The finding of a check that returns what is fine, or raises what is wrong."""
    try:
        return fine(name, check())
    except ColonnadeError as wrong:
        return error(name, str(wrong), next)
