"""CPU use over time from files, for `kind = "trace"` of the clock.

*.csv            time, utilisation: the last column is used; comments (#) and one line of headings are allowed
*.tar.gz, *.tgz  one plain file per machine: a *.csv as above, any other file with lines "cpu mem", of which the first
                 column is used; machines are numbered from 0 in the order of their files' sorted names

The 1,600 machines of Google's cluster traces (May 2011) come in this form: 24 hours in steps of five minutes. They
were prepared for "Virtual Machine Consolidation with Multiple Usage Prediction for Energy-Efficient Cloud Data Centers"
(IEEE Transactions on Services Computing). An archive is read in memory, within limits, and never unpacked to disk.

Values are percentages, or shares with `unit = "fraction"`. If all values lie from 0 to 1, they could be either, and the
two readings differ by a factor of 100. Then the config must give `unit`.
"""

import csv
import gzip
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Literal

import numpy as np

from colonnade.data.suggest import listing
from colonnade.protocol.errors import ConfigError

__all__ = ["Unit", "ended_note", "is_archive", "percentages", "read_load"]

Unit = Literal["percent", "fraction"]
COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")  # gzip, zip, bzip2, xz
LIMIT_BYTES = 64 * 2**20  # of an unpacked file; Google's 1,600 machines are 13 MiB
UNREADABLE = (OSError, EOFError, ValueError, OverflowError, RecursionError, csv.Error, tarfile.TarError, zlib.error)


def is_archive(file: str) -> bool:
    """Whether the file's name says that it holds several machines."""
    return file.endswith((".tar.gz", ".tgz"))


def read_load(key: str, file: str, machine: int | None, unit: Unit | None = None) -> np.ndarray:
    """The CPU use in percent, one value per interval. `machine` is a number in an archive. Raises ConfigError."""
    expected = "a .tar.gz of one file per machine" if is_archive(file) else "a CSV of time, utilisation"
    try:
        found = Path(file).stat()
        stamp = found.st_mtime_ns, found.st_size
        if not is_archive(file):
            return _in_percent(_from_csv(file, stamp), unit, f"{key}.unit", file)
        machines = _machines(file, stamp)
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error  # without the path, which the message gives already
        raise ConfigError(f"{key}.file", file, f"cannot be read as {expected}: {reason}") from None
    return _from_archive(key, file, machine, machines, unit)


def percentages(key: str, values: Iterable[float], unit: Unit | None) -> np.ndarray:
    """The values of a list in percent, as a read-only array; raises ValueError if they are no CPU use."""
    array = np.array(list(values), dtype=float)
    return _in_percent(Column(array, [f"value {place}" for place in range(1, len(array) + 1)]), unit, key, "the list")


@dataclass(frozen=True, eq=False)
class Column:
    """Numbers, and the place of each in its source, for messages."""

    values: np.ndarray
    places: list[str]


def _in_percent(column: Column, unit: Unit | None, key: str, where: str) -> np.ndarray:
    values, most = column.values, 1.0 if unit == "fraction" else 100.0
    if not len(values):
        raise ValueError("there are no values; CPU use is a list of percentages from 0 to 100")
    wrong = np.flatnonzero(~((values >= 0) & (values <= most)))  # nan is wrong, too
    if len(wrong):
        asked = "percentages from 0 to 100" if most > 1 else "from 0 to 1 with unit = 'fraction'"
        raise ValueError(f"{column.places[wrong[0]]}: CPU use must be {asked}, not {values[wrong[0]]:g}")
    largest = float(values.max())
    if unit is None and 0 < largest <= 1:
        advice = (
            f"the largest value of {where} is {largest:g}, which could be {largest:g} % or {100 * largest:g} %: set "
            "unit = 'percent' or 'fraction'"
        )
        raise ConfigError(key, unit, advice)
    percent: np.ndarray = values * (100 / most)
    percent.flags.writeable = False
    return percent


def ended_note(lengths_s: Mapping[str, float], clock_s: float) -> str:
    """One line about the roles whose CPU loads were shorter than the run; empty if there are none."""
    over: dict[float, list[str]] = {}
    for name, length_s in lengths_s.items():
        if length_s < clock_s:
            over.setdefault(length_s, []).append(name)
    parts = [f"{listing(names)} after {length_s:,.12g} s" for length_s, names in over.items()]
    return f"CPU traces ended and were repeated from their start: {'; '.join(parts)}" if parts else ""


