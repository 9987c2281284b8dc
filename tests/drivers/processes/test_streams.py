"""Streams over loopback with mutual TLS: every message arrives once and in order, whatever happens to the streams."""

import asyncio
import contextlib
import itertools
import json
import random
import types
from dataclasses import replace
from functools import partial

import grpc
import msgspec
import pytest

import colonnade
from colonnade.drivers.processes import dial, peer, service, wire
from colonnade.drivers.processes.certificates import Identity, read_members, throw_away
from colonnade.drivers.processes.conversation import NEVER_MET
from colonnade.drivers.processes.dial import Dialler, ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.pin import CLOSED, NOBODY, cause_in_words, pinned_connection
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import (
    OLDEST_OFFER,
    PROTOCOL,
    Bye,
    End,
    Hello,
    Kind,
    LaneBins,
    News,
    Position,
    Question,
    Refusal,
    Welcome,
    control,
    open_envelope,
    read_control,
)
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import PeerJoined, PeerLost, Received, Resumed, Send, SetTimer, Started, TimerFired
from colonnade.protocol.messages import Message
from colonnade.testing.grpc_client import open_channel

PARTIES = ("bank", "clinic")
TICK = 500_000  # nanoseconds


class Numbered(Message, frozen=True):
    number: int
    padding: bytes = b""


class Talker:
    """Sends `count` numbered messages to each peer, `burst` at every tick, and stores what it hears."""

    def __init__(self, name, peers, count, burst=1, size=0):
        self.name, self.peers, self.count, self.burst, self.size = name, peers, count, burst, size
        self.sent, self.heard, self.resets = 0, {peer: [] for peer in peers}, 0

    def handle(self, event, now):
        match event:
            case Started():
                return [SetTimer("tick", now + TICK)]
            case TimerFired():
                numbers = range(self.sent + 1, min(self.sent + self.burst, self.count) + 1)
                self.sent += len(numbers)
                sends = [Send(to, Numbered(number, bytes(self.size))) for number in numbers for to in self.peers]
                return sends + ([SetTimer("tick", now + TICK)] if self.sent < self.count else [])
            case Received(sender=sender, message=message):
                self.heard[sender].append(message.number)
                return []
            case PeerJoined(reset=reset):
                self.resets += reset
                return []
            case PeerLost() | Resumed():
                return []

    def compute(self, job):
        raise NotImplementedError

    def save(self):
        return {"sent": self.sent, "heard": self.heard, "resets": self.resets}

    def load(self, saved):
        self.sent, self.heard, self.resets = saved["sent"], saved["heard"], saved["resets"]

    def validate(self):
        pass

    def summary(self):
        return {}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(PARTIES, folder)
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(dial, "LONGEST_PAUSE_S", 0.02)


def identity(folder, name):
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


class Town:
    """A service and its diallers in one event loop."""

    def __init__(self, tools, certificates, folder, limits, talkers, admit_late):
        self.tools, self.certificates, self.folder, self.limits = tools, certificates, folder, limits
        self.talkers, self.admit_late = talkers, admit_late
        self.nodes, self.tasks, self.dialled = {}, {}, {}

    async def open_service(self, address="127.0.0.1:0"):
        node = self.open_node("server", PARTIES)
        members = read_members(self.certificates / "members.toml")
        self.service = Service(
            node,
            identity(self.certificates, "server"),
            members,
            lambda name, hello: None,
            lambda: {"state": "fine"},
            admit_late=self.admit_late,
        )
        self.address = await self.service.start(address)

    def open_node(self, name, peers):
        node = self.tools.make_node(self.talkers(name, peers), [Numbered], self.folder / name, peers, self.limits)
        node.open()
        self.nodes[name] = node
        return node

    def dial(self, name, pinned=()):
        node = self.open_node(name, ["server"])

        def hello(instance, position):
            return Hello(OLDEST_OFFER, "test", {}, 1, "", 1, "float32", instance, position)

        own, farewell = identity(self.certificates, name), lambda end: Bye(f"weights of {name}", 0.5)
        dialler = Dialler(node, own, self.address, hello, farewell, pinned=pinned)
        self.dialled[name] = dialler
        self.tasks[name] = asyncio.ensure_future(dialler.run())

    async def hang_up(self, name):
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    def role(self, name):
        return self.nodes[name].role

    def all_heard(self, count):
        server = self.role("server").heard
        return all(len(server[name]) >= count and len(self.role(name).heard["server"]) >= count for name in PARTIES)

    def streams(self):
        found = [peer.stream for node in self.nodes.values() for peer in node.peers.values()]
        return [stream for stream in found if stream is not None]


