"""The server of `wait`, `ignore` and `wait-dp` (FedVS Sec. 6.2): the average of all embeddings, or of the first."""

from math import isfinite
from typing import Any

import numpy as np

from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import PlainOptions, WaitDpOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import Gradient
from colonnade.algorithms.fedvs.plain_messages import Average, Averaged, Begin, Upload
from colonnade.algorithms.fedvs.server import averaging_network
from colonnade.algorithms.leaving import Withdrawing, Withdrawn
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.progress import END_TIMER, EVALUATE_TIMER, Progress
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.algorithms.table import Staleness
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, EvaluationReply, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["PlainServer"]

GATHERING, AVERAGING = "gathering", "averaging"


class AveragedEvaluation(Evaluation):
    """Judges averages; a missing party's rows are as last seen."""

    def gathered(self, h: Array) -> Array:
        """Their average."""
        average: Array = h.reshape(len(h), len(self._index), -1).mean(1)
        return average


class PlainServer(Encoding, Withdrawing):
    """Holds θ_0 and the labels, and sees every party's embeddings."""

    def __init__(self, setup: ServerSetup[PlainOptions]) -> None:
        self.name = SERVER
        self._options: PlainOptions = setup.options
        self._training, self._parties = setup.training, setup.parties
        self._index = {name: n for n, name in enumerate(setup.parties)}
        self._taken, self._width = setup.options.taken(len(setup.parties)), setup.widths[0]
        self.network = averaging_network(setup, "this method")
        self._targets = self.network.objective.targets(setup.y_train)
        self._walk = SegmentWalk(len(setup.y_train), setup.training, setup.options.K)
        self._seed = derive(setup.training.seed, "layers", self.name)
        self.progress, self.staleness = Progress(setup.training), Staleness(len(setup.parties))  # nothing is stale
        self.evaluation = AveragedEvaluation(setup.parties, setup.widths, setup.y_test, setup.training.metric)

        self.present: dict[str, bool] = {}
        self.round = self.jobs = 0  # the round that is, or was last, averaged
        self.following = 0  # the one that is gathered
        self.doing = GATHERING
        self.uploads: dict[str, Array] = {}  # of the gathered round
        self.summed: list[int] = []
        self.due = "evaluate"
        self.left_out: dict[str, int] = {}
        self.withdrawn: dict[str, str] = {}

    @property
    def k(self) -> int:
        """Rounds so far."""
        return self.progress.k

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(result=Averaged() as result):
                return self._averaged(result)
            case WorkDone(result=Evaluated() as result):
                return self._evaluated(result)
            case TimerFired(name=name) if name == EVALUATE_TIMER:
                return [*self._evaluate(), *self.progress.evaluation_timer_fired(event)]
            case TimerFired(name=name) if name == END_TIMER:
                return self._end("time is up")
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer, anew=anew):
                return self._joined(peer, anew)
            case PeerLost(peer=peer):
                self.present.pop(peer, None)
                return [*self.evaluation.lose(peer), *self._advance()]
            case Resumed():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message) -> list[Effect]:
        """One message."""
        if sender in self._index:
            match message:
                case Upload():
                    return self._upload(sender, self.decoded(sender, message))
                case EvaluationReply():
                    return self.evaluation.receive(sender, self.decoded(sender, message))
                case Withdrawn(why=why):
                    return self.withdraw(sender, why)
        raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Average(h=h, targets=targets, seed=seed):
                passed = self.network.gradients(h, targets, seed)
                return Averaged(passed.loss, passed.h, passed.theta_0, self.network.buffers_after_forward())
            case EvaluateAll():
                return self.evaluation.judge(self.network)
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    def _upload(self, sender: str, message: Upload) -> list[Effect]:
        """A party's embeddings; of a round that is over, they are not waited for and not used."""
        self._check(sender, message)
        if message.round < self.following:
            return [Send(sender, Begin(self.following))]
        behind: list[Effect] = []
        if message.round > self.following:  # this server has forgotten some rounds
            behind = [Send(name, Begin(message.round)) for name in self.uploads]
            self.following, self.uploads = message.round, {}
        self.uploads = self.uploads | {sender: message.values}
        return [*behind, *self._advance()]

    def _check(self, sender: str, message: Upload) -> None:
        if not 0 <= message.round < LAST_ROUND:
            raise RemoteProtocolError(sender, f"embeddings of round {message.round}")
        expected, values = (len(self._walk.rows(message.round)), self._width), message.values
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
        if not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")

    def waits_for(self) -> list[str]:
        """Whom the round still needs; if it takes only the first, any of these."""
        return [name for name in self._parties if name not in self.uploads]

    def _advance(self) -> list[Effect]:
        """The round's average, once enough are there."""
        if self.doing != GATHERING or self.progress.ending or self.evaluation.running:
            return []
        if len(self.uploads) < self._taken:
            return []
        if self.due:
            reason, self.due = self.due, ""
            effects = self._evaluate() if reason == "evaluate" else self._end(reason)
            return [*effects, *self._advance()]
        self.doing, self.round = AVERAGING, self.following
        taken = list(self.uploads)[: self._taken]
        self.summed = sorted(self._index[name] for name in taken)
        rows = self._walk.rows(self.round)
        h: Array = np.stack([self.uploads[self._parties[n]] for n in self.summed]).mean(0)
        self.following, self.uploads = self.round + 1, {}
        self.jobs += 1
        job = Average(h, self._targets[rows], (self._seed + self.round) % 2**63)
        return [Work(self.jobs, "step", len(rows) / self._training.batch_size, job)]

    def _averaged(self, result: Averaged) -> list[Effect]:
        """θ_0's step, and ∇_H to everybody: who was not part of it goes on at the next round."""
        if not isfinite(result.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {self.round}; lower train.learning_rate")
        k = self.k
        self.network.apply(result.theta_0, self._training.rule.rate(self._training.server_rate, k), result.buffers)
        self.progress.count(len(result.h) * len(self.summed), [result.loss])
        for n, name in enumerate(self._parties):
            if n not in self.summed:
                self.left_out[name] = self.left_out.get(name, 0) + 1
        gradient = Gradient(self.round, k, self.round, self.summed, result.h)
        over = Begin(self.following)
        sends: list[Effect] = [
            Send(name, gradient if n in self.summed else over) for n, name in enumerate(self._parties)
        ]
        self.doing = GATHERING
        if self.progress.at_limit():
            self.due = "done"
        elif self.progress.evaluation_due():
            self.due = "evaluate"
        return [*sends, *self._advance()]

    def _joined(self, peer: str, anew: bool) -> list[Effect]:
        self.join(peer)
        if anew:
            self.uploads = {name: values for name, values in self.uploads.items() if name != peer}
            return [*self.evaluation.lose(peer), *self._advance()]
        return self._advance()

    def validate(self) -> None:
        """What must hold between any two events."""
        if self.doing == AVERAGING and len(self.summed) != self._taken:
            raise LocalProtocolError(f"server: an average of {len(self.summed)}, not of {self._taken}")

    def save(self) -> dict[str, Any]:
        """Everything but the labels."""
        return {name: getattr(self, name) for name in _STATE} | {
            "evaluation": self.evaluation.save(),
            "progress": self.progress.save(),
            "network": self.network.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.evaluation.load(state["evaluation"])
        self.progress.load(state["progress"])
        self.network.load(state["network"])

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the server."""
        own: dict[str, Any] = {"left_out_of_averages": dict(sorted(self.left_out.items()))}
        if isinstance(options := self._options, WaitDpOptions):
            own |= {
                "epsilon_per_release": options.epsilon,
                "delta": options.delta,
                "sensitivity": 2 * options.clip,
                "sigma": options.mechanism.noise,
            }
        return {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "waits_for": self.waits_for(),
            "weights": self.network.digest(),
            "method": own,
            "withdrawn": self.withdrawn,
        }


_STATE = ("present", "round", "following", "jobs", "doing", "uploads", "summed", "due", "left_out", "withdrawn")
