"""The FedVS server: Alg. 1 lines 12 and 25–31, and what the paper leaves out: who is summed, and what if they are few.

    preparing    the parties share their data
    sharing      they share their models; who is late by the deadline is left out of S (footnote 2)
    answering    S is announced; R answers decode, whoever is later is not waited for
    decoding     H, the server's step, ∇_H

Fewer than R answers by the deadline: another attempt, with fresh masks, that names who was missing. The same rows are
never asked for over two different S with the same weights: another S has another batch.
"""

from math import inf, isfinite
from typing import Any

from colonnade.algorithms.evaluation import EvaluateAll, Evaluated
from colonnade.algorithms.fedvs.agreement import Agreement, mutually_prepared
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import Costs, average
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import (
    Answer,
    Declined,
    Decode,
    Decoded,
    DecodedTest,
    DecodeTest,
    FetchData,
    Gradient,
    Holding,
    Prepared,
)
from colonnade.algorithms.fedvs.testing import CodedEvaluation
from colonnade.algorithms.method import SERVER, Options, ServerSetup
from colonnade.algorithms.progress import END_TIMER, EVALUATE_TIMER, Progress
from colonnade.data.suggest import listing
from colonnade.models import Objective, ServerNetwork, server_module
from colonnade.protocol.errors import ConfigError, LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
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
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Server", "averaging_network"]

PREPARING, SHARING, AGREED, ANSWERING, DECODING = "preparing", "sharing", "agreed", "answering", "decoding"
DEADLINE = "deadline"  # the timer of the phase


def averaging_network(setup: ServerSetup[Options], method: str) -> ServerNetwork:
    """θ_0 behind an average of embeddings, which the server is given as one block."""
    if len(set(setup.widths)) > 1:
        widths = list(setup.widths)
        cause = f"{method} averages embeddings, so widths must be equal, not {widths}"
        raise ModelError(f"model.embedding: {cause}; give one number for all parties")
    if setup.aggregate != "mean":
        raise ConfigError("model.aggregate", setup.aggregate, f"{method} averages embeddings: use 'mean'")
    width, seed = setup.widths[0], derive(setup.training.seed, "init", SERVER)
    module = server_module(setup.model, width, setup.task.outputs, seed)
    objective = Objective(setup.task, setup.y_train)
    return ServerNetwork(module.to(setup.device), setup.training.server_optimiser, objective, "concat", 1)


