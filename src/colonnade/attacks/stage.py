"""The stage of an attack: a method's real roles in the simulator, with a party replaced or a wire tapped.

The server is the method's own, behind a `Gate`: a refused question, which between real processes costs the asker its
stream, is told to the intruder here, so that it can try another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.method import SERVER, PartySetup, ServerSetup
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest
from colonnade.algorithms.zeroth.config import SynZooOptions, ZooOptions
from colonnade.algorithms.zeroth.messages import Losses
from colonnade.algorithms.zeroth.server import Probing as LossServer
from colonnade.attacks.clients import Client, Place
from colonnade.attacks.ears import Ear
from colonnade.attacks.wires import Answer, Pen, read_answer, walk_of
from colonnade.config.resolve import Federation
from colonnade.drivers.simulator import ClockConfig, Simulator
from colonnade.drivers.simulator.clock import Compute
from colonnade.experiments.run import one_thread
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import (
    NANOSECONDS,
    Effect,
    Event,
    Received,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest, Message, Payload
from colonnade.protocol.role import Role, RoleSummary

__all__ = ["Gate", "Intruder", "Stage"]

SLICE_EVENTS = 500
HONEST_STEP_S = 1.0  # against intruders that hurry


class Ask(Payload, frozen=True):
    """The intruder's job: to make a question takes some time, too."""


class Refused(Message, frozen=True):
    """Server → party: what the end of its stream tells a party of real processes."""

    cause: str


class Intruder:
    """A role that carries a client: it speaks the method's messages and never trains."""

    def __init__(self, setup: PartySetup, client: Client, pen: Pen, begin_s: float = 0.0) -> None:
        self.name, self._width, self.client, self._pen = setup.name, setup.width, client, pen
        self._begin = round(begin_s * NANOSECONDS)
        self.step, self.asked, self.first_refusal = 0, 0, ""
        self.waiting = self.finished = False

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Started():
                return [SetTimer("begin", now + self._begin)]
            case TimerFired():
                return self._next()
            case WorkDone():
                return self._question(now)
            case Received(message=message):
                return self._received(message, now)
        return []

    def _next(self) -> list[Effect]:
        return [Work(1, "step", self.client.effort, Ask())]

    def _question(self, now: int) -> list[Effect]:
        question = self.client.ask(self.step)
        if question is None:
            self.finished = True
            return []
        self.step, self.waiting = question.step, True
        self.asked += 1
        upload = self._pen.upload(question.step, question.rows, question.values, question.perturbed, now)
        return [Send(SERVER, upload)]

    def _received(self, message: Message, now: int) -> list[Effect]:
        match message:
            case EvaluationRequest(number=number, start=start, stop=stop):
                return [Send(SERVER, EvaluationReply(number, start, 0, self._zeros(stop - start)), evaluation=True)]
            case FreshRequest(request=request, rows=rows):
                return [Send(SERVER, Embeddings(self.step, 0, rows, self._zeros(len(rows)), request=request))]
            case Refused(cause=cause):
                self.client.refused()
                self.first_refusal = self.first_refusal or cause
                answer: Answer | None = Answer(self.step, None, self.step + 1)
            case _:
                answer = read_answer(message)
        if answer is None or not self.waiting or answer.following < self.step:
            return []
        self._pen.note(message, now)
        if answer.values is not None:
            if answer.step != self.step:
                return []
            self.client.read(answer.values)
        self.step, self.waiting = answer.following, False
        return self._next()

    def _zeros(self, rows: int) -> Any:
        return np.zeros((rows, self._width), np.float32)

    def compute(self, job: Payload) -> Payload:
        """Nothing to train."""
        return job

    def save(self) -> Any:
        """Attacks are not resumed."""
        return {}

    def load(self, state: Any) -> None:
        """The reverse of `save`."""

    def validate(self) -> None:
        """Nothing to break."""

    def summary(self) -> RoleSummary:
        """How often it asked."""
        return {"asked": self.asked, "weights": ""}