@lru_cache(maxsize=4)  # several parties may name the same file
def _from_csv(file: str, stamp: tuple[int, int]) -> Column:
    with Path(file).open("rb") as stream:
        content = _content(stream)
    if content.startswith(COMPRESSED):
        raise ValueError("it is compressed; name an archive of machines *.tar.gz, or unpack a single file")
    return _csv_column(content)


def _csv_column(content: bytes) -> Column:
    """The last column. The first line may hold headings."""
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(content.decode("utf-8-sig").splitlines(), start=1):
        if text := line.partition("#")[0].strip():
            rows.append((number, [cell.strip() for cell in next(csv.reader([text]))]))
    rows = _without_headings(rows)
    for number, row in rows:
        if len(row) != len(rows[0][1]):
            expected = f"line {rows[0][0]} has {len(rows[0][1])}"
            raise ValueError(
                f"line {number}: {len(row)} columns, where {expected}: all rows must have the same number of columns"
            )
    return _column((number, row[-1]) for number, row in rows)


def _first_column(content: bytes) -> Column:
    """The first column of lines "cpu mem". The first line may hold headings."""
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(content.decode().splitlines(), start=1):
        if "," in line:
            advice = (
                "name the file *.csv if its columns are time and utilisation; otherwise put spaces between CPU and "
                "memory"
            )
            raise ValueError(f"line {number}: {line.strip()[:40]!r} has commas: {advice}")
        if cells := line.partition("#")[0].split():
            rows.append((number, cells))
    return _column((number, row[0]) for number, row in _without_headings(rows))


def _without_headings(rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Drop the first line if every cell in it is a word."""
    heads = rows and not any(not cell or _is_number(cell) for cell in rows[0][1])
    return rows[1:] if heads else rows


def _column(cells: Iterable[tuple[int, str]]) -> Column:
    values: list[float] = []
    places: list[str] = []
    for number, text in cells:
        if not _is_number(text):
            found = f"{text[:40]!r} is not a number" if text else "the cell is empty"
            raise ValueError(f"line {number}: {found}; every interval needs the CPU use of the machine")
        values.append(float(text))
        places.append(f"line {number}")
    return Column(np.array(values), places)


@lru_cache(maxsize=2)  # as above; unpacking takes 0.1 s
def _machines(file: str, stamp: tuple[int, int]) -> list[tuple[str, bytes]]:
    with gzip.open(file) as stream:
        content = _content(stream)
    texts: dict[str, bytes] = {}
    with _opened(content) as archive:
        for member in archive:
            if member.size < 0 or member.issparse():  # tarfile could loop without end
                raise tarfile.TarError(f"{member.name!r} in it is not a plain file")
            hidden = Path(member.name).name.startswith(".")  # extra files that macOS adds
            if member.isreg() and not hidden and (text := archive.extractfile(member)) is not None:
                texts[member.name] = text.read()
    if not texts:
        raise ValueError("it holds no files")
    return sorted(texts.items())


def _opened(content: bytes) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=BytesIO(content), mode="r:")
    except tarfile.ReadError:
        raise ValueError("it does not unpack to an archive; make one with: tar czf NAME.tar.gz FOLDER") from None


def _from_archive(
    key: str, file: str, machine: int | None, machines: list[tuple[str, bytes]], unit: Unit | None
) -> np.ndarray:
    if machine is None or not 0 <= machine < len(machines):
        advice = f"{file} has {len(machines):,} machines: give a number from 0 to {len(machines) - 1}"
        raise ConfigError(f"{key}.machine", machine, advice)
    name, text = machines[machine]
    is_csv = name.endswith(".csv")
    try:
        column = _csv_column(text) if is_csv else _first_column(text)
        return _in_percent(column, unit, f"{key}.unit", f"{name} in {file}")
    except (ValueError, csv.Error) as error:
        what = "a CSV of time, utilisation" if is_csv else "lines of CPU and memory"
        raise ConfigError(f"{key}.machine", machine, f"{name} in {file} is not {what}: {error}") from None


def _content(stream: BufferedIOBase) -> bytes:
    content = stream.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"it holds more than {LIMIT_BYTES // 2**20} MiB")
    return content


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
