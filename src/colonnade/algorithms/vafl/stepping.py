"""A server that steps θ_0 with uploads that wait in a queue. VAFL and the lock-step baseline share it.

ONE pass over a step's rows gives both gradients. The server then steps θ_0, and each uploader gets the gradient of its
own block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import Coordinator, CoordinatorState, done, evaluation_of, job
from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.networks import server_network
from colonnade.algorithms.table import blocks_of
from colonnade.algorithms.vafl.messages import Batch, Embeddings, Gradient, Step, Stepped
from colonnade.algorithms.vafl.request_queue import QueuedRequest, RequestQueue, check_upload
from colonnade.data.suggest import listing
from colonnade.models import ServerNetwork, block_of
from colonnade.models.on_device import on_device
from colonnade.protocol.errors import LocalProtocolError, TrainingDiverged
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.seeds import derive

__all__ = ["Stepping", "SteppingState", "mean_over_uploads", "seed_of"]


@dataclass(slots=True, kw_only=True)
class SteppingState(CoordinatorState):
    """The requests that wait, and those of the running step."""

    queue: RequestQueue = field(default_factory=RequestQueue)
    taken: list[QueuedRequest] = field(default_factory=list)
    working: bool = False


T = TypeVar("T", bound=SteppingState)


class Stepping(Coordinator[T], Generic[T]):
    """Holds θ_0 and the labels."""

    network_type: type[ServerNetwork] = ServerNetwork

    def __init__(self, setup: ServerSetup[Options], state: T, *, everyone: bool) -> None:
        super().__init__(setup, state, evaluation_of(setup), everyone=everyone)
        self.network = server_network(setup, self.network_type, lacking=setup.absent is not None)
        objective, on_gpu = self.network.objective, setup.device != "cpu"
        self.targets = (
            on_device(objective.targets(setup.y_train), setup.device) if on_gpu else objective.targets_in(setup.y_train)
        )
        self.rows, self.widths, self.blocks = len(setup.y_train), setup.widths, blocks_of(setup.widths)
        self.layers = derive(setup.training.seed, "layers", self.name)

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Raise RemoteProtocolError for what cannot be an upload of this party. Call it before changing state."""
        check_upload(sender, message, self.rows, self.widths[self.index[sender]])

    def request_of(self, party: int, message: Embeddings) -> QueuedRequest:
        """Return the request that puts an upload in the queue."""
        return QueuedRequest(party, message.step, message.rows[: message.batch], None, learn=True, reply=message.reply)

    def groups(self) -> list[list[QueuedRequest]]:
        """Group the taken requests that are about the same rows. Each group shares one pass."""
        groups: dict[bytes, list[QueuedRequest]] = {}
        for request in self.state.taken:
            groups.setdefault(request.rows.tobytes(), []).append(request)
        return list(groups.values())

    def run_pass(self, batches: list[Batch]) -> None:
        """Start the job of one update; `batches` are those of `groups`."""
        self.state.working = True
        rows = sum(len(batch.h) for batch in batches)
        self.work("step", rows / self.training.batch_size, Step(self.layer_seed(), batches), repeatable=True)

    def layer_seed(self) -> int:
        """Return the seed of the random layers in this update."""
        return (self.layers + self.k) % 2**63

    @job(Step)
    def both_gradients(self, job: Step) -> Stepped:
        """Compute ∂ℓ/∂θ_0, the mean over the uploads (App. D), and ∂ℓ/∂h."""
        # BatchNorm's averages take the batches one after the other, as in a loop that accumulates gradients.
        passes = [
            self.network.gradients(batch.h, batch.targets, seed_of(job.seed, place), onward=place > 0)
            for place, batch in enumerate(job.batches)
        ]
        theta_0 = mean_over_uploads([p.theta_0 for p in passes], [batch.uploads for batch in job.batches])
        buffers = self.network.buffers_after_forward()
        return Stepped([p.loss for p in passes], theta_0, [p.h for p in passes], buffers)

    @done(Stepped)
    def stepped(self, token: int, result: Stepped) -> None:
        """Alg. 1 l. 9–10 and 12–13: step θ_0 and answer each uploader. Both roles use the rate η_k of this update."""
        k = self.k
        answers = [
            (request, self.answer(request, k, block_of(h, self.blocks[request.party])))
            for group, h in zip(self.groups(), result.h, strict=True)
            for request in group
            if request.reply
        ]
        self.conclude(result.losses, result.theta_0, result.buffers, answers)

    def conclude(
        self,
        losses: list[float],
        theta_0: Array,
        buffers: list[Array],
        answers: Sequence[tuple[QueuedRequest, Message]],
    ) -> None:
        """Step θ_0, count the update and send the answers; raise TrainingDiverged if a loss is not finite."""
        s, training = self.state, self.training
        s.working = False
        if not all(map(isfinite, losses)):
            raise TrainingDiverged(self.divergence())
        if any(request.learn for request in s.taken):
            self.network.apply(theta_0, training.rule.rate(training.server_rate, self.k), buffers)
            self.counted(sum(len(request.rows) for request in s.taken), losses)
        for request, message in answers:
            self.send(self.names[request.party], message)
        taken, s.taken = s.taken, []
        self.concluded(taken)
        self.advance()

    def answer(self, request: QueuedRequest, k: int, values: Array) -> Message:
        """Alg. 1 l. 13: return what the uploader gets. A method may override it to answer differently."""
        return Gradient(request.step, k, values)

    def concluded(self, taken: list[QueuedRequest]) -> None:
        """React to the end of a step. The default does nothing."""

    def divergence(self) -> str:
        """Return the message about a loss that is not finite."""
        who = listing(self.names[request.party] for request in self.state.taken)
        return f"server: the loss is not finite at update {self.k} (batch of {who}); lower train.learning_rate"

    def lost(self, peer: str) -> None:
        """Settle what is due without the lost party."""
        self.settle()

    def waits_for(self) -> list[str]:
        """Name the parties that the next step still needs, for display."""
        have = {request.party for request in self.state.queue}
        names = self.here() or self.names  # if no party is present, any would do
        return [name for name in names if self.index[name] not in have]

    def awaited(self) -> str:
        """Say what the next step needs."""
        return f"an upload for update {self.k + 1}"

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant between two events is broken."""
        if self.state.working and not self.state.taken:
            raise LocalProtocolError("server: a step is running without a batch")
        parties = [request.party for request in self.state.taken]
        if len(set(parties)) != len(parties):
            raise LocalProtocolError("server: a party was taken twice for one step")


def seed_of(seed: int, place: int) -> int:
    """Return the seed of the random layers for one batch. Every batch of a step has its own draws."""
    return derive(seed, place) if place else seed


def mean_over_uploads(gradients: list[Array], uploads: list[int]) -> Array:
    """App. D: return the sum over the t uploads, divided by t."""
    if len(gradients) == 1:
        return gradients[0]
    mean: Array = np.average(gradients, axis=0, weights=uploads).astype(np.float32)
    return mean
