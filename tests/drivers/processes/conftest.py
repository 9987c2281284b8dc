"""Helpers for the tests of the processes driver: nodes that can be killed, and a post office without a network."""

import asyncio
import io
import os
import types

import numpy as np
import pytest

from colonnade.algorithms.table_file import FileTable
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.wire import open_envelope
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Work, WorkDone

PATIENCE_S = 60.0
CALM = Limits(checkpoint_s=1e6, max_log_mb=1e3, lost_after_s=1e6, heartbeat_s=1e5)


class Rows(Keeper):
    """Stores the role's records in a file, as a run folder does."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def emitted(self, record, node):
        self.rows.append(repr(record))
        with self.path.open("a") as file:
            file.write(repr(record) + "\n")

    def save(self):
        return len(self.rows)

    def load(self, saved):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.rows = lines[: saved or 0]
        self.path.write_text("".join(line + "\n" for line in self.rows))


def make_node(role, payloads, folder, peers, limits=CALM, far=()):
    folder.mkdir(exist_ok=True)
    log = Log(role.name, stream=io.StringIO())
    return Node(role, payloads, folder, peers, limits, log, Rows(folder / "rows"), far=far)


def kill(node):
    """The effect of `kill -9`: nothing more is written, and files are closed."""
    node.jobs.close()
    for alarm in node._alarms.values():
        alarm.cancel()
    if node._journal is not None:
        os.close(node._journal._file)
        node._journal = None
    os.close(node._lock)
    node._lock = None


def whole_state(role):
    """The state that a role saves; a position in a file is replaced by the data there."""
    saved = role.save()
    if isinstance(getattr(role, "table", None), FileTable):
        for table, place in ((role.table, saved), (role.evaluation.table, saved["evaluation"])):
            rows = np.arange(len(table))
            place["table"] = [table.gather(rows), table.ages(rows, 0), table.clipped]
    return saved


def picture(node):
    """Everything that a restart must restore, bit for bit."""
    return {
        "role": state.pack(whole_state(node.role)),
        "jobs": [(work.token, work.kind, work.aside) for work in node.jobs.pending],
        "timers": dict(node.timers),
        "outboxes": {peer.name: list(peer.conversation.outbox) for peer in node.peers.values()},
        "positions": {peer.name: peer.conversation.position() for peer in node.peers.values()},
        "present": [peer.name for peer in node.peers.values() if peer.present],
        "bytes": [node.traffic.bytes_up, node.traffic.bytes_down, node.traffic.evaluation_bytes],
        "now": node.now,
        "finished": node.finished,
        "rows": list(node.keeper.rows),
        "file": node.keeper.path.read_text().splitlines(),
    }


def assert_same(after, before):
    """Compare two pictures.

    Acknowledgements that arrived alone are not logged, so more messages may wait to be resent.
    """
    for name, again in after["outboxes"].items():
        queued = before["outboxes"][name]
        assert len(again) >= len(queued) and again[len(again) - len(queued) :] == queued
    for picture in (before, after):
        del picture["outboxes"]
        places = picture["positions"].items()
        picture["positions"] = {name: (place.number, place.sent, place.received) for name, place in places}
    assert after == before


class Post:
    """Carries messages between a server's node and parties' nodes, with the handshake of the real one."""

    def __init__(self):
        self.nodes, self.number = {}, 0

    def meet(self, name):
        """Open a stream between the server and this party."""
        server, party = self.nodes["server"], self.nodes[name]
        here, there = server.peers[name], party.peers["server"]
        reset = not here.conversation.goes_on_with(there.conversation.position())
        self.number += 1
        number = here.conversation.number if not reset and here.conversation.number > 0 else self.number
        server.joined(here, number, reset)
        here.conversation.heard(0 if reset else there.conversation.received)
        party.joined(there, number, reset)
        there.conversation.heard(here.conversation.received)
        return reset

    def carry(self, sender, receiver, most=10**9):
        """Deliver up to this many waiting messages."""
        one, other = self.nodes[sender], self.nodes[receiver]
        outgoing, peer = one.peers[receiver].conversation, other.peers[sender]
        for sequence, frame in list(outgoing.outbox)[:most]:
            envelope = open_envelope(frame, sender)
            other.received(peer, sequence, envelope.body, envelope.evaluation)
        outgoing.heard(peer.conversation.received)

    def carry_all(self):
        for name in list(self.nodes):
            if name != "server":
                self.carry(name, "server")
                self.carry("server", name)


async def until(condition, what="it"):
    """Poll with a bound; never use it to measure time."""
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"waited in vain for {what}")


def replay(role, records):
    """Give a role the events of a node's journal, as the node would. A message that it refuses is an error."""
    jobs = {}
    for record in records:
        event = record.event
        if record.again:
            event = WorkDone(event.token, role.compute(jobs[event.token]))
        try:
            effects = role.handle(event, record.now)
        except RemoteProtocolError as error:
            raise AssertionError from error
        jobs |= {effect.token: effect.job for effect in effects if isinstance(effect, Work)}


@pytest.fixture
def tools():
    """The helpers above, for tests that cannot import a conftest."""
    return types.SimpleNamespace(
        CALM=CALM,
        Post=Post,
        assert_same=assert_same,
        kill=kill,
        make_node=make_node,
        picture=picture,
        replay=replay,
        until=until,
    )
