"""What coordinating roles do alike: know which parties are here, count, evaluate, and end the run.

`Counting` leaves open how a model is judged: a party of `asysqn` does it, and `fedvs` decodes sums. `Coordinator`
judges embeddings of test rows, which the parties send it; and its parties may withdraw.

A method says how it goes on (`advance`), and what a lost party means to it (`lost`, `forget`). It counts its updates
with `counted`, and calls `settle` where an evaluation or the end fits in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from colonnade.algorithms.chassis.base import Chassis, RoleState
from colonnade.algorithms.chassis.rules import PARTY, done, job, on, timer
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation
from colonnade.algorithms.keeping import Kept
from colonnade.algorithms.leaving import LONGEST, Withdrawn
from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.progress import END_TIMER, EVALUATE_TIMER, Progress
from colonnade.algorithms.table import Staleness
from colonnade.algorithms.training import Training
from colonnade.models import ServerNetwork
from colonnade.protocol.events import TimerFired
from colonnade.protocol.messages import EvaluationReply
from colonnade.protocol.ports import Storage
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["Coordinator", "CoordinatorState", "Counting", "CountingState", "evaluation_of"]

EVALUATE = "evaluate"  # what may be due beside the reason of an end


@dataclass(slots=True, kw_only=True)
class CountingState(RoleState):
    """Of every role that counts."""

    present: dict[str, bool] = field(default_factory=dict)  # parties within reach, in the order of joining
    due: str = EVALUATE  # an evaluation, or the reason of the end, for `settle`


C = TypeVar("C", bound=CountingState)


class Counting(Chassis[C], Generic[C]):
    """A role that counts, evaluates and ends the run."""

    def __init__(self, parties: Sequence[str], training: Training, state: C) -> None:
        super().__init__(SERVER, dict.fromkeys(parties, PARTY), state)
        self.training, self.names = training, tuple(parties)
        self.index = MappingProxyType({name: index for index, name in enumerate(parties)})
        self.progress, self.staleness = Progress(training), Staleness(len(parties))

    # What a method says.

    def advance(self) -> None:
        """Go on, if all that is needed is here."""
        raise NotImplementedError

    def lost(self, peer: str) -> None:
        """The party is out of reach; `advance` follows."""

    def forget(self, peer: str) -> None:
        """What was under way with the party is gone; `advance` follows."""

    def waits_for(self) -> list[str]:
        """The parties that the next step still needs: for people."""
        raise NotImplementedError

    def judging(self) -> bool:
        """Whether an evaluation is running."""
        raise NotImplementedError

    def begin_judging(self) -> None:
        """Begin an evaluation; `measured` ends it."""
        raise NotImplementedError

    def told(self) -> RoleSummary:
        """What the method adds to the run's summary; its weights at least."""
        raise NotImplementedError

    # What it calls.

    @property
    def k(self) -> int:
        """Updates so far."""
        return self.progress.k

    def counted(self, rows: int, losses: list[float]) -> None:
        """One update is done: is an evaluation or the end due?"""
        self.progress.count(rows, losses)
        if self.progress.at_limit():
            self.state.due = "done"
        elif self.progress.evaluation_due():
            self.state.due = EVALUATE

    def settle(self) -> None:
        """Do what is due."""
        reason, self.state.due = self.state.due, ""
        if reason == EVALUATE:
            self.evaluate()
        elif reason:
            self.end(reason)

    def evaluate(self) -> None:
        """Begin an evaluation, unless one is running."""
        if not self.judging() and not self.progress.ending:
            self.begin_judging()

    def end(self, reason: str) -> None:
        """One last evaluation, then the end."""
        if not self.progress.ending:
            self.progress.ending = reason
            if not self.judging():
                self.begin_judging()

    def measured(self, result: Evaluated, missing: list[str]) -> None:
        """An evaluation is over: a row of metrics.jsonl, and the end if it was the last or has got no better."""
        self.do(self.progress.report(result, self.staleness.take_means(), missing))
        if self.progress.tests_due(result):  # the end came while it was under way
            self.begin_judging()
        elif reason := self.progress.no_better():
            self.end(reason)
        self.advance()

    # Events.

    def started(self, entropy: bytes) -> None:
        """Set the timers of what the clock decides."""
        self.do(self.progress.timers())

    def joined(self, peer: str, anew: bool) -> None:
        """A party is here."""
        self.state.present[peer] = True
        if anew:
            self.forget(peer)
        self.advance()

    def peer_lost(self, peer: str) -> None:
        """A party is gone."""
        self.state.present.pop(peer, None)
        if peer in self.index:
            self.lost(peer)
        self.advance()

    @timer(EVALUATE_TIMER)
    def time_to_evaluate(self, due: int) -> None:
        """An evaluation that the clock asks for."""
        self.evaluate()
        self.do(self.progress.evaluation_timer_fired(TimerFired(EVALUATE_TIMER, due)))

    @timer(END_TIMER)
    def time_is_up(self, due: int) -> None:
        """The end that the clock asks for."""
        self.end("time is up")

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the server."""
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
    """Of every server whose parties show it embeddings."""

    withdrawn: dict[str, str] = field(default_factory=dict)  # parties that have left for good, and why


D = TypeVar("D", bound=CoordinatorState)


def evaluation_of(setup: ServerSetup[Options]) -> Evaluation:
    """On the rows held out, in a table where the config wants tables to be."""
    tests = setup.tables.to_judge(len(setup.y_test), setup.widths)
    evaluation = Evaluation(setup.parties, setup.widths, setup.y_test, setup.training.metric, tests)
    if setup.absent is not None:
        evaluation.lack(setup.absent[1])
    return evaluation


class Coordinator(Encoding, Counting[D], Generic[D]):
    """A server that judges embeddings. `everyone`: nothing goes on without all parties."""

    network: ServerNetwork

    def __init__(self, setup: ServerSetup[Options], state: D, evaluation: Evaluation, *, everyone: bool) -> None:
        super().__init__(setup.parties, setup.training, state)
        self.evaluation, self.everyone, self.keeps = evaluation, everyone, Kept()

    def here(self) -> list[str]:
        """The parties that are counted on."""
        return [name for name in self.names if self.everyone or name in self.state.present]

    # Coming and going.

    def joined(self, peer: str, anew: bool) -> None:
        """A party is here; one that has withdrawn is not counted on."""
        if peer not in self.state.withdrawn:
            self.state.present[peer] = True
        if anew:
            self.do(self.evaluation.lose(peer))
            self.forget(peer)
        self.advance()

    def peer_lost(self, peer: str) -> None:
        """A party is gone; an evaluation does not wait for it."""
        self.state.present.pop(peer, None)
        self.do(self.evaluation.lose(peer))
        if peer in self.index:
            self.lost(peer)
        self.advance()

    @on(Withdrawn, PARTY)
    def withdrew(self, sender: str, message: Withdrawn) -> None:
        """Go on as without a lost party; where all are needed, or none is left, the run ends."""
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
        """Ask the parties that are here for the validation rows; at the end, for the test rows, too."""
        last, best = bool(self.progress.ending), self.progress.best if self.training.patience else 0
        if self.training.patience:
            self.keeps.evaluation(self.evaluation.number + 1, best, last, self.network)
        self.do(self.evaluation.begin(self.state.present, self.training.validation, last, best))

    @on(EvaluationReply, PARTY)
    def evaluation_reply(self, sender: str, message: EvaluationReply) -> None:
        """Some rows of a party."""
        self.do(self.evaluation.receive(sender, self.decoded(sender, message)))

    @job(EvaluateAll)
    def judge(self, job: EvaluateAll) -> Evaluated:
        """The metric and the loss over the collected rows."""
        return self.evaluation.judge(self.network)

    @done(Evaluated)
    def evaluated(self, token: int, result: Evaluated) -> None:
        """The evaluation is over."""
        self.evaluation.running = False
        self.measured(result, self.evaluation.missing)

    # Tables, and people.

    def open(self, storage: Storage) -> None:
        """See `protocol.role.Storing`."""
        self.evaluation.table.open(storage, "test")

    def kept(self, state: dict[str, Any]) -> None:
        """See `protocol.role.Storing`."""
        self.evaluation.table.kept(state["evaluation"]["table"])

    def told(self) -> RoleSummary:
        """Its weights, and the parties that have left."""
        return {"withdrawn": self.state.withdrawn, "weights": self.network.digest()}
