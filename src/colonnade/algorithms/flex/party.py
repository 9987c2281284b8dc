"""A Flex-VFL party: Alg. 1 lines 4–7 and 10–15, Alg. 2 line 15.

The party embeds the round's batch, uploads it, gets its gradient (or the whole snapshot), and steps until the bell. It
drops a step that is still running then. If it has not done one step, it says so, finishes that step, and reports late.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from colonnade.algorithms.batches import Rows, walk_of
from colonnade.algorithms.chassis import Member, MemberState, done, done_blind, job, on, timer
from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.local import BELL, LOWER, LocalPhase, Report, local_rule
from colonnade.algorithms.flex.messages import (
    BeginPhase,
    BeginWithGradient,
    BeginWithSnapshot,
    Late,
    LocalStep,
    LocalStepped,
    Ready,
    Snapshot,
)
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.networks import party_rate
from colonnade.algorithms.sane import LARGEST, STEPS, are_sane, is_finite, is_step
from colonnade.algorithms.vafl.messages import Embed, Embedded, Skip
from colonnade.data.task import Task
from colonnade.models import (
    Network,
    Objective,
    OptimiserSpec,
    ServerNetwork,
    aggregated_width,
    block_of,
    party_module,
    server_module,
)
from colonnade.models.on_device import gathered
from colonnade.privacy.accountant import STEP
from colonnade.privacy.guard import Withheld
from colonnade.protocol.errors import LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import NANOSECONDS, Promised
from colonnade.protocol.messages import Array
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.saved import transient
from colonnade.protocol.seeds import derive

__all__ = ["Party"]

EMBEDDING: Final = "embedding"
READY: Final = "ready"
LOCAL: Final = "local"
LONGEST_S = 1e9  # the longest timeout: thirty years
MOST_SCALE = 1e6  # the largest factor of a rate
NO_REPORT = Report(0, 0, 1.0, 0.0)

Half = tuple[tuple[str, int], ServerNetwork]  # a task, and the server's network for it


@dataclass(slots=True, kw_only=True)
class State(MemberState):
    """The round that the party is in."""

    doing: Literal["embedding", "ready", "local"] = EMBEDDING
    round: int = 0
    following: int = 0  # the round after this one
    k: int = 0  # number of this round's update
    working: bool = False  # a local step is running
    report: Report = NO_REPORT  # not sent yet
    uploads: int = 0
    draw_of_upload: int = 0  # number of the upload's noise draw
    given: Array | None = None  # ∂ℓ/∂h of the phase
    snapshot: Snapshot | None = None  # or what ∂ℓ/∂h is computed from
    dropped: int = 0
    skipped: int = 0
    late: int = 0
    rows: Rows = transient(lambda: np.zeros(0, np.int32))
    batch: Array = transient(lambda: np.zeros((0, 0), np.float32))
    half: Half | None = transient(lambda: None)


class Party(Member[State]):
    """Holds θ_m, its own columns and its own local optimiser."""

    network: Network

    def __init__(self, setup: PartySetup[RoundOptions]) -> None:
        super().__init__(setup, State())
        training, index, seed = setup.training, setup.index, setup.training.seed
        self.options, self._top, self._device = setup.options, setup.top, setup.device
        optimiser, rule = local_rule(training.party_optimisers[index], setup.options, index)
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", index), setup.name)
        module = self.guard.wrap(module).to(setup.device)
        self.network = Network(module, optimiser.averaging(setup.options.average), training.regularisers[index])
        self.guard.try_out(self.network, self.x.shape[1], setup.width)
        self.walk = walk_of(training, None)
        self._layers = derive(seed, "layers", index)
        given = setup.options.a_of(index)
        self._rate = party_rate(training, index, self.x) if given is None else given
        self.local = LocalPhase(self.network, rule)

    @property
    def k(self) -> int:
        """The number of this round's update."""
        return self.state.k

    # Uploading: Alg. 1 l. 4–7.

    def begin(self) -> None:
        self._embed()

    def _embed(self) -> None:
        """Alg. 1 l. 5: embed the round's batch at θ^{r,0}. The first local step's time includes this job."""
        s = self.state
        s.doing = EMBEDDING
        s.uploads += 1
        self._gather()
        release = self.guard.plan("batch", s.rows)
        s.draw_of_upload = self.guard.draws
        job = Embed(self._key(0), self._layer_seed(0), s.batch, None, release=release)
        self.work("embed", 0.0, job, repeatable=not self.guard.on)

    def _gather(self) -> None:
        self.state.rows = self.walk.batch(self.state.round)
        self.state.batch = gathered(self.x, self.state.rows)

    def loaded(self) -> None:
        """Restore the round's rows and their columns."""
        self._gather()

    def _key(self, step: int) -> int:
        """Return the key of a forward pass. Two passes with the same key are the same."""
        return (self.state.uploads << 24) + step

    def _layer_seed(self, step: int) -> int:
        return (self._layers + (self.state.round << 24) + step) % 2**63

    @job(Embed, released=True)
    def embed_batch(self, job: Embed) -> Embedded:
        """Compute h_m of the batch, encoded."""
        assert job.batch is not None
        return Embedded(self.encode(self.network.forward(job.batch, job.step, job.seed)), [])

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        """Alg. 1 l. 6, with the report of the last phase (Alg. 2 l. 15)."""
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; {LOWER}")
        s = self.state
        s.doing = READY
        held_s = (self.now - self.local.began) / NANOSECONDS
        report, s.report = s.report, NO_REPORT
        self.send(SERVER, Ready(s.round, result.values, *report, held_s))

    # Local steps: Alg. 1 l. 10–15.

    @on(BeginPhase, SERVER)
    def begin_phase(self, sender: str, message: BeginPhase) -> None:
        """Alg. 1 l. 10: start local steps against the snapshot, until the bell."""
        s = self.state
        if s.doing != READY or message.round != s.round:
            s.dropped += 1
            return
        self._check(message)
        match message:
            case BeginWithGradient(values=values) if self.options.labels == "server":
                self._check_gradient(values)
                s.given, s.snapshot = values, None
            case BeginWithSnapshot(snapshot=snapshot) if self.options.labels == "shared":
                self._check_snapshot(snapshot)
                s.given, s.snapshot = None, snapshot
            case _:
                cause = f"sends a {type(message).__name__}, although protocol.labels = {self.options.labels!r}"
                raise RemoteProtocolError(SERVER, cause)
        s.doing, s.following, s.k = LOCAL, message.following, message.update
        self.do(self.local.begin(self.now, message.phase, message.timeout_s, message.limit, message.scale))
        self._step()

    def _check(self, message: BeginPhase) -> None:
        numbers = 0 < message.phase < STEPS and is_step(message.update) and is_step(message.following)
        amounts = 0 <= message.timeout_s <= LONGEST_S and is_step(message.limit) and 0 <= message.scale <= MOST_SCALE
        forward = message.following >= message.round
        if not (numbers and forward and amounts and (message.timeout_s or message.limit)):
            raise RemoteProtocolError(SERVER, f"starts an impossible phase: {message!r:.120}")

    def _check_gradient(self, values: Array) -> None:
        expected = (len(self.state.batch), self.width)
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")
        if not is_finite(values):
            raise RemoteProtocolError(SERVER, "gradient that is not finite")

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        """Alg. 1 l. 8–9: raise RemoteProtocolError unless Φ, θ_0 and the labels fit the agreed models."""
        assert self._top is not None
        h, expected = snapshot.h, (len(self.state.batch), sum(self._top.widths))
        if h.shape != expected or h.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"a snapshot of shape {h.shape}, expected {expected} float32")
        if not _labels_fit(snapshot) or snapshot.outputs > max(snapshot.theta_0.size, expected[1]):
            raise RemoteProtocolError(SERVER, f"a snapshot of {snapshot.outputs} outputs with labels that do not fit")
        try:
            self._server_half(snapshot).evaluate(h[:1], snapshot.targets[:1])
        except (ModelError, RuntimeError, TypeError, ValueError, IndexError) as error:
            raise RemoteProtocolError(SERVER, f"a snapshot that does not fit: {error}") from None

    def _step(self) -> None:
        """Alg. 1 l. 12–13: start a local step."""
        s, step = self.state, self.local.steps
        s.working = True
        release = self.guard.plan(STEP, s.rows) if step else self.guard.again(s.draw_of_upload, STEP, s.rows)
        seed = self._layer_seed(step)
        job = LocalStep(self._key(step), seed, s.batch, s.given, s.snapshot, step == 0, release=release)
        open = not self.guard.on  # a guard draws noise, and may withhold the step
        self.work("step", len(s.batch) / self.training.batch_size, job, blind=open, repeatable=open)

    @job(LocalStep)
    def local_step(self, job: LocalStep) -> LocalStepped | Withheld:
        """Compute ∂ℓ/∂θ_m, plain or clipped and perturbed."""

        def private(clip: float, noise: Callable[[int], Array]) -> LocalStepped:
            gradient = self.network.private_gradient(job.x, job.seed, self._of_block(job), clip, noise)
            return LocalStepped(gradient, [])

        return self.guard.stepped(job.release, lambda: self._plain_step(job), private)

    def _plain_step(self, job: LocalStep) -> LocalStepped:
        gradient = self.network.backward(job.x, job.key, job.seed, self._of_block(job))
        return LocalStepped(gradient, self.network.buffers_after_forward())

    def _of_block(self, job: LocalStep) -> Array:
        """Return ∂ℓ/∂h of the party's block: as the server sent it, or at the party's newest embedding (Eq. 6)."""
        if job.snapshot is None:
            # DEVIATION: the round's first ∂ℓ/∂h serves all its steps (as in FedBCD), so that labels stay at the
            # server. The gradients of Eq. (8) are then those of ⟨h_k, ∂ℓ/∂h⟩.
            assert job.given is not None
            return job.given
        h, block = job.snapshot.h, self._block()
        if not job.first:
            h = h.copy()
            h[:, block] = self.network.forward(job.x, job.key, job.seed)
        server = self._server_half(job.snapshot)
        return block_of(server.gradients(h, job.snapshot.targets, job.seed).h, block)

    def _block(self) -> slice:
        assert self._top is not None
        start = sum(self._top.widths[: self.index])
        return slice(start, start + self.width)

    def _server_half(self, snapshot: Snapshot) -> ServerNetwork:
        """Return the server's network at the snapshot's θ_0. It is built once per task."""
        top, task, half = self._top, (snapshot.task, snapshot.outputs), self.state.half
        assert top is not None
        if half is None or half[0] != task:
            classes = tuple(map(str, range(snapshot.outputs))) if snapshot.task == "multiclass" else ()
            objective = Objective(Task(snapshot.task, classes), np.zeros(2), error=self.training.loss)
            module = server_module(top.model, aggregated_width(top.aggregate, top.widths), snapshot.outputs, 0)
            parties = len(top.widths)
            network = ServerNetwork(module.to(self._device), OptimiserSpec(), objective, top.aggregate, parties)
            self.state.half = half = task, network
        server = half[1]
        if snapshot.theta_0.shape != server.theta.shape:  # torch would broadcast a single number to all weights
            raise ValueError(f"θ_0 of shape {snapshot.theta_0.shape}, expected {tuple(server.theta.shape)}")
        server.load({"theta": snapshot.theta_0, "optimiser": {}, "steps": 0, "buffers": snapshot.buffers})
        return server

    @done_blind(LocalStepped)
    def stepped(self, token: int, result: LocalStepped | Promised) -> None:
        """Take θ^{r,t+1}, then start the next step if it fits."""
        s = self.state
        s.working = False
        self.local.learn(result, self.training.rule.rate(self._rate, s.k), self.now)
        if self.local.goes_on(self.now):
            self.do(self.local.wait_for_next(self.now))
            self._step()
        elif self.local.over:
            self._finish()

    @timer(BELL)
    def rung(self, due: int) -> None:
        """Handle the bell: drop a running step, unless it is the first one."""
        s = self.state
        if s.doing != LOCAL or due < self.local.began + self.local.timeout:
            return
        self.local.rung = True
        if not self.local.steps:
            s.late += 1
            self.send(SERVER, Late(self.local.phase))
            return
        if s.working:
            self.cancel(s.jobs)
            s.working = False
        self._finish()

    def _finish(self) -> None:
        """Alg. 1 l. 15: θ^{r+1,0} is the result of the steps. Start the next round."""
        s = self.state
        s.report = self.local.report()
        s.round = s.following
        s.given = s.snapshot = None
        self._embed()

    # Catching up.

    @on(Skip, SERVER)
    def skip(self, sender: str, message: Skip) -> None:
        """Move to the server's round, forward or back."""
        s = self.state
        if not is_step(message.step):
            raise RemoteProtocolError(sender, f"sends a Skip to round {message.step}")
        if s.doing != READY or message.step == s.round:
            s.dropped += 1
            return
        s.skipped += max(0, message.step - s.round)
        s.round = message.step
        self._embed()

    def conversation_reset(self) -> None:
        """Repeat an upload that may be lost."""
        if self.state.doing == READY:
            self._embed()

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant is broken, such as a step outside a phase."""
        s, local = self.state, self.local
        if s.working and s.doing != LOCAL:
            raise LocalProtocolError(f"{self.name}: a local step is running while {s.doing}")
        if s.doing == LOCAL and s.given is None and s.snapshot is None:
            raise LocalProtocolError(f"{self.name}: a phase without a gradient or snapshot")
        if local.limit and local.steps > local.limit:
            raise LocalProtocolError(f"{self.name}: {local.steps} steps of at most {local.limit}")

    def told(self) -> RoleSummary:
        """Report the steps taken, and the rounds and messages missed."""
        s = self.state
        return {"steps": self.network.steps, "late": s.late, "dropped": s.dropped, "skipped": s.skipped}


def _labels_fit(snapshot: Snapshot) -> bool:
    """Check for one label per row; with several classes, each label must be one of them."""
    targets, outputs = snapshot.targets, snapshot.outputs
    if targets.shape != snapshot.h.shape[:1] or outputs < 1:
        return False
    if snapshot.task != "multiclass":
        return True
    return targets.dtype == np.int64 and bool(0 <= targets.min() <= targets.max() < outputs)
