"""MLflow, TensorBoard and Weights & Biases, each behind the same three functions.

The packages are the extra `track`, and are imported when a run begins. Everything that they would collect by themselves
(the user's name, the host's, paths, git remotes, installed packages, console output) is switched off.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

__all__ = ["PACKAGES", "TRACKERS", "Opening", "Tracker"]

PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboard", "wandb": "wandb"}  # the module that each needs


@dataclass(frozen=True, slots=True)
class Opening:
    """What a tracker is told about a run."""

    project: str
    name: str
    settings: Mapping[str, str]
    folder: Path  # where a tracker may write its own files
    id: str | None = None  # of the run at the tracker, if this start continues an earlier one


class Tracker(Protocol):
    """One run at one tracker."""

    @property
    def id(self) -> str | None:
        """The id with which a later start continues the run."""

    def row(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of one line of metrics.jsonl; `step` is the update."""

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        """Send the last numbers; `status` is finished, diverged, stalled or stopped."""


class Mlflow:
    """MLflow through its client: the fluent functions would add the user's name and the script's path as tags."""

    def __init__(self, opening: Opening) -> None:
        mlflow: Any = import_module("mlflow")
        entities: Any = import_module("mlflow.entities")
        self._metric, self._client = entities.Metric, mlflow.MlflowClient()
        if opening.id is not None:
            self.id = opening.id
            self._client.update_run(self.id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(opening.project)
        experiment = self._client.create_experiment(opening.project) if found is None else found.experiment_id
        self.id = self._client.create_run(experiment, run_name=opening.name).info.run_id
        params = [entities.Param(key, value) for key, value in opening.settings.items()]
        self._client.log_batch(self.id, params=params)

    def row(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send all numbers in one batch."""
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in numbers.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        """Mark the end; a run that was stopped can continue later."""
        self.row(int(numbers.get("final/updates", 0)), numbers)
        self._client.set_tag(self.id, "colonnade.status", status)
        words = {"finished": "FINISHED", "stopped": "KILLED"}
        self._client.set_terminated(self.id, words.get(status, "FAILED"))


class TensorBoard:
    """An event file in the run's folder; a continued run adds another. Its name does not contain the host's."""

    id = None

    def __init__(self, opening: Opening) -> None:
        events: Any = import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        writer: Any = import_module("tensorboard.summary.writer.record_writer")
        self._event, self._summary = events.Event, summaries.Summary
        folder = opening.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _fresh_file(folder)
        self._records = writer.RecordWriter(self._file)
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def row(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        self.row(int(numbers.get("final/updates", 0)), numbers)
        self._file.close()


def _fresh_file(folder: Path) -> BinaryIO:
    """Create the file with the next number; another process may take one at the same time."""
    number = len(list(folder.iterdir()))
    while True:
        try:
            return (folder / f"events.out.tfevents.{number:04d}.colonnade").open("xb")
        except FileExistsError:
            number += 1


class WandB:
    """Online, offline or disabled, as WANDB_MODE says."""

    def __init__(self, opening: Opening) -> None:
        wandb: Any = import_module("wandb")
        private = wandb.Settings(
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            disable_git=True,
            disable_code=True,
            save_code=False,
            console="off",
            silent=True,
            host="",
            username="",
            program="",
        )
        opening.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=opening.project,
            name=opening.name,
            config=dict(opening.settings),
            dir=str(opening.folder),
            id=opening.id,
            resume="allow" if opening.id is not None else None,
            reinit="create_new",
            settings=private,
        )
        self.id = str(self._run.id)

    def row(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def end(self, status: str, numbers: Mapping[str, float]) -> None:
        """Write the last numbers as the run's summary there."""
        self._run.summary.update({**numbers, "status": status})
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)


TRACKERS: dict[str, Callable[[Opening], Tracker]] = {"mlflow": Mlflow, "tensorboard": TensorBoard, "wandb": WandB}
