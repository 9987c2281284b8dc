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
    from colonnade.algorithms.fedvs.config import UNPROTECTED
    from colonnade.experiments.fedvs_shape import fedvs_shape
    from colonnade.protocol.errors import ConfigError

    console = Console()
    for name, value in (("--stragglers", stragglers), ("--colluders", colluders)):
        if value < 0:
            raise ConfigError(name, value, "must be 0 or more")
    shape, options, degree = fedvs_shape(_tables(config, parties, settings))
    if not colluders and not options.allow_unprotected:
        advice = (
            "protects nothing: T = 0 gives every party the others' columns; use 1 or more, or "
            "--set protocol.allow_unprotected=true to see the codes without protection as well"
        )
        raise ConfigError("--colluders", colluders, advice)
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
        if not best.code.colluders:
            console.print(escape(UNPROTECTED), highlight=False, soft_wrap=True)


@privacy_app.command()
def plan(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="Count the uploads of its run, instead of --rows … --warm-up."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Training rows, N.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of an upload.")] = None,
    updates: Annotated[
        int | None, typer.Option(help="Uploads, in the whole run, of the party that makes most.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="C: the norm that every row is shrunk to; left out: privacy.clip of CONFIG.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The ε wanted; or --mu, or --noise for the reverse; left out: the budgets of CONFIG."),
    ] = None,
    mu: Annotated[float | None, typer.Option(help="The μ wanted.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise (standard deviation): what ε is it?")] = None,
    delta: Annotated[float | None, typer.Option(help="δ; left out: privacy.delta of CONFIG, or 1e-5.")] = None,
    extra_rows: Annotated[float | None, typer.Option(help="Further rows with each upload, in batches.")] = None,
    test_rows: Annotated[int | None, typer.Option(help="Rows of an evaluation.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="How many of them.")] = None,
    warm_up: Annotated[
        bool | None, typer.Option("--warm-up/--no-warm-up", help="Whether all rows are uploaded once at the start.")
    ] = None,
    gradient_clip: Annotated[float | None, typer.Option(help="G: plan for local_updates = 'dp-sgd'.")] = None,
    gradient_noise: Annotated[float | None, typer.Option(help="With --noise: the noise of the steps.")] = None,
    share: Annotated[float, typer.Option(help="With 'dp-sgd': the share of μ² that embeddings get.")] = 0.75,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
    ] = None,
) -> None:
    """The noise that an ε or μ needs, and the reverse; for every party, against the server.

    With CONFIG, a dry run of the simulator counts what each party uploads under its method, clock and length.

    Examples:
      colonnade privacy plan own.toml --epsilon 10 --clip 1
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --epsilon 10
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --noise 0.1
      colonnade privacy plan --rows 60000 --batch-size 600 --updates 500 --clip 1 --epsilon 10 --gradient-clip 1
    """
    from colonnade.experiments.plan_noise import Asked
    from colonnade.privacy.plan import Wish, Workload, planned
    from colonnade.protocol.errors import ConfigError

    sizes = {"rows": rows, "batch_size": batch_size, "updates": updates}
    more = {"extra_rows": extra_rows, "test_rows": test_rows, "evaluations": evaluations, "warm_up": warm_up}
    asked = Asked(clip, epsilon, mu, noise, delta, gradient_clip, gradient_noise, share)
    console = Console()
    if config is not None:
        for name, value in (sizes | more).items():
            if value is not None:
                advice = f"is counted by a dry run of {config}: leave it away, or change the config with --set"
                raise ConfigError(f"--{name.replace('_', '-')}", value, advice)
        _plan_config(console, _tables(config, None, settings), asked)
        return
    if settings:
        raise ConfigError("--set", settings[0], "changes a config: name one, or leave it away")
    for name, value in (sizes | {"clip": clip}).items():
        if value is None:
            advice = "needed, unless a CONFIG.toml is named, whose uploads are then counted"
            raise ConfigError(f"--{name.replace('_', '-')}", None, advice)
    given: dict[str, Any] = {name: value for name, value in (sizes | more).items() if value is not None}
    delta = 1e-5 if delta is None else delta
    wish = Wish(clip or 0.0, epsilon, mu, noise, delta, gradient_clip, gradient_noise, share)
    for line in planned(Workload(**given), wish):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _plan_config(console: Console, tables: dict[str, Any], asked: Any) -> None:
    from rich.progress import Progress

    from colonnade.cli.progress import bar_columns, load_with_bar
    from colonnade.config.schema import from_dict
    from colonnade.experiments.plan_noise import plan_noise

    config = from_dict(tables)
    data = load_with_bar(config, console)
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("dry run", total=1.0, text="counts the uploads")
        found = plan_noise(config, data, asked, lambda done: progress.update(task, completed=done))
    console.print(_needs_table(found))
    noise, gradient_clip = found.noise, found.gradient_clip
    steps = f", privacy.dp_sgd = {{clip = {gradient_clip:g}, noise = {noise.steps:.6g}}}" if noise.steps else ""
    lines = [
        f"privacy.clip = {found.clip:g}, privacy.noise = {noise.rows:.6g}{steps}: no party spends more than this",
        f"Assumed: {found.assumed}. The simulator makes exactly these uploads. On real machines a party that is faster "
        "than here uploads more, and its budget stops it: plan with the speeds of your machines.",
        *(f"Warning: {note}" for note in found.notes),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _needs_table(found: Any) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from colonnade.privacy.gaussian import epsilon_of

    caption = f"Of a whole run, as a dry run counted it; μ and ε (at δ = {found.delta:g}) with the noise below."
    table = Table("party", box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    private = found.noise.steps is not None
    for title in ("uploads", "rows", *(["private steps"] if private else []), "μ", "ε"):
        table.add_column(title, justify="right")
    for need in found.needs:
        mu = need.mu(found.noise)
        numbers = [need.uploads, need.rows, *([need.steps] if private else [])]
        table.add_row(need.party, *map(str, numbers), f"{mu:.6g}", f"{epsilon_of(mu, found.delta):.6g}")
    return table


@privacy_app.command()
def ledger(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="A party's ledgers, of one or more runs.")],
    last: Annotated[int, typer.Option(help="How many of the newest releases to list; the rest is summed up.")] = 20,
    delta: Annotated[float | None, typer.Option(help="δ; left out: that of the ledger.")] = None,
) -> None:
    """What a party has released and what that cost; the chain is checked line by line.

    Example:
      colonnade privacy ledger runs/clinic/ledger.jsonl
    """
    from math import sqrt

    from colonnade.drivers.ledger_file import read_ledger
    from colonnade.privacy.gaussian import epsilon_of

    console = Console()
    square = 0.0
    for path in files:
        terms, lines, account = read_ledger(path)
        delta = terms["delta"] if delta is None else delta
        square += account.mu**2
        console.print(_ledger_heading(path, terms), highlight=False, soft_wrap=True, markup=False)
        console.print(_ledger_table(lines, last, delta))
    total = sqrt(square)
    text = (
        f"Together: μ = {total:.6g}, ε = {epsilon_of(total, delta or 1e-5):.6g} at δ = {delta:g}. The chain is whole."
    )
    console.print(text, highlight=False, soft_wrap=True)


def _ledger_heading(path: Path, terms: dict[str, Any]) -> str:
    steps = (
        f", steps clipped to {terms['dp_sgd']['clip']:g} with {terms['dp_sgd']['noise']:g}" if terms["dp_sgd"] else ""
    )
    return (
        f"{path}: {terms['party']}, mechanism {terms['mechanism']}, rows clipped to norm {terms['clip']:g}, noise "
        f"{terms['noise']:g}, local updates {terms['local_updates']}{steps}; {terms['train_rows']} training rows, "
        f"{terms['test_rows']} test rows"
    )


def _ledger_table(lines: list[dict[str, Any]], last: int, delta: float) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from colonnade.privacy.gaussian import epsilon_of

    caption = "Δ: how far a record can move it. μ and ε: of everything up to and including the line."
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ("n", "UTC", "what"):
        table.add_column(title, no_wrap=True)
    for title in ("rows", "Δ", "noise", "μ", "ε"):
        table.add_column(title, justify="right")
    shown = lines[-last:] if last > 0 else []
    for what in dict.fromkeys(line["what"] for line in lines[: len(lines) - len(shown)]):
        own = [line for line in lines[: len(lines) - len(shown)] if line["what"] == what]
        rows = sum(line["rows"] for line in own)
        table.add_row(f"{len(own)} ×", f"to {_moment(own[-1])}", what, str(rows), "", "", f"{own[-1]['mu']:.4g}", "")
    for line in shown:
        numbers = (f"{line['sensitivity']:.4g}", f"{line['noise']:g}", f"{line['mu']:.4g}")
        cells = (str(line["n"]), _moment(line), line["what"], str(line["rows"]), *numbers)
        table.add_row(*cells, f"{epsilon_of(line['mu'], delta):.4g}")
    return table


def _moment(line: dict[str, Any]) -> str:
    """Month, day, hour and minute: a terminal is narrow; the ledger itself has the year."""
    return str(line["time"][5:16]).replace("T", " ")


def _tables(config: Path | None, parties: int | None, settings: list[str] | None) -> dict[str, Any]:
    from colonnade.config.schema import apply_overrides, parse_override, read_toml

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
