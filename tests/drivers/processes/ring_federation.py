"""A federation whose parties talk to each other: tokens pass round a ring, and every party sends numbers to all others.

The relay's tests use it in one process and in the simulator. Run as a script, it is one member:

    python ring_federation.py FOLDER server|NAME
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import numpy as np

from colonnade.drivers.processes.certificates import Identity, read_members
from colonnade.drivers.processes.dial import Dialler
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import PROTOCOL, Bye, End, Hello
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Finish, PeerJoined, PeerLost, Received, Send, SetTimer, Started, TimerFired
from colonnade.protocol.messages import Array, Message

PARTIES = ("bank", "clinic", "lab")
PRIME = 2**31 - 1


class Token(Message, frozen=True):
    number: int
    hop: int
    values: Array


class Lap(Message, frozen=True):
    number: int
    hop: int


class Result(Message, frozen=True):
    number: int
    values: Array


class Numbered(Message, frozen=True):
    number: int
    padding: bytes = b""


PAYLOADS = (Token, Lap, Result, Numbered)


class Plain:
    """The common part of all roles here: their state is `kept`, and they compute nothing."""

    saved_names: tuple[str, ...] = ()

    def compute(self, job):
        raise NotImplementedError

    def save(self):
        return {name: getattr(self, name) for name in self.saved_names}

    def load(self, saved):
        for name in self.saved_names:
            setattr(self, name, saved[name])

    def validate(self):
        pass

    def summary(self):
        return {"weights": ""}


class RingServer(Plain):
    """Takes the results and ends when it has them all."""

    name = "server"
    saved_names = ("results", "laps")

    def __init__(self, tokens):
        self.tokens, self.results, self.laps = tokens, {}, 0

    def handle(self, event, now):
        match event:
            case Received(message=Lap()):
                self.laps += 1
            case Received(message=Result(number=number, values=values)):
                assert str(number) not in self.results, "a result came twice"
                self.results[str(number)] = values.tolist()
                return [Finish("finished")] if len(self.results) == self.tokens else []
        return []


class RingParty(Plain):
    """Changes each token in its own way and passes it on after a while; each party starts one token."""

    saved_names = ("hops", "waiting", "joined", "lost")

    def __init__(self, name, parties, hops, delay_ns=0):
        self.name, self.parties, self.limit, self.delay_ns = name, parties, hops, delay_ns
        self.index = parties.index(name)
        self.next = parties[(self.index + 1) % len(parties)]
        self.hops, self.waiting, self.joined, self.lost = [], {}, [], []

    def handle(self, event, now):
        match event:
            case Started():
                return [Send(self.next, Token(self.index, 1, np.arange(5) + self.index))]
            case Received(message=Token(number=number, hop=hop, values=values)):
                self.hops.append([number, hop])
                values = (values * 48271 + self.index) % PRIME
                self.waiting[str(number)] = [hop, values.tolist()]
                return [SetTimer(str(number), now + self.delay_ns)]
            case TimerFired(name=number):
                return self._pass_on(int(number), *self.waiting.pop(number))
            case PeerJoined(peer=peer):
                self.joined.append(peer)
            case PeerLost(peer=peer):
                self.lost.append(peer)
        return []

    def _pass_on(self, number, hop, values):
        values = np.array(values)
        if hop == self.limit:
            return [Send("server", Result(number, values))]
        return [Send(self.next, Token(number, hop + 1, values)), Send("server", Lap(number, hop))]


def ring(parties=PARTIES, hops=30, delay_ns=0):
    """All roles."""
    return [RingServer(len(parties)), *(RingParty(name, parties, hops, delay_ns) for name in parties)]


class Talker(Plain):
    """Sends `count` numbers to each of its peers, `burst` at every tick, and stores what it hears."""

    saved_names = ("sent", "heard", "events")

    def __init__(self, name, peers, count, burst=1, padding=b"", tick_ns=500_000):
        self.name, self.peers, self.count, self.burst = name, tuple(peers), count, burst
        self.padding, self.tick_ns = padding, tick_ns
        self.sent, self.heard, self.events = 0, {}, []

    def handle(self, event, now):
        match event:
            case Started():
                return [SetTimer("tick", now + self.tick_ns)]
            case TimerFired():
                numbers = range(self.sent + 1, min(self.sent + self.burst, self.count) + 1)
                self.sent += len(numbers)
                sends = [Send(to, Numbered(number, self.padding)) for number in numbers for to in self.peers]
                return sends + ([SetTimer("tick", now + self.tick_ns)] if self.sent < self.count else [])
            case Received(sender=sender, message=Numbered(number=666)):
                raise RemoteProtocolError(sender, "sent the number of the beast")
            case Received(sender=sender, message=message):
                self.heard.setdefault(sender, []).append(message.number)
            case PeerJoined(peer=peer, reset=reset):
                self.events.append(f"{peer} joined{' after a reset' * reset}")
            case PeerLost(peer=peer):
                self.events.append(f"{peer} lost")
        return []


# One member as a process


def identity(folder, name):
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def hello(instance, position):
    return Hello(PROTOCOL, "test", {}, 1, "", 1, "float32", instance, position)


LIMITS = Limits(heartbeat_s=0.5, lost_after_s=30.0, checkpoint_s=0.5)


async def serve(folder, roles):
    node = Node(roles[0], PAYLOADS, folder / "server", PARTIES, LIMITS, Log("server"))
    node.open()
    certificates = folder / "certificates"
    members = read_members(certificates / "members.toml")

    def status():
        return {"laps": node.role.laps, "here": sum(peer.stream is not None for peer in node.peers.values())}

    service = Service(node, identity(certificates, "server"), members, lambda *_: None, status, run="a run", relay=True)
    place = folder / "address"
    address = await service.start(place.read_text() if place.exists() else "127.0.0.1:0")
    place.write_text(address)
    watch = asyncio.ensure_future(node.watch())
    await node.ended.wait()
    watch.cancel()
    if node.error is not None:
        raise node.error
    await service.stop(End("finished"))
    node.close()
    (folder / "result.json").write_text(json.dumps(node.role.results))


async def join(folder, roles, name):
    role = next(role for role in roles if role.name == name)
    others = [other for other in PARTIES if other != name]
    node = Node(role, PAYLOADS, folder / name, ["server"], LIMITS, Log(name), far=others)
    node.open()
    certificates = folder / "certificates"
    own = identity(certificates, name)
    switchboard = Switchboard(node, own, read_members(certificates / "members.toml"))
    address = (folder / "address").read_text()
    dialler = Dialler(node, own, address, hello, lambda end: Bye("", 0.0), switchboard=switchboard)
    watch = asyncio.ensure_future(node.watch())
    await dialler.run()
    watch.cancel()
    node.close()
    (folder / f"{name}.json").write_text(json.dumps(role.hops))


def main():
    folder, name = Path(sys.argv[1]), sys.argv[2]
    roles = ring(hops=int(os.environ["RING_HOPS"]), delay_ns=int(os.environ["RING_DELAY_NS"]))
    asyncio.run(serve(folder, roles) if name == "server" else join(folder, roles, name))


if __name__ == "__main__":
    main()
