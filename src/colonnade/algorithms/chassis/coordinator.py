"""What coordinating roles share: they know the present parties, count, evaluate, and end the run.

`Counting` leaves open how a model is judged: in `asysqn` a party does it, and in `fedvs` the server decodes sums.
A `Coordinator` judges embeddings of held-out rows, which the parties send it. Its parties may withdraw.

A method defines how to continue (`advance`), and what a lost party means (`lost`, `forget`). It counts its updates
with `counted`, and calls `settle` at points where an evaluation or the end fits in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from colonnade.algorithms.chassis.base import Chassis, RoleState
from colonnade.algorithms.chassis.rules import PARTY, done, job, on, timer
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation, Rounds
from colonnade.algorithms.keeping import BestWeights
from colonnade.algorithms.leaving import LONGEST, Withdrawn
from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.table import Staleness
from colonnade.algorithms.training import Training
from colonnade.algorithms.training_progress import END_TIMER, EVALUATE_TIMER, TrainingProgress
from colonnade.models import ServerNetwork
from colonnade.protocol.events import TimerFired
from colonnade.protocol.messages import Array, EvaluationReply
from colonnade.protocol.ports import Storage
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["Coordinator", "CoordinatorState", "Counting", "CountingState", "evaluation_of"]

EVALUATE = "evaluate"  # value of `due` for an evaluation; other values are the reason of the end


@dataclass(slots=True, kw_only=True)
class CountingState(RoleState):
    """State of every role that counts."""

    present: dict[str, bool] = field(default_factory=dict)  # parties within reach, in order of joining
    due: str = EVALUATE  # EVALUATE, or the reason of the end, for `settle`; "": nothing


C = TypeVar("C", bound=CountingState)


class Counting(Chassis[C], Generic[C]):
    """A role that counts, evaluates and ends the run."""

    def __init__(self, parties: Sequence[str], training: Training, state: C) -> None:
        super().__init__(SERVER, dict.fromkeys(parties, PARTY), state)
        self.training, self.names = training, tuple(parties)
        self.index = MappingProxyType({name: index for index, name in enumerate(parties)})
        self.progress, self.staleness = TrainingProgress(training), Staleness(len(parties))

    # What a method defines.

    def advance(self) -> None:
        """Continue if everything needed is here."""
        raise NotImplementedError

    def lost(self, peer: str) -> None:
        """React to a party out of reach; the caller then calls `advance`."""

    def forget(self, peer: str) -> None:
        """Drop what was in progress with the party: the conversation restarted. The caller then calls `advance`."""

    def waits_for(self) -> list[str]:
        """Name the parties that the next step still needs, for display."""
        raise NotImplementedError

    def awaited(self) -> str:
        """Say what the next step needs of each of these parties. Different steps need different words."""
        return f"its part of update {self.k + 1}"

    def judging(self) -> bool:
        """Whether an evaluation is running."""
        raise NotImplementedError

    def begin_judging(self) -> None:
        """Start an evaluation. `measured` ends it."""
        raise NotImplementedError

    def rounds(self) -> Rounds | None:
        """Return what is recorded of the rounds since the last evaluation; None if the method records nothing."""
        return None

    def told(self) -> RoleSummary:
        """Return what the method adds to the run's summary: at least its weights."""
        raise NotImplementedError

    # What a method calls.

    @property
    def k(self) -> int:
        """Updates so far."""
        return self.progress.k

    def owes(self) -> dict[str, str]:
        """Say what each party owes. The driver counts a party as lost that owes the same for `network.give_up_s`."""
        return dict.fromkeys(self.waits_for(), self.awaited())

    def counted(self, rows: int, losses: list[float]) -> None:
        """Count one update, and note whether an evaluation or the end is due."""
        self.progress.count(rows, losses)
        if self.progress.at_limit():
            self.state.due = "done"
        elif self.progress.evaluation_due():
            self.state.due = EVALUATE

    def settle(self) -> None:
        """Start the evaluation or the end that is due."""
        reason, self.state.due = self.state.due, ""
        if reason == EVALUATE:
            self.evaluate()
        elif reason:
            self.end(reason)

    def evaluate(self) -> None:
        """Start an evaluation, unless one is running or the run is ending."""
        if not self.judging() and not self.progress.ending:
            self.begin_judging()

    def end(self, reason: str) -> None:
        """End the run after one last evaluation."""
        if not self.progress.ending:
            self.progress.ending = reason
            if not self.judging():
                self.begin_judging()

    def measured(self, result: Evaluated, missing: list[str]) -> None:
        """Report a finished evaluation. End the run if it was the last one, or if the model has stopped improving."""
        self.do(self.progress.report(result, self.staleness.take_means(), missing, self.rounds()))
        if self.progress.tests_due(result):  # the end came while the evaluation was running
            self.begin_judging()
        elif reason := self.progress.no_better():
            self.end(reason)
        self.advance()

    # Events.

    def started(self, entropy: bytes) -> None:
        """Set the timers of limits and intervals in seconds."""
        self.do(self.progress.timers())

    def joined(self, peer: str, reset: bool) -> None:
        """Note that a party is present."""
        self.state.present[peer] = True
        if reset:
            self.forget(peer)
        self.advance()

    def peer_lost(self, peer: str) -> None:
        """Note that a party is gone."""
        self.state.present.pop(peer, None)
        if peer in self.index:
            self.lost(peer)
        self.advance()

    @timer(EVALUATE_TIMER)
    def time_to_evaluate(self, due: int) -> None:
        self.evaluate()
        self.do(self.progress.evaluation_timer_fired(TimerFired(EVALUATE_TIMER, due)))

    @timer(END_TIMER)
    def time_is_up(self, due: int) -> None:
        self.end("time is up")

    def summary(self) -> RoleSummary:
        """Return the server's part of the run's summary."""
        counts: RoleSummary = {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "staleness": self.staleness.summary(),
            "staleness_counts": self.staleness.histogram(),
            "waits_for": self.waits_for(),
        }
        said = counts | self.told()
        if note := self.progress.note():
            said["note"] = "; ".join(filter(None, (note, said.get("note", ""))))
        return said


