"""The coordinator of AsySQN: the role named "server", which takes no part in the mathematics.

It sees no column, no margin, no label and no gradient. It compares the digests of the parties' labels, says when to
begin, who takes part, when a snapshot is due (SVRG), which party is to judge the model, and when it is over; and it
counts updates. Every number it reports of the model's quality comes from a party.
"""

from collections import Counter
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.config import FEWEST, SVRG, LinearOptions
from colonnade.algorithms.asysqn.messages import (
    Begin,
    Declined,
    Differs,
    Diverged,
    Held,
    Hello,
    Hold,
    Judge,
    Judged,
    Members,
    Release,
    Round,
    Stepped,
    Take,
    Taken,
)
from colonnade.algorithms.evaluation import Evaluated
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.progress import EVALUATE_TIMER, Progress
from colonnade.algorithms.table import Staleness
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    WorkDone,
)
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import RoleSummary

__all__ = ["Coordinator"]

JUDGE_TIMER = "judge"
HOLDING, TAKING = "holding", "taking"  # a barrier's two halves


class Coordinator:
    """Knows who is here and how far they are."""

    def __init__(self, setup: ServerSetup[LinearOptions]) -> None:
        self.name = SERVER
        self._options, self._training, self._parties = setup.options, setup.training, setup.parties
        self._index = {name: index for index, name in enumerate(setup.parties)}
        self.progress = Progress(setup.training)
        self.staleness = Staleness(len(setup.parties))

        self._now = 0  # of the event in hand
        self.present: dict[str, bool] = {}  # within reach
        self.nonzeros: dict[str, int] = {}  # of those that said hello, and have not lost their memory since
        self.labels: dict[str, str] = {}  # their digests, until all are the same
        self.agreed = ""  # the digest of all
        self.tests = 0  # test rows
        self.left: dict[str, str] = {}  # parties whose own numbers diverged, and how
        self.begun = False
        self.steps: dict[int, int] = {}  # of each party, as last heard
        self.turn = 0  # whose it is to judge, to aggregate for all
        self.number = 0  # of the newest evaluation
        self.judge = ""  # who is asked to judge
        self.unmoved = ""  # the last evaluation waits for a step of this party, which declined
        self.declined = 0  # evaluations that are missing since a party declined
        self.missing: list[str] = []  # from this evaluation
        self.barrier = 0
        self.phase = ""  # of the barrier
        self.done: list[int] = []  # who has held, taken or, in a synchronous round, stepped
        self.taker = 0  # who aggregates θ(w^s)
        self.snapshots = 0
        self.round = 0
        self.running = False  # a synchronous round is
        self.round_rows = 0

    @property
    def k(self) -> int:
        """Updates: steps of a party, or synchronous rounds."""
        return self.progress.k

    @property
    def members(self) -> list[int]:
        """Who takes part."""
        here = [name for name in self._parties if name in self.present and name in self.nonzeros]
        return [self._index[name] for name in here if name not in self.left]

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        self._now = now
        match event:
            case Received(sender=sender, message=message):
                return self._received(sender, message)
            case TimerFired(name=name) if name == JUDGE_TIMER:
                return self._ask_to_judge() if self.judge else []
            case TimerFired(name=name) if name == EVALUATE_TIMER:
                return [*self._evaluate(), *self.progress.evaluation_timer_fired(event)]
            case TimerFired():
                return self._end("time is up")
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer, anew=anew):
                return self._joined(peer, anew)
            case PeerLost(peer=peer):
                return self._lost(peer)
            case Resumed() | WorkDone():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def _received(self, sender: str, message: Message) -> list[Effect]:
        if sender in self._index:
            match message:
                case Hello():
                    return self._hello(sender, message)
                case Stepped():
                    return self._stepped(sender, message)
                case Held(barrier=barrier):
                    return self._note(sender, HOLDING, barrier)
                case Taken(barrier=barrier):
                    return self._note(sender, TAKING, barrier)
                case Judged():
                    return self._judged(sender, message)
                case Declined(number=number):
                    return self._decline(sender, number)
                case Diverged():
                    return self._diverged(sender, message)
        raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """It has nothing to compute."""
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    # Coming and going.

    def _hello(self, sender: str, message: Hello) -> list[Effect]:
        """A party is there; before the first step all labels are compared."""
        if message.nonzeros < 1 or message.rows != self._training.rows:
            raise RemoteProtocolError(sender, f"has {message.rows} training rows, this run has {self._training.rows}")
        if self.agreed and message.labels_sha256 != self.agreed:
            return [Send(sender, Differs(message.labels_sha256, self._other_labels([sender])))]
        self.nonzeros[sender], self.tests = message.nonzeros, message.tests
        self.left.pop(sender, None)  # it begins again
        if not self.agreed:
            self.labels[sender] = message.labels_sha256
            if odd := self._odd():
                return [Send(name, Differs(self.labels[name], self._other_labels(odd))) for name in odd]
            if len(self.labels) < len(self._parties):
                return []
            self.agreed, self.labels = message.labels_sha256, {}
        return self._welcome(sender)

    def _odd(self) -> list[str]:
        """Parties with other labels than most, once all have said theirs; all parties, if most have no labels alike."""
        counts = Counter(self.labels.values())
        if len(self.labels) < len(self._parties) or len(counts) == 1:
            return []
        most, count = counts.most_common(1)[0]
        return [name for name in self._parties if self.labels[name] != most or 2 * count <= len(self._parties)]

    def _other_labels(self, odd: list[str]) -> str:
        verb = "holds" if len(odd) == 1 else "hold"
        rest = "each other" if len(odd) == len(self._parties) else "the rest"
        return f"{', '.join(odd)} {verb} other labels than {rest}: compare the label columns, row by row"

    def _diverged(self, sender: str, message: Diverged) -> list[Effect]:
        """Go on without a party whose own numbers diverged, if enough are left; else the run leads nowhere."""
        if sender in self.left:
            return []
        others = [m for m in self.members if self._parties[m] != sender]
        if not message.own or not self.begun or len(others) < self._options.fewest(len(self._parties)):
            advice = "lower train.learning_rate" + ", or take protocol.ahead = 0" * bool(self._options.ahead)
            raise TrainingDiverged(f"{sender}: {message.cause[:200]}; {advice}")
        self.left[sender] = message.cause[:200]
        return self._changed(sender)

    def _begin(self) -> Begin:
        """The unit of work is a mean party's row."""
        unit = float(np.mean(list(self.nonzeros.values()))) / self._training.rows
        return Begin(unit, self.members)

    def _joined(self, peer: str, anew: bool) -> list[Effect]:
        self.present[peer] = True
        if anew:
            self.nonzeros.pop(peer, None)  # until it says hello again
            self.labels.pop(peer, None)
            return self._changed(peer)
        return self._welcome(peer) if peer in self.nonzeros and peer not in self.left else []

    def _welcome(self, peer: str) -> list[Effect]:
        """It takes part from now on; the first evaluation, and training after it, wait for all."""
        if self.begun:
            return [Send(peer, self._begin()), *self._changed(peer)]
        return self._ask_to_judge() if self.agreed and len(self.members) == len(self._parties) else []

    def _lost(self, peer: str) -> list[Effect]:
        self.present.pop(peer, None)
        return self._changed(peer)

    def _changed(self, peer: str) -> list[Effect]:
        """Somebody came or went: whatever it had a share in begins again, without what was half done."""
        members = self.members
        effects: list[Effect] = [Send(self._parties[m], Members(members)) for m in members if self._parties[m] != peer]
        if self.judge or self.unmoved:
            effects += self._ask_to_judge()
        if not self.begun or self.progress.ending:
            return effects
        if self.phase == HOLDING:
            return [*effects, *self._hold()]
        if self.phase == TAKING:
            effects += self._release()
        return [*effects, *self._next_round()] if self._options.synchronous else effects

    @property
    def _enough(self) -> bool:
        return len(self.members) >= max(1, int(self._options.fewest(len(self._parties))))

    # Counting.

    def _stepped(self, sender: str, message: Stepped) -> list[Effect]:
        """An update, or one party's part of a round."""
        self._check(sender, message)
        party = self._index[sender]
        self.steps[party] = message.steps
        if sender == self.unmoved:
            return self._ask_to_judge()
        if not self.begun or self.progress.ending:
            return []
        if self._options.synchronous:
            return self._round_stepped(party, message)
        self._note_staleness(party, message)
        return self._count(message.rows)

    def _check(self, sender: str, message: Stepped) -> None:
        known = all(0 <= member < len(self._parties) for member in message.members)
        if not (0 < message.rows <= self._training.rows and message.steps > 0 and message.clock >= 0 and known):
            raise RemoteProtocolError(sender, f"a step that cannot be: {message!r:.120}")

    def _note_staleness(self, party: int, message: Stepped) -> None:
        """How many updates the contributors made since, as far as they have been heard of here."""
        made = sum(self.steps.get(member, 0) for member in message.members if member != party)
        ages = np.zeros((1, len(self._parties)), np.int32)
        ages[0, party] = min(max(0, made - message.clock), 2**20)
        self.staleness.add(ages, [party])

    def _count(self, rows: int) -> list[Effect]:
        self.progress.count(rows, [])
        if self.progress.at_limit():
            return self._end("done")
        effects = self._evaluate() if self.progress.evaluation_due() else []
        if self._snapshot_due() and not self.phase:
            self.snapshots += 1
            return [*effects, *self._hold()]
        return effects

    def _snapshot_due(self) -> bool:
        if self._options.estimator != SVRG:
            return False
        return self.progress.epochs >= (self.snapshots + 1) * float(self._options.snapshot_every)

    # SVRG's barrier: Alg. 4 l. 3.

    def _hold(self) -> list[Effect]:
        """Everybody ends its step and rests."""
        self.barrier += 1
        self.phase, self.done, self.running = HOLDING, [], False
        return [Send(self._parties[m], Hold(self.barrier)) for m in self.members]

    def _release(self) -> list[Effect]:
        """Parties came or went while θ(w^s) was summed: go on with what each has, until the next snapshot is due.

        # DEVIATION: Alg. 4 l. 3 in every epoch. A sum of all rows over other parties, a step later, would come close
        to the margins of a lost party; the estimate is unbiased whatever the reference is.
        """
        self.phase, self.done = "", []
        return [Send(self._parties[m], Release(self.barrier)) for m in self.members]

    def _note(self, sender: str, phase: str, barrier: int) -> list[Effect]:
        """One more has held, or taken."""
        party = self._index[sender]
        if self.phase != phase or barrier != self.barrier or party in self.done:
            return []
        self.done = [*self.done, party]
        if not set(self.members) <= set(self.done) or not self._enough:
            return []
        self.done = []
        if phase == HOLDING:
            self.phase = TAKING
            self.taker = self._next_member()
            return [Send(self._parties[self.taker], Take(self.barrier))]
        self.phase = ""
        return self._next_round() if self._options.synchronous else []

    def _next_member(self) -> int:
        self.turn += 1
        return self.members[self.turn % len(self.members)]

    # Synchronous twins.

    def _next_round(self) -> list[Effect]:
        """Everybody steps on what one of them aggregates."""
        self.running = False
        if not self._enough or self.judge or self.phase or self.progress.ending:
            return []
        self.round += 1
        self.running, self.done, self.round_rows = True, [], 0
        message = Round(self.round, self._next_member())
        return [Send(self._parties[m], message) for m in self.members]

    def _round_stepped(self, party: int, message: Stepped) -> list[Effect]:
        if not self.running or message.round != self.round or party in self.done:
            return []
        self.done = [*self.done, party]
        self.round_rows += message.rows
        if not set(self.members) <= set(self.done):
            return []
        self.running = False
        self.staleness.add(np.zeros((1, len(self._parties)), np.int32), self.members)
        return [*self._count(self.round_rows), *self._next_round()]

    # Evaluation and the end.

    def _evaluate(self) -> list[Effect]:
        return [] if self.judge or self.progress.ending else self._ask_to_judge()

    def _ask_to_judge(self) -> list[Effect]:
        """One party aggregates the margins of the test rows, through the same trees, and judges them.

        All members are told of it, and over which members: they answer that party for these, and no other.
        """
        self.number += 1
        self.unmoved = ""
        members = self.members
        self.missing = [name for name, index in self._index.items() if index not in members]
        if len(members) < (FEWEST if self._options.masking == "on" else 1):
            if self.begun and not self.progress.ending:
                self.judge = ""
                return self._report_nothing()
            self.judge = "nobody"  # the first and the last evaluation wait for somebody
            return []
        judge = self._next_member()
        self.judge = self._parties[judge]
        message, others = Judge(self.number, judge, members), [m for m in members if m != judge]
        told = (*others, judge)  # the judge hears it last
        asked: list[Effect] = [Send(self._parties[m], message, evaluation=True) for m in told]
        patience = round(self._options.patience_s * NANOSECONDS)
        return [*asked, SetTimer(JUDGE_TIMER, self._now + patience)]

    def _judged(self, sender: str, message: Judged) -> list[Effect]:
        if sender != self.judge or message.number != self.number:
            return []
        if self._training.metric not in message.values:
            raise RemoteProtocolError(sender, f"a judgement without {self._training.metric}")
        self.judge = ""
        return [CancelTimer(JUDGE_TIMER), *self._report(message), *self._go_on()]

    def _decline(self, sender: str, number: int) -> list[Effect]:
        """A party was judged with others, and has not moved since: this evaluation will not be.

        The last one is asked for again when that party has stepped, if it can.
        """
        if not self.judge or number != self.number:
            return []
        self.judge = ""
        cancel: list[Effect] = [CancelTimer(JUDGE_TIMER)]
        steps = self.begun and self._enough and not self.phase and not self._options.synchronous
        if self.progress.ending and steps and self._index[sender] in self.members:
            self.unmoved = sender
            return cancel
        self.declined += 1
        self.missing = [name for name in self._parties if name in self.missing or name == sender]
        return [*cancel, *self._report_nothing(), *self._go_on()]

    def _go_on(self) -> list[Effect]:
        """After an evaluation: begin, or the next round."""
        if self.progress.ending:
            return []
        effects: list[Effect] = []
        if not self.begun:
            self.begun = True
            effects += [Send(self._parties[m], self._begin()) for m in self.members]
        return [*effects, *(self._next_round() if self._options.synchronous and not self.running else [])]

    def _report_nothing(self) -> list[Effect]:
        return self._report(Judged(self.number, float("nan"), {self._training.metric: float("nan")}))

    def _report(self, message: Judged) -> list[Effect]:
        result = Evaluated(message.number, message.loss, message.values)
        return self.progress.report(result, self.staleness.take_means(), self.missing)

    def _end(self, reason: str) -> list[Effect]:
        """One last evaluation, then the end."""
        if self.progress.ending:
            return []
        self.progress.ending = reason
        return [] if self.judge else self._ask_to_judge()

    def waits_for(self) -> list[str]:
        """Who has to come or to answer before training goes on."""
        odd, members = self._odd(), self.members
        absent = [name for name in self._parties if self._index[name] not in members or name in odd]
        if not self.begun or not self._enough:
            return absent
        if not (self.phase or self.running):
            return [name for name in (self.judge, self.unmoved) if name in self._index]
        waited = self.members
        return [self._parties[member] for member in waited if member not in self.done]

    def validate(self) -> None:
        """What must hold between any two events."""
        if len(set(self.done)) < len(self.done):
            raise LocalProtocolError("server: a party is done twice")
        if self.running and (self.phase or not self._options.synchronous):
            raise LocalProtocolError("server: a round is running where none may")
        if self.agreed and self.labels:
            raise LocalProtocolError("server: labels are compared, but not all")

    def save(self) -> dict[str, Any]:
        """All counts."""
        state = {name: getattr(self, name) for name in _STATE}
        return state | {"progress": self.progress.save(), "staleness": self.staleness.save()}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.progress.load(state["progress"])
        self.staleness.load(state["staleness"])

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the coordinator; it has no weights."""
        return {
            "updates": self.k,
            "note": self._note_of_run(),
            "epochs": self.progress.epochs,
            "staleness": self.staleness.summary(),
            "staleness_counts": self.staleness.histogram(),
            "waits_for": self.waits_for(),
            "weights": "",
            "method": {"steps": {self._parties[p]: n for p, n in sorted(self.steps.items())}, "barriers": self.barrier},
        }

    def _note_of_run(self) -> str:
        """What a reader of the summary should know."""
        notes = [self._other_labels(odd)] if (odd := self._odd()) else []
        notes += [f"went on without {name}: {cause}" for name, cause in self.left.items()]
        if self.declined:
            cause = "parties came or went, and a party had not moved since the evaluation before"
            notes.append(f"evaluations missing: {self.declined} ({cause})")
        return "; ".join(notes)


_STATE = (
    *("present", "nonzeros", "labels", "agreed", "tests", "begun", "steps", "turn", "number", "judge", "missing"),
    *("unmoved", "declined", "left"),
    *("barrier", "phase", "done", "taker", "snapshots", "round", "running", "round_rows"),
)
