"""Tables that are separate from the start: a block for each party, with the same rows in the same order.

`split` divides one table; `from_blocks` takes one table per party. Two blocks may have columns of the same name.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars
from scipy import sparse as scipy_sparse

from colonnade.data.columns import check_name
from colonnade.data.dataset import check_table
from colonnade.data.fitted import NOTHING_FITTED, Fitted
from colonnade.data.frames import frame_of, is_frame
from colonnade.data.partition import Partition
from colonnade.data.prepare import Preparation, Rows, RowSplit, prepare, prepare_sparse
from colonnade.data.table import Table, column_of
from colonnade.data.task import Array, Task, read_labels
from colonnade.protocol.errors import DataError

__all__ = ["Blocks", "from_blocks", "named_blocks", "partition_of"]

Blocks = Mapping[str, Any] | Sequence[Any]  # by party name, or in order: arrays, DataFrames or scipy CSR


def from_blocks(
    blocks: Blocks,
    y: Any,
    *,
    categorical: Sequence[str] = (),
    scale: str | None = None,
    missing: str = "refuse",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.1,
    split_seed: int = 0,
    before: Mapping[str, Fitted] = NOTHING_FITTED,
) -> Partition:
    """Make a partition, as `split` does, from the parties' blocks and the server's labels; `before` as there.

    Example: `from_blocks({"bank": bank_frame, "shop": shop_array}, defaulted)`.
    """
    held = named_blocks(blocks)
    labels, task = read_labels(np.asarray(y))
    rows, validation = RowSplit(test_fraction, validation_fraction, split_seed).of("blocks", len(labels))
    return partition_of(held, labels, task, rows, validation, categorical, scale, missing, before)


def named_blocks(blocks: Blocks) -> dict[str, Any]:
    """Return party → block; blocks without names belong to party-1, party-2, …"""
    if isinstance(blocks, Mapping):
        named = dict(blocks)
    elif isinstance(blocks, Sequence) and not isinstance(blocks, str):
        named = {f"party-{place + 1}": block for place, block in enumerate(blocks)}
    else:
        what = "one table; divide it with split" if hasattr(blocks, "shape") else type(blocks).__name__
        raise DataError(f"blocks must be a list of tables, or a dict with a table for each party, not {what}")
    if not named:
        raise DataError("blocks is empty: give one table for each party")
    for name in named:
        check_name(name, "blocks")
    return named


def partition_of(
    blocks: Mapping[str, Any],
    y: Array,
    task: Task,
    rows: Rows,
    validation: int,
    categorical: Sequence[str] = (),
    scale: str | None = None,
    missing: str = "refuse",
    before: Mapping[str, Fitted] = NOTHING_FITTED,
) -> Partition:
    """Do the work of `from_blocks` for labels that are already read and rows that are already chosen."""
    tables = {party: _table(party, block, categorical) for party, block in blocks.items()}
    unknown = set(categorical) - {name for _, names in tables.values() for name in names}
    if unknown:
        raise DataError(f"categorical: no party has a column '{min(unknown)}'")
    shares = []
    for party, (x, names) in tables.items():
        if x.shape[0] != len(y):
            raise DataError(f"{party}: {x.shape[0]} rows, but there are {len(y)} labels")
        lies_sparse = scipy_sparse.issparse(x)
        how = Preparation(scale or ("none" if lies_sparse else "standard"), missing, before=before)
        index = np.arange(len(names), dtype=np.int64)
        shares.append((prepare_sparse if lies_sparse else prepare)(x, index, names, party, rows, how))
    ends = np.cumsum([0, *(len(names) for _, names in tables.values())])
    return Partition(
        name="blocks",
        parties=tuple(tables),
        columns=tuple(share.encoder.names for share in shares),
        train=tuple(share.train for share in shares),
        test=tuple(share.test for share in shares),
        y_train=y[rows[0]],
        y_test=y[rows[1]],
        task=task,
        encoders=tuple(share.encoder for share in shares),
        scalers=tuple(share.scaler for share in shares),
        indices=tuple(np.arange(start, end) for start, end in pairwise(ends)),
        width=int(ends[-1]),
        shapes=tuple(share.train.shape[1:] for share in shares),
        notes=tuple(note for share in shares for note in share.notes),
        ids=polars.Series("ids", np.concatenate(rows)).cast(polars.String),
        validation=validation,
    )


def _table(party: str, block: Any, categorical: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Return a party's numbers and categories, and the names of its columns."""
    try:
        if is_frame(block):
            frame = frame_of(block)
            columns = [column_of(frame[name], name in categorical) for name in frame.columns]
            table: Any = Table(columns)
            names = tuple(frame.columns)
        else:
            table = block.tocsr() if scipy_sparse.issparse(block) else np.asarray(block)
            names = tuple(f"x{i}" for i in range(table.shape[1])) if table.ndim == 2 else ()
        check_table(party, table)
    except (DataError, ValueError) as error:
        raise error if str(error).startswith(f"{party}: ") else DataError(f"{party}: {error}") from None
    return table, names
