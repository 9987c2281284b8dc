"""Roles that lose their memory at random moments: no role hangs, nothing breaks, the run reaches its end.

A driver in miniature: queues, jobs and timers in any order. What it may do to the roles is what the contract says of
`PeerJoined(reset=True)`: a role goes back to an earlier `save()` (or begins from nothing) with the jobs and timers of
that moment, all that is under way between it and its peers is gone, both ways, and both sides hear of it, the peer at
some later moment, what it sends until then being lost, too.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import (
    CancelTimer,
    CancelWork,
    Emit,
    Finish,
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

CHUNK = 20  # schedules of a test
CHUNKS = [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
UPDATES, MOST_EVENTS = 14, 4000
SAVES = 12  # saves of a role
VARIANTS = {
    "vafl": {"name": "vafl"},
    "vafl, zeros, pauses": {"name": "vafl", "table": "zeros", "pause_s": 0.1, "extra_rows": 0.5},
    "max_delay": {"name": "vafl", "max_delay": 2},
    "max_delay, wait": {"name": "vafl", "max_delay": 1, "on_lost": "wait", "table": "zeros"},
    "query-first": {"name": "vafl", "order": "query-first"},
    "query-first, pauses": {"name": "vafl", "order": "query-first", "pause_s": 0.1, "max_delay": 3},
    "t-sync": {"name": "t-sync", "t": 2},
    "t-sync, all, wait": {"name": "t-sync", "t": 3, "on_lost": "wait", "batches": "shared", "max_delay": 2},
    "sync": {"name": "sync"},
    "cascaded": {"name": "cascaded", "min_batch": 4, "extra_queries": 50, "max_delay": 2, "directions": 2},
    "cascaded, t, zeros": {"name": "cascaded", "min_batch": 4, "extra_queries": 50, "t": 2, "table": "zeros"},
    "syn-zoo": {"name": "syn-zoo", "min_batch": 4, "extra_queries": 50},
    "flex": {"name": "flex", "timeout_s": 5.0, "prox": 0.1, "momentum": 0.5},
    "flex, auto, wait": {"name": "flex", "on_lost": "wait", "labels": "shared", "max_steps": 3},
    "adaptive-flex, auto": {"name": "adaptive-flex"},
    "sync-max": {"name": "sync-max", "timeout_s": 0.05, "max_steps": 3},
    "wait": {"name": "wait"},
    "ignore": {"name": "ignore", "fastest": 2},
    "fedvs": {"name": "fedvs"},
    "fedvs, K, short": {
        "name": "fedvs",
        "K": 2,
        "T": 0,
        "allow_unprotected": True,
        "deadline_s": 0.001,
        "min_summed": 2,
        "stale": "refuse",
    },
    "asysqn-sgd": {"name": "asysqn-sgd"},
    "asysqn-svrg": {"name": "asysqn-svrg", "snapshot_every": 0.6},
    "asysqn-saga, wait": {"name": "asysqn-saga", "on_lost": "wait", "ahead": 0},
    "afsvrg, in the clear": {"name": "afsvrg", "snapshot_every": 0.6, "masking": "off"},
    "synsqn-svrg": {"name": "synsqn-svrg", "snapshot_every": 1.0},
    "synsqn-saga": {"name": "synsqn-saga"},
}
POLYNOMIAL = {"party": "polynomial:2", "embedding": 2, "server": "linear", "aggregate": "mean"}
PLAIN = {"party": "linear", "embedding": 2, "server": "linear"}
AVERAGING = ("wait", "ignore", "fedvs")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Warm-up and evaluation take several messages."""
    monkeypatch.setattr("colonnade.algorithms.vafl.table_walker.rows_per_message", lambda width: 9)
    monkeypatch.setattr("colonnade.algorithms.evaluation.rows_per_message", lambda width: 3)
    monkeypatch.setattr("colonnade.algorithms.flex.server.TRIES", MOST_EVENTS)  # the driver rings bells at any time


@cache
def data(scale=None):
    """23 training rows: with batches of 8 the last batch of an epoch is short."""
    rows = np.random.default_rng(0)
    x = rows.standard_normal((32, 3)).astype(np.float32)
    return colonnade.split(colonnade.from_arrays(x, (x.sum(1) > 0).astype(np.int64)), parties=3, scale=scale)


@dataclass
class Save:
    """What a driver saves at one moment."""

    state: bytes
    jobs: dict
    timers: dict


@dataclass
class Node:
    role: object
    peers: list
    jobs: dict = field(default_factory=dict)
    timers: dict = field(default_factory=dict)
    saves: list = field(default_factory=list)


