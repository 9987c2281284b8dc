"""What `serve`, `join` and `align` make from their options: this side's config and its log."""

from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.drivers.processes.logs import Log

__all__ = ["checked_config", "log_of"]


def checked_config(path: Path, settings: list[str] | None) -> "Config":
    """A config file with what was typed beside it."""
    from colonnade.config.schema import from_dict, typed_tables

    return from_dict(typed_tables(path, settings))


def log_of(role: str, as_json: bool, level: str) -> "Log":
    """A role's log, as the options want it."""
    from colonnade.drivers.processes.logs import Log

    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError("--log-level", level, "use debug, info, warning or error")
    return Log(role, as_json=as_json, level=level)
