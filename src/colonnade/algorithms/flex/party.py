"""A Flex-VFL party: Alg. 1 lines 4–7 and 10–15, Alg. 2 line 15.

It embeds the round's batch, uploads, gets its gradient (or the whole snapshot), and steps until the bell. A step that
is still running then is dropped; if not a single one is done, the party says so, ends that step, and reports late.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from colonnade.algorithms.batches import Rows, Walk
from colonnade.algorithms.chassis import Member, MemberState, done, done_blind, job, on, timer
from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.local import BELL, LOWER, LocalPhase, Report, local_rule
from colonnade.algorithms.flex.messages import (
    Begin,
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
from colonnade.algorithms.sane import LARGEST, are_sane
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
LONGEST_S = 1e9  # of a timeout: thirty years
MOST_SCALE = 1e6  # of a rate
NO_REPORT = Report(0, 0, 1.0, 0.0)

Half = tuple[tuple[str, int], ServerNetwork]  # a task, and the server's half of the model for it


@dataclass(slots=True, kw_only=True)
class State(MemberState):
    """The round that the party is in."""

    doing: Literal["embedding", "ready", "local"] = EMBEDDING
    round: int = 0
    following: int = 0  # the round after this one
    k: int = 0  # the update that this round is
    working: bool = False  # a local step is running
    report: Report = NO_REPORT  # not yet sent
    uploads: int = 0
    draw_of_upload: int = 0  # which noise it has
    given: Array | None = None  # ∂ℓ/∂h of the phase
    snapshot: Snapshot | None = None  # or what to make it from
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
        self.walk = Walk(len(self.x), training.batch_size, seed, "batches")
        self._layers = derive(seed, "layers", index)
        given = setup.options.a_of(index)
        self._rate = party_rate(training, index, self.x) if given is None else given
        self.local = LocalPhase(self.network, rule)

    @property
    def k(self) -> int:
        """The update that this round is."""
        return self.state.k

    # Uploading: Alg. 1 l. 4–7.

    def begin(self) -> None:
        """The first round."""
        self._embed()

    def _embed(self) -> None:
        """Alg. 1 l. 5: the round's batch, through θ^{r,0}. Its time is part of the first local step's."""
        s = self.state
        s.doing = EMBEDDING
        s.uploads += 1
        self._gather()
        release = self.guard.plan("batch", s.rows)
        s.draw_of_upload = self.guard.draws
        self.work("embed", 0.0, Embed(self._key(0), self._layer_seed(0), s.batch, None, release=release))

    def _gather(self) -> None:
        self.state.rows = self.walk.batch(self.state.round)
        self.state.batch = self.x[self.state.rows]

    def loaded(self) -> None:
        """The round's rows, and their columns."""
        self._gather()

    def _key(self, step: int) -> int:
        """Of a forward pass: two with the same key are the same."""
        return (self.state.uploads << 24) + step

    def _layer_seed(self, step: int) -> int:
        return (self._layers + (self.state.round << 24) + step) % 2**63

    @job(Embed, released=True)
    def embed_batch(self, job: Embed) -> Embedded:
        """h_m of the batch, as it travels."""
        assert job.batch is not None
        return Embedded(self.encode(self.network.forward(job.batch, job.step, job.seed)), [])

    @done(Embedded)
    def embedded(self, token: int, result: Embedded) -> None:
        """Alg. 1 l. 6, with the report of the phase before (Alg. 2 l. 15)."""
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; {LOWER}")
        s = self.state
        s.doing = READY
        held_s = (self.now - self.local.began) / NANOSECONDS
        report, s.report = s.report, NO_REPORT
        self.send(SERVER, Ready(s.round, result.values, *report, held_s))

    # Local steps: Alg. 1 l. 10–15.

    @on(Begin, SERVER)
    def begin_phase(self, sender: str, message: Begin) -> None:
        """Alg. 1 l. 10: local steps against the snapshot, until the bell."""
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
                cause = f"a {type(message).__name__}, though protocol.labels = {self.options.labels!r}"
                raise RemoteProtocolError(SERVER, cause)
        s.doing, s.following, s.k = LOCAL, message.following, message.update
        self.do(self.local.begin(self.now, message.phase, message.timeout_s, message.limit, message.scale))
        self._step()

    def _check(self, message: Begin) -> None:
        numbers = message.phase > 0 and message.update >= 0 and message.following >= message.round
        amounts = 0 <= message.timeout_s <= LONGEST_S and message.limit >= 0 and 0 <= message.scale <= MOST_SCALE
        if not (numbers and amounts and (message.timeout_s or message.limit)):
            raise RemoteProtocolError(SERVER, f"a phase that cannot be: {message!r:.120}")

    def _check_gradient(self, values: Array) -> None:
        expected = (len(self.state.batch), self.width)
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        """Alg. 1 l. 8–9: Φ, θ_0 and the labels must fit the models that all agreed upon."""
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
        """Alg. 1 l. 12–13."""
        s, step = self.state, self.local.steps
        s.working = True
        release = self.guard.plan(STEP, s.rows) if step else self.guard.again(s.draw_of_upload, STEP, s.rows)
        seed = self._layer_seed(step)
        job = LocalStep(self._key(step), seed, s.batch, s.given, s.snapshot, step == 0, release=release)
        blind = not self.guard.on  # else it may be withheld
        self.work("step", len(s.batch) / self.training.batch_size, job, blind=blind)

    @job(LocalStep)
    def local_step(self, job: LocalStep) -> LocalStepped | Withheld:
        """∂ℓ/∂θ_m; a private one is clipped and perturbed."""

        def private(clip: float, noise: Callable[[int], Array]) -> LocalStepped:
            gradient = self.network.private_gradient(job.x, job.seed, self._of_block(job), clip, noise)
            return LocalStepped(gradient, [])

        return self.guard.stepped(job.release, lambda: self._plain_step(job), private)

    def _plain_step(self, job: LocalStep) -> LocalStepped:
        gradient = self.network.backward(job.x, job.key, job.seed, self._of_block(job))
        return LocalStepped(gradient, self.network.buffers_after_forward())

    def _of_block(self, job: LocalStep) -> Array:
        """∂ℓ/∂h of the own block: as the server sent it, or at the own newest embedding (Eq. 6)."""
        if job.snapshot is None:
            # DEVIATION: the round's first ∂ℓ/∂h serves all its steps (as in FedBCD), so that labels stay at the
            # server; the gradients of Eq. (8) are then those of ⟨h_k, ∂ℓ/∂h⟩.
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
        """The server's network at the snapshot's θ_0; built once."""
        top, task, half = self._top, (snapshot.task, snapshot.outputs), self.state.half
        assert top is not None
        if half is None or half[0] != task:
            classes = tuple(map(str, range(snapshot.outputs))) if snapshot.task == "multiclass" else ()
            objective = Objective(Task(snapshot.task, classes), np.zeros(2))
            module = server_module(top.model, aggregated_width(top.aggregate, top.widths), snapshot.outputs, 0)
            parties = len(top.widths)
            network = ServerNetwork(module.to(self._device), OptimiserSpec(), objective, top.aggregate, parties)
            self.state.half = half = task, network
        server = half[1]
        if snapshot.theta_0.shape != server.theta.shape:  # torch would spread a single number over all
            raise ValueError(f"θ_0 of shape {snapshot.theta_0.shape}, expected {tuple(server.theta.shape)}")
        server.load({"theta": snapshot.theta_0, "optimiser": {}, "steps": 0, "buffers": snapshot.buffers})
        return server

    @done_blind(LocalStepped)
    def stepped(self, token: int, result: LocalStepped | Promised) -> None:
        """θ^{r,t+1}; then the next step, if it fits."""
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
        """The bell: what is not done is not done; but one step is."""
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
        """Alg. 1 l. 15: θ^{r+1,0} is what the steps have led to."""
        s = self.state
        s.report = self.local.report()
        s.round = s.following
        s.given = s.snapshot = None
        self._embed()

    # Catching up.

    @on(Skip, SERVER)
    def skip(self, sender: str, message: Skip) -> None:
        """The others are further: on to their round."""
        s = self.state
        if s.doing != READY or message.step <= s.round:
            s.dropped += 1
            return
        s.skipped += message.step - s.round
        s.round = message.step
        self._embed()

    def anew(self) -> None:
        """An upload that may be lost is made again."""
        if self.state.doing == READY:
            self._embed()

    def validate(self) -> None:
        """A step runs only in a phase."""
        s, local = self.state, self.local
        if s.working and s.doing != LOCAL:
            raise LocalProtocolError(f"{self.name}: a local step is running while {s.doing}")
        if s.doing == LOCAL and s.given is None and s.snapshot is None:
            raise LocalProtocolError(f"{self.name}: a phase about nothing")
        if local.limit and local.steps > local.limit:
            raise LocalProtocolError(f"{self.name}: {local.steps} steps of at most {local.limit}")

    def told(self) -> RoleSummary:
        """Steps taken, and what went past it."""
        s = self.state
        return {"steps": self.network.steps, "late": s.late, "dropped": s.dropped, "skipped": s.skipped}


def _labels_fit(snapshot: Snapshot) -> bool:
    """One for each row, and of several classes none that there is not."""
    targets, outputs = snapshot.targets, snapshot.outputs
    if targets.shape != snapshot.h.shape[:1] or outputs < 1:
        return False
    if snapshot.task != "multiclass":
        return True
    return targets.dtype == np.int64 and bool(0 <= targets.min() <= targets.max() < outputs)
