"""A party of `wait`, `ignore` and `wait-dp`: embed, upload, step; then continue at the newest round.

`wait-dp` is the Gaussian mechanism on every row that leaves, to train, to evaluate and to predict: the guard shrinks
the embedding to norm C, adds noise, and enters the release into the ledger before it can leave.
"""

from dataclasses import dataclass

import numpy as np

from colonnade.algorithms.chassis import Member, MemberState, done, job, on
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import PlainOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import Gradient, Stepped
from colonnade.algorithms.fedvs.plain_messages import BeginRound, Embed, Embedded, Learn, Upload
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.sane import LARGEST, are_sane, is_step
from colonnade.models import Network, party_module
from colonnade.privacy.accountant import STEP
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["PlainParty", "State"]

EMBEDDING, WAITING, STEPPING = "embedding", "waiting", "stepping"


@dataclass(slots=True, kw_only=True)
class State(MemberState):
    """The party's position in the rounds, and counts for the summary."""

    round: int = 0  # the round that is embedded or waited for
    following: int = 0  # the newest round
    doing: str = EMBEDDING
    draw_of_round: int = 0  # which noise its upload has
    dropped: int = 0
    left_out: int = 0


class PlainParty(Member[State]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[PlainOptions]) -> None:
        super().__init__(setup, State())
        training, seed, index = setup.training, setup.training.seed, setup.index
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", index), setup.name)
        optimiser, regulariser = training.party_optimisers[index], training.regularisers[index]
        self.network: Network = Network(self.guard.wrap(module).to(setup.device), optimiser, regulariser)
        self.walk = SegmentWalk(len(self.x), training, setup.options.segments(setup.parties))
        self.seed, self.rate = derive(seed, "layers", index), training.party_rates[index]

    def begin(self) -> None:
        """Start the first round, or the newest; charges a whole local step's time here, as the other methods do."""
        s = self.state
        s.doing, s.round = EMBEDDING, s.following
        rows = self.walk.rows(s.round)
        release = self.guard.plan("batch", rows)
        s.draw_of_round = self.guard.draws
        job = Embed(s.round, self.x[rows], release=release)
        self.work("step", len(rows) / self.training.batch_size, job, repeatable=not self.guard.on)

    @job(Embed, released=True)
    def embed_rows(self, job: Embed) -> Embedded:
        """The embeddings of the batch, as they are sent."""
        values = self.network.forward(job.x, job.round, self._layer_seed(job.round))
        return Embedded(job.round, self.encode(values))

    def _layer_seed(self, round: int) -> int:
        return (self.seed + round) % 2**63

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        """Send the upload."""
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")
        self.state.doing = WAITING
        self.send(SERVER, Upload(self.state.round, result.values))

    @on(Gradient, SERVER)
    def learn(self, sender: str, message: Gradient) -> None:
        """The round is over: step, if this party was part of it, and continue."""
        s = self.state
        if message.round != s.round or s.doing == STEPPING:
            return self._go_on(message.round + 1)
        if self.index not in message.summed or s.doing != WAITING:
            s.left_out += 1
            return self._go_on(message.round + 1)
        rows, values = self.walk.rows(s.round), message.values
        if values.shape != (len(rows), self.width) or values.dtype != np.float32:
            expected = (len(rows), self.width)
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")
        if not is_step(message.update):
            raise RemoteProtocolError(SERVER, f"a gradient of update {message.update}")
        s.doing, s.following = STEPPING, message.round + 1
        of_own = values / np.float32(len(message.summed))  # ∇_{H_n} = ∇_H/|S|
        release = self.guard.again(s.draw_of_round, STEP, rows)
        job = Learn(s.round, message.update, self.x[rows], of_own, release=release)
        self.work("refine", 0.0, job, repeatable=not self.guard.on)

    @job(Learn)
    def gradient(self, job: Learn) -> Stepped:
        """∇_{θ_m}; it may have to repeat the forward pass, with the noise of the upload."""
        if job.release is None:
            return self._gradient(job)
        with self.guard.drawing(job.release):
            return self._gradient(job)

    def _gradient(self, job: Learn) -> Stepped:
        gradient = self.network.backward(job.x, job.round, self._layer_seed(job.round), job.values)
        return Stepped(job.update, gradient, self.network.buffers_after_forward())

    @done(Stepped)
    def stepped(self, token: int, result: Stepped) -> None:
        """Step θ_m, and continue with the next round."""
        self.network.apply(result.gradient, self.training.rule.rate(self.rate, result.update), result.buffers)
        self.begin()

    @on(BeginRound, SERVER)
    def told_to_begin(self, sender: str, message: BeginRound) -> None:
        """The server is at this round. If it has lost its memory of some rounds, that is an earlier one."""
        if 0 <= message.round < self.state.round:
            self.state.round = self.state.following = message.round
            return self._change_round()
        self._go_on(message.round)

    def _go_on(self, round: int) -> None:
        """Continue at the newest round; drop work for an older one."""
        s = self.state
        if not s.round < round < LAST_ROUND or round <= s.following:
            s.dropped += 1
            return
        s.following = round
        self._change_round()

    def _change_round(self) -> None:
        """Begin the round that follows, at once or after a running step."""
        s = self.state
        if s.doing == STEPPING:
            return
        if s.doing == EMBEDDING:
            self.cancel(s.jobs)
        self.begin()

    def conversation_reset(self) -> None:
        """The upload may be lost: embed the batch again."""
        if self.state.doing == WAITING:
            self.begin()

    def validate(self) -> None:
        """Raise if the newest round is behind the current one."""
        if self.state.following < self.state.round:
            raise LocalProtocolError(
                f"{self.name}: in round {self.state.round}, and the newest is {self.state.following}"
            )

    def told(self) -> RoleSummary:
        """Steps taken, and counts of rounds that left this party out."""
        return {"steps": self.network.steps, "left_out": self.state.left_out, "dropped": self.state.dropped}
