"""The oracle: the same networks as one torch model, one graph over all columns, no messages.

It starts from the weights of `sync` and walks through the same batches, so that the two can be compared step by step.
"""

from collections.abc import Sequence

import numpy as np
import torch

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.chassis import Chassis, RoleState, done, job, timer
from colonnade.algorithms.evaluation import Evaluated, Scores
from colonnade.algorithms.keeping import BestWeights
from colonnade.algorithms.method import SERVER, Options, PartySetup, ServerSetup
from colonnade.algorithms.networks import party_rate
from colonnade.algorithms.prediction.predictor import Predictor, TrainedRoles
from colonnade.algorithms.training_progress import END_TIMER, EVALUATE_TIMER, TrainingProgress
from colonnade.models import Network, ServerNetwork, aggregated_width, party_module, server_module
from colonnade.models.joint import Joint
from colonnade.models.metrics import measure
from colonnade.models.server import aggregate
from colonnade.protocol.errors import TrainingDiverged
from colonnade.protocol.events import TimerFired
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import EVALUATION, Role, RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["CENTRALISED_PAYLOADS", "Centralised", "CentralisedOptions", "JointPredictor", "centralised"]


class CentralisedOptions(Options, frozen=True):
    """Options of the joint model."""

    average: bool = False  # evaluation and prediction use an average of the weights


class JointStep(Payload, frozen=True):
    """Job: run one batch through the joint model."""

    rows: Array
    seed: int


class JointStepped(Payload, frozen=True):
    """Result of `JointStep`: the gradients of θ_0, θ_1, …, θ_M."""

    loss: float
    gradients: list[Array]
    buffers: list[list[Array]]


class Judge(Payload, frozen=True):
    """Job: evaluate on the validation rows, or on the test rows if there are none. The last evaluation uses both."""

    last: bool
    number: int


CENTRALISED_PAYLOADS = (JointStep, JointStepped, Judge)


class JointPredictor(Predictor[CentralisedOptions, "Centralised", Role]):
    """Predicts with the joint model, from rows with all columns."""

    joint = True

    def in_one_place(
        self, roles: TrainedRoles[CentralisedOptions, "Centralised", Role], blocks: Sequence[Array], number: int
    ) -> Array:
        """Predict with the one role that holds all networks."""
        parts, network = roles.server.parts, roles.server.network
        h = np.concatenate([part.read(block) for part, block in zip(parts, blocks, strict=True)], axis=1)
        return network.objective.predict(network.output(h))

    def networks(self, roles: TrainedRoles[CentralisedOptions, "Centralised", Role]) -> Joint:
        """Return all networks of the one role."""
        return Joint(roles.server.network, roles.server.parts, lambda h: h)


def centralised(
    server: ServerSetup[CentralisedOptions], parties: list[PartySetup[CentralisedOptions]]
) -> "Centralised":
    """Make the oracle over the data of all members."""
    return Centralised(server, parties)


