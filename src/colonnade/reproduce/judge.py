"""Does the paper's claim hold? Each check of an item, column by column."""

import operator
from collections.abc import Callable, Iterable
from math import isinf
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
    if check.compare == "range":
        return _judge_range(check, item, result, OPERATORS[sign], float(bound))
    for column in check.columns or [one.name for one in item.columns]:
        if column == check.in_column:
            continue
        if column in result.untested:
            why.append(f"{column}: {result.untested[column]}")
            continue
        number, cause = _number(check, result, column)
        if number is None:
            why.append(f"{column}: {cause}")
            continue
        numbers[column], held[column] = number, OPERATORS[sign](number, float(bound))
    return Finding(check, numbers, held, "; ".join(dict.fromkeys(why)))


def _judge_range(
    check: Check, item: Item, result: Result, holds: Callable[[float, float], bool], bound: float
) -> Finding:
    """Compare the range of a row over the columns with that of another row."""
    ranges = []
    for row in (check.row, check.against):
        cells = [result.cell(row, column) for column in check.columns or [one.name for one in item.columns]]
        numbers = [cell.number for cell in cells if cell is not None and cell.number is not None]
        if len(numbers) < 2 or any(map(isinf, numbers)):
            return Finding(check, {}, {}, f"{row}: fewer than two columns with numbers")
        ranges.append(max(numbers) - min(numbers))
    if not ranges[1]:
        return Finding(check, {}, {}, f"{check.against} has the same number everywhere")
    ratio = ranges[0] / ranges[1]
    return Finding(check, {"range": ratio}, {"range": holds(ratio, bound)}, "")


def _number(check: Check, result: Result, column: str) -> tuple[float | None, str]:
    """What is compared in this column; None and the cause if there is nothing to compare."""
    places = [(check.row, column)]
    if check.against or check.in_column:
        places.append((check.against or check.row, check.in_column or column))
    found = []
    for row, where in places:
        cell = result.cell(row, where)
        if cell is None or cell.number is None:
            return None, f"{row}: {cell.fault if cell else result.untested.get(where, 'left out by --quick')}"
        found.append(cell.number)
    if len(found) == 1:
        return found[0], ""
    first, second = found
    if isinf(first) and isinf(second):
        return None, "neither run reached its target"
    if check.compare == "difference":
        return first - second, ""
    return (first / second, "") if second else (None, f"{check.against} is 0")
