"""`colonnade sweep`: a grid of settings for every method."""

from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.options import Address, ConfigFile, RaceOut, RaceResume, RaceWorkers, Setting, names_in
from colonnade.cli.printing import say

if TYPE_CHECKING:
    from colonnade.experiments.sweep import Best

__all__ = ["sweep"]


def sweep(
    config: ConfigFile = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=A,B,…", help="A config key and the values to try; repeatable."),
    ] = None,
    protocols: Annotated[str | None, typer.Option(help="Methods, separated by commas; 'all': every method.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per method and point.")] = 1,
    by: Annotated[
        str, typer.Option(help="How to choose the best point: by metric, loss or time-to-target.")
    ] = "metric",
    settings: Setting = None,
    out: RaceOut = None,
    workers: RaceWorkers = "1",
    address: Address = None,
    resume: RaceResume = None,
) -> None:
    """Try a grid of settings for every method, and say which was best on the validation rows.

    Example:
      colonnade sweep race.toml --grid train.learning_rate=0.01,0.03,0.1 --protocols sync,vafl --seeds 3
    """
    from colonnade.algorithms import DEFAULT_METHOD
    from colonnade.cli.race import race_with_board
    from colonnade.config.schema import typed_tables
    from colonnade.experiments.compare import expanded
    from colonnade.experiments.sweep import best_of, check_by, grid_contestants, parse_grid, that_ran

    tables, parsed = typed_tables(config, settings), parse_grid(grid or [])
    wanted = check_by(by, tables)
    labels = expanded(tables, names_in(protocols or DEFAULT_METHOD))
    racing = grid_contestants(tables, labels, parsed)
    name = f"{config.stem if config else 'digits'}-sweep"
    entries = race_with_board(racing, seeds, out, name, workers, address, resume)
    labels = that_ran(entries, labels, parsed)
    found = best_of(entries, labels, parsed, wanted)
    for best in found:
        point = ", ".join(f"{key} = {value}" for key, value in best.point.items())
        say(f"{best.method}: best at {point} ({_numbers(best)})")
        for key in best.edges:
            say(
                f"  Warning: the best value, {key} = {best.point[key]}, is at the edge of the grid: try values "
                "beyond it"
            )
    for label in labels:
        if label not in {best.method for best in found}:
            reached = ", or never reached the target" if wanted == "time-to-target" else ""
            say(f"{label}: no best point: every point has a run that failed or has warnings{reached}")
    if any(best.chosen_on == "test" for best in found):
        say(
            "Warning: the points were chosen on the test rows, so the numbers above are too good. Set "
            "data.validation_fraction above 0"
        )
    if len(found) < len(labels):  # a point that diverges is no failure of a grid
        raise typer.Exit(1)


def _numbers(best: "Best") -> str:
    """Return the winner's numbers, by rows; the test rows took no part in the choice."""
    parts = [(f"validation {best.metric}", best.validation), (f"test {best.metric}", best.test)]
    if best.metric != "loss":
        parts.append((f"{best.chosen_on} loss", best.loss))
    texts = [f"{name} {value:.4f}" for name, value in parts if value is not None]
    if best.time_s is not None:
        texts.append(f"target reached by {best.reached} of {best.seeds} after {best.time_s:.2f} s")
    return ", ".join(texts)
