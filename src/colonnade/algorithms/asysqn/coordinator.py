"""The coordinator of AsySQN: the role named "server", which takes no part in the mathematics.

It sees no column, no margin, no label and no gradient. It compares the digests of the parties' labels, says when to
begin, who takes part, when a snapshot is due (SVRG), which party is to judge the model, and when it is over; and it
counts updates. Every number it reports of the model's quality comes from a party.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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
from colonnade.algorithms.chassis import PARTY, Counting, CountingState, on, timer
from colonnade.algorithms.evaluation import Evaluated, Scores
from colonnade.algorithms.method import ServerSetup
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Message
from colonnade.protocol.role import RoleSummary

__all__ = ["LinearCoordinator", "State"]

JUDGE_TIMER = "judge"
HOLDING, TAKING = "holding", "taking"  # a barrier's two halves


@dataclass(slots=True, kw_only=True)
class State(CountingState):
    """What the coordinator knows of the parties."""

    due: str = ""  # the first evaluation waits until all parties are here
    nonzeros: dict[str, int] = field(default_factory=dict)  # of those that said hello, and remember it
    labels: dict[str, str] = field(default_factory=dict)  # their digests, until all are the same
    agreed: str = ""  # the digest of all
    left: dict[str, str] = field(default_factory=dict)  # parties whose own numbers diverged, and how
    begun: bool = False
    steps: dict[int, int] = field(default_factory=dict)  # of each party, as last heard
    turn: int = 0  # whose it is to judge, to aggregate for all
    number: int = 0  # of the newest evaluation
    judge: str = ""  # the party that is asked to judge
    last: bool = False  # whether it judges the test rows beside the validation rows
    unmoved: str = ""  # the last evaluation waits for a step of this party, which declined
    declined: int = 0  # evaluations that are missing since a party declined
    missing: list[str] = field(default_factory=list)  # parties, from this evaluation
    barrier: int = 0
    phase: str = ""  # of the barrier
    done: list[int] = field(default_factory=list)  # parties that have held, taken or, in a synchronous round, stepped
    snapshots: int = 0
    round: int = 0
    running: bool = False  # a synchronous round is
    round_rows: int = 0


class LinearCoordinator(Counting[State]):
    """Knows which parties are here and how far they are."""

    def __init__(self, setup: ServerSetup[LinearOptions]) -> None:
        super().__init__(setup.parties, setup.training, State())
        self.options = setup.options
        self.fewest = setup.options.fewest(len(setup.parties))  # parties of an aggregation

    @property
    def members(self) -> list[int]:
        """The parties that take part."""
        state = self.state
        here = [name for name in self.names if name in state.present and name in state.nonzeros]
        return [self.index[name] for name in here if name not in state.left]

    def _tell(self, members: Iterable[int], message: Message) -> None:
        for member in members:
            self.send(self.names[member], message)

    # Coming and going.

    @on(Hello, PARTY)
    def hello(self, sender: str, message: Hello) -> None:
        """A party is there; before the first step all labels are compared."""
        state, digest = self.state, message.labels_sha256
        if message.nonzeros < 1 or message.rows != self.training.rows:
            raise RemoteProtocolError(sender, f"has {message.rows} training rows, this run has {self.training.rows}")
        if state.agreed and digest != state.agreed:
            return self.send(sender, Differs(digest, self._other_labels([sender])))
        state.nonzeros[sender] = message.nonzeros
        state.left.pop(sender, None)  # it begins again
        if not state.agreed:
            self._compare(sender, digest)
        if state.agreed:
            self._welcome(sender)

    def _compare(self, sender: str, digest: str) -> None:
        """Once all parties have said hello: their labels are the same, or they are told that they are not."""
        state = self.state
        state.labels[sender] = digest
        if odd := self._odd():
            for name in odd:
                self.send(name, Differs(state.labels[name], self._other_labels(odd)))
        elif len(state.labels) == len(self.names):
            state.agreed, state.labels = digest, {}

    def _odd(self) -> list[str]:
        """Parties with other labels than most, once all have said theirs; all parties, if most have no labels alike."""
        labels, parties = self.state.labels, len(self.names)
        counts = Counter(labels.values())
        if len(labels) < parties or len(counts) == 1:
            return []
        most, count = counts.most_common(1)[0]
        return [name for name in self.names if labels[name] != most or 2 * count <= parties]

    def _other_labels(self, odd: list[str]) -> str:
        verb = "holds" if len(odd) == 1 else "hold"
        rest = "each other" if len(odd) == len(self.names) else "the rest"
        return f"{', '.join(odd)} {verb} other labels than {rest}: compare the label columns, row by row"

    @on(Diverged, PARTY)
    def diverged(self, sender: str, message: Diverged) -> None:
        """Go on without a party whose own numbers diverged, if enough are left; else the run leads nowhere."""
        if sender in self.state.left:
            return
        others = [m for m in self.members if self.names[m] != sender]
        if not message.own or not self.state.begun or len(others) < self.fewest:
            slower = "take a larger train.batch_size" if self.training.measured else "lower train.learning_rate"
            advice = slower + ", or take protocol.ahead = 0" * bool(self.options.ahead)
            raise TrainingDiverged(f"{sender}: {message.cause[:200]}; {advice}")
        self.state.left[sender] = message.cause[:200]
        self._changed(sender)

    def _begin(self) -> Begin:
        """The unit of work is a mean party's row."""
        unit = float(np.mean(list(self.state.nonzeros.values()))) / self.training.rows
        return Begin(unit, self.members)

    def joined(self, peer: str, anew: bool) -> None:
        """A party is here; it takes part once it has said hello. Training does not wait for it, so none advances."""
        state = self.state
        state.present[peer] = True
        if anew:
            state.nonzeros.pop(peer, None)  # until it says hello again
            state.labels.pop(peer, None)
            self._changed(peer)
        elif peer in state.nonzeros and peer not in state.left:
            self._welcome(peer)

    def peer_lost(self, peer: str) -> None:
        """A party is gone."""
        self.state.present.pop(peer, None)
        self._changed(peer)

    def _welcome(self, peer: str) -> None:
        """It takes part from now on; the first evaluation, and training after it, wait for all."""
        if self.state.begun:
            self.send(peer, self._begin())
            self._changed(peer)
        elif self.state.agreed and len(self.members) == len(self.names):
            self.begin_judging()

    def _changed(self, peer: str) -> None:
        """A party came or went: what it had a share in begins again, without what was half done."""
        state, members = self.state, self.members
        self._tell([m for m in members if self.names[m] != peer], Members(members))
        if state.judge or state.unmoved:
            self.begin_judging()
        if not state.begun or self.progress.ending:
            return
        if state.phase == HOLDING:
            return self._hold()
        if state.phase == TAKING:
            self._release()
        if self.options.synchronous:
            self._next_round()

    @property
    def _enough(self) -> bool:
        return len(self.members) >= self.fewest

    # Counting.

    @on(Stepped, PARTY)
    def stepped(self, sender: str, message: Stepped) -> None:
        """An update, or one party's part of a round."""
        self._check(sender, message)
        party = self.index[sender]
        self.state.steps[party] = message.steps
        if sender == self.state.unmoved:
            return self.begin_judging()
        if not self.state.begun or self.progress.ending:
            return
        if self.options.synchronous:
            return self._round_stepped(party, message)
        self._note_staleness(party, message)
        self._count(message.rows)

    def _check(self, sender: str, message: Stepped) -> None:
        known = all(0 <= member < len(self.names) for member in message.members)
        if not (0 < message.rows <= self.training.rows and message.steps > 0 and message.clock >= 0 and known):
            raise RemoteProtocolError(sender, f"a step that cannot be: {message!r:.120}")

    def _note_staleness(self, party: int, message: Stepped) -> None:
        """How many updates the contributors made since, as far as they have been heard of here."""
        made = sum(self.state.steps.get(member, 0) for member in message.members if member != party)
        ages = np.zeros((1, len(self.names)), np.int32)
        ages[0, party] = min(max(0, made - message.clock), 2**20)
        self.staleness.add(ages, [party])

    def _count(self, rows: int) -> None:
        self.counted(rows, [])
        self.settle()
        if self._snapshot_due() and not self.state.phase and not self.progress.ending:
            self.state.snapshots += 1
            self._hold()

    def _snapshot_due(self) -> bool:
        if self.options.estimator != SVRG:
            return False
        return self.progress.epochs >= (self.state.snapshots + 1) * self.options.snapshot_every

    # SVRG's barrier: Alg. 4 l. 3.

    def _hold(self) -> None:
        """All parties end their steps and rest."""
        state = self.state
        state.barrier += 1
        state.phase, state.done, state.running = HOLDING, [], False
        self._tell(self.members, Hold(state.barrier))

    def _release(self) -> None:
        """Parties came or went while θ(w^s) was summed: go on with what each has, until the next snapshot is due.

        # DEVIATION: Alg. 4 l. 3 in every epoch. A sum of all rows over other parties, a step later, would come close
        to the margins of a lost party; the estimate is unbiased whatever the reference is.
        """
        self.state.phase, self.state.done = "", []
        self._tell(self.members, Release(self.state.barrier))

    @on(Held, PARTY)
    def held(self, sender: str, message: Held) -> None:
        """When all rest, one of them aggregates θ(w^s)."""
        if self._all_done(sender, HOLDING, message.barrier):
            self.state.phase = TAKING
            self._tell([self._next_member()], Take(self.state.barrier))

    @on(Taken, PARTY)
    def taken(self, sender: str, message: Taken) -> None:
        """The barrier is over when all have the full gradient."""
        if self._all_done(sender, TAKING, message.barrier):
            self.state.phase = ""
            if self.options.synchronous:
                self._next_round()

    def _all_done(self, sender: str, phase: str, barrier: int) -> bool:
        """One more party has held, or taken: was it the last?"""
        state, party = self.state, self.index[sender]
        if state.phase != phase or barrier != state.barrier or party in state.done:
            return False
        state.done.append(party)
        if not set(self.members) <= set(state.done) or not self._enough:
            return False
        state.done = []
        return True

    def _next_member(self) -> int:
        self.state.turn += 1
        return self.members[self.state.turn % len(self.members)]

    # Synchronous twins.

    def _next_round(self) -> None:
        """All parties step on what one of them aggregates."""
        state = self.state
        state.running = False
        if not self._enough or state.judge or state.phase or self.progress.ending:
            return
        state.round += 1
        state.running, state.done, state.round_rows = True, [], 0
        self._tell(self.members, Round(state.round, self._next_member()))

    def _round_stepped(self, party: int, message: Stepped) -> None:
        state = self.state
        if not state.running or message.round != state.round or party in state.done:
            return
        state.done.append(party)
        state.round_rows += message.rows
        if not set(self.members) <= set(state.done):
            return
        state.running = False
        self.staleness.add(np.zeros((1, len(self.names)), np.int32), self.members)
        self._count(state.round_rows)
        self._next_round()

    # Evaluation.

    def judging(self) -> bool:
        """Whether a party is asked to judge."""
        return bool(self.state.judge)

    def begin_judging(self) -> None:
        """One party aggregates the margins of held-out rows, through the same trees, and judges them.

        All members are told of it, and over which members: they answer that party for these, and no other.
        """
        state, members = self.state, self.members
        state.number += 1
        state.unmoved = ""
        state.last = bool(self.progress.ending and self.training.validation)
        state.missing = [name for name, index in self.index.items() if index not in members]
        if len(members) < (FEWEST if self.options.masking == "on" else 1):
            if state.begun and not self.progress.ending:
                return self._judged_nothing()
            state.judge = "nobody"  # the first and the last evaluation wait for a party
            return
        judge = self._next_member()
        state.judge = self.names[judge]
        message = Judge(state.number, judge, members, state.last)
        for member in (*(m for m in members if m != judge), judge):  # the judge hears it last
            self.send(self.names[member], message, evaluation=True)
        self.wake(JUDGE_TIMER, self.now + round(self.options.patience_s * NANOSECONDS))

    @timer(JUDGE_TIMER)
    def judge_is_late(self, due: int) -> None:
        """Ask another party."""
        if self.state.judge:
            self.begin_judging()

    @on(Judged, PARTY)
    def judged(self, sender: str, message: Judged) -> None:
        """A party has judged the model."""
        if sender != self.state.judge or message.number != self.state.number:
            return
        if self.training.metric not in message.values:
            raise RemoteProtocolError(
                sender, f"a judgement without {self.training.metric}: does protocol.loss fit the labels?"
            )
        if (message.tested is not None) != self.state.last:
            raise RemoteProtocolError(sender, "judges other rows than it was asked to")
        self.state.judge = ""
        self.forget_timer(JUDGE_TIMER)
        result = Evaluated(message.number, message.loss, message.values, message.tested)
        self.measured(result, self.state.missing)

    @on(Declined, PARTY)
    def declines(self, sender: str, message: Declined) -> None:
        """A party was judged with others, and has not moved since: this evaluation will not be.

        The last one is asked for again when that party has stepped, if it can.
        """
        state = self.state
        if not state.judge or message.number != state.number:
            return
        state.judge = ""
        self.forget_timer(JUDGE_TIMER)
        steps = state.begun and self._enough and not state.phase and not self.options.synchronous
        if self.progress.ending and steps and self.index[sender] in self.members:
            state.unmoved = sender
            return
        state.declined += 1
        state.missing = [name for name in self.names if name in state.missing or name == sender]
        self._judged_nothing()

    def _judged_nothing(self) -> None:
        self.state.judge = ""
        nothing = Scores(float("nan"), {self.training.metric: float("nan")})
        tested = nothing if self.state.last else None
        self.measured(Evaluated(self.state.number, nothing.loss, nothing.values, tested), self.state.missing)

    def advance(self) -> None:
        """After an evaluation: begin, or the next round."""
        if self.progress.ending:
            return
        if not self.state.begun:
            self.state.begun = True
            self._tell(self.members, self._begin())
        if self.options.synchronous and not self.state.running:
            self._next_round()

    # People.

    def waits_for(self) -> list[str]:
        """The parties that have to come or to answer before training goes on."""
        state, odd, members = self.state, self._odd(), self.members
        if not state.begun or not self._enough:
            return [name for name in self.names if self.index[name] not in members or name in odd]
        if not (state.phase or state.running):
            return [name for name in (state.judge, state.unmoved) if name in self.index]
        return [self.names[member] for member in members if member not in state.done]

    def validate(self) -> None:
        """What must hold between any two events."""
        state = self.state
        if len(set(state.done)) < len(state.done):
            raise LocalProtocolError("server: a party is done twice")
        if state.running and (state.phase or not self.options.synchronous):
            raise LocalProtocolError("server: a round is running where none may")
        if state.agreed and state.labels:
            raise LocalProtocolError("server: labels are compared, but not all")

    def told(self) -> RoleSummary:
        """Steps and barriers; it has no weights."""
        steps = {self.names[party]: count for party, count in sorted(self.state.steps.items())}
        return {"note": self._note(), "weights": "", "method": {"steps": steps, "barriers": self.state.barrier}}

    def _note(self) -> str:
        """What a reader of the summary should know."""
        state = self.state
        notes = [self._other_labels(odd)] if (odd := self._odd()) else []
        notes += [f"went on without {name}: {cause}" for name, cause in state.left.items()]
        if state.declined:
            cause = "parties came or went, and a party had not moved since the evaluation before"
            notes.append(f"evaluations missing: {state.declined} ({cause})")
        return "; ".join(notes)
