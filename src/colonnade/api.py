"""Colonnade from Python: load, split, train, plot, predict."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
import numpy as np
import polars
from scipy.sparse import issparse
from torch import nn

from colonnade.algorithms import DEFAULT_METHOD
from colonnade.config.continuing import Continuation, used
from colonnade.config.schema import Config, from_dict
from colonnade.data import Blocks, Dataset, Partition, load
from colonnade.data import from_blocks as blocks_of
from colonnade.data import split as split_dataset
from colonnade.data.frames import PandasFrame, is_frame
from colonnade.experiments.run import Run
from colonnade.experiments.run import prepare as prepare_run
from colonnade.models.precision import FULL
from colonnade.predict.in_one_place import predict_in_one_place
from colonnade.privacy.guard import Guard
from colonnade.privacy.ledger import earlier_of
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.results.summary import Summary
from colonnade.results.trained import find_run

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["Model", "Result", "from_blocks", "prepare", "split", "tables_from", "train", "with_models"]

Model = str | nn.Module | Callable[[Any, int], nn.Module]  # called with inputs or shape, and outputs


def split(
    data: "Dataset | polars.DataFrame | PandasFrame",
    parties: int | None = None,
    how: str | Mapping[str, Sequence[str] | float] = "even",
    *,
    label: str | None = None,
    id: str | None = None,
    categorical: Sequence[str] = (),
    like: "Result | str | Path | None" = None,
    **settings: Any,
) -> Partition:
    """Give each party its columns.

    `how`: "even", "views", "rows", "columns", "quarters", {name: [columns]}, {"importance": 0.1} or
    {"correlation": 0.5}.

    `data` is what `load` returns, or a DataFrame of polars or pandas, with the name of its `label` column. Further
    settings are `scale`, `missing`, `test_fraction`, `validation_fraction` and `split_seed`.

    `like` is an earlier result, or its folder: columns that it has are encoded and scaled as there, which a run that
    continues it needs.
    """
    if is_frame(data):
        data = load(data, label=label, id=id, categorical=categorical)
    elif not isinstance(data, Dataset):
        advice = (
            "pass the result of load, or a DataFrame with label=; for arrays use from_arrays; for one table per "
            "party use"
        )
        raise ConfigError("data", type(data).__name__, f"{advice} from_blocks")
    elif label is not None or id is not None or categorical:
        raise ConfigError(
            "label",
            label,
            "label, id and categorical are for a DataFrame; leave them out, because this dataset has its own",
        )
    return split_dataset(data, parties=parties, how=how, before=used(_continuation(like)), **settings)


def from_blocks(blocks: Blocks, y: Any, *, like: "Result | str | Path | None" = None, **settings: Any) -> Partition:
    """Make a partition from one table per party, and the labels: `from_blocks({"bank": frame, "shop": array}, y)`.

    `like` as in `split`. Further settings are `categorical` and those of `split`.
    """
    return blocks_of(blocks, y, before=used(_continuation(like)), **settings)


class Result:
    """A finished run: its summary, metrics and plots, and predictions with its model."""

    def __init__(self, run: Run, summary: Summary) -> None:
        self._run, self.summary = run, summary
        self._questions = 0

    def __repr__(self) -> str:
        value, metric = self.summary["value"], self.summary["metric"]
        ended = f"{self.summary['protocol']}: {self.summary['status']}, {metric} " + (
            "–" if value is None else f"{value:.4f}"
        )
        return f"Result({'; '.join([ended, *self.warnings])})"

    def _repr_html_(self) -> str:
        from colonnade.report.cells import summary_html

        return summary_html(self.summary)

    @property
    def warnings(self) -> list[str]:
        """Why the run's numbers are not a result, in sentences; [] if they are."""
        return self.summary["warnings"]

    @property
    def metrics(self) -> polars.DataFrame:
        """One row per evaluation."""
        rows = [
            {key: value for key, value in row.items() if key not in ("staleness", "missing")} for row in self._run.rows
        ]
        return polars.DataFrame(rows, infer_schema_length=None)  # the last row has keys that the others lack

    def plot(self, what: str = "clock_s") -> "Figure":
        """Plot the metric against the clock, or another figure of the report.

        `what` may also be "update", "epochs", "megabytes" or "wall_s" in place of the clock. The other figures are
        "loss", "timeline", "staleness" (party × clock), "ages" (their histogram), "utilisation", "bytes".
        """
        from colonnade.report.notebook import figure  # plotly takes a while to import
        from colonnade.report.records import Record

        run = self._run
        return figure(Record(self.summary["protocol"], self.summary, run.rows, run.timeline(), run.staleness()), what)

    def export(self, folder: str | Path, onnx: bool = False) -> list[Path]:
        """Write every member's network as safetensors and JSON, which plain torch can read; `onnx` adds ONNX files."""
        from colonnade.results.export import export_members

        run = str(self.summary["weights_sha256"])
        return export_members(self.continuation().members.values(), run, Path(folder), onnx)

    def continuation(self) -> Continuation:
        """Return what a run with `continue_from` takes over from this one."""
        run, guards = self._run, {node.role.name: node.guard for node in self._run.simulator.nodes}
        if self.summary["status"] != "finished" or not (members := run.members()):
            raise ConfigError("continue_from", self.summary["status"], "only a finished run has networks to start from")
        folder = "" if run.folder is None else run.folder.path.resolve().name
        spent = {name: earlier_of(one.ledger.account, one.ledger.head) for name, one in guards.items() if _counts(one)}
        return Continuation(folder, str(self.summary["weights_sha256"]), {one.name: one for one in members}, spent)

    def predict(self, x: Any) -> np.ndarray:
        """Return class probabilities (or values, for regression) for raw rows.

        `x` is an array of all columns, a table with column names (a DataFrame, {column: values}, [{column: value}]), or
        one array or DataFrame per party, in a list or in a dict by the parties' names.

        If uploads are perturbed, so is every prediction: each call is one more release, and equal rows of one call get
        the same noise.
        """
        data = self._run.federation.data
        columns = {name for held in data.columns for name in held}
        if isinstance(x, Mapping) and x.keys() == set(data.parties) != columns:
            x = [x[name] for name in data.parties]
        of_each = isinstance(x, list | tuple) and not all(isinstance(row, Mapping) for row in x)
        blocks = _of_each(data, x) if of_each else data.blocks(x)
        self._questions += 1
        setting, roles = self._run.federation, [node.role for node in self._run.simulator.nodes]
        return predict_in_one_place(setting.method, setting.options, data.task, roles, blocks, self._questions)


