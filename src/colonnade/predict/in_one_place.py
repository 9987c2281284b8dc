"""Predictions where all roles are in one process: what the server would answer, without the messages."""

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
    """How the method predicts; refused if it does not."""
    if method.predictor is None:
        advice = (
            "never shows the server a party's own embedding, and there is no way yet to predict at its level of privacy"
        )
        raise ConfigError("protocol.name", method.name, advice)
    return method.predictor


def predict_in_one_place(
    method: Method[Any], options: Options, task: Task, roles: Sequence[Role], blocks: Sequence[Array], number: int
) -> Array:
    """Class probabilities, or values, of rows that each party has a block of.

    `roles`: the server and the parties, as trained. `number` names the noise: never the same for two questions.
    """
    server, *parties = roles
    return predictor_of(method).in_one_place(TrainedRoles(options, task, server, tuple(parties)), blocks, number)
