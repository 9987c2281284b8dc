"""Does the paper's claim hold? Each check of an item, column by column."""

import operator
from collections.abc import Callable, Iterable
from math import isfinite, isinf
from typing import NamedTuple

from colonnade.reproduce.item import Check, Item
from colonnade.reproduce.result import Result

__all__ = ["HOLDS", "IN_PART", "NOT", "UNTESTED", "Finding", "findings", "verdict_of"]

HOLDS, IN_PART, NOT, UNTESTED = "holds", "holds in part", "does not hold", "not tested"
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Finding(NamedTuple):
    """What became of a check."""

    check: Check
    numbers: dict[str, float]  # column → what was compared
    held: dict[str, bool]
    why: str  # of what was not tested

    @property
    def verdict(self) -> str:
        """The verdict over the columns that were tested."""
        return _word(self.held.values())


def findings(item: Item, result: Result) -> list[Finding]:
    """Judge all checks of an item."""
    return [_judge(check, item, result) for check in item.checks]


def verdict_of(found: Iterable[Finding]) -> str:
    """The verdict of an item: over the paper's own claims in all columns. A control does not count."""
    return _word(held for one in found if not one.check.control for held in one.held.values())


def _word(held: Iterable[bool]) -> str:
    answers = list(held)
    if not answers:
        return UNTESTED
    return HOLDS if all(answers) else IN_PART if any(answers) else NOT


def _judge(check: Check, item: Item, result: Result) -> Finding:
    numbers: dict[str, float] = {}
    held: dict[str, bool] = {}
    why: list[str] = []
    sign, _, bound = check.holds.partition(" ")
    for column in check.columns or [one.name for one in item.columns]:
        if column in result.untested:
            why.append(f"{column}: {result.untested[column]}")
            continue
        number, cause = _number(check, result, column)
        if number is None:
            why.append(f"{column}: {cause}")
            continue
        numbers[column], held[column] = number, OPERATORS[sign](number, float(bound))
    return Finding(check, numbers, held, "; ".join(dict.fromkeys(why)))


def _number(check: Check, result: Result, column: str) -> tuple[float | None, str]:
    """What is compared in this column; None and the cause if there is nothing to compare."""
    found = []
    for row in filter(None, (check.row, check.against)):
        cell = result.cell(row, column)
        if cell is None or cell.number is None:
            return None, f"{row}: {cell.fault if cell else 'left out by --quick'}"
        found.append(cell.number)
    if not check.against:
        return found[0], ""
    first, second = found
    if isinf(first) and isinf(second):
        return None, "neither run reached its target"
    if check.compare == "difference":
        return first - second, ""
    if isfinite(second) and second == 0:
        return None, f"{check.against} is 0"
    return first / second, ""
