"""`colonnade privacy plan`: the noise that an ε needs, and the reverse."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from colonnade.cli.options import Setting
from colonnade.cli.printing import console
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.experiments.plan_noise import Asked, Planned

__all__ = ["plan"]


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="The config whose run is counted; it replaces --rows … --warm-up."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Training rows, N.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows in one upload.")] = None,
    updates: Annotated[
        int | None, typer.Option(help="Uploads in the whole run, by the party that uploads most.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="C: the largest norm of a row. Default: privacy.clip of CONFIG.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The ε to reach; or give --mu, or --noise for the reverse. Default: the budgets of CONFIG."),
    ] = None,
    mu: Annotated[float | None, typer.Option(help="The μ to reach.")] = None,
    noise: Annotated[float | None, typer.Option(help="A noise (standard deviation) for which to compute ε.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ. Default: privacy.delta of CONFIG, or 1e-5.")] = None,
    extra_rows: Annotated[float | None, typer.Option(help="Extra rows with each upload, in batches.")] = None,
    test_rows: Annotated[
        int | None,
        typer.Option(help="Test rows; used by the last evaluation, or by all if there are no validation rows."),
    ] = None,
    validation_rows: Annotated[int | None, typer.Option(help="Validation rows, used by every evaluation.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="The number of evaluations.")] = None,
    warm_up: Annotated[
        bool | None,
        typer.Option("--warm-up/--no-warm-up", help="Whether each party uploads all rows once at the start."),
    ] = None,
    gradient_clip: Annotated[
        float | None, typer.Option(help="G: the largest norm of a gradient; plans for local_updates = 'dp-sgd'.")
    ] = None,
    gradient_noise: Annotated[float | None, typer.Option(help="The noise of private steps; with --noise.")] = None,
    share: Annotated[float, typer.Option(help="With 'dp-sgd': the share of μ² that embeddings get.")] = 0.75,
    clock_speeds: Annotated[
        bool,
        typer.Option(
            "--clock-speeds", help="Plan for the speeds of the config's clock only. Default: for parties of any speed."
        ),
    ] = False,
    settings: Setting = None,
) -> None:
    """Compute the noise that an ε or μ needs, or the reverse; for every party, against the server.

    With CONFIG, dry runs in the simulator count what each party uploads under its method and length. A party that is
    faster than the others may upload more than its share, so the noise is for the party that uploads most at any speed.

    Examples:
      colonnade privacy plan own.toml --epsilon 10 --clip 1
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --epsilon 10
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --noise 0.1
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --epsilon 10 --gradient-clip 1
    """
    from colonnade.config.schema import from_dict, typed_tables
    from colonnade.experiments.plan_noise import Asked
    from colonnade.privacy.plan import Wish, Workload, planned

    sizes = {"rows": rows, "batch_size": batch_size, "updates": updates}
    more = {
        "extra_rows": extra_rows,
        "test_rows": test_rows,
        "validation_rows": validation_rows,
        "evaluations": evaluations,
        "warm_up": warm_up,
    }
    asked = Asked(clip, epsilon, mu, noise, delta, gradient_clip, gradient_noise, share)
    if config is not None:
        asked = replace(asked, speeds="clock" if clock_speeds else "any")
        for name, value in (sizes | more).items():
            if value is not None:
                advice = f"is counted by a dry run of {config}: leave the option out, or change the config with --set"
                raise ConfigError(f"--{name.replace('_', '-')}", value, advice)
        _plan_config(from_dict(typed_tables(config, settings)), asked)
        return
    if settings:
        raise ConfigError("--set", settings[0], "changes a config: add CONFIG.toml, or leave --set out")
    if clock_speeds:
        raise ConfigError("--clock-speeds", True, "needs a config: add CONFIG.toml, or leave the option out")
    for name, value in (sizes | {"clip": clip}).items():
        if value is None:
            advice = "is missing: give it, or a CONFIG.toml whose uploads are counted"
            raise ConfigError(f"--{name.replace('_', '-')}", None, advice)
    given: dict[str, Any] = {name: value for name, value in (sizes | more).items() if value is not None}
    delta = 1e-5 if delta is None else delta
    wish = Wish(clip or 0.0, epsilon, mu, noise, delta, gradient_clip, gradient_noise, share)
    for line in planned(Workload(**given), wish):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _plan_config(config: "Config", asked: "Asked") -> None:
    from rich.progress import Progress

    from colonnade.cli.progress_bars import bar_columns, load_with_bar
    from colonnade.experiments.plan_noise import plan_noise

    data = load_with_bar(config, console)
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("dry run", total=1.0, text="counts the uploads")
        found = plan_noise(config, data, asked, lambda done: progress.update(task, completed=done))
    console.print(_needs_table(found))
    noise, gradient_clip = found.noise, found.gradient_clip
    steps = f", privacy.dp_sgd = {{clip = {gradient_clip:g}, noise = {noise.steps:.6g}}}" if noise.steps else ""
    lines = [
        f"privacy.clip = {found.clip:g}, privacy.noise = {noise.rows:.6g}{steps}: no party spends more than this",
        f"Assumed: {found.assumed}.",
        *(f"Warning: {note}" for note in found.notes),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _needs_table(found: "Planned") -> Table:
    from colonnade.privacy.gaussian import epsilon_of

    how = "counted by dry runs" if found.counted.whole else "counted in part by dry runs, and extrapolated upwards"
    caption = f"For a whole run, {how}. μ and ε (at δ = {found.delta:g}) with the noise below."
    if found.counted.most is not None:
        caption += " A party's line holds for the speeds of [clock]; the last line is an upper bound for any party."
    table = Table("party", box=SIMPLE_HEAD, caption=escape(caption), caption_justify="left")
    private = found.noise.steps is not None
    for title in ("uploads", "rows", *(["private steps"] if private else []), "μ", "ε"):
        table.add_column(title, justify="right")
    most = [] if found.counted.most is None else [replace(found.counted.most, party="at any speed")]
    for need in [*found.counted.by_clock, *most]:
        mu = need.mu(found.noise)
        numbers = [need.uploads, need.rows, *([need.steps] if private else [])]
        table.add_row(need.party, *map(str, numbers), f"{mu:.6g}", f"{epsilon_of(mu, found.delta):.6g}")
    return table
