"""The command line: run, compare, protocols, demo, report, attack, privacy; init, certs, align, serve, join, up and
status.
"""

import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from colonnade import __version__
from colonnade.cli import network
from colonnade.cli.align import align
from colonnade.cli.attack import attack_app
from colonnade.cli.certs import certs_app
from colonnade.cli.init import init
from colonnade.cli.privacy import privacy_app
from colonnade.protocol.errors import ColonnadeError

if TYPE_CHECKING:
    from colonnade.results.summary import Summary

__all__ = ["app", "main"]

app = typer.Typer(
    help="Vertical federated learning that does not stop for its slowest member.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
console = Console()

Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
]
ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="What to run; left out: all defaults (digits).")
]


Workers = Annotated[str, typer.Option(metavar="N|ray", help="Who computes: threads, or Ray; the result is the same.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster that is up, host:port; left out: one of its own.")]


def _version(value: bool) -> None:
    if value:
        console.print(f"colonnade {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command()
def run(
    config: ConfigFile = None,
    settings: Setting = None,
    seed: Annotated[int | None, typer.Option(help="Replaces train.seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; must be new or empty.")] = None,
    driver: Annotated[
        str, typer.Option(help="sim; processes: every role its own, over loopback; or ray: every role an actor.")
    ] = "sim",
    workers: Workers = "1",
    address: Address = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a run that was cut off.")] = None,
) -> None:
    """Train once.

    Examples:
      colonnade run
      colonnade run race.toml --set protocol.name=t-sync --set protocol.t=3 --seed 1
      colonnade run race.toml --resume runs/race-1
    """
    from colonnade.cli.progress import load_with_bar
    from colonnade.config.schema import from_dict
    from colonnade.deployment.up import refuse_network
    from colonnade.protocol.errors import ConfigError
    from colonnade.results.folder import note_command, tables_of

    if driver not in ("sim", "processes", "ray"):
        raise ConfigError("--driver", driver, "this release has 'sim', 'processes' and 'ray'")
    if resume is not None and out is not None:
        raise ConfigError("--out", str(out), "--resume goes on in its own folder; leave --out away")
    before = tables_of(resume) if config is None and resume is not None else None
    tables = _tables(config, settings, seed, before)
    checked = from_dict(tables)
    if driver != "sim" and resume is None:
        refuse_network(tables.get("network", {}))
    load = partial(load_with_bar, console=console)
    out = resume or out or _fresh_folder(config.stem if config else "digits")
    if resume is not None and (over := _record_of(checked, resume, driver)) is not None:
        _say(f"This run is over, and nothing was done. Its report: colonnade report {resume}")
        if checked.predict.stay:
            _say(f"To answer questions: colonnade up --resume {resume} --predict")
        return _show(over, resume)
    hands = _hands(workers)
    if driver != "sim" and hands != 1:
        raise ConfigError("--workers", workers, f"is for the simulator: with --driver {driver} every role has its own")
    on_ray = "ray" in (hands, driver)
    if on_ray and resume is None:
        load = _look_ahead(checked, out, load)
    with _cluster(on_ray, address):
        if driver == "sim":
            notes, execute = _simulate(checked, out, resume is not None, load, hands)
        else:
            notes, execute = _start_roles(checked, out, resume is not None, load, driver == "ray")
        for note in notes:
            _say(f"Note: {note}")
        note_command(out, _command())
        try:
            summary = execute()
        except KeyboardInterrupt:
            _say(f"Stopped. {_how_to_go_on(out, driver, address, checked.predict.stay)}")
            raise typer.Exit(130) from None
    _show(summary, out)


def _how_to_go_on(out: Path, driver: str, address: str | None, stay: bool) -> str:
    """After Ctrl-C: the command to type, and where it begins."""
    if stay and (out / "summary.json").is_file():
        return f"To answer again: colonnade up --resume {out} --predict"
    state = out if driver == "sim" else out / "nodes" / "server" / "run" / "state"
    kept = (state / "checkpoint.safetensors").is_file()
    where = "go on from the last checkpoint" if kept else "begin this run again, which has no checkpoint yet"
    return f"To {where}: colonnade run --driver {driver} --resume {out}" + (f" --address {address}" if address else "")


def _record_of(checked: Any, folder: Path, driver: str) -> "Summary | None":
    """The summary of a run that is over; None: it can go on."""
    from colonnade.deployment.up import reopen_folder
    from colonnade.protocol.errors import ConfigError

    over = reopen_folder(checked, folder).record()
    if over is None and driver == "sim" and (folder / "nodes").is_dir():
        raise ConfigError("--resume", str(folder), "its roles are processes: add --driver processes, or ray")
    return over


def _show(summary: "Summary", out: Path) -> None:
    """What came of a run; the exit code says whether it finished."""
    from colonnade.cli.progress import print_summary

    print_summary(summary, console)
    _say(f"Folder: {out}")
    if summary["status"] != "finished":
        raise typer.Exit(1)


def _look_ahead(checked: Any, out: Path, load: Any) -> Any:
    """Refuse what can be refused before a cluster is started, which takes a while; the data are loaded once."""
    from colonnade.config.resolve import refuse_unbuildable
    from colonnade.results.folder import RunFolder

    RunFolder.refuse_used(out)
    data = load(checked)
    refuse_unbuildable(checked, data)
    return lambda _: data


def _hands(workers: str) -> int | str:
    from colonnade.protocol.errors import ConfigError

    if workers == "ray":
        return workers
    if not workers.isdecimal():
        raise ConfigError("--workers", workers, "a number of threads, or 'ray'")
    return int(workers)


def _cluster(wanted: bool, address: str | None) -> AbstractContextManager[None]:
    """Ray, if it is wanted."""
    from colonnade.drivers.ray.cluster import connected
    from colonnade.protocol.errors import ConfigError

    if not wanted and address is not None:
        raise ConfigError("--address", address, "is of a Ray cluster: add --workers ray, or --driver ray")
    return connected(address) if wanted else nullcontext()


Started = tuple[tuple[str, ...], Callable[[], "Summary"]]  # notes on the data, and how to run


def _simulate(checked: Any, out: Path, resume: bool, load: Any, workers: int | str) -> Started:
    from colonnade.cli.progress import run_with_bar
    from colonnade.experiments.run import prepare, reopen

    started = reopen(checked, out, load, workers) if resume else prepare(checked, None, out, load, workers)
    return started.federation.notes, lambda: run_with_bar(started, console)


def _start_roles(checked: Any, out: Path, resume: bool, load: Any, on_ray: bool) -> Started:
    from colonnade.cli.network import up_with_table
    from colonnade.deployment.up import FederationUp, prepare_up, reopen_up

    kind: type[FederationUp] = FederationUp
    if on_ray:
        from colonnade.deployment.on_ray import FederationOnRay as kind
    federation = reopen_up(checked, out, kind=kind) if resume else prepare_up(checked, out, None, load, kind)
    return federation.notes, lambda: up_with_table(federation, console)


@app.command()
def compare(
    config: ConfigFile = None,
    protocols: Annotated[
        str, typer.Option(help="Methods, or names under \\[methods], separated by commas.")
    ] = "sync,vafl,t-sync",
    seeds: Annotated[int, typer.Option(help="Runs per method.")] = 1,
    settings: Setting = None,
    out: Annotated[Path | None, typer.Option(help="Folder; given again, what is finished is not repeated.")] = None,
    workers: Workers = "1",
    address: Address = None,
) -> None:
    """Race methods on the same data, stragglers and seeds.

    Example:
      colonnade compare race.toml --protocols sync,vafl,t-sync,centralised --seeds 3
    """
    from colonnade.experiments.compare import contestants

    racing = contestants(_tables(config, settings, None), _names(protocols))
    name = f"{config.stem if config else 'digits'}-comparison"
    _exit_if_any_failed(_race(racing, seeds, out, name, workers, address))


@app.command()
def sweep(
    config: ConfigFile = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=A,B,…", help="Values to try; repeatable.")
    ] = None,
    protocols: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "vafl",
    seeds: Annotated[int, typer.Option(help="Runs per method and point.")] = 1,
    settings: Setting = None,
    out: Annotated[Path | None, typer.Option(help="Folder; given again, what is finished is not repeated.")] = None,
    workers: Workers = "1",
    address: Address = None,
) -> None:
    """Try a grid of settings for every method, and say which was best.

    Example:
      colonnade sweep race.toml --grid train.learning_rate=0.01,0.03,0.1 --protocols sync,vafl --seeds 3
    """
    from colonnade.experiments.sweep import best_of, grid_contestants, parse_grid

    parsed, labels = parse_grid(grid or []), _names(protocols)
    racing = grid_contestants(_tables(config, settings, None), labels, parsed)
    entries = _race(racing, seeds, out, f"{config.stem if config else 'digits'}-sweep", workers, address)
    found = best_of(entries, labels, parsed)
    for best in found:
        point = ", ".join(f"{key} = {value}" for key, value in best.point.items())
        _say(f"{best.method}: best at {point} ({best.value:.4f})")
        for key in best.edges:
            _say(f"  Warning: the grid ends at {key} = {best.point[key]}, which was best: go on in that direction")
    for label in labels:
        if label not in {best.method for best in found}:
            _say(f"{label}: no best point: every one has a run that failed or has warnings")
    if len(found) < len(labels):  # points that diverge are what a grid is for
        raise typer.Exit(1)


