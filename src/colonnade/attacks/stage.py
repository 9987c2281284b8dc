"""The stage of an attack: a method's real roles in the simulator, with one party replaced or one wire tapped.

The server is the method's own, behind a `Gate`. Between real processes a refused question ends the asker's connection.
Here the gate tells the intruder about the refusal, so that it can try another question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.observations import Answer, Pen
from colonnade.attacks.clients import Client, Place
from colonnade.attacks.eavesdropper import Eavesdropper
from colonnade.attacks.wires import observations_of, read_answer, refuse_packed
from colonnade.config.resolve import Federation
from colonnade.drivers.row_file import FileStorage
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
from colonnade.protocol.role import Role, RoleSummary, Storing

__all__ = ["Behind", "Gate", "Intruder", "Stage"]

SLICE_EVENTS = 500
HONEST_STEP_S = 1.0  # against intruders that hurry


class Ask(Payload, frozen=True):
    """The intruder's job: making a question takes time too."""


class Refused(Message, frozen=True):
    """Server → party: in place of the closed connection by which a party of real processes notices a refusal."""

    cause: str


class Intruder:
    """A role that carries a client: it speaks the method's messages and never trains."""

    def __init__(self, setup: PartySetup, client: Client, pen: Pen, begin_s: float = 0.0) -> None:
        self.name, self._width, self.client, self._pen = setup.name, setup.width, client, pen
        self._begin = round(begin_s * NANOSECONDS)
        self.step, self.asked, self.first_refusal = 0, 0, ""
        self.waiting = self.finished = False

    def handle(self, event: Event, now: int) -> list[Effect]:
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
        return [Send(SERVER, self._pen.upload(question, now))]

    def _received(self, message: Message, now: int) -> list[Effect]:
        match message:
            case EvaluationRequest(number=number, start=start, stop=stop):
                zeros = np.zeros((stop - start, self._width), np.float32)
                return [Send(SERVER, EvaluationReply(number, start, 0, zeros), evaluation=True)]
            case Refused(cause=cause):
                self.client.refused()
                self.first_refusal = self.first_refusal or cause
                answer: Answer | None = Answer(self.step, None, self.step + 1)
            case _:
                reply = self._pen.reply(message, self.step, self._width)
                if reply is not None:
                    return [Send(SERVER, reply)]
                answer = read_answer(self.client.place.seen, message)
        if answer is None or not self.waiting or answer.following < self.step:
            return []
        self._pen.note(message, now)
        if answer.values is not None:
            if answer.step != self.step:
                return []
            self.client.read(answer.values)
        self.step, self.waiting = answer.following, False
        return self._next()

    def compute(self, job: Payload) -> Payload:
        """Return the job unchanged: there is nothing to train."""
        return job

    def save(self) -> Any:
        """Return no state: attacks are not resumed."""
        return {}

    def load(self, state: Any) -> None:
        """Do nothing: attacks are not resumed."""

    def validate(self) -> None:
        """Do nothing: there are no invariants."""

    def summary(self) -> RoleSummary:
        """Return how often it asked."""
        return {"asked": self.asked, "weights": ""}


class Behind:
    """A role that passes everything on to another one."""

    def __init__(self, role: Role) -> None:
        self.name, self._role = role.name, role

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        return self._role.handle(event, now)

    def compute(self, job: Payload) -> Payload:
        return self._role.compute(job)

    def save(self) -> Any:
        return self._role.save()

    def load(self, state: Any) -> None:
        self._role.load(state)

    def validate(self) -> None:
        self._role.validate()

    def summary(self) -> RoleSummary:
        return self._role.summary()


