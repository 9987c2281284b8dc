"""Data for a report about a config: this member's own data, and made-up rows of the right shape for the rest.

A member of a federation has its own columns or the labels, and never the rest. The rest is drawn at random: columns
that depend on each other in groups of three, and labels that follow from them. Uploads, bytes and ε do not depend on
the numbers in the rows. The success of an attack may, so each block says whether it is real.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import load_partition, method_of, parties_of, refuse_fitted, scale_of
from colonnade.config.schema import Config
from colonnade.data import Encoder, Partition, PartyShare, Scaler, ServerShare, Task
from colonnade.deployment import party_side, server_side
from colonnade.models.metrics import METRICS
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = ["ALL", "Holding", "holding"]

ALL = "all"  # the view of a simulation, which has all roles in one place
ROWS, COLUMNS = 1000, 10  # if neither the config nor its files give the number
PER_GROUP = 3  # columns that one hidden number moves
TASKS = (Task("binary", ("0", "1")), Task("multiclass", tuple("0123456789")), Task("regression", ()))


@dataclass(frozen=True, slots=True)
class Holding:
    """The data of a report, and which of them are real."""

    data: Partition
    view: str  # the member whose config it is: ALL, the server or a party
    real: frozenset[str]  # the parties whose columns are real, and the server if its labels are
    notes: tuple[str, ...]  # assumptions that were made

    @property
    def all_real(self) -> bool:
        """Whether nothing is made up."""
        return self.real == {SERVER, *self.data.parties}

    @property
    def in_deployment(self) -> bool:
        """Whether each member runs its own process."""
        return self.view != ALL


def holding(config: Config, party: str | None, rows: int | None, columns: int | None) -> Holding:
    """Return the data of a simulation, or what one member of a federation has."""
    if config.data.source is not None or not config.network.parties:
        for name, value in (("--party", party), ("--rows", rows), ("--columns", columns)):
            if value is not None:
                raise ConfigError(
                    name,
                    value,
                    "is for the config of one member of a federation, but this is the config of a simulation; "
                    "leave the option out",
                )
        data = load_partition(config)
        return Holding(data, ALL, frozenset((SERVER, *data.parties)), ())
    parties, view = parties_of(config), _view(config, party)
    share = _party_share(config, view) if view != SERVER else None
    labels = _server_share(config) if view == SERVER else None
    sizes, notes = _sizes(config, share, labels, rows)
    width = COLUMNS if columns is None else columns
    if width < 1:
        raise ConfigError("--columns", width, "must be 1 or more")
    widths = [share.train.shape[1] if share is not None and name == view else width for name in parties]
    task = _task(config, share, labels)
    data = _made_up(config, parties, widths, sizes, task)
    real: set[str] = set()
    if share is not None:
        data, real = _with_columns(data, parties.index(view), share), {view}
        if share.labels is not None:
            data, real = replace(data, y_train=share.labels[1], y_test=share.labels[2]), {view, SERVER}
    if labels is not None and not method_of(config.protocol)[0].capabilities.party_labels:
        data, real = replace(data, y_train=np.asarray(labels.y_train), y_test=labels.y_test), {SERVER}
    others = "every party has" if view == SERVER or share is None else "every other party has"
    return Holding(data, view, frozenset(real), (*notes, f"{others} {width} columns (--columns)"))


def _view(config: Config, party: str | None) -> str:
    """Return whose config it is: as typed, or by its sections; a party's name is that of its certificate."""
    parties = parties_of(config)
    if party is not None:
        if party not in parties:
            raise ConfigError("--party", party, f"network.parties has {', '.join(parties)}")
        return party
    if config.party.data is None:
        return SERVER
    stem = Path(config.network.certificate or "").stem
    if stem not in parties:
        raise ConfigError("--party", None, f"name the party whose config this is: {', '.join(parties)}")
    return stem


def _there(path: str | None) -> bool:
    return path is not None and Path(path).expanduser().is_file()


def _party_share(config: Config, name: str) -> PartyShare | None:
    """Return the party's own columns; None if its file is not here."""
    if _there(config.party.data):
        return party_side.load_share(config, name)
    scale = scale_of(config) if config.party.scale is None else config.party.scale
    refuse_fitted(config, scale != "none", "party.scale", scale)
    return None


