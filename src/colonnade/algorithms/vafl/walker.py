"""Parties that walk through their rows batch by batch, with one upload in flight at a time: Alg. 1 lines 3–7.

Walker         a current batch, and the step of θ_m that its answer leads to
FirstOrder     learns from the gradient that comes back: VAFL and the lock-step baseline
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from colonnade.algorithms.batches import Order, Rows
from colonnade.algorithms.chassis import Member, MemberState, done, done_blind, job, on
from colonnade.algorithms.chassis.member import Reads
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.networks import party_rate
from colonnade.algorithms.sane import LARGEST, are_sane, is_finite, is_step
from colonnade.algorithms.vafl.messages import (
    Embed,
    Embedded,
    Embeddings,
    Gradient,
    Refine,
    Refined,
)
from colonnade.models import Network, OptimiserSpec, Regulariser, party_module
from colonnade.models.on_device import gathered
from colonnade.privacy.accountant import STEP
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Promised, once_made
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, RoleSummary
from colonnade.protocol.saved import transient
from colonnade.protocol.seeds import derive

__all__ = ["FORWARD_SHARE", "FirstOrder", "Walker", "WalkerState", "Walks"]

# A forward pass costs at most half of a local step: in any layered network the backward pass costs at least as much.
FORWARD_SHARE = 0.5


class Walks(Reads, Protocol):
    """What a walking party needs of its network."""

    @property
    def averages(self) -> bool:
        """Whether it keeps averages of what it has seen (BatchNorm)."""

    def renewed(self, x: Array, seed: int, company: Array) -> Array:
        """Return embeddings, in training mode, of rows that are not trained on."""

    def apply(self, gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        """Take one step with this gradient."""


def _no_rows() -> Rows:
    return np.zeros(0, np.int32)


@dataclass(slots=True, kw_only=True)
class WalkerState(MemberState):
    """The current batch."""

    step: int = 0  # position in the walk
    rows: Rows = field(default_factory=_no_rows)
    sent: Rows = field(default_factory=_no_rows)  # `rows` and the further rows of the upload
    busy: bool = False  # a job is running on the lane
    uploaded: bool = False  # its embeddings are at the server
    buffers: list[Array] = field(default_factory=list)  # BatchNorm's averages after the batch's forward pass
    draw_of_batch: int = 0  # number of the batch's noise draw
    k: int = 0  # update k of the last answer
    dropped: int = 0  # messages about another step
    x: Array = transient(lambda: np.zeros(0, np.float32))


W = TypeVar("W", bound=WalkerState)


class Walker(Member[W], Generic[W]):
    """Holds θ_m and its own columns."""

    network: Walks

    def __init__(self, setup: PartySetup[Options], state: W, walk: Order) -> None:
        super().__init__(setup, state)
        training, index = setup.training, setup.index
        optimiser, regulariser = training.party_optimisers[index], training.regularisers[index]
        self.network = self.make_network(setup, derive(training.seed, "init", index), optimiser, regulariser)
        self.guard.try_out(self.network, self.x.shape[1], setup.width)
        self.rate = self.rate_of(setup)
        self.walk, self.layers = walk, derive(training.seed, "layers", index)
        self.company = self.x[walk.batch(0)] if self.network.averages else self.x[:0]  # see Network.renewed

    def make_network(
        self, setup: PartySetup[Options], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> Walks:
        """Return θ_m. A method may override it to use another kind of network."""
        raise NotImplementedError

    def rate_of(self, setup: PartySetup[Options]) -> float:
        """Return the learning rate of the party's steps."""
        return setup.training.party_rates[setup.index]

    @property
    def k(self) -> int:
        """The update that the last answer belongs to."""
        return self.state.k

    # What a method defines.

    def select(self) -> None:
        """Alg. 1 l. 4: choose the next batch and embed it."""
        raise NotImplementedError

    def learned(self) -> None:
        """Continue after a step."""
        raise NotImplementedError

    def further_rows(self) -> Rows | None:
        """Return rows to renew in the server's table together with a batch."""
        return None

    # What a method calls.

    def choose(self) -> None:
        """Take the walk's next batch."""
        s = self.state
        s.busy = True
        s.rows = s.sent = self.rows_of_step()
        s.x = gathered(self.x, s.rows)

    def rows_of_step(self) -> Rows:
        """Return the batch of the walk's current step."""
        return self.walk.batch(self.state.step)

    def layer_seed(self, step: int | None = None) -> int:
        """Return the seed of the random layers in this step, or in another one."""
        return (self.layers + (self.state.step if step is None else step)) % 2**63

    def renew_seed(self, what: str, number: int) -> int:
        """Return the seed of the random layers in a pass that only renews the table."""
        return derive(self.training.seed, "layers", self.index, what, number)

    def renewing(self, rows: int) -> float:
        """Return the cost of such a pass, in rows of a whole step. With averages it includes at least a batch."""
        return FORWARD_SHARE * max(rows, len(self.company))

    def renewed(self, x: Array, seed: int) -> Array:
        """Return embeddings for the table, in training mode as for batches. Only evaluation uses evaluation mode."""
        return self.network.renewed(x, seed, self.company)

    def check_own(self, values: Array) -> None:
        """Raise TrainingDiverged for the party's own embeddings that the server would refuse."""
        if not are_sane(self.decode(values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")

    def is_answer(self, step: int) -> bool:
        """Whether the party waits for an answer to this step; if not, count the answer as dropped."""
        s = self.state
        expected = s.uploaded and not s.busy and step == s.step
        s.dropped += not expected
        return expected

    @job(Embed, released=True)
    def embed_rows(self, job: Embed) -> Embedded:
        """Embed rows that renew the table."""
        assert job.renew is not None
        return Embedded(self.encode(self.renewed(job.renew, job.renew_seed)), [])

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        """Handle the embeddings of a batch."""
        self.batch_embedded(result)

    def batch_embedded(self, result: Embedded) -> None:
        """Alg. 1 l. 5, for parties that embed their batch with an `Embed`."""
        raise LocalProtocolError(f"{self.name}: computed embeddings that no step waits for")

    @done_blind(Refined)
    def refined(self, token: int, result: Refined | Promised) -> None:
        """Eq. (4a): θ_m ← θ_m − η(ĝ_m + ∇r(θ_m))."""
        s, training = self.state, self.training
        rate, buffers = training.rule.rate(self.rate, s.k), s.buffers
        once_made(result, lambda made: self.learn(made.gradient, rate, buffers))
        s.busy = s.uploaded = False
        s.step += 1
        self.learned()

    def learn(self, gradient: Array, rate: float, buffers: list[Array]) -> None:
        """Step θ_m."""
        self.network.apply(gradient, rate, buffers)

    def conversation_reset(self) -> None:
        """Repeat an upload that may be lost."""
        if self.state.uploaded and not self.state.busy:
            self.state.uploaded = False
            self.select()

    def loaded(self) -> None:
        """Restore the features of the batch."""
        self.state.x = self.x[self.state.rows]

    def validate(self) -> None:
        """Raise LocalProtocolError unless an uploaded batch is the walk's."""
        s = self.state
        if s.uploaded and len(s.rows) != len(self.rows_of_step()):
            raise LocalProtocolError(f"{self.name}: the uploaded batch is not the batch of step {s.step}")
        if s.uploaded and len(s.sent) < len(s.rows):
            raise LocalProtocolError(f"{self.name}: fewer rows sent than selected")

    def told(self) -> RoleSummary:
        """Report the steps taken and the messages dropped."""
        return {"steps": self.state.step, "dropped": self.state.dropped}


class FirstOrder(Walker[W], Generic[W]):
    """Learns from ∂ℓ/∂h by the chain rule."""

    network: Network

    def rate_of(self, setup: PartySetup[Options]) -> float:
        """Return the learning rate: with `learning_rate = "auto"` it is lower for wide rows."""
        return party_rate(setup.training, setup.index, self.x)

    def make_network(
        self, setup: PartySetup[Options], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> Network:
        """Return θ_m behind the guard. A method may override it to use another kind of network."""
        module = party_module(setup.model, setup.shape, setup.width, seed, setup.name)
        spec = optimiser.averaging(setup.options.average)
        return Network(self.guard.wrap(module).to(setup.device), spec, regulariser)

    def select(self) -> None:
        """Alg. 1 l. 4: choose the next batch and embed it, with further rows if the method asks for them (†)."""
        self.choose()
        s, renew, renew_seed = self.state, None, 0
        amount = float(len(s.rows))
        extra = self.further_rows()
        if extra is not None:
            s.sent, renew = np.concatenate([s.rows, extra]), self.x[extra]
            renew_seed = self.renew_seed("further rows", s.step)
            amount += self.renewing(len(extra))
        release = self.guard.plan("batch", s.sent)
        s.draw_of_batch = self.guard.draws
        job = Embed(s.step, self.layer_seed(), s.x, renew, renew_seed, release=release)
        self.work("step", amount / self.training.batch_size, job, repeatable=not self.guard.on)

    def network_for(self, step: int) -> Network:
        """Return the network that runs the forward pass of a step."""
        return self.network

    def network_of(self, step: int) -> Network:
        """Return the network as it was at a step's forward pass. θ_m does not move while it waits for one gradient."""
        return self.network

    def embed_rows(self, job: Embed) -> Embedded:
        """Compute h_m(θ_m; x) of a batch, and of rows that only renew the table."""
        parts, buffers = [], []
        if job.batch is not None:
            network = self.network_for(job.step)
            parts.append(network.forward(job.batch, job.step, job.seed))
            buffers = network.buffers_after_forward()
        if job.renew is not None:
            parts.append(self.renewed(job.renew, job.renew_seed))
        return Embedded(self.encode(parts[0] if len(parts) == 1 else np.concatenate(parts)), buffers)

    def batch_embedded(self, result: Embedded) -> None:
        """Alg. 1 l. 5: upload."""
        self.check_own(result.values)
        s = self.state
        s.busy, s.uploaded, s.buffers = False, True, result.buffers
        self.upload(result.values)

    def upload(self, values: Array) -> None:
        """Send the batch. The server answers with its gradient."""
        s = self.state
        self.send(SERVER, Embeddings(s.step, len(s.rows), s.sent, values))

    @on(Gradient, SERVER)
    def gradient(self, sender: str, message: Gradient) -> None:
        """Alg. 1 l. 6–7: the answer to the query; ∇θ_m by the chain rule, Eq. (2b)."""
        if not self.is_answer(message.step):
            return
        s = self.state
        self.check_gradient(sender, message, len(s.rows))
        self.descend(message.update, s.step, s.rows, s.x, message.values, s.draw_of_batch)

    def check_gradient(self, sender: str, message: Gradient, rows: int) -> None:
        """Raise RemoteProtocolError for what cannot be the gradient of a batch of `rows` rows."""
        values = message.values
        if values.shape != (rows, self.width) or values.dtype != np.float32:
            cause = f"gradient of shape {values.shape} for {rows} rows, expected width {self.width} float32"
            raise RemoteProtocolError(sender, cause)
        if not is_finite(values):
            raise RemoteProtocolError(sender, "gradient that is not finite")
        if not is_step(message.update):
            raise RemoteProtocolError(sender, f"gradient of update {message.update}")

    def descend(self, update: int, step: int, rows: Rows, x: Array, values: Array, draw: int) -> None:
        """Start the job that turns the gradient of a step's embeddings into that of θ_m."""
        self.state.busy, self.state.k = True, update
        job = Refine(step, self.layer_seed(step), x, values, release=self.guard.again(draw, STEP, rows))
        # The step's time includes this job. A guard may withhold the result; then what follows depends on it.
        self.work("refine", 0.0, job, blind=not self.guard.on, repeatable=not self.guard.on)

    @job(Refine)
    def refine(self, job: Refine) -> Payload:
        """Compute the gradient of θ_m, plain or clipped and perturbed."""
        network = self.network_of(job.step)

        def plain() -> Refined:
            return Refined(network.backward(job.x, job.step, job.seed, job.values))

        def private(clip: float, noise: Callable[[int], Array]) -> Refined:
            return Refined(network.private_gradient(job.x, job.seed, job.values, clip, noise))

        return self.guard.stepped(job.release, plain, private)
