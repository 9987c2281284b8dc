"""How commands speak: one console, lines that can be copied, and what was typed."""

import shlex
import sys

from rich.console import Console
from rich.markup import escape

__all__ = ["console", "say", "say_note", "typed_command"]

console = Console()


def say(text: str) -> None:
    """A line that may hold a path: not wrapped, so that it can be copied, and not read as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_note(note: str) -> None:
    """A summary's note, if it has one."""
    if note:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)


def typed_command() -> str:
    """What was typed."""
    return shlex.join(["colonnade", *sys.argv[1:]])