def _counts(guard: Any) -> "TypeGuard[Guard]":
    return isinstance(guard, Guard) and guard.on


def _continuation(before: "Result | str | Path | None") -> Continuation | None:
    if before is None or isinstance(before, Result):
        return None if before is None else before.continuation()
    return find_run(Path(before))


def _of_each(data: Partition, blocks: Sequence[Any]) -> list[np.ndarray]:
    if len(blocks) != len(data.parties):
        raise ColonnadeError(f"predict: {len(blocks)} blocks for {len(data.parties)} parties")
    dense = (block.toarray() if issparse(block) else block for block in blocks)
    return [data.block(place, block) for place, block in enumerate(dense)]


def prepare(
    data: Partition,
    protocol: str | Mapping[str, Any] = DEFAULT_METHOD,
    party_model: Model | Sequence[Model] | None = None,
    server_model: Model | None = None,
    *,
    embedding: int | Sequence[int] | None = None,
    aggregate: str | None = None,
    device: str | Mapping[str, Any] = "cpu",
    precision: str = FULL,
    clock: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    track: Sequence[str] | Mapping[str, Any] = (),
    out: str | Path | None = None,
    continue_from: "Result | str | Path | None" = None,
    drop_columns: Sequence[str] = (),
    **train: Any,
) -> Run:
    """Make a run that is ready to start; see `train`."""
    fields = {"name": protocol} if isinstance(protocol, str) else dict(protocol)
    shared = tables_from(
        embedding=embedding,
        aggregate=aggregate,
        device=device,
        precision=precision,
        clock=clock,
        privacy=privacy,
        track=track,
        **train,
    )
    config = from_dict(shared | {"protocol": fields, "party": {"drop_columns": list(drop_columns)}})
    models = with_models(config, party_model, server_model)
    return prepare_run(models, data, out, before=_continuation(continue_from))


def tables_from(
    party_model: Model | Sequence[Model] | None = None,
    server_model: Model | None = None,
    *,
    embedding: int | Sequence[int] | None = None,
    aggregate: str | None = None,
    device: str | Mapping[str, Any] = "cpu",
    precision: str = FULL,
    clock: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    track: Sequence[str] | Mapping[str, Any] = (),
    **train: Any,
) -> dict[str, Any]:
    """Return the settings of `train` as tables of a config, without [protocol]; only models that have names."""
    width = list(embedding) if isinstance(embedding, Sequence) else embedding
    parties = list(party_model) if isinstance(party_model, list | tuple) else party_model
    named = isinstance(parties, str) or (isinstance(parties, list) and all(isinstance(one, str) for one in parties))
    model: dict[str, Any] = {"embedding": width, "aggregate": aggregate, "device": device, "precision": precision}
    model |= {"party": parties} if named else {}
    model |= {"server": server_model} if isinstance(server_model, str) else {}
    return {
        "model": model,
        "clock": dict(clock or {}),
        "train": train,
        "privacy": dict(privacy or {}),
        "track": dict(track) if isinstance(track, Mapping) else {"to": list(track)},
    }


def with_models(config: Config, party: Any, server: Any) -> Config:
    """Put the models into the config after its checks: TOML cannot hold modules and callables."""
    party = list(party) if isinstance(party, list | tuple) else party
    for model in (*(party if isinstance(party, list) else [party]), server):
        if not (model is None or isinstance(model, str) or callable(model)):
            raise ConfigError("party_model or server_model", model, "give a name, a torch module or a callable")
    model = msgspec.structs.replace(config.model, party=party, server=server)
    return msgspec.structs.replace(config, model=model)


def train(
    data: Partition,
    protocol: str | Mapping[str, Any] = DEFAULT_METHOD,
    party_model: Model | Sequence[Model] | None = None,
    server_model: Model | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Train in the simulator.

    `protocol` is a method's name or {"name": ..., its options}. Models are names, torch modules or callables (inputs,
    outputs) or (shape, outputs) -> module, one for all parties or a list. Further settings are `embedding`,
    `aggregate`, `device`, `precision`, `clock`, `privacy`, `track` (["mlflow"]), `out` and the keys of `[train]`, e.g.
    `epochs=20`.
    Settings that are left out have the method's defaults.

    `continue_from` is an earlier result, or its folder: training starts from its networks. Make `data` with
    `split(..., like=...)`. `drop_columns` names columns of the earlier run that are gone.
    """
    run = prepare(data, protocol, party_model, server_model, **settings)
    if not progress:
        return Result(run, run.execute())
    from colonnade.cli.progress_bars import run_with_bar

    return Result(run, run_with_bar(run))
