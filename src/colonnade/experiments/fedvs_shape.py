"""What `colonnade privacy fedvs` needs from a config: the sizes of its data and models."""

from collections.abc import Mapping
from typing import Any

from colonnade.algorithms.fedvs.advice import Shape
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.config.resolve import load_partition, make_plan
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.models import party_module
from colonnade.models.polynomial import Polynomial

__all__ = ["fedvs_shape"]

OWN = ("l_x", "l_w", "x_max", "w_max", "allow_unprotected")  # the other options are what the command searches for


def fedvs_shape(tables: Mapping[str, Any]) -> tuple[Shape, FedvsOptions, int]:
    """Return the sizes, the options that the field's bound depends on, and the highest degree.

    Models that are not polynomials count as polynomials of degree 1.
    """
    given = {key: value for key, value in tables.get("protocol", {}).items() if key in OWN}
    config = from_dict(apply_overrides(tables, {"protocol": {"name": "wait"}}))
    data = load_partition(config)
    plan = make_plan(config, data.parties, len(data.y_train), data.task, data.validation)
    degrees = [_degree(*own) for own in zip(plan.models, data.shapes, data.parties, strict=True)]
    terms = tuple(degree * (block.shape[1] + 1) for degree, block in zip(degrees, data.train, strict=True))
    shape = Shape(len(data.y_train), len(data.y_test), terms, max(plan.widths), plan.training.batch_size)
    return shape, FedvsOptions(**given), max(degrees)


def _degree(model: Any, shape: tuple[int, ...], who: str) -> int:
    if not (isinstance(model, str) and model.startswith("polynomial:")):
        return 1
    module = party_module(model, shape, 1, 0, who)
    assert isinstance(module, Polynomial)
    return module.degree
