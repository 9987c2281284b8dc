"""Fixtures for the tests of methods: tiny roles driven by hand, and simulations that record every event."""

import types
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.algorithms import METHODS
from colonnade.algorithms.method import PartySetup, ServerSetup
from colonnade.algorithms.training import Every, StepRule, Training
from colonnade.config.resolve import federation, scale_of
from colonnade.config.schema import from_dict
from colonnade.data import Task, load, split
from colonnade.drivers.simulator import Simulator
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import (
    CancelTimer,
    CancelWork,
    Emit,
    Finish,
    PeerJoined,
    Received,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.role import EVALUATION


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def partition():
    """Datasets, split once. They have no validation rows, so evaluations use the test rows."""
    made = {}

    def get(source, parties=4, scale=None):
        if (source, parties, scale) not in made:
            made[source, parties, scale] = split(load(source), parties=parties, scale=scale, validation_fraction=0)
        return made[source, parties, scale]

    return get


@pytest.fixture(scope="session")
def resolve(partition):
    """Build a federation from config tables; `source` and `parties` choose the data."""

    def make(tables, source="digits", parties=4, data=None):
        config = from_dict(tables)
        return federation(config, data if data is not None else partition(source, parties, scale_of(config)))

    return make


@pytest.fixture(scope="session")
def simulate(resolve):
    """Run a config to the end and check every invariant; return events, records, roles and the simulator.

    `changed` gets every role before the run, e.g. to make one of them lie.
    """

    def run(tables, source="digits", parties=4, data=None, until=None, changed=lambda role: None):
        setting = resolve(tables, source, parties, data)
        roles = setting.roles()
        for role in roles:
            changed(role)
        found = types.SimpleNamespace(events=[], records=[], federation=setting)
        simulator = Simulator(
            roles,
            Codec(setting.method.payloads),
            setting.config.clock,
            setting.config.train.seed,
            full_trace=True,
            on_emit=lambda record, _: found.records.append(record),
            on_event=lambda time, role, event: found.events.append((time, role, event)),
            check=True,
            peers=setting.method.capabilities.peers,
        )
        found.simulator = simulator
        found.roles = {node.role.name: node.role for node in simulator.nodes}
        found.server = found.roles["server"]
        found.parties = [role for name, role in found.roles.items() if name != "server"]
        if until is None:
            found.status = simulator.run()
        else:
            simulator.advance(until)
            found.status = simulator.status
        return found

    return run


class ByHand:
    """Deliver the roles' messages at once, in the order sent.

    Jobs take no time; a timer fires when the test says so.
    """

    def __init__(self, setting, lost=lambda sender, to, message: False):
        self.roles = {role.name: role for role in setting.roles()}
        self.server, *self.parties = self.roles.values()
        self.codec, self.lost = Codec(setting.method.payloads), lost
        self.queue, self.timers, self.jobs, self.said, self.records = deque(), {}, set(), [], []
        self.counted = []  # all messages except those of evaluation
        self.now, self.finished = 0, ""
        for role in self.roles.values():
            self.tell(role.name, Started(role.name.encode()))
        for party in self.parties:
            self.tell("server", PeerJoined(party.name))

    def tell(self, name, event):
        role = self.roles[name]
        for effect in role.handle(event, self.now):
            self._perform(role, effect)
        role.validate()

    def _perform(self, role, effect):
        match effect:
            case Send(to=to, message=message, evaluation=evaluation):
                if not self.lost(role.name, to, message):
                    self.said.append((role.name, to, message))
                    self.counted += [] if evaluation else [(role.name, to, message)]
                    self.queue.append((to, Received(role.name, self.over_the_wire(message))))
            case Work():
                self.jobs.add((role.name, effect.token))
                self.queue.append((role.name, effect))
            case CancelWork(token=token):
                self.jobs.discard((role.name, token))
            case SetTimer(name=timer, at=at):
                self.timers[role.name, timer] = at
            case CancelTimer(name=timer):
                self.timers.pop((role.name, timer), None)
            case Emit(record=record):
                self.records.append(record)
            case Finish(reason=reason):
                self.finished = reason

    def over_the_wire(self, message):
        return self.codec.decode(bytes(self.codec.encode(message)))

    def pump(self, until=lambda: False):
        """Deliver until no message is left, or until a condition holds."""
        while self.queue and not self.finished and not until():
            name, what = self.queue.popleft()
            if isinstance(what, Work):
                if (name, what.token) in self.jobs:
                    self.jobs.discard((name, what.token))
                    self.tell(name, WorkDone(what.token, self.over_the_wire(self.roles[name].compute(what.job))))
            else:
                self.tell(name, what)
        return self

    def fire(self, timer, name="server"):
        due = self.timers.pop((name, timer))
        self.now = max(self.now, due)
        self.tell(name, TimerFired(timer, due))
        return self

    def heard(self, kind, to=None):
        """The messages of this kind, without those of evaluation."""
        return [message for _, receiver, message in self.counted if type(message) is kind and to in (None, receiver)]


@pytest.fixture
def by_hand():
    return ByHand


def weighted(*weights):
    """A layer without bias and with given weights."""

    def make(inputs, outputs):
        layer = nn.Linear(inputs, outputs, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(weights).reshape(outputs, inputs))
        return layer

    return make


class Tiny:
    """A server and parties of one column each (or as many as given), driven event by event, without a driver."""

    server_type = party_type = None  # as the method with these options has them

    def __init__(self, options, x, y, weights, theta_0, task, batch=2, rates=(0.1, 0.2), limit=1000, rule=None):
        y = np.asarray(y)
        self.x = [np.asarray(columns, np.float32).reshape(len(y), -1) for columns in x]
        self.names = tuple(f"party-{m + 1}" for m in range(len(x)))
        plain, none = OptimiserSpec(), Regulariser()
        training = Training(
            seed=0, rows=len(y), batch_size=batch, server_rate=rates[0], party_rates=(rates[1],) * len(x),
            server_optimiser=plain, party_optimisers=(plain,) * len(x), regularisers=(none,) * len(x),
            rule=rule or StepRule(), limit=Every("updates", limit), eval_every=Every("updates", limit),
            metric="rmse" if task.kind == "regression" else "accuracy",
        )  # fmt: skip
        model = "none" if theta_0 is None else weighted(theta_0)
        method = next(method for method in METHODS.values() if method.options is type(options))
        self.server = (self.server_type or method.server)(
            ServerSetup(options, training, self.names, (1,) * len(x), model, "sum", task, y, y[:1])
        )  # fmt: skip
        shared = (options, training)
        self.parties = [
            (self.party_type or method.party)(
                PartySetup(*shared, name, m, len(x), 1, weighted(weights[m]), own, own[:1], own.shape[1:])
            )
            for m, (name, own) in enumerate(zip(self.names, self.x, strict=True))
        ]
        self.told(self.server, Started(b""))
        for name in self.names:
            self.told(self.server, PeerJoined(name))

    def told(self, role, event):
        """Deliver one event; return the role's effects, without those of evaluation."""
        effects = role.handle(event, 0)
        role.validate()
        remaining = []
        for effect in effects:
            measuring = effect.kind == EVALUATION if isinstance(effect, Work) else getattr(effect, "evaluation", False)
            if not measuring:
                remaining.append(effect)
        return remaining

    def work(self, role, effects):
        """Do the one job among the effects; return its result and the role's next effects."""
        (work,) = [effect for effect in effects if isinstance(effect, Work)]
        result = role.compute(work.job)
        return result, self.told(role, WorkDone(work.token, result))

    def start(self, m, entropy=b""):
        """A party's first activation, up to its upload; also return its other effects of that moment."""
        party = self.parties[m]
        return self.work(party, self.told(party, Started(entropy)))[1]


@pytest.fixture
def tiny():
    return Tiny


@pytest.fixture
def regression():
    return Task("regression", ())


@pytest.fixture
def binary():
    return Task("binary", ("no", "yes"))
