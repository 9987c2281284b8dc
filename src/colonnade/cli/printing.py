"""How commands print: one console, lines that can be copied, the typed command, and the next one to type."""

import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from colonnade.protocol.foreign import harmless

__all__ = ["command_to_resume", "console", "program", "say", "say_note", "typed_command", "visible"]

LONGEST_LINE = 10_000  # characters: a note may name every party
console = Console()


def say(text: str) -> None:
    """Print a line that may contain a path: not wrapped, so that it can be copied, and not read as markup."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


def say_note(note: str) -> None:
    """Print a summary's note, if it has one."""
    if note:
        console.print(f"[yellow]{escape(visible(note))}[/]", soft_wrap=True)


def visible(text: str) -> str:
    """Return text that may quote another member, without characters that a terminal obeys. Lines stay lines."""
    return "\n".join(harmless(line, LONGEST_LINE) for line in text.split("\n"))


def typed_command() -> str:
    return shlex.join(["colonnade", *sys.argv[1:]])


def program() -> str:
    """Return how to call this program again from the same shell: by its name, or by a path if that is needed."""
    typed = Path(sys.argv[0])
    if typed.name == "__main__.py":
        return shlex.join([sys.executable, "-m", "colonnade"])
    found = shutil.which(typed.name)
    by_name = typed.name == str(typed) or (found is not None and Path(found).resolve() == typed.resolve())
    return typed.name if by_name else shlex.quote(str(typed))


def command_to_resume(folder: Path) -> str:
    """Return the typed command, with `--resume FOLDER` in place of `--out` and `--resume`."""
    words, left = [], iter(sys.argv[1:])
    for word in left:
        if word in ("--out", "--resume"):
            next(left)  # its value
        elif not word.startswith(("--out=", "--resume=")):
            words.append(word)
    return f"{program()} {shlex.join([*words, '--resume', str(folder)])}"
