"""The server's evaluation through the code: test rows are shared, summed and decoded as training rows are.

A chunk of places after the other is an exchange of its own, with fresh masks and blinding. Rows that were decoded
with the present weights are not decoded again, lest another S should tell a party's embedding apart.
"""

from collections.abc import Callable, Collection
from math import nan
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import EvaluateAll, Evaluated
from colonnade.algorithms.fedvs.agreement import Agreement
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.messages import CHUNK_PLACES, Answer, Declined, DecodedTest, DecodeTest, Holding
from colonnade.algorithms.method import ServerSetup
from colonnade.models import ServerNetwork
from colonnade.models.metrics import measure
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.events import CancelTimer, Effect, SetTimer, Work
from colonnade.protocol.messages import Message
from colonnade.protocol.role import EVALUATION

__all__ = ["CodedEvaluation"]

TRIES = 3  # at one chunk
TOKEN = -1  # of evaluation jobs, downwards
Deadline = Callable[[int], int | None]


class CodedEvaluation:
    """One evaluation after another."""

    TIMER = "evaluation deadline"

    def __init__(self, setup: ServerSetup[FedvsOptions], agreement: Agreement, fewest: int, deadline: Deadline) -> None:
        self._parties, self._y, self._metric = setup.parties, setup.y_test, setup.training.metric
        self._task = setup.task
        self._cut = Segmentation(len(setup.y_test), setup.options.K)
        self._fewest, self._deadline = fewest, deadline
        self.agreement = agreement
        self.running = self.given_up = False
        self.number = self.start = self.tries = self.jobs = 0
        self.among: list[int] = []
        self.missing: list[str] = []
        self.summed: list[int] = []  # S that the present chunk was announced with
        self.weights_round = -1  # whose weights the values are of
        self.complete = False  # all of them
        self.values = np.zeros((setup.options.K, self._cut.length, setup.widths[0]), np.float32)

    def skip_to(self, number: int) -> None:
        """Parties remember evaluations that this server has forgotten."""
        self.number = max(self.number, number)
        self.agreement.newest = max(self.agreement.newest, (number, 0))

    def begin(self, now: int, among: list[int], weights_round: int) -> list[Effect]:
        """All test rows, by those who are here."""
        self.running = True
        self.among = among
        if self.complete and self.weights_round == weights_round:
            return [self._judge()]
        if self.weights_round != weights_round:
            self.weights_round, self.start, self.summed = weights_round, 0, []
        self.complete, self.tries = False, 0
        self.missing = [name for n, name in enumerate(self._parties) if n not in among]
        return self._exchange(now)

    def _exchange(self, now: int) -> list[Effect]:
        """A chunk's models are shared."""
        if len(self.among) < self._fewest:
            return self._give_up()
        self.number += 1
        places = min(CHUNK_PLACES, self._cut.length - self.start)
        return [*self.agreement.begin((self.number, 0), self.among, places), *self._set_timer(now)]

    def _set_timer(self, now: int) -> list[Effect]:
        at = self._deadline(now)
        return [SetTimer(self.TIMER, at)] if at is not None else []

    def receive(self, sender: str, message: Message, now: int, present: Collection[str], width: int) -> list[Effect]:
        """A report, an answer, or a refusal."""
        match message:
            case Holding():
                taken = self.agreement.report(sender, message) and self.running
                return self._settle(now, present) if taken and not self.agreement.unreported(present) else []
            case Answer():
                return self._answer(sender, message, width)
            case Declined(round=number) if number == self.number and self.running:
                return self._give_up()
        return []

    def _settle(self, now: int, present: Collection[str]) -> list[Effect]:
        settled = self.agreement.settle(present)
        if not settled or (self.summed and self.agreement.summed != self.summed):
            return self._give_up()
        self.summed = self.agreement.summed
        self.missing = [name for n, name in enumerate(self._parties) if n not in self.summed]
        places = min(CHUNK_PLACES, self._cut.length - self.start)
        return [*self.agreement.announce(self.start, places), *self._set_timer(now)]

    def _answer(self, sender: str, message: Answer, width: int) -> list[Effect]:
        if not self.running or self.agreement.decodable() or (message.round, message.attempt) != self.agreement.key:
            return []  # R were enough
        self.agreement.answer(sender, message, width)
        if not self.agreement.decodable():
            return []
        answers, who = self.agreement.taken()
        return [self._work(DecodeTest(answers, who, len(self.summed), self.start)), CancelTimer(self.TIMER)]

    def _work(self, job: DecodeTest | EvaluateAll) -> Work:
        self.jobs += 1
        return Work(TOKEN - self.jobs, EVALUATION, 0.0, job, aside=True)

    def decoded(self, result: DecodedTest, now: int) -> list[Effect]:
        """A chunk is there; the next one, or the judgement."""
        if not self.running or result.start != self.start:
            return []
        stop = result.start + result.values.shape[1]
        self.values[:, result.start : stop] = result.values
        self.start, self.tries, self.summed = stop, 0, []
        if stop < self._cut.length:
            return self._exchange(now)
        self.complete = True
        return [self._judge()]

    def _judge(self) -> Work:
        return self._work(EvaluateAll(self.number))

    def judge(self, network: ServerNetwork) -> Evaluated:
        """The metric and the loss over all test rows."""
        h = self._cut.samples(self.values, np.arange(self._cut.length))
        loss, prediction = network.evaluate(h, network.objective.targets(self._y))
        return Evaluated(self.number, loss, measure(self._metric, self._task, self._y, prediction, loss))

    def deadline_passed(self, now: int, present: Collection[str]) -> list[Effect]:
        """Ask what they hold; then do without; then once more."""
        if not self.running or self.complete:
            return []
        if self.agreement.evaluators:
            return self._once_more(now, present)
        if not self.agreement.asked:
            return [*self.agreement.ask(), *self._set_timer(now)]
        return self._settle(now, present)

    def lose(self, now: int, present: Collection[str], anew: str = "") -> list[Effect]:
        """Somebody is gone, or has forgotten."""
        if not self.running or self.complete or self.agreement.decodable():
            return []
        if anew or self.agreement.hopeless(present):
            return self._once_more(now, present)
        if self.agreement.evaluators:
            return []
        ask = [] if self.agreement.asked else self.agreement.ask()
        return [*ask, *([] if self.agreement.unreported(present) else self._settle(now, present))]

    def _once_more(self, now: int, present: Collection[str]) -> list[Effect]:
        self.tries += 1
        self.among = [n for n in self.among if self._parties[n] in present]
        if self.tries >= TRIES:
            return self._give_up()
        return self._exchange(now)

    def _give_up(self) -> list[Effect]:
        self.given_up = True
        return [CancelTimer(self.TIMER)]

    def nothing(self) -> Evaluated:
        """What is known when too few can answer."""
        values = {self._metric: nan} | ({"accuracy": nan} if self._task.kind != "regression" else {})
        return Evaluated(self.number, nan, values)

    def save(self) -> dict[str, Any]:
        """All of it."""
        return {name: getattr(self, name) for name in _STATE} | {"agreement": self.agreement.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, saved[name])
        self.values = np.array(saved["values"])
        self.agreement.load(saved["agreement"])


_STATE = (
    *("running", "given_up", "number", "start", "tries", "jobs", "among", "missing", "summed"),
    *("weights_round", "complete", "values"),
)
