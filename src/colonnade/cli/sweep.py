"""`colonnade sweep`: a grid of settings for every method."""

from typing import Annotated

import typer

from colonnade.cli.options import Address, ConfigFile, RaceOut, Setting, Workers, names_in
from colonnade.cli.printing import say

__all__ = ["sweep"]


def sweep(
    config: ConfigFile = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=A,B,…", help="Values to try; repeatable.")
    ] = None,
    protocols: Annotated[str | None, typer.Option(help="Methods, separated by commas; 'all': every method.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per method and point.")] = 1,
    settings: Setting = None,
    out: RaceOut = None,
    workers: Workers = "1",
    address: Address = None,
) -> None:
    """Try a grid of settings for every method, and say which was best.

    Example:
      colonnade sweep race.toml --grid train.learning_rate=0.01,0.03,0.1 --protocols sync,vafl --seeds 3
    """
    from colonnade.algorithms import DEFAULT_METHOD
    from colonnade.cli.race import race_with_board
    from colonnade.config.schema import typed_tables
    from colonnade.experiments.compare import expanded
    from colonnade.experiments.sweep import best_of, grid_contestants, parse_grid, that_ran

    tables, parsed = typed_tables(config, settings), parse_grid(grid or [])
    labels = expanded(tables, names_in(protocols or DEFAULT_METHOD))
    racing = grid_contestants(tables, labels, parsed)
    entries = race_with_board(racing, seeds, out, f"{config.stem if config else 'digits'}-sweep", workers, address)
    labels = that_ran(entries, labels, parsed)
    found = best_of(entries, labels, parsed)
    for best in found:
        point = ", ".join(f"{key} = {value}" for key, value in best.point.items())
        say(f"{best.method}: best at {point} ({best.value:.4f})")
        for key in best.edges:
            say(f"  Warning: the grid ends at {key} = {best.point[key]}, which was best: go on in that direction")
    for label in labels:
        if label not in {best.method for best in found}:
            say(f"{label}: no best point: every one has a run that failed or has warnings")
    if len(found) < len(labels):  # points that diverge are what a grid is for
        raise typer.Exit(1)
