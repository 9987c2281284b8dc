"""A VAFL party: Alg. 1 lines 3–7, with the † options and answers to requests for fresh rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from colonnade.algorithms.batches import Rows, Walk, is_rows, rows_per_message
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateRows, Reading, RowsRead
from colonnade.algorithms.leaving import Guarded
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.vafl.messages import (
    LARGEST,
    Embed,
    Embedded,
    Embeddings,
    FreshRequest,
    Gradient,
    Query,
    Refine,
    Refined,
    Skip,
    are_sane,
)
from colonnade.models import Network, OptimiserSpec, Regulariser, party_module
from colonnade.privacy.accountant import STEP
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
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
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
    once_made,
)
from colonnade.protocol.messages import Array, EvaluationRequest, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive, generator

__all__ = ["FORWARD_SHARE", "Party"]

# A forward pass is at most half of a local step: the backward pass costs at least as much in any layered network.
FORWARD_SHARE = 0.5

EMBED, REFINE, ANSWER = 1, 2, 3  # job tokens are 4·step + one of these; an answer's are 4·asides + ANSWER


class Party(Encoding, Guarded):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[Any]) -> None:
        self.name, self._index, self._width = setup.name, setup.index, setup.width
        self._options, self._training = setup.options, setup.training
        self._x, self._x_test = setup.train, setup.test
        self.guard, self.withdrawn = setup.guard(), ""
        seed = setup.training.seed
        optimiser, regulariser = setup.training.party_optimisers[setup.index], setup.training.regularisers[setup.index]
        self.network = self.make_network(setup, derive(seed, "init", setup.index), optimiser, regulariser)
        self.guard.try_out(self.network, self._x.shape[1], setup.width)
        shared = setup.options.batches == "shared"
        path = ("batches",) if shared else ("batches", setup.index)
        batch_size = setup.training.batch_size
        self._walk = Walk(len(self._x), batch_size, seed, *path, smallest=setup.options.min_batch)
        self._extra = round(setup.options.extra_rows * batch_size)
        self._seed = derive(seed, "layers", setup.index)
        self._company = self._x[self._walk.batch(0)] if self.network.averages else self._x[:0]  # see Network.renewed
        self._pauses = generator(seed, "pause", setup.index)

        self.step = 0  # position in the walk
        self.rows = self.sent = np.zeros(0, np.int32)  # the batch in work; with the further rows of its upload
        self.busy = False  # a job is running on the lane
        self.uploaded = False  # the batch's embeddings are at the server
        self.warmed = 0 if setup.options.table == "warm" else len(self._x)  # rows sent by the warm-up
        self.asides = 0  # jobs for others so far: the number of the newest
        self.answers: dict[int, tuple[int, Rows]] = {}  # fresh rows being computed: token → request, rows
        self.reading = Reading(len(self._x_test), self.guard)
        self.draw_of_batch = 0  # which noise the batch in work has
        self._batch: Array = self._x[:0]  # the features of `rows`
        self.buffers: list[Array] = []  # as the batch's forward pass left them
        self.k = 0  # the update that the last gradient belongs to
        self.dropped = 0  # messages of another step
        self.skipped = 0  # steps left out to catch up with the others

    def make_network(
        self, setup: PartySetup[Any], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> Network:
        """θ_m; a method of one's own may have another kind."""
        module = party_module(setup.model, setup.shape, setup.width, seed, setup.name)
        return Network(self.guard.wrap(module).to(setup.device), optimiser, regulariser)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        if self.guard.on and (done := self.guarded(event)) is not None:
            return done
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(token=token, result=Embedded() as result):
                return self._answer(token, result) if token % 4 == ANSWER else self._embedded(result, now)
            case WorkDone(result=Refined() | Promised() as result):
                return self._refined(result, now)
            case WorkDone(token=token, result=RowsRead() as result):
                return self.reading.done(token, result, self.network.steps)
            case Started():
                return self._activate()
            case TimerFired(name="activate"):
                return [] if self.busy else self._activate()  # busy: the batch is being embedded anew
            case PeerJoined(peer=peer, anew=True) if peer == SERVER:
                return self._anew()
            case PeerJoined() | PeerLost() | Resumed():
                return []  # the driver keeps what is under way
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message) -> list[Effect]:
        """One message."""
        if sender == SERVER:
            match message:
                case Gradient():
                    return self._gradient(message)
                case FreshRequest():
                    return self._fresh(message)
                case EvaluationRequest():
                    return self.reading.begin(message)
                case Skip() if self._options.coordinated:
                    return self._skip(message)
        raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Embed():
                return self._embed(job) if job.release is None else self.guard.released(job.release, self._embed, job)
            case Refine():
                return self._refine(job) if job.release is None else self._guarded_step(job)
            case EvaluateRows():
                return self.guard.released(job.release, self._read, job)
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    def _refine(self, job: Refine) -> Refined:
        return Refined(self.network.backward(job.x, job.step, job.seed, job.values))

    def _guarded_step(self, job: Refine) -> Payload:
        def private(clip: float, noise: Callable[[int], Array]) -> Refined:
            return Refined(self.network.private_gradient(job.x, job.seed, job.values, clip, noise))

        return self.guard.stepped(job.release, lambda: self._refine(job), private)

    def _read(self, job: EvaluateRows) -> RowsRead:
        values = self.network.read(self._x_test[job.start : job.stop])
        return RowsRead(job.number, job.start, self.encode_tests(values))

    def _embed(self, job: Embed) -> Embedded:
        parts, buffers = [], []
        if job.batch is not None:
            parts.append(self.network.forward(job.batch, job.step, job.seed))
            buffers = self.network.buffers_after_forward()
        if job.renew is not None:
            # In training mode, as the batches of the table are; evaluation alone reads in evaluation mode.
            parts.append(self.network.renewed(job.renew, job.renew_seed, self._company))
        return Embedded(self.encode(parts[0] if len(parts) == 1 else np.concatenate(parts)), buffers)

    def _activate(self) -> list[Effect]:
        """Alg. 1 l. 3; in the order † the gradient of the last batch is queried first."""
        if self.warmed < len(self._x):
            return self._warm_up()
        if self.uploaded:
            return [Send(SERVER, Query(self.step))]
        return self.select()

    def _warm_up(self) -> list[Effect]:
        """Send all rows once, in pieces, before the first step."""
        self.busy = True
        self.rows = np.arange(
            self.warmed, min(self.warmed + rows_per_message(self._width), len(self._x)), dtype=np.int32
        )
        release = self.guard.plan("warm-up", self.rows)
        job = Embed(0, 0, None, self._x[self.rows], self._renew_seed("warm-up", self.warmed), release=release)
        return [Work(EMBED, "warm-up", self._renewing(len(self.rows)) / self._training.batch_size, job)]

    def select(self) -> list[Effect]:
        """Alg. 1 l. 4: choose the next batch and embed it, with further rows if asked for (†)."""
        self.busy = True
        self.rows = rows = self._walk.batch(self.step)
        extra = self._further_rows() if self._extra else None
        amount = float(len(rows))
        if extra is not None:
            amount += self._renewing(len(extra))
        self.sent = rows if extra is None else np.concatenate([rows, extra])
        renew = None if extra is None else self._x[extra]
        self._batch = self._x[rows]
        release = self.guard.plan("batch", self.sent)
        self.draw_of_batch = self.guard.draws
        renew_seed = 0 if renew is None else self._renew_seed("further rows", self.step)
        job = Embed(self.step, self._layer_seed(), self._batch, renew, renew_seed, release=release)
        return [Work(4 * self.step + EMBED, "step", amount / self._training.batch_size, job)]

    def _renew_seed(self, what: str, number: int) -> int:
        """For the random layers of a pass that only renews the table."""
        return derive(self._training.seed, "layers", self._index, what, number)

    def _renewing(self, rows: int) -> float:
        """What such a pass costs, in rows of a whole step; with averages it has at least a batch of them."""
        return FORWARD_SHARE * max(rows, len(self._company))

    def _further_rows(self) -> Rows:
        if self._options.batches == "shared":
            return self._walk.following(self.step, self._extra)
        return self._walk.opposite(self.step, self._extra)

    def _embedded(self, result: Embedded, now: int) -> list[Effect]:
        """Alg. 1 l. 5: upload."""
        self.check_own(result.values)
        self.busy = False
        if self.warmed < len(self._x):
            if self.rows[0] != self.warmed:  # the warm-up began anew meanwhile
                return self._activate()
            message = Embeddings(self.step, 0, self.rows, result.values)
            self.warmed += len(self.rows)
            return [Send(SERVER, message), *self._activate()]
        self.uploaded = True
        self.buffers = result.buffers
        reply = self._options.order == "upload-first"
        upload = Send(SERVER, Embeddings(self.step, len(self.rows), self.sent, result.values, reply))
        return [upload] if reply else [upload, *self._pause(now)]

    def _gradient(self, message: Gradient) -> list[Effect]:
        """Alg. 1 l. 6–7: the answer to the query; ∇θ_m by the chain rule, Eq. (2b)."""
        if not self.uploaded or self.busy or message.step != self.step:
            self.dropped += 1
            return []
        values = message.values
        if values.shape != (len(self.rows), self._width) or values.dtype != np.float32:
            cause = f"gradient of shape {values.shape} for {len(self.rows)} rows, expected width {self._width} float32"
            raise RemoteProtocolError(SERVER, cause)
        if message.update < 0:
            raise RemoteProtocolError(SERVER, f"gradient of update {message.update}")
        self.busy = True
        self.k = message.update
        release = self.guard.again(self.draw_of_batch, STEP, self.rows)
        job = Refine(self.step, self._layer_seed(), self._batch, values, release)
        blind = not self.guard.on  # else it may be withheld
        return [Work(4 * self.step + REFINE, "refine", 0.0, job, blind=blind)]  # its time is part of the step's

    def _refined(self, result: Refined | Promised, now: int) -> list[Effect]:
        """Eq. (4a): θ_m ← θ_m − η(ĝ_m + ∇r(θ_m))."""
        training = self._training
        rate = training.rule.rate(training.party_rates[self._index], self.k)
        once_made(result, lambda made: self.learn(made.gradient, rate))
        self.busy = self.uploaded = False
        self.step += 1
        return self.select() if self._options.order == "query-first" else self._pause(now)

    def check_own(self, values: Array) -> None:
        """What the server would refuse is this party's own trouble."""
        if not are_sane(self.decode(values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")

    def learn(self, gradient: Array, rate: float) -> None:
        """The step of θ_m itself."""
        self.network.apply(gradient, rate, self.buffers)

    def _pause(self, now: int) -> list[Effect]:
        mean_s = self._options.pause_of(self._index)
        if not mean_s:
            return self._activate()
        return [SetTimer("activate", now + round(self._pauses.exponential(mean_s) * NANOSECONDS))]

    def _skip(self, message: Skip) -> list[Effect]:
        """The others are further: on to their step, learning nothing from the batches between."""
        if not self.uploaded or self.busy or message.step <= self.step:
            self.dropped += 1  # of no use any more; if this party is still behind, its next upload is answered so, too
            return []
        self.skipped += message.step - self.step
        self.step, self.uploaded = message.step, False
        return self.select()

    def _anew(self) -> list[Effect]:
        """The conversation begins anew: nothing asked is still to be answered, what may be lost is sent again."""
        cancelled = [*(CancelWork(token) for token in self.answers), *self.reading.cancel()]
        self.answers = {}
        if self.warmed < len(self._x):
            self.warmed = 0  # a piece is always running; the next one begins here
        elif self.uploaded and not self.busy:
            self.uploaded = False
            return [*cancelled, *self.select()]
        return cancelled

    def _fresh(self, message: FreshRequest) -> list[Effect]:
        """Sec. 2.3: the server asks for rows that are too old; answered beside the own step."""
        rows = message.rows
        if not is_rows(rows, len(self._x)):
            raise RemoteProtocolError(SERVER, f"asks for row numbers outside 0..{len(self._x) - 1}")
        self.asides += 1
        token = 4 * self.asides + ANSWER
        self.answers[token] = (message.request, rows)
        release = self.guard.plan("fresh rows", rows)
        job = Embed(self.step, 0, None, self._x[rows], self._renew_seed("fresh rows", self.asides), release=release)
        return [Work(token, "answer", self._renewing(len(rows)) / self._training.batch_size, job, aside=True)]

    def _answer(self, token: int, result: Embedded) -> list[Effect]:
        request, rows = self.answers.pop(token)
        return [Send(SERVER, Embeddings(self.step, 0, rows, result.values, request=request))]

    def _layer_seed(self) -> int:
        return (self._seed + self.step) % 2**63

    def validate(self) -> None:
        """An uploaded batch is not also being embedded; answers are asked for at most once each."""
        if not 0 <= self.warmed <= len(self._x):
            raise LocalProtocolError(f"{self.name}: warm-up at row {self.warmed} of {len(self._x)}")
        if self.uploaded and len(self.rows) != len(self._walk.batch(self.step)):
            raise LocalProtocolError(f"{self.name}: the uploaded batch is not the batch of step {self.step}")
        if len(self.sent) < len(self.rows) and self.warmed == len(self._x) and self.uploaded:
            raise LocalProtocolError(f"{self.name}: fewer rows sent than selected")
        if not 0 <= self.skipped <= self.step:
            raise LocalProtocolError(f"{self.name}: {self.skipped} steps skipped of {self.step}")

    def save(self) -> dict[str, Any]:
        """Everything but the columns themselves."""
        return {name: getattr(self, name) for name in _STATE} | {
            "pauses": self._pauses,
            "reading": self.reading.save(),
            "network": self.network.save(),
            "guard": self.guard.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._batch = self._x[self.rows]
        self._pauses = state["pauses"]
        self.reading.load(state["reading"])
        self.network.load(state["network"])
        self.guard.load(state["guard"])

    def summary(self) -> RoleSummary:
        """Steps taken, what was dropped and what was skipped."""
        return {
            "steps": self.step,
            "dropped": self.dropped,
            "skipped": self.skipped,
            "weights": self.network.digest(),
            "privacy": self.guard.summary(),
        }


_STATE = (
    *("step", "rows", "sent", "busy", "uploaded", "warmed", "asides", "answers"),
    *("buffers", "k", "dropped", "skipped", "withdrawn", "draw_of_batch"),
)