@contextlib.asynccontextmanager
async def town(tools, certificates, folder, talkers, limits=None, admit_late=True):
    made = Town(tools, certificates, folder, limits or tools.CALM, talkers, admit_late)
    await made.open_service()
    try:
        yield made
    finally:
        for name in made.tasks:
            await made.hang_up(name)
        await made.service.hang_up()
        for node in made.nodes.values():
            node.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_arrives_once_and_in_order_while_streams_are_dropped(seed, certificates, tmp_path, tools):
    chance, count = random.Random(seed), 400

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, count, burst=3)) as made:
            for name in PARTIES:
                made.dial(name)
            drops = 0
            while not made.all_heard(count):
                assert not any(task.done() for task in made.tasks.values())
                if drops < 25 and made.streams() and chance.random() < 0.2:
                    chance.choice(made.streams()).drop("the test cut it")
                    drops += 1
                await asyncio.sleep(0.002)
            assert drops > 5
            for name in PARTIES:
                assert made.role("server").heard[name] == list(range(1, count + 1))
                assert made.role(name).heard["server"] == list(range(1, count + 1))
                assert made.role(name).resets == 0
            assert made.role("server").resets == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_party_and_a_server_that_are_killed_go_on(certificates, tmp_path, tools):
    chance, count = random.Random(3), 300

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, count)) as made:
            for name in PARTIES:
                made.dial(name)
            for round in range(6):
                await tools.until(lambda round=round: made.role("server").sent >= 30 * (round + 1), "the server")
                name = chance.choice(PARTIES)
                if round == 3:
                    await made.service.hang_up()
                    await asyncio.sleep(0)
                    tools.kill(made.nodes["server"])
                    await made.open_service(made.address)
                    continue
                await made.hang_up(name)
                tools.kill(made.nodes[name])
                made.dial(name)
            await tools.until(lambda: made.all_heard(count), "all messages")
            for name in PARTIES:
                assert made.role("server").heard[name] == made.role(name).heard["server"] == list(range(1, count + 1))
            assert made.role("server").resets == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_dialler_cancelled_as_the_welcome_comes_is_cancelled(certificates, tmp_path, tools):
    """`asyncio.wait_for` of Python 3.11 would lose the cancellation, and the dialler would never stop."""

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            made.dial("bank")
            await made.hang_up("bank")
            welcome = asyncio.get_running_loop().create_future()
            call = types.SimpleNamespace(read=lambda: welcome)
            waiting = asyncio.ensure_future(made.dialled["bank"]._welcome(call))
            await asyncio.sleep(0)
            welcome.set_result(control(Kind.WELCOME, Welcome(False, Position(0, 0, 0, 0))))
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_early_party_waits_at_the_door_and_all_come_in_together(certificates, tmp_path, tools, monkeypatch):
    """A party that only knocked and left would find the training over, if the others are quick."""
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(service, "AT_DOOR_S", 60.0)

    async def run():
        talkers = lambda name, peers: Talker(name, peers, 20)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, admit_late=False) as made:
            at_door = made.service._at_door
            made.dial("bank")
            await tools.until(lambda: at_door == ["bank"], "the bank")
            await made.hang_up("bank")
            tools.kill(made.nodes["bank"])
            await tools.until(lambda: at_door == [], "the bank is gone")
            made.dial("clinic")
            await tools.until(lambda: at_door == ["clinic"], "the clinic")
            assert made.streams() == [], "it must not begin without the bank"
            made.dial("bank")
            await tools.until(lambda: made.all_heard(20), "all messages")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_waiting_party_hears_that_the_training_ended_without_it(certificates, tmp_path, tools):
    async def run():
        talkers = lambda name, peers: Talker(name, peers, 20)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, admit_late=False) as made:
            made.dial("bank")
            await tools.until(lambda: made.service._at_door == ["bank"], "the bank")
            await made.service.stop(End("stalled", "nobody else came"))
            assert await made.tasks["bank"] == End("stalled", "nobody else came")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_waiting_party_hears_which_parties_are_missing_and_never_gives_up(certificates, tmp_path, tools, monkeypatch):
    monkeypatch.setattr(service, "AT_DOOR_S", 0.05)
    causes = []
    limits = replace(tools.CALM, give_up_s=0.2)

    async def run():
        talkers = lambda name, peers: Talker(name, peers, 20)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, limits, admit_late=False) as made:
            made.dial("bank")
            made.dialled["bank"]._complaints.warning = lambda text, **more: causes.append(more["cause"])
            await tools.until(lambda: len(causes) >= 8, "eight refusals, longer than its patience without a server")
            assert set(causes) == {"the run begins when all parties are connected; missing: clinic"}
            made.dial("clinic")
            await tools.until(lambda: made.all_heard(20), "all messages")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_only_the_pinned_server_is_talked_to(certificates, tmp_path, tools):
    members, said = read_members(certificates / "members.toml"), []

    async def run():
        talkers = lambda name, peers: Talker(name, peers, 20)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers) as made:
            made.service._complaints.warning = lambda *words, **more: said.append(more)
            made.dial("bank", [members["server"]])
            made.dial("clinic", [members["bank"]])
            with pytest.raises(RemoteProtocolError, match=r"its certificate, .* is not the one in network.members"):
                await made.tasks["clinic"]
            tools.kill(made.nodes["clinic"])
            assert made.nodes["server"].peers["clinic"].conversation.number == NEVER_MET
            made.dial("clinic", [members["server"]])
            await tools.until(lambda: made.all_heard(20), "all messages")
        assert said == [], "the server has nothing to complain of"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_why_there_is_no_connection(certificates, tmp_path):
    async def cause(serve):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            with pytest.raises(OSError) as raised:
                await pinned_connection(identity(certificates, "bank"), address, (), 2**20)
        return cause_in_words(raised.value), address

    async def hang_up(reader, writer):
        writer.close()

    async def run():
        words, address = await cause(hang_up)
        assert words == CLOSED

        async def speak_http(reader, writer):
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            writer.close()

        assert "does not speak TLS" in (await cause(speak_http))[0]
        with pytest.raises(OSError) as raised:
            await pinned_connection(identity(certificates, "bank"), address, (), 2**20)
        assert cause_in_words(raised.value) == NOBODY

    asyncio.run(asyncio.wait_for(run(), 60))


