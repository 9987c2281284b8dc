"""Find the format of a file: from the config, or from the end of the file's name; gzipped or not."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from colonnade.data.suggest import did_you_mean
from colonnade.protocol.errors import ConfigError, DataError

SUFFIXES = {
    "csv": (".csv", ".csv.gz"),
    "parquet": (".parquet",),
    "npz": (".npz",),
    "npy": (".npy",),
    "libsvm": (".libsvm", ".libsvm.gz", ".svm", ".svm.gz"),
}
TABLES = ("csv", "parquet")  # formats with column names
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"  # first bytes of these files


def format_of(path: str | Path, given: str | None, known: Sequence[str], section: str) -> str | None:
    """Return the format from `[section] format`, else from the end of the file's name; None if neither tells it."""
    if given is None:
        name = Path(path).name.lower()
        return next((one for one in known if name.endswith(SUFFIXES.get(one, ()) or "\0")), None)
    if given not in known:
        advice = f"unknown{did_you_mean(given, known)}; known here are {', '.join(known)}"
        raise ConfigError(f"{section}.format", given, advice)
    return given


def existing(path: str | Path, given: str | None, known: Sequence[str], section: str) -> tuple[Path, str]:
    """Return the file that `[section] data` names, and its format; raises ConfigError if it cannot be read."""
    file, key = Path(path).expanduser(), f"{section}.data"
    found = format_of(file, given, known, section)
    if found is None:
        suffixes = ", ".join(suffix for one in known for suffix in SUFFIXES[one])
        advice = f"must end in one of {suffixes}; or name its format: {section}.format = {known[0]!r}"
        raise ConfigError(key, str(path), advice)
    if not file.is_file():
        raise ConfigError(key, str(path), f"there is no file {file}")
    refuse_another(file, found)
    return file, found


def refuse_another(file: Path, format: str) -> None:
    """Raise DataError if the first bytes show that a CSV file is a Parquet file, or the reverse."""
    if format in TABLES and is_parquet(file) != (format == "parquet"):
        what = "not a Parquet file" if format == "parquet" else "a Parquet file"
        raise DataError(f"{file}: is {what}, but its format was given as {format!r}")


def is_parquet(file: Path) -> bool:
    """Decide by the file's name or its first bytes."""
    return file.suffix.lower() == ".parquet" or _begins_with(file, PARQUET)


def opened(file: Path) -> IO[bytes]:
    """Open a file for reading; unpacks it if its name or its first bytes show gzip."""
    packed = file.name.lower().endswith(".gz") or _begins_with(file, GZIP)
    return gzip.open(file) if packed else file.open("rb")  # type: ignore[return-value]


def _begins_with(file: Path, magic: bytes) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(len(magic)) == magic
    except OSError:
        return False  # the code that reads the file reports the error
