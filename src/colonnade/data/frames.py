"""DataFrames of other libraries: pandas is read through its own methods, so this package never imports it."""

from typing import Any, Protocol, TypeGuard

import numpy as np
import polars

from colonnade.protocol.errors import DataError

__all__ = ["PandasFrame", "frame_of", "is_frame"]


class PandasFrame(Protocol):
    """The part of a pandas DataFrame that Colonnade uses."""

    columns: Any
    dtypes: Any

    def items(self) -> Any:
        """Pairs of a column's name and its Series."""


def is_frame(raw: object) -> TypeGuard["polars.DataFrame | PandasFrame"]:
    return isinstance(raw, polars.DataFrame) or type(raw).__module__.partition(".")[0] == "pandas"


def frame_of(raw: "polars.DataFrame | PandasFrame") -> polars.DataFrame:
    """Return the same table in polars, without the index of a pandas DataFrame."""
    if isinstance(raw, polars.DataFrame):
        return raw
    if not hasattr(raw, "columns"):
        raise DataError(f"a table must be a DataFrame, not {type(raw).__name__}")
    names = [str(name) for name in raw.columns]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"two columns have the name '{twice}'")
    try:
        return polars.DataFrame([_series(str(name), column) for name, column in raw.items()])
    except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the DataFrame must be a table of numbers and texts: {error}") from error


def _series(name: str, column: Any) -> polars.Series:
    """Missing cells of any kind (NaN, None, NA) become null, or NaN in a column of fractions."""
    absent = np.asarray(column.isna())
    kind = str(getattr(column.dtype, "kind", "O"))
    if kind == "f":
        return polars.Series(name, column.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind in "biu" and not absent.any():
        return polars.Series(name, np.asarray(column))
    cells = zip(column.to_list(), absent, strict=True)
    return polars.Series(name, [None if missing else value for value, missing in cells])
