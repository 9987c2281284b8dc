"""`[diagnose]`: what the simulator computes at each evaluation, because it has all roles in one place.

It is a pure read of the roles' committed state. It sends no message, takes no time of the clock, and moves no generator
of a role, so a run with it has the same trace, weights and metrics as one without it.

The sample is a fixed set of training rows, chosen by `data.split_seed`: runs with other values of `train.seed` have the
same sample.
"""

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from colonnade.algorithms.prediction.predictor import TrainedRoles
from colonnade.config.resolve import Federation
from colonnade.models.joint import Joint
from colonnade.models.metrics import measure
from colonnade.predict.in_one_place import predictor_of
from colonnade.protocol.messages import Array
from colonnade.protocol.role import Role
from colonnade.protocol.seeds import generator
from colonnade.results.summary import finite

__all__ = ["Diagnostics", "sample_of"]


def sample_of(rows: int, wanted: int, seed: int) -> Array:
    """Return the numbers of the sampled training rows, in order."""
    chosen: Array = np.sort(generator(seed, "diagnose").permutation(rows)[:wanted])
    return chosen


class Diagnostics:
    """The diagnoses of one run, made from its roles."""

    def __init__(self, setting: Federation) -> None:
        self._setting, self._asked = setting, setting.config.diagnose
        self._predictor = predictor_of(setting.method) if self._asked.wanted else None
        rows = sample_of(len(setting.data.y_train), self._asked.rows, setting.config.data.split_seed)
        self._blocks: list[Any] = [block[rows] for block in setting.data.train] if self._asked.wanted else []
        self._y = setting.data.y_train[rows]

    def __bool__(self) -> bool:
        return bool(self._asked.wanted)

    def row(self, roles: Sequence[Role], update: int) -> dict[str, Any]:
        """Return what a line of metrics.jsonl gets in addition; `roles` are the server and the parties.

        The number of updates so far determines the directions of estimates.
        """
        trained = self._trained(roles)
        found = self._training(trained) if self._asked.training else {}
        found |= self._gradient(trained) if self._asked.gradient else {}
        return found | (self._estimates(trained, update) if self._asked.estimates else {})

    def check(self, roles: Sequence[Role]) -> None:
        """Raise ConfigError if these roles have no gradient, but one is wanted."""
        if (self._asked.gradient or self._asked.estimates) and self._predictor is not None:
            self._predictor.networks(self._trained(roles))

    def _trained(self, roles: Sequence[Role]) -> TrainedRoles[Any, Any, Any]:
        server, *parties = roles
        return TrainedRoles(self._setting.options, self._setting.data.task, server, tuple(parties))

    def _training(self, roles: TrainedRoles[Any, Any, Any]) -> dict[str, Any]:
        """Judge the sample as held-out rows are judged: from what the parties would send, in evaluation mode."""
        assert self._predictor is not None
        metric, also = self._setting.training.metric, self._setting.training.also
        prediction = self._predictor.in_one_place(roles, self._blocks, 0)
        found = measure(metric, self._setting.data.task, self._y, prediction, nan, also)
        row = {"training_value": finite(found[metric]), "training_accuracy": finite(found.get("accuracy"))}
        return row | {f"training_{name}": finite(found[name]) for name in also}

    def _gradient(self, roles: TrainedRoles[Any, Any, Any]) -> dict[str, Any]:
        assert self._predictor is not None
        found = self._predictor.networks(roles).gradient(self._blocks, self._y)
        return {"objective": finite(found.objective), "gradient_norm2": finite(found.squared_norm)}

    def _estimates(self, roles: TrainedRoles[Any, Any, Any], update: int) -> dict[str, Any]:
        """Compare each party's estimates on the sample with its true gradient g: their cosine, and their variance.

        Without the regulariser, which no party estimates.
        """
        assert self._predictor is not None
        joint = self._predictor.networks(roles)
        truth = joint.slopes(self._blocks, self._y).parts[1:]
        pairs = [self._judged(joint, m, g.double().cpu().numpy(), update) for m, g in enumerate(truth)]
        cosines, variances = zip(*pairs, strict=True)
        return {"estimate_cosine": list(cosines), "estimate_variance": list(variances)}

    def _judged(self, joint: Joint, party: int, g: Array, update: int) -> tuple[float | None, float | None]:
        """Return the mean cosine with g, and E‖ĝ − g‖²/‖g‖²; None if g is 0."""
        size, options = float(np.linalg.norm(g)), self._setting.options
        if not size:
            return None, None
        rise = joint.rises(party, self._blocks, self._y)
        cosines, errors = [], []
        for draw in range(self._asked.estimates):
            seed = generator(self._setting.training.seed, "diagnose", "estimate", party, update, draw).bytes(32)
            found = options.estimate(party, rise, len(g), seed).astype(np.float64)
            cosines.append(float(found @ g) / (size * float(np.linalg.norm(found)) or 1.0))
            errors.append(float(np.sum(np.square(found - g))) / size**2)
        return finite(float(np.mean(cosines))), finite(float(np.mean(errors)))
