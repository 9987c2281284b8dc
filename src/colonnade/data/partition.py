"""A dataset after the split: columns at the parties, rows to train and test, labels at the server.

The rows of all parties are in the same order. Beside the dataset, memory holds one float32 copy, made party by party,
and pieces of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars
from scipy import sparse

from colonnade.data.block import Block, refuse_unusable
from colonnade.data.columns import Split, assign, party_names, row_shape
from colonnade.data.dataset import Dataset
from colonnade.data.dealing import deal, is_dealt
from colonnade.data.encoding import Encoder
from colonnade.data.fitted import NOTHING_FITTED, Fitted, fitted_of
from colonnade.data.prepare import Preparation, RowSplit, prepare, prepare_sparse
from colonnade.data.scaling import Scaler
from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.table import Table, rows_of
from colonnade.data.task import Array, Task
from colonnade.data.texts import NO_TEXTS, Texts
from colonnade.protocol.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Partition:
    """What the parties (features) and the server (labels) hold."""

    name: str
    parties: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]  # per party, names as in the dataset; `encoders` know their features
    train: tuple[Any, ...]  # per party, float32 (n_train, d_m); of a sparse dataset scipy CSR
    test: tuple[Any, ...]  # per party, float32 (n_validation + n_test, d_m): the validation rows come first
    y_train: Array
    y_test: Array  # in the order of `test`
    task: Task
    encoders: tuple[Encoder, ...]  # per party
    scalers: tuple[Scaler, ...]  # per party
    indices: tuple[Array, ...]  # per party, int64: indices into the dataset's columns
    width: int  # columns of the dataset; some may belong to no party
    shapes: tuple[tuple[int, ...], ...]  # per party: of one row, (columns,), (height, width) or (steps, channels)
    notes: tuple[str, ...] = ()  # remarks about the data for readers of the results
    ids: polars.Series | None = None  # of the training rows, then of the validation and test rows
    validation: int = 0  # number of validation rows in `test` and `y_test`

    def __repr__(self) -> str:
        """Show sizes only: a notebook or a log must not show a row."""
        held = (f"{name} ({len(own)} columns)" for name, own in zip(self.parties, self.columns, strict=True))
        rows = f"{len(self.y_train):,} rows to train on, {self.validation:,} to validate on"
        tested = f"{len(self.y_test) - self.validation:,} to test on"
        return f"Partition({self.name}: {listing(held)}; {rows}, {tested}; {self.task})"

    def without_validation(self) -> "Partition":
        """Return the same training rows, with the test rows alone: for settings that were chosen before."""
        trained, skipped, ids = len(self.y_train), self.validation, self.ids
        if ids is not None:
            ids = polars.concat([ids[:trained], ids[trained + skipped :]])
        test = tuple(block[skipped:] for block in self.test)
        return replace(self, test=test, y_test=self.y_test[skipped:], ids=ids, validation=0)

    def fitted(self, party: int) -> Fitted:
        """Return what a party fitted on its training rows."""
        return fitted_of(self.encoders[party], self.scalers[party])

    def blocks(self, raw: Any) -> list[Array]:
        """Split, encode and scale raw rows: an array (rows, width) of all columns, or a table with column names.

        An array is in the units of `Dataset.x`; a table is a DataFrame, {column: values} or [{column: value}].
        """
        if not isinstance(raw, np.ndarray):
            return [self.block(place, raw) for place in range(len(self.parties))]
        if raw.ndim != 2 or raw.shape[1] != self.width or raw.dtype.kind not in "biuf":
            raise DataError(
                f"{self.name}: rows must be numbers of shape (rows, {self.width}), not {raw.dtype} of {raw.shape}"
            )
        return [self._block(place, raw, index) for place, index in enumerate(self.indices)]

    def block(self, party: int, raw: Any) -> Array:
        """Encode and scale raw rows of one party: an array of its columns, or a table with column names."""
        if not isinstance(raw, np.ndarray):
            return self._block(party, raw, np.arange(len(self.columns[party])))
        width = len(self.columns[party])
        if raw.ndim != 2 or raw.shape[1] != width or raw.dtype.kind not in "biuf":
            name = self.parties[party]
            raise DataError(f"{name}: a block must be numbers of shape (rows, {width}), not {raw.dtype} of {raw.shape}")
        return self._block(party, raw, np.arange(width))

    def _block(self, party: int, raw: Any, index: Array) -> Array:
        name, columns, encoder = self.parties[party], self.columns[party], self.encoders[party]
        categorical = [held is not None for held in encoder.categories]
        if isinstance(raw, np.ndarray) and any(categorical):
            raw = {column: raw[:, place] for column, place in zip(columns, index, strict=True)}
        if not isinstance(raw, np.ndarray):
            raw, index = rows_of(raw, columns, categorical, name), np.arange(len(columns))
        rows = np.arange(len(raw))
        refuse_unusable(Block(raw, rows, index), name, columns, "refuse" if encoder.means is None else "mean")
        return self.scalers[party].fill(Block(raw, rows, index, encoder))


def split(
    dataset: Dataset,
    *,
    parties: int | None = None,
    how: Split = "even",
    scale: str | None = None,
    missing: str = "refuse",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    split_seed: int = 0,
    release: bool = False,
    before: Mapping[str, Fitted] = NOTHING_FITTED,
    text: Sequence[str] = (),
    vocabulary: int = NO_TEXTS.size,
    text_length: int = NO_TEXTS.length,
) -> Partition:
    """Split a dataset among parties (4, or as many as a table `how` names), by default with the dataset's own scaling.

    `split_seed` chooses the test rows if the dataset has no test set. Then it chooses the validation rows:
    `validation_fraction` of the other rows, or none if it is 0. It also deals columns for `how={"importance": 0.1}` and
    `{"correlation": 0.5}`.

    With `release`, each column of a CSV or Parquet table is freed as soon as its party has it. The dataset is unusable
    afterwards. This is for data that fill the memory.

    `before` holds what each party fitted in the run that this one continues: its columns are encoded and scaled as
    then.

    `text` names columns with one document per row: each party makes a `vocabulary` of so many words from its training
    rows, and the first `text_length` words of a document count.

    Examples: `split(load("digits"))`, `split(bank, how={"bank": ["age", "income"], "shop": ["visits"]})`.
    """
    texts = Texts(tuple(text), vocabulary, text_length)
    check_texts(dataset, texts)
    scale = dataset.scale if scale is None else scale
    preparation = Preparation(scale, missing, dataset.factor, before=before, texts=texts)
    by = RowSplit(test_fraction, validation_fraction, split_seed, dataset.test_rows)
    if not is_dealt(how):
        names, indices = assign(dataset, parties, how)
    rows, validation = by.of(dataset.name, dataset.x.shape[0])
    dealt: tuple[str, ...] = ()
    if isinstance(how, Mapping) and is_dealt(how):
        names = party_names(parties)
        found, note = deal(dataset, len(names), how, rows[0], split_seed)
        indices, dealt = tuple(found), (note,)
    shares, shapes = [], []
    for name, index in zip(names, indices, strict=True):
        shape = row_shape(dataset, how, index)
        columns = [dataset.columns[i] for i in index]
        steps = shape[0] if dataset.series and len(shape) > 1 else 1
        prepared = prepare_sparse if sparse.issparse(dataset.x) else prepare
        shares.append(prepared(dataset.x, index, columns, name, rows, preparation, steps))
        features = shares[-1].train.shape[1:]
        if all(shares[-1].encoder.lengths) and texts.columns:
            features = (*features, 1)  # a text: words in order
        shapes.append(shape if features == index.shape else features)  # one-hot columns have no place in an image
        if release and isinstance(dataset.x, Table):
            dataset.x.release(index)
    return Partition(
        name=dataset.name,
        parties=names,
        columns=tuple(share.encoder.names for share in shares),
        train=tuple(share.train for share in shares),
        test=tuple(share.test for share in shares),
        y_train=dataset.y[rows[0]],
        y_test=dataset.y[rows[1]],
        task=dataset.task,
        encoders=tuple(share.encoder for share in shares),
        scalers=tuple(share.scaler for share in shares),
        indices=indices,
        width=len(dataset.columns),
        shapes=tuple(shapes),
        notes=(*dataset.notes, *dealt, *(note for share in shares for note in share.notes)),
        ids=_ids(dataset.ids, np.concatenate(rows)),
        validation=validation,
    )


def check_texts(dataset: Dataset, texts: Texts) -> None:
    """Raise ConfigError if a text column is not there or holds numbers."""
    places = {column: place for place, column in enumerate(dataset.columns)}
    for name in texts.columns:
        if name not in places:
            raise ConfigError("data.text", name, f"{dataset.name} has no column '{name}'{did_you_mean(name, places)}")
        if not isinstance(dataset.x, Table) or dataset.x.column(places[name]).categories is None:
            raise ConfigError("data.text", name, f"column '{name}' of {dataset.name} holds numbers, not texts")


def _ids(ids: polars.Series | None, rows: Array) -> polars.Series:
    """Return the ids of these rows; rows without ids are counted from 0."""
    return polars.Series("ids", rows).cast(polars.String) if ids is None else ids.gather(rows)
