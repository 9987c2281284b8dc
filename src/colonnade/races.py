"""Comparisons and sweeps from Python: the same runs as `colonnade compare` and `colonnade sweep`, as DataFrames."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars

from colonnade.algorithms import DEFAULT_METHOD
from colonnade.api import Model, tables_from, with_models
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.experiments.compare import USUAL, Contestant, Entry, contestants, entries_of, expanded, race, ranking_of
from colonnade.experiments.compare import unsuitable as taking_no_part
from colonnade.experiments.ranking import Ranking, in_words
from colonnade.experiments.sweep import Best, By, Grid, best_of, check_by, grid_contestants, points_of, that_ran
from colonnade.protocol.errors import ConfigError
from colonnade.results.folder import RunFolder

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["Comparison", "Sweep", "compare", "sweep"]

Protocols = str | Sequence[str] | Mapping[str, str | Mapping[str, Any]]

_OF_MODEL = {"embedding": "model.embedding", "aggregate": "model.aggregate", "device": "model.device"}
_OF_MODEL |= {"precision": "model.precision", "party_model": "model.party", "server_model": "model.server"}
_COLUMNS = {"MB": "megabytes", "clock s": "clock_s"}  # title of a ranking's column → name in a DataFrame
_OF_RUN = [
    "status", "metric", "value", "loss", "validation_value", "validation_loss", "time_to_target_s", "updates", "epochs",
    "clock_s", "wall_s", "bytes_up", "bytes_down", "messages",
]  # fmt: skip


class Comparison:
    """A finished comparison: `table` has a row for each method, `runs` for each run, `metrics` for each evaluation."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [entry for entry in entries if not entry.unsuitable]
        self.unsuitable = taking_no_part(entries)  # method → why it took no part
        self.ranking: Ranking = ranking_of(self._entries)

    def __repr__(self) -> str:
        labels = ", ".join(self.ranking.values)
        words = in_words(self.ranking) or "no winner"
        return f"{type(self).__name__}({labels}; {len(self._entries)} runs; {words.rstrip('.')})"

    def _repr_html_(self) -> str:
        from colonnade.report.cells import race_html

        return race_html(self._records(), self.unsuitable)

    @property
    def winners(self) -> str:
        """A sentence on the best method of each column; "" if there was nothing to rank."""
        return in_words(self.ranking)

    @property
    def table(self) -> polars.DataFrame:
        """One row per method: means over its seeds and, for the ranked columns, sample standard deviations.

        `flaw` says why a method takes no part in the ranking, and is "" for the others.
        """
        rows = []
        for label, values in self.ranking.values.items():
            row: dict[str, Any] = {"method": label, "runs": self.ranking.seeds}
            row["flaw"] = self.ranking.flaws.get(label, "")
            for column, value in zip(self.ranking.columns, values, strict=True):
                name = "time_to_target_s" if column.partial else _COLUMNS.get(column.title, column.title)
                row[name] = None if value is None else value.mean
                if column.higher_is_better is not None:
                    row[f"{name}_sd"] = None if value is None or value.known < 2 else value.spread
                if column.partial:
                    row["reached"] = 0 if value is None else value.known
            rows.append(row)
        return polars.DataFrame(rows, infer_schema_length=None)

    @property
    def runs(self) -> polars.DataFrame:
        """One row per run."""
        rows = []
        for entry in self._entries:
            summary: Mapping[str, Any] = entry.summary or {}
            row = {"method": entry.label, "seed": entry.seed} | {key: summary.get(key) for key in _OF_RUN}
            row["staleness"] = summary["staleness"]["mean"] if summary else None
            rows.append(row | {"warnings": "; ".join(entry.remarks), "error": entry.error})
        return polars.DataFrame(rows, infer_schema_length=None)

    @property
    def metrics(self) -> polars.DataFrame:
        """One row per evaluation of each run, as in metrics.jsonl."""
        rows = [
            {"method": entry.label, "seed": entry.seed}
            | {key: value for key, value in row.items() if key not in ("staleness", "missing")}
            for entry in self._entries
            for row in entry.rows
        ]
        return polars.DataFrame(rows, infer_schema_length=None)

    def to_pandas(self) -> Any:
        """Return `table` as a pandas DataFrame; needs pandas, which this package does not install."""
        return _to_pandas(self.table)

    def plot(self, what: str = "clock_s") -> "Figure":
        """Plot the metric of all methods against the clock ("update", "epochs", "megabytes", "wall_s")."""
        from colonnade.report.notebook import race_figure

        return race_figure(self._records(), what)

    def _records(self) -> list[Any]:
        from colonnade.report.records import Record

        return [Record(entry.label, entry.summary, entry.rows) for entry in self._entries if entry.summary is not None]


class Sweep(Comparison):
    """A finished sweep: `table` has a row for each method and point of the grid, `best` the best of each method."""

    def __init__(self, entries: Sequence[Entry], labels: Sequence[str], grid: Grid, by: By) -> None:
        super().__init__(entries)
        self._grid, self._labels = grid, that_ran(entries, labels, grid)
        self._best = best_of(self._entries, self._labels, grid, by)

    def __repr__(self) -> str:
        points = (f"{best.method}: {_at(best.point)}" for best in self._best)
        return f"Sweep({len(self._entries)} runs; best {'; '.join(points) or 'none'})"

    def _repr_html_(self) -> str:
        from colonnade.report.cells import table_html

        return table_html(self.table, [best.point | {"method": best.method} for best in self._best], self.unsuitable)

    @property
    def table(self) -> polars.DataFrame:
        """One row per method and point: means over its seeds; without numbers, if `flaw` names a fault."""
        found = points_of(self._entries, self._labels, self._grid)
        rows = [
            {"method": one.method} | _readable(one.point) | _numbers(one.scored) | {"flaw": one.flaw} for one in found
        ]
        return polars.DataFrame(rows, infer_schema_length=None, strict=False)

    @property
    def best(self) -> polars.DataFrame:
        """The best point of each method, chosen on the rows that `chosen_on` names.

        `edges` has the keys whose best value is the first or last of the grid: try more values on that side.
        """
        rows = [
            {"method": best.method}
            | _readable(best.point)
            | _numbers(best)
            | {"chosen_on": best.chosen_on, "edges": ", ".join(best.edges)}
            for best in self._best
        ]
        return polars.DataFrame(rows, infer_schema_length=None, strict=False)