@dataclass(slots=True, kw_only=True)
class CoordinatorState(CountingState):
    """State of every server whose parties show it embeddings."""

    withdrawn: dict[str, str] = field(default_factory=dict)  # party that has left permanently → reason


D = TypeVar("D", bound=CoordinatorState)


def evaluation_of(setup: ServerSetup[Options]) -> Evaluation:
    """Make the evaluation on the held-out rows, with its table in memory or in a file as the config says."""
    tests = setup.tables.to_judge(len(setup.y_test), setup.widths)
    training = setup.training
    evaluation = Evaluation(setup.parties, setup.widths, setup.y_test, training.metric, tests, training.also)
    if setup.absent is not None:
        evaluation.mark_absent(setup.absent[1])
    return evaluation


class Coordinator(Encoding, Counting[D], Generic[D]):
    """A server that judges embeddings. With `everyone`, nothing continues without all parties."""

    network: ServerNetwork

    def __init__(self, setup: ServerSetup[Options], state: D, evaluation: Evaluation, *, everyone: bool) -> None:
        super().__init__(setup.parties, setup.training, state)
        self.evaluation, self.everyone, self.best_weights = evaluation, everyone, BestWeights()

    def here(self) -> list[str]:
        """Return the parties that the server counts on."""
        return [name for name in self.names if self.everyone or name in self.state.present]

    # Coming and going.

    def joined(self, peer: str, reset: bool) -> None:
        """Note that a party is present, unless it has withdrawn."""
        if peer not in self.state.withdrawn:
            self.state.present[peer] = True
        if reset:
            self.do(self.evaluation.lose(peer))
            self.forget(peer)
        self.advance()

    def peer_lost(self, peer: str) -> None:
        """Note that a party is gone. An evaluation does not wait for it."""
        self.state.present.pop(peer, None)
        self.do(self.evaluation.lose(peer))
        if peer in self.index:
            self.lost(peer)
        self.advance()

    def owes(self) -> dict[str, str]:
        """Add the parts of a running evaluation that did not arrive yet."""
        return super().owes() | self.evaluation.owed()

    @on(Withdrawn, PARTY)
    def withdrew(self, sender: str, message: Withdrawn) -> None:
        """Continue as without a lost party. If all parties are needed, or none is left, end the run."""
        state = self.state
        if sender in state.withdrawn:
            return
        state.withdrawn[sender] = why = message.why[:LONGEST]
        if not self.everyone and len(state.withdrawn) < len(self.names):
            self.peer_lost(sender)
        else:
            state.present.pop(sender, None)
            self.do(self.evaluation.lose(sender))
            self.end(f"{sender} withdrew: {why}")

    # Evaluation.

    def judging(self) -> bool:
        """Whether an evaluation is running."""
        return self.evaluation.running

    def begin_judging(self) -> None:
        """Ask the present parties for the validation rows; at the end, for the test rows too."""
        last, best = bool(self.progress.ending), self.progress.best if self.training.patience else 0
        if self.training.patience:
            self.best_weights.evaluation(self.evaluation.number + 1, best, last, self.network)
        self.do(self.evaluation.begin(self.state.present, self.training.validation, last, best))

    @on(EvaluationReply, PARTY)
    def evaluation_reply(self, sender: str, message: EvaluationReply) -> None:
        """Collect some rows of a party."""
        self.do(self.evaluation.receive(sender, self.decoded(sender, message)))

    @job(EvaluateAll)
    def judge(self, job: EvaluateAll) -> Evaluated:
        """Compute the loss and the metrics over the collected rows."""
        return self.evaluation.judge(self.network)

    @done(Evaluated)
    def evaluated(self, token: int, result: Evaluated) -> None:
        """End the evaluation."""
        self.evaluation.running = False
        self.measured(result, self.evaluation.missing)

    # Tables and summaries.

    def open(self, storage: Storage) -> None:
        """Open the file of the evaluation's table. See `protocol.role.Storing`."""
        self.evaluation.table.open(storage, "test")

    def checkpointed(self, state: dict[str, Any]) -> None:
        """Pass the saved state on to the evaluation's table. See `protocol.role.Storing`."""
        self.evaluation.table.checkpointed(state["evaluation"]["table"])

    def trained(self) -> dict[str, dict[str, Array]]:
        """Return the network's weights. See `protocol.role.Trained`."""
        return {SERVER: self.network.trained()}

    def target_scale(self) -> tuple[float, float]:
        """Return the mean and spread of the targets. See `protocol.role.Scaling`."""
        return self.network.objective.scale

    def told(self) -> RoleSummary:
        """Report the weights and the parties that have left."""
        return {"withdrawn": self.state.withdrawn, "weights": self.network.digest()}
