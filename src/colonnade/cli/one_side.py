"""What `serve`, `join` and `align` make from their options: this member's config and its log."""

from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.drivers.processes.logs import Log

__all__ = ["checked_config", "log_of", "trusted_config"]


def checked_config(path: Path, settings: list[str] | None) -> "Config":
    """Return a config file with the settings that were typed."""
    from colonnade.config.schema import from_dict, typed_tables

    return from_dict(typed_tables(path, settings))


def trusted_config(path: Path, settings: list[str] | None, trust: list[str] | None) -> "Config":
    """Return the same for a command that builds models; raises ConfigError if the config imports other modules."""
    from colonnade.config.trust import refuse_untrusted

    config = checked_config(path, settings)
    refuse_untrusted(config, trust or [])
    return config


def log_of(role: str, as_json: bool, level: str) -> "Log":
    """Return a role's log; raises ConfigError for an unknown level."""
    from colonnade.drivers.processes.logs import Log

    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError("--log-level", level, "use debug, info, warning or error")
    return Log(role, as_json=as_json, level=level)
