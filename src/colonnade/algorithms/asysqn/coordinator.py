"""The coordinator of AsySQN: the role named "server", which takes no part in the mathematics.

It sees no column, no margin, no label and no gradient. It compares the digests of the parties' labels. It decides when
training begins and ends, which parties take part, when a snapshot is due (SVRG) and which party judges the model. It
also counts updates. Every number that it reports about the model's quality comes from a party.

It cannot check what a party says about its numbers, so no party alone ends the run. A party whose own numbers diverged
leaves. What a party says about the whole model, or about itself if the run needs it, counts if a second party says so,
too: the coordinator asks another party to judge the model. If that party finds nothing wrong, the first one leaves.

A party that holds back its part of a sum is seen only by the party that waits for it. The coordinator collects what the
parties say of each other (`disputes`), and names the suspects as those that owe something. If a snapshot's or round's
initiator gives its sum up, the coordinator continues without the snapshot, or lets another party initiate a round.

If the parties of an asynchronous method share their sums, it announces them (`sharing`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isinf

import numpy as np

from colonnade.algorithms.asysqn.aggregation import place_of
from colonnade.algorithms.asysqn.config import FEWEST, SVRG, LinearOptions
from colonnade.algorithms.asysqn.disputes import Disputes
from colonnade.algorithms.asysqn.messages import (
    BeginTraining,
    Declined,
    Differs,
    Diverged,
    Held,
    Hello,
    Hold,
    Judge,
    Judged,
    Members,
    Missing,
    Release,
    Round,
    Stepped,
    Summed,
    Take,
    Taken,
)
from colonnade.algorithms.asysqn.sharing import Pipeline
from colonnade.algorithms.chassis import PARTY, Counting, CountingState, on, timer
from colonnade.algorithms.evaluation import Evaluated, Scores
from colonnade.algorithms.leaving import LONGEST
from colonnade.algorithms.method import ServerSetup
from colonnade.algorithms.sane import STEPS, is_step
from colonnade.models.continued import Continued
from colonnade.protocol.errors import (
    ConfigError,
    LocalProtocolError,
    PartyDiverged,
    RemoteProtocolError,
    TrainingDiverged,
)
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Message
from colonnade.protocol.role import RoleSummary

__all__ = ["LinearCoordinator", "State"]

JUDGE_TIMER = "judge"
HOLDING, TAKING = "holding", "taking"  # the two halves of a barrier
DIGEST = 64  # characters of a sha256
WIDEST = 2**24  # columns of a party
TRIES = 2  # times the number of parties: how often a judge may take too long before an evaluation is dropped
MOST_SCORES, LONGEST_NAME = 32, 64  # of a judgement


@dataclass(slots=True, kw_only=True)
class State(CountingState):
    """The coordinator's knowledge of the parties."""

    due: str = ""  # the first evaluation waits until all parties are here
    nonzeros: dict[str, int] = field(default_factory=dict)  # of parties that said hello, and remember it
    labels: dict[str, str] = field(default_factory=dict)  # label digests, until all are the same
    agreed: str = ""  # the common label digest
    left: dict[str, str] = field(default_factory=dict)  # parties whose own numbers diverged, and how
    doubts: dict[str, str] = field(default_factory=dict)  # parties that say that the whole model diverged, and how
    begun: bool = False
    steps: dict[int, int] = field(default_factory=dict)  # steps of each party, as last heard
    turn: int = 0  # rotates the party that judges, or aggregates for all
    number: int = 0  # number of the newest evaluation
    judge: str = ""  # the party that is asked to judge
    last: bool = False  # whether it also judges the test rows
    unmoved: str = ""  # the last evaluation waits for a step of this party, which declined
    declined: int = 0  # evaluations that are missing because a party declined
    tries: int = 0  # how often the judge of this evaluation took too long
    unjudged: int = 0  # evaluations that are missing because no judge got all sums in time
    missing: list[str] = field(default_factory=list)  # parties that are missing in this evaluation
    barrier: int = 0
    phase: str = ""  # half of the barrier; "": none
    asked: int = -1  # the party that aggregates for all, for a snapshot or in a synchronous round
    done: list[int] = field(default_factory=list)  # parties that have held, taken or, in a synchronous round, stepped
    snapshots: int = 0
    round: int = 0  # the newest synchronous round, or shared sum
    running: bool = False  # whether a synchronous round is running
    round_rows: int = 0


