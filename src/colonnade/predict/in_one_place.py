"""Predictions with all roles in one process: the server's answers, without messages."""

from collections.abc import Sequence
from typing import Any

from colonnade.algorithms.method import Method, Options
from colonnade.algorithms.prediction.predictor import Predictor, TrainedRoles
from colonnade.data import Task
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array
from colonnade.protocol.role import Role

__all__ = ["predict_in_one_place", "predictor_of"]


def predictor_of(method: Method[Any]) -> Predictor[Any, Any, Any]:
    """How the method predicts; raises ConfigError if it does not."""
    if method.predictor is None:
        advice = "never shows the server a party's own embedding, so this release cannot predict with the same privacy"
        raise ConfigError("protocol.name", method.name, advice)
    return method.predictor


def predict_in_one_place(
    method: Method[Any], options: Options, task: Task, roles: Sequence[Role], blocks: Sequence[Array], number: int
) -> Array:
    """Class probabilities, or values, for rows of which each party has a block.

    `roles`: the server and the parties, as trained. `number` identifies the noise and must differ for each question.
    """
    server, *parties = roles
    return predictor_of(method).in_one_place(TrainedRoles(options, task, server, tuple(parties)), blocks, number)