class World:
    """A server and three parties in one process, one event at a time, in an order drawn from the seed."""

    def __init__(self, protocol, seed):
        self.draw = random.Random(seed)
        self.moments = {self.draw.randrange(1, 300) for _ in range(self.draw.randint(1, 8))}  # of trouble to come
        setting = federation(
            from_dict(
                {
                    "protocol": protocol,
                    "model": POLYNOMIAL if protocol["name"] in AVERAGING else PLAIN,
                    "train": {"batch_size": 8, "updates": UPDATES, "eval_every": 5, "learning_rate": 0.05},
                }
            ),
            data("minmax" if protocol["name"] in AVERAGING else None),
        )
        self.codec = Codec(setting.method.payloads)
        self.patient = setting.method.capabilities.party_labels
        server, *parties = setting.roles()
        self.names = [party.name for party in parties]
        self.nodes = {"server": Node(server, self.names)} | {p.name: Node(p, ["server"]) for p in parties}
        self.queues = {(a, b): deque() for a, node in self.nodes.items() for b in node.peers}
        self.relayed = {(a, b): deque() for a in self.names for b in self.names if a != b}  # by the server
        self.queues |= self.relayed
        self.wanted = {}  # the rows that the server asked each party for
        self.cut = set()  # (a, b): a has yet to hear that its conversation with b restarted
        self.now, self.events, self.finished, self.records, self.story = 0, 0, "", [], []
        for node in self.nodes.values():
            self.keep(node)
            self.tell(node, Started(b""))
        for node in self.nodes.values():
            for peer in node.peers:
                self.tell(node, PeerJoined(peer))

    def keep(self, node):
        """A checkpoint, while trouble may still need it; the first one is that of a role that has not started."""
        if not self.moments:
            return
        node.saves.append(Save(state.pack(node.role.save()), dict(node.jobs), dict(node.timers)))
        if len(node.saves) > SAVES:
            del node.saves[1]

    def tell(self, node, event):
        self.story.append((node.role.name, event))
        self.perform(node, node.role.handle(event, self.now))
        node.role.validate()

    def perform(self, node, effects):
        name = node.role.name
        for effect in effects:
            match effect:
                case Send(to=to, message=message):
                    if isinstance(message, FreshRequest):
                        self.wanted[to] = message.rows
                    if (name, to) not in self.cut:
                        self.queues[name, to].append(Received(name, self.over_the_wire(message)))
                case Work(token=token):
                    assert token not in node.jobs, "a token twice"
                    assert effect.aside or all(job.aside for job in node.jobs.values()), "two jobs on the lane"
                    node.jobs[token] = effect
                case CancelWork(token=token):
                    del node.jobs[token]
                case SetTimer(name=timer, at=at):
                    node.timers[timer] = at
                case CancelTimer(name=timer):
                    node.timers.pop(timer, None)
                case Emit(record=record):
                    self.records.append(record)
                case Finish(reason=reason):
                    self.finished = reason

    def over_the_wire(self, message):
        return self.codec.decode(bytes(self.codec.encode(message)))

    # --- what happens next

    def possible(self):
        for pair, queue in self.queues.items():
            if queue:
                yield "message", pair
        for name, node in self.nodes.items():
            for token in node.jobs:
                yield "job", (name, token)
            for timer in node.timers:
                yield "timer", (name, timer)

    def step(self):
        self.events += 1
        self.now += 1_000_000
        choices = list(self.possible())
        if self.patient and self.draw.random() < 0.99:  # a sum takes a dozen messages: patience must outlast most
            choices = [choice for choice in choices if choice[0] != "timer"] or choices
        assert choices, f"hangs: {self.nodes['server'].role.summary()}"
        early = self.draw.random() < 0.02  # a deadline of fedvs is long, but it does end
        calm = [choice for choice in choices if choice[0] != "timer" or not choice[1][1].endswith("deadline")]
        kind, what = self.draw.choice(choices if early else calm or choices)
        if kind == "message":
            self.message(*what)
        elif kind == "job":
            node = self.nodes[what[0]]
            work = node.jobs.pop(what[1])
            self.tell(node, WorkDone(work.token, self.over_the_wire(node.role.compute(work.job))))
        else:
            node = self.nodes[what[0]]
            due = node.timers.pop(what[1])
            self.now = max(self.now, due)
            self.tell(node, TimerFired(what[1], due))
        if self.draw.random() < 0.3:
            self.keep(self.nodes[what[1] if kind == "message" else what[0]])

    def message(self, sender, receiver):
        event = self.queues[sender, receiver].popleft()
        if isinstance(event, PeerJoined):
            self.cut.discard((receiver, sender))
        match event:
            case Received(message=Embeddings(request=request, rows=rows)) if request:
                accepted = self.nodes["server"].role.state.asked.get(sender) == request
                assert not accepted or rows.tolist() == self.wanted[sender].tolist(), "an answer to something else"
        self.tell(self.nodes[receiver], event)

    # --- what goes wrong

    def roll_back(self, name):
        node = self.nodes[name]
        place = 0 if self.draw.random() < 0.1 else self.draw.randrange(len(node.saves))
        save = node.saves[place]
        del node.saves[place + 1 :]
        self.story.append((name, f"back to save {place}"))
        node.role.load(state.unpack(save.state))
        node.jobs, node.timers = dict(save.jobs), dict(save.timers)
        if place:
            assert node.role.handle(Resumed(b"%d" % self.events), self.now) == []
        else:
            self.cut |= {(name, peer) for peer in node.peers}
            self.tell(node, Started(b"%d" % self.events))
        for peer in node.peers:
            self.reset_conversation(name, peer)

    def reset_conversation(self, name, peer):
        """`name` knows of the restart at once, its peer later; the peer may have marked it as lost before."""
        lost = [PeerLost(name)] if self.draw.random() < 0.3 else []
        for pair, queue in self.relayed.items():
            if "server" not in (name, peer) or name in pair or peer in pair:
                queue.clear()
        self.queues[peer, name].clear()
        self.queues[name, peer] = deque([*lost, PeerJoined(name, reset=True)])
        self.cut.add((peer, name))
        self.cut.discard((name, peer))
        self.tell(self.nodes[name], PeerJoined(peer, reset=True))

    def overflow(self):
        """Both keep their memory but lose the messages between them."""
        pair = ["server", self.draw.choice(self.names)]
        self.draw.shuffle(pair)
        self.story.append((pair, "overflow"))
        self.reset_conversation(*pair)

    def trouble(self):
        if self.draw.random() < 0.3:
            self.overflow()
        else:
            self.roll_back(self.draw.choice(["server", *self.names]))

    def run(self):
        while not self.finished:
            assert self.events < MOST_EVENTS, "no end"
            if self.events in self.moments:
                self.trouble()
                self.moments.discard(self.events)
            self.step()


