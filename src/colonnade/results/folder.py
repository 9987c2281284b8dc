"""A run's folder: config.toml, metrics.jsonl, summary.json, timeline.json, staleness.json, checkpoint.safetensors."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from colonnade.config.continuing import Continuation
from colonnade.config.schema import Config, apply_overrides, difference, from_dict, read_toml, to_dict
from colonnade.config.settle import settled
from colonnade.drivers.checkpoints import Checkpoints
from colonnade.drivers.files import replace_file
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.protocol.role import Histogram
from colonnade.protocol.strict_json import to_json
from colonnade.results.summary import Summary
from colonnade.results.trained import CONTINUED, keep_continuation

__all__ = ["RunFolder", "note_command", "tables_of"]

FORMAT = 7


def note_command(folder: Path, command: str) -> None:
    """Append to command.txt the command that made the folder; a resumed run has a line for every start."""
    with (folder / "command.txt").open("a", encoding="utf-8") as file:
        file.write(command + "\n")


def tables_of(folder: Path) -> dict[str, Any]:
    """Read config.toml of a run, which may be of an earlier release.

    Without `data.split_seed`, `train.seed` chose the test rows; without `data.validation_fraction`, there were no
    validation rows.
    """
    tables = read_toml(folder / "config.toml")
    before = {"data.split_seed": tables.get("train", {}).get("seed", 0), "data.validation_fraction": 0.0}
    known = tables.get("data", {})
    return apply_overrides(tables, {key: old for key, old in before.items() if key.partition(".")[2] not in known})


class RunFolder:
    """The folder that a run writes; a file is always replaced in one rename."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = path / "metrics.jsonl"
        self._checkpoints = Checkpoints(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, before: Continuation | None = None) -> "RunFolder":
        """Create a new folder; an existing one must be empty. `before`: the run that this one continues."""
        path = Path(path)
        cls.refuse_used(path)
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        folder._metrics.touch()
        (path / CONTINUED).unlink(missing_ok=True)  # `up` gives the server its own before this folder is made
        keep_continuation(path, before)
        folder._replace("config.toml", [tomli_w.dumps(to_dict(config)).encode()])  # last: with it, --resume works
        return folder

    @staticmethod
    def refuse_used(path: str | Path) -> None:
        """Raise ConfigError if a new run cannot use this folder."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(one.name != CONTINUED for one in path.iterdir())):
            raise ConfigError(
                "--out", str(path), "exists and is not empty: choose another folder, or continue its run with --resume"
            )

    @classmethod
    def reopen(cls, path: str | Path, config: Config) -> "RunFolder":
        """Open an existing run's folder; raises CheckpointError if it belongs to another config."""
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise CheckpointError(f"--resume {path}: this folder holds no run (config.toml is missing)")
        there, here = to_dict(settled(from_dict(tables_of(path)))), to_dict(settled(config))
        for key in {"batch_size", "patience"} - (here["train"].keys() & there["train"].keys()):
            here["train"].pop(key, None)  # if one config leaves it open, it follows from the number of rows
            there["train"].pop(key, None)
        differs = difference(there, here)
        if differs:
            raise CheckpointError(
                f"{path}: that run has another config ({differs}); start a new one with --out, "
                f"or continue with {path}/config.toml"
            )
        return cls(path)

    def append(self, row: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(to_json(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl; a line cut off by a crash is left out."""
        lines = self._metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def cut_back(self, count: int) -> list[dict[str, Any]]:
        """Keep the first `count` rows: those that the checkpoint includes."""
        rows = self.rows()[:count]
        self._replace("metrics.jsonl", [(to_json(row) + "\n").encode() for row in rows])
        return rows

    def record(self) -> Summary | None:
        """Return the summary of a run that is over; None if it can continue, as a stalled run of processes can."""
        path = self.path / "summary.json"
        if not path.is_file():
            return None
        found: Summary = json.loads(path.read_text(encoding="utf-8"))
        return None if found["status"] == "stalled" and found["driver"] != "sim" else found

    def write_summary(self, summary: Mapping[str, object]) -> None:
        self._replace("summary.json", [to_json(summary, indent=2).encode() + b"\n"])

    def write_figures(self, timeline: dict[str, Any], staleness: Histogram) -> None:
        """Write timeline.json and staleness.json, which only figures need."""
        for name, content in (("timeline.json", timeline), ("staleness.json", staleness)):
            self._replace(name, [to_json(content, compact=True).encode() + b"\n"])

    def save_checkpoint(self, content: dict[str, Any]) -> None:
        """Write a checkpoint and keep the one before it; if the process is killed, the newest is complete."""
        self._checkpoints.write({"format": FORMAT, **content})

    def recover(self, load: Callable[[dict[str, Any]], None]) -> bool:
        """Load the newest checkpoint that is whole; False if the run was killed before its first.

        `load` is called again, with the checkpoint before, if it raises DamagedFile.
        """
        return self._checkpoints.recover(lambda path, content: load(_of_this_release(path, content)))

    @property
    def damaged(self) -> list[str]:
        """What `recover` found damaged; each entry names its file."""
        return self._checkpoints.damaged

    def _replace(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        replace_file(self.path / name, chunks)


def _of_this_release(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    if content.get("format") != FORMAT:
        advice = "continue with the release that started the run, or start a new run with another --out"
        raise CheckpointError(f"{path}: format {content.get('format')}, this release reads {FORMAT}; {advice}")
    return content