def test_large_messages_both_ways_do_not_block_each_other(certificates, tmp_path, tools):
    async def run():
        talkers = lambda name, peers: Talker(name, peers, 30, burst=30, size=300_000)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers) as made:
            for name in PARTIES:
                made.dial(name)
            await tools.until(lambda: made.all_heard(30), "all messages")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_no_more_is_under_way_than_the_window_allows(certificates, tmp_path, tools, monkeypatch):
    count, most = 300, 4
    limits = Limits(max_in_flight=most, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)
    under_way = []
    noted = peer.Stream._noted

    def watched(self, frame):
        under_way.append(self._next - 1 - self._peer.conversation.acknowledged)
        return noted(self, frame)

    monkeypatch.setattr(peer.Stream, "_noted", watched)

    async def run():
        talkers = lambda name, peers: Talker(name, peers, count, burst=50)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, limits) as made:
            for name in PARTIES:
                made.dial(name)
            await tools.until(lambda: made.all_heard(count), "all messages")
            for name in PARTIES:
                assert made.role("server").heard[name] == list(range(1, count + 1))

    asyncio.run(asyncio.wait_for(run(), 60))
    assert max(under_way) == most


def test_one_way_traffic_is_acknowledged_too(certificates, tmp_path, tools):
    """No message goes back that could carry an acknowledgement."""
    limits = Limits(max_in_flight=4, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)

    def talkers(name, peers):
        return Talker(name, peers, 100 if name == "server" else 0, burst=10)

    async def run():
        async with town(tools, certificates, tmp_path, talkers, limits) as made:
            made.dial("bank")
            await tools.until(lambda: len(made.role("bank").heard["server"]) == 100, "100 messages")
            conversation = made.nodes["server"].peers["bank"].conversation
            await tools.until(lambda: not conversation.outbox, "the last acknowledgement")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_flooding_an_absent_peer_restarts_the_conversation_instead_of_growing(certificates, tmp_path, tools):
    limits = Limits(max_queue=20, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)

    async def run():
        talkers = lambda name, peers: Talker(name, peers, 100 if name == "server" else 5)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, limits) as made:
            await tools.until(lambda: made.role("server").sent == 100, "the server's messages")
            clinic = made.nodes["server"].peers["clinic"]
            assert len(clinic.conversation.outbox) <= 20 and clinic.conversation.lost > 0
            made.dial("clinic")
            await tools.until(lambda: made.role("clinic").resets == 1, "the clinic's being told")
            assert made.role("server").resets == 1 and not clinic.conversation.outbox

    asyncio.run(asyncio.wait_for(run(), 60))


