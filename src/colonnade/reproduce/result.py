"""What an item gave: the file `result.json`, which the book is made from."""

import json
import os
import platform
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
import torch

from colonnade import __version__
from colonnade.drivers.files import replace_file
from colonnade.protocol.errors import DataError
from colonnade.release import commit
from colonnade.reproduce.item import Item

__all__ = ["FORMAT", "Cell", "Result", "fresh", "machine", "read_result", "write_result"]

FORMAT = 1
FILE = "result.json"
MOST_BYTES = 16 * 2**20


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a row in a column, one for each seed; None: the run did not get there."""

    row: str
    column: str
    values: list[float | None] = []
    chosen: dict[str, Any] = {}  # what was chosen on the validation rows
    edges: list[str] = []  # keys whose chosen value is the first or last of its grid
    fault: str = ""  # why there are no numbers
    remarks: list[str] = []

    @property
    def number(self) -> float | None:
        """The mean; infinite if a run did not get there; None if there is no number."""
        if not self.values:
            return None
        reached = [value for value in self.values if value is not None]
        return mean(reached) if len(reached) == len(self.values) else inf

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds."""
        reached = [value for value in self.values if value is not None]
        return stdev(reached) if len(reached) > 1 else 0.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of an item, its curves, and where they come from."""

    format: int = FORMAT
    item: str
    digest: str  # of what decides the numbers of this size in the item's file
    size: str  # "quick" or "full"
    release: str
    commit: str
    machine: str
    seconds: float
    processor_s: float = 0.0  # of all processes; 0: a result of an earlier release, or of a Ray cluster
    seeds: int
    cells: list[Cell]
    untested: dict[str, str] = {}  # column → why
    curves: dict[str, dict[str, list[list[float]]]] = {}  # column → row → x and y

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, if it was tested."""
        return next((one for one in self.cells if (one.row, one.column) == (row, column)), None)


def fresh(item: Item, size: str, seeds: int, **found: Any) -> Result:
    """Make a result of this release on this machine."""
    return Result(
        item=item.id, digest=item.digests[size], size=size, release=__version__, commit=commit() or "",
        machine=machine(), seeds=seeds, **found,
    )  # fmt: skip


def machine() -> str:
    """This machine in words."""
    name = platform.processor() or platform.machine()
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        lines = listed.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    graphics = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {os.cpu_count()} cores{graphics}, torch {torch.__version__.partition('+')[0]}"


def write_result(folder: Path, result: Result) -> Path:
    """Write the file; a half-written one never remains."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    replace_file(path, [msgspec.json.format(msgspec.json.encode(result), indent=1), b"\n"])
    return path


def read_result(path: Path) -> Result:
    """Read a file that `write_result` wrote; raises DataError with the cause."""
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: larger than {MOST_BYTES >> 20} MiB: not a result of colonnade reproduce")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(raw, dict) and raw.get("format") != FORMAT:
            raise DataError(f"{path}: format {raw.get('format')!r}; this release reads {FORMAT}: run the item again")
        return msgspec.convert(raw, Result)
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not a result of colonnade reproduce: {error}") from error
