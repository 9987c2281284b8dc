"""The "did you mean" part of an error about an unknown word."""

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 8


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for a near miss, else an empty string."""
    near = get_close_matches(str(word), list(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def listing(names: Iterable[str], between: str = ", ") -> str:
    """Join the first few names and count the rest.

    A table may have thousands of columns, a federation a thousand parties.
    """
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return between.join(every[:SHOWN]) + more
