"""The FedVS server: Alg. 1 lines 12 and 25–31, and what the paper leaves open: the choice of S, and too few answers.

    preparing    the parties share their data
    sharing      the parties share their models; S leaves out parties that miss the deadline (footnote 2)
    answering    S is announced; R answers decode, and the server does not wait for later ones
    decoding     H, the server's step, ∇_H

    waiting      `stale = "allow"`: a party's last share is too old to be summed again

If fewer than R answers arrive by the deadline, the server tries the round again with fresh masks and twice the time,
and records the missing parties. It never asks for the same rows in two sums whose difference would reveal a few
parties' part (answered.py).

A party may spoil one attempt after the other. The server then leaves it out for some rounds (failed_attempts.py).

With `spare`, a round waits for more than R answers, so that the server can check them. It leaves out the wrong answers
that it can locate. If it cannot locate them, it waits for more answers, then tries the round again, then ends the run.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf, isfinite

from colonnade.algorithms.chassis import PARTY, Counting, CountingState, done, job, on, timer
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated
from colonnade.algorithms.fedvs.answered import free_position, in_use, tells_apart
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import Costs, average
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.failed_attempts import FailedAttempts
from colonnade.algorithms.fedvs.holdings import LAST_ROUND, NEVER, Key
from colonnade.algorithms.fedvs.messages import (
    Answer,
    Declined,
    Decode,
    Decoded,
    DecodedTest,
    DecodeTest,
    Doubted,
    DoubtedTest,
    FetchData,
    Gradient,
    Holding,
    Prepared,
    Shared,
)
from colonnade.algorithms.fedvs.pace import Pace
from colonnade.algorithms.fedvs.sum_agreement import SumAgreement, mutually_prepared
from colonnade.algorithms.fedvs.suspicion import Suspicion
from colonnade.algorithms.fedvs.testing import TEST_DEADLINE, CodedEvaluation
from colonnade.algorithms.method import SERVER, Options, ServerSetup
from colonnade.algorithms.remarks import Remark
from colonnade.data.suggest import listing
from colonnade.models import ServerNetwork, server_module
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import ConfigError, LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import NANOSECONDS, Effect, Emit
from colonnade.protocol.messages import Array
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Server", "State", "averaging_network"]

PREPARING, SHARING, AGREED, ANSWERING, DECODING = "preparing", "sharing", "agreed", "answering", "decoding"
WAITING = "waiting"
DEADLINE, REST = "deadline", "ask the rest"  # timers: of the phase, and of the parties that are asked first
AHEAD = 64  # attempts
LONGEST = 1024  # times deadline_s: a member that spoils every attempt does not stop the others for years


def averaging_network(setup: ServerSetup[Options], method: str) -> ServerNetwork:
    """θ_0 behind an average of embeddings, which the server gets as one block."""
    if len(set(setup.widths)) > 1:
        widths = list(setup.widths)
        cause = f"{method} averages embeddings, so widths must be equal, not {widths}"
        raise ModelError(f"model.embedding: {cause}; give one number for all parties")
    if setup.aggregate != "mean":
        raise ConfigError("model.aggregate", setup.aggregate, f"{method} averages embeddings: use 'mean'")
    width, seed = setup.widths[0], derive(setup.training.seed, "init", SERVER)
    module = server_module(setup.model, width, setup.task.outputs, seed)
    optimiser, penalty = setup.training.server_optimiser, setup.training.server_regulariser
    return ServerNetwork(module.to(setup.device), optimiser, setup.objective(), "concat", 1, penalty)


@dataclass(slots=True, kw_only=True)
class State(CountingState):
    """The round and its phase, and counts for the summary."""

    prepared: dict[int, list[int]] = field(default_factory=dict)  # the parties whose data each party holds
    claims: dict[int, tuple[Key, int, int]] = field(default_factory=dict)  # exchange, position, evaluation of each
    doing: str = PREPARING
    begun: bool = False  # the first round waits for all parties
    round: int = 0
    attempt: int = 0
    position: int = 0
    asked_for: list[tuple[int, dict[int, int]]] = field(
        default_factory=list
    )  # (position, weights of S), as in `Answered`
    deadline: int | None = None  # ns; doubles after every attempt that failed by it
    last: dict[int, int] = field(default_factory=dict)  # the weights in the last sum, if models last
    old: int = 0  # shares that were summed again
    clips: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)  # answers that came after the first R
    missed: dict[str, int] = field(default_factory=dict)  # parties that were missing when a round was tried again
    retries: int = 0
    declined: int = 0


class Server(Counting[State]):
    """Holds θ_0 and the labels, and learns sums."""

    def __init__(self, setup: ServerSetup[FedvsOptions]) -> None:
        options, training, parties = setup.options, setup.training, len(setup.parties)
        deadline = None if options.deadline_s == inf else round(options.deadline_s * NANOSECONDS)
        super().__init__(setup.parties, setup.training, State(deadline=deadline))
        self.options, self.width = options, setup.widths[0]  # h: width of the average embedding
        self.code, self.least = options.code(parties), options.least(parties)
        self.fewest = max(self.code.needed, self.least)
        self.lasting, self.pace = options.stale == "allow", Pace(self.code.needed, options.max_stale)
        self.network = averaging_network(setup, "fedvs")
        self.targets = self.network.objective.targets(setup.y_train)
        self.walk = SegmentWalk(len(setup.y_train), training, self.code.segments)
        self.seed = derive(training.seed, "layers", SERVER)
        self.costs = Costs(self.code, training.batch_size, self.width, options.work == "delays")
        self.agreement = SumAgreement(False, setup.parties, self.code.needed, self.least, spare=options.spare)
        self.tested = SumAgreement(True, setup.parties, self.code.needed, self.least, spare=options.spare)
        self.suspicion = Suspicion(setup.parties, self.code, options.spare, options.most_wrong)
        self.failures, self.key = FailedAttempts(), SecretKey()  # the key of the checks
        self.evaluation = CodedEvaluation(setup, self.tested, self.fewest)

    def started(self, entropy: bytes) -> None:
        """Take the key of the checks, and set the timers."""
        self.key.renew(entropy)
        super().started(entropy)

    def resumed(self, entropy: bytes) -> None:
        """Checks come from a new key from now on."""
        self.key.renew(entropy)

    # Preparing: Alg. 1 l. 1–10.

    @on(Prepared, PARTY)
    def prepared(self, sender: str, message: Prepared) -> None:
        """Note whose data a party holds; if this server lost its memory, also how far the parties are."""
        s, n = self.state, self.index[sender]
        known = set(message.held) <= set(range(len(self.names))) and n in message.held
        once = len(message.held) <= len(self.names)
        numbers = message.round, message.attempt, message.position, message.tested
        if not (known and once and all(-1 <= number < LAST_ROUND for number in numbers)):
            raise RemoteProtocolError(sender, f"reports an impossible preparation: {message!r:.120}")
        s.prepared[n] = message.held
        s.claims[n] = (message.round, message.attempt), message.position, message.tested
        self.agreement.claimed[n], self.tested.claimed[n] = (message.round, message.attempt), (message.tested, 0)
        key, position, tested = self._remembered()
        self.agreement.newest = max(self.agreement.newest, key)
        self.evaluation.skip_to(tested)
        if key > (s.round, s.attempt):
            s.round, s.attempt = key
            s.position, s.asked_for = max(s.position, position + 1), []
            if s.doing != DECODING:
                self._share()
        elif s.doing == PREPARING:
            self._share()

    def _remembered(self) -> tuple[Key, int, int]:
        """How far the parties are, if this server lost its memory: exchange, position and number of the evaluation.

        At least one honest party has come as far as more than T parties say. A single party may be one round or
        `AHEAD` attempts further, since the others may have missed the newest order. The server does not believe more
        than that: after an exchange with a number near LAST_ROUND, no exchange could follow.
        """
        claims, liars = list(self.state.claims.values()), self.code.colluders
        if len(claims) <= liars:
            return NEVER, -1, -1
        keys, positions, tested = (sorted(own, reverse=True) for own in zip(*claims, strict=True))
        (round, attempt), furthest = keys[liars], keys[0]
        steps = furthest[0] - round
        plausible = steps <= 1 and furthest[1] <= AHEAD + (0 if steps else attempt)
        return furthest if plausible else keys[liars], positions[liars], tested[liars]

    def _among(self) -> list[int]:
        """The parties that take part: within reach, with each other's data, and not left out unless they are needed."""
        without = self._among_without(self.failures.left_out(self.state.round))
        return without if len(without) >= self.fewest else self._among_without([])

    def _among_without(self, left_out: Collection[int]) -> list[int]:
        s, left = self.state, {*self.pace.overdue, *left_out}
        return mutually_prepared(
            {n: held for n, held in s.prepared.items() if self.names[n] in s.present and n not in left}
        )

    def _fetch_data(self) -> None:
        """Ask parties to fetch data that seem to be lost on the way."""
        s = self.state
        here = [n for n, name in enumerate(self.names) if name in s.present and n in s.prepared]
        for n in here:
            lacking = [m for m in here if m not in s.prepared[n]]
            if lacking:
                self.send(self.names[n], FetchData(lacking))

    def _share(self) -> None:
        """Alg. 1 l. 13: begin an exchange, if enough parties can take part; the first one waits for all parties."""
        s, among = self.state, self._among()
        if len(among) < self.fewest or not (s.begun or len(among) == len(self.names)):
            s.doing = PREPARING
        elif self.lasting and self.pace.too_old(among, s.round):
            s.doing = WAITING
        else:
            s.attempt += 1
            s.doing, s.begun = SHARING, True
            self.do(self.agreement.begin((s.round, s.attempt), among, self.walk.places, *self._lasting_order(among)))
        self._set_deadline()

    def _lasting_order(self, among: list[int]) -> tuple[list[int], int, list[int]]:
        """If models last: the parties that the exchange waits for, its batch, and the parties to ask first."""
        if not self.lasting:
            return [], -1, []
        s = self.state
        self.pace.begin(among, s.round, self.now)
        prompt = self.pace.prompt(among)
        if self.options.work != "arithmetic":  # in the paper's accounting an answer is a delay and no work
            return prompt, s.position, []
        trusted = [n for n in prompt if n not in self.suspicion.ignored]
        return prompt, s.position, self.pace.evaluators(trusted, self.options.asked(len(self.names)), s.round)

    def _set_deadline(self) -> None:
        if self.state.deadline is not None:
            self.wake(DEADLINE, self.now + self.state.deadline)

    @timer(DEADLINE)
    def deadline_passed(self, due: int) -> None:
        """The phase has taken too long: continue with the shares that are here, or try the round again."""
        s = self.state
        if s.doing == PREPARING:
            s.begun |= len(self._among()) >= self.fewest
            self._fetch_data()
            self._share()
        elif s.doing == SHARING and not self.agreement.asked:
            self.do(self.agreement.ask())
            self._set_deadline()
        elif s.doing == SHARING:
            self._agree()
        elif s.doing == WAITING:
            self.pace.overdue += self.pace.too_old(self._among(), s.round)
            self._share()
        elif s.doing == ANSWERING and self.agreement.unasked():
            self.first_are_late(due)
            self._set_deadline()
        elif s.doing == ANSWERING and self.agreement.doubted:
            self._give_more_time()
            self._dispute()
        elif s.doing == ANSWERING and self.agreement.settle_for_less():
            self._decode()
        elif s.doing == ANSWERING:
            self._attempt_failed()
            self._try_again(self.agreement.outstanding())

    def _attempt_failed(self) -> None:
        """Leave out a party that spoils attempts, or give all parties more time."""
        round = self.state.round
        self.failures.note(round, self.agreement.against())
        n = self.failures.leave_out(round, lambda left: len(self._among_without(left)) >= self.fewest)
        if n is None:
            return self._give_more_time()
        rounds = self.failures.until[n] - round
        self.do([Emit(Remark(self.names[n], f"left out for {rounds} rounds: attempts at round {round} failed"))])

    def _give_more_time(self) -> None:
        """Double the deadline after an attempt failed by it: if it is too short, all further attempts would fail."""
        if self.state.deadline is not None:
            longest = round(LONGEST * self.options.deadline_s * NANOSECONDS)
            self.state.deadline = min(2 * self.state.deadline, longest)

    @on(Shared, PARTY)
    def shared(self, sender: str, message: Shared) -> None:
        """A party's newest weights are on their way to the others."""
        if not (self.lasting and 0 <= message.trained < LAST_ROUND):
            raise self.unexpected(sender, message)
        self.pace.shared(self.index[sender], message.trained, self.now)
        if self.state.doing == WAITING:
            self._share()

    # Sharing, and agreement on S: footnote 2.

    @on(Holding, PARTY)
    def holding(self, sender: str, message: Holding) -> None:
        """Take a report on the shares that a party holds."""
        s = self.state
        if message.testing:
            return self._tests(self.evaluation.report(sender, message, self.now, s.present))
        if not self.agreement.report(sender, message) or s.doing != SHARING:
            return
        s.clips[sender] = max(message.clipped, s.clips.get(sender, 0))
        if not self.agreement.unreported(s.present):
            self._agree()

    def _agree(self) -> None:
        """Find the largest S, or try again."""
        agreement = self.agreement
        if not agreement.settle(self.state.present):
            for n, of in agreement.outdated().items():
                self.send(self.names[n], FetchData(of))
            self._attempt_failed()
            return self._try_again([name for n, name in enumerate(self.names) if n not in agreement.reports])
        unblinded = [n for n in agreement.awaited if n not in agreement.summed]
        if unblinded:  # T + 1 parties blind every place: if one of them is missing, try again
            for n in unblinded:
                self.pace.late(n, self.now)
            return self._try_again([self.names[n] for n in unblinded])
        self.state.doing = AGREED
        self.advance()

    def advance(self) -> None:
        """Announce the sum. An evaluation that is due comes first: here, every party has taken the previous step."""
        s = self.state
        if s.doing != AGREED or self.progress.ending or self.judging():
            return
        if s.due:
            self.settle()
            return self.advance()
        if self.agreement.hopeless(s.present):
            return self._try_again(self._absent())
        self._announce()

    def _absent(self) -> list[str]:
        return [name for name in self.names if name not in self.state.present]

    def _announce(self) -> None:
        """Alg. 1 l. 21–23, for rows that were not asked for over another S with these weights."""
        s = self.state
        weights = self._weights()
        position = free_position(self.walk, s.position, s.asked_for, weights, self.least)
        if position is None:
            return self.end("no rows are left that can be summed over the connected parties")
        s.position = position
        if (position, weights) not in s.asked_for:
            s.asked_for.append((position, weights))
        s.doing = ANSWERING
        self.do(self.agreement.announce(s.position, len(self.walk.batch(s.position))))
        self._set_deadline()
        few = bool(self.agreement.unasked())
        if self.lasting:
            self.pace.ask(self.agreement.key, self.agreement.chosen, few, self.now)
        if few:
            self.wake(REST, self.now + self.pace.longest)

    @timer(REST)
    def first_are_late(self, due: int) -> None:
        """The parties that were asked first take too long: ask the others, and all parties in the next rounds."""
        if self.state.doing == ANSWERING:
            self.pace.even = {}
            self._ask_the_rest()

    def _ask_the_rest(self) -> None:
        """Ask the evaluators that were not asked first, if there are any."""
        self.do(self.agreement.ask_the_rest(self.state.position))

    def _weights(self) -> dict[int, int]:
        """The parties of S, and the number of each one's weights: that of the round for all, unless models last."""
        agreement = self.agreement
        return agreement.weights() if self.lasting else dict.fromkeys(agreement.summed, self.state.round)

    @on(Declined, PARTY)
    def decline(self, sender: str, message: Declined) -> None:
        """A party remembers a sum that this server forgot: try other rows."""
        s, n, agreement = self.state, self.index[sender], self.tested if message.testing else self.agreement
        if (message.round, message.attempt) != agreement.key:
            return
        if n not in agreement.asked_for_answers or n in agreement.answers:
            raise RemoteProtocolError(sender, f"declines a sum of round {message.round} that it does not owe")
        if message.testing:
            self._distrust(self.suspicion.declined(n, True))
            return self._tests(self.evaluation.declined(message))
        if s.doing != ANSWERING:
            return
        self._distrust(self.suspicion.declined(n, False))
        s.declined += 1
        s.position += 1
        if self.suspicion.end:
            s.doing = AGREED
            return self.end(self.suspicion.end)
        self._try_again([])

    def _try_again(self, missing: list[str]) -> None:
        """Try the round again, with fresh masks and blinding, and count the missing parties."""
        s = self.state
        s.retries += 1
        for name in missing:
            s.missed[name] = s.missed.get(name, 0) + 1
        self._share()

    # Decoding: Alg. 1 l. 25–31.

    @on(Answer, PARTY)
    def answer(self, sender: str, message: Answer) -> None:
        """Take a coded sum; R of them decode, and spare ones show whether they are right."""
        s = self.state
        if message.testing:
            return self._tests(self.evaluation.answer(sender, message, s.present))
        over = s.doing not in (ANSWERING, DECODING) and (message.round, message.attempt) == self.agreement.key
        late = over or not self.agreement.answer(sender, message, self.width) or s.doing == DECODING
        self.pace.answered((message.round, message.attempt), self.index[sender], self.now)
        if late:
            s.late[sender] = s.late.get(sender, 0) + 1
        elif self.agreement.decodable(s.present):
            self._decode()

    def _decode(self) -> None:
        s = self.state
        s.doing = DECODING
        answers, who = self.agreement.taken()
        batch, rows = self.walk.batch(s.position), self.walk.rows(s.position)
        seed = (self.seed + s.round) % 2**63
        job = Decode(answers, who, len(self.agreement.summed), batch, self.targets[rows], seed, s.jobs + 1)
        costs = self.costs.decode(len(batch), self.network.theta.numel(), len(who))
        self.forget_timer(DEADLINE)
        if self.agreement.first:
            self.forget_timer(REST)
        self.work("decode", len(rows) / self.training.batch_size + costs, job)

    @job(Decode)
    def decode(self, job: Decode) -> Decoded | Doubted:
        """H, and one pass through θ_0."""
        wrong = self._wrong(job.answers, job.who, "check", job.draw)
        if wrong is None:
            return Doubted(len(job.who))
        summed = self.walk.cut.samples(self._sum(job.answers, job.who, wrong), job.batch)
        passed = self.network.gradients(average(summed, job.count, self._bits), job.targets, job.seed)
        buffers = self.network.buffers_after_forward()
        return Decoded(passed.loss, passed.h, passed.theta_0, buffers, len(job.who), wrong)

    def _wrong(self, answers: Array, who: list[int], kind: str, draw: int) -> list[int] | None:
        """The parties with wrong answers; R answers always fit together. No party knows the key of the check."""
        return self.code.wrong(answers, who, self.key.seed(kind, draw)) if len(who) > self.code.needed else []

    def _sum(self, answers: Array, who: list[int], wrong: list[int]) -> Array:
        """The sum of all embeddings, from the answers that are right."""
        right = [i for i, n in enumerate(who) if n not in wrong]
        return self.code.decode(answers[right] if wrong else answers, [who[i] for i in right])

    @property
    def _bits(self) -> int:
        return self.options.l_x + self.options.l_w

    @done(Decoded)
    def decoded(self, token: int, result: Decoded) -> None:
        """Step the server's network, send ∇_H to all that took part, and start the next round."""
        s, k, summed = self.state, self.k, self.agreement.summed
        if not isfinite(result.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {s.round}; lower train.learning_rate")
        self.suspicion.decoded(result.answers)
        self._blame(result.wrong)
        self.network.apply(result.theta_0, self.training.rule.rate(self.training.server_rate, k), result.buffers)
        self.counted(len(result.h) * len(summed), [result.loss])
        for n, name in enumerate(self.names):
            if n not in summed:
                s.left_out[name] = s.left_out.get(name, 0) + 1
        weights = self._weights()
        trained = list(weights.values()) if self.lasting else []
        gradient = Gradient(s.round, k, s.position, summed, result.h, trained)
        for n in self.agreement.among:
            self.send(self.names[n], gradient)
        s.asked_for = [one for one in s.asked_for if self.lasting and in_use(one[1], weights)]
        if self.lasting:
            s.old += sum(s.last.get(n) == which for n, which in weights.items())
            s.last = weights
            self.pace.gradient(weights, s.round, self.now)
        s.round, s.attempt, s.position = s.round + 1, 0, s.position + 1
        self._share()

    # Wrong answers: not in the paper.

    def _blame(self, wrong: list[int]) -> None:
        """Count wrong answers; a party with too many is not asked again."""
        if wrong:
            self._distrust(self.suspicion.blame(wrong))

    def _distrust(self, effects: list[Effect]) -> None:
        """Do not ask the parties that `suspicion` ignores, from the next exchange on."""
        self.do(effects)
        self.agreement.ignored, self.tested.ignored = (list(self.suspicion.ignored) for _ in range(2))

    @done(Doubted)
    def doubted(self, token: int, result: Doubted) -> None:
        """Some answers are wrong, and too few are here to tell which: wait for more until the deadline."""
        s, agreement = self.state, self.agreement
        s.doing, agreement.doubted = ANSWERING, result.answers
        self._set_deadline()
        self._continue_answering()

    def _continue_answering(self) -> None:
        """Decode if enough answers are here. Try again if no more can come and they do not fit together."""
        present = self.state.present
        if self.agreement.needs_others(present):
            self._ask_the_rest()
        if self.agreement.decodable(present):
            self._decode()
        elif self.agreement.is_disputed(present):
            self._dispute()

    def _dispute(self) -> None:
        """Try the round again, with fresh masks and blinding; after a few attempts, end the run."""
        reason = self.suspicion.dispute(self.state.round, sorted(self.agreement.answers))
        if not reason:
            return self._share()
        self.state.doing = AGREED
        self.end(reason)

    # Evaluation.

    def judging(self) -> bool:
        """Whether an evaluation is running."""
        return self.evaluation.running

    def begin_judging(self) -> None:
        """Evaluate the held-out rows, with the parties that know which weights are the newest."""
        tested = [n for n in self.agreement.among if self.names[n] in self.state.present]
        ending, deadline = bool(self.progress.ending), self.state.deadline
        self._tests(self.evaluation.begin(self.now, tested, self.state.round, ending, deadline))

    def _tests(self, effects: list[Effect]) -> None:
        """Do what the evaluation asks for; if it cannot be decoded, end it without values."""
        self.do(effects)
        if self.evaluation.given_up:
            self.evaluation.given_up = False
            self._end_judging(self.evaluation.nothing())

    def _end_judging(self, result: Evaluated) -> None:
        self.evaluation.running = False
        self.measured(result, self.evaluation.missing)

    @timer(TEST_DEADLINE)
    def tests_are_late(self, due: int) -> None:
        """The exchange over test rows has taken too long."""
        self._tests(self.evaluation.deadline_passed(self.now, self.state.present))

    @job(DecodeTest)
    def decode_tests(self, job: DecodeTest) -> DecodedTest | DoubtedTest:
        """The average embeddings of a chunk of test rows."""
        wrong = self._wrong(job.answers, job.who, "check of test rows", job.draw)
        if wrong is None:
            return DoubtedTest(job.start, len(job.who))
        summed = self._sum(job.answers, job.who, wrong)
        return DecodedTest(job.start, average(summed, job.count, self._bits), wrong)

    @done(DecodedTest)
    def tests_decoded(self, token: int, result: DecodedTest) -> None:
        """Continue with the next chunk, or judge."""
        self.suspicion.test_declines = {}
        self._blame(result.wrong)
        self._tests(self.evaluation.decoded(result, self.now))

    @done(DoubtedTest)
    def tests_doubted(self, token: int, result: DoubtedTest) -> None:
        """Some answers are wrong, and too few are here to tell which."""
        self._tests(self.evaluation.doubted(result, self.now, self.state.present))

    @job(EvaluateAll)
    def judge(self, job: EvaluateAll) -> Evaluated:
        """The metric and the loss over the decoded rows."""
        return self.evaluation.judge(self.network)

    @done(Evaluated)
    def judged(self, token: int, result: Evaluated) -> None:
        self._end_judging(result)

    # Parties that come and go.

    def joined(self, peer: str, reset: bool) -> None:
        """A party is here: there may now be enough to begin."""
        super().joined(peer, reset)
        if not reset and self.state.doing == PREPARING:
            self._share()

    def forget(self, peer: str) -> None:
        """The party will report again what it holds; try the round again if it takes part."""
        s, n = self.state, self.index[peer]
        s.prepared.pop(n, None)
        s.claims.pop(n, None)
        self.pace.forget(n)
        self._tests(self.evaluation.lose(self.now, s.present, reset=True))
        if s.doing in (SHARING, AGREED, ANSWERING) and n in self.agreement.among:
            self._try_again([peer])

    def lost(self, peer: str) -> None:
        """Stop waiting for the party."""
        s = self.state
        self.pace.forget(self.index[peer])
        self._tests(self.evaluation.lose(self.now, s.present))
        if s.doing == SHARING and self.index[peer] in self.agreement.awaited:
            self._try_again([peer])
        elif s.doing == WAITING:
            self._share()
        elif s.doing == SHARING:
            if not self.agreement.asked:
                self.do(self.agreement.ask())
            if not self.agreement.unreported(s.present):
                self._agree()
        elif s.doing == ANSWERING and self.agreement.hopeless(s.present):
            self._try_again(self._absent())
        elif s.doing == ANSWERING:
            self._continue_answering()
        elif s.doing == PREPARING:
            s.begun |= bool(s.prepared) and all(self.index[name] in s.prepared for name in s.present)
            self._share()

    def waits_for(self) -> list[str]:
        """The parties that the round still needs."""
        match self.state.doing:
            case "preparing":
                among = self._among()
                return [name for n, name in enumerate(self.names) if n not in among]
            case "waiting":
                return [self.names[n] for n in self.pace.too_old(self._among(), self.state.round)]
            case "sharing":
                return self._unshared()
            case "answering":
                return self.agreement.outstanding()
        return []

    def _unshared(self) -> list[str]:
        """The parties that a round in `sharing` needs.

        A party without a report may be waiting for the share of another one, until the server asks. If an attempt at
        the round has failed, the server waits for the parties that most speaks against.
        """
        unreported, suspects = self.agreement.unreported(self.names), self.failures.suspects(self.state.round)
        if not suspects:
            return unreported
        owing = unreported if self.agreement.asked or self.state.deadline is None else []
        return [name for n, name in enumerate(self.names) if n in suspects or name in owing]

    def awaited(self) -> str:
        """What the round needs. After a failed attempt, each attempt is a debt of its own."""
        s = self.state
        attempt = f", attempt {s.attempt}" if self.failures.suspects(s.round) else ""
        return f"its part of {s.doing} for round {s.round}{attempt}"

    def validate(self) -> None:
        """Raise if an invariant between two events does not hold."""
        agreement = self.agreement
        if self.state.doing in (ANSWERING, DECODING):
            if len(agreement.summed) < self.least or len(agreement.evaluators) < self.code.needed:
                raise LocalProtocolError("server: a sum over too few parties, or by too few evaluators")
            if not set(agreement.answers) <= set(agreement.evaluators):
                raise LocalProtocolError("server: an answer of a party that does not evaluate")
        sums: dict[int, dict[int, int]] = {}
        for position, weights in self.state.asked_for:
            if tells_apart(sums.setdefault(position, weights), weights, 0):
                raise LocalProtocolError("server: the same rows were asked for over two sets")

    # Weights and summary.

    def trained(self) -> dict[str, dict[str, Array]]:
        """The network's weights. See `protocol.role.Trained`."""
        return {SERVER: self.network.trained()}

    def target_scale(self) -> tuple[float, float]:
        """The mean and the spread of the targets. See `protocol.role.Scaling`."""
        return self.network.objective.scale

    def told(self) -> RoleSummary:
        """Clipped weights, rounds that were tried again, and parties that were missing."""
        s = self.state
        return {
            "weights": self.network.digest(),
            "note": self._retried(),
            "warnings": [*self._clipping(), *self.suspicion.warnings(), *self.failures.warnings(self.names)],
            "method": {
                "needed": self.code.needed,
                "stragglers_tolerated": self.code.stragglers,
                "padding": self.walk.cut.padding,
                "clipped_weights": sum(s.clips.values()),
                "clipped_by_party": dict(sorted(s.clips.items())),
                "old_shares_summed": s.old,
                "retries": s.retries,
                "deadline_s": inf if s.deadline is None else s.deadline / NANOSECONDS,
                "missing_at_retries": dict(sorted(s.missed.items())),
                "left_out_of_sums": dict(sorted(s.left_out.items())),
                "late_answers": sum(s.late.values()),
                **self.suspicion.told(),
            },
        }

    def _clipping(self) -> list[str]:
        """Warn of parties whose weights sit at ±W_max: on average, more than one weight per output in every step.

        On digits, 8 wide, 6 such weights of 272 cost nothing (accuracy 0.95), 31 cost half of it (0.44).
        """
        steps, clips = max(self.k, 1), self.state.clips
        many = {name: count for name, count in sorted(clips.items()) if count > steps * self.width}
        if not many:
            return []
        each = listing(f"{name} ({count / steps:.0f} per update)" for name, count in many.items())
        total = sum(clips.values())
        return [f"{total:,} weights were clipped: {each}; lower train.learning_rate, or raise protocol.w_max"]

    def _retried(self) -> str:
        s = self.state
        if not s.retries:
            return ""
        missing = ", ".join(f"{name} ({count}×)" for name, count in sorted(s.missed.items())) or "none"
        return (
            f"rounds were repeated {s.retries} times, because fewer than {self.code.needed} parties answered in time; "
            f"missing: {missing}; if they are only slow, raise protocol.deadline_s"
        ) + self._longer()

    def _longer(self) -> str:
        """A remark if the deadline has grown."""
        now = inf if self.state.deadline is None else self.state.deadline / NANOSECONDS
        given = self.options.deadline_s
        return f" (it has grown from {given:g} s to {now:g} s)" if now > given else ""
