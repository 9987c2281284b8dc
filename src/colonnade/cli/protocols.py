"""`colonnade protocols`: every method."""

from rich.markup import escape

from colonnade.cli.printing import console

__all__ = ["protocols"]


def protocols() -> None:
    """Every method, its paper, and what it reveals to whom."""
    from rich.table import Table

    from colonnade.algorithms import METHODS

    table = Table("name", "paper", "what it does", "what it reveals", show_lines=True)
    for method in METHODS.values():
        table.add_row(*map(escape, (method.name, method.paper, method.summary, method.reveals)))
    console.print(table)
