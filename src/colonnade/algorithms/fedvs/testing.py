"""The server's evaluation through the code: held-out rows are shared, summed and decoded as training rows are.

Each chunk of places is an exchange of its own, with fresh masks and blinding. The server does not decode rows again
that were decoded with the current weights, because another S could reveal a party's embedding. If there are validation
rows, test rows are decoded only at the end.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import nan

import numpy as np

from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Scores
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.held_out import HeldOut
from colonnade.algorithms.fedvs.messages import (
    CHUNK_PLACES,
    Answer,
    Declined,
    DecodedTest,
    DecodeTest,
    DoubtedTest,
    Holding,
)
from colonnade.algorithms.fedvs.sum_agreement import SumAgreement
from colonnade.algorithms.method import ServerSetup
from colonnade.models import ServerNetwork
from colonnade.models.metrics import measure
from colonnade.protocol.events import CancelTimer, Effect, SetTimer, Work
from colonnade.protocol.messages import Array
from colonnade.protocol.role import EVALUATION
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["TEST_DEADLINE", "CodedEvaluation"]

TRIES = 3  # attempts at one chunk
TOKEN = -1  # tokens of evaluation jobs count down from here
TEST_DEADLINE = "evaluation deadline"  # the timer of the exchange


@dataclass(slots=True, eq=False)
class CodedEvaluation(Component):
    """Runs one evaluation after another. The agreement saves itself."""

    setup: ServerSetup[FedvsOptions] = field(metadata=UNSAVED)
    agreement: SumAgreement = field(metadata=UNSAVED)
    fewest: int = field(metadata=UNSAVED)  # parties that an exchange needs
    held_out: HeldOut = field(init=False, metadata=UNSAVED)
    patience: int | None = None  # ns until the deadline of an exchange; None: no deadline
    running: bool = False
    given_up: bool = False
    decoding: bool = False
    number: int = 0
    start: int = 0
    tries: int = 0
    jobs: int = 0
    among: list[int] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    summed: list[int] = field(default_factory=list)  # S with which the current chunk was announced
    weights_round: int = -1  # the round whose weights made the values
    decoded_once: int = 0  # places that were decoded at least once, with any weights
    last: bool = False  # whether it covers all rows, if there are validation rows
    values: Array = field(init=False)

    def __post_init__(self) -> None:
        setup = self.setup
        segments = setup.options.segments(len(setup.parties))
        self.held_out = HeldOut(len(setup.y_test), setup.training.validation, segments)
        self.values = np.zeros((segments, self.held_out.places, setup.widths[0]), np.float32)

    @property
    def complete(self) -> bool:
        """Whether all rows of this evaluation are decoded."""
        return self.start >= self._end()

    def _end(self) -> int:
        """The place after the last one of this evaluation."""
        early = self.held_out.validation and not self.last
        return self.held_out.edge if early else self.held_out.places

    def skip_to(self, number: int) -> None:
        """Skip the evaluations that the parties remember and this server has forgotten."""
        self.number = max(self.number, number)
        self.agreement.newest = max(self.agreement.newest, (number, 0))

    def begin(self, now: int, among: list[int], weights_round: int, last: bool, patience: int | None) -> list[Effect]:
        """Evaluate the validation rows with the parties that are here; the `last` evaluation includes the test rows."""
        self.running, self.last, self.patience = True, last, patience
        self.among = among
        if self.weights_round != weights_round:
            self.weights_round, self.start, self.summed = weights_round, 0, []
        if self.complete:
            return [self._judge()]
        self.tries = 0
        self.missing = self._without(among)
        return self._exchange(now)

    def _without(self, numbers: list[int]) -> list[str]:
        return [name for n, name in enumerate(self.setup.parties) if n not in numbers]

    def _exchange(self, now: int) -> list[Effect]:
        """Ask the parties to share their models for a chunk."""
        if len(self.among) < self.fewest:
            return self._give_up()
        self.number += 1
        self.decoding = False
        return [*self.agreement.begin((self.number, 0), self.among, self._places()), *self._set_timer(now)]

    def _places(self) -> int:
        """The number of places in the current chunk."""
        return self.held_out.stop(self.start, CHUNK_PLACES) - self.start

    def _set_timer(self, now: int) -> list[Effect]:
        return [] if self.patience is None else [SetTimer(TEST_DEADLINE, now + self.patience)]

    def report(self, sender: str, message: Holding, now: int, present: Collection[str]) -> list[Effect]:
        """Take a report on the shares that a party holds."""
        taken = self.agreement.report(sender, message) and self.running
        return self._settle(now, present) if taken and not self.agreement.unreported(present) else []

    def _settle(self, now: int, present: Collection[str]) -> list[Effect]:
        settled = self.agreement.settle(present)
        if not settled or (self.summed and self.agreement.summed != self.summed):
            return self._give_up()
        self.summed = self.agreement.summed
        self.missing = self._without(self.summed)
        return [*self.agreement.announce(self.start, self._places()), *self._set_timer(now)]

    def answer(self, sender: str, message: Answer, present: Collection[str]) -> list[Effect]:
        """Take a coded sum; once enough are here, decode."""
        if not self.running or self.complete or (message.round, message.attempt) != self.agreement.key:
            return []
        self.agreement.answer(sender, message, self.setup.widths[0])
        return self._decode() if not self.decoding and self.agreement.decodable(present) else []

    def _decode(self) -> list[Effect]:
        self.decoding = True
        answers, who = self.agreement.taken()
        job = DecodeTest(answers, who, len(self.summed), self.start, self.jobs + 1)
        return [self._work(job), CancelTimer(TEST_DEADLINE)]

    def doubted(self, result: DoubtedTest, now: int, present: Collection[str]) -> list[Effect]:
        """Some answers are wrong, and too few are here to tell which: wait for more, or try the chunk again."""
        if not self.running or not self.decoding or result.start != self.start:
            return []
        self.decoding, self.agreement.doubted = False, result.answers
        if self.agreement.decodable(present):
            return self._decode()
        return self._once_more(now, present) if self.agreement.is_disputed(present) else self._set_timer(now)

    def declined(self, message: Declined) -> list[Effect]:
        """A party has answered for these rows in a sum from which this one must not be subtracted.

        The evaluation then judges the rows as they were decoded last.
        """
        if message.round != self.number or not self.running or self.complete:
            return []
        if self.decoded_once < self._end():
            return self._give_up()
        self.start = self._end()
        return [CancelTimer(TEST_DEADLINE), self._judge()]

    def _work(self, job: DecodeTest | EvaluateAll) -> Work:
        self.jobs += 1
        return Work(TOKEN - self.jobs, EVALUATION, 0.0, job, aside=True)

    def decoded(self, result: DecodedTest, now: int) -> list[Effect]:
        """Store a decoded chunk; continue with the next one, or judge."""
        if not self.running or not self.decoding or result.start != self.start:
            return []
        self.decoding = False
        stop = result.start + result.values.shape[1]
        self.values[:, result.start : stop] = result.values
        self.start, self.tries, self.summed = stop, 0, []
        self.decoded_once = max(self.decoded_once, stop)
        return [self._judge()] if self.complete else self._exchange(now)

    def _judge(self) -> Work:
        return self._work(EvaluateAll(self.number))

    def judge(self, network: ServerNetwork) -> Evaluated:
        """The metric and the loss over the rows of this evaluation."""
        validation, test = self.held_out.samples(self.values)
        count, y = self.held_out.validation, self.setup.y_test
        scores = self._scores(network, validation, y[:count]) if count else self._scores(network, test, y)
        tested = self._scores(network, test, y[count:]) if count and self.last else None
        return Evaluated(self.number, scores.loss, scores.values, tested)

    def _scores(self, network: ServerNetwork, h: Array, y: Array) -> Scores:
        loss, prediction = network.evaluate(h, network.objective.targets(y))
        training = self.setup.training
        return Scores(loss, measure(training.metric, self.setup.task, y, prediction, loss, training.also))

    def deadline_passed(self, now: int, present: Collection[str]) -> list[Effect]:
        """First ask the parties what they hold; then do without the silent ones; then try the chunk again."""
        if not self.running or self.complete:
            return []
        if self.agreement.settle_for_less():
            return self._decode()
        if self.agreement.evaluators:
            return self._once_more(now, present)
        if not self.agreement.asked:
            return [*self.agreement.ask(), *self._set_timer(now)]
        return self._settle(now, present)

    def lose(self, now: int, present: Collection[str], *, reset: bool = False) -> list[Effect]:
        """A party is gone, or has lost its memory (`reset`)."""
        if not self.running or self.complete or self.decoding:
            return []
        if reset or self.agreement.hopeless(present) or self.agreement.is_disputed(present):
            return self._once_more(now, present)
        if self.agreement.evaluators:
            return self._decode() if self.agreement.decodable(present) else []
        ask = [] if self.agreement.asked else self.agreement.ask()
        return [*ask, *([] if self.agreement.unreported(present) else self._settle(now, present))]

    def _once_more(self, now: int, present: Collection[str]) -> list[Effect]:
        self.tries += 1
        self.among = [n for n in self.among if self.setup.parties[n] in present]
        if self.tries >= TRIES:
            return self._give_up()
        return self._exchange(now)

    def _give_up(self) -> list[Effect]:
        self.given_up = True
        return [CancelTimer(TEST_DEADLINE)]

    def nothing(self) -> Evaluated:
        """The result if too few parties can answer: NaN."""
        values = dict.fromkeys((self.setup.training.metric, *self.setup.training.also), nan)
        if self.setup.task.kind != "regression":
            values["accuracy"] = nan
        tested = Scores(nan, values) if self.last and self.held_out.validation else None
        return Evaluated(self.number, nan, values, tested)
