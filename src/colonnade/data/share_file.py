"""Save a share or an alignment as one safetensors file that only its owner may read, and load it."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import polars

from colonnade.data.alignment import Alignment
from colonnade.data.fitted import Fitted
from colonnade.data.mapped import MappedFile, MappedRows
from colonnade.data.share import PartyShare, ServerShare
from colonnade.data.task import Array, Task, classification
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, DataError
from colonnade.protocol.saved import form_of

SEPARATOR = "\0"  # between ids
PIECE = 1 << 20  # labels checked at once
PARTY, SERVER, ALIGNMENT = "party share", "server share", "alignment"
FORMATS = {PARTY: 2, SERVER: 2, ALIGNMENT: 1}


def save_share(share: PartyShare | ServerShare, path: str | Path) -> None:
    """Write or replace the file of a share; if the process is killed, the old or the new file is complete."""
    content: dict[str, Any]
    if isinstance(share, PartyShare):
        content = {"kind": PARTY, "name": share.name, "columns": share.columns, "shape": share.shape}
        content |= {"train": np.asarray(share.train), "test": np.asarray(share.test)}
        if share.fitted is not None:
            content |= {"fitted": form_of(Fitted).plain(share.fitted)}
        if (ids := share.ids) is not None:
            content |= {"ids": np.frombuffer(ids.str.join(SEPARATOR)[0].encode(), np.uint8)}
        if share.labels is not None:
            task, y_train, y_test = share.labels
            content |= {"classes": task.classes, "y_train": y_train, "y_test": y_test}
    else:
        content = {"kind": SERVER, "classes": share.task.classes, "y_train": share.y_train, "y_test": share.y_test}
    content |= {
        "format": FORMATS[content["kind"]],
        "validation": share.validation,
        "ids_sha256": share.ids_sha256,
        "notes": share.notes,
    }
    _replace(Path(path).expanduser(), state.chunks(content))


def _replace(path: Path, chunks: Iterator[bytes | memoryview]) -> None:
    try:
        with _temporary(path) as temporary:  # mkstemp: no other user can read the file, from its first byte on
            with temporary.open("wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield an empty file beside `path`, and remove it at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def load_party_share(path: str | Path) -> PartyShare:
    """Load a party's share; its features and ids stay in the file until they are used."""
    with _reading(Path(path).expanduser(), PARTY) as (found, mapping):
        train, test, shape = found["train"], found["test"], found["shape"]
        _check(all(part.dtype == np.float32 and part.ndim == 2 and len(part) for part in (train, test)), "the features")
        _check(train.shape[1] == test.shape[1] == prod(shape) and _all_are(int, shape), "the shape of a row")
        _check(isinstance(found["name"], str) and _all_are(str, found["columns"]), "the names")
        labels = _labels(found, mapping) if "classes" in found else None
        _check(labels is None or len(labels[1]) == len(train), "the labels")
        labels = None if labels is None else (labels[0], labels[1].copy(), labels[2].copy())
        ids = partial(_ids, Path(path), found["ids"], len(train) + len(test)) if "ids" in found else None
        mapping.at_random()
        return PartyShare(
            found["name"], found["columns"], MappedRows(train), MappedRows(test), shape,
            found["ids_sha256"], found["notes"], labels, read_ids=ids, validation=_validation(found, len(test)),
            made_by=form_of(Fitted).typed(found["fitted"]) if "fitted" in found else None,
        )  # fmt: skip


def _ids(path: Path, joined: Array, rows: int) -> polars.Series:
    texts = joined.tobytes().decode(errors="replace").split(SEPARATOR)
    if len(texts) != rows:
        raise CheckpointError(f"{path}: damaged: the ids are invalid")
    return polars.Series("ids", texts)


