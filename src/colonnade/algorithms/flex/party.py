"""A Flex-VFL party: Alg. 1 lines 4–7 and 10–15, Alg. 2 line 15.

It embeds the round's batch, uploads, gets its gradient (or the whole snapshot), and steps until the bell. A step that
is still running then is dropped; if not a single one is done, the party says so, ends that step, and reports late.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.batches import Rows, Walk
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateRows, Reading, RowsRead
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
from colonnade.algorithms.leaving import Guarded
from colonnade.algorithms.method import SERVER, PartySetup
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
from colonnade.protocol.errors import LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelWork,
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Promised,
    Received,
    Resumed,
    Send,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, EvaluationRequest, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Party"]

EMBEDDING, READY, LOCAL = "embedding", "ready", "local"  # what a party is doing
LONGEST_S = 1e9  # of a timeout: thirty years


class Party(Encoding, Guarded):
    """Holds θ_m, its own columns and its own local optimiser."""

    def __init__(self, setup: PartySetup[RoundOptions]) -> None:
        self.name, self._index, self._width = setup.name, setup.index, setup.width
        self._options, self._training, self._top = setup.options, setup.training, setup.top
        self._x, self._x_test = setup.train, setup.test
        self.guard, self.withdrawn = setup.guard(), ""
        training, seed = setup.training, setup.training.seed
        optimiser, rule = local_rule(training.party_optimisers[setup.index], setup.options, setup.index)
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", setup.index), setup.name)
        module = self.guard.wrap(module).to(setup.device)
        self.network = Network(module, optimiser, training.regularisers[setup.index])
        self.guard.try_out(self.network, self._x.shape[1], setup.width)
        self._walk = Walk(len(self._x), training.batch_size, seed, "batches")
        self._seed, self._device = derive(seed, "layers", setup.index), setup.device
        given = setup.options.a_of(setup.index)
        self._rate = training.party_rates[setup.index] if given is None else given
        self._server: tuple[tuple[str, int], ServerNetwork] | None = None  # a cache: task, and the server's half

        self.round = 0
        self.doing = EMBEDDING
        self.local = LocalPhase(self.network, rule)
        self.following = 0  # the round after this one
        self.k = 0  # the update that this round is
        self.jobs = 0  # on the lane, so far: the newest one's token
        self.working = False  # a local step is running
        self.report = Report(0, 0, 1.0, 0.0)  # not yet sent
        self.uploads = 0
        self.given: Array | None = None  # ∂ℓ/∂h of the phase
        self.snapshot: Snapshot | None = None  # or what to make it from
        self.reading = Reading(len(self._x_test), self.guard)
        self.draw_of_upload = 0  # which noise it has
        self.dropped = self.skipped = self.late = 0
        self._batch: Array = self._x[:0]
        self._rows: Rows = np.zeros(0, np.int32)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        if self.guard.on and (done := self.guarded(event)) is not None:
            return done
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message, now)
            case WorkDone(result=LocalStepped() | Promised() as result):
                return self._stepped(result, now)
            case WorkDone(result=Embedded() as result):
                return self._embedded(result, now)
            case WorkDone(token=token, result=RowsRead() as result):
                return self.reading.done(token, result, self.network.steps)
            case TimerFired(name=name, due=due) if name == BELL:
                return self._rung(due)
            case Started():
                return self._embed()
            case PeerJoined(peer=peer, anew=True) if peer == SERVER:
                return self._anew()
            case PeerJoined() | PeerLost() | Resumed():
                return []  # the driver keeps what is under way
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message, now: int) -> list[Effect]:
        """One message."""
        if sender == SERVER:
            match message:
                case Begin():
                    return self._begin(message, now)
                case EvaluationRequest():
                    return self.reading.begin(message)
                case Skip():
                    return self._skip(message)
        raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Embed():
                return self.guard.released(job.release, self._embed_batch, job)
            case LocalStep():
                return self._local_step(job) if job.release is None else self._guarded_step(job)
            case EvaluateRows():
                return self.guard.released(job.release, self._read, job)
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    def _embed_batch(self, job: Embed) -> Embedded:
        assert job.batch is not None
        return Embedded(self.encode(self.network.forward(job.batch, job.step, job.seed)), [])

    def _read(self, job: EvaluateRows) -> RowsRead:
        values = self.network.read(self._x_test[job.start : job.stop])
        return RowsRead(job.number, job.start, self.encode_tests(values))

    def _guarded_step(self, job: LocalStep) -> Payload:
        def private(clip: float, noise: Callable[[int], Array]) -> LocalStepped:
            gradient = self.network.private_gradient(job.x, job.seed, self._of_block(job), clip, noise)
            return LocalStepped(gradient, [])

        return self.guard.stepped(job.release, lambda: self._local_step(job), private)

    def _local_step(self, job: LocalStep) -> LocalStepped:
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
        start = sum(self._top.widths[: self._index])
        return slice(start, start + self._width)

    def _server_half(self, snapshot: Snapshot) -> ServerNetwork:
        """The server's network at the snapshot's θ_0; built once."""
        top, task = self._top, (snapshot.task, snapshot.outputs)
        assert top is not None
        if self._server is None or self._server[0] != task:
            classes = tuple(map(str, range(snapshot.outputs))) if snapshot.task == "multiclass" else ()
            objective = Objective(Task(snapshot.task, classes), np.zeros(2))  # type: ignore[arg-type]
            module = server_module(top.model, aggregated_width(top.aggregate, top.widths), snapshot.outputs, 0)
            parties = len(top.widths)
            network = ServerNetwork(module.to(self._device), OptimiserSpec(), objective, top.aggregate, parties)
            self._server = task, network
        server = self._server[1]
        if snapshot.theta_0.shape != server.theta.shape:  # torch would spread a single number over all
            raise ValueError(f"θ_0 of shape {snapshot.theta_0.shape}, expected {tuple(server.theta.shape)}")
        server.load({"theta": snapshot.theta_0, "optimiser": {}, "steps": 0, "buffers": snapshot.buffers})
        return server

    def _embed(self) -> list[Effect]:
        """Alg. 1 l. 5: the round's batch, through θ^{r,0}. Its time is part of the first local step's."""
        self.doing = EMBEDDING
        self.uploads += 1
        self._gather()
        release = self.guard.plan("batch", self._rows)
        self.draw_of_upload = self.guard.draws
        return [self._work("embed", 0.0, Embed(self._key(0), self._layer_seed(0), self._batch, None, release=release))]

    def _gather(self) -> None:
        self._rows = self._walk.batch(self.round)
        self._batch = self._x[self._rows]

    def _work(self, kind: str, amount: float, job: Payload, blind: bool = False) -> Work:
        self.jobs += 1
        return Work(self.jobs, kind, amount, job, blind=blind)

    def _key(self, step: int) -> int:
        """Of a forward pass: two with the same key are the same."""
        return (self.uploads << 24) + step

    def _layer_seed(self, step: int) -> int:
        return (self._seed + (self.round << 24) + step) % 2**63

    def _embedded(self, result: Embedded, now: int) -> list[Effect]:
        """Alg. 1 l. 6, with the report of the phase before (Alg. 2 l. 15)."""
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; {LOWER}")
        self.doing = READY
        held_s = (now - self.local.began) / NANOSECONDS
        report, self.report = self.report, Report(0, 0, 1.0, 0.0)
        return [Send(SERVER, Ready(self.round, result.values, *report, held_s))]

    def _begin(self, message: Begin, now: int) -> list[Effect]:
        """Alg. 1 l. 10: local steps against the snapshot, until the bell."""
        if self.doing != READY or message.round != self.round:
            self.dropped += 1
            return []
        self._check(message)
        match message:
            case BeginWithGradient(values=values) if self._options.labels == "server":
                self._check_gradient(values)
                self.given, self.snapshot = values, None
            case BeginWithSnapshot(snapshot=snapshot) if self._options.labels == "shared":
                self._check_snapshot(snapshot)
                self.given, self.snapshot = None, snapshot
            case _:
                cause = f"a {type(message).__name__}, though protocol.labels = {self._options.labels!r}"
                raise RemoteProtocolError(SERVER, cause)
        self.doing, self.following, self.k = LOCAL, message.following, message.update
        bell = self.local.begin(now, message.phase, message.timeout_s, message.limit, message.scale)
        return [*bell, self._step()]

    def _check(self, message: Begin) -> None:
        numbers = message.phase > 0 and message.update >= 0 and message.following >= message.round
        amounts = 0 <= message.timeout_s <= LONGEST_S and message.limit >= 0 and 0 <= message.scale <= 1
        if not (numbers and amounts and (message.timeout_s or message.limit)):
            raise RemoteProtocolError(SERVER, f"a phase that cannot be: {message!r:.120}")

    def _check_gradient(self, values: Array) -> None:
        expected = (len(self._batch), self._width)
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        """Alg. 1 l. 8–9: Φ, θ_0 and the labels must fit the models that all agreed upon."""
        assert self._top is not None
        h, expected = snapshot.h, (len(self._batch), sum(self._top.widths))
        if h.shape != expected or h.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"a snapshot of shape {h.shape}, expected {expected} float32")
        if not _labels_fit(snapshot) or snapshot.outputs > max(snapshot.theta_0.size, expected[1]):
            raise RemoteProtocolError(SERVER, f"a snapshot of {snapshot.outputs} outputs with labels that do not fit")
        try:
            self._server_half(snapshot).evaluate(h[:1], snapshot.targets[:1])
        except (ModelError, RuntimeError, TypeError, ValueError, IndexError) as error:
            raise RemoteProtocolError(SERVER, f"a snapshot that does not fit: {error}") from None

    def _step(self) -> Work:
        """Alg. 1 l. 12–13."""
        self.working = True
        step = self.local.steps
        rows = self._rows
        release = self.guard.plan(STEP, rows) if step else self.guard.again(self.draw_of_upload, STEP, rows)
        job = LocalStep(
            self._key(step), self._layer_seed(step), self._batch, self.given, self.snapshot, step == 0, release
        )  # fmt: skip
        blind = not self.guard.on  # else it may be withheld
        return self._work("step", len(self._batch) / self._training.batch_size, job, blind)

    def _stepped(self, result: LocalStepped | Promised, now: int) -> list[Effect]:
        """θ^{r,t+1}; then the next step, if it fits."""
        self.working = False
        rate = self._training.rule.rate(self._rate, self.k)
        self.local.learn(result, rate, now)
        if self.local.goes_on(now):
            return [*self.local.wait_for_next(now), self._step()]
        return self._finish() if self.local.over else []

    def _rung(self, due: int) -> list[Effect]:
        """The bell: what is not done is not done; but one step is."""
        if self.doing != LOCAL or due < self.local.began + self.local.timeout:
            return []
        self.local.rung = True
        if not self.local.steps:
            self.late += 1
            return [Send(SERVER, Late(self.local.phase))]
        cancelled: list[Effect] = [CancelWork(self.jobs)] if self.working else []
        self.working = False
        return [*cancelled, *self._finish()]

    def _finish(self) -> list[Effect]:
        """Alg. 1 l. 15: θ^{r+1,0} is what the steps have led to."""
        self.report = self.local.report()
        self.round = self.following
        self.given = self.snapshot = None
        return self._embed()

    def _skip(self, message: Skip) -> list[Effect]:
        """The others are further: on to their round."""
        if self.doing != READY or message.step <= self.round:
            self.dropped += 1
            return []
        self.skipped += message.step - self.round
        self.round = message.step
        return self._embed()

    def _anew(self) -> list[Effect]:
        """The conversation begins anew: an upload that may be lost is made again."""
        cancelled = self.reading.cancel()
        return [*cancelled, *self._embed()] if self.doing == READY else cancelled

    def validate(self) -> None:
        """A step runs only in a phase."""
        if self.working and self.doing != LOCAL:
            raise LocalProtocolError(f"{self.name}: a local step is running while {self.doing}")
        if self.doing == LOCAL and self.given is None and self.snapshot is None:
            raise LocalProtocolError(f"{self.name}: a phase about nothing")
        if self.local.limit and self.local.steps > self.local.limit:
            raise LocalProtocolError(f"{self.name}: {self.local.steps} steps of at most {self.local.limit}")

    def save(self) -> dict[str, Any]:
        """Everything but the columns themselves."""
        return {name: getattr(self, name) for name in _STATE} | {
            "report": tuple(self.report),
            "local": self.local.save(),
            "reading": self.reading.save(),
            "network": self.network.save(),
            "guard": self.guard.save(),
            "snapshot": None if self.snapshot is None else msgspec.structs.astuple(self.snapshot),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.report = Report(*state["report"])
        self.local.load(state["local"])
        self.reading.load(state["reading"])
        self.network.load(state["network"])
        self.guard.load(state["guard"])
        self.snapshot = None if state["snapshot"] is None else Snapshot(*state["snapshot"])
        self._gather()

    def summary(self) -> RoleSummary:
        """Steps taken, and what went past it."""
        return {
            "steps": self.network.steps,
            "late": self.late,
            "dropped": self.dropped,
            "skipped": self.skipped,
            "weights": self.network.digest(),
            "privacy": self.guard.summary(),
        }


def _labels_fit(snapshot: Snapshot) -> bool:
    """One for each row, and of several classes none that there is not."""
    targets, outputs = snapshot.targets, snapshot.outputs
    if targets.shape != snapshot.h.shape[:1] or outputs < 1:
        return False
    if snapshot.task != "multiclass":
        return True
    return targets.dtype == np.int64 and bool(0 <= targets.min() <= targets.max() < outputs)


_STATE = (
    *("round", "doing", "following", "k", "jobs", "uploads", "working", "given", "dropped", "skipped", "late"),
    *("withdrawn", "draw_of_upload"),
)
