"""Predictions where all roles are in one process: what the server would answer, without the messages.

Each party gives what it would send over the network: perturbed and accounted if its uploads are; for `fedvs` with the
precision of the shares.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.holdings import predictions
from colonnade.algorithms.evaluation import read_rows
from colonnade.algorithms.fedvs.coding import average_in_plain
from colonnade.algorithms.fedvs.party import Party as CodingParty
from colonnade.algorithms.method import Method
from colonnade.data import Task
from colonnade.privacy.guard import Withheld
from colonnade.protocol.errors import ColonnadeError
from colonnade.protocol.messages import Array

__all__ = ["predict_in_one_place"]


def predict_in_one_place(
    method: Method[Any], options: Any, task: Task, roles: Sequence[Any], blocks: Sequence[Array], number: int
) -> Array:
    """Class probabilities, or values, of rows that each party has a block of.

    `roles`: the server and the parties, as trained. `number` names the noise: never the same for two questions.
    """
    server, *parties = roles
    if method.capabilities.party_labels:  # linear: margins add up
        theta = sum(party.margins(block) for party, block in zip(parties, blocks, strict=True))
        return predictions(np.asarray(theta), task)
    if method.joint is not None:
        h = _beside([network.read(block) for network, block in zip(server.parts, blocks, strict=True)])
    elif all(isinstance(party, CodingParty) for party in parties):
        pairs = zip(parties, blocks, strict=True)
        h = average_in_plain([party.to_predict(block) for party, block in pairs], options.l_x, options.l_w)
    else:
        pairs = zip(parties, blocks, strict=True)
        h = server.evaluation.gathered(_beside([_embedded(party, block, number) for party, block in pairs]))
    prediction: Array = server.network.objective.predict(server.network.output(h))
    return prediction


def _beside(blocks: Sequence[Array]) -> Array:
    return np.concatenate(blocks, axis=1)


def _embedded(party: Any, block: Array, number: int) -> Array:
    """Rows have no ids here: those that are equal in the party's columns are one row to it."""
    first: dict[bytes, int] = {}
    rows = [first.setdefault(row.tobytes(), place) for place, row in enumerate(block + np.float32(0))]  # −0 is 0
    values = read_rows(party, block, np.array(rows, np.int64), number)
    if isinstance(values, Withheld):
        raise ColonnadeError(f"predict: {party.name} gives no more: {values.why}")
    return values
