"""Parties that talk through the server: every message arrives once and in order, and the server learns nothing."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.drivers.processes import dial, sealed_line, session_agreement
from colonnade.drivers.processes.certificates import read_members, throw_away
from colonnade.drivers.processes.dial import Dialler, ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.peer import FarPeer
from colonnade.drivers.processes.relay import Relay, Room
from colonnade.drivers.processes.sealed_line import ANSWER, OPENING, SEALED
from colonnade.drivers.processes.sealing import Announcement, Session, Signet
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import (
    RELAY_BYTES,
    Bye,
    Kind,
    Position,
    Welcome,
    open_envelope,
    read_relay,
    relay,
    seal_envelope,
)
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator.clock import ClockConfig
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError

from ...starting import Popen

SCRIPT = Path(__file__).with_name("ring_federation.py")


def load_ring():
    spec = importlib.util.spec_from_file_location("ring_federation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ring = load_ring()
PARTIES = ring.PARTIES
BRISK = Limits(checkpoint_s=1e6, lost_after_s=0.8, heartbeat_s=0.1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(PARTIES, folder)
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(dial, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(sealed_line, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(sealed_line, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(session_agreement, "BURST_S", 0.5)


class Town:
    """A service, a relay and diallers in one event loop; `roles` makes a role from its name."""

    def __init__(self, tools, certificates, folder, roles, limits):
        self.tools, self.certificates, self.folder, self.roles, self.limits = (
            tools, certificates, folder, roles, limits
        )  # fmt: skip
        self.nodes, self.tasks, self.boards, self.watches = {}, {}, {}, []
        self.members = read_members(certificates / "members.toml")

    def open_node(self, name, peers, far=()):
        node = self.tools.make_node(self.roles(name), ring.PAYLOADS, self.folder / name, peers, self.limits, far=far)
        node.open()
        self.nodes[name] = node
        self.watches.append(asyncio.ensure_future(node.watch()))
        return node

    async def open_service(self, address="127.0.0.1:0"):
        node = self.open_node("server", PARTIES)
        own = ring.identity(self.certificates, "server")
        self.service = Service(node, own, self.members, lambda *_: None, dict, run="a run", relay=True)
        self.address = await self.service.start(address)

    def dial(self, name):
        node = self.open_node(name, ["server"], [other for other in PARTIES if other != name])
        own = ring.identity(self.certificates, name)
        board = self.boards[name] = Switchboard(node, own, self.members)
        dialler = Dialler(node, own, self.address, ring.hello, lambda end: Bye("", 0.0), switchboard=board)
        self.tasks[name] = asyncio.ensure_future(dialler.run())

    async def hang_up(self, name):
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def kill_party(self, name):
        await self.hang_up(name)
        self.tools.kill(self.nodes.pop(name))

    async def kill_server(self):
        await self.service.hang_up()
        await asyncio.sleep(0)
        self.tools.kill(self.nodes.pop("server"))

    def role(self, name):
        return self.nodes[name].role

    def lines(self):
        return [self.boards[name].lines[other] for name in self.tasks for other in self.boards[name].lines]

    def all_heard(self, count):
        heard = {name: self.role(name).heard for name in PARTIES}
        return all(len(heard[one].get(other, [])) >= count for one in PARTIES for other in PARTIES if one != other)

    def assert_each_once(self, count, reset=False):
        for one in PARTIES:
            for other in PARTIES:
                if one != other:
                    assert self.role(one).heard[other] == list(range(1, count + 1)), (one, other)
            assert reset or not any("reset" in event for event in self.role(one).events)
            assert not self.tasks[one].done()


@contextlib.asynccontextmanager
async def town(tools, certificates, folder, roles, limits=None, dialled=PARTIES):
    made = Town(tools, certificates, folder, roles, limits or tools.CALM)
    await made.open_service()
    try:
        for name in dialled:
            made.dial(name)
        yield made
    finally:
        for watch in made.watches:
            watch.cancel()
        for name in made.tasks:
            await made.hang_up(name)
        await made.service.hang_up()
        for node in made.nodes.values():
            node.close()


def talkers(count, burst=1, **settings):
    def make(name):
        others = [other for other in PARTIES if other != name]
        to = [] if name == "server" else [*others, "server"]
        return ring.Talker(name, to, count, burst, **settings)

    return make


def run(coroutine, seconds=60):
    asyncio.run(asyncio.wait_for(coroutine, seconds))


# What arrives


def test_all_parties_hear_each_other_once_and_in_order(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(300, burst=7)) as made:
            await tools.until(lambda: made.all_heard(300), "all messages")
            made.assert_each_once(300)
            assert all(made.role("server").heard[name] == list(range(1, 301)) for name in PARTIES)
            outboxes = [peer.conversation for node in made.nodes.values() for peer in node.peers.values()]
            await tools.until(lambda: not any(one.outbox for one in outboxes), "the last acknowledgements")
            assert all(board.refusals == 0 and board.flying == 0 for board in made.boards.values())
            assert made.service.relay.dropped == 0 and set(made.service.relay.held.values()) == {0}

    run(go())


def test_both_drivers_give_the_same_result(certificates, tmp_path, tools):
    roles = ring.ring(hops=40)
    simulator = Simulator(roles, Codec(ring.PAYLOADS), ClockConfig(), 0, peers=True)
    assert simulator.run() == "finished"
    made_by = {role.name: role for role in ring.ring(hops=40)}

    async def go():
        async with town(tools, certificates, tmp_path, made_by.__getitem__) as made:
            await tools.until(lambda: made.nodes["server"].finished, "the results")
            for role in roles:
                if role.name != "server":
                    assert sorted(made.role(role.name).hops) == sorted(role.hops)
            assert made.role("server").results == roles[0].results and len(roles[0].results) == len(PARTIES)
            parties = [made.nodes[name].traffic for name in PARTIES]
            assert sum(one.by_kind["Token"][1] for one in parties) == simulator.traffic.by_kind["Token"][1]
            assert sum(one.bytes_relayed for one in parties) == simulator.traffic.bytes_relayed > 0
            server = made.nodes["server"].traffic
            assert server.by_kind["relayed"][1] == server.bytes_relayed > simulator.traffic.bytes_relayed
            assert server.bytes_up == simulator.traffic.bytes_up

    run(go())


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_that_break_lose_nothing(seed, certificates, tmp_path, tools):
    chance, count = random.Random(seed), 600

    async def go():
        async with town(tools, certificates, tmp_path, talkers(count, burst=3)) as made:
            drops = 0
            while not made.all_heard(count):
                assert not any(task.done() for task in made.tasks.values())
                streams = [peer.stream for peer in made.nodes["server"].peers.values() if peer.stream is not None]
                if drops < 20 and streams and chance.random() < 0.3:
                    chance.choice(streams).drop("the test cut it")
                    drops += 1
                await asyncio.sleep(0.005)
            assert drops > 5
            made.assert_each_once(count)

    run(go())


def test_parties_and_the_server_are_killed_and_nothing_is_lost_or_doubled(certificates, tmp_path, tools):
    chance, count = random.Random(3), 300

    async def go():
        async with town(tools, certificates, tmp_path, talkers(count)) as made:
            for round in range(7):
                await tools.until(lambda round=round: made.role("lab").sent >= 35 * (round + 1), "the laboratory")
                if round in (2, 5):
                    await made.kill_server()
                    await asyncio.sleep(0.05)
                    await made.open_service(made.address)
                else:
                    name = chance.choice(PARTIES)
                    await made.kill_party(name)
                    await asyncio.sleep(0.02)
                    made.dial(name)
            await tools.until(lambda: made.all_heard(count), "all messages")
            made.assert_each_once(count)

    run(go())


def test_a_party_that_lost_its_folder_restarts_all_conversations(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(60)) as made:
            await tools.until(lambda: made.all_heard(60), "all messages")
            await made.kill_party("bank")
            (tmp_path / "bank").rename(tmp_path / "bank before")
            made.dial("bank")
            everybody = ["clinic joined after a reset", "lab joined after a reset", "server joined after a reset"]
            await tools.until(lambda: sorted(made.role("bank").events) == everybody, "the new bank")
            made.nodes["bank"]._perform(ring.Send("lab", ring.Numbered(77)))
            await tools.until(lambda: 77 in made.role("lab").heard["bank"], "what it says then")
            for name in ("clinic", "lab"):
                assert made.role(name).events.count("bank joined after a reset") == 1
            assert made.role("clinic").heard["lab"] == list(range(1, 61)), "nobody else notices"
            assert "lab joined after a reset" not in made.role("clinic").events

    run(go())


def test_a_party_with_an_old_copy_of_its_folder_restarts_the_conversations_it_has_forgotten(
    certificates, tmp_path, tools
):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(40)) as made:
            await tools.until(lambda: made.all_heard(40), "all messages")
            await made.kill_party("lab")
            shutil.copytree(tmp_path / "lab", tmp_path / "copy")
            made.dial("lab")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            made.nodes["bank"]._perform(ring.Send("lab", ring.Numbered(41)))
            await tools.until(lambda: not made.nodes["bank"].peers["lab"].conversation.outbox, "its arrival")
            await made.kill_party("lab")
            shutil.rmtree(tmp_path / "lab")
            shutil.move(tmp_path / "copy", tmp_path / "lab")
            made.dial("lab")
            await tools.until(lambda: "lab joined after a reset" in made.role("bank").events, "the bank's noticing")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            assert "bank joined after a reset" in made.role("lab").events
            assert "clinic joined after a reset" not in made.role("lab").events, "with the clinic nothing is missing"
            made.nodes["bank"]._perform(ring.Send("lab", ring.Numbered(42)))
            await tools.until(lambda: made.role("lab").heard["bank"] == [*range(1, 41), 42], "what is said then")

    run(go())


def test_flooding_a_party_that_is_away_restarts_the_conversation_instead_of_growing(certificates, tmp_path, tools):
    limits = Limits(max_queue=20, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)

    async def go():
        roles = talkers(100)
        async with town(tools, certificates, tmp_path, roles, limits, dialled=("bank", "clinic")) as made:
            await tools.until(lambda: made.role("bank").sent == made.role("clinic").sent == 100, "their messages")
            for name in ("bank", "clinic"):
                conversation = made.nodes[name].peers["lab"].conversation
                assert len(conversation.outbox) <= 20 and conversation.lost > 0
            made.dial("lab")
            for name in ("bank", "clinic"):
                await tools.until(lambda name=name: "lab joined after a reset" in made.role(name).events, name)
                assert made.nodes[name].peers["lab"].conversation.lost >= 80

    run(go())


@pytest.mark.parametrize("giver", ["bank", "lab"])
def test_a_conversation_given_up_while_both_are_here_restarts(giver, certificates, tmp_path, tools):
    """Either side of the line may give up."""

    async def go():
        async with town(tools, certificates, tmp_path, talkers(50)) as made:
            await tools.until(lambda: made.all_heard(50), "all messages")
            other = "lab" if giver == "bank" else "bank"
            node = made.nodes[giver]
            node._give_up(node.peers[other])
            await tools.until(
                lambda: f"{giver} joined after a reset" in made.role(other).events, "the other's being told"
            )
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            assert f"{other} joined after a reset" in made.role(giver).events
            node._perform(ring.Send(other, ring.Numbered(77)))
            await tools.until(lambda: 77 in made.role(other).heard[giver], "what is said then")

    run(go())


def test_large_messages_among_all_do_not_overflow_the_relay(certificates, tmp_path, tools):
    limits = Limits(max_message_mb=1.0, checkpoint_s=1e6, max_log_mb=1e3, lost_after_s=1e6, heartbeat_s=1e5)

    async def go():
        roles = talkers(12, burst=12, padding=bytes(900_000))
        async with town(tools, certificates, tmp_path, roles, limits) as made:
            made.service.relay.room = Room(limits, 3)
            for board in made.boards.values():
                board.room.sender, board.room.pair = 2 * board.room.largest, board.room.largest
            await tools.until(lambda: made.all_heard(12), "all messages")
            made.assert_each_once(12)
            assert made.service.relay.dropped == 0

    run(go())


def test_the_largest_message_passes_and_a_larger_one_is_not_even_sent(certificates, tmp_path, tools):
    limits = Limits(max_message_mb=0.5, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)

    async def go():
        async with town(tools, certificates, tmp_path, talkers(0), limits) as made:
            bank = made.nodes["bank"]
            room = limits.max_message_bytes - bank._wire.encode(ring.Numbered(1)).size
            largest = max(size for size in range(room - 16, room + 16) if fits(bank, ring.Numbered(1, bytes(size))))
            bank._perform(ring.Send("lab", ring.Numbered(1, bytes(largest))))
            await tools.until(lambda: made.role("lab").heard.get("bank") == [1], "the largest message")
            with pytest.raises(LocalProtocolError, match="send fewer rows"):
                bank._perform(ring.Send("lab", ring.Numbered(2, bytes(largest + 16))))
            assert made.service.relay.dropped == 0 and RELAY_BYTES >= 2 * 24 + 1 + 63 + 1 + 32

    run(go())


def fits(node, message):
    try:
        return node._wire.encode(message).size <= node.limits.max_message_bytes
    except LocalProtocolError:
        return False


def test_evaluation_between_parties_is_counted_apart_and_once(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(0)) as made:
            await tools.until(lambda: len(made.lines()) == 6 and all(one.stands for one in made.lines()), "the lines")
            bank, clinic = made.nodes["bank"], made.nodes["clinic"]
            bank._perform(ring.Send("clinic", ring.Numbered(5), evaluation=True))
            bank._perform(ring.Send("clinic", ring.Numbered(6)))
            await tools.until(lambda: made.role("clinic").heard.get("bank") == [5, 6], "both")
            size = bank._wire.encode(ring.Numbered(6)).size
            assert bank.traffic.evaluation_bytes == size
            assert bank.traffic.by_kind == {"Numbered": [1, size]} and bank.traffic.bytes_relayed == size
            assert bank.traffic.bytes_down == size and bank.traffic.bytes_up == 0 and bank.traffic.messages == 1
            assert clinic.traffic.messages == clinic.traffic.evaluation_bytes == clinic.traffic.bytes_relayed == 0
            assert clinic.peers["bank"].bytes_in > size

    run(go())


# Which parties are present


def test_a_party_that_vanishes_is_lost_to_the_others_and_comes_back(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(20), BRISK) as made:
            await tools.until(lambda: made.all_heard(20), "all messages")
            await made.kill_party("clinic")
            for name in ("bank", "lab"):
                await tools.until(lambda name=name: "clinic lost" in made.role(name).events, f"{name}'s noticing")
            made.dial("clinic")
            for name in ("bank", "lab"):
                await tools.until(lambda name=name: made.role(name).events.count("clinic joined") == 2, name)
                assert "server lost" not in made.role(name).events
            assert "bank lost" not in made.role("lab").events
            made.assert_each_once(20)

    run(go())


def test_a_silent_party_is_lost_to_all_at_about_the_same_time(certificates, tmp_path, tools):
    """The server tells how long a party has been silent, so the others do not wait that long again."""

    async def go():
        async with town(tools, certificates, tmp_path, talkers(5)) as made:
            await tools.until(lambda: made.all_heard(5), "all messages")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            clinic = made.nodes["server"].peers["clinic"]
            clinic.last_heard -= 2 * tools.CALM.lost_after_s
            made.tasks["clinic"].cancel()
            made.nodes["server"].look_around()
            await tools.until(lambda: not made.nodes["bank"].peers["clinic"].here, "the news")
            made.nodes["bank"].look_around()
            assert made.role("bank").events[-1] == "clinic lost"

    run(go())


def test_without_the_server_all_are_lost_and_with_it_all_are_back(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(20), BRISK) as made:
            await tools.until(lambda: made.all_heard(20), "all messages")
            await made.kill_server()
            for name in PARTIES:
                gone = {f"{other} lost" for other in (*PARTIES, "server") if other != name}
                await tools.until(lambda name=name, gone=gone: gone <= set(made.role(name).events), name)
            await made.open_service(made.address)
            for name in PARTIES:
                back = {other for other in (*PARTIES, "server") if other != name}
                await tools.until(
                    lambda name=name, back=back: all(made.nodes[name].peers[other].present for other in back), name
                )
            made.assert_each_once(20)

    run(go())


def test_the_simulator_tells_parties_of_each_other_too():
    def events(peers):
        roles = [ring.Talker("server", [], 0), *(ring.Talker(name, [], 0) for name in PARTIES)]
        fault = {"party": "clinic", "kind": "offline", "at_s": 1.0, "until_s": 5.0}
        clock = msgspec.convert({"faults": [fault], "lost_after_s": 1.0}, ClockConfig)
        Simulator(roles, Codec(ring.PAYLOADS), clock, 0, peers=peers).run()
        return {role.name: role.events for role in roles}

    apart, together = events(False), events(True)
    assert apart["bank"] == ["server joined"] and apart["server"][-2:] == ["clinic lost", "clinic joined"]
    assert sorted(together["bank"][:3]) == ["clinic joined", "lab joined", "server joined"]
    assert together["bank"][3:] == ["clinic lost", "clinic joined"] and together["server"] == apart["server"]


# The relay is curious


MARK = b"this is what the bank knows of its customers, and nobody else may"


def test_a_curious_relay_recovers_nothing(certificates, tmp_path, tools, monkeypatch):
    passed = []
    forward = Relay.forward

    def record(self, sender, body):
        passed.append((sender, *read_relay(body, sender)))
        forward(self, sender, body)

    monkeypatch.setattr(Relay, "forward", record)

    def roles(name):
        others = [other for other in PARTIES if "server" not in (name, other) and other != name]
        return ring.Talker(name, others, 30, padding=MARK)

    async def go():
        async with town(tools, certificates, tmp_path, roles) as made:
            await tools.until(lambda: made.all_heard(30), "all messages")

    run(go())
    assert MARK in (tmp_path / "bank" / "journal-0.log").read_bytes(), "so the next assertion can fail"
    assert not any(MARK[:8] in path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    kinds = {bytes(content[:1]) for _, _, content in passed}
    assert kinds == {OPENING, ANSWER, SEALED}
    for _, _, content in passed:
        for secret in (MARK[:8], b"Numbered", b"padding", b"PRIVATE"):
            assert secret not in bytes(content)
    sealed = [(sender, to, bytes(content[1:])) for sender, to, content in passed if content[:1] == SEALED]
    assert len(sealed) >= 180 and len({frame for *_, frame in sealed}) == len(sealed)
    assert_no_key_opens(passed, sealed)


def assert_no_key_opens(passed, sealed):
    """The relay's own key opens no frame with any key that it saw, and no session opens another's frames."""
    announced = [
        msgspec.msgpack.decode(content[1:], type=Announcement) for *_, content in passed if content[:1] != SEALED
    ]
    for found in announced:
        for sender, to, frame in sealed[:20]:
            for initiator in (True, False):
                own = Session(to, sender, "a run", X25519PrivateKey.generate(), found.key, initiator=initiator)
                with pytest.raises(RemoteProtocolError, match="cannot be decrypted"):
                    own.open(own.id + frame[8:])


# The relay is dishonest


class Mischief:
    """Changes passing messages for a while; parties must not accept them, and must lose only time."""

    def __init__(self, kind, certificates):
        self.kind, self.count, self.stored, self.on = kind, 0, [], True
        self.limit = 30 if kind == "swaps_keys" else 400
        self.forger = ring.identity(certificates, "server")

    def __call__(self, relayer, sender, body, honestly):
        to, content = read_relay(body, sender)
        content, self.count = bytes(content), self.count + 1
        sealed = content[:1] == SEALED
        if not self.on or self.count > self.limit:
            return honestly(relayer, sender, body)
        for name, frame in getattr(self, self.kind)(sender, to, content, sealed):
            outlet = relayer.outlets.get(to if name is None else name[1])
            if outlet is not None:
                outlet.put(sender if name is None else name[0], relay(sender if name is None else name[0], frame))
        return None

    def flips_bits(self, sender, to, content, sealed):
        if self.count % 5 == 0:
            place = self.count * 7919 % len(content)
            content = content[:place] + bytes([content[place] ^ 1 << self.count % 8]) + content[place + 1 :]
        return [(None, content)]

    def repeats(self, sender, to, content, sealed):
        self.stored.append(content)
        return [(None, content), (None, content), (None, self.stored[self.count // 2] if sealed else content)]

    def reorders(self, sender, to, content, sealed):
        self.stored.append((sender, to, content))
        if len(self.stored) < 4:
            return []
        held, self.stored = self.stored[::-1], []
        return [((one, other), frame) for one, other, frame in held]

    def redirects(self, sender, to, content, sealed):
        third = next(name for name in PARTIES if name not in (sender, to))
        return [(None, content), ((sender, third), content), ((third, to), content), ((to, sender), content)]

    def loses(self, sender, to, content, sealed):
        return [] if self.count % 7 == 0 else [(None, content)]

    def cuts(self, sender, to, content, sealed):
        return [(None, content[: self.count % len(content)])] if self.count % 6 == 0 else [(None, content)]

    def swaps_keys(self, sender, to, content, sealed):
        """A man in the middle: its own key instead of the announced one, or also its own certificate."""
        if sealed or self.count % 3 == 0:
            return [(None, content)]
        found = msgspec.msgpack.decode(content[1:], type=Announcement)
        key = X25519PrivateKey.generate().public_key().public_bytes_raw()
        if self.count % 2:
            return [(None, content[:1] + msgspec.msgpack.encode(msgspec.structs.replace(found, key=key)))]
        signet = Signet(self.forger, {})
        signet.run = "a run"
        return [(None, content[:1] + signet.announce(to, key, found.answers))]


KINDS = ["flips_bits", "repeats", "reorders", "redirects", "loses", "cuts", "swaps_keys"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dishonest_relay_is_not_believed(kind, certificates, tmp_path, tools, monkeypatch):
    mischief = Mischief(kind, certificates)
    forward = Relay.forward
    monkeypatch.setattr(Relay, "forward", lambda self, sender, body: mischief(self, sender, body, forward))

    async def go():
        async with town(tools, certificates, tmp_path, talkers(120), BRISK) as made:
            await tools.until(lambda: mischief.count > mischief.limit or made.all_heard(120), "the mischief")
            mischief.on = False
            await tools.until(lambda: made.all_heard(120), "all messages")
            made.assert_each_once(120)
            refused = sum(board.refusals + board.stale for board in made.boards.values())
            assert refused > 0 or kind == "loses"
            assert "server lost" not in made.role("bank").events

    run(go())


def test_what_was_recorded_before_a_restart_is_worth_nothing_after_it(certificates, tmp_path, tools, monkeypatch):
    recorded = []
    forward = Relay.forward

    def record(self, sender, body):
        recorded.append((sender, bytes(body)))
        forward(self, sender, body)

    monkeypatch.setattr(Relay, "forward", record)

    async def go():
        async with town(tools, certificates, tmp_path, talkers(40)) as made:
            await tools.until(lambda: made.all_heard(40), "all messages")
            before = list(recorded)
            for name in ("lab", "bank"):
                await made.kill_party(name)
                made.dial(name)
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            sessions = [one.agreement.session for one in made.lines()]
            for sender, body in before:
                forward(made.service.relay, sender, memoryview(body))
                await asyncio.sleep(0.001)
            await tools.until(lambda: made.boards["lab"].stale > 60, "their being dropped")
            made.assert_each_once(40)
            assert [one.agreement.session for one in made.lines()] == sessions and all(
                one.stands for one in made.lines()
            )

    run(go())


# A party is hostile


def test_a_party_that_sends_garbage_loses_its_line_and_the_others_lose_nothing(certificates, tmp_path, tools):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(20), BRISK) as made:
            await tools.until(lambda: made.all_heard(20), "all messages")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            one = made.boards["bank"].lines["clinic"]
            one._say(one.agreement.session, seal_envelope(Kind.MESSAGE, 21, 0, b"garbage"))
            await tools.until(lambda: made.boards["clinic"].refusals, "the clinic's refusal")
            assert not made.boards["clinic"].lines["bank"].stands
            await tools.until(lambda: "bank lost" in made.role("clinic").events, "its loss")
            for name in ("clinic", "lab"):
                assert "server lost" not in made.role(name).events
            assert "bank lost" not in made.role("lab").events and made.role("clinic").heard["bank"][-1] == 20
            made.nodes["server"].peers["bank"].stream.drop("to begin again")
            await tools.until(lambda: made.boards["clinic"].lines["bank"].stands, "its coming back")

    run(go())


def test_whatever_bytes_come_in_a_partys_name_are_dropped(certificates, tmp_path, tools):
    chance = random.Random(5)

    async def go():
        async with town(tools, certificates, tmp_path, talkers(5)) as made:
            await tools.until(lambda: made.all_heard(5), "all messages")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            for receiver, sender in (("bank", "lab"), ("lab", "bank")):
                id = made.boards[receiver].lines[sender].agreement.session.id
                for kind in (b"", OPENING, ANSWER, SEALED, SEALED + id, b"\0"):
                    for _ in range(100):
                        frame = relay(sender, kind, chance.randbytes(chance.randrange(200)))
                        made.boards[receiver].take(open_envelope(frame, "server"))
                assert made.boards[receiver].refusals > 300
            assert all(one.stands for one in made.lines()) and not any(task.done() for task in made.tasks.values())
            assert len(made.nodes["bank"].log.stream.getvalue().splitlines()) < 300, "it is not logged each time"
            with pytest.raises(RemoteProtocolError, match="server: relays a frame without a sender"):
                made.boards["bank"].take(open_envelope(relay("nobody", b""), "server"))

    run(go())


@pytest.mark.parametrize(("sender", "receiver"), [("bank", "lab"), ("lab", "bank")])  # the bank opens the line
def test_what_a_role_refuses_is_not_taken_and_both_begin_a_new_conversation(
    sender, receiver, certificates, tmp_path, tools
):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(5)) as made:
            await tools.until(lambda: made.all_heard(5), "all messages")
            made.nodes[sender]._perform(ring.Send(receiver, ring.Numbered(666)))
            for one, other in ((sender, receiver), (receiver, sender)):
                await tools.until(lambda a=one, b=other: f"{b} joined after a reset" in made.role(a).events, "a reset")
            made.nodes[sender]._perform(ring.Send(receiver, ring.Numbered(7)))
            await tools.until(lambda: made.role(receiver).heard[sender][-1] == 7, "the next message")
            assert made.role(receiver).heard[sender] == [1, 2, 3, 4, 5, 7] and made.boards[receiver].refusals == 1
            for name, words in ((receiver, "refused a relayed frame"), (sender, "a party refused a message")):
                assert words in (log := made.nodes[name].log.stream.getvalue()) and "number of the beast" in log
            assert made.nodes[sender].peers[receiver].conversation.received == 0
            assert made.nodes[receiver].error is None and not any(task.done() for task in made.tasks.values())

    run(go())


def test_a_party_that_another_refused_too_often_is_lost_to_it_and_the_line_stays_shut(certificates, tmp_path, tools):
    async def go():
        limits = dataclasses.replace(tools.CALM, max_refusals=2)
        async with town(tools, certificates, tmp_path, talkers(5), limits) as made:
            await tools.until(lambda: made.all_heard(5), "all messages")
            lab, events = made.nodes["lab"], made.role("bank").events
            for count in (1, 2):
                made.nodes["bank"]._perform(ring.Send("lab", ring.Numbered(666)))
                await tools.until(lambda n=count: lab.peers["bank"].standing.refused == n, "a refusal")
                await tools.until(lambda n=count: n == 2 or "lab joined after a reset" in events, "a reset")
            assert lab.role.events[-1] == "bank lost"
            await made.kill_party("bank")
            made.dial("bank")
            await tools.until(lambda: "lab" in made.boards["bank"]._connections, "its return")
            made.nodes["clinic"]._perform(ring.Send("lab", ring.Numbered(7)))
            await tools.until(lambda: lab.role.heard["clinic"][-1] == 7, "a message of another party")
            assert lab.role.events[-1] == "bank lost" and not made.boards["lab"].lines["bank"].stands

    run(go())


def test_a_bad_number_or_a_bad_acknowledgement_does_not_end_a_node(certificates, tmp_path, tools):
    """Messages that the peer itself sealed, but that no honest peer would send."""

    async def go():
        async with town(tools, certificates, tmp_path, talkers(5)) as made:
            await tools.until(lambda: made.all_heard(5), "all messages")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            here, there = made.boards["lab"].lines["bank"], made.boards["bank"].lines["lab"]
            there._close()  # as if it had just greeted
            word = msgspec.msgpack.encode(Welcome(True, Position(2**63, 0, 0, 0)))
            here._say(here.agreement.session, seal_envelope(Kind.WELCOME, there._greetings, 0, word))
            await tools.until(lambda: made.boards["bank"].refusals == 1, "a refusal")
            other = made.boards["clinic"].lines["lab"]
            other._say(other.agreement.session, seal_envelope(Kind.ACK, 0, 2**64 - 1))
            await tools.until(lambda: made.boards["lab"].refusals == 1, "another")
            assert all(node.error is None for node in made.nodes.values())
            assert not any(task.done() for task in made.tasks.values())

    run(go())


def test_a_flood_of_openings_is_not_answered(certificates, tmp_path, tools, monkeypatch):
    async def go():
        async with town(tools, certificates, tmp_path, talkers(20)) as made:
            await tools.until(lambda: made.all_heard(20), "all messages")
            await tools.until(lambda: all(one.stands for one in made.lines()), "the lines")
            monkeypatch.setattr(session_agreement, "BURST_S", 1e6)
            here, there = made.boards["bank"].lines["lab"], made.boards["lab"].lines["bank"]
            session = there.agreement.session
            for _ in range(30):
                key = X25519PrivateKey.generate().public_key().public_bytes_raw()
                here._say(None, OPENING + here.agreement.signet.announce("lab", key))
                await asyncio.sleep(0.005)
            await tools.until(lambda: made.boards["lab"].refusals >= 15, "refusals")
            assert there.stands and there.agreement.session is session, "the session in use stays"

    run(go())


def test_a_flood_over_the_relay_keeps_no_party_from_talking(certificates, tmp_path, tools):
    async def flood(made, most):
        stream, room = made.nodes["bank"].peers["server"].stream, made.service.relay.room
        while not stream.dropped.done():
            if stream._writer.ready:
                stream._writer.write(relay("lab", SEALED, bytes(20_000)))
            most.append(made.service.relay.held["bank"] / room.sender)
            await asyncio.sleep(0)

    async def go():
        most = []
        async with town(tools, certificates, tmp_path, talkers(200, burst=2)) as made:
            await tools.until(lambda: made.nodes["bank"].peers["server"].stream is not None, "the bank")
            task = asyncio.ensure_future(flood(made, most))
            pairs = [("lab", "clinic"), ("clinic", "lab"), ("clinic", "bank")]
            await tools.until(
                lambda: all(len(made.role(one).heard.get(other, [])) == 200 for one, other in pairs), "the others"
            )
            await tools.until(lambda: len(made.role("server").heard.get("clinic", [])) == 200, "the server")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert len(most) > 50 and max(most) <= 1
            assert not any("lost" in event for name in ("clinic", "lab") for event in made.role(name).events)

    run(go())


def test_a_relay_holds_no_more_than_its_limits(tools, tmp_path):
    limits = Limits(max_message_mb=0.01, max_in_flight=4)

    async def go():
        node = tools.make_node(ring.Talker("server", [], 0), ring.PAYLOADS, tmp_path, PARTIES, limits)
        made = Relay(node)
        made.room.sender, made.room.pair = 30_000, 15_000
        outlets = {name: made.outlet(name) for name in PARTIES}
        for _ in range(1000):
            made.forward("bank", memoryview(relay("lab", bytes(9000)))[24:])
            made.forward("bank", memoryview(relay("clinic", bytes(9000)))[24:])
            made.forward("bank", memoryview(relay("lab", bytes(1)))[24:])
        assert made.held["bank"] <= 30_000 and len(outlets["lab"].queues["bank"]) <= made.room.frames
        made.forward("clinic", memoryview(relay("lab", b"mine"))[24:])
        assert made.held["clinic"] > 0, "another's room is its own"
        frames = [outlets["lab"].next_frame() for _ in range(2)]
        senders = [read_relay(open_envelope(frame, "").body, "")[0] for frame in frames]
        assert senders == ["bank", "clinic"], "they take turns"
        made.disconnected("lab")
        made.forward("clinic", memoryview(relay("lab", b"mine"))[24:])
        made.disconnected("clinic")
        assert made.held == dict.fromkeys(PARTIES, 0) and made.dropped > 1000

    run(go())


def test_frames_for_a_party_that_does_not_read_are_dropped_in_the_end(tools, tmp_path, monkeypatch):
    async def go():
        node = tools.make_node(ring.Talker("server", [], 0), ring.PAYLOADS, tmp_path, PARTIES, Limits(lost_after_s=5.0))
        made, now = Relay(node), time.monotonic()
        outlet = made.outlet("lab")
        for later in (0.0, 4.0, 6.0):
            monkeypatch.setattr("colonnade.drivers.processes.relay.time.monotonic", lambda later=later: now + later)
            made.forward("bank", memoryview(relay("lab", b"x"))[24:])
        assert len(outlet.queues["bank"]) == 1 and made.dropped == 2

    run(go())


@pytest.mark.parametrize("body", [b"", b"\5ban", b"\2\xff\xfe", b"\6nobody", b"\6server", b"\4bank"])
def test_a_relay_frame_to_an_unknown_member_costs_its_sender_the_stream(body, tools, tmp_path):
    async def go():
        node = tools.make_node(ring.Talker("server", [], 0), ring.PAYLOADS, tmp_path, PARTIES)
        with pytest.raises(RemoteProtocolError, match="bank: RELAY"):
            Relay(node).forward("bank", memoryview(body))

    run(go())


def test_where_parties_do_not_talk_to_each_other_there_is_no_relay(certificates, tmp_path, tools):
    async def go():
        limits = dataclasses.replace(tools.CALM, max_refusals=1)
        async with town(tools, certificates, tmp_path, talkers(0), limits, dialled=()) as made:
            made.service.relay = None
            made.dial("bank")
            bank = made.nodes["bank"].peers["server"]
            await tools.until(lambda: bank.stream is not None, "the bank")
            bank.stream._writer.write(relay("lab", b"hello"))
            await tools.until(made.tasks["bank"].done, "its refusal")
            with pytest.raises(RemoteProtocolError, match="unexpected frame of kind RELAY"):
                made.tasks["bank"].result()

    run(go())


def test_a_far_peer_is_heard_of_while_it_is_here_and_its_line_stands(tools):
    peer = FarPeer("lab", None)
    peer.last_heard -= 100
    assert peer.silent_s() > 99
    peer.here = True
    assert peer.silent_s() > 99, "the server's word alone is not enough"
    peer.stream = object()
    assert peer.silent_s() == 0


# Real processes


def test_processes_that_are_killed_pass_all_tokens_on_once(tmp_path, certificates):
    hops, delay = 120, 5_000_000
    (tmp_path / "certificates").symlink_to(certificates)
    env = os.environ | {"RING_HOPS": str(hops), "RING_DELAY_NS": str(delay), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    running = {}

    def start(name):
        with (tmp_path / f"{name}.log").open("ab") as log:
            command = [sys.executable, str(SCRIPT), str(tmp_path), name]
            running[name] = Popen(command, stdout=log, stderr=log, env=env)

    def until(condition, what):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"{what}: " + "".join(f.read_text()[-2000:] for f in tmp_path.glob("*.log"))
            time.sleep(0.05)

    def laps():
        address = (tmp_path / "address").read_text()
        try:
            return json.loads(asyncio.run(ask_status(own, address, Limits())))["laps"]
        except Exception:
            return -1

    own = ring.identity(certificates, "server")
    try:
        start("server")
        until((tmp_path / "address").exists, "the server's start")
        for name in PARTIES:
            start(name)
        for victim, when in (("clinic", 40), ("server", 120), ("bank", 200)):
            until(lambda when=when: laps() >= when, f"lap {when}")
            running[victim].send_signal(signal.SIGKILL)
            running[victim].wait()
            start(victim)
        until(lambda: all(process.poll() is not None for process in running.values()), "the end")
        calm = ring.ring(hops=hops)
        Simulator(calm, Codec(ring.PAYLOADS), ClockConfig(), 0).run()
        assert json.loads((tmp_path / "result.json").read_text()) == calm[0].results
        for role in calm[1:]:
            assert sorted(json.loads((tmp_path / f"{role.name}.json").read_text())) == sorted(role.hops)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
