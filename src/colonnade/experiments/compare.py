"""A comparison: the same data, stragglers and seeds for every method. A failed run is reported, the others continue.

A method that cannot use the configured model gets the nearest one that it can use (config/fitting.py). A method that
cannot run on these data or with these settings takes no part, and the reason is kept.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms import METHODS, find_method
from colonnade.algorithms.registry import installed
from colonnade.config.fitting import fitted
from colonnade.config.resolve import load_partition, scale_of
from colonnade.config.schema import Config, DataConfig, apply_overrides, from_dict, to_dict
from colonnade.config.settle import settled
from colonnade.data import Partition
from colonnade.drivers.files import CUT_OFF_S, lock_file
from colonnade.drivers.tasks import in_turn
from colonnade.experiments.ranking import Ranking, by_reason, rank
from colonnade.experiments.run import RAY, Run, Standing, check_workers, prepare, reopen
from colonnade.protocol.errors import ColonnadeError, ConfigError, DataError, ModelError
from colonnade.protocol.strict_json import to_json
from colonnade.results.folder import RunFolder, note_command
from colonnade.results.summary import Summary

__all__ = [
    "ALL",
    "Contestant",
    "Entry",
    "OnProgress",
    "compare",
    "contestants",
    "entries_of",
    "expanded",
    "is_race",
    "kept_partition",
    "race",
    "ranking_of",
    "unsuitable",
    "usual_labels",
]

COMPARISON = "comparison.json"
UNSUITABLE = "unsuitable.json"  # label → why it takes no part
ABOUT = "about.txt"  # a sentence about the comparison, for its report
ALL = "all"  # as a label: every method
USUAL = ("swift", "vafl", "t-sync", "sync")  # asynchronous, in between, and waiting for every party
NOTHING = {"clock_s": 0.0, "wall_s": 0.0, "update": 0, "epochs": 0.0, "value": None}  # progress before the first line
Outcome = tuple[Summary, list[dict[str, Any]]] | str  # summary and rows, or what went wrong
Load = Callable[[Config], Partition]
Key = tuple[DataConfig, str | None]  # what is loaded, and how its columns are scaled


@dataclass(slots=True)
class Entry:
    """One run of the comparison: its config, later its results."""

    label: str
    seed: int
    config: Config
    summary: Summary | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    adapted: dict[str, str] = field(default_factory=dict)  # dotted key → what replaces the configured value
    unsuitable: str = ""  # why it takes no part

    @property
    def folder(self) -> str:
        """Name of the run's folder inside the comparison."""
        return f"{self.label}-seed{self.seed}"

    @property
    def remarks(self) -> list[str]:
        """What a reader of the numbers must know, beside the error."""
        if self.summary is None:
            return []
        note = self.summary["note"]
        return [*self.summary.get("warnings", ()), *([note] if note and not self.error else [])]

    def take(self, outcome: Outcome) -> None:
        """Store the result of the run, or its error."""
        if isinstance(outcome, str):
            self.error = outcome
            return
        summary, self.rows = outcome
        self.summary = {"label": self.label, **summary}
        if self.adapted:
            self.summary["adapted"] = self.adapted
        if summary["status"] != "finished":
            self.error = summary["note"] or summary["status"]