class Gate:
    """In front of the server: refusals become answers; `per_sample` is how the intruder, and nobody else, is told."""

    name = SERVER

    def __init__(self, server: Role, intruder: str = "") -> None:
        self._server, self._intruder = server, intruder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        try:
            return [self._told(effect) for effect in self._server.handle(event, now)]
        except RemoteProtocolError as error:
            if error.peer != self._intruder:
                raise
            return [Send(error.peer, Refused(error.cause))]

    def _told(self, effect: Effect) -> Effect:
        """Benign parties get the mean, as always."""
        if isinstance(effect, Send) and effect.to != self._intruder and isinstance(effect.message, Losses):
            losses = effect.message
            if losses.values.ndim == 2:
                return Send(effect.to, Losses(losses.step, losses.update, losses.values.mean(1)))
        return effect


class _SummingZoo(ZooOptions, frozen=True):
    server_zeroth = ""


class _SummingSynZoo(SynZooOptions, frozen=True):
    server_zeroth = ""


_SUMMING: dict[type, type] = {ZooOptions: _SummingZoo, SynZooOptions: _SummingSynZoo}


def _summing(setup: ServerSetup) -> ServerSetup:
    """`zoo` and `syn-zoo` refuse a server without parameters to estimate; here it has no step, and answers as ever."""
    kind = _SUMMING.get(type(setup.options))
    return setup if kind is None else replace(setup, options=kind(**msgspec.structs.asdict(setup.options)))


@dataclass(frozen=True, slots=True)
class Stage:
    """A federation of which the party `index` is in somebody's hands."""

    setting: Federation
    index: int = 0

    @property
    def place(self) -> Place:
        """What that party knows."""
        setting, setup = self.setting, self.setting.parties[self.index]
        training = setting.training
        classes = len(setting.data.task.classes)
        walk = walk_of(setting, self.index)
        return Place(training.rows, classes, setup.width, self.index, training.seed, setting.options, walk)

    def intrude(
        self,
        client: Client,
        *,
        rules: bool = True,
        per_sample: bool = False,
        show: Callable[[float], None] = lambda done: None,
    ) -> Intruder:
        """Run with the client in the party's place until it has no more to ask."""
        setting, setups = self.setting, self.setting.parties
        assert setting.method.party is not None
        begin_s = HONEST_STEP_S * setting.training.rows / setting.training.batch_size if client.hurried else 0.0
        intruder = Intruder(setups[self.index], client, Pen(setting), begin_s)
        roles: list[Role] = [self._server(intruder.name, rules, per_sample)]
        roles += [intruder if setup.index == self.index else setting.method.party(setup) for setup in setups]
        # An honest step takes long against the questions of one who hurries; it begins when the table is warm.
        clock = ClockConfig(compute=Compute(mean_s=HONEST_STEP_S)) if client.hurried else setting.config.clock
        simulator = self._simulator(roles, clock, None)
        with one_thread():
            while not intruder.finished and simulator.advance(SLICE_EVENTS):
                show(float((client.guesses >= 0).mean()))
        return intruder

    def listen(self, ear: Ear, show: Callable[[float], None] = lambda done: None) -> None:
        """Run with benign parties only until the ear has heard every row."""
        setting = self.setting
        assert setting.method.party is not None
        name = setting.parties[self.index].name
        roles = [self._server("", True, False), *(setting.method.party(setup) for setup in setting.parties)]

        def tap(time: int, receiver: str, event: Event) -> None:
            if isinstance(event, Received) and {event.sender, receiver} == {name, SERVER}:
                ear.hear(event.message)

        simulator = self._simulator(roles, setting.config.clock, tap)
        with one_thread():
            while not ear.sated and simulator.advance(SLICE_EVENTS):
                show(float((ear.guesses >= 0).mean()))

    def _simulator(self, roles: list[Role], clock: ClockConfig, tap: Any) -> Simulator:
        codec = Codec((*self.setting.method.payloads, Refused))
        setting = self.setting
        return Simulator(
            roles, codec, clock, setting.training.seed, on_event=tap, peers=setting.method.capabilities.peers
        )

    def _server(self, intruder: str, rules: bool, per_sample: bool) -> Gate:
        assert self.setting.method.server is not None
        server = self.setting.method.server(_summing(self.setting.server))
        if isinstance(server, LossServer):
            server.rules, server.per_sample = rules, per_sample
        return Gate(server, intruder)
