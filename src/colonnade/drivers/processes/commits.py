"""When the consequences of an event may leave this process.

    "process"   The node appends an event to its journal and handles it. Appends survive `kill -9`.
    "power"     The node also holds back what follows from an event, messages and acknowledgements, until the event
                is synced to the disk. So a power cut loses only events that no other process knows of.

With "power", the events of one turn of the loop are one group: one write and one sync. Events that come while the disk
is busy wait in memory for the next group. A group is written only when the one before it is synced, and has one
checksum. So an unreadable group at the end of the journal was never synced, and a whole group after an unreadable one
is damage.

A thread writes and syncs, and the loop goes on. If that fails, the node fails, and what was held back never leaves.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from colonnade.drivers.processes.journal import Journal, Parts
from colonnade.drivers.processes.peer import Peer

__all__ = ["Commits"]

MAX_GROUP_BYTES = 64 * 2**20  # events that wait in memory; above that the loop waits for the disk


@dataclass(eq=False)
class _Commit:
    """One group on its way to the disk, and what may leave afterwards."""

    group: list[Parts]
    marks: list[tuple[Peer, tuple[int, int, int]]]
    calls: list[Callable[[], None]]
    future: "Future[None]" = field(default_factory=Future)


class Commits:
    """The group commits of one node."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._loop: asyncio.AbstractEventLoop | None = None
        self.journal: Journal | None = None
        self._running: _Commit | None = None
        self._planned = False
        self._touched: dict[Peer, None] = {}  # peers whose conversation moved since the last group
        self._calls: list[Callable[[], None]] = []
        self._settling: set[asyncio.Future[None]] = set()

    def begin(self, loop: asyncio.AbstractEventLoop, peers: list[Peer]) -> None:
        """Hold back from now on. What the node knows already is on the disk."""
        self._loop = loop
        self._touched.clear()
        for peer in peers:
            peer.conversation.hold()

    def touch(self, peer: Peer) -> None:
        """Note that an event moves the conversation with this peer."""
        self._touched[peer] = None

    def noted(self) -> None:
        """Plan a commit, because the journal took an event."""
        if self.journal is not None and self.journal.held_bytes > MAX_GROUP_BYTES:
            self.now()
        elif not self._planned and self._running is None and self._loop is not None:
            self._planned = True
            self._plan(self._loop)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(self._start, loop)

    @property
    def pending(self) -> bool:
        """Whether there are events that are not on the disk yet."""
        return self._running is not None or (self.journal is not None and self.journal.held_bytes > 0)

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when all events so far are on the disk: at once if they are, and never if the disk fails."""
        if self.journal is not None and self.journal.held_bytes:
            self._calls.append(call)
        elif self._running is not None:
            self._running.calls.append(call)
        else:
            call()

    async def settled(self) -> None:
        """Wait until all events so far are on the disk, or the node has failed."""
        if not self.pending:
            return
        done = asyncio.get_running_loop().create_future()
        self._settling.add(done)
        self.when_durable(lambda: self._settle(done))
        await done

    def _settle(self, done: "asyncio.Future[None]") -> None:
        self._settling.discard(done)
        if not done.done():
            done.set_result(None)

    def now(self) -> None:
        """Commit everything and wait for it; raises CheckpointError."""
        commit, self._running = self._running, None
        if commit is not None:
            commit.future.result()
            self._release(commit)
        if self.journal is not None and self.journal.held_bytes:
            commit = self._take(self.journal)
            self.journal.write_group(commit.group)
            self._release(commit)

    def give_up(self) -> None:
        """Wait for nothing more: the node has failed."""
        self._loop = None
        for done in list(self._settling):
            self._settle(done)

    def close(self) -> None:
        """Wait until the thread no longer writes."""
        self._loop = None
        self._thread.shutdown(wait=True)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._planned = False
        journal = self.journal
        if self._running is not None or self._loop is None or journal is None or not journal.held_bytes:
            return
        self._running = commit = self._take(journal)
        commit.future = self._thread.submit(journal.write_group, commit.group)
        commit.future.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._landed, commit))

    def _take(self, journal: Journal) -> _Commit:
        marks = [(peer, peer.conversation.mark()) for peer in self._touched]
        calls, self._calls = self._calls, []
        self._touched = {}
        return _Commit(journal.take_group(), marks, calls)

    def _landed(self, commit: _Commit) -> None:
        if commit is not self._running:
            return  # `now` has waited for it
        self._running = None
        error = commit.future.exception()
        if isinstance(error, Exception):
            self._fail(error)
            return
        self._release(commit)
        if self._loop is not None:
            self._start(self._loop)

    @staticmethod
    def _release(commit: _Commit) -> None:
        for peer, mark in commit.marks:
            peer.conversation.release(mark)
            if peer.stream is not None:
                peer.stream.released()
        for call in commit.calls:
            call()
