"""Print the result of one run."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from colonnade.cli.printing import visible
from colonnade.data.suggest import listing
from colonnade.results.verdict import flaw_of

__all__ = ["print_summary"]


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print a run's summary, its warnings and its note."""
    console.print(_summary_table(summary))
    for text in summary.get("warnings", ()):  # a run of an older release has none
        console.print(f"[yellow]Warning: {escape(visible(text))}[/]", soft_wrap=True)
    if summary["note"]:
        console.print(f"[yellow]{escape(visible(summary['note']))}[/]", soft_wrap=True)


def _summary_table(summary: Mapping[str, Any]) -> Table:
    flaw = flaw_of(summary)
    how = ", ".join(dict.fromkeys(filter(None, (summary["status"], flaw))))
    table = Table(show_header=False, title=f"{summary['protocol']}: {how}")
    sizes = summary["bytes_up"], summary["bytes_down"], summary["bytes_eval"]
    of = f"{summary['test_rows']:,} test rows" if "test_rows" in summary else "test rows"  # an older release
    rows: list[tuple[str, str]] = [
        (f"{summary['metric']}, {of}", _marked(summary, summary["value"], ".4f")),
        (f"loss, {of}", _marked(summary, summary["loss"], ".4f")),
        ("updates, epochs", f"{summary['updates']}, {summary['epochs']:.2f}"),
        ("clock, wall", f"{summary['clock_s']:.2f} s, {summary['wall_s']:.1f} s"),
        ("bytes up, down, evaluation", " , ".join(f"{size / 1e6:.2f} MB" for size in sizes)),
        ("staleness mean, p95, max", ", ".join(f"{value:.1f}" for value in summary["staleness"].values())),
        ("utilisation", escape(_shares(summary["utilisation"]))),
        ("trace", summary["trace_sha256"][:16]),
        ("weights", (summary["weights_sha256"] or "not all known")[:16]),  # a party left before the end
    ]
    spent = summary["privacy"]
    if spent is not None:
        rows.append(
            ("privacy", f"ε = {_number(spent['epsilon'])} at δ = {spent['delta']:g}, μ = {_number(spent['mu'])}")
        )
    if summary["metric"] == "loss":
        del rows[1]  # the loss is in the table already
    if validation := summary.get("validation_rows"):
        text = _marked(summary, summary["validation_value"], ".4f")
        rows.insert(0, (f"{summary['metric']}, {validation:,} validation rows", text))
    if summary["target"] is not None:
        reached, of = summary["time_to_target_s"], "validation" if validation else "test"
        rows.insert(
            1,
            (
                f"time to target, {of} rows",
                "not reached" if reached is None else _marked(summary, reached, ".2f", " s"),
            ),
        )
    for name, text in rows:
        table.add_row(name, text)
    return table


def _marked(summary: Mapping[str, Any], value: float | None, form: str, unit: str = "") -> str:
    """Format a number of the evaluations; never unmarked if the run is not a result."""
    flaw = flaw_of(summary)
    if value is None or not flaw:
        return "–" if value is None else f"{value:{form}}{unit}"
    why = "see the warnings" if summary["status"] == "finished" else f"evaluated before it {flaw}"
    return f"[dim strike]{value:{form}}{unit}[/] ({why})"


def _shares(utilisation: dict[str, float]) -> str:
    return listing(f"{role} {share:.0%}" for role, share in utilisation.items())


def _number(value: float | None) -> str:
    return "not told" if value is None else f"{value:.4g}"
