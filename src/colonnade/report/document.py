"""A page of text and tables, as HTML and as plain text: both are made from the same document.

The HTML is one file without scripts. It is light or dark like the reader's system, and on a narrow screen each row of a
table becomes a list of its cells. A content security policy forbids the page to load anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table as RichTable

__all__ = ["Document", "Grid", "Part", "as_html", "as_text"]

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; columns named in `numbers` are right-aligned."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with paragraphs, a list and a table below it, each of which may be missing."""

    title: str
    paragraphs: list[str] = field(default_factory=list)
    grid: Grid | None = None
    points: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Document:
    """A title, facts about the page itself, and parts."""

    title: str
    facts: list[tuple[str, str]]
    parts: list[Part]


def as_html(document: Document) -> str:
    """Return one self-contained page; escapes all text."""
    facts = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in document.facts)
    parts = "".join(map(_part, document.parts))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(document.title)} – Colonnade</title><style>{_style()}</style></head><body>
<h1>{escape(document.title)}</h1>
<table class="facts">{facts}</table>
{parts}
</body></html>
"""


def _part(part: Part) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in part.paragraphs)
    points = "".join(f"<li>{escape(text)}</li>" for text in part.points)
    grid = "" if part.grid is None else _grid(part.grid)
    return f"<h2>{escape(part.title)}</h2>{paragraphs}{grid}{f'<ul>{points}</ul>' if points else ''}\n"


def _grid(grid: Grid) -> str:
    head = "".join(f"<th{_kind(title, grid)}>{escape(title)}</th>" for title in grid.head)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td{_kind(title, grid)} data-head="{escape(title)}">{escape(cell)}</td>'
            for title, cell in zip(grid.head, row, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _kind(title: str, grid: Grid) -> str:
    return ' class="number"' if title in grid.numbers else ""


@cache
def _style() -> str:
    return (files("colonnade.report") / "assets" / "document.css").read_text(encoding="utf-8")


def as_text(document: Document, width: int = 100) -> str:
    """Return the same for a terminal."""
    console = Console(file=StringIO(), width=width, force_terminal=False, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(f"{document.title}\n{'=' * min(len(document.title), width)}", markup=False)
        for key, value in document.facts:
            console.print(f"{key}: {value}", markup=False)
        for part in document.parts:
            _print(part, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _print(part: Part, console: Console) -> None:
    console.print(f"\n{part.title}\n{'-' * len(part.title)}", markup=False)
    for place, text in enumerate(part.paragraphs):
        console.print(f"\n{text}" if place else text, markup=False)
    if part.grid is not None:
        table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
        for title in part.grid.head:
            number = title in part.grid.numbers
            table.add_column(escape_markup(title), justify="right" if number else "left", overflow="fold")
        for row in part.grid.rows:
            table.add_row(*map(escape_markup, row))
        console.print(table)
    for text in part.points:
        console.print(f"- {text}", markup=False)
