"""Parties that walk through their rows batch by batch, one upload in the air at a time: Alg. 1 lines 3–7.

Walker         a batch in work, and the step of θ_m that its answer leads to
FirstOrder     learns from the gradient that comes back: VAFL and the lock-step baseline
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from colonnade.algorithms.batches import Rows, Walk
from colonnade.algorithms.chassis import Member, MemberState, done, done_blind, job, on
from colonnade.algorithms.chassis.member import Reads
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.networks import party_rate
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.algorithms.vafl.messages import (
    Embed,
    Embedded,
    Embeddings,
    Gradient,
    Refine,
    Refined,
)
from colonnade.models import Network, OptimiserSpec, Regulariser, party_module
from colonnade.privacy.accountant import STEP
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Promised, once_made
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, RoleSummary
from colonnade.protocol.saved import transient
from colonnade.protocol.seeds import derive

__all__ = ["FORWARD_SHARE", "FirstOrder", "Walker", "WalkerState", "Walks"]

# A forward pass is at most half of a local step: the backward pass costs at least as much in any layered network.
FORWARD_SHARE = 0.5


class Walks(Reads, Protocol):
    """What the network of a walking party can do."""

    @property
    def averages(self) -> bool:
        """Whether it keeps averages of what it has seen (BatchNorm)."""

    def renewed(self, x: Array, seed: int, company: Array) -> Array:
        """Embeddings in training mode, of rows that are not trained on."""

    def apply(self, gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        """One step."""


def _no_rows() -> Rows:
    return np.zeros(0, np.int32)


@dataclass(slots=True, kw_only=True)
class WalkerState(MemberState):
    """The batch in work."""

    step: int = 0  # position in the walk
    rows: Rows = field(default_factory=_no_rows)
    sent: Rows = field(default_factory=_no_rows)  # with the further rows of its upload
    busy: bool = False  # a job is running on the lane
    uploaded: bool = False  # its embeddings are at the server
    buffers: list[Array] = field(default_factory=list)  # as its forward pass left them
    draw_of_batch: int = 0  # which noise it has
    k: int = 0  # the update that the last answer belongs to
    dropped: int = 0  # messages of another step
    x: Array = transient(lambda: np.zeros(0, np.float32))


W = TypeVar("W", bound=WalkerState)


class Walker(Member[W], Generic[W]):
    """Holds θ_m and its own columns."""

    network: Walks

    def __init__(self, setup: PartySetup[Options], state: W, walk: Walk) -> None:
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
        """θ_m; a method of one's own may have another kind."""
        raise NotImplementedError

    def rate_of(self, setup: PartySetup[Options]) -> float:
        """Of its steps."""
        return setup.training.party_rates[setup.index]

    @property
    def k(self) -> int:
        """The update that the last answer belongs to."""
        return self.state.k

    # What a method says.

    def select(self) -> None:
        """Alg. 1 l. 4: choose the next batch and embed it."""
        raise NotImplementedError

    def learned(self) -> None:
        """A step is done: how it goes on."""
        raise NotImplementedError

    def further_rows(self) -> Rows | None:
        """To renew in the server's table beside a batch."""
        return None

    # What it calls.

    def choose(self) -> None:
        """Take the walk's next batch."""
        s = self.state
        s.busy = True
        s.rows = s.sent = self.rows_of_step()
        s.x = self.x[s.rows]

    def rows_of_step(self) -> Rows:
        """The batch of the step that the walk is at."""
        return self.walk.batch(self.state.step)

    def layer_seed(self, step: int | None = None) -> int:
        """For the random layers of this step, or of another one."""
        return (self.layers + (self.state.step if step is None else step)) % 2**63

    def renew_seed(self, what: str, number: int) -> int:
        """For the random layers of a pass that only renews the table."""
        return derive(self.training.seed, "layers", self.index, what, number)

    def renewing(self, rows: int) -> float:
        """What such a pass costs, in rows of a whole step; with averages it has at least a batch of them."""
        return FORWARD_SHARE * max(rows, len(self.company))

    def renewed(self, x: Array, seed: int) -> Array:
        """Embeddings for the table: in training mode, as its batches are; evaluation alone reads in evaluation mode."""
        return self.network.renewed(x, seed, self.company)

    def check_own(self, values: Array) -> None:
        """What the server would refuse is this party's own trouble."""
        if not are_sane(self.decode(values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")

    def is_answer(self, step: int) -> bool:
        """Whether an answer to this step is waited for; if not, it is dropped."""
        s = self.state
        expected = s.uploaded and not s.busy and step == s.step
        s.dropped += not expected
        return expected

    @job(Embed, released=True)
    def embed_rows(self, job: Embed) -> Embedded:
        """Rows that renew the table."""
        assert job.renew is not None
        return Embedded(self.encode(self.renewed(job.renew, job.renew_seed)), [])

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        """Of a batch."""
        self.batch_embedded(result)

    def batch_embedded(self, result: Embedded) -> None:
        """Alg. 1 l. 5, of parties that embed their batch with an `Embed`."""
        raise LocalProtocolError(f"{self.name}: embeddings that nothing waits for")

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
        """The step of θ_m itself."""
        self.network.apply(gradient, rate, buffers)

    def anew(self) -> None:
        """Make an upload that may be lost once more."""
        if self.state.uploaded and not self.state.busy:
            self.state.uploaded = False
            self.select()

    def loaded(self) -> None:
        """The features of the batch."""
        self.state.x = self.x[self.state.rows]

    def validate(self) -> None:
        """An uploaded batch is the walk's."""
        s = self.state
        if s.uploaded and len(s.rows) != len(self.rows_of_step()):
            raise LocalProtocolError(f"{self.name}: the uploaded batch is not the batch of step {s.step}")
        if s.uploaded and len(s.sent) < len(s.rows):
            raise LocalProtocolError(f"{self.name}: fewer rows sent than selected")

    def told(self) -> RoleSummary:
        """Steps taken, and what was dropped."""
        return {"steps": self.state.step, "dropped": self.state.dropped}


class FirstOrder(Walker[W], Generic[W]):
    """Learns from ∂ℓ/∂h by the chain rule."""

    network: Network

    def rate_of(self, setup: PartySetup[Options]) -> float:
        """Of its steps: less for wide rows, unless the config says it."""
        return party_rate(setup.training, setup.index, self.x)

    def make_network(
        self, setup: PartySetup[Options], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> Network:
        """θ_m; a method of one's own may have another kind."""
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
        self.work("step", amount / self.training.batch_size, job)

    def network_for(self, step: int) -> Network:
        """What runs the forward pass of a step."""
        return self.network

    def network_of(self, step: int) -> Network:
        """The network as it was at the forward pass of a step; θ_m does not move while it waits for one gradient."""
        return self.network

    def embed_rows(self, job: Embed) -> Embedded:
        """h_m(θ_m; x) of a batch, and of rows that only renew the table."""
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
        """Send the batch; its gradient comes back."""
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
        """Refuse what cannot be the gradient of a batch of so many rows."""
        values = message.values
        if values.shape != (rows, self.width) or values.dtype != np.float32:
            cause = f"gradient of shape {values.shape} for {rows} rows, expected width {self.width} float32"
            raise RemoteProtocolError(sender, cause)
        if message.update < 0:
            raise RemoteProtocolError(sender, f"gradient of update {message.update}")

    def descend(self, update: int, step: int, rows: Rows, x: Array, values: Array, draw: int) -> None:
        """Ask for the gradient of θ_m from that of a step's embeddings."""
        self.state.busy, self.state.k = True, update
        job = Refine(step, self.layer_seed(step), x, values, release=self.guard.again(draw, STEP, rows))
        # Its time is part of the step's. With a guard it may be withheld, so that what follows depends on it.
        self.work("refine", 0.0, job, blind=not self.guard.on)

    @job(Refine)
    def refine(self, job: Refine) -> Payload:
        """The gradient of θ_m, as it is or clipped and perturbed."""
        network = self.network_of(job.step)

        def plain() -> Refined:
            return Refined(network.backward(job.x, job.step, job.seed, job.values))

        def private(clip: float, noise: Callable[[int], Array]) -> Refined:
            return Refined(network.private_gradient(job.x, job.seed, job.values, clip, noise))

        return self.guard.stepped(job.release, plain, private)
