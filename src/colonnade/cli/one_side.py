"""What `serve`, `join` and `align` make from their options: this member's config and its log."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.drivers.processes.log_file import LogFile
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


def log_of(
    role: str, as_json: bool, level: str, file: Path | None = None, file_mb: float = 16.0, keep: int = 5
) -> "Log":
    """Return a role's log; raises ConfigError for an unknown level, or a file that cannot be written."""
    from colonnade.drivers.processes.logs import Log

    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError("--log-level", level, "use debug, info, warning or error")
    return Log(role, as_json=as_json, level=level, stream=None if file is None else _opened(file, file_mb, keep))


def _opened(path: Path, file_mb: float, keep: int) -> "LogFile":
    """The log file, which SIGUSR1 opens again, for logrotate."""
    from colonnade.drivers.processes.log_file import LogFile

    if not 0 < file_mb < float("inf"):
        raise ConfigError("--log-mb", file_mb, "must be above 0")
    if keep < 0:
        raise ConfigError("--log-keep", keep, "must be 0 or more")
    opened = LogFile(path, round(file_mb * 2**20), keep).check()
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, lambda *_: opened.reopen())
    return opened