OnProgress = Callable[[list[Entry], Entry, Standing | None], None]  # None: the run has ended


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method of the comparison with its own overrides."""

    label: str
    tables: dict[str, Any]
    own: frozenset[str] = frozenset()  # the dotted keys of those overrides


def contestants(tables: Mapping[str, Any], labels: Sequence[str]) -> list[Contestant]:
    """Return the contestants; a label is a method, or a name under [methods] whose overrides set `protocol.name`."""
    labels = expanded(tables, labels)
    overrides = {label: _dotted(fields) for label, fields in tables.get("methods", {}).items()}
    names = {label: overrides.get(label, {}).get("protocol.name", label) for label in labels}
    if not labels:
        raise ConfigError("--protocols", "", f"name at least one of: {', '.join(METHODS)}; or {ALL!r}")
    if len(names) < len(labels):
        raise ConfigError("--protocols", ",".join(labels), "names a method twice")
    known = {label: _option_names(name) for label, name in names.items()}
    shared = dict(tables.get("protocol", {}))
    shared.pop("name", None)
    for key, value in shared.items():
        if not any(key in keys for keys in known.values()):
            raise ConfigError(f"protocol.{key}", value, f"no method of {', '.join(labels)} has this key")
    result = []
    for label in labels:
        fields = {key: value for key, value in shared.items() if key in known[label]}
        base = {key: value for key, value in tables.items() if key != "methods"}
        base["protocol"] = {"name": names[label], **fields}
        own = overrides.get(label, {})
        result.append(Contestant(label, apply_overrides(base, own), frozenset(own)))
    return result


def usual_labels(tables: Mapping[str, Any]) -> list[str]:
    """Return the labels if the user names none: those that the config names, and the usual ones."""
    named = tables.get("protocol", {}).get("name")
    return list(dict.fromkeys((*([named] if named else []), *tables.get("methods", {}), *USUAL)))


def expanded(tables: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    """Replace "all" by every method, those of installed packages and of [methods] included."""
    own = tables.get("methods", {})
    if ALL not in labels or ALL in own:
        return list(labels)
    known = dict.fromkeys((*METHODS, *installed().methods, *own))
    place, others = list(labels).index(ALL), [label for label in labels if label != ALL]
    return [*others[:place], *(label for label in known if label not in others), *others[place:]]


def _dotted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten to dotted keys: `train.learning_rate = 0.03` without quotes is a table in TOML, and the same override."""
    result: dict[str, Any] = {}
    for key, value in fields.items():
        section = isinstance(value, dict) and "." not in key
        result |= {f"{key}.{name}": item for name, item in value.items()} if section else {key: value}
    return result


def _option_names(method: str) -> set[str]:
    return {option.name for option in msgspec.structs.fields(find_method(method).options)}


def compare(
    tables: Mapping[str, Any],
    labels: Sequence[str],
    seeds: int,
    out: str | Path,
    on_progress: OnProgress | None = None,
    command: str = "",
) -> list[Entry]:
    """Run every contestant with every seed; writes a folder for each, comparison.json and, if given, the command."""
    return race(entries_of(contestants(tables, labels), seeds), Path(out), on_progress, command)


def race(
    entries: list[Entry],
    out: Path | None,
    on_progress: OnProgress | None = None,
    command: str = "",
    workers: int | str = 1,
    about: str = "",
    load: Load | None = None,
) -> list[Entry]:
    """Run what the folder does not hold yet: finished runs are read, interrupted ones continue.

    Without a folder, run all.

    Entries of methods that cannot run are also returned, with the reason; if no method can run, their error is raised.
    `load` returns the data of a run; by default each config names its own. With more than one of `workers` the runs are
    in that many processes, and each process calls `load` itself: a function of a module. With "ray" they are tasks of
    the Ray cluster to which this process is connected. `about` is a sentence for the report. After Ctrl-C
    the runs in progress have checkpoints (not on Ray); raises KeyboardInterrupt.
    """
    check_workers(workers)
    if out is not None:
        _read_folder(out, entries)
    own = load or _Partitions().of
    _sort_out(entries, own)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        _write(out, entries)
        (out / UNSUITABLE).write_text(to_json(unsuitable(entries), indent=2) + "\n", encoding="utf-8")
        if command:
            note_command(out, command)
        if about:
            (out / ABOUT).write_text(about + "\n", encoding="utf-8")
    racing = [entry for entry in entries if not entry.unsuitable]
    todo = [entry for entry in sorted(racing, key=lambda entry: entry.seed) if entry.summary is None]
    show = on_progress or _show_nothing
    for entry in racing:
        if entry.summary is not None:
            show(racing, entry, None)
    if workers == RAY or (isinstance(workers, int) and min(workers, len(todo)) > 1):
        assert out is not None  # where the runs write their results
        _race_elsewhere(racing, todo, out, show, workers, load)
        return entries
    for entry in todo:
        watch = partial(_show_run, show, racing, entry)
        entry.take(_outcome(entry.config, out / entry.folder if out is not None else None, own, watch))
        if out is not None:
            _write(out, racing)
        show(racing, entry, None)
    return entries