class Gate(Behind):
    """Stands before the server: tells the intruder about a refusal.

    Other parties get what `told` makes of a message.
    """

    def __init__(self, server: Role, intruder: str, told: Callable[[Message], Message]) -> None:
        super().__init__(server)
        self._intruder, self._told = intruder, told

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Pass the event on; raises RemoteProtocolError only for errors that the intruder did not cause."""
        try:
            return [self._as_told(effect) for effect in self._role.handle(event, now)]
        except RemoteProtocolError as error:
            if error.peer != self._intruder:
                raise
            return [Send(error.peer, Refused(error.cause))]

    def _as_told(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or effect.to == self._intruder:
            return effect
        return msgspec.structs.replace(effect, message=self._told(effect.message))


def _same(message: Message) -> Message:
    return message


@dataclass(frozen=True, slots=True)
class Stage:
    """A federation in which the attacker controls or observes the party `index`."""

    setting: Federation
    index: int = 0

    @property
    def place(self) -> Place:
        """What that party knows."""
        setting, setup = self.setting, self.setting.parties[self.index]
        training = setting.training
        classes = len(setting.data.task.classes)
        seen = observations_of(setting.method)
        walk, asking = seen.walk(training, setting.options, self.index), seen.asking(setting.options)
        return Place(training.rows, classes, setup.width, self.index, training.seed, walk, asking, seen)

    def intrude(
        self,
        client: Client,
        *,
        rules: bool = True,
        per_sample: bool = False,
        show: Callable[[float], None] = lambda done: None,
    ) -> Intruder:
        """Run with the client in the party's place until it has nothing left to ask."""
        setting, setups = self.setting, self.setting.parties
        pen = observations_of(setting.method).pen
        assert setting.method.party is not None and pen is not None
        replaced = setups[self.index]
        refuse_packed(setting.method, setting.method.party(replaced), replaced.width)
        begin_s = HONEST_STEP_S * setting.training.rows / setting.training.batch_size if client.hurried else 0.0
        intruder = Intruder(replaced, client, pen(), begin_s)
        roles: list[Role] = [self._server(intruder.name, rules, per_sample)]
        roles += [intruder if setup.index == self.index else setting.method.party(setup) for setup in setups]
        # An honest step takes long compared with the questions of a client that hurries, which begins when the table is
        # warm.
        clock = ClockConfig(compute=Compute(mean_s=HONEST_STEP_S)) if client.hurried else setting.config.clock
        simulator = self._simulator(roles, clock, None)
        with one_thread():
            while not intruder.finished and simulator.advance(SLICE_EVENTS):
                show(float((client.guesses >= 0).mean()))
        return intruder

    def listen(self, eavesdropper: Eavesdropper, show: Callable[[float], None] = lambda done: None) -> None:
        """Run with benign parties only, until the eavesdropper has heard every row."""
        setting = self.setting
        assert setting.method.party is not None
        name = setting.parties[self.index].name
        roles = [self._server("", True, False), *(setting.method.party(setup) for setup in setting.parties)]

        def tap(time: int, receiver: str, event: Event) -> None:
            if isinstance(event, Received) and {event.sender, receiver} == {name, SERVER}:
                eavesdropper.hear(event.message)

        simulator = self._simulator(roles, setting.config.clock, tap)
        with one_thread():
            while not eavesdropper.heard_all_rows and simulator.advance(SLICE_EVENTS):
                show(float((eavesdropper.guesses >= 0).mean()))

    def _simulator(self, roles: list[Role], clock: ClockConfig, tap: Any) -> Simulator:
        codec = Codec((*self.setting.method.payloads, Refused))
        setting = self.setting
        return Simulator(
            roles, codec, clock, setting.training.seed, on_event=tap, peers=setting.method.capabilities.peers
        )

    def _server(self, intruder: str, rules: bool, per_sample: bool) -> Gate:
        method, setup = self.setting.method, self.setting.server
        assert method.server is not None
        experiment = observations_of(method).experiment
        options = setup.options if experiment is None else experiment.options(setup.options)
        server = method.server(replace(setup, options=options))
        if isinstance(server, Storing):
            server.open(FileStorage())  # the gate hides it from the driver
        if experiment is None:
            assert rules and not per_sample
            return Gate(server, intruder, _same)
        experiment.switch(server, rules, per_sample)
        return Gate(server, intruder, experiment.told)
