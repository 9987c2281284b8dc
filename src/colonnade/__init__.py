"""Colonnade: vertical federated learning that does not stop for its slowest member.

import colonnade

data = colonnade.split(colonnade.load("digits"), parties=4)
result = colonnade.train(data, protocol="vafl", party_model="mlp:64", epochs=20)
print(result.summary["accuracy"])
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colonnade.api import Result, prepare, split, train
    from colonnade.data import Dataset, Partition, from_arrays, load
    from colonnade.protocol.errors import ColonnadeError

__version__ = "0.1.0"

__all__ = [
    "ColonnadeError",
    "Dataset",
    "Partition",
    "Result",
    "__version__",
    "from_arrays",
    "load",
    "prepare",
    "split",
    "train",
]

_HOMES = {
    "colonnade.api": ("Result", "prepare", "split", "train"),
    "colonnade.data": ("Dataset", "Partition", "from_arrays", "load"),
    "colonnade.protocol.errors": ("ColonnadeError",),
}


def __getattr__(name: str) -> Any:
    """Import torch and the rest when they are first needed, so that `colonnade --help` answers at once."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'colonnade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
