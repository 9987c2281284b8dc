"""Feature inversion: a curious server reconstructs a party's columns from its embeddings.

The attacker knows the columns of some rows (a tenth, here) and sees, as the server does, the uploads of all rows. It
trains a decoder on the known rows and tries it on the others. The error is relative: Σ‖x̂ − x‖² divided by that of the
mean row, so 1 needs no attack. The control is the same decoder trained on shuffled pairs.

    a method with                what the server sees
    `observations.upload`        every upload of a row, the newest and the mean of all: noise averages out
    `observations.sums`          the decoded average over ALL parties, and nothing of one alone
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from colonnade.algorithms import find_method
from colonnade.algorithms.method import SERVER, Method
from colonnade.algorithms.observations import Observations, Seen
from colonnade.attacks.attack import NEVER, PLAIN_SGD, Attack, Order, margin_of
from colonnade.attacks.stage import Behind
from colonnade.attacks.wires import refuse_packed
from colonnade.config.resolve import Federation, federation, privacy_of
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.data import Partition
from colonnade.drivers.simulator import Simulator
from colonnade.experiments.compare import Contestant, contestants
from colonnade.experiments.run import one_thread
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import Event, Received
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import Role
from colonnade.protocol.seeds import generator

__all__ = ["FEATURE_INVERSION", "Reconstruction", "invert", "invert_features"]

ATTACKERS = {
    "linear": "a ridge regression from uploads to columns",
    "network": "a network with one hidden layer of 64",
}
KNOWN = 0.1  # share of the rows
NOISES = (0.1, 0.3, 1.0, 3.0, 10.0)  # standard deviations, if the config does not set [privacy]
CLIP = 3.0
SLICE_EVENTS = 500


@dataclass(slots=True)
class Reconstruction:
    """One attacker against one method at one noise."""

    method: str
    attacker: str
    noise: float
    trials: list[dict[str, float]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Relative error, mean over trials."""
        return mean(trial["error"] for trial in self.trials)

    @property
    def margin(self) -> float:
        """Half of the 95 % interval of that mean."""
        return margin_of([trial["error"] for trial in self.trials])

    def summary(self) -> dict[str, Any]:
        """Return the fields for attack.json."""
        return {
            "method": self.method,
            "attacker": self.attacker,
            "noise": self.noise,
            "error": self.error,
            "margin": self.margin,
            "control": mean(trial["control"] for trial in self.trials),
            "epsilon": self.trials[0].get("epsilon"),
            "trials": self.trials,
        }


class View:
    """What the server has seen about one party's rows."""

    def __init__(self, setting: Federation, seen: Observations[Any], victim: int) -> None:
        self._name, rows = setting.parties[victim].name, setting.training.rows
        self._upload, self._walk = seen.upload, seen.walk(setting.training, setting.options, victim)
        width = setting.parties[victim].width
        self.newest, self._sum = np.zeros((rows, width)), np.zeros((rows, width))
        self.times = np.zeros(rows, np.int64)

    def see(self, rows: Array, values: Array) -> None:
        """Add values about these rows, one each."""
        self.newest[rows] = values
        np.add.at(self._sum, rows, values)
        np.add.at(self.times, rows, 1)

    def inputs(self) -> Array:
        """Return the decoder's input: the newest value, and the mean of all."""
        return np.concatenate([self.newest, self._sum / np.maximum(self.times, 1)[:, None]], axis=1)

    def tap(self, time: int, receiver: str, event: Event) -> None:
        """Record the messages of the party to the server."""
        if receiver != SERVER or not isinstance(event, Received) or event.sender != self._name:
            return
        upload = self._upload(event.message, self._walk) if self._upload is not None else None
        if upload is not None:
            self.see(upload.rows, upload.values)


class Watched(Behind):
    """A server whose jobs are observed before they are done."""

    def __init__(self, server: Role, sums: Callable[[Payload], Seen | None], view: View) -> None:
        super().__init__(server)
        self._sums, self._view = sums, view

    def compute(self, job: Payload) -> Payload:
        """Record the sums that the server decodes: they are about the rows of all parties, so of this one too."""
        seen = self._sums(job)
        if seen is not None:
            self._view.see(seen.rows, seen.values)
        return super().compute(job)


def observe(setting: Federation, show: Callable[[float], None], victim: int = 0) -> tuple[View, dict[str, Any]]:
    """Train with honest roles; returns what the server saw, and what the party has spent."""
    method, training = setting.method, setting.training
    roles, seen = setting.roles(), method.observations  # roles refuse what cannot be trained at all
    if seen is None or (seen.upload is None and seen.sums is None):
        raise _unreadable(method)
    server, party = roles[0], roles[1 + victim]
    refuse_packed(method, party, setting.parties[victim].width)
    view = View(setting, seen, victim)
    if seen.sums is not None:
        roles[0] = Watched(server, seen.sums(training, setting.options, len(setting.parties)), view)
    codec = Codec(method.payloads)
    simulator = Simulator(
        roles, codec, setting.config.clock, training.seed, on_event=view.tap, peers=method.capabilities.peers
    )
    with one_thread():
        while simulator.advance(SLICE_EVENTS):
            show(min(1.0, server.summary().get("epochs", 0.0) / training.limit.amount))
    if not view.times.any():
        raise _unreadable(method)
    spent = party.summary().get("privacy")
    return view, dict(spent) if spent else {}


