"""Which format a file has: as the config names it, or by the end of its name; gzipped or not."""

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
TABLES = ("csv", "parquet")  # with names of columns
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"  # what these files begin with


def format_of(path: str | Path, given: str | None, known: Sequence[str], section: str) -> str | None:
    """As `[section] format` says, or by the end of the file's name; None: neither tells."""
    if given is None:
        name = Path(path).name.lower()
        return next((one for one in known if name.endswith(SUFFIXES.get(one, ()) or "\0")), None)
    if given not in known:
        advice = f"unknown{did_you_mean(given, known)}; known here are {', '.join(known)}"
        raise ConfigError(f"{section}.format", given, advice)
    return given


def existing(path: str | Path, given: str | None, known: Sequence[str], section: str) -> tuple[Path, str]:
    """The file that `[section] data` names, of a format that can be read, and the format."""
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
    """CSV and Parquet are told apart by the file's first bytes; a config that says otherwise is wrong."""
    if format in TABLES and is_parquet(file) != (format == "parquet"):
        what = "no Parquet file" if format == "parquet" else "a Parquet file"
        raise DataError(f"{file}: is {what}, and its format was given as {format!r}")


def is_parquet(file: Path) -> bool:
    """By its name or its first bytes."""
    return file.suffix.lower() == ".parquet" or _begins_with(file, PARQUET)


def opened(file: Path) -> IO[bytes]:
    """To read, unpacked if its name or its first bytes say that it is gzipped."""
    packed = file.name.lower().endswith(".gz") or _begins_with(file, GZIP)
    return gzip.open(file) if packed else file.open("rb")  # type: ignore[return-value]


def _begins_with(file: Path, magic: bytes) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(len(magic)) == magic
    except OSError:
        return False  # the code that reads it reports the error