def _exit_if_any_failed(entries: list[Any]) -> None:
    if any(entry.error for entry in entries):
        raise typer.Exit(1)


def _names(protocols: str) -> list[str]:
    return [label.strip() for label in protocols.split(",") if label.strip()]


def _race(
    racing: list[Any], seeds: int, out: Path | None, name: str, workers: str = "1", address: str | None = None
) -> list[Any]:
    """Run all, in `out` or in a new folder of this name; what is finished is kept on Ctrl-C."""
    from colonnade.experiments.compare import entries_of
    from colonnade.protocol.errors import ConfigError

    entries, hands = entries_of(racing, seeds), _hands(workers)
    if hands not in (1, "ray"):
        raise ConfigError("--workers", workers, "a race has its runs one after the other, or on 'ray'")
    folder = out or _fresh_folder(name)
    try:
        _race_in(folder, entries, hands, address)
    except KeyboardInterrupt:
        done = sum(entry.summary is not None for entry in entries)
        again = _command() if out is not None else f"{_command()} --out {shlex.quote(str(folder))}"
        _say(f"Stopped; {done} of {len(entries)} runs are finished and kept. To go on: {again}")
        raise typer.Exit(130) from None
    return entries


def _race_in(out: Path, entries: list[Any], hands: int | str, address: str | None) -> None:
    from colonnade.cli.progress import RaceBoard, comparison_table, ranking_of, report_with_bar
    from colonnade.experiments.compare import race
    from colonnade.experiments.ranking import in_words

    with _cluster(hands == "ray", address), RaceBoard(console) as board:
        race(entries, out, board.show, _command(), hands)
    console.print(comparison_table(entries))
    for entry in entries:
        if entry.error:
            console.print(f"[red]{escape(entry.folder)}[/]: {escape(entry.error)}", soft_wrap=True)
        for text in entry.remarks:
            console.print(f"[yellow]{escape(entry.folder)}[/]: {escape(text)}", soft_wrap=True)
    if any(entry.summary for entry in entries):
        _say(f"Report: {report_with_bar(out, console)}")
    _say(f"Folder: {out}")
    if words := in_words(ranking_of(entries)):
        _say(words)


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(help="Runs per method.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder; given again, what is finished is not repeated.")] = None,
) -> None:
    """The race on embedded data: one of four parties is ten times slower."""
    from colonnade.experiments.compare import contestants
    from colonnade.experiments.demo import DEMO, DEMO_METHODS

    console.print("Handwritten digits, four parties with 16 pixels each; the fourth computes ten times slower.")
    _exit_if_any_failed(_race(contestants(DEMO, DEMO_METHODS), seeds, out, "demo"))


