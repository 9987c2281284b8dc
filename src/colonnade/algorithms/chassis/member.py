"""What parties share: they answer evaluations, send only through their guard, and leave when the budget is spent."""

from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from colonnade.algorithms.chassis.base import Chassis, RoleState
from colonnade.algorithms.chassis.rules import PARTY, Sender, done, job, on
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateRows, Reading, RowsRead
from colonnade.algorithms.keeping import BestWeights
from colonnade.algorithms.leaving import Withdrawn
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.models.on_device import gathered
from colonnade.privacy.guard import Release, Released, Withheld
from colonnade.protocol.errors import TrainingDiverged
from colonnade.protocol.events import Event, PeerJoined, Resumed, Started, WorkDone
from colonnade.protocol.messages import Array, EvaluationRequest, Payload
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["Member", "MemberState"]


class Reads(Protocol):
    """What every party's network can do."""

    @property
    def steps(self) -> int:
        """How many steps it has taken."""

    def read(self, x: Array) -> Array:
        """Return embeddings in evaluation mode."""

    def digest(self) -> str:
        """Return a digest of its weights."""

    def trained(self) -> dict[str, Array]:
        """Return parameters and buffers by name, as evaluation uses them."""

    def snapshot(self) -> list[Array]:
        """Return a copy of the weights that evaluation uses."""

    def settle_on(self, snapshot: list[Array]) -> None:
        """Use these weights for evaluation from now on, and stop learning."""


@dataclass(slots=True, kw_only=True)
class MemberState(RoleState):
    """State of every party."""

    withdrawn: str = ""  # why it sends no more uploads; "": it has not withdrawn


P = TypeVar("P", bound=MemberState)


class Member(Encoding, Chassis[P], Generic[P]):
    """A party: its own columns, its network, its guard."""

    network: Reads

    def __init__(self, setup: PartySetup[Options], state: P) -> None:
        senders: dict[str, Sender] = {name: PARTY for name in setup.names if name != setup.name}
        super().__init__(setup.name, senders | {SERVER: SERVER}, state)
        self.training, self.index, self.width = setup.training, setup.index, setup.width
        self.x, self.x_test = setup.train, setup.test
        self.guard = setup.guard()
        self.gated = self.guard.on
        self.reading = Reading(self.x_test.shape[0], self.guard)
        self.best_weights = BestWeights()

    # What a method defines.

    def begin(self) -> None:
        """Start the party's work."""
        raise NotImplementedError

    def conversation_reset(self) -> None:
        """Send again what may be lost, since the conversation with the server was reset."""
        raise NotImplementedError

    def told(self) -> RoleSummary:
        """Return what the method adds to the party's summary."""
        return {}

    # Coming and going.

    def started(self, entropy: bytes) -> None:
        self.begin()

    def joined(self, peer: str, reset: bool) -> None:
        """Handle the server within reach. The driver keeps messages in transit, unless one role has lost its state."""
        if reset and peer == SERVER:
            self.do(self.reading.cancel())
            self.conversation_reset()

    # The guard.

    def gate(self, event: Event) -> bool:
        """Show every event to the guard first. A party that has withdrawn does nothing more."""
        match event:
            case Started(entropy=entropy):
                self.guard.key.renew(entropy)
            case Resumed(entropy=entropy):
                self.guard.key.renew(entropy)
                self.guard.resume()
            case WorkDone(result=Withheld(why=why)):
                if not self.state.withdrawn:  # jobs that still run are dropped when they end
                    self.state.withdrawn = why
                    self.send(SERVER, Withdrawn(why))
            case WorkDone(result=result):
                self.guard.note(result)
            case PeerJoined(peer=peer, reset=True) if peer == SERVER and self.state.withdrawn:
                self.send(SERVER, Withdrawn(self.state.withdrawn))  # the server may have forgotten
        return bool(self.state.withdrawn)

    def compute(self, job: Payload) -> Payload:
        """Compute a job without changing state. A result that leaves the party passes its guard."""
        function, released = self.handlers.jobs.get(type(job)) or self.rule_of(job)
        if not released or not self.gated:
            return function(self, job)
        assert isinstance(job, Released)
        return self.guard.released(job.release, partial(function, self), job)

    # Evaluation.

    @on(EvaluationRequest, SERVER)
    def evaluation_request(self, sender: str, message: EvaluationRequest) -> None:
        """Embed held-out rows, beside other work."""
        effects = self.reading.begin(message)
        if self.training.patience:
            self.best_weights.evaluation(message.number, message.best, message.last, self.network)
        self.do(effects)

    @job(EvaluateRows, released=True)
    def read_tests(self, job: EvaluateRows) -> RowsRead:
        """Return the embeddings of held-out rows, encoded."""
        values = self.network.read(self.x_test[job.start : job.stop])
        return RowsRead(job.number, job.start, self.encode_tests(values))

    @done(RowsRead)
    def tests_read(self, token: int, result: RowsRead) -> None:
        """Send the embeddings; raise TrainingDiverged for those that the server would refuse."""
        if not are_sane(self.decode_tests(result.values)):
            raise TrainingDiverged(
                f"{self.name}: its held-out embeddings have left ±{LARGEST:g}; lower train.learning_rate"
            )
        self.do(self.reading.done(token, result, self.network.steps))

    def embed(self, x: Array, rows: Array, number: int) -> Array | None:
        """See `protocol.role.Embedding`.

        The party embeds each distinct row once and copies the answer. So a row that is asked for many times has one
        noise, and averages of its answers tell no more than one of them. If uploads are perturbed and accounted, this
        is one more upload; `number` determines its noise.
        """
        places: dict[int, int] = {}
        copies = [places.setdefault(row, len(places)) for row in rows.tolist()]
        distinct = np.array(list(places), np.int64)
        release = None
        if self.guard.on:
            release = Release(self.guard.draws + number, "prediction", distinct, "any")
        read = self.guard.released(release, lambda wanted: self._read(gathered(x, wanted), number), distinct)
        if isinstance(read, Withheld):
            return None
        values = self.decode_tests(read.values)
        return values if len(distinct) == len(copies) else values[copies]

    def _read(self, x: Array, number: int) -> RowsRead:
        return RowsRead(number, 0, self.encode_tests(self.network.read(x)))

    # Weights and summary.

    def trained(self) -> dict[str, dict[str, Array]]:
        """Return the network's weights. See `protocol.role.Trained`."""
        return {self.name: self.network.trained()}

    def summary(self) -> RoleSummary:
        """Report the weights and the privacy spent."""
        return self.told() | {"weights": self.network.digest(), "privacy": self.guard.summary()}
