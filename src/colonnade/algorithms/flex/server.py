"""The Flex-VFL server: Alg. 1 lines 3, 8–15 for k = 0, Alg. 2 line 17; rounds that do not wait for who misses the bell.

A round: the parties' embeddings are gathered, one pass over the snapshot gives what the parties need, and everybody,
the server too, steps until the bell. Who was late, or is gone, is left out of the next round's waiting: its rows stay
in the table as last seen, and it joins the newest round when it is heard of again.
"""

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.batches import Walk
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation
from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.local import BELL, LOWER, LocalPhase, Report, local_rule
from colonnade.algorithms.flex.messages import (
    BeginWithGradient,
    BeginWithSnapshot,
    Late,
    LocalStepped,
    Open,
    Opened,
    Ready,
    ServerStep,
    Snapshot,
)
from colonnade.algorithms.flex.pacing import Pacing, Plan
from colonnade.algorithms.leaving import Withdrawing, Withdrawn
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.progress import END_TIMER, EVALUATE_TIMER, Progress
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.algorithms.table import Staleness
from colonnade.algorithms.table_file import Tabled
from colonnade.algorithms.vafl.line import STEPS
from colonnade.algorithms.vafl.messages import Skip
from colonnade.models import Objective, ServerNetwork, aggregated_width, block_of, server_module, with_party_dropout
from colonnade.protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    CancelWork,
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
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, EvaluationReply, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Server"]

GATHERING, OPENING, LOCAL = "gathering", "opening", "local"  # what the server is doing
PATIENCE_TIMER = "patience"
PATIENCE_S = 0.1  # beside a timeout and two round trips: how long silence is waited for
TRIES = 10  # phases in which nobody is in time: the first ones may be slow, when everything is being loaded
MOST_WEIGHT, LONGEST_S = 1e6, 1e9  # of what a party may report

Begun = tuple[int, int, float, bool]  # a party's phase: its number, its round, its timeout, whether it learns


