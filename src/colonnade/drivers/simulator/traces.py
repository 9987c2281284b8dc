"""CPU use over time from files, in percent: what drives a clock's `kind = "trace"`.

*.csv            time, utilisation: the last column; comments (#) and one line of headings may be there
*.tar.gz, *.tgz  a plain file for each machine, its lines "cpu mem": the first column; machines are numbered from 0 in
                 the order of their files' sorted names

So come the 1,600 machines of Google's cluster traces (May 2011) that were made for "Virtual Machine Consolidation with
Multiple Usage Prediction for Energy-Efficient Cloud Data Centers" (IEEE Transactions on Services Computing): 24 hours
in steps of five minutes. An archive is read in memory, within limits; nothing of it is written to disk.
"""

import csv
import gzip
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import BufferedIOBase, BytesIO
from pathlib import Path

import numpy as np

from colonnade.data.suggest import listing
from colonnade.protocol.errors import ConfigError

__all__ = ["ended_note", "is_archive", "percentages", "read_trace"]

LIMIT_BYTES = 64 * 2**20  # of a file, unpacked; Google's 1,600 machines are 13 MiB
UNREADABLE = (OSError, EOFError, ValueError, OverflowError, RecursionError, csv.Error, tarfile.TarError, zlib.error)


def is_archive(file: str) -> bool:
    """Whether the file's name says that it holds several machines."""
    return file.endswith((".tar.gz", ".tgz"))


def read_trace(key: str, file: str, machine: int | None) -> np.ndarray:
    """The CPU use, a value per step; `machine` is a number in an archive."""
    expected = "a .tar.gz of one file per machine" if is_archive(file) else "a CSV of time, utilisation"
    try:
        found = Path(file).stat()
        stamp = found.st_mtime_ns, found.st_size
        if not is_archive(file):
            return _from_csv(file, stamp)
        machines = _machines(file, stamp)
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error  # without the path, which stands before it
        raise ConfigError(f"{key}.file", file, f"cannot be read as {expected}: {reason}") from None
    return _from_archive(key, file, machine, machines)


def percentages(values: Iterable[float | str]) -> np.ndarray:
    """The values as an array that cannot be written to; ValueError if they are no CPU use."""
    array = np.array([float(value) for value in values])
    wrong = array[~((array >= 0) & (array <= 100))]  # nan is wrong, too
    if not len(array):
        raise ValueError("there are no values; CPU use is a list of percentages from 0 to 100")
    if len(wrong):
        raise ValueError(f"CPU use must be percentages from 0 to 100, not {wrong[0]:g}")
    array.flags.writeable = False
    return array


def ended_note(lengths_s: Mapping[str, float], clock_s: float) -> str:
    """One line on the roles whose traces were shorter than the run; empty if there are none."""
    over: dict[float, list[str]] = {}
    for name, length_s in lengths_s.items():
        if length_s < clock_s:
            over.setdefault(length_s, []).append(name)
    parts = [f"{listing(names)} after {length_s:,.12g} s" for length_s, names in over.items()]
    return f"CPU traces ended and were repeated from their start: {'; '.join(parts)}" if parts else ""


@lru_cache(maxsize=4)  # every party may name the same file
def _from_csv(file: str, stamp: tuple[int, int]) -> np.ndarray:
    with Path(file).open("rb") as stream:
        lines = _content(stream).decode("utf-8-sig").splitlines()
    rows = [row for row in csv.reader(line.partition("#")[0].strip() for line in lines) if row]
    if rows and not any(map(_is_number, rows[0])):
        del rows[0]  # headings
    if len({len(row) for row in rows}) > 1:
        raise ValueError("its rows differ in their number of columns")
    return percentages(row[-1] for row in rows)


@lru_cache(maxsize=2)  # as above; unpacking takes a tenth of a second
def _machines(file: str, stamp: tuple[int, int]) -> list[tuple[str, bytes]]:
    with gzip.open(file) as stream:
        content = _content(stream)
    texts: dict[str, bytes] = {}
    with tarfile.open(fileobj=BytesIO(content), mode="r:") as archive:
        for member in archive:
            if member.size < 0 or member.issparse():  # tarfile may go round in circles
                raise tarfile.TarError(f"{member.name!r} in it is not a plain file")
            if member.isreg() and (text := archive.extractfile(member)) is not None:
                texts[member.name] = text.read()
    if not texts:
        raise ValueError("it holds no files")
    return sorted(texts.items())


def _from_archive(key: str, file: str, machine: int | None, machines: list[tuple[str, bytes]]) -> np.ndarray:
    if machine is None or not 0 <= machine < len(machines):
        advice = f"{file} has {len(machines):,} machines: give a number from 0 to {len(machines) - 1}"
        raise ConfigError(f"{key}.machine", machine, advice)
    name, text = machines[machine]
    try:
        return percentages(row[0] for line in text.decode().splitlines() if (row := line.split()))
    except ValueError as error:
        advice = f"{name} in {file} is not lines of CPU and memory: {error}"
        raise ConfigError(f"{key}.machine", machine, advice) from None


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
