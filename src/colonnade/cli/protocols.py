"""`colonnade protocols`: every method."""

from rich.markup import escape

from colonnade.cli.printing import console, say

__all__ = ["protocols"]


def protocols() -> None:
    """Every method, its paper, and what it reveals to whom."""
    from rich.table import Table

    from colonnade.algorithms import METHODS
    from colonnade.algorithms.registry import installed

    others = installed()
    table = Table("name", "paper", "what it does", "what it reveals", show_lines=True)
    for method in (*METHODS.values(), *others.methods.values()):
        table.add_row(*map(escape, (method.name, method.paper, method.summary, method.reveals)))
    console.print(table)
    for name, why in others.faults.items():
        say(f"Left out: {name}: {why}")
