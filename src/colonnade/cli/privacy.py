"""`colonnade privacy`: what a method's privacy settings allow, and what they cost."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["privacy_app"]

privacy_app = typer.Typer(
    help="What a method's privacy settings allow, and what they cost.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@privacy_app.callback()
def _group() -> None:
    """What a method's privacy settings allow, and what they cost."""


@privacy_app.command()
def fedvs(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="Whose data and model; left out: digits.")
    ] = None,
    parties: Annotated[int | None, typer.Option(help="N; left out: as many as the data have.")] = None,
    stragglers: Annotated[int, typer.Option(help="Answers that may be missing in a round.")] = 1,
    colluders: Annotated[int, typer.Option(help="T: parties that may put their shares together.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
    ] = None,
) -> None:
    """Which K and T there are for so many stragglers and colluders; bytes, memory, and whether sums fit the field.

    Examples:
      colonnade privacy fedvs --parties 14 --stragglers 7 --colluders 1
      colonnade privacy fedvs examples/credit.toml --stragglers 4 --set data.dir=PATH
    """
    from colonnade.algorithms.fedvs.advice import choices, recommend
    from colonnade.experiments.fedvs_shape import fedvs_shape
    from colonnade.protocol.errors import ConfigError

    console = Console()
    for name, value in (("--stragglers", stragglers), ("--colluders", colluders)):
        if value < 0:
            raise ConfigError(name, value, "must be 0 or more")
    shape, options, degree = fedvs_shape(_tables(config, parties, settings))
    count = len(shape.terms)
    found = choices(count, stragglers, colluders, shape)
    if not found:
        advice = f"{count} parties stand 2(K+T−1) + 1 + stragglers ≤ {count} only: ask for less, or find more parties"
        raise ConfigError("--stragglers, --colluders", [stragglers, colluders], advice)
    console.print(_table(found))
    for line in _field_lines(options, sum(shape.terms), degree):
        console.print(line, highlight=False, soft_wrap=True)
    best = recommend(found, colluders)
    if best is not None:
        text = (
            f"Recommended: protocol.K = {best.code.segments}, protocol.T = {best.code.colluders}. Of the codes that "
            f"stand {stragglers} stragglers and {colluders} colluders it evaluates least; a smaller K stands more "
            "stragglers."
        )
        console.print(escape(text), highlight=False, soft_wrap=True)


def _tables(config: Path | None, parties: int | None, settings: list[str] | None) -> dict[str, Any]:
    from colonnade.experiments.config import apply_overrides, parse_override, read_toml

    tables = read_toml(config) if config is not None else {}
    overrides = dict(parse_override(text) for text in settings or [])
    if parties is not None:
        overrides["data.parties"] = parties
    return apply_overrides(tables, overrides)


def _table(found: Any) -> Any:
    from rich.table import Table

    table = Table(
        "K", "T", "R answers decode", "stragglers", "colluders", "sent at the start", "sent a round", "held",
        "evaluating, in plaintext passes", title="For one party; sizes for the one with the most columns",
    )  # fmt: skip
    for choice in found:
        code = choice.code
        numbers = (code.segments, code.colluders, code.needed, code.stragglers, code.colluders)
        sizes = (choice.start_bytes, choice.round_bytes, choice.memory_bytes)
        table.add_row(*map(str, numbers), *map(_size, sizes), f"{choice.work:.1f}")
    return table


def _field_lines(options: Any, terms: int, degree: int) -> list[str]:
    from math import log2

    from colonnade.privacy.field import P, bound

    l_x, l_w, w_max = options.l_x, options.l_w, options.least_w_max
    x_max = max(options.x_max**degree, options.x_max)
    options.check_bound(terms, degree)
    bits = log2(bound(l_x, l_w, x_max, w_max, terms))
    largest = options.largest_w_max(terms, degree)
    return [
        f"Field: sums of {terms} terms with l_x = {l_x}, l_w = {l_w}, |x| ≤ {x_max:g}, |w| ≤ {w_max:g} need {bits:.1f} "
        f"of {log2(P):.1f} bits; weights may grow to ±{largest:.3g}."
    ]


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