class Centralised(Chassis[RoleState]):
    """One role that holds all columns, all labels and all networks."""

    def __init__(self, server: ServerSetup[CentralisedOptions], parties: list[PartySetup[CentralisedOptions]]) -> None:
        super().__init__(SERVER, {}, RoleState())
        self._training = training = server.training
        self._x, self._x_test = tuple(party.train for party in parties), tuple(party.test for party in parties)
        objective = server.objective()
        self._targets, self._y_test = objective.targets(server.y_train), server.y_test
        self._how, self._names = server.aggregate, server.parties
        inputs = aggregated_width(server.aggregate, server.widths)
        top = server_module(server.model, inputs, server.task.outputs, derive(training.seed, "init", SERVER))
        average = server.options.average
        optimiser = training.server_optimiser.averaging(average)
        how, penalty = server.aggregate, training.server_regulariser
        self.network = ServerNetwork(top.to(server.device), optimiser, objective, how, len(parties), penalty)
        self.parts = tuple(
            Network(
                party_module(p.model, p.shape, p.width, derive(training.seed, "init", p.index), p.name).to(p.device),
                training.party_optimisers[p.index].averaging(average),
                training.regularisers[p.index],
            )
            for p in parties
        )
        self._rates = (training.server_rate, *(party_rate(training, p.index, p.train) for p in parties))
        self._walk = walk_of(training, None)
        self.progress, self.best_weights = TrainingProgress(training), BestWeights()

    def started(self, entropy: bytes) -> None:
        """Evaluate the untrained model and start the first batch."""
        self.do(self.progress.timers())
        self._judge()
        self._next()

    def _next(self) -> None:
        rows = self._walk.batch(self.progress.k)
        self.work("step", len(rows) / self._training.batch_size, JointStep(rows, self.progress.k))

    @job(JointStep)
    def joint_step(self, job: JointStep) -> JointStepped:
        """Compute the gradients of all networks in one graph over all columns."""
        rows, seed = job.rows, job.seed
        h = [part.run(part.tensor(x[rows]), seed) for part, x in zip(self.parts, self._x, strict=True)]
        output = self.network.run(aggregate(self._how, torch.cat(h, 1), len(h)), seed)
        loss = self.network.objective.loss(output, self.network.tensor(self._targets[rows]))
        networks = [self.network, *self.parts]
        gradients = torch.autograd.grad(loss, [p for n in networks for p in n.parameters], allow_unused=True)
        parts, start = [], 0
        for network in networks:
            count = len(network.parameters)
            parts.append(network.joined(gradients[start : start + count]))
            start += count
        return JointStepped(loss.item(), parts, [network.buffers_after_forward() for network in networks])

    @done(JointStepped)
    def stepped(self, token: int, result: JointStepped) -> None:
        """Step every network, then evaluate, end or continue; raise TrainingDiverged if the loss is not finite."""
        training, k = self._training, self.progress.k
        if self.progress.ending:
            return
        if not np.isfinite(result.loss):
            raise TrainingDiverged(f"the loss is not finite at update {k}; lower train.learning_rate")
        networks = zip([self.network, *self.parts], result.gradients, self._rates, result.buffers, strict=True)
        for network, gradient, rate, buffers in networks:
            network.apply(gradient, training.rule.rate(rate, k), buffers)
        self.progress.count(len(self.parts) * len(self._walk.batch(k)), [result.loss])
        if self.progress.at_limit():
            return self._end("done")
        if self.progress.evaluation_due():
            self._judge()
        self._next()

    def _end(self, reason: str) -> None:
        if not self.progress.ending:
            self.progress.ending = reason
            self._judge()

    def _judge(self) -> None:
        number, last = self.best_weights.number + 1, bool(self.progress.ending)
        if self._training.patience:
            self.best_weights.evaluation(number, self.progress.best, last, self)
        self.work(EVALUATION, 0.0, Judge(last, number), aside=True)

    def snapshot(self) -> list[Array]:
        """Return the weights of all networks, one after the other."""
        return [part for network in (self.network, *self.parts) for part in network.snapshot()]

    def settle_on(self, snapshot: list[Array]) -> None:
        """Return all networks to the weights of the snapshot."""
        for network in (self.network, *self.parts):
            own, snapshot = snapshot[: len(network.snapshot())], snapshot[len(network.snapshot()) :]
            network.settle_on(own)

    @job(Judge)
    def judge(self, job: Judge) -> Evaluated:
        """Compute the loss and the metrics."""
        validation, rows = self._training.validation, len(self._y_test)
        scores = self._scores(0, validation or rows)
        tested = self._scores(validation, rows) if job.last and validation else None
        return Evaluated(job.number, scores.loss, scores.values, tested)

    def _scores(self, start: int, stop: int) -> Scores:
        y, objective = self._y_test[start:stop], self.network.objective
        h = np.concatenate([part.read(x[start:stop]) for part, x in zip(self.parts, self._x_test, strict=True)], axis=1)
        loss, prediction = self.network.evaluate(h, objective.targets(y))
        metric, also = self._training.metric, self._training.also
        return Scores(loss, measure(metric, objective.task, y, prediction, loss, also))

    @done(Evaluated)
    def judged(self, token: int, result: Evaluated) -> None:
        """Report a row of metrics.jsonl, and end the run if it has stopped improving."""
        self.do(self.progress.report(result, [], []))
        if reason := self.progress.no_better():
            self._end(reason)

    @timer(EVALUATE_TIMER)
    def time_to_evaluate(self, due: int) -> None:
        self._judge()
        self.do(self.progress.evaluation_timer_fired(TimerFired(EVALUATE_TIMER, due)))

    @timer(END_TIMER)
    def time_is_up(self, due: int) -> None:
        self._end("time is up")

    def waits_for(self) -> list[str]:
        """Return nothing, since the oracle has no parties."""
        return []

    def owes(self) -> dict[str, str]:
        """Return nothing, since the oracle has no parties."""
        return {}

    def trained(self) -> dict[str, dict[str, Array]]:
        """Return the weights of all networks, by member."""
        networks = zip((SERVER, *self._names), (self.network, *self.parts), strict=True)
        return {name: network.trained() for name, network in networks}

    def target_scale(self) -> tuple[float, float]:
        """Return the mean and spread of the targets."""
        return self.network.objective.scale

    def summary(self) -> RoleSummary:
        """Report updates, epochs and the digests of the weights."""
        digests = "".join(network.digest() for network in (self.network, *self.parts))
        counts: RoleSummary = {"updates": self.progress.k, "epochs": self.progress.epochs, "weights": digests}
        return counts | {"note": self.progress.note()}