@app.command()
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
        _say(f"Left out: {name}: {why}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a comparison or an attack.")],
) -> None:
    """Write a self-contained HTML page with the plots."""
    from colonnade.cli.progress import report_with_bar

    _say(f"Report: {report_with_bar(folder, console)}")


app.add_typer(certs_app, name="certs")
app.add_typer(attack_app, name="attack")
app.add_typer(privacy_app, name="privacy")
network.register(app)
app.command()(align)
app.command()(init)


def _tables(
    config: Path | None, settings: list[str] | None, seed: int | None, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The config file, or the tables of an earlier start, with what was typed beside it."""
    from colonnade.config.schema import apply_overrides, parse_override, read_toml

    tables = read_toml(config) if config is not None else before or {}
    overrides = dict(parse_override(text) for text in settings or [])
    if seed is not None:
        overrides["train.seed"] = seed
    return apply_overrides(tables, overrides)


def _say(text: str) -> None:
    """A line that may hold a path: not wrapped, so that it can be copied, and not read as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _command() -> str:
    """What was typed."""
    return shlex.join(["colonnade", *sys.argv[1:]])


def _fresh_folder(name: str) -> Path:
    """runs/NAME-1, runs/NAME-2, …: the first that does not exist."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def _as_ctrl_c(_number: int, frame: Any) -> None:
    """SIGTERM ends every command as Ctrl-C does, also one that was started with Ctrl-C ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def main() -> None:
    """The console script: errors that a user can act on are one line, without a traceback."""
    sys.path.append("")  # `package.module:Class` may lie in the current folder
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        app()
    except ColonnadeError as error:
        Console(stderr=True).print(f"[red]Error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