def test_flooding_a_present_peer_restarts_the_conversation_and_messages_stay_in_order(certificates, tmp_path, tools):
    limits = Limits(max_queue=20, max_in_flight=4, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5)

    class Flood(Talker):
        """Announces the next number at every restart, so no number after it can be missing unnoticed."""

        def handle(self, event, now):
            if isinstance(event, PeerJoined) and event.reset:
                self.heard[event.peer].append(0)
            return super().handle(event, now)

    async def run():
        talkers = lambda name, peers: Flood(name, peers, 600 if name == "server" else 100, burst=50)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers, limits) as made:
            made.dial("bank")
            await tools.until(lambda: made.role("server").sent == 600 and made.role("bank").sent == 100, "the talking")
            conversations = [
                made.nodes["server"].peers["bank"].conversation,
                made.nodes["bank"].peers["server"].conversation,
            ]
            await tools.until(
                lambda: made.streams() and all(one.number > 0 and not one.outbox for one in conversations), "calm"
            )
            assert not made.tasks["bank"].done()
            heard = made.role("bank").heard["server"]
            numbers = [number for number in heard if number]
            assert numbers == sorted(set(numbers))
            assert 0 in heard and conversations[0].lost + len(numbers) >= 600
            for before, after in itertools.pairwise(heard):
                assert after == before + 1 or 0 in (before, after), heard

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_end_and_the_goodbyes(certificates, tmp_path, tools):
    async def run():
        talkers = lambda name, peers: Talker(name, peers, 50, burst=50)  # noqa: E731
        async with town(tools, certificates, tmp_path, talkers) as made:
            for name in PARTIES:
                made.dial(name)
            await tools.until(lambda: len(made.streams()) == 4 and made.role("server").sent == 50, "the beginning")
            await made.service.stop(End("finished", "a note"))
            ends = [await asyncio.wait_for(made.tasks[name], 10) for name in PARTIES]
            assert ends == [End("finished", "a note")] * 2
            assert {name: bye.weights for name, bye in made.service.byes.items()} == {
                name: f"weights of {name}" for name in PARTIES
            }
            for name in PARTIES:
                assert made.role(name).heard["server"] == list(range(1, 51)), "the end comes after all messages"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_silence_is_noticed_by_both(certificates, tmp_path, tools):
    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            made.dial("bank")
            node = made.nodes["server"]
            await tools.until(lambda: node.peers["bank"].stream is not None, "the bank")
            first = node.peers["bank"].stream
            node.peers["bank"].last_heard -= 2 * tools.CALM.lost_after_s
            node.look_around()
            assert first.dropped.done()
            await tools.until(lambda: node.peers["bank"].stream not in (None, first), "the next stream")
            await made.hang_up("bank")
            await tools.until(lambda: node.peers["bank"].stream is None, "its end")
            assert node.peers["bank"].present, "a short absence is none"
            node.peers["bank"].last_heard -= 2 * tools.CALM.lost_after_s
            node.look_around()
            assert not node.peers["bank"].present

    asyncio.run(asyncio.wait_for(run(), 60))


def test_status_for_members(certificates, tmp_path, tools):
    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            for name in ("server", *PARTIES):
                assert await ask_status(identity(certificates, name), made.address, tools.CALM) == b'{"state":"fine"}'

    asyncio.run(asyncio.wait_for(run(), 60))


# Releases


async def knock(made, name, frame):
    """Send this HELLO as a party of another release would; return the first answer."""
    async with open_channel(identity(made.certificates, name), made.address, made.limits) as channel:
        call = channel.stream_stream(f"/{service.SERVICE}/{service.JOIN}")()
        await call.write(frame)
        answer = open_envelope(await call.read(), "server")
        protocol = made.nodes["server"].peers[name].protocol
        call.cancel()
        return answer, protocol


