"""The server of `wait`, `ignore` and `wait-dp` (FedVS Sec. 6.2): averages all embeddings, or the first to arrive."""

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from colonnade.algorithms.chassis import PARTY, Coordinator, CoordinatorState, done, job, on
from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import PlainOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import Gradient
from colonnade.algorithms.fedvs.plain_messages import Average, Averaged, BeginRound, Upload
from colonnade.algorithms.fedvs.server import averaging_network
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.messages import Array
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["PlainServer", "State"]

GATHERING, AVERAGING = "gathering", "averaging"


class AveragedEvaluation(Evaluation):
    """Judges averages; for a missing party, it uses the rows as last seen."""

    def gathered(self, h: Array) -> Array:
        """The average over the parties."""
        average: Array = h.reshape(len(h), len(self._index), -1).mean(1)
        return average


@dataclass(slots=True, kw_only=True)
class State(CoordinatorState):
    """The round that is gathered, and the one that is averaged."""

    round: int = 0  # the round that is averaged, or was last
    following: int = 0  # the round that is gathered
    doing: str = GATHERING
    uploads: dict[str, Array] = field(default_factory=dict)  # embeddings of the gathered round
    summed: list[int] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


class PlainServer(Coordinator[State]):
    """Holds θ_0 and the labels, and sees every party's embeddings."""

    def __init__(self, setup: ServerSetup[PlainOptions]) -> None:
        training, options = setup.training, setup.options
        # The test table lies in memory, whatever `server.table` says: the server holds no other table.
        evaluation = AveragedEvaluation(setup.parties, setup.widths, setup.y_test, training.metric, also=training.also)
        super().__init__(setup, State(), evaluation, everyone=True)
        self.options, self.taken, self.width = options, options.taken(len(setup.parties)), setup.widths[0]
        self.network = averaging_network(setup, "this method")
        self.targets = self.network.objective.targets(setup.y_train)
        self.walk = SegmentWalk(len(setup.y_train), training, options.segments(len(setup.parties)))
        self.seed = derive(training.seed, "layers", SERVER)

    # Gathering.

    @on(Upload, PARTY)
    def upload(self, sender: str, message: Upload) -> None:
        """Take a party's embeddings of the gathered round. The server's round counts: tell a party at another one."""
        message = self.decoded(sender, message)
        self._check(sender, message)
        s = self.state
        if message.round != s.following:
            return self.send(sender, BeginRound(s.following))
        s.uploads[sender] = message.values
        self.advance()

    def _check(self, sender: str, message: Upload) -> None:
        if not 0 <= message.round < LAST_ROUND:
            raise RemoteProtocolError(sender, f"embeddings of round {message.round}")
        expected, values = (len(self.walk.rows(message.round)), self.width), message.values
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
        if not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")

    def waits_for(self) -> list[str]:
        """The parties that the round still needs; if it takes only the first embeddings, any of these."""
        return [name for name in self.names if name not in self.state.uploads]

    def awaited(self) -> str:
        """What the round needs."""
        return f"embeddings of round {self.state.following}"

    def forget(self, peer: str) -> None:
        """The party sends its embeddings again."""
        self.state.uploads.pop(peer, None)

    # Averaging.

    def advance(self) -> None:
        """Average the round, once enough embeddings are here; an evaluation that is due comes first."""
        s = self.state
        if s.doing != GATHERING or self.progress.ending or self.judging() or len(s.uploads) < self.taken:
            return
        if s.due:
            return self.settle()
        s.doing, s.round = AVERAGING, s.following
        s.summed = sorted(self.index[name] for name in list(s.uploads)[: self.taken])
        rows = self.walk.rows(s.round)
        h: Array = np.stack([s.uploads[self.names[n]] for n in s.summed]).mean(0)
        s.following, s.uploads = s.round + 1, {}
        seed = (self.seed + s.round) % 2**63
        self.work("step", len(rows) / self.training.batch_size, Average(h, self.targets[rows], seed), repeatable=True)

    @job(Average)
    def average(self, job: Average) -> Averaged:
        """One pass through θ_0."""
        passed = self.network.gradients(job.h, job.targets, job.seed)
        return Averaged(passed.loss, passed.h, passed.theta_0, self.network.buffers_after_forward())

    @done(Averaged)
    def averaged(self, token: int, result: Averaged) -> None:
        """Step θ_0, and send ∇_H to all parties of the round; the others continue at the next round."""
        s, k = self.state, self.k
        if not isfinite(result.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {s.round}; lower train.learning_rate")
        self.network.apply(result.theta_0, self.training.rule.rate(self.training.server_rate, k), result.buffers)
        self.counted(len(result.h) * len(s.summed), [result.loss])
        gradient, over = Gradient(s.round, k, s.round, s.summed, result.h), BeginRound(s.following)
        for n, name in enumerate(self.names):
            if n in s.summed:
                self.send(name, gradient)
            else:
                s.left_out[name] = s.left_out.get(name, 0) + 1
                self.send(name, over)
        s.doing = GATHERING
        self.advance()

    def validate(self) -> None:
        """Raise if an invariant between two events does not hold."""
        if self.state.doing == AVERAGING and len(self.state.summed) != self.taken:
            raise LocalProtocolError(f"server: an average of {len(self.state.summed)}, not of {self.taken}")

    def told(self) -> RoleSummary:
        """How often each party was left out, and the noise of one release."""
        left_out = {"left_out_of_averages": dict(sorted(self.state.left_out.items()))}
        return super().told() | {"method": left_out | self.options.told()}
