"""`colonnade train`: what `run`, `serve` or `join` does, by the config that it is given."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.join import join
from colonnade.cli.options import (
    Continue,
    DropColumns,
    LogFilePath,
    LogJson,
    LogKeep,
    LogLevel,
    LogMb,
    Setting,
    Trust,
)
from colonnade.cli.run import run
from colonnade.cli.serve import serve
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.config.schema import Config

__all__ = ["train"]

SERVER = "server"


def train(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="A member's config, or that of a run with all roles in one place."),
    ] = None,
    settings: Setting = None,
    out: Annotated[Path | None, typer.Option(help="The folder of this run, or of this role.")] = None,
    continues: Continue = None,
    drop_columns: DropColumns = None,
    party: Annotated[str | None, typer.Option(help="This party's name. Default: that of its certificate.")] = None,
    trust: Trust = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    log_file: LogFilePath = None,
    log_mb: LogMb = 16.0,
    log_keep: LogKeep = 5,
) -> None:
    """Train: a member's config starts that member (serve, join), any other config a simulation (run).

    With --continue, a new run starts from the trained networks of an earlier one, with new rows, other columns, a party
    more or a party fewer.

    Examples:
      colonnade train server.toml --out runs/june --continue runs/may
      colonnade train clinic.toml --out runs/june --continue runs/may --drop-columns fax
      colonnade train race.toml --continue runs/race-1
    """
    name = party or _member(config, settings)
    if name is None:
        return run(config, settings, out=out, continues=continues, drop_columns=drop_columns)
    assert config is not None
    log: Any = {"log_json": log_json, "log_level": log_level}
    log |= {"log_file": log_file, "log_mb": log_mb, "log_keep": log_keep}
    if name != SERVER:
        return join(config, name, settings, out, trust=trust, continues=continues, drop_columns=drop_columns, **log)
    if drop_columns:
        raise ConfigError("--drop-columns", drop_columns[0], "is for the party that had the column; remove it")
    return serve(config, settings, out, trust=trust, continues=continues, **log)


def _member(path: Path | None, settings: list[str] | None) -> str | None:
    """Return the member whose config this is; None: of all roles in one place."""
    from colonnade.config.schema import from_dict, typed_tables
    from colonnade.deployment.own_side import load_identity

    config = from_dict(typed_tables(path, settings))
    if path is None or config.data.source is not None:
        return None
    if config.network.certificate is not None:
        return load_identity(config).name
    return _by_sections(config)


def _by_sections(config: "Config") -> str | None:
    """Return the member by the sections that only one member's config has."""
    if config.server.data is not None or config.server.rows is not None:
        return SERVER
    if config.party.data is not None:
        advice = "name this party's certificate, which has the party's name, or add --party NAME"
        raise ConfigError("network.certificate", None, advice)
    return None