class Server:
    """Holds θ_0 and the labels, and learns sums."""

    def __init__(self, setup: ServerSetup[FedvsOptions]) -> None:
        self.name = SERVER
        options: FedvsOptions = setup.options
        training, parties = setup.training, len(setup.parties)
        self._options, self._training, self._parties = options, training, setup.parties
        self._index = {name: n for n, name in enumerate(setup.parties)}
        self._code, self._least, self._width = options.code(parties), options.least(parties), setup.widths[0]
        self.network = averaging_network(setup, "fedvs")
        self._targets = self.network.objective.targets(setup.y_train)
        self._walk = SegmentWalk(len(setup.y_train), training, options.K)
        self._seed = derive(training.seed, "layers", self.name)
        self._costs = Costs(self._code, training.batch_size, self._width, options.work == "delays")

        self.progress = Progress(training)
        self.agreement = Agreement(False, setup.parties, self._code.needed, self._least)
        tested = Agreement(True, setup.parties, self._code.needed, self._least)
        self._fewest = max(self._code.needed, self._least)
        self.evaluation = CodedEvaluation(setup, tested, self._fewest, self._deadline)
        self.present: dict[str, bool] = {}  # parties within reach
        self.prepared: dict[int, list[int]] = {}  # whose data each party holds
        self.doing = PREPARING
        self.begun = False  # the first round waits for everybody
        self.round = self.attempt = self.position = self.jobs = 0
        self.asked_for: list[tuple[int, list[int]]] = []  # (position, S) of this round
        self.due = "evaluate"  # an evaluation or the end, before the next sum
        self.clips: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        self.late: dict[str, int] = {}  # answers that nobody waited for
        self.missed: dict[str, int] = {}  # who was missing when a round was tried again
        self.retries = self.declined = 0

    @property
    def width(self) -> int:
        """h: of the average embedding."""
        return self._width

    @property
    def k(self) -> int:
        """Rounds so far."""
        return self.progress.k

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message, now)
            case WorkDone(result=Decoded() as result):
                return self._decoded(result, now)
            case WorkDone(result=DecodedTest() as result):
                return self._evaluated_if_over(self.evaluation.decoded(result, now), now)
            case WorkDone(result=Evaluated() as result):
                return self._evaluated(result, now)
            case TimerFired(name=name):
                return self._timer(name, event, now)
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer, anew=anew):
                return self._joined(peer, anew, now)
            case PeerLost(peer=peer):
                self.present.pop(peer, None)
                effects = self._evaluated_if_over(self.evaluation.lose(now, self.present), now)
                return [*effects, *self._lost(now)]
            case Resumed():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message, now: int) -> list[Effect]:
        """One message."""
        if sender not in self._index:
            raise RemoteProtocolError(sender, "is not a party of this run")
        match message:
            case Holding(testing=True) | Answer(testing=True) | Declined(testing=True):
                taken = self.evaluation.receive(sender, message, now, self.present, self._width)
                return self._evaluated_if_over(taken, now)
            case Holding():
                return self._holding(sender, message, now)
            case Answer():
                return self._answer(sender, message)
            case Declined(round=round, attempt=attempt):
                return self._declined((round, attempt), now)
            case Prepared():
                return self._prepared(sender, message, now)
        raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        bits = self._options.l_x + self._options.l_w
        match job:
            case Decode(answers=answers, who=who, count=count):
                summed = self._walk.cut.samples(self._code.decode(answers, who), job.batch)
                passed = self.network.gradients(average(summed, count, bits), job.targets, job.seed)
                return Decoded(passed.loss, passed.h, passed.theta_0, self.network.buffers_after_forward())
            case DecodeTest(answers=answers, who=who, count=count, start=start):
                return DecodedTest(start, average(self._code.decode(answers, who), count, bits))
            case EvaluateAll():
                return self.evaluation.judge(self.network)
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    def _timer(self, name: str, event: TimerFired, now: int) -> list[Effect]:
        if name == DEADLINE:
            return self._deadline_passed(now)
        if name == self.evaluation.TIMER:
            return self._evaluated_if_over(self.evaluation.deadline_passed(now, self.present), now)
        if name == EVALUATE_TIMER:
            return [*self._evaluate(now), *self.progress.evaluation_timer_fired(event)]
        assert name == END_TIMER
        return self._end("time is up", now)

    # Preparing: Alg. 1 l. 1–10.

    def _prepared(self, sender: str, message: Prepared, now: int) -> list[Effect]:
        """Whose data a party holds, and, if this server has lost its memory, how far the others are."""
        known = set(message.held) <= set(range(len(self._parties))) and self._index[sender] in message.held
        if not (known and max(message.round, message.attempt, message.position, message.tested) < LAST_ROUND):
            raise RemoteProtocolError(sender, f"prepared for what cannot be: {message!r:.120}")
        self.prepared[self._index[sender]] = message.held
        self.agreement.newest = max(self.agreement.newest, (message.round, message.attempt))
        self.evaluation.skip_to(message.tested)
        if (message.round, message.attempt) > (self.round, self.attempt):
            self.round, self.attempt = message.round, message.attempt
            self.position, self.asked_for = max(self.position, message.position + 1), []
            if self.doing not in (PREPARING, DECODING):
                return self._share(now)
        return self._share(now) if self.doing == PREPARING else []

    def _among(self) -> list[int]:
        """Who takes part: within reach, with each other's data."""
        return mutually_prepared({n: held for n, held in self.prepared.items() if self._parties[n] in self.present})

    def _fetch_data(self) -> list[Effect]:
        """Data that seem to be lost on the way are asked for again."""
        here = [n for n in range(len(self._parties)) if self._parties[n] in self.present and n in self.prepared]
        lacking = {n: [m for m in here if m not in self.prepared[n]] for n in here}
        return [Send(self._parties[n], FetchData(of)) for n, of in lacking.items() if of]

    def _share(self, now: int) -> list[Effect]:
        """Alg. 1 l. 13: an exchange begins, if enough can take part; the first one waits for everybody."""
        among = self._among()
        enough = len(among) >= self._fewest
        if not enough or not (self.begun or len(among) == len(self._parties)):
            self.doing = PREPARING
            return self._set_deadline(now)
        self.attempt += 1
        self.doing, self.begun = SHARING, True
        return [*self.agreement.begin((self.round, self.attempt), among, self._walk.places), *self._set_deadline(now)]

    def _set_deadline(self, now: int) -> list[Effect]:
        at = self._deadline(now)
        return [SetTimer(DEADLINE, at)] if at is not None else []

    def _deadline(self, now: int) -> int | None:
        return None if self._options.deadline_s == inf else now + round(self._options.deadline_s * NANOSECONDS)

    def _deadline_passed(self, now: int) -> list[Effect]:
        match self.doing:
            case "preparing":
                self.begun |= len(self._among()) >= self._fewest
                return [*self._fetch_data(), *self._share(now)]
            case "sharing" if not self.agreement.asked:
                return [*self.agreement.ask(), *self._set_deadline(now)]
            case "sharing":
                return self._settle(now)
            case "answering":
                return self._try_again(self.agreement.outstanding(), now)
        return []

    # Sharing, and agreeing upon S: footnote 2.

    def _holding(self, sender: str, message: Holding, now: int) -> list[Effect]:
        if not self.agreement.report(sender, message) or self.doing != SHARING:
            return []
        self.clips[sender] = max(message.clipped, self.clips.get(sender, 0))
        return [] if self.agreement.unreported(self.present) else self._settle(now)

    def _settle(self, now: int) -> list[Effect]:
        """S is as large as can be."""
        if not self.agreement.settle(self.present):
            reported = {self._parties[n] for n in self.agreement.reports}
            outdated = self.agreement.outdated()
            again: list[Effect] = [Send(self._parties[n], FetchData(of)) for n, of in outdated.items()]
            return [*again, *self._try_again([name for name in self._parties if name not in reported], now)]
        self.doing = AGREED
        return self._advance(now)

    def _advance(self, now: int) -> list[Effect]:
        """What is due comes before the next sum: here, every party has taken the step before."""
        if self.doing != AGREED or self.progress.ending or self.evaluation.running:
            return []
        if self.due:
            reason, self.due = self.due, ""
            effects = self._evaluate(now) if reason == "evaluate" else self._end(reason, now)
            return [*effects, *self._advance(now)]
        if self.agreement.hopeless(self.present):
            return self._try_again([name for name in self._parties if name not in self.present], now)
        return self._announce(now)

    def _announce(self, now: int) -> list[Effect]:
        """Alg. 1 l. 21–23, for rows that no other S was asked about with these weights."""
        summed = self.agreement.summed
        others = [position for position, asked in self.asked_for if asked != summed]
        while any(self._walk.overlap(self.position, other) for other in others):
            self.position += 1
        self.asked_for = [*self.asked_for, (self.position, summed)]
        self.doing = ANSWERING
        places = len(self._walk.batch(self.position))
        return [*self.agreement.announce(self.position, places), *self._set_deadline(now)]

    def _declined(self, key: tuple[int, int], now: int) -> list[Effect]:
        """A party remembers what this server forgot: other rows, then."""
        if key != self.agreement.key or self.doing != ANSWERING:
            return []
        self.declined += 1
        self.position += 1
        return self._try_again([], now)

    def _try_again(self, missing: list[str], now: int) -> list[Effect]:
        """Too few: the round once more, with fresh masks and blinding; and who was missing is named."""
        self.retries += 1
        for name in missing:
            self.missed[name] = self.missed.get(name, 0) + 1
        return self._share(now)

    # Decoding: Alg. 1 l. 25–31.

    def _answer(self, sender: str, message: Answer) -> list[Effect]:
        over = self.doing != ANSWERING and (message.round, message.attempt) == self.agreement.key
        if over or not self.agreement.answer(sender, message, self._width):
            self.late[sender] = self.late.get(sender, 0) + 1
            return []
        return self._decode() if self.agreement.decodable() else []

    def _decode(self) -> list[Effect]:
        self.doing = DECODING
        answers, who = self.agreement.taken()
        batch = self._walk.batch(self.position)
        rows = self._walk.rows(self.position)
        seed = (self._seed + self.round) % 2**63
        job = Decode(answers, who, len(self.agreement.summed), batch, self._targets[rows], seed)
        self.jobs += 1
        amount = len(rows) / self._training.batch_size + self._costs.decode(len(batch), self.network.theta.numel())
        return [CancelTimer(DEADLINE), Work(self.jobs, "decode", amount, job)]

    def _decoded(self, result: Decoded, now: int) -> list[Effect]:
        """The server's step, and ∇_H to everybody; then the next round."""
        if not isfinite(result.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {self.round}; lower train.learning_rate")
        k, summed = self.k, self.agreement.summed
        self.network.apply(result.theta_0, self._training.rule.rate(self._training.server_rate, k), result.buffers)
        self.progress.count(len(result.h) * len(summed), [result.loss])
        for n in range(len(self._parties)):
            if n not in summed:
                self.left_out[self._parties[n]] = self.left_out.get(self._parties[n], 0) + 1
        gradient = Gradient(self.round, k, self.position, summed, result.h)
        sends: list[Effect] = [Send(self._parties[n], gradient) for n in self.agreement.among]
        self.round, self.attempt, self.position, self.asked_for = self.round + 1, 0, self.position + 1, []
        if self.progress.at_limit():
            self.due = "done"
        elif self.progress.evaluation_due():
            self.due = "evaluate"
        return [*sends, *self._share(now)]

    # Evaluation, coming and going.

    def _evaluate(self, now: int) -> list[Effect]:
        if self.evaluation.running or self.progress.ending:
            return []
        return self._evaluated_if_over(self.evaluation.begin(now, self._tested(), self.round), now)

    def _tested(self) -> list[int]:
        """Who takes part in an evaluation: those who know which weights the newest are."""
        return [n for n in self.agreement.among if self._parties[n] in self.present]

    def _end(self, reason: str, now: int) -> list[Effect]:
        """One last evaluation, then the end."""
        if self.progress.ending:
            return []
        self.progress.ending = reason
        if self.evaluation.running:
            return []
        return self._evaluated_if_over(self.evaluation.begin(now, self._tested(), self.round), now)

    def _evaluated_if_over(self, effects: list[Effect], now: int) -> list[Effect]:
        """An evaluation that cannot be decoded ends without values."""
        if self.evaluation.given_up:
            self.evaluation.given_up = False
            return [*effects, *self._evaluated(self.evaluation.nothing(), now)]
        return effects

    def _evaluated(self, result: Evaluated, now: int) -> list[Effect]:
        self.evaluation.running = False
        report = self.progress.report(result, [0.0] * len(self._parties), self.evaluation.missing)
        return [*report, *self._advance(now)]

    def _joined(self, peer: str, anew: bool, now: int) -> list[Effect]:
        self.present[peer] = True
        if not anew:
            return self._share(now) if self.doing == PREPARING else []
        self.prepared.pop(self._index[peer], None)  # it will say anew what it holds
        effects = self._evaluated_if_over(self.evaluation.lose(now, self.present, peer), now)
        under_way = self.doing in (SHARING, AGREED, ANSWERING) and self._index[peer] in self.agreement.among
        return [*effects, *(self._try_again([peer], now) if under_way else [])]

    def _lost(self, now: int) -> list[Effect]:
        """Somebody is out of reach: nobody waits for it."""
        match self.doing:
            case "sharing":
                ask = [] if self.agreement.asked else self.agreement.ask()
                return [*ask, *([] if self.agreement.unreported(self.present) else self._settle(now))]
            case "answering" if self.agreement.hopeless(self.present):
                return self._try_again([name for name in self._parties if name not in self.present], now)
            case "preparing":
                self.begun |= bool(self.prepared) and self._all_present_prepared()
                return self._share(now)
        return []

    def _all_present_prepared(self) -> bool:
        return all(self._index[name] in self.prepared for name in self.present)

    def waits_for(self) -> list[str]:
        """Whom the round still needs."""
        match self.doing:
            case "preparing":
                among = self._among()
                return [name for n, name in enumerate(self._parties) if n not in among]
            case "sharing":
                return self.agreement.unreported(self._parties)
            case "answering":
                return self.agreement.outstanding()
        return []

    def validate(self) -> None:
        """What must hold between any two events."""
        agreement = self.agreement
        if self.doing in (ANSWERING, DECODING):
            if len(agreement.summed) < self._least or len(agreement.evaluators) < self._code.needed:
                raise LocalProtocolError("server: a sum over too few parties, or by too few evaluators")
            if not set(agreement.answers) <= set(agreement.evaluators):
                raise LocalProtocolError("server: an answer of somebody who does not evaluate")
        sums: dict[int, list[int]] = {}
        for position, summed in self.asked_for:
            if sums.setdefault(position, summed) != summed:
                raise LocalProtocolError("server: the same rows were asked for over two sets")

    def save(self) -> dict[str, Any]:
        """Everything but the labels."""
        return {name: getattr(self, name) for name in _STATE} | {
            "agreement": self.agreement.save(),
            "evaluation": self.evaluation.save(),
            "progress": self.progress.save(),
            "network": self.network.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.agreement.load(state["agreement"])
        self.evaluation.load(state["evaluation"])
        self.progress.load(state["progress"])
        self.network.load(state["network"])

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the server."""
        return {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "waits_for": self.waits_for(),
            "weights": self.network.digest(),
            "note": self._retried(),
            "warnings": self._clipping(),
            "method": {
                "needed": self._code.needed,
                "stragglers_tolerated": self._code.stragglers,
                "padding": self._walk.cut.padding,
                "clipped_weights": sum(self.clips.values()),
                "clipped_by_party": dict(sorted(self.clips.items())),
                "retries": self.retries,
                "missing_at_retries": dict(sorted(self.missed.items())),
                "left_out_of_sums": dict(sorted(self.left_out.items())),
                "late_answers": sum(self.late.values()),
            },
        }

    def _clipping(self) -> list[str]:
        """Parties whose weights sit at ±W_max: more than one weight for each output, in every step on average.

        On digits, 8 wide, 6 such weights of 272 cost nothing (accuracy 0.95), 31 cost half of it (0.44).
        """
        steps = max(self.k, 1)
        many = {name: count for name, count in sorted(self.clips.items()) if count > steps * self._width}
        if not many:
            return []
        each = listing(f"{name} ({count / steps:.0f} per update)" for name, count in many.items())
        total = sum(self.clips.values())
        return [f"{total:,} weights were clipped: {each}; lower train.learning_rate, or raise protocol.w_max"]

    def _retried(self) -> str:
        if not self.retries:
            return ""
        missing = ", ".join(f"{name} ({count}×)" for name, count in sorted(self.missed.items())) or "nobody"
        return (
            f"rounds were tried again {self.retries}×, where fewer than {self._code.needed} could answer in time; "
            f"missing: {missing}; if they are only slow, raise protocol.deadline_s"
        )


_STATE = (
    *("present", "prepared", "doing", "begun", "round", "attempt", "position", "jobs", "asked_for", "due", "clips"),
    *("left_out", "late", "missed", "retries", "declined"),
)