def is_race(folder: Path) -> bool:
    """Whether this folder holds a comparison, finished or not."""
    return (folder / COMPARISON).is_file()


def _sort_out(entries: Sequence[Entry], load: Load) -> None:
    """Mark the methods that cannot run, before the first long run; raises their error if none can."""
    errors: dict[str, ColonnadeError] = {}
    for entry in entries:
        if entry.seed == entries[0].seed and entry.summary is None:
            try:
                prepare(entry.config, None, None, load)
            except (ConfigError, DataError, ModelError) as error:
                errors[entry.label] = error
    reasons = {label: str(error) for label, error in errors.items()}
    for entry in entries:
        if entry.summary is None:
            entry.unsuitable = reasons.get(entry.label, "")
    if not all(entry.unsuitable for entry in entries):
        return
    groups = by_reason(reasons)
    if len(groups) == 1:  # the error is in the config, not in the methods
        raise next(iter(errors.values()))
    listed = "".join(f"\n  {', '.join(labels)}: {reason}" for reason, labels in groups.items())
    raise ConfigError("--protocols", ",".join(reasons), f"no method can run with these data and settings:{listed}")


def ranking_of(entries: Sequence[Entry]) -> Ranking:
    """Rank the finished runs of the methods that take part."""
    groups: dict[str, list[Summary | None]] = {}
    for entry in entries:
        if not entry.unsuitable:
            groups.setdefault(entry.label, []).append(entry.summary)
    return rank(groups)