def check_end(world, protocol):
    server, *parties = (node.role for node in world.nodes.values())
    assert world.finished == "done" and server.k == UPDATES
    assert world.records[-1].update == UPDATES
    if world.patient:
        assert all(np.isfinite(party.estimator.w).all() for party in parties)
        return
    assert all(np.isfinite(role.network.theta.numpy()).all() for role in (server, *parties))
    if protocol.get("on_lost") == "wait" and "max_delay" in protocol:
        assert server.staleness.summary()["max"] <= protocol["max_delay"]
    if protocol["name"] in ("sync", "syn-zoo"):
        assert max(party.state.step for party in parties) >= server.state.round
    elif protocol["name"] in AVERAGING:
        assert server.state.round >= UPDATES - 1
    elif protocol["name"] in ("flex", "adaptive-flex", "sync-max"):
        assert max(party.state.round for party in parties) >= server.state.round


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_run_continues_when_any_role_loses_its_memory(variant, chunk):
    size = CHUNK // 3 if variant.startswith("fedvs") else CHUNK  # its rounds have many messages
    for seed in range(chunk * size, (chunk + 1) * size):
        world = World(VARIANTS[variant], seed)
        try:
            world.run()
            check_end(world, VARIANTS[variant])
        except Exception as error:
            last = [f"{name}: {event!r:.90}" for name, event in world.story[-25:]]
            error.add_note("\n".join([f"seed {seed}, after {world.events} events", *last]))
            raise


def test_the_schedules_have_something_of_everything():
    """The schedules contain every kind of fault; otherwise the tests above would prove little."""
    missing = {"back to save 0", "back to save 3", "overflow", "PeerLost", "Skip", "FreshRequest"}
    for seed, variant in product(range(CHUNK), ("sync", "max_delay")):
        missing -= set(kinds_of(variant, seed))
        if not missing:
            return
    raise AssertionError(f"no schedule has: {missing}")


def kinds_of(variant, seed):
    world = World(VARIANTS[variant], seed)
    world.run()
    for _, event in world.story:
        yield event if isinstance(event, str) else type(getattr(event, "message", event)).__name__