class Server(Encoding, Tabled, Withdrawing):
    """Holds θ_0, the labels, the newest embeddings and what is known of everybody's speed."""

    def __init__(self, setup: ServerSetup[RoundOptions]) -> None:
        self.name = SERVER
        self._options, self._training, self._parties = setup.options, setup.training, setup.parties
        self._index = {name: index for index, name in enumerate(setup.parties)}
        training, seed = setup.training, setup.training.seed
        self._task = setup.task
        objective = Objective(setup.task, setup.y_train)
        inputs = aggregated_width(setup.aggregate, setup.widths)
        module = server_module(setup.model, inputs, setup.task.outputs, derive(seed, "init", self.name))
        module, how = with_party_dropout(module, training.party_dropout, setup.widths, setup.aggregate)
        optimiser, rule = local_rule(training.server_optimiser, setup.options, None)
        for index, spec in enumerate(training.party_optimisers):
            local_rule(spec, setup.options, index)  # refused here, before parties on other machines meet it
        self.network = ServerNetwork(module.to(setup.device), optimiser, objective, how, len(setup.parties))
        self._targets = objective.targets_in(setup.y_train)
        self._walk = Walk(len(setup.y_train), training.batch_size, seed, "batches")
        self._seed = derive(seed, "layers", self.name)
        given = setup.options.a_of(None)
        self._rate = training.server_rate if given is None else given

        self.table = setup.tables.to_train(len(setup.y_train), setup.widths)
        self.staleness = Staleness(len(setup.parties))
        tests = setup.tables.to_judge(len(setup.y_test), setup.widths)
        self.evaluation = Evaluation(setup.parties, setup.widths, setup.y_test, training.metric, tests)
        self.progress = Progress(training)
        self.pacing = Pacing(setup.options)
        self.local = LocalPhase(self.network, rule)

        self.present: dict[str, bool] = {}  # parties within reach
        self.withdrawn: dict[str, str] = {}
        self.absent: dict[str, bool] = {}  # of these, who is not waited for: late, or silent
        self.line: dict[str, bool] = {}  # whose embeddings of the next round are here, by their arrival
        self.taken: dict[str, bool] = {}  # who takes part in this phase
        self.late: dict[str, bool] = {}  # of these, who had not done a step at the bell
        self.unreported: dict[str, Begun] = {}  # the newest phase of every party that has not yet reported it
        self.doing = GATHERING
        self.round = 0  # the newest that was opened
        self.following = 0  # the one that is gathered
        self.phase = self.jobs = 0
        self.opened: Opened | None = None  # the pass that this phase began with
        self.opened_at = 0
        self.h = np.zeros((0, 0), np.float32)  # Φ^r: uploads of the next round do not change it
        self.measures = False  # the running phase learns nothing
        self.working = False  # an own local step is running
        self.due = "evaluate"  # an evaluation or the end, before the next round
        self.in_time = False  # whether anybody ever was
        self.steps: dict[str, tuple[int, int]] = {}  # local steps of every role so far, and in how many rounds
        self.late_uploads = 0

    @property
    def k(self) -> int:
        """Rounds so far."""
        return self.progress.k

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message, now)
            case WorkDone(result=LocalStepped() as result):
                return self._stepped(result, now)
            case WorkDone(result=Opened() as result):
                return self._begin(result, now)
            case WorkDone(result=Evaluated() as result):
                return self._evaluated(result)
            case TimerFired(name=name):
                return self._timer(name, event, now)
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer, anew=anew):
                self.join(peer)
                return self._anew(peer) if anew else self._advance()
            case PeerLost(peer=peer):
                return self._lost(peer)
            case Resumed():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message, now: int) -> list[Effect]:
        """One message."""
        if sender in self._index:
            match message:
                case Ready():
                    return self._ready(sender, self.decoded(sender, message), now)
                case Late(phase=phase):
                    return self._is_late(sender, phase)
                case EvaluationReply():
                    return self.evaluation.receive(sender, self.decoded(sender, message))
                case Withdrawn(why=why):
                    return self.withdraw(sender, why)
        raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Open(seed=seed, h=h, targets=targets) | ServerStep(seed=seed, h=h, targets=targets, opened=None):
                passed = self.network.gradients(h, targets, seed)
                buffers = self.network.buffers_after_forward()
                if isinstance(job, Open):
                    return Opened(passed.loss, passed.h, passed.theta_0, buffers)
                return LocalStepped(passed.theta_0, buffers)
            case ServerStep(opened=Opened() as opened):
                return LocalStepped(opened.theta_0, opened.buffers)
            case EvaluateAll():
                return self.evaluation.judge(self.network)
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    def _timer(self, name: str, event: TimerFired, now: int) -> list[Effect]:
        if name == BELL:
            return self._rung(event.due, now)
        if name == PATIENCE_TIMER:
            return self._lose_patience()
        if name == EVALUATE_TIMER:
            return [*self._evaluate(), *self.progress.evaluation_timer_fired(event)]
        assert name == END_TIMER
        return self._end("time is up")

    # Gathering: Alg. 1 l. 4–8.

    def _ready(self, sender: str, message: Ready, now: int) -> list[Effect]:
        """A party's embeddings, and how its last phase went."""
        self._check(sender, message)
        party, rows = self._index[sender], self._walk.batch(message.round)
        self.table.write(party, rows, message.values, self.k)
        begun = self.unreported.get(sender)
        if begun is not None and begun[0] == message.phase:  # else of rounds that one of the two has forgotten
            del self.unreported[sender]
            self._take_report(sender, message, begun, now)
        if message.round < self.following:
            self.late_uploads += 1
            return [Send(sender, Skip(self.following))]
        effects: list[Effect] = []
        if message.round > self.following:  # somebody lost its memory: all go on at the newest round
            effects = [Send(name, Skip(message.round)) for name in self.line if name != sender]
            self.following, self.line = message.round, {}
        self.line.pop(sender, None)
        self.line[sender] = True
        self.absent.pop(sender, None)
        return [*effects, *self._advance()]

    def _check(self, sender: str, message: Ready) -> None:
        """Refuse what cannot be, before anything is changed."""
        if not 0 <= message.round < STEPS:
            raise RemoteProtocolError(sender, f"embeddings of round {message.round}")
        values = message.values
        expected = (len(self._walk.batch(message.round)), self.table.widths[self._index[sender]])
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
        if not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")
        if message.phase:
            self._check_report(sender, message)

    def _check_report(self, sender: str, message: Ready) -> None:
        if not 1 <= message.steps < STEPS:
            raise RemoteProtocolError(sender, f"reports τ = {message.steps} local steps; one is the least")
        if not 0 < message.weight <= MOST_WEIGHT:
            raise RemoteProtocolError(sender, f"reports w̄ = {message.weight}; a gradient's weight is above 0")
        if not (0 <= message.step_s <= LONGEST_S and 0 <= message.held_s <= LONGEST_S):
            raise RemoteProtocolError(sender, f"reports steps of {message.step_s} s, {message.held_s} s in all")

    def _take_report(self, sender: str, message: Ready, begun: Begun, now: int) -> None:
        """Alg. 2 l. 15, of the newest phase or, from a late party, of an earlier one."""
        _, round_, timeout_s, learns = begun
        report = Report(message.phase, message.steps, message.weight, message.step_s)
        if self._tells_speed(round_):
            self.pacing.note(sender, report, timeout_s)
        if message.phase == self.phase:
            self.pacing.note_round_trip(sender, (now - self.opened_at) / NANOSECONDS - message.held_s)
        if learns:
            self._count_steps(sender, message.steps)
        self.in_time |= not timeout_s or message.step_s <= timeout_s
        if not self.in_time and self.phase >= TRIES:
            self._refuse_short_timeout()

    def _count_steps(self, name: str, steps: int) -> None:
        """For the summary: the local steps of a round in which a role learnt."""
        before, rounds = self.steps.get(name, (0, 0))
        self.steps[name] = before + steps, rounds + 1

    def _tells_speed(self, round_: int) -> bool:
        """Not of an epoch's last batch, which may be a small one: more steps fit than in the rounds to come."""
        # DEVIATION: Alg. 2 takes every round's τ; its batches are all of one size.
        return len(self._walk.batch(round_)) == self._training.batch_size or not self.pacing.step_s

    def _refuse_short_timeout(self) -> None:
        """Nobody has ever been in time."""
        timeout_s = self._options.timeout_s
        quickest = min(self.pacing.step_s[name] for name in self._parties if name in self.pacing.step_s)
        if not isinstance(timeout_s, str) and quickest > timeout_s:
            advice = f"no party finished a step within it: the quickest took {quickest:.3g} s; give more, or use 'auto'"
            raise ConfigError("protocol.timeout_s", timeout_s, advice)

    @property
    def _timeout_s(self) -> float:
        """Of the running phase."""
        return self.local.timeout / NANOSECONDS

    def _is_late(self, sender: str, phase: int) -> list[Effect]:
        """It had not done a step at the bell: the round goes on without it."""
        # DEVIATION: the paper's parties take part in every round, and each finishes at least one step in time.
        if phase != self.phase or sender not in self.taken or sender in self.late or sender in self.line:
            return []
        self.late[sender] = True
        if self._options.on_lost == "wait":
            return []
        self.absent[sender] = True
        return self._advance()

    def waits_for(self) -> list[str]:
        """Whom the next round still needs."""
        return list(self._needed(self._parties))

    def _needed(self, names: Iterable[str]) -> Iterator[str]:
        """Of these, whom the next round still needs; with nobody to count on, anybody would do."""
        everyone = self._options.on_lost == "wait" or self.present.keys() <= self.absent.keys()
        for name in names:
            if name not in self.line and (everyone or (name in self.present and name not in self.absent)):
                yield name

    def _advance(self) -> list[Effect]:
        """Open the next round if everybody who is waited for is there."""
        judging = self.evaluation.running and self._options.on_lost == "wait"  # else nobody waits for who is gone
        if self.doing != GATHERING or self.progress.ending or judging or not self.line:
            return []
        # Asked for every upload: those of equal speed come in turn, so that the last one is needed until the end.
        if any(self._needed(reversed(self._parties))):
            return []
        if self.due:
            reason, self.due = self.due, ""
            return self._end(reason) if reason != "evaluate" else [*self._evaluate(), *self._advance()]
        return self._open()

    def _lose_patience(self) -> list[Effect]:
        """Silence after the bell: on without whoever has not been heard of."""
        if self.doing == GATHERING and self.line:
            self.absent |= dict.fromkeys(self.waits_for(), True)
        return self._advance()

    # Opening: Alg. 1 l. 8–9.

    def _open(self) -> list[Effect]:
        """One pass over the snapshot: what the parties need, and the first gradient of θ_0."""
        self.doing = OPENING
        self.taken, self.line, self.late = self.line, {}, {}
        self.round, self.measures = self.following, self.pacing.measures(self.taken)
        self.following += not self.measures
        rows = self._walk.batch(self.round)
        here = [self._index[name] for name in self.taken]
        self.table.renew(here, rows, self.k)  # θ_m waits for this very round
        if not self.measures:
            stale = [index for name, index in self._index.items() if name not in self.taken]
            self.staleness.add(self.table.ages(rows, self.k), stale)
        self.h = self.table.gather(rows)
        job = Open(self._layer_seed(0), self.h, self._targets[rows])
        cancel: list[Effect] = [CancelTimer(PATIENCE_TIMER)]
        return [*cancel, self._work("open", 0.0, job)]  # its time is part of the first local step's

    def _work(self, kind: str, amount: float, job: Payload) -> Work:
        self.jobs += 1
        return Work(self.jobs, kind, amount, job)

    def _layer_seed(self, step: int) -> int:
        return (self._seed + (self.round << 24) + step) % 2**63

    def _begin(self, opened: Opened, now: int) -> list[Effect]:
        """Alg. 1 l. 9–10: everybody begins; in a round that only measures, with a rate of 0."""
        if not isfinite(opened.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {self.round}; {LOWER}")
        self.opened, self.opened_at = opened, now
        self.phase += 1
        self.doing = LOCAL
        plan = self.pacing.plan(self.taken, SERVER)
        self.unreported |= dict.fromkeys(self.taken, (self.phase, self.round, plan.timeout_s, not self.measures))
        begins = self._begins(plan)
        bell = self.local.begin(now, self.phase, plan.timeout_s, plan.server_limit, plan.scales[SERVER])
        if self.network.theta.numel():
            return [*begins, *bell, self._step()]
        return [*begins, *bell] if bell else [*begins, *self._finish(now)]

    def _begins(self, plan: Plan) -> list[Effect]:
        """What every party of the round is told."""
        snapshot = self._snapshot() if self._options.labels == "shared" else None
        effects: list[Effect] = []
        for name in self.taken:
            scale = plan.scales[name]
            head = (self.phase, self.round, self.following, self.k, plan.timeout_s, plan.limit, scale)
            if snapshot is None:
                effects.append(Send(name, BeginWithGradient(*head, self._block(name))))
            else:
                effects.append(Send(name, BeginWithSnapshot(*head, snapshot)))
        return effects

    def _block(self, name: str) -> Array:
        assert self.opened is not None
        return block_of(self.opened.h, self.table.blocks[self._index[name]])

    def _snapshot(self) -> Snapshot:
        """Alg. 1 l. 8."""
        saved, targets = self.network.save(), self._targets[self._walk.batch(self.round)]
        return Snapshot(self.h, saved["theta"], saved["buffers"], targets, self._task.kind, self._task.outputs)

    # Local steps: Alg. 1 l. 10–15 for k = 0.

    def _step(self) -> Work:
        self.working = True
        step, rows = self.local.steps, self._walk.batch(self.round)
        job = ServerStep(self._layer_seed(step), self.h, self._targets[rows], None if step else self.opened)
        return self._work("step", len(rows) / self._training.batch_size, job)

    def _stepped(self, result: LocalStepped, now: int) -> list[Effect]:
        self.working = False
        rate = self._training.rule.rate(self._rate, self.k)
        self.local.learn(result, rate, now)
        if self.local.goes_on(now):
            return [*self.local.wait_for_next(now), self._step()]
        return self._finish(now) if self.local.over else []

    def _rung(self, due: int, now: int) -> list[Effect]:
        """The bell; the first step is always ended."""
        if self.doing != LOCAL or due < self.local.began + self.local.timeout:
            return []
        self.local.rung = True
        if self.working and not self.local.steps:
            return []
        cancelled: list[Effect] = [CancelWork(self.jobs)] if self.working else []
        self.working = False
        return [*cancelled, *self._finish(now)]

    def _finish(self, now: int) -> list[Effect]:
        """The server's own phase is over; the parties' reports are on their way."""
        assert self.opened is not None
        self.doing = GATHERING
        if self.local.steps and self._tells_speed(self.round):
            self.pacing.note(SERVER, self.local.report(), self._timeout_s)
        if not self.measures:
            if self.local.steps:
                self._count_steps(SERVER, self.local.steps)
            rows = len(self._walk.batch(self.round))
            self.progress.count(rows * len(self.taken), [self.opened.loss])
        self.opened = None
        if self.progress.at_limit():
            self.due = "done"
        elif self.progress.evaluation_due():
            self.due = "evaluate"
        return [*self._patience(now), *self._advance()]

    def _patience(self, now: int) -> list[Effect]:
        """How long silence is waited for; whoever has never been measured gets all the time it needs."""
        waited = self.waits_for()
        if self._options.on_lost == "wait" or not all(name in self.pacing.round_trip_s for name in waited):
            return []
        patience_s = PATIENCE_S + self._timeout_s + 2 * self.pacing.longest_round_trip_s(waited)
        return [SetTimer(PATIENCE_TIMER, now + round(patience_s * NANOSECONDS))]

    # Evaluation, coming and going.

    def _lost(self, peer: str) -> list[Effect]:
        self.present.pop(peer, None)
        return [*self.evaluation.lose(peer), *self._advance()]

    def _anew(self, peer: str) -> list[Effect]:
        """Nothing of before is still to come from it; it uploads again, and is told where the others are."""
        self.line.pop(peer, None)
        self.taken.pop(peer, None)
        return [*self.evaluation.lose(peer), *self._advance()]

    def validate(self) -> None:
        """What must hold between any two events."""
        if self.line.keys() & self.absent.keys():
            raise LocalProtocolError("server: a party is both in line and absent")
        if self.working and self.doing != LOCAL:
            raise LocalProtocolError(f"server: a local step is running while {self.doing}")
        if (self.opened is None) == (self.doing == LOCAL):
            raise LocalProtocolError(f"server: {self.doing} with{'out' if self.opened is None else ''} a snapshot")
        if self.k < self.table.newest():
            raise LocalProtocolError("server: a row was renewed in the future")

    def save(self) -> dict[str, Any]:
        """Everything but the labels."""
        return {name: getattr(self, name) for name in _STATE} | {
            "opened": None if self.opened is None else msgspec.structs.astuple(self.opened),
            "table": self.table.save(),
            "staleness": self.staleness.save(),
            "evaluation": self.evaluation.save(),
            "progress": self.progress.save(),
            "pacing": self.pacing.save(),
            "local": self.local.save(),
            "network": self.network.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.opened = None if state["opened"] is None else Opened(*state["opened"])
        self.table.load(state["table"])
        self.staleness.load(state["staleness"])
        self.evaluation.load(state["evaluation"])
        self.progress.load(state["progress"])
        self.pacing.load(state["pacing"])
        self.local.load(state["local"])
        self.network.load(state["network"])

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the server."""
        return {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "staleness": self.staleness.summary(),
            "staleness_counts": self.staleness.histogram(),
            "waits_for": self.waits_for(),
            "withdrawn": self.withdrawn,
            "weights": self.network.digest(),
            "note": self.table.note(),
            "method": {
                "timeout_s": self.pacing.timeout_s,
                "local_steps": {name: self._mean_steps(name) for name in (SERVER, *self._parties)},
                "late_uploads": self.late_uploads,
            },
        }

    def _mean_steps(self, name: str) -> float:
        """Local steps in a round that the role took part in; rounds that only measured do not count."""
        steps, rounds = self.steps.get(name, (0, 1))
        return round(steps / rounds, 2)


_STATE = (
    *(
        "present",
        "withdrawn",
        "absent",
        "line",
        "taken",
        "late",
        "unreported",
        "doing",
        "round",
        "following",
        "phase",
        "jobs",
        "opened_at",
    ),
    *("h", "measures", "working", "due", "in_time", "steps", "late_uploads"),
)
