"""The items of the book: one file each, in the folder `items`.

An item is a table. Its rows are methods, its columns are data sets or settings, and every cell is a config: the item's
`base`, then what the size (`quick` or `full`), the column and the row set. An item whose numbers come from no run names
a function of the folder `studies` instead (`study`).
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

import msgspec

from colonnade.data.suggest import did_you_mean
from colonnade.protocol.errors import ConfigError

__all__ = ["Check", "Column", "Figure", "Item", "Measure", "Row", "Size", "Tune", "find_items", "items", "parse_item"]

PAPERS = ("VAFL", "VFL-Cascaded", "Flex-VFL", "AsySQN", "FedVS")
Settings = dict[str, Any]  # dotted key → value
Grid = dict[str, list[Any]]  # dotted key → values


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A data set or a setting."""

    name: str
    data: str = ""  # a folder of --data, {data} in settings; "": the data need no folder
    gpu: bool = False  # needs a GPU
    full: bool = False  # left out by --quick
    x: float | None = None  # its place on the figure's x axis
    use: list[str] = []  # names of `sets`, which come before `set`
    set: Settings = {}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A method, with the paper's numbers by column."""

    name: str
    set: Settings = {}
    paper: dict[str, float] = {}
    what: str = ""  # another number than the item's: a name of reproduce/measures.py
    tune: bool = True  # False: it runs with the settings as they are
    grid: Grid = {}  # its own grid, instead of the item's
    quick: Grid = {}  # and for --quick
    full: bool = False  # left out by --quick


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How large a run is."""

    seeds: int = 1
    set: Settings = {}


class Tune(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that every cell chooses by itself on the validation rows."""

    grid: Grid
    quick: Grid = {}  # a smaller grid for --quick; {}: the same
    by: Literal["metric", "loss", "time-to-target"] = "metric"
    seeds: int = 1

    def of(self, row: Row, size: str) -> Grid:
        """The grid of a row."""
        own, small = row.grid or self.grid, row.quick or self.quick
        return small if size == "quick" and small else own


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The number of a cell."""

    what: str = "value"  # a name of reproduce/measures.py
    name: str = ""  # for the reader, e.g. "test accuracy"
    unit: str = ""
    of_any_run: bool = False  # also of runs with warnings: for numbers that do not depend on what was learned
    diverged: float | None = None  # the number of a run that diverged; left out: it has none
    times: float = 1.0  # 100: a share as per cent
    digits: int = 2


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the figure shows: curves over the training, or the cells' numbers over the columns."""

    kind: Literal["curves", "columns"] = "curves"
    x: str = "clock_s"  # a field of metrics.jsonl, for curves
    y: str = "value"
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False
    paper: bool = True  # whether the paper's numbers are drawn: not if its units are others


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What counts as agreement with the paper: `holds` must be true in every column, or in part of them."""

    says: str
    row: str
    holds: str  # e.g. "<= 0.9"
    against: str = ""  # another row; "": the same row
    in_column: str = ""  # of that row; "": the same column. With neither, the number itself is compared
    compare: Literal["ratio", "difference", "range"] = "ratio"  # range: how far a row's numbers differ over the columns
    columns: list[str] = []  # []: all
    control: bool = False  # a check of ours that the paper does not make


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table or figure of a paper."""

    id: str = ""
    title: str
    paper: str
    where: str  # e.g. "Table II"
    claim: str
    measure: Measure
    checks: list[Check]
    control: bool = False  # the claim is ours: the paper does not test it
    of: str = ""  # another item whose runs are measured in another way here: rows, columns and settings are its own
    rows: list[Row] = []
    columns: list[Column] = []
    base: dict[str, Any] = {}
    sets: dict[str, Settings] = {}  # settings that several columns use
    quick: Size = Size()
    full: Size = Size(seeds=3)
    tune: Tune | None = None
    figure: Figure | None = None
    study: str = ""  # "module:function" below `studies`
    stand_in: str = ""  # what stands in for the paper's data or network; "": nothing does
    note: str = ""  # what the reader must know about our setting
    about: str = ""  # the text of a page of its own: where a claim fails, and why
    runs: dict[str, str] = {}  # size → digest of all that decides its runs
    digests: dict[str, str] = {}  # size → of all that decides its numbers: results of another version are marked