def test_neighbouring_releases_agree_on_the_newest_protocol_that_both_speak(certificates, tmp_path, tools):
    position = Position(0, 0, 0, 0)

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 10)) as made:
            of_0_1 = control(Kind.HELLO, Hello(6, "0.1.0", {}, 1, "", 1, "float32", 1, position))
            answer, protocol = await knock(made, "bank", of_0_1)
            assert protocol == 6 and not read_control(answer, Kind.WELCOME, Welcome, "server").position.received
            assert not made.nodes["server"].peers["bank"].speaks(Kind.PRESENCE), "or no kind could be newer"
            next_one = control(Kind.HELLO, Hello(7, "0.3.0", {}, 1, "", 1, "float32", 1, position), protocol=8)
            answer, protocol = await knock(made, "clinic", next_one)
            assert protocol == 7 == answer.sequence

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(wire._SINCE, Kind.PRESENCE, 7)
        asyncio.run(asyncio.wait_for(run(), 30))


def test_a_party_does_not_take_the_welcome_of_release_0_1(certificates, tmp_path, tools, monkeypatch):
    """That release refuses a HELLO of protocol 7 by itself, and names both releases; see `OLDEST_OFFER`."""
    monkeypatch.setattr(service, "control", lambda kind, content, protocol=0: control(kind, content))

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            made.dial("bank")
            with pytest.raises(RemoteProtocolError, match="chooses protocol 6"):
                await made.tasks["bank"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize(
    ("protocol", "release", "remedy"),
    [
        (8, "0.3.0", "install release 0.3.0 on the server"),
        (5, "0.0.9", f"install release {colonnade.__version__} on bank"),
    ],
)
def test_releases_too_far_apart_refuse_with_the_release_to_install(
    certificates, tmp_path, tools, protocol, release, remedy
):
    body = {"protocol": protocol, "release": release, "something": "else"}  # not a HELLO of this release

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            frame = wire.seal_envelope(Kind.HELLO, protocol, 0, msgspec.msgpack.encode(body))
            answer, _ = await knock(made, "bank", frame)
            assert made.nodes["server"].refused["terms"] == 1
            return read_control(answer, Kind.REFUSAL, Refusal, "server")

    refusal = asyncio.run(asyncio.wait_for(run(), 30))
    assert refusal.final and remedy in refusal.cause
    assert f"bank speaks protocol {protocol} (release {release})" in refusal.cause


def test_a_party_refuses_a_protocol_that_it_did_not_offer(certificates, tmp_path, tools, monkeypatch):
    monkeypatch.setattr(service, "control", lambda kind, content, protocol=0: control(kind, content, PROTOCOL + 1))

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            made.dial("bank")
            with pytest.raises(RemoteProtocolError, match=f"chooses protocol {PROTOCOL + 1}"):
                await made.tasks["bank"]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_page_asks_for_more_than_the_status(certificates, tmp_path, tools):
    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 1)) as made:
            own = identity(certificates, "server")
            ask = partial(ask_status, own, made.address, tools.CALM)
            assert await ask(question=Question(3)) == b'{"state":"fine"}', "this server has no page"
            made.service.live = lambda since: {"live": {"since": since}}
            assert json.loads(await ask(question=Question(3))) == {"state": "fine", "live": {"since": 3}}
            assert await ask() == b'{"state":"fine"}', "the status alone is as it was"
            for body in (b"\xff\xff", bytes(1000)):
                async with open_channel(own, made.address, tools.CALM) as channel:
                    with pytest.raises(grpc.aio.AioRpcError, match="question"):
                        await channel.unary_unary("/colonnade.Federation/Status")(body, timeout=30)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_party_tells_its_news_with_an_acknowledgement(certificates, tmp_path, tools, monkeypatch):
    monkeypatch.setattr(dial, "NEWS_S", 0.01)
    monkeypatch.setattr(service, "NEWS_PAUSE_S", 0.0)
    told = [News(LaneBins(1, [1], [1000]), share / 100) for share in range(100)]
    rest = iter(told)

    async def run():
        async with town(tools, certificates, tmp_path, lambda name, peers: Talker(name, peers, 50)) as made:
            made.dial("bank")
            node = made.nodes["bank"]
            node.news = lambda: next(rest, told[-1])
            await tools.until(lambda: made.service.news.get("bank") == told[-1], "the last news")
            assert "clinic" not in made.service.news
            monkeypatch.setattr(service, "NEWS_PAUSE_S", 1e6)
            told[-1] = News(LaneBins(1, [], []), 1.0)
            before = node.peers["server"].stream
            await asyncio.sleep(0.1)
            assert made.service.news["bank"].utilisation == 0.99, "too soon: not even read"
            assert node.peers["server"].stream is before, "and no offence"

    asyncio.run(asyncio.wait_for(run(), 60))
