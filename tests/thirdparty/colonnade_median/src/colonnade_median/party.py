"""A party of `median`: embed, upload, learn."""

from dataclasses import dataclass

import numpy as np

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.chassis import Member, MemberState, done, job, on
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.sane import are_sane
from colonnade.models import Network, party_module
from colonnade.protocol.errors import RemoteProtocolError, TrainingDiverged
from colonnade.protocol.seeds import derive
from colonnade_median.config import MedianOptions
from colonnade_median.messages import Embed, Embedded, GoOn, Gradient, Learn, Learned, Upload

__all__ = ["Party"]


@dataclass(slots=True, kw_only=True)
class State(MemberState):
    """The party's place in training."""

    round: int = 0
    waiting: bool = False  # for the gradient of what it uploaded


class Party(Member[State]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[MedianOptions]) -> None:
        super().__init__(setup, State())
        training, seed, m = setup.training, setup.training.seed, setup.index
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", m), setup.name)
        optimiser, regulariser = training.party_optimisers[m], training.regularisers[m]
        self.network: Network = Network(module.to(setup.device), optimiser, regulariser)
        self.walk = Walk(training.rows, training.batch_size, seed, "batches")
        self.layers = derive(seed, "layers", m)

    def begin(self) -> None:
        """Embed the round's batch; its charge covers a whole local step."""
        rows, self.state.waiting = self.walk.batch(self.state.round), False
        self.work("step", len(rows) / self.training.batch_size, Embed(self.state.round, self.x[rows]))

    @job(Embed)
    def embed_rows(self, job: Embed) -> Embedded:
        return Embedded(self.network.forward(job.x, job.round, (self.layers + job.round) % 2**63))

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        if not are_sane(result.values):
            raise TrainingDiverged(f"{self.name}: its embeddings are absurd; lower train.learning_rate")
        self.state.waiting = True
        self.send(SERVER, Upload(self.state.round, result.values))

    @on(Gradient, SERVER)
    def gradient(self, sender: str, message: Gradient) -> None:
        """Start the gradient job if the answer is still of use."""
        s, values = self.state, message.values
        if message.round != s.round or not s.waiting:
            return
        rows = self.walk.batch(s.round)
        if values.shape != (len(rows), self.width) or values.dtype != np.float32:
            raise RemoteProtocolError(sender, f"a gradient of shape {values.shape} for {len(rows)} rows")
        s.waiting = False
        self.work("refine", 0.0, Learn(s.round, message.update, self.x[rows], values))

    @job(Learn)
    def learn(self, job: Learn) -> Learned:
        """∇θ_m by the chain rule."""
        gradient = self.network.backward(job.x, job.round, (self.layers + job.round) % 2**63, job.values)
        return Learned(job.update, gradient, self.network.buffers_after_forward())

    @done(Learned)
    def learned(self, token: int, result: Learned) -> None:
        """Step θ_m and start the next round."""
        rate = self.training.rule.rate(self.training.party_rates[self.index], result.update)
        self.network.apply(result.gradient, rate, result.buffers)
        self.state.round += 1
        self.begin()

    @on(GoOn, SERVER)
    def go_on(self, sender: str, message: GoOn) -> None:
        """The server is at another round. If this party is busy, its next upload gets this answer, too."""
        if not 0 <= message.round < 2**53:
            raise RemoteProtocolError(sender, f"sends this party to round {message.round}")
        if self.state.waiting and message.round != self.state.round:
            self.state.round = message.round
            self.begin()

    def conversation_reset(self) -> None:
        """The upload may be lost: make it again."""
        if self.state.waiting:
            self.begin()