def parse_item(text: str, id: str, others: Mapping[str, Item] | None = None) -> Item:
    """Parse an item's file; raises ConfigError with the file's name and what is wrong.

    `others`: the items whose runs it may share (`of`).
    """
    return _complete(_read(text, id), others or {})


def _read(text: str, id: str) -> Item:
    try:
        return msgspec.structs.replace(msgspec.convert(tomllib.loads(text), Item), id=id)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"items/{id}.toml", "", str(error)) from error


def _complete(item: Item, others: Mapping[str, Item]) -> Item:
    """Add what another item lends, check the whole, and compute the digests."""
    if item.of:
        if item.of not in others or others[item.of].of:
            raise ConfigError(f"items/{item.id}.toml", item.of, "of must name an item with runs of its own")
        lent = ("base", "sets", "columns", "rows", "quick", "full", "tune")
        item = msgspec.structs.replace(item, **{name: getattr(others[item.of], name) for name in lent})
        rows = [msgspec.structs.replace(row, paper={}) for row in item.rows]  # those numbers are of another measure
        item = msgspec.structs.replace(item, rows=rows)
    _check(item)
    what = item.measure
    measure = [what.what, what.times, what.of_any_run, *([] if what.diverged is None else [what.diverged])]
    curves = (item.figure.kind, item.figure.x, item.figure.y) if item.figure else ()
    runs = {size: _digest(_decisive(item, size)) for size in ("quick", "full")}
    digests = {size: _digest((runs[size], measure, item.study, curves)) for size in runs}
    return msgspec.structs.replace(item, runs=runs, digests=digests)


def _digest(parts: Any) -> str:
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _decisive(item: Item, size: str) -> tuple[Any, ...]:
    """What decides the runs of this size; texts, checks and the paper's numbers may change without a new run."""
    full = size == "full"
    kept = [row for row in item.rows if full or not row.full]
    grids = [item.tune.of(row, size) if item.tune and row.tune else {} for row in kept]
    rows = [(row.name, row.set, row.what, row.tune, grid) for row, grid in zip(kept, grids, strict=True)]
    columns = [(one.name, one.data, one.gpu, one.x, one.use, one.set) for one in item.columns if full or not one.full]
    tune = (item.tune.by, item.tune.seeds) if item.tune else ()
    return item.base, item.sets, columns, rows, item.full if full else item.quick, tune


def _check(item: Item) -> None:
    rows, columns = {row.name for row in item.rows}, {column.name for column in item.columns}
    wrong = [
        f"check names an unknown row: {name}"
        for one in item.checks
        for name in (one.row, one.against)
        if name and name not in rows
    ]
    wrong += [
        f"check names an unknown column: {name}" for one in item.checks for name in one.columns if name not in columns
    ]
    wrong += [
        f"the paper's numbers name an unknown column: {name}"
        for row in item.rows
        for name in row.paper
        if name not in columns
    ]
    wrong += [
        f"holds must be an operator and a number: {one.holds}"
        for one in item.checks
        if not re.fullmatch(r"(<=|>=|<|>) -?[\d.]+(e-?\d+)?", one.holds)
    ]
    wrong += [
        f"column uses an unknown set: {name}" for one in item.columns for name in one.use if name not in item.sets
    ]
    for what, names in (("row", [row.name for row in item.rows]), ("column", [one.name for one in item.columns])):
        wrong += [f"two {what}s have the name {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    if item.paper not in PAPERS:
        wrong.append(f"paper must be one of {', '.join(PAPERS)}")
    if not item.checks or not item.rows or not item.columns:
        wrong.append("needs rows, columns and checks")
    if wrong:
        raise ConfigError(f"items/{item.id}.toml", "", "; ".join(wrong))


@cache
def items() -> dict[str, Item]:
    """All items, in the papers' order."""
    folder = files("colonnade.reproduce") / "items"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".toml")}
    read = {name.removesuffix(".toml"): _read(text, name.removesuffix(".toml")) for name, text in texts.items()}
    found = [_complete(item, read) for item in read.values()]
    found.sort(key=lambda item: (PAPERS.index(item.paper), item.id))
    return {item.id: item for item in found}


def find_items(names: list[str]) -> list[Item]:
    """The named items; "all": every item. Raises ConfigError for an unknown name, with the nearest one."""
    known = items()
    if names in ([], ["all"]):
        return list(known.values())
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError("ITEM", name, f"there is no such item{near}; colonnade reproduce lists them")
    return [known[name] for name in dict.fromkeys(names)]
