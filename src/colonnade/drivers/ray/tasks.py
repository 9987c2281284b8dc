"""Runs many calls of one function as Ray tasks, one CPU each. A call whose node is lost is repeated."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
import torch

from colonnade.protocol.errors import ColonnadeError

__all__ = ["in_turn"]

RETRIES = 5  # of a call whose worker or node was lost
LOOK_S = 0.5


def in_turn(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any] | None]:
    """Index and result of each call as it ends; for a failed call, the cause in words. None every `LOOK_S` seconds."""
    task: Any = ray.remote(_alone).options(num_cpus=1, max_retries=RETRIES)
    waiting = {task.remote(function, *values): index for index, values in enumerate(calls)}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK_S)
        yield (waiting.pop(done[0]), _result(done[0])) if done else None


def _alone(function: Callable[..., Any], *values: Any) -> Any:
    torch.set_num_threads(1)
    return function(*values)


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return str(cause) if isinstance(cause, ColonnadeError) else f"{type(cause).__name__}: {cause}"
    except ray.exceptions.RayError as error:
        return f"its worker was lost ({type(error).__name__})"
