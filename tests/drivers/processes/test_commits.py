"""With durability "power", what follows from an event leaves when the event is on the disk, and never before."""

import asyncio
import errno
import io
import threading
from dataclasses import replace

import pytest

from colonnade.drivers.files import Disk
from colonnade.drivers.processes.journal import read_journal
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.events import Received, Send
from colonnade.protocol.messages import Message


class Word(Message, frozen=True):
    number: int


class Echo:
    """Answers every word."""

    name = "server"

    def __init__(self):
        self.heard = []

    def handle(self, event, now):
        if isinstance(event, Received):
            self.heard.append(event.message.number)
            return [Send(event.sender, event.message)]
        return []

    def compute(self, job):
        raise NotImplementedError

    def save(self):
        return {"heard": self.heard}

    def load(self, saved):
        self.heard = list(saved["heard"])

    def validate(self):
        pass

    def summary(self):
        return {}


class SlowDisk(Disk):
    """Syncs data when the test lets it, and counts; or fails."""

    def __init__(self):
        self.syncs, self.gate, self.broken = 0, threading.Event(), False
        self.gate.set()

    def sync_data(self, file):
        self.gate.wait(30)
        self.syncs += 1
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_data(file)


def _silent():
    return Log("server", stream=io.StringIO())


class Carrier:
    """Counts how often it is told that something may leave."""

    def __init__(self):
        self.told = 0

    def released(self):
        self.told += 1


@pytest.fixture
def opened(tools, tmp_path):
    """A node with one peer, in a conversation."""

    def make(disk):
        limits = replace(tools.CALM, durability="power")
        node = Node(Echo(), [Word], tmp_path / "state", ["bank"], limits, _silent(), disk=disk)
        node.open()
        node.joined(node.peers["bank"], 7, False)
        return node, node.peers["bank"]

    return make


def say(node, peer, number):
    body = bytes(Codec([Word]).encode(Word(number)))
    node.received(peer, number, memoryview(body))


def test_answers_and_acknowledgements_wait_for_the_disk_and_share_a_sync(opened, tools):
    async def run():
        disk = SlowDisk()
        node, peer = opened(disk)
        await node.settled()
        carrier = peer.stream = Carrier()
        conversation = peer.conversation
        disk.gate.clear()
        before = disk.syncs
        say(node, peer, 1)
        await asyncio.sleep(0)  # the commit of the first word begins
        for number in range(2, 6):
            say(node, peer, number)
        assert (conversation.sent, conversation.may_send) == (5, 0)
        assert (conversation.received, conversation.may_acknowledge, conversation.position().received) == (5, 0, 0)
        disk.gate.set()
        await node.settled()
        assert (conversation.may_send, conversation.may_acknowledge) == (5, 5)
        assert disk.syncs - before == 2 == carrier.told, "the words that came while the disk was busy are one group"
        node.close()

    asyncio.run(run())


def test_waiting_for_a_commit_that_runs_ends_without_further_events(opened):
    async def run():
        disk = SlowDisk()
        node, peer = opened(disk)
        await node.settled()
        disk.gate.clear()
        say(node, peer, 1)
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(node.settled())
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.gate.set()
        await asyncio.wait_for(waiting, 10)
        node.close()

    asyncio.run(run())


def test_a_disk_that_fails_ends_the_node_and_nothing_leaves(opened, tools, tmp_path):
    async def run():
        disk = SlowDisk()
        node, peer = opened(disk)
        await node.settled()
        disk.broken = True
        say(node, peer, 1)
        await asyncio.wait_for(node.settled(), 10)
        assert isinstance(node.error, CheckpointError) and "cannot be synced" in str(node.error)
        assert peer.conversation.may_send == 0 == peer.conversation.may_acknowledge
        node.close()

    asyncio.run(run())


def test_a_restart_of_the_conversation_takes_back_what_a_running_commit_would_release(opened):
    async def run():
        disk = SlowDisk()
        node, peer = opened(disk)
        await node.settled()
        disk.gate.clear()
        say(node, peer, 1)
        await asyncio.sleep(0)
        node.refuse(peer, "the test")
        disk.gate.set()
        await node.settled()
        assert (peer.conversation.may_send, peer.conversation.may_acknowledge) == (0, 0)
        node.close()

    asyncio.run(run())


@pytest.mark.parametrize("durability", ["power", "process"])
def test_after_another_boot_only_a_journal_with_power_is_trusted(tools, tmp_path, durability, monkeypatch):
    async def run():
        limits = replace(tools.CALM, durability=durability)
        node = Node(Echo(), [Word], tmp_path / "state", ["bank"], limits, _silent())
        node.open()
        node.joined(node.peers["bank"], 7, False)
        for number in (1, 2, 3):
            say(node, node.peers["bank"], number)
        await node.settled()
        tools.kill(node)

    asyncio.run(run())
    monkeypatch.setattr(Disk, "boot_id", lambda self: b"another machine!")
    contents = read_journal(tmp_path / "state" / "journal-0.log", Codec([Word]))
    assert contents.trusted == (durability == "power")
    assert [record.sequence for record in contents.records][-3:] == [1, 2, 3]


def test_sigterm_while_a_commit_runs_waits_for_it(opened, tmp_path):
    async def run():
        disk = SlowDisk()
        node, peer = opened(disk)
        await node.settled()
        disk.gate.clear()
        say(node, peer, 1)
        await asyncio.sleep(0)
        say(node, peer, 2)
        node.stop()
        threading.Timer(0.05, disk.gate.set).start()
        node.close()
        assert peer.conversation.may_acknowledge == 2

    asyncio.run(run())
    again = Echo()
    saved = Node(again, [Word], tmp_path / "state", ["bank"], Limits(durability="power"), _silent())
    assert saved.read() and again.heard == [1, 2]
    assert saved._trusted
