"""`colonnade privacy fedvs`: the codes that FedVS can use."""

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from colonnade.cli.options import Setting
from colonnade.cli.printing import console
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.algorithms.fedvs.advice import Choice
    from colonnade.algorithms.fedvs.config import FedvsOptions

__all__ = ["fedvs"]


def fedvs(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The data and model. Default: digits.")
    ] = None,
    parties: Annotated[
        int | None, typer.Option(help="N, the number of parties. Default: as many as the data have.")
    ] = None,
    stragglers: Annotated[int, typer.Option(help="How many answers may be missing in a round.")] = 1,
    colluders: Annotated[
        int, typer.Option(help="T: how many parties may pool their shares and still learn nothing.")
    ] = 1,
    settings: Setting = None,
) -> None:
    """List the possible K and T for this many stragglers and colluders; bytes, memory, and whether sums fit the field.

    Examples:
      colonnade privacy fedvs --parties 14 --stragglers 7 --colluders 1
      colonnade privacy fedvs examples/credit.toml --stragglers 4 --set data.dir=PATH
    """
    from colonnade.algorithms.fedvs.advice import choices, recommend
    from colonnade.algorithms.fedvs.config import UNPROTECTED
    from colonnade.config.schema import typed_tables
    from colonnade.experiments.fedvs_shape import fedvs_shape

    for name, value in (("--stragglers", stragglers), ("--colluders", colluders)):
        if value < 0:
            raise ConfigError(name, value, "must be 0 or more")
    more = {} if parties is None else {"data.parties": parties}
    shape, options, degree = fedvs_shape(typed_tables(config, settings, more))
    if not colluders and not options.allow_unprotected:
        advice = (
            "protects nothing: with T = 0 every party gets the other parties' columns; use 1 or more, or "
            "--set protocol.allow_unprotected=true to see the codes without protection as well"
        )
        raise ConfigError("--colluders", colluders, advice)
    count = len(shape.terms)
    found = choices(count, stragglers, colluders, shape)
    if not found:
        advice = (
            f"{count} parties are too few: 2(K+T−1) + 1 + stragglers must be at most {count}. Ask for fewer "
            "stragglers or colluders, or add parties"
        )
        raise ConfigError("--stragglers, --colluders", [stragglers, colluders], advice)
    console.print(_table(found))
    for line in _field_lines(options, sum(shape.terms), degree):
        console.print(line, highlight=False, soft_wrap=True)
    best = recommend(found, colluders)
    if best is not None:
        text = (
            f"Recommended: protocol.K = {best.code.segments}, protocol.T = {best.code.colluders}. Of the codes that "
            f"tolerate {stragglers} stragglers and {colluders} colluders, it needs the least computing. A smaller K "
            "tolerates more stragglers."
        )
        console.print(escape(text), highlight=False, soft_wrap=True)
        if not best.code.colluders:
            console.print(escape(UNPROTECTED), highlight=False, soft_wrap=True)


def _table(found: "Sequence[Choice]") -> Table:
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


def _field_lines(options: "FedvsOptions", terms: int, degree: int) -> list[str]:
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
