"""What is wrong with a member's own table: the file, and every column that its config names. Only names are read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from colonnade.config.schema import PartyConfig, ServerConfig
from colonnade.data.columns import columns_meant
from colonnade.data.formats import TABLES, existing
from colonnade.data.report_progress import silent
from colonnade.data.tables import check_columns, column_names
from colonnade.protocol.errors import ColonnadeError, ConfigError

__all__ = ["Own", "table_faults"]

Own = PartyConfig | ServerConfig


def table_faults(own: Own, section: str) -> list[ColonnadeError]:
    """All faults, not only the first; empty if the table has every column that it needs."""
    if own.data is None:
        return [ConfigError(f"{section}.data", None, "name the file with this member's table")]
    try:
        file, names = _columns(own, own.data, section)
    except ColonnadeError as error:
        return [error]
    faults = [fault for check in _checks(own, section, file, names) if (fault := _fault(check)) is not None]
    if isinstance(own, PartyConfig) and own.predict_data is not None and names:
        faults += _predict_faults(own, own.predict_data, names)
    return faults


def _columns(own: Own, path: str, section: str) -> tuple[Path, list[str]]:
    """The file and the names of its columns; no names if the format has none."""
    file, kind = existing(path, own.format, (*TABLES, "npz", "npy"), section)
    try:
        return file, column_names(file, silent, own.dialect) if kind in TABLES else []
    except OSError as error:
        raise ConfigError(f"{section}.data", path, f"cannot be read: {error.strerror or error}") from error


def _checks(own: Own, section: str, file: Path, names: list[str]) -> Iterator[Callable[[], object]]:
    if not names:
        return
    yield lambda: check_columns(file, names, id=own.id, section=section)
    yield lambda: check_columns(file, names, label=own.label, section=section)
    if own.id == own.label and own.id in names:
        yield lambda: check_columns(file, names, id=own.id, label=own.label, section=section)
    if not isinstance(own, PartyConfig):
        return
    for name in own.categorical:
        yield _bound(check_columns, file, names, label=None, categorical=(name,), section=section)
    for entry in own.columns or ():
        yield _bound(columns_meant, file.name, names, "this party", [entry], "party.columns")


def _bound(check: Callable[..., object], *words: Any, **more: Any) -> Callable[[], object]:
    return lambda: check(*words, **more)


def _fault(check: Callable[[], object]) -> ColonnadeError | None:
    try:
        check()
    except ColonnadeError as error:
        return error
    return None


def _predict_faults(own: PartyConfig, path: str, names: list[str]) -> list[ColonnadeError]:
    """The file with further rows must have the same columns."""
    try:
        file, found = _columns(own, path, "party")
        used = names if own.columns is None else columns_meant(str(own.data), names, "this party", own.columns)
    except ConfigError as error:
        return [] if error.key == "data.split" else [ConfigError("party.predict_data", path, error.advice)]
    except ColonnadeError as error:
        return [error]
    wanted = [name for name in (own.id, *used) if name is not None and name not in (own.label, *found)]
    missing = ", ".join(dict.fromkeys(wanted))
    return [ConfigError("party.predict_data", path, f"{file.name} has no column {missing}")] if missing else []
