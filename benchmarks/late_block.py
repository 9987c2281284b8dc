"""The control of every straggler: one joint model with nothing stale, whose slow blocks take fewer steps.

It is the oracle `centralised` (all columns in one place) with one difference: it applies only every k-th gradient of a
slow party. Every method must lose what this loses against `centralised`: those columns simply learn later.
"""

from collections.abc import Sequence
from typing import Any, cast

from colonnade.algorithms.lockstep.centralised import Centralised
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import Run, prepare
from colonnade.models import Network
from colonnade.protocol.messages import Array

__all__ = ["late_block"]


def late_block(data: Partition, tables: dict[str, Any], slow: Sequence[int], every: int, step_s: float) -> Run:
    """The control, by the tables of a config for `sync`.

    A joint step takes `step_s`. A slow block is stepped every `every` of them.
    """
    clock = {"server": {"compute": {"kind": "fixed", "mean_s": step_s}}}
    protocol = {"name": "centralised", "average": tables["protocol"].get("average", False)}
    run = prepare(from_dict(tables | {"protocol": protocol, "clock": clock}), data)
    joint = cast(Centralised, run.simulator.principal.role)
    for party in slow:
        _step_less_often(joint.parts[party], every)
    return run


def _step_less_often(network: Network, every: int) -> None:
    apply, gradients = network.apply, 0

    def applied(gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        nonlocal gradients
        gradients += 1
        if gradients % every == 0:
            apply(gradient, rate, buffers)

    network.apply = applied  # type: ignore[method-assign]
