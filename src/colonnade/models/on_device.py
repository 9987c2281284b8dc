"""Arrays that stay on the GPU on their way from one role to another in the same process.

Roles treat them as numpy arrays. Slices, rows by number and concatenation run on the device. Any other numpy function
or method gets a copy in this process's memory, which is slower and gives the same result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor

from colonnade.protocol.messages import Array, Elsewhere

__all__ = [
    "OnDevice",
    "contiguous",
    "gathered",
    "number",
    "on_device",
    "seed_generators",
    "to_array",
    "to_tensor",
    "zeros",
]

MOST_OF_FREE = 0.25  # of a device's free memory: the most that a role's own rows may take


def seed_generators(seed: int) -> None:
    """Seed torch's global generators as `torch.manual_seed` does.

    Without a GPU that function keeps a stack trace for each kind of GPU, which takes milliseconds in a deep call.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class OnDevice(NDArrayOperatorsMixin, Elsewhere):
    """A tensor with the interface of a numpy array."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        dtype: np.dtype[Any] = _DTYPES[self.tensor.dtype]
        return dtype

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, key: Any) -> "OnDevice":
        """Return a view for a slice; gather rows by number on the device."""
        if isinstance(key, np.ndarray):
            return OnDevice(self.tensor.index_select(0, to_tensor(key).to(self.tensor.device, non_blocking=True)))
        return OnDevice(self.tensor[key])

    def __setitem__(self, key: Any, values: Any) -> None:
        """Write rows or blocks; rows by number, or marked by a mask, are found on the device."""
        parts = key if isinstance(key, tuple) else (key,)
        device = self.tensor.device
        place = tuple(
            to_tensor(part).to(device, non_blocking=True) if isinstance(part, np.ndarray) else part for part in parts
        )
        if isinstance(values, np.ndarray | OnDevice):
            values = to_tensor(values).to(device, non_blocking=True)
        self.tensor[place] = values

    def copy(self) -> "OnDevice":
        """Return a copy that stays on the device."""
        return OnDevice(self.tensor.clone())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values: Array = self.tensor.detach().cpu().numpy()
        return values if dtype is None else values.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(_here, inputs), **{key: _here(value) for key, value in options.items()})

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        if function is np.concatenate and all(isinstance(part, OnDevice) for part in args[0]):
            return OnDevice(torch.cat([part.tensor for part in args[0]], options.get("axis", 0)))
        return function(*map(_here, args), **{key: _here(value) for key, value in options.items()})

    def __getattr__(self, name: str) -> Any:
        """Forward numpy's other methods to a copy in this process's memory."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


_DTYPES: dict[torch.dtype, Any] = {
    torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
    torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64), torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}  # fmt: skip


def _here(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return np.asarray(value)
    return [_here(item) for item in value] if isinstance(value, list | tuple) else value


def to_array(tensor: Tensor) -> Any:
    """Return a role's result: an array, or its equivalent that stays on the GPU."""
    return tensor.numpy() if tensor.is_cpu else OnDevice(tensor)


def to_tensor(array: Any) -> Tensor:
    """Return a tensor over the array's memory.

    Torch needs it writable, so a read-only array from the wire is copied.
    """
    if isinstance(array, OnDevice):
        return array.tensor
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def contiguous(array: Any) -> Any:
    return OnDevice(array.tensor.contiguous()) if isinstance(array, OnDevice) else np.ascontiguousarray(array)


def gathered(array: Any, rows: Array) -> Any:
    """Return these rows. For an array in memory numpy's `take` needs half the time of an index."""
    in_memory = type(array) is np.ndarray and array.flags.c_contiguous
    return array.take(rows, axis=0) if in_memory else array[rows]


def number(tensor: Tensor) -> Callable[[], float]:
    """Return a function that reads a scalar later.

    On a GPU it waits for this scalar alone, not for work queued after it.
    """
    if tensor.is_cpu:
        return tensor.item
    value = torch.empty((), pin_memory=True)
    value.copy_(tensor.detach(), non_blocking=True)
    there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    there.record()

    def read() -> float:
        there.synchronize()
        return value.item()

    return read


def on_device(array: Any, device: str) -> Any:
    """Move a role's rows to its GPU if there is enough room; batches are then gathered there."""
    if not isinstance(array, np.ndarray) or not _has_room(array.nbytes, device):
        return array
    return OnDevice(to_tensor(array).to(device))


def zeros(rows: int, width: int, device: str) -> Any:
    """Return a float32 table of zeros: on the GPU if there is enough room."""
    if not _has_room(4 * rows * width, device):
        return np.zeros((rows, width), np.float32)
    return OnDevice(torch.zeros((rows, width), device=device))


def _has_room(size: int, device: str) -> bool:
    return device != "cpu" and size <= MOST_OF_FREE * torch.cuda.mem_get_info(device)[0]