def load_server_share(path: str | Path) -> ServerShare:
    with _reading(Path(path).expanduser(), SERVER) as (found, mapping):
        task, _, y_test = _labels(found, mapping)
        mapping.at_random()
        validation = _validation(found, len(y_test))
        return ServerShare(
            task, MappedRows(found["y_train"]), y_test.copy(), found["ids_sha256"], found["notes"],
            validation=validation,
        )  # fmt: skip


def _validation(found: Mapping[str, Any], held_out: int) -> int:
    validation: int = found["validation"]
    _check(isinstance(validation, int) and 0 <= validation < held_out, "the number of validation rows")
    return validation


def save_alignment(alignment: Alignment, path: str | Path) -> None:
    """Write or replace the file of an alignment, as `save_share` does."""
    fields = ("name", "members", "rows", "sha256", "ids_sha256", "presence")
    content = {name: getattr(alignment, name) for name in fields}
    _replace(
        Path(path).expanduser(), state.chunks({"kind": ALIGNMENT, "format": FORMATS[ALIGNMENT], "notes": (), **content})
    )


def load_alignment(path: str | Path) -> Alignment:
    with _reading(Path(path).expanduser(), ALIGNMENT) as (found, _):
        name, members, rows, presence = (_own(found[key]) for key in ("name", "members", "rows", "presence"))
        _check(isinstance(name, str) and _all_are(str, members), "the names")
        _check(rows.dtype == np.int64 and rows.ndim == 1 and rows.min(initial=0) >= -1, "the rows")
        shape = (len(rows), len(members))
        _check(
            presence is None or (presence.dtype == np.bool_ and presence.shape == shape),
            "the table of which party has which row",
        )
        _check(re.fullmatch("[0-9a-f]{64}", found["sha256"]) is not None, "the digest")
        return Alignment(name, members, rows, found["sha256"], found["ids_sha256"], presence)


def _labels(found: Mapping[str, Any], mapping: MappedFile) -> tuple[Task, Array, Array]:
    parts, classes = (found["y_train"], found["y_test"]), found["classes"]
    _check(_all_are(str, classes), "the classes")
    task = classification(classes) if classes else Task("regression", ())
    _check(all(part.ndim == 1 and len(part) for part in parts), "the labels")
    dtype = np.int64 if classes else np.float32
    _check(all(part.dtype == dtype and _fits(part, len(classes), mapping) for part in parts), "the labels")
    return task, *parts


def _fits(labels: Array, classes: int, mapping: MappedFile) -> bool:
    """Check that all labels are valid classes, piece by piece: there may be many."""
    for start in range(0, len(labels), PIECE):
        piece = labels[start : start + PIECE]
        if not (0 <= piece.min() <= piece.max() < classes if classes else np.isfinite(piece).all()):
            return False
        mapping.give_back()
    return True


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[tuple[Mapping[str, Any], MappedFile]]:
    """Yield the content of a file of this kind, with mapped arrays; every DataError names the file."""
    try:
        mapping = MappedFile(path)
        state.check(mapping.bytes, mapping.give_back)
        mapping.leave_cache(path)
        found = state.views(mapping.bytes)
        if not isinstance(found, dict) or found.get("kind") != kind:
            raise CheckpointError(f"this is not a {kind}")
        if found.get("format") != FORMATS[kind]:
            raise CheckpointError(f"format {found.get('format')}, this release reads {FORMATS[kind]}")
        _check(_all_are(str, found["notes"]), "the notes")
        _check(re.fullmatch("[0-9a-f]{64}", found["ids_sha256"]) is not None, "the digest of the ids")
        yield found, mapping
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    except (CheckpointError, DataError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # a missing field, or one of another type
        raise CheckpointError(f"{path}: damaged: {error!r}") from error


def _own(value: Any) -> Any:
    """Return a copy in memory, independent of the file."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _all_are(kind: type, values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, kind) for value in values)


def _check(right: Any, what: str) -> None:
    if not right:
        raise CheckpointError(f"damaged: {what} is invalid")