def _server_share(config: Config) -> ServerShare | None:
    without_file = config.server.data is None and config.server.rows is not None
    return server_side.load_share(config) if without_file or _there(config.server.data) else None


def _sizes(
    config: Config, share: PartyShare | None, labels: ServerShare | None, rows: int | None
) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Return the numbers of training rows, rows held out, and validation rows among those; with notes."""
    if share is not None or labels is not None:
        if rows is not None:
            raise ConfigError("--rows", rows, "leave it out: the table that this config names gives the number of rows")
        if share is not None:
            return (len(share.train), len(share.test), share.validation), ()
        assert labels is not None
        return (len(labels.y_train), len(labels.y_test), labels.validation), ()
    count = ROWS if rows is None else rows
    (train, test), validation = config.data.rows(config.server.test_rows).of("--rows", count)
    what = "this member's table is not here: " if config.party.data or config.server.data else ""
    return (len(train), len(test), validation), (f"{what}{count} rows, training and held-out ones together (--rows)",)


def _task(config: Config, share: PartyShare | None, labels: ServerShare | None) -> Task:
    """Return the task; a party is not told it, and then it is the first task that the metric fits."""
    if share is not None and share.labels is not None:
        return share.labels[0]
    if labels is not None:
        return labels.task
    _, options = method_of(config.protocol)
    metric = METRICS.get(config.train.metric or "accuracy")
    if options.task is not None:
        return options.task
    return next((task for task in TASKS if metric is not None and metric.fits(task)), TASKS[0])


def _made_up(
    config: Config, parties: tuple[str, ...], widths: list[int], sizes: tuple[int, int, int], task: Task
) -> Partition:
    train, held_out, validation = sizes
    random = generator(config.train.seed, "made-up")
    blocks = [_columns(random, train + held_out, width) for width in widths]
    score = sum(block[:, 0] for block in blocks) + 0.5 * random.standard_normal(train + held_out)
    y = _labels(np.asarray(score), task)
    if scale_of(config) in ("clipped", "minmax"):
        blocks = [np.clip(block / 3, -1, 1) for block in blocks]
    columns = [tuple(f"made-up {number}" for number in range(1, width + 1)) for width in widths]
    ends = np.cumsum([0, *widths])
    return Partition(
        name="made-up rows",
        parties=parties,
        columns=tuple(columns),
        train=tuple(block[:train].astype(np.float32) for block in blocks),
        test=tuple(block[train:].astype(np.float32) for block in blocks),
        y_train=y[:train],
        y_test=y[train:],
        task=task,
        encoders=tuple(Encoder(names, (None,) * len(names), None) for names in columns),
        scalers=tuple(Scaler(np.zeros(width), np.ones(width)) for width in widths),
        indices=tuple(np.arange(start, stop) for start, stop in pairwise(ends)),
        width=int(ends[-1]),
        shapes=tuple((width,) for width in widths),
        validation=validation,
    )


def _columns(random: np.random.Generator, rows: int, width: int) -> Array:
    hidden = random.standard_normal((rows, -(-width // PER_GROUP)))
    together = np.repeat(hidden, PER_GROUP, axis=1)[:, :width]
    drawn: Array = 0.8 * together + 0.6 * random.standard_normal((rows, width))
    return drawn


def _labels(score: Array, task: Task) -> Array:
    if not task.classes:
        return score.astype(np.float32)
    edges = np.quantile(score, np.linspace(0, 1, len(task.classes) + 1)[1:-1])
    return np.digitize(score, edges).astype(np.int64)


def _with_columns(data: Partition, place: int, share: PartyShare) -> Partition:
    """Replace a made-up block by the party's own."""

    def put(blocks: tuple[object, ...], own: object) -> tuple[object, ...]:
        return (*blocks[:place], own, *blocks[place + 1 :])

    return replace(
        data,
        name=f"{share.name}'s own rows, and made-up rows of the others",
        train=put(data.train, share.train),
        test=put(data.test, share.test),
        shapes=(*data.shapes[:place], share.shape, *data.shapes[place + 1 :]),
    )
