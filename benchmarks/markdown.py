"""Markdown tables for the pages."""

from collections.abc import Iterable, Sequence

__all__ = ["markdown"]


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
