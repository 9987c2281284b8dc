"""`[track]`: send the lines of metrics.jsonl to MLflow, TensorBoard or Weights & Biases during the run.

A separate thread sends them, so neither the simulator nor a server's event loop waits for a network. A tracker that
fails is given up and named in the run's note; the training continues.

Only listed values are sent: numbers of the evaluations, sizes and the settings of `settings_of`. They include no id,
row, label, name of a party or column, path or address.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.config.schema import Config, TrackConfig, to_dict
from colonnade.data.catalogue import CATALOGUE
from colonnade.drivers.files import replace_file
from colonnade.extras import require_extra
from colonnade.models.metrics import METRICS
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.foreign import harmless
from colonnade.protocol.strict_json import to_json
from colonnade.results.places import RUNS
from colonnade.results.trackers import PACKAGES, TRACKERS, Opening, Tracker

__all__ = ["Tracking", "check_track", "numbers_of", "settings_of"]

IDS = "track.json"  # in the run's folder: the run's id at each tracker, for a later start
FAREWELL_S = 60.0
LONGEST = 250  # characters of a setting

_OF_ROW = [
    "clock_s", "wall_s", "epochs", "value", "accuracy", "loss", "train_loss", "bytes_up", "bytes_down", "test_value",
    "test_accuracy", "test_loss", "training_value", "training_accuracy", "objective", "gradient_norm2",
]  # fmt: skip
_OF_ROW += [f"{of}{name}" for name in METRICS if name not in _OF_ROW for of in ("", "test_", "training_")]
_OF_SUMMARY = ("value", "accuracy", "loss", "validation_value", "validation_loss", "updates", "epochs", "clock_s")
_OF_DATA = ("parties", "scale", "test_fraction", "validation_fraction", "split_seed", "missing", "sparse")
_OF_CLOCK = ("kind", "mean_s", "sigma", "unit_s", "interval_s", "latency_s", "bandwidth_mbps")


def check_track(track: TrackConfig) -> None:
    """Refuse a tracker that is not installed, before anything runs."""
    require_extra("track", "track.to", *(PACKAGES[name] for name in track.to))
    if len(set(track.to)) < len(track.to):
        raise ConfigError("track.to", track.to, "names a tracker twice")


def settings_of(config: Config) -> dict[str, str]:
    """Return the settings that are sent, by their dotted keys."""
    tables = to_dict(config)
    data, clock = tables["data"], tables["clock"]
    sent: dict[str, Any] = {f"{part}.{key}": value for part in ("protocol", "model", "train", "privacy")
                            for key, value in tables[part].items()}  # fmt: skip
    sent |= {f"data.{key}": data[key] for key in _OF_DATA if key in data}
    if (source := config.data.source) is not None:  # from Python the data are passed in, and have no name
        sent["data.source"] = source if source in CATALOGUE else "(a file)"
    sent["data.split"] = config.data.split if isinstance(config.data.split, str) else "by columns"
    for part in ("compute", "network"):
        entries = clock[part] if isinstance(clock[part], list) else [clock[part]]
        sent[f"clock.{part}"] = [{key: one[key] for key in _OF_CLOCK if key in one} for one in entries]
    return {key: _text(value) for key, value in sent.items()}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl that are sent; of the parties only how many are missing."""
    found = {key: float(row[key]) for key in _OF_ROW if row.get(key) is not None}
    return found | {"missing_parties": float(len(row["missing"]))}


def _final(summary: Mapping[str, Any]) -> dict[str, float]:
    found = {f"final/{key}": float(summary[key]) for key in _OF_SUMMARY if summary.get(key) is not None}
    found |= {f"final/staleness_{key}": float(value) for key, value in summary["staleness"].items()}
    found["final/warnings"] = float(len(summary["warnings"]))
    if summary.get("time_to_target_s") is not None:
        found["final/time_to_target_s"] = float(summary["time_to_target_s"])
    if (summary.get("privacy") or {}).get("epsilon") is not None:
        found["final/epsilon"] = float(summary["privacy"]["epsilon"])
    return found


class Tracking:
    """All trackers of one run. They are opened with the first line."""

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        check_track(config.track)
        self._config, self._folder = config, folder
        self._trackers: dict[str, Tracker] = {}
        self._thread: ThreadPoolExecutor | None = None
        self.failed: dict[str, str] = {}  # tracker → why it was given up

    @property
    def note(self) -> str:
        """For the run's summary; "" if no tracker failed."""
        return "; ".join(f"tracking with {name} stopped: {why}" for name, why in self.failed.items())

    @contextmanager
    def open(self, folder: Path | None) -> Iterator[None]:
        """Enclose the run; if it is interrupted, by Ctrl-C too, the trackers are told that it was stopped."""
        self._folder = folder
        try:
            yield
        except BaseException:
            self.end("stopped")
            raise

    def row(self, row: Mapping[str, Any]) -> None:
        """Send a line of metrics.jsonl; returns at once."""
        if self._config.track.to:
            self._submit(int(row["update"]), numbers_of(row))

    def end(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Send the last numbers, close, and wait until all is sent; does nothing if no line was sent."""
        if self._thread is None:
            return
        last = self._thread.submit(self._end, status, {} if summary is None else _final(summary))
        try:
            last.result(FAREWELL_S)
        except TooLate:
            self.failed |= dict.fromkeys(self._trackers, f"it did not accept all data within {FAREWELL_S:g} s")
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = None

    # In the thread

    def _submit(self, step: int, numbers: dict[str, float]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tracking")
            self._thread.submit(self._open)
        self._thread.submit(self._send, step, numbers)

    def _open(self) -> None:
        track, ids = self._config.track, self._ids()
        for name in track.to:
            folder = self._folder or RUNS / "track"
            label = track.run or (folder.name if self._folder is not None else self._label())
            opening = Opening(track.project, label, settings_of(self._config), folder, ids.get(name))
            self._try(name, partial(self._begin, name, opening))
        if self._folder is not None:
            known = {name: tracker.id for name, tracker in self._trackers.items() if tracker.id is not None}
            replace_file(self._folder / IDS, [to_json(ids | known).encode()])

    def _begin(self, name: str, opening: Opening) -> None:
        self._trackers[name] = TRACKERS[name](opening)

    def _label(self) -> str:
        return f"{self._config.protocol.get('name', 'run')}-seed{self._config.train.seed}"

    def _ids(self) -> dict[str, str]:
        path = None if self._folder is None else self._folder / IDS
        found: dict[str, str] = json.loads(path.read_text()) if path is not None and path.is_file() else {}
        return found

    def _send(self, step: int, numbers: dict[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.row, step, numbers))

    def _end(self, status: str, numbers: dict[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.end, status, numbers))

    def _try(self, name: str, act: Callable[[], None]) -> None:
        """Catch every error of a tracker, which is foreign code and often uses a network: the training continues."""
        try:
            act()
        except Exception as error:
            self._trackers.pop(name, None)
            self.failed[name] = harmless(f"{type(error).__name__}: {error}".splitlines()[0], 200)