class LinearCoordinator(Counting[State]):
    """Tracks which parties are here, and their progress."""

    def __init__(self, setup: ServerSetup[LinearOptions]) -> None:
        super().__init__(setup.parties, setup.training, State())
        self.options = setup.options
        self.fewest = setup.options.fewest(len(setup.parties))  # parties of an aggregation
        self.disputes = Disputes()
        self.shared, self.pipeline = setup.options.shares(setup.training.measured), Pipeline(setup.options.ahead)
        before = setup.model.parties if isinstance(setup.model, Continued) else setup.parties
        if setup.options.intercept and before[:1] != setup.parties[:1]:
            advice = f"{before[0]} held the intercept in the earlier run, as its first party: name it first"
            raise ConfigError("network.parties", list(setup.parties), advice)

    @property
    def members(self) -> list[int]:
        """The parties that take part."""
        state = self.state
        here = [name for name in self.names if name in state.present and name in state.nonzeros]
        return [self.index[name] for name in here if name not in state.left]

    def _tell(self, members: Iterable[int], message: Message) -> None:
        for member in members:
            self.send(self.names[member], message)

    # Parties that come and go.

    @on(Hello, PARTY)
    def hello(self, sender: str, message: Hello) -> None:
        """Register a party. Before the first step, all labels are compared."""
        state, digest, rows = self.state, message.labels_sha256, self.training.rows
        if message.rows != rows:
            raise RemoteProtocolError(sender, f"has {message.rows} training rows, this run has {rows}")
        if not 1 <= message.nonzeros <= WIDEST * rows or not is_step(message.tests) or len(digest) != DIGEST:
            raise RemoteProtocolError(sender, f"sends an impossible Hello: {message!r:.120}")
        if state.agreed and sender in state.nonzeros:
            raise RemoteProtocolError(sender, "sends Hello twice")
        if state.agreed and digest != state.agreed:
            return self.send(sender, Differs(digest, self._other_labels([sender])))
        state.nonzeros[sender] = message.nonzeros
        for said in (state.left, state.doubts):
            said.pop(sender, None)  # it begins again
        if not state.agreed:
            self._compare(sender, digest)
        if state.agreed:
            self._welcome(sender)

    def _compare(self, sender: str, digest: str) -> None:
        """Once all parties have said hello, agree on the labels, or tell the parties whose labels differ."""
        state = self.state
        state.labels[sender] = digest
        if odd := self._odd():
            for name in odd:
                self.send(name, Differs(state.labels[name], self._other_labels(odd)))
        elif len(state.labels) == len(self.names):
            state.agreed, state.labels = digest, {}

    def _odd(self) -> list[str]:
        """Parties whose labels differ from the majority's, once all said hello; all parties without a majority."""
        labels, parties = self.state.labels, len(self.names)
        counts = Counter(labels.values())
        if len(labels) < parties or len(counts) == 1:
            return []
        most, count = counts.most_common(1)[0]
        return [name for name in self.names if labels[name] != most or 2 * count <= parties]

    def _other_labels(self, odd: list[str]) -> str:
        verb = "holds" if len(odd) == 1 else "hold"
        rest = "each other" if len(odd) == len(self.names) else "the rest"
        return f"{', '.join(odd)} {verb} different labels from {rest}: compare the label columns row by row"

    @on(Diverged, PARTY)
    def diverged(self, sender: str, message: Diverged) -> None:
        """Continue without a party whose own numbers diverged, if the run can. If not, wait for a second witness."""
        state, cause = self.state, message.cause[:LONGEST]
        if sender in state.left or sender in state.doubts:
            return
        if message.own and self._can_spare({sender: cause}, state.begun):
            return self._leave_out({sender: cause})
        if state.doubts:
            raise TrainingDiverged(f"{', '.join((*state.doubts, sender))}: {cause}{self._caveat()}; {self._advice()}")
        if not any(self.names[member] != sender for member in self.members):
            raise PartyDiverged(sender, f"{cause}{self._caveat()}; {self._advice()}")
        state.doubts[sender] = cause
        self.begin_judging()
        self._await_judgement()  # also if too few parties are here to judge

    def _advice(self) -> str:
        slower = "increase train.batch_size" if self.training.measured else "lower train.learning_rate"
        return slower + ", or set protocol.ahead = 0" * bool(self.options.ahead)

    def _leave_out(self, parties: dict[str, str]) -> None:
        """Continue without these parties; raise PartyDiverged if training has not begun, or needs one of them."""
        self._check_spared(parties, self.state.begun)
        for name, cause in parties.items():
            doubted = self.state.doubts.pop(name, None)
            self.state.left[name] = cause
            if doubted:  # it cannot know that no other party confirms it, and would ask for sums for ever
                self.send(name, Members(self.members))
            self._changed(name)

    def _can_spare(self, parties: dict[str, str], begun: bool) -> bool:
        others = [member for member in self.members if self.names[member] not in parties]
        return not parties or (begun and len(others) >= self.fewest)

    def _check_spared(self, parties: dict[str, str], begun: bool) -> None:
        if not self._can_spare(parties, begun):
            name, cause = next(iter(parties.items()))
            raise PartyDiverged(name, f"{cause}{self._caveat()}; {self._advice()}")

    def _caveat(self) -> str:
        """Say which parties may be the cause: false numbers of one party are in the sums of all others.

        The first sum is over all parties, so each of them took part, also if it has left since.
        """
        return f" (the cause may be false numbers of any party that took part: {', '.join(self.names)})"

    def _begin(self) -> BeginTraining:
        """The order to train; its unit of work is a mean party's row."""
        unit = float(np.mean(list(self.state.nonzeros.values()))) / self.training.rows
        return BeginTraining(unit, self.members)

    def joined(self, peer: str, reset: bool) -> None:
        """A party is here; it takes part once it has said hello. Training does not wait for it, so nothing advances."""
        state = self.state
        state.present[peer] = True
        if reset:
            state.nonzeros.pop(peer, None)  # until it says hello again
            state.labels.pop(peer, None)
            state.doubts.pop(peer, None)
            self._changed(peer)
        elif peer in state.nonzeros and peer not in state.left:
            self._welcome(peer)

    def peer_lost(self, peer: str) -> None:
        """Regroup without the party."""
        self.state.present.pop(peer, None)
        self._changed(peer)

    def _welcome(self, peer: str) -> None:
        """The party takes part from now on; the first evaluation, and training after it, wait for all parties."""
        if self.state.begun:
            self.send(peer, self._begin())
            self._changed(peer)
        elif self.state.agreed and len(self.members) == len(self.names):
            self.begin_judging()

    def _changed(self, peer: str) -> None:
        """A party came or went: restart everything that it had a share in, and drop partial results."""
        state, members = self.state, self.members
        self.disputes.settle()  # all sums so far are dropped
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
        self._share_again()

    @property
    def _enough(self) -> bool:
        return len(self.members) >= self.fewest

    # Counting.

    @on(Stepped, PARTY)
    def stepped(self, sender: str, message: Stepped) -> None:
        """Count an update, or one party's part of a round."""
        self._check(sender, message)
        party = self.index[sender]
        self.state.steps[party] = message.steps
        if not self.options.synchronous and not self.shared:
            self.disputes.settle(party)  # its own sum is complete
        if sender == self.state.unmoved:
            return self.begin_judging()
        if not self.state.begun or self.progress.ending:
            return
        if self.options.synchronous:
            return self._round_stepped(party, message)
        self._note_staleness(party, message)
        self.pipeline.stepped(message.round)
        self._count(message.rows)
        self._share_next()

    def _check(self, sender: str, message: Stepped) -> None:
        parties, members = len(self.names), message.members
        known = len(members) <= parties and all(0 <= member < parties for member in members)
        size = 0 < message.rows <= min(self.training.batch_size, self.training.rows)
        numbers = 0 < message.steps < STEPS and 0 <= message.clock < STEPS * parties
        if not (known and size and numbers and 0 <= message.round <= self.state.round):
            raise RemoteProtocolError(sender, f"reports an impossible step: {message!r:.120}")

    def _note_staleness(self, party: int, message: Stepped) -> None:
        """Count the updates that the contributors have made since, as far as the coordinator has heard."""
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
        """Order all parties to end their steps and rest."""
        state = self.state
        state.barrier += 1
        state.phase, state.done, state.running = HOLDING, [], False
        self.pipeline.restart(state.round)
        self.disputes.settle()
        self._tell(self.members, Hold(state.barrier))

    def _release(self) -> None:
        """Parties came or went while θ(w^s) was summed: continue with the snapshots they have, until the next is due.

        # DEVIATION: Alg. 4 l. 3 takes a snapshot in every epoch. A second sum of all rows over other parties, one step
        # later, would come close to the margins of a lost party. The estimate is unbiased whatever the reference is.
        """
        self.state.phase, self.state.done = "", []
        self._tell(self.members, Release(self.state.barrier))

    @on(Held, PARTY)
    def held(self, sender: str, message: Held) -> None:
        """When all parties rest, one of them aggregates θ(w^s)."""
        if self._all_done(sender, HOLDING, message.barrier):
            self.state.phase, self.state.asked = TAKING, self._next_member()
            self.disputes.settle()  # the sums of which parties complained before they held
            self._tell([self.state.asked], Take(self.state.barrier))

    @on(Taken, PARTY)
    def taken(self, sender: str, message: Taken) -> None:
        """The barrier ends when all parties have the full gradient."""
        if self._all_done(sender, TAKING, message.barrier):
            self.state.phase = ""
            self.disputes.settle()
            if self.options.synchronous:
                self._next_round()
            self._share_next()

    def _all_done(self, sender: str, phase: str, barrier: int) -> bool:
        """Note that a party has held or taken; True if it was the last one."""
        state, party = self.state, self.index[sender]
        if not 0 < barrier <= state.barrier:
            raise RemoteProtocolError(sender, f"rests at barrier {barrier}; the newest is {state.barrier}")
        if state.phase != phase or barrier != state.barrier or party in state.done:
            return False
        state.done.append(party)
        if not set(self.members) <= set(state.done) or not self._enough:
            return False
        state.done = []
        return True

    def _next_member(self) -> int:
        """Take turns; a party that doubts the model does not judge it."""
        self.state.turn += 1
        trusted = [member for member in self.members if self.names[member] not in self.state.doubts]
        members = trusted or self.members
        return members[self.state.turn % len(members)]

    # Shared sums.

    def _share_again(self) -> None:
        """All shared sums so far are dropped: announce others."""
        self.pipeline.restart(self.state.round)
        self._share_next()

    def _share_next(self) -> None:
        """Announce the shared sums that are due, each with another party that aggregates it."""
        state, pipeline = self.state, self.pipeline
        if not self.shared or not state.begun or not self._enough or state.phase or self.progress.ending:
            return
        members = self.members
        while pipeline.is_due and (free := [member for member in members if member not in pipeline.open.values()]):
            state.turn += 1
            state.round += 1
            initiator = free[state.turn % len(free)]
            pipeline.announce(state.round, initiator)
            self._tell(members, Round(state.round, initiator))

    @on(Summed, PARTY)
    def summed(self, sender: str, message: Summed) -> None:
        """A party has sent the totals of a shared sum to all."""
        if not self.shared or not 0 < message.round <= self.state.round:
            raise RemoteProtocolError(sender, f"has summed {message.round}; the newest is {self.state.round}")
        party = self.index[sender]
        if self.pipeline.summed(message.round, party):
            self.disputes.settle(party)
            self._share_next()

    # Synchronous twins.

    def _next_round(self) -> None:
        """Start a round: all parties step on the margins that one of them aggregates."""
        state = self.state
        state.running = False
        if not self._enough or state.judge or state.phase or self.progress.ending:
            return
        state.round += 1
        state.running, state.done, state.round_rows, state.asked = True, [], 0, self._next_member()
        self._tell(self.members, Round(state.round, state.asked))

    def _round_stepped(self, party: int, message: Stepped) -> None:
        state = self.state
        if not state.running or message.round != state.round or party in state.done:
            return
        state.done.append(party)
        state.round_rows += message.rows
        if not set(self.members) <= set(state.done):
            return
        state.running = False
        self.disputes.settle()
        self.staleness.add(np.zeros((1, len(self.names)), np.int32), self.members)
        self._count(state.round_rows)
        self._next_round()

    # Sums that are late.

    @on(Missing, PARTY)
    def misses(self, sender: str, message: Missing) -> None:
        """Note the children that owe a party their part. If the sum is for all parties and given up, go on without."""
        children, parties = message.parties, len(self.names)
        distinct = children == sorted(set(children)) and all(0 <= child < parties for child in children)
        if not (distinct and children and 0 <= message.initiator < parties and 0 <= message.nonce < 2**63):
            raise RemoteProtocolError(sender, f"complains of impossible parties: {message!r:.120}")
        party, initiator = self.index[sender], message.initiator
        for_all = initiator == self.state.asked and (not self.shared or self.state.phase == TAKING)
        awaited = self._children(party, initiator)
        if for_all and party not in self.state.done:
            awaited.add(initiator)  # its sum
        if not set(children) <= awaited:
            return  # parties have come or gone since
        self.disputes.note(initiator, party, message.nonce, tuple(children))
        if not message.given_up or self.progress.ending or initiator not in (party, *children):
            return
        if for_all:
            self._go_on()
        elif self.pipeline.give_up(initiator):
            self._share_next()

    def _children(self, parent: int, initiator: int) -> set[int]:
        """The parties whose sums this one waits for, on both trees of a sum over the present members."""
        members, masked = tuple(self.members), self.options.masking == "on"
        if len(members) < (FEWEST if masked else 1) or not {parent, initiator} <= set(members):
            return set()
        first, second = place_of(parent, initiator, members, masked, self.options.fan_out)
        return {*first.children, *second.children}

    def _go_on(self) -> None:
        """A sum for all parties was given up: leave the snapshot out, and let another party initiate a round."""
        if self.state.phase == TAKING:
            self._release()
        elif not self.state.running:
            return
        if self.options.synchronous:
            self._next_round()
        self._share_next()

    # Evaluation.

    def judging(self) -> bool:
        """Whether a party is asked to judge."""
        return bool(self.state.judge)

    def begin_judging(self) -> None:
        """Ask one party to aggregate the margins of held-out rows, through the same trees, and to judge them.

        The coordinator tells all members of it, and names the members. They answer that party for these members only.
        """
        state, members = self.state, self.members
        state.number += 1
        state.unmoved = ""
        state.last = bool(self.progress.ending and self.training.validation)
        state.missing = [name for name, index in self.index.items() if index not in members]
        if len(members) < (FEWEST if self.options.masking == "on" else 1):
            if state.begun and not self.progress.ending:
                return self._judged_nothing()
            state.judge = "nobody"  # the first and the last evaluation wait for enough parties
            return
        judge = self._next_member()
        state.judge = self.names[judge]
        message = Judge(state.number, judge, members, state.last)
        for member in (*(m for m in members if m != judge), judge):  # the judge hears of it last
            self.send(self.names[member], message, evaluation=True)
        self._await_judgement()

    def _await_judgement(self) -> None:
        self.wake(JUDGE_TIMER, self.now + round(self.options.patience_s * NANOSECONDS))

    @timer(JUDGE_TIMER)
    def judge_is_late(self, due: int) -> None:
        """Ask another party. A party that doubts the model may be the one that holds up its judgement."""
        if self.state.doubts:
            self._leave_out(dict(self.state.doubts))
        elif self.state.judge:
            self.state.tries += 1
            if self.state.tries < TRIES * len(self.names):
                return self.begin_judging()
            self.state.unjudged += 1  # a party holds up the sums, and the coordinator cannot see which
            self._judged_nothing()

    @on(Judged, PARTY)
    def judged(self, sender: str, message: Judged) -> None:
        """Take the scores of the party that judges. They refute a party that doubts the model."""
        self._check_number(sender, message.number)
        if sender != self.state.judge or message.number != self.state.number:
            return
        for scores in (message, message.tested):
            if scores is not None and not _are_scores(scores.loss, scores.values):
                raise RemoteProtocolError(sender, f"sends an impossible evaluation: {message!r:.120}")
        for metric in (self.training.metric, *self.training.also):
            if metric not in message.values:
                raise RemoteProtocolError(
                    sender, f"sends an evaluation without {metric}: does protocol.loss fit the labels?"
                )
        if (message.tested is not None) != self.state.last:
            raise RemoteProtocolError(sender, "evaluates other rows than the coordinator asked for")
        doubts, over = dict(self.state.doubts), bool(self.progress.ending)
        if not over:
            self._check_spared(doubts, begun=True)
        self.state.judge = ""
        self.forget_timer(JUDGE_TIMER)
        self.state.tries = 0
        result = Evaluated(message.number, message.loss, message.values, message.tested)
        self.measured(result, self.state.missing)
        if not over:
            self._leave_out(doubts)

    def _check_number(self, sender: str, number: int) -> None:
        if not 0 < number <= self.state.number:
            raise RemoteProtocolError(sender, f"answers evaluation {number}; the newest is {self.state.number}")

    @on(Declined, PARTY)
    def declines(self, sender: str, message: Declined) -> None:
        """Drop this evaluation: a party contributed to one over other members and has not moved since.

        The last evaluation is repeated when that party has stepped, if it can step.
        """
        state = self.state
        self._check_number(sender, message.number)
        if not state.judge or message.number != state.number:
            return
        if state.doubts:  # no judgement confirms them
            return self._leave_out(dict(state.doubts))
        state.judge = ""
        self.forget_timer(JUDGE_TIMER)
        steps = state.begun and self._enough and not (state.phase or self.options.synchronous or self.shared)
        if self.progress.ending and steps and self.index[sender] in self.members:
            state.unmoved = sender
            return
        state.declined += 1
        state.missing = [name for name in self.names if name in state.missing or name == sender]
        self._judged_nothing()

    def _judged_nothing(self) -> None:
        self.state.judge, self.state.tries = "", 0
        names = (self.training.metric, *self.training.also)
        nothing = Scores(float("nan"), dict.fromkeys(names, float("nan")))
        tested = nothing if self.state.last else None
        self.measured(Evaluated(self.state.number, nothing.loss, nothing.values, tested), self.state.missing)

    def advance(self) -> None:
        """After an evaluation: begin training, or start the next round."""
        if self.progress.ending:
            return
        if not self.state.begun:
            self.state.begun = True
            self._tell(self.members, self._begin())
        if self.options.synchronous and not self.state.running:
            self._next_round()
        self._share_next()

    # Progress, checks and summary.

    def waits_for(self) -> list[str]:
        """The parties that must join or answer before training continues."""
        state, odd, members = self.state, self._odd(), self.members
        if not state.begun or not self._enough:
            return [name for name in self.names if self.index[name] not in members or name in odd]
        if suspects := self._suspects():
            return suspects
        if not (state.phase or state.running):
            return self._summing() or [name for name in (state.judge, state.unmoved) if name in self.index]
        late = {member for member in members if member not in state.done}
        if state.phase != HOLDING:  # if the initiator had to wait for parts of its sum, it would complain
            late = self._without_sum() or {state.asked}
        return [self.names[member] for member in sorted(late)]

    def _summing(self) -> list[str]:
        """The parties whose totals the next shared sum waits for."""
        if not self.shared or self.progress.ending:
            return []
        return [self.names[party] for party in sorted(self.pipeline.awaited())]

    def _without_sum(self) -> set[int]:
        """If some parties have used a sum for all: the others, and its initiator, which may have left them out."""
        state = self.state
        if not (state.running or state.phase == TAKING) or not set(state.done) - {state.asked}:
            return set()
        return set(self.members) - set(state.done) | {state.asked}

    def _suspects(self) -> list[str]:
        """The parties that may hold up the sums for which training waits. Parties rest without a sum."""
        if not self.state.begun or not self._enough or self.state.phase == HOLDING:
            return []
        return [self.names[party] for party in self.disputes.suspects(self._without_sum())]

    def owes(self) -> dict[str, str]:
        """Without a barrier every party owes a step. A party may wait for another's sum: any step is progress."""
        waits = self.waits_for()
        if self._suspects():  # the same words while the suspects become fewer: the debt stays the same
            return dict.fromkeys(waits, "its part of a sum that is late")
        if waits and not self.state.phase and waits == self._summing():
            return dict.fromkeys(waits, f"totals of a sum after update {self.k}")
        if waits:
            return dict.fromkeys(waits, f"its answer at barrier {self.state.barrier} after update {self.k}")
        return {self.names[member]: f"a step after update {self.k}" for member in self.members}

    def validate(self) -> None:
        """Raise if an invariant between two events does not hold."""
        state = self.state
        if len(set(state.done)) < len(state.done):
            raise LocalProtocolError("server: a party has finished twice")
        if state.running and (state.phase or not self.options.synchronous):
            raise LocalProtocolError("server: a round is running in a method without rounds")
        if state.agreed and state.labels:
            raise LocalProtocolError("server: the labels agree, but not all parties have sent theirs")

    def told(self) -> RoleSummary:
        """Steps of each party, and barriers; the coordinator has no weights."""
        steps = {self.names[party]: count for party, count in sorted(self.state.steps.items())}
        return {"note": self._note(), "weights": "", "method": {"steps": steps, "barriers": self.state.barrier}}

    def _note(self) -> str:
        """Remarks for the reader of the summary."""
        state = self.state
        notes = [self._other_labels(odd)] if (odd := self._odd()) else []
        notes += [f"the run continued without {name}: {cause}" for name, cause in state.left.items()]
        if len(suspects := self._suspects()) > 1:
            notes.append(f"a sum is late, and one of {', '.join(suspects)} may hold it up: the parties' reports differ")
        if state.declined:
            cause = "parties joined or left, and a party had not stepped since the previous evaluation"
            notes.append(f"evaluations missing: {state.declined} ({cause})")
        if state.unjudged:
            notes.append(f"evaluations missing: {state.unjudged} (no party got all sums within protocol.patience_s)")
        return "; ".join(notes)


def _are_scores(loss: float, values: dict[str, float]) -> bool:
    """Check that these can be scores. NaN stands for no rows to judge."""
    named = len(values) <= MOST_SCORES and all(len(name) <= LONGEST_NAME for name in values)
    return named and not any(map(isinf, (loss, *values.values())))
