"""The server of `median`: gather all parties' embeddings, take their middle, answer."""

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.chassis import PARTY, Coordinator, CoordinatorState, done, job, on
from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.sane import are_sane
from colonnade.models import Objective, ServerNetwork, aggregated_width, server_module
from colonnade.protocol.errors import ConfigError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import derive
from colonnade_median.config import MedianOptions
from colonnade_median.messages import Center, Centered, GoOn, Gradient, Upload

__all__ = ["Server", "middle"]


def middle(h: Array, taken: int) -> tuple[Array, Array]:
    """H (batch, width) of all h_m (parties, batch, width), and ∂H/∂h_m."""
    above = (len(h) - taken) // 2
    share = np.zeros_like(h)
    np.put_along_axis(share, np.argsort(h, axis=0, kind="stable")[above : above + taken], 1 / taken, axis=0)
    return (h * share).sum(0), share


class MiddleEvaluation(Evaluation):
    """Evaluates and predicts with the middle."""

    taken = 1

    def gathered(self, h: Array) -> Array:
        """From blocks side by side."""
        return middle(np.moveaxis(h.reshape(len(h), len(self._index), -1), 1, 0), self.taken)[0]


@dataclass(slots=True, kw_only=True)
class State(CoordinatorState):
    """The round being gathered; the previous one may still be computed."""

    round: int = 0
    uploads: dict[str, Array] = field(default_factory=dict)
    working: bool = False


class Server(Coordinator[State]):
    """Holds θ_0 and the labels."""

    def __init__(self, setup: ServerSetup[MedianOptions]) -> None:
        if setup.aggregate != "mean":
            raise ConfigError("model.aggregate", setup.aggregate, "median takes the middle of embeddings: use 'mean'")
        training, width = setup.training, aggregated_width("mean", setup.widths)
        evaluation = MiddleEvaluation(setup.parties, setup.widths, setup.y_test, training.metric)
        super().__init__(setup, State(), evaluation, everyone=True)
        self.middle = evaluation.taken = setup.options.taken_of(len(setup.parties))
        module = server_module(setup.model, width, setup.task.outputs, derive(training.seed, "init", SERVER))
        objective = Objective(setup.task, setup.y_train)
        self.network = ServerNetwork(module.to(setup.device), training.server_optimiser, objective, "concat", 1)
        self.targets, self.width = objective.targets(setup.y_train), width
        self.walk = Walk(training.rows, training.batch_size, training.seed, "batches")
        self.layers = derive(training.seed, "layers", SERVER)

    @on(Upload, PARTY)
    def upload(self, sender: str, message: Upload) -> None:
        """Keep an upload until all are here; the party or this server may have forgotten some rounds."""
        s, values, round = self.state, message.values, message.round
        expected = (len(self.walk.batch(round)) if 0 <= round < 2**53 else 0, self.width)
        if values.shape != expected or values.dtype != np.float32 or not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings {values.shape} of round {round}, expected {expected} sane")
        if round != s.round:  # the server's round counts: no party moves the others
            return self.send(sender, GoOn(s.round))
        s.uploads[sender] = values
        self.advance()

    def advance(self) -> None:
        """Start one pass once all embeddings are here; a due evaluation or end comes first."""
        s = self.state
        if s.working or self.progress.ending or self.judging() or len(s.uploads) < len(self.names):
            return
        if s.due:
            return self.settle()
        rows, h = self.walk.batch(s.round), np.stack([s.uploads[name] for name in self.names])
        self.work("step", len(rows) / self.training.batch_size, Center(s.round, h, self.targets[rows]))
        s.round, s.uploads, s.working = s.round + 1, {}, True

    @job(Center)
    def center(self, job: Center) -> Centered:
        """Both gradients from one pass; ∂ℓ/∂h_m by the chain rule."""
        h, share = middle(job.h, self.middle)
        passed = self.network.gradients(h, job.targets, (self.layers + job.round) % 2**63)
        buffers = self.network.buffers_after_forward()
        return Centered(job.round, passed.loss, share * passed.h, passed.theta_0, buffers)

    @done(Centered)
    def centered(self, token: int, result: Centered) -> None:
        """Step θ_0 and answer."""
        s, training, k = self.state, self.training, self.k
        if not isfinite(result.loss):
            raise TrainingDiverged(f"server: the loss is not finite at update {k}; lower train.learning_rate")
        self.network.apply(result.theta_0, training.rule.rate(training.server_rate, k), result.buffers)
        self.counted(result.h.shape[0] * result.h.shape[1], [result.loss])
        for name, values in zip(self.names, result.h, strict=True):
            self.send(name, Gradient(result.round, k, values))
        s.working = False
        self.advance()

    def forget(self, peer: str) -> None:
        """The party sends its embeddings again."""
        self.state.uploads.pop(peer, None)

    def waits_for(self) -> list[str]:
        """The parties whose embeddings are missing."""
        return [name for name in self.names if name not in self.state.uploads]