def compare(
    data: Partition,
    protocols: Protocols = USUAL,
    party_model: Model | Sequence[Model] | None = None,
    server_model: Model | None = None,
    *,
    seeds: int = 1,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Comparison:
    """Compare methods on the same data, stragglers and seeds.

    `protocols`: names, or {label: name} or {label: {"name": ..., its options}}; "all" means every method. Other
    settings are as for `train`; `seed` is the first of the `seeds`. With `out`, a new folder, the comparison is also
    written there, for `colonnade report`.

    A method that cannot use the models gets the nearest ones that it can use. A method that cannot run with these data
    takes no part: `unsuitable` says why.
    """
    tables, labels = _named(tables_from(party_model, server_model, **settings), protocols)
    return Comparison(_run(data, contestants(tables, labels), seeds, out, progress, party_model, server_model))


def sweep(
    data: Partition,
    grid: Mapping[str, Sequence[Any]],
    protocols: Protocols = DEFAULT_METHOD,
    party_model: Model | Sequence[Model] | None = None,
    server_model: Model | None = None,
    *,
    by: str = "metric",
    seeds: int = 1,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Sweep:
    """Run every method at every point of a grid, and choose the best on the validation rows.

    `grid`: {key: values}. Keys are those of `train` ("learning_rate", "embedding", "party_model") or dotted ones of
    a config ("protocol.t"). `by` is "metric", "loss" or "time-to-target", which needs `target=`.
    """
    tables, labels = _named(tables_from(party_model, server_model, **settings), protocols)
    wanted, dotted = check_by(by, tables), _checked_grid(grid)
    labels = expanded(tables, labels)
    racing = grid_contestants(tables, labels, dotted)
    return Sweep(_run(data, racing, seeds, out, progress, party_model, server_model), labels, dotted, wanted)


def _named(tables: dict[str, Any], protocols: Protocols) -> tuple[dict[str, Any], list[str]]:
    """Return the tables, with [methods] for methods that have their own label, and all labels."""
    if isinstance(protocols, str):
        return tables, [protocols]
    if not isinstance(protocols, Mapping):
        return tables, list(protocols)
    methods = {}
    for label, one in protocols.items():
        fields = {"name": one} if isinstance(one, str) else dict(one)
        methods[label] = {f"protocol.{key}": value for key, value in fields.items()}
    return tables | {"methods": methods}, list(methods)


def _checked_grid(grid: Mapping[str, Sequence[Any]]) -> Grid:
    dotted: Grid = {}
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"grid[{key!r}]", values, "must be a list of values, e.g. [0.01, 0.03, 0.1]")
        if len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"grid[{key!r}]", list(values), "names a value twice")
        dotted[key if "." in key else _OF_MODEL.get(key, f"train.{key}")] = list(values)
    if not dotted:
        raise ConfigError("grid", {}, 'name at least one key, e.g. {"learning_rate": [0.01, 0.03, 0.1]}')
    return dotted


def _run(
    data: Partition,
    racing: Sequence[Contestant],
    seeds: int,
    out: str | Path | None,
    progress: bool,
    party: Any,
    server: Any,
) -> list[Entry]:
    entries = entries_of(racing, seeds)
    for entry in entries:  # the tables cannot hold modules and callables
        entry.config = with_models(entry.config, *_objects(entry.config, party, server))
    if out is not None:  # a folder does not record which rows its runs used, so no earlier run is reused
        RunFolder.refuse_used(out)
    folder = None if out is None else Path(out)
    if not progress:
        return race(entries, folder, load=lambda _: data)
    from colonnade.cli.progress_bars import RaceBoard

    with RaceBoard() as board:
        return race(entries, folder, board.show, load=lambda _: data)


def _objects(config: Config, party: Any, server: Any) -> tuple[Any, Any]:
    """Return the user's modules and callables; model names are already fitted to the method, and stay."""
    several = isinstance(party, list | tuple) and not all(isinstance(one, str) for one in party)
    own = several or (party is not None and not isinstance(party, str | list | tuple))
    return party if own else config.model.party, config.model.server if server is None else server


def _at(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} = {value}" for key, value in point.items())


def _readable(point: Mapping[str, Any]) -> dict[str, Any]:
    """Keep numbers and texts, turn tables and lists into text: a DataFrame column has one type."""
    plain = (int, float, str, bool)
    return {key: value if isinstance(value, plain) else str(value) for key, value in point.items()}


def _numbers(best: Best | None) -> dict[str, Any]:
    found = {} if best is None else best._asdict()
    return {name: found.get(name) for name in ("validation", "test", "loss", "reached", "seeds", "time_s")}


def _to_pandas(frame: polars.DataFrame) -> Any:
    try:
        return frame.to_pandas()
    except ModuleNotFoundError as error:
        raise ConfigError("to_pandas", error.name, "is not installed; type: pip install pandas pyarrow") from None
