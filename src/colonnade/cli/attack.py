"""`colonnade attack`: a command for every attack of the registry, all with the same options."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from colonnade.attacks import ATTACKS, Entry
from colonnade.cli.options import Setting, names_in
from colonnade.cli.printing import console, say, typed_command

__all__ = ["attack_app"]

attack_app = typer.Typer(
    help="Measure how often an attacker learns private data from a method's real messages.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@attack_app.callback()
def _group() -> None:
    """Measure how often a role learns what it should not, with a method's real messages."""


def _command(name: str, entry: Entry) -> Callable[..., None]:
    def run(
        config: Annotated[
            Path | None, typer.Argument(metavar="CONFIG.toml", help="The data and model. Default: digits.")
        ] = None,
        protocols: Annotated[str, typer.Option(help="Methods, separated by commas.")] = entry.protocols,
        attackers: Annotated[str | None, typer.Option(help="Attackers, separated by commas. Default: all.")] = None,
        trials: Annotated[int, typer.Option(help="Seeds per attacker and method.")] = 5,
        settings: Setting = None,
        out: Annotated[Path | None, typer.Option(help="Folder for attack.json; must be new or empty.")] = None,
    ) -> None:
        _attack(name, config, protocols, attackers, trials, settings, out)

    run.__doc__ = (
        f"{entry.summary}\n\n    Example:\n"
        f"      colonnade attack {name} examples/attack.toml --protocols vafl,cascaded --out runs/attack\n    "
    )
    return run


for _name, _entry in ATTACKS.items():
    attack_app.command(_name)(_command(_name, _entry))


def _attack(
    name: str,
    config: Path | None,
    protocols: str,
    attackers: str | None,
    trials: int,
    settings: list[str] | None,
    out: Path | None,
) -> None:
    from rich.progress import Progress

    from colonnade.attacks.attack import Order, attack
    from colonnade.attacks.registry import find_attack
    from colonnade.cli.progress_bars import bar_columns, load_with_bar, report_with_bar
    from colonnade.config.schema import typed_tables

    which = find_attack(name)
    tables = typed_tables(config, settings)
    chosen = names_in(attackers) if attackers is not None else list(which.attackers)
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=1.0, text="")
        order = Order(
            tables,
            names_in(protocols),
            chosen,
            trials,
            lambda config: load_with_bar(config, Console(quiet=True)),
            lambda text, done: progress.update(task, completed=done, text=text),
            lambda data: say(f"Data: {data}"),
        )
        outcomes = attack(which, order, out, typed_command())
    console.print(_table(outcomes) if hasattr(outcomes[0], "success") else _inversion_table(outcomes))
    if out is not None:
        report = report_with_bar(out, console)
        say(f"Report: {report}")


def _inversion_table(outcomes: list[Any]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    caption = (
        "The error of the columns that were not known, relative to that of the mean row: 1 needs no attack; mean ± "
        "95 % interval over trials. Luck: the same decoder trained on shuffled pairs."
    )
    table = Table("method", "attacker", box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ("noise", "ε", "error", "luck"):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        said = outcome.summary()
        epsilon = f"{said['epsilon']:.3g}" if said["epsilon"] is not None else "not accounted"
        mark = "[red]" if said["error"] + said["margin"] < 0.9 else "[green]"
        error = f"{mark}{said['error']:.3f}" + (f" ± {said['margin']:.3f}[/]" if said["margin"] else "[/]")
        table.add_row(said["method"], said["attacker"], f"{said['noise']:g}", epsilon, error, f"{said['control']:.2f}")
    return table


def _table(outcomes: list[Any]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    first: dict[str, Any] = outcomes[0].summary()
    caption = (
        f"{len(first['trials'])} trials, mean ± 95 % interval; in brackets the 95 % interval over all rows (Wilson). "
        f"Without an attack: {first['chance']:.1%} by always guessing the most frequent class, "
        f"{first['matched']:.1%} by guessing each class as often as it occurs (Σp²). Luck: the same guesses against "
        "shuffled labels; in brackets the expected value, Σ (share of guesses · share of labels)."
    )
    table = Table("method", "attacker", box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ("success %", "rows", "luck %", "refused"):
        table.add_column(title, justify="right")
    for outcome in outcomes:
        said = outcome.summary()
        low, high = said["wilson"]
        several = len(said["trials"]) > 1  # a single trial has no interval
        mark = "[red]" if low > said["chance"] + 0.02 else "[green]"
        table.add_row(
            outcome.method,
            outcome.attacker,
            f"{mark}{100 * said['success']:.2f}" + (f" ± {100 * said['margin']:.2f}[/]" if several else "[/]"),
            f"({100 * low:.2f}–{100 * high:.2f})",
            f"{100 * said['control']:.1f} ({100 * said['control_expected']:.1f})",
            f"{said['refused']} of {said['asked']}" if said["refused"] else "–",
        )
    return table
