"""`colonnade compare`: a comparison of methods."""

from typing import Annotated

import typer

from colonnade.cli.options import Address, ConfigFile, RaceOut, RaceResume, RaceWorkers, Setting, names_in

__all__ = ["compare"]


def compare(
    config: ConfigFile = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            help="Methods, or names under \\[methods], separated by commas; 'all': every method. Default: the methods "
            "that the config names, and swift,vafl,t-sync,sync."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per method.")] = 1,
    settings: Setting = None,
    out: RaceOut = None,
    workers: RaceWorkers = "1",
    address: Address = None,
    resume: RaceResume = None,
) -> None:
    """Compare methods on the same data, stragglers and seeds.

    A method that cannot use the configured model gets the nearest one, and the table names it. A method that cannot run
    on these data takes no part, and the reason is below the table.

    Examples:
      colonnade compare
      colonnade compare race.toml --protocols sync,vafl,t-sync,centralised --seeds 3
      colonnade compare race.toml --protocols vafl,flex,cascaded,asysqn-sgd,fedvs
      colonnade compare race.toml --protocols all
    """
    from colonnade.cli.race import exit_if_any_failed, race_with_board
    from colonnade.config.schema import typed_tables
    from colonnade.experiments.compare import contestants, usual_labels

    tables = typed_tables(config, settings)
    racing = contestants(tables, usual_labels(tables) if protocols is None else names_in(protocols))
    name = f"{config.stem if config else 'digits'}-comparison"
    exit_if_any_failed(race_with_board(racing, seeds, out, name, workers, address, resume))