def _unreadable(method: Method[Any]) -> ConfigError:
    advice = "sends nothing that this attacker can read; docs/attacks.md says how to add another attacker"
    return ConfigError("--protocols", method.name, advice)


def decode_error(kind: str, seen: Array, x: Array, known: Array, seed: int) -> float:
    """Train a decoder on the known rows; returns its relative error on the other rows."""
    if kind == "linear":
        decoder = RidgeCV(np.logspace(-3, 5, 17))
    else:
        decoder = MLPRegressor(
            hidden_layer_sizes=(64,), alpha=1.0, early_stopping=True, validation_fraction=0.3,
            learning_rate_init=0.003, max_iter=5000, random_state=seed,
        )  # fmt: skip
    middle, spread = x[known].mean(0), x[known].std()
    model = make_pipeline(StandardScaler(), decoder).fit(seen[known], (x[known] - middle) / spread)
    others = ~known
    wrong = np.square(spread * model.predict(seen[others]) + middle - x[others]).sum()
    return float(wrong / np.square(middle - x[others]).sum())


def invert(
    setting: Federation, attackers: Sequence[str], show: Callable[[float], None], victim: int = 0
) -> dict[str, dict[str, float]]:
    """Run one trial of each attacker on one party: the errors of its decoder and of the control."""
    view, spent = observe(setting, show, victim)
    x, seed = setting.data.train[victim], setting.training.seed
    return {attacker: _trial(attacker, view, x, seed, spent) for attacker in attackers}


def invert_features(order: Order) -> list[Reconstruction]:
    """Run every attacker against every method, at every noise."""
    tables = _defaults(order.tables)
    entrants = [one for entrant in contestants(tables, order.protocols) for one in _with_noise(entrant)]
    first = from_dict(tables).train.seed
    outcomes: dict[tuple[str, str, float], Reconstruction] = {}
    steps = [(entrant, noise, seed) for seed in range(first, first + order.trials) for entrant, noise in entrants]
    data: tuple[int, Partition] | None = None
    for number, (entrant, noise, seed) in enumerate(steps):
        if data is None or data[0] != seed:
            data = seed, order.load(from_dict(apply_overrides(tables, {"train.seed": seed})))
        setting = federation(from_dict(apply_overrides(entrant.tables, {"train.seed": seed})), data[1])
        show = partial(_show, order, f"{entrant.label}, noise {noise:g}, seed {seed}", number, len(steps))
        for attacker, trial in invert(setting, order.attackers, show).items():
            fresh = Reconstruction(entrant.label, attacker, noise)
            outcomes.setdefault((entrant.label, attacker, noise), fresh).trials.append(trial)
    order.on_progress("", 1.0)
    return list(outcomes.values())


def _show(order: Order, text: str, number: int, count: int, done: float) -> None:
    order.on_progress(text, (number + done) / count)


def _trial(attacker: str, view: View, x: Array, seed: int, spent: Mapping[str, Any]) -> dict[str, float]:
    random = generator(seed, "inversion")
    seen, reached = view.inputs(), view.times > 0
    known = reached & (random.random(len(x)) < KNOWN)
    shuffled = x.copy()
    shuffled[known] = x[random.permutation(np.flatnonzero(known))]
    # Rows that were never seen are left out.
    error = decode_error(attacker, seen[reached], x[reached], known[reached], seed)
    control = decode_error(attacker, seen[reached], shuffled[reached], known[reached], seed)
    told = {"epsilon": spent["epsilon"]} if spent else {}
    return {"seed": seed, "error": error, "control": control, "known": int(known.sum()), **told}


def _defaults(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Give every method the same networks: polynomials, which are the only ones that fedvs takes, of degree 1."""
    model = {
        "party": "polynomial:1",
        "embedding": 8,
        "server": "linear",
        "aggregate": "mean",
        **tables.get("model", {}),
    }
    train = {"eval_every": NEVER, **PLAIN_SGD, **tables.get("train", {})}
    if not {"epochs", "updates", "seconds"} & train.keys():
        train["epochs"] = 5.0
    return {**tables, "model": model, "train": train, "data": {"scale": "minmax", **tables.get("data", {})}}


def _with_noise(entrant: Contestant) -> list[tuple[Contestant, float]]:
    """Return the config's own noise; if it sets none and the method has a place for it, no noise and rising noise."""
    config = from_dict(entrant.tables)
    privacy = privacy_of(config)
    if privacy.mechanism is not None or not _has_a_place(entrant):
        return [(entrant, privacy.noise if privacy.on else 0.0)]
    levels = [(entrant, 0.0)]
    for noise in NOISES:
        more = {"mechanism": "output", "clip": CLIP, "noise": noise}
        levels.append((Contestant(entrant.label, {**entrant.tables, "privacy": more}), noise))
    return levels


def _has_a_place(entrant: Contestant) -> bool:
    return bool(find_method(entrant.tables["protocol"]["name"]).capabilities.local_updates)


FEATURE_INVERSION = Attack("feature-inversion", ATTACKERS, invert_features)
