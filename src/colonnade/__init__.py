"""Colonnade: vertical federated learning that does not stop for its slowest member.

import colonnade

data = colonnade.split(colonnade.load("digits"), parties=4)
result = colonnade.train(data, protocol="vafl", party_model="mlp:64", epochs=20)
print(result.summary["accuracy"])
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colonnade.api import Result, from_blocks, prepare, split, train
    from colonnade.data import Dataset, Partition, from_arrays, load
    from colonnade.estimators import VerticalClassifier, VerticalRegressor
    from colonnade.protocol.errors import ColonnadeError
    from colonnade.races import Comparison, Sweep, compare, sweep

__version__ = "0.1.0"

__all__ = [
    "ColonnadeError",
    "Comparison",
    "Dataset",
    "Partition",
    "Result",
    "Sweep",
    "VerticalClassifier",
    "VerticalRegressor",
    "__version__",
    "compare",
    "from_arrays",
    "from_blocks",
    "load",
    "prepare",
    "split",
    "sweep",
    "train",
]

_HOMES = {
    "colonnade.api": ("Result", "from_blocks", "prepare", "split", "train"),
    "colonnade.data": ("Dataset", "Partition", "from_arrays", "load"),
    "colonnade.estimators": ("VerticalClassifier", "VerticalRegressor"),
    "colonnade.protocol.errors": ("ColonnadeError",),
    "colonnade.races": ("Comparison", "Sweep", "compare", "sweep"),
}


def __getattr__(name: str) -> Any:
    """Import torch and the rest on first use, so that `colonnade --help` answers at once."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'colonnade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
