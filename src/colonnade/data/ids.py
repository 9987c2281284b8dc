"""Ids of rows: check that they are unique, and compute the digest that two members compare.

    ids_sha256 = SHA-256(DOMAIN | len(id_1) | id_1 | len(id_2) | id_2 | ...)    ids as UTF-8, lengths of 8 bytes

Ids are compared as text: the number 7 and the text "7" are the same id, "007" is another. The digest hides the ids,
except from a member that can guess all of them in their order.
"""

import hashlib
from pathlib import Path

import polars

from colonnade.protocol.errors import DataError

DOMAIN = b"colonnade row ids, version 1\n"


def ids_as_text(path: Path, ids: polars.Series) -> polars.Series:
    """Return the ids of a file as text; raises DataError if one is missing or occurs twice."""
    try:
        texts = as_text(ids).str.strip_chars()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    texts = texts.replace("", None)
    if texts.null_count():
        row = texts.is_null().arg_true()[0]
        raise DataError(f"{path}: row {row} (counted from 0) has no id in column '{ids.name}'")
    if texts.n_unique() < len(texts):
        again = (~texts.is_first_distinct()).arg_true()[0]
        first = (texts == texts[again]).arg_true()[0]
        raise DataError(
            f"{path}: the id {texts[again]!r} in column '{ids.name}' is in rows {first} and {again} (counted from 0)"
        )
    return texts


def as_text(ids: polars.Series) -> polars.Series:
    """Return the ids as they are written; missing ones stay missing."""
    try:
        return _whole_numbers(ids).cast(polars.String)
    except polars.exceptions.PolarsError as error:
        raise DataError(f"column '{ids.name}' holds {ids.dtype}, which cannot be ids") from error


def _whole_numbers(ids: polars.Series) -> polars.Series:
    """Turn 7.0 into 7: whole numbers often pass through a float table."""
    if not (ids.dtype.is_float() or ids.dtype.is_decimal()):
        return ids
    if ids.dtype.is_float():
        ids = ids.fill_nan(None)
    whole = ids.cast(polars.Int64, strict=False)
    return whole if (whole == ids).all() and whole.null_count() == ids.null_count() else ids


def digest_of_ids(ids: polars.Series) -> str:
    """Return the digest in hex; members with the same ids in the same order get the same."""
    digest = hashlib.sha256(DOMAIN)
    for text in ids:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def digest_of_rows(rows: int) -> str:
    """Return the digest of members without ids: they can compare only the number of rows."""
    return hashlib.sha256(f"rows:{rows}".encode()).hexdigest()