def unsuitable(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the methods that take no part: label → reason."""
    return {entry.label: entry.unsuitable for entry in entries if entry.unsuitable}


def _show_run(show: OnProgress, entries: list[Entry], entry: Entry, run: Run) -> None:
    show(entries, entry, run.standing)


def _race_elsewhere(
    entries: list[Entry], todo: list[Entry], out: Path, show: OnProgress, workers: int | str, load: Load | None
) -> None:
    """Run the entries in other processes, of this machine or of Ray; reads their progress from their folders."""
    metrics = {entry.folder: out / entry.folder / "metrics.jsonl" for entry in todo}
    before = {name: _touched(path) for name, path in metrics.items()}
    running = list(todo)
    with closing(_ends_of(todo, out, workers, load)) as ends:
        for ended in ends:
            if ended is not None:
                index, outcome = ended
                todo[index].take(outcome)
                running.remove(todo[index])
                _write(out, entries)
                show(entries, todo[index], None)
            for entry in running:
                if _touched(metrics[entry.folder]) in (None, before[entry.folder]):
                    continue  # not started
                with suppress(FileNotFoundError):  # the folder is being made again
                    rows = RunFolder(out / entry.folder).rows()
                    show(entries, entry, Standing.of(settled(entry.config).train, rows[-1] if rows else NOTHING))


def _ends_of(
    todo: list[Entry], out: Path, workers: int | str, load: Load | None
) -> Generator[tuple[int, Outcome] | None]:
    """Yield the index and the outcome of each run as it ends, and None from time to time."""
    calls = [(to_dict(one.config), str((out / one.folder).resolve()), load) for one in todo]
    if isinstance(workers, int):
        yield from in_turn(_run_in_process, calls, workers)
        return
    from colonnade.drivers.ray.nodes import refuse_unshared  # noqa: PLC0415 - an extra
    from colonnade.drivers.ray.tasks import in_turn as in_turn_on_ray  # noqa: PLC0415

    if todo:
        refuse_unshared((out / COMPARISON).resolve())
    yield from in_turn_on_ray(_run_on_ray, calls)


def _touched(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def _run_in_process(tables: dict[str, Any], folder: str, load: Load | None) -> Outcome:
    return _outcome(from_dict(tables), Path(folder), load or kept_partition, lambda run: None)


def kept_partition(config: Config) -> Partition:
    """Load the data of a run, or return those of this process's last run if they are the same."""
    return _own_partitions().of(config)


@cache
def _own_partitions() -> "_Partitions":
    return _Partitions()


def _run_on_ray(tables: dict[str, Any], folder: str, load: Load | None) -> Outcome:
    """Run as a task of Ray; a second try, after a node was lost, waits for the first and then continues its run."""
    path = Path(folder)
    lock = lock_file(path.with_name(f".{path.name}.lock"), CUT_OFF_S)
    try:
        if (path / "summary.json").is_file():  # the first try finished, only its answer was lost
            return _finished(RunFolder(path))
        return _outcome(from_dict(tables), path, load or load_partition, lambda run: None)
    finally:
        os.close(lock)


def _read_folder(out: Path, entries: Sequence[Entry]) -> None:
    """Read what an earlier command did of this comparison; refuses a folder that holds anything else."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not is_race(out))):
        raise ConfigError("--out", str(out), "exists and is not empty: choose another folder")
    for entry in entries:
        _read_finished(entry, out)


def _read_finished(entry: Entry, out: Path) -> None:
    path = out / entry.folder
    if not (path / "summary.json").is_file():
        return
    entry.take(_finished(RunFolder.reopen(path, entry.config)))


def _finished(folder: RunFolder) -> Outcome:
    return json.loads((folder.path / "summary.json").read_text(encoding="utf-8")), folder.rows()


def _show_nothing(entries: list[Entry], entry: Entry, at: Standing | None) -> None:
    pass


def entries_of(contestants: Sequence[Contestant], seeds: int) -> list[Entry]:
    """Return each contestant with this many seeds, counted from the configured one."""
    if seeds < 1:
        raise ConfigError("--seeds", seeds, "must be 1 or more")
    first = from_dict(contestants[0].tables).train.seed
    entries = []
    for contestant in contestants:
        suited = fitted(from_dict(contestant.tables), contestant.own)
        for seed in range(first, first + seeds):
            train = msgspec.structs.replace(suited.config.train, seed=seed)
            config = msgspec.structs.replace(suited.config, train=train)
            entries.append(Entry(contestant.label, seed, config, adapted=suited.changes))
    return entries


class _Partitions:
    """Keeps the data of the last run, for the next run that needs the same."""

    def __init__(self) -> None:
        self._key: Key | None = None
        self._data: Partition | None = None
        self._failed: list[tuple[Key, DataError | ConfigError]] = []

    def of(self, config: Config) -> Partition:
        """Return the parties' data for this config.

        After a failure it does not load the same data again for every method.
        """
        key = (config.data, scale_of(config))
        for failed, error in self._failed:
            if failed == key:
                raise error
        if self._data is None or key != self._key:
            self._data = None  # free the old data before the new are loaded
            try:
                self._key, self._data = key, load_partition(config)
            except (DataError, ConfigError) as error:
                self._failed.append((key, error))
                raise
        return self._data


def _outcome(config: Config, path: Path | None, load: Load, on_progress: Callable[[Run], Any]) -> Outcome:
    """Run from the beginning, or continue an interrupted run."""
    try:
        if path is None:
            run = prepare(config, None, None, load)
            return run.execute(on_progress), run.rows
        begun = (path / "config.toml").is_file()
        if not begun and path.is_dir():
            shutil.rmtree(path)  # killed while the folder was being made: nothing has run
        run = reopen(config, path, load) if begun else prepare(config, None, path, load)
        summary = run.execute(on_progress)
    except ColonnadeError as error:
        return str(error)
    return summary, run.rows


def _write(out: Path, entries: list[Entry]) -> None:
    """Write comparison.json."""
    finished = [entry.summary for entry in entries if entry.summary is not None]
    (out / COMPARISON).write_text(to_json(finished, indent=2) + "\n", encoding="utf-8")
