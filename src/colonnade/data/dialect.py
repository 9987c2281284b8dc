"""How a CSV file is written: the separator, whether there is a line of names, and the texts for a missing value."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from colonnade.protocol.errors import ConfigError, DataError

__all__ = ["EMPTY", "SAMPLE_LINES", "USUAL", "Dialect", "separator_of"]

EMPTY = ("", "NA", "NaN", "nan", "null", "?")  # texts that mean a missing value
SEPARATORS = (",", ";", "\t", "|")
SAMPLE_LINES = 20
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the config says about its CSV files; the defaults fit most files."""

    header: bool = True  # the first line holds the column names; False: they are x0, x1, …
    separator: str | None = None  # None: found in the first lines
    decimal: str = "."
    missing_values: tuple[str, ...] = ()  # further texts that mean a missing value, beside `EMPTY`
    section: str = "data"  # of the config, for errors

    def __post_init__(self) -> None:
        if self.separator is not None and (len(self.separator) != 1 or not self.separator.isascii()):
            raise ConfigError(f"{self.section}.separator", self.separator, "must be one character, e.g. ';' or a tab")
        if self.decimal not in (".", ","):
            raise ConfigError(f"{self.section}.decimal", self.decimal, "must be '.' or ','")
        if self.decimal == self.separator:
            raise ConfigError(f"{self.section}.decimal", self.decimal, "must differ from the separator")

    @property
    def empty(self) -> tuple[str, ...]:
        return EMPTY + self.missing_values


USUAL = Dialect()


def separator_of(lines: Sequence[str], dialect: Dialect) -> str:
    """Return the separator of the config, or the one that the first lines show.

    Raises DataError if two are equally likely.

    A separator occurs equally often in all lines, outside quotes.
    """
    if dialect.separator is not None:
        return dialect.separator
    bare = [_QUOTED.sub("", line) for line in lines[:SAMPLE_LINES]]
    candidates = [one for one in SEPARATORS if one != dialect.decimal and one in bare[0]]
    likely = [one for one in candidates if len({line.count(one) for line in bare}) == 1]
    if len(likely) > 1:
        names = " and ".join(_NAMES[one] for one in likely)
        raise DataError(f"the separator is ambiguous ({names}): set {dialect.section}.separator to one of them")
    if likely:
        return likely[0]
    return candidates[0] if candidates else ","  # some line has too many cells; `parse` refuses it with its number
