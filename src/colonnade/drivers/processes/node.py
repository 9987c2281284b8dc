"""A node: one role in its own process, with its journal, jobs, timers and conversations.

The event loop writes every event to the journal and then handles it. Only jobs run outside the loop. The role's
messages are numbered and queued. Streams carry the queues, and may end and start again. A node that restarts loads its
checkpoint and replays its journal.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from colonnade.drivers.checkpoints import Checkpoints
from colonnade.drivers.files import DISK, Disk, lock_file
from colonnade.drivers.processes.commits import Commits
from colonnade.drivers.processes.conversation import NEVER_MET, Conversation
from colonnade.drivers.processes.descriptors import descriptors_left
from colonnade.drivers.processes.jobs import Jobs
from colonnade.drivers.processes.journal import (
    CONTINUED,
    FILES,
    NOTHING,
    RESTARTED,
    RESUMED,
    Contents,
    End,
    Journal,
    Record,
    read_journal,
)
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log, Once
from colonnade.drivers.processes.peer import FarPeer, Peer
from colonnade.drivers.processes.spans import past_span, span, spans_on
from colonnade.drivers.processes.wire import News, seal_message
from colonnade.drivers.row_file import FileStorage
from colonnade.drivers.simulator.checkpoint import work_in, work_out
from colonnade.drivers.traffic import Traffic
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import (
    CheckpointError,
    DamagedFile,
    DataError,
    LocalProtocolError,
    NotWritable,
    PartyDiverged,
    RemoteProtocolError,
    TrainingDiverged,
)
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    CancelWork,
    Effect,
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
from colonnade.protocol.finite import all_finite
from colonnade.protocol.formats import NODE, stamp
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import Releasing, Role, Storing
from colonnade.protocol.trace import Trace

__all__ = ["Keeper", "Node"]

SLOW_HANDLER_S = 0.005
NEW_FOLDERS = 3  # above a node's folder, which a first start may have made
LATER_S = 1.0  # until the next try, if a checkpoint could not open its files
_PLAIN = ("now", "finished")


class Keeper:
    """What an application keeps beside the role. It gets the role's records and is saved in checkpoints.

    This class keeps nothing.
    """

    def emitted(self, record: Payload, node: "Node") -> None:
        """Take a record that the role emitted. A replayed journal emits it again."""

    def checkpoint_due(self, node: "Node") -> bool:
        """Whether the application wants a checkpoint now."""
        return False

    def update(self) -> int | None:
        """The role's current update, for the log; None if it has none."""
        return None

    def save(self) -> Any:
        """What to store in the checkpoint."""

    def load(self, saved: Any) -> None:
        """Restore what `save` returned; None if there is no checkpoint."""


class Node:
    """Runs one role until it finishes or is stopped."""

    forgiving: ClassVar[bool] = False  # whether it only drops what the server should not have sent

    def __init__(
        self,
        role: Role,
        payloads: Iterable[type[Payload]],
        folder: Path,
        peers: Iterable[str],
        limits: Limits,
        log: Log,
        keeper: Keeper | None = None,
        *,
        far: Iterable[str] = (),  # parties behind the relay
        disk: Disk = DISK,
    ) -> None:
        self.role, self.folder, self.limits, self.log = role, folder, limits, log
        self.guard = role.guard if isinstance(role, Releasing) else None
        self.evaluating_since = 0  # the time of day of an evaluation's first message, for its span; 0: none
        self._update, self._updated_at = 0, 0  # the last update, for its span
        self._storing = role if isinstance(role, Storing) else None
        if self._storing is not None:
            self._storing.open(FileStorage())  # for `read`, which needs no table
        self.keeper = keeper or Keeper()
        types = tuple(payloads)
        self._codec = Codec(types)
        self._wire = Codec([t for t in types if issubclass(t, Message)], limits.max_message_bytes, finite=True)
        queue = (limits.max_queue, limits.max_queue_bytes)
        self.peers = {name: Peer(name, Conversation(name, *queue)) for name in peers}
        # A party may send another party a share of all its data at once.
        self.peers |= {name: FarPeer(name, Conversation(name, *queue, bursts=True)) for name in far}
        self.jobs = Jobs(role.compute, self._work_done, self.fail)
        self.timers: dict[str, int] = {}  # name → due
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self.traffic, self.trace = Traffic(), Trace()
        self.refused: Counter[str] = Counter()  # since this process started, by kind of limit
        self._changes = Once(log)
        self.news: Callable[[], News] | None = None  # what a party tells the server from time to time
        self.now = 0
        self.finished = ""
        self.ended: asyncio.Event = asyncio.Event()  # finished, failed or stopped
        self.stopped = False  # by a signal, or by the program that runs this process
        self.error: Exception | None = None
        self._disk = disk
        self._commits = Commits(self.fail) if limits.durability == "power" else None
        self._checkpoints = Checkpoints(folder, 0o600, disk)
        self._touched = False  # the role, by a checkpoint
        self.damaged_files = 0  # found when this node started; an earlier checkpoint or less of a journal was used
        self._journal: Journal | None = None
        self._journals = 0  # the number of the journal in use
        self._start = CONTINUED  # how the next journal begins
        self._read_up_to = NOTHING  # the end of the last journal that was replayed
        self._trusted = True  # no record is missing at that end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = time.monotonic()
        self._clock_base = 0
        self._lock: int | None = None
        self.replayed = 0
        self._save_by, self._log_bytes, self._saved_at = 0.0, 0.0, 0.0
        self._plan_checkpoint(0)

    # Starting and stopping

    def open(self) -> None:
        """Start, or continue from checkpoint and journal. From here on events are handled."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = lock_file(self.folder / "lock")
        if self._storing is not None:
            self._storing.open(self._storage(empty=not self._checkpoints.exist()))
        known = self._recover()
        if self.error is not None:
            return  # it had failed earlier; its files stay unchanged and report the failure at every start
        self._loop = asyncio.get_running_loop()
        self._began, self._clock_base = time.monotonic(), self.now
        for peer in self.peers.values():
            peer.last_heard = self._began  # replaying may have taken long
        if known:
            self._handle(Record(self.now, Resumed(os.urandom(32))))
            self._start = RESUMED if self._trusted else RESTARTED
            self.checkpoint()
            self._hold(self._loop)
        else:
            self._journal = self._new_journal(NOTHING)
            self._hold(self._loop)
            self._give(Record(0, Started(os.urandom(32))))
        if self.finished:
            self.ended.set()
        else:
            self.jobs.begin(self._loop)
            for name, due in list(self.timers.items()):
                self._set_alarm(name, due)

    def _hold(self, loop: asyncio.AbstractEventLoop) -> None:
        """With durability "power", let nothing leave from here on before its event is on the disk."""
        if self._commits is not None:
            self._disk.sync_folder(self.folder)  # the name of the first journal
            for folder in list(self.folder.parents)[:NEW_FOLDERS]:
                with contextlib.suppress(PermissionError):  # then this process did not make it
                    self._disk.sync_folder(folder)
            self._commits.begin(loop, list(self.peers.values()))

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call when what follows from the events so far may leave; at once unless durability is "power"."""
        if self._commits is not None:
            self._commits.when_durable(call)
        else:
            call()

    async def settled(self) -> None:
        """Wait until what follows from the events so far may leave, or the node has failed."""
        if self._commits is not None:
            await self._commits.settled()

    def read(self) -> bool:
        """Restore checkpoint and journal without running or writing anything; returns whether there were any."""
        return self._recover()

    def _recover(self) -> bool:
        """Load the newest checkpoint that is whole, then replay what came after it; returns whether there was any."""
        try:
            found = self._checkpoints.recover(self._load)
        except DamagedFile:
            if self._touched or not self._replays_from_the_beginning():
                raise
            found = False
        if not found:
            self.keeper.load(None)
        for damage in self._checkpoints.damaged:
            self._say_damaged(damage, "the checkpoint before it is used" if found else "the journals are replayed")
        self._trusted = self._replay_journals(found)
        found = found or self.replayed > 0
        if found and not self._trusted:
            self.log.warning("the end of the journal may be lost: all conversations restart")
            self._give_up_all()
        return found

    def _replay_journals(self, found: bool) -> bool:
        """Replay the checkpoint's journal and those that follow it; returns whether no record is missing."""
        contents = self._read_journal(self._journals)
        if contents is None:
            return not found
        must_follow = bool(self._checkpoints.damaged)  # the damaged checkpoint had a journal of its own
        while True:
            for record in contents.records:
                self._replay(record)
            self.replayed += len(contents.records)
            self._read_up_to = contents.end
            following = self._read_journal(self._journals + 1)
            if following is None:
                return contents.trusted and not must_follow
            must_follow = False
            if following.before != contents.end:
                path = self._journal_path(self._journals)
                self._say_damaged(f"{path}: damaged: its end is missing", "the events before the damage are replayed")
                return False
            if not following.records:  # a kill interrupted a checkpoint
                return following.trusted and following.start != RESTARTED
            contents = following
            self._journals += 1
            if contents.start == RESTARTED:
                self._give_up_all()
            if contents.start != CONTINUED:
                self._handle(Record(self.now, Resumed(b"")))

    def _read_journal(self, number: int) -> Contents | None:
        """The journal with this number; None if it is not there."""
        path = self._journal_path(number)
        if not path.exists():
            return None
        contents = read_journal(path, self._codec, number, self._disk)
        if contents.end == NOTHING and number != self._journals:
            return None  # of an earlier use, or a kill interrupted its making
        if contents.damage:
            self._say_damaged(contents.damage, "the events before the damage are replayed")
        return contents

    def _replays_from_the_beginning(self) -> bool:
        """Whether all journals are still there; then no checkpoint is needed. Discards the tables, to be made again."""
        path = self._journal_path(0)
        if not path.exists() or not read_journal(path, self._codec, 0, self._disk).records:
            return False
        if self._storing is not None and self._lock is not None:
            self._storing.open(self._storage(empty=True))
        return True

    def _storage(self, *, empty: bool) -> FileStorage:
        return FileStorage(self.folder, empty=empty, disk=self._disk, power=self._commits is not None)

    def _say_damaged(self, damage: str, instead: str) -> None:
        self.damaged_files += 1
        self.log.warning("damaged file", fault=damage, instead=instead)

    def _give_up_all(self) -> None:
        for peer in self.peers.values():
            if peer.conversation.number != NEVER_MET:
                peer.conversation.give_up()

    def _replay(self, record: Record) -> None:
        try:
            if isinstance(record.event, Received):
                self.peers[record.event.sender].conversation.heard(record.acknowledged)  # as the stream did then
            elif isinstance(record.event, WorkDone) and record.again:
                record = self._computed_again(record, record.event)
            self._handle(record)
        except RemoteProtocolError:
            pass  # it was refused at that time, too
        except PartyDiverged as error:
            self._try_again(error.peer, error)
        except DataError as error:
            if not isinstance(record.event, Received):
                raise
            self._try_again(record.event.sender, error)
        except TrainingDiverged as error:
            self.fail(error)

    def _computed_again(self, record: Record, ended: WorkDone) -> Record:
        """The end of a job whose result the journal left out. The role's state is the one that the job began with."""
        work = next((work for work in self.jobs.pending if work.token == ended.token), None)
        if work is None or work.kind != record.again:
            path = self._journal_path(self._journals)
            raise CheckpointError(f"{path}: job {ended.token} ({record.again}) ends, and never began")
        return msgspec.structs.replace(record, event=WorkDone(ended.token, self.role.compute(work.job)))

    def _try_again(self, peer: str, error: Exception) -> None:
        """Continue after an error whose cause may lie with a peer, or may be mended by now.

        It ended this process, and the operator has started it again. The conversation restarts, so that both sides say
        again what they have to say. If the cause is still there, the error comes again.
        """
        self.log.warning("an earlier start ended here: trying again", cause=str(error))
        self.peers[peer].conversation.give_up()

    def checkpoint(self) -> None:
        """Write a checkpoint and begin a journal. A kill in between leaves files that belong together."""
        old = self._journal
        if old is not None and self._commits is not None:
            self._commits.now()  # the next journal names the end of this one
        self._journals += 1
        self._journal = self._new_journal(self._read_up_to if old is None else old.end)
        self._start = CONTINUED
        with span("checkpoint"):
            saved = self._save()
            size = self._checkpoints.write(saved)
        if self._storing is not None:
            self._storing.checkpointed(saved["role"])
        if old is not None:
            old.close()
        self._plan_checkpoint(size)
        fields = {"update": self.keeper.update(), "clock_s": round(self.now / NANOSECONDS, 1)}
        self.log.info("checkpoint", number=self._journals, **fields)

    def _new_journal(self, before: End) -> Journal:
        path = self._journal_path(self._journals)
        power = self._commits is not None
        made = Journal(path, self._codec, self._journals, self._start, before, self._disk, power)
        if self._commits is not None:
            self._commits.journal = made
        return made

    def _journal_path(self, number: int) -> Path:
        return self.folder / f"journal-{number % FILES}.log"

    def _save(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAIN} | {
            **stamp(NODE),
            "role": self.role.save(),
            "journals": self._journals,
            "timers": self.timers,
            "jobs": [work_out(work, self._codec) for work in self.jobs.pending],
            "peers": {peer.name: peer.save() for peer in self.peers.values()},
            "traffic": self.traffic.save(),
            "trace": (self.trace.digest, self.trace.events),
            "busy": (self.jobs.busy_s, self.jobs.aside_s),
            "lane": self.jobs.lane.save(),
            "keeper": self.keeper.save(),
        }

    def _load(self, path: Path, saved: Any) -> None:
        saved = NODE.read(saved, path)
        if set(saved["peers"]) != set(self.peers):
            raise CheckpointError(
                f"{path}: belongs to a federation with {', '.join(saved['peers'])}; use another folder"
            )
        self._touched = True
        for name in _PLAIN:
            setattr(self, name, saved[name])
        self.role.load(saved["role"])
        self._journals, self.timers = saved["journals"], saved["timers"]
        self.jobs.pending = [work_in(fields, self._codec) for fields in saved["jobs"]]
        for peer in self.peers.values():
            peer.load(saved["peers"][peer.name])
        self.traffic.load(saved["traffic"])
        self.trace.digest, self.trace.events = saved["trace"]
        self.jobs.busy_s, self.jobs.aside_s = saved["busy"]
        self.jobs.lane.load(saved["lane"])
        self.keeper.load(saved["keeper"])

    def close(self) -> None:
        """Stop cleanly: make everything durable, so that the next start trusts the journal."""
        self.jobs.close()
        for name in list(self._alarms):
            self._alarms.pop(name).cancel()
        try:
            if self._journal is not None and self.error is None:
                self.checkpoint()
            if self._commits is not None:
                self._commits.close()
            if self._journal is not None:
                self._journal.mark_closed()
        except (CheckpointError, OSError):
            if self.error is None:  # else a full disk may be the cause of the failure
                raise
        finally:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def stop(self) -> None:
        """End now, in any phase: wait for nothing more and start no other phase."""
        self.stopped = True
        self.ended.set()

    def fail(self, error: Exception) -> None:
        """End with this error. Only the first error is kept."""
        if self.error is None:
            self.error = error
        if self._commits is not None:
            self._commits.give_up()
        self.ended.set()

    # Events

    def clock(self) -> int:
        """Nanoseconds of training, without the time in which this node was down."""
        return max(self.now, self._clock_base + int((time.monotonic() - self._began) * NANOSECONDS))

    def received(self, peer: Peer, sequence: int, body: memoryview, evaluation: bool = False) -> None:
        """Decode, journal and handle a message that arrived on a stream. A repeat is dropped."""
        if self.finished or self.error is not None:
            return  # the peer has not heard of it yet
        if not peer.conversation.is_news(sequence):
            self.traffic.duplicates_dropped += 1
            return
        conversation, message = peer.conversation, self._wire.decode(body, peer.name)
        event = Received(peer.name, message)  # type: ignore[arg-type]
        acknowledged, size = conversation.acknowledged, len(body)
        self._give(Record(self.clock(), event, conversation.number, sequence, acknowledged, size, evaluation), body)

    def joined(self, peer: Peer, number: int, reset: bool, heard: int = 0) -> None:
        """Take note of a stream to a peer that has received `heard` messages.

        The role gets PeerJoined, unless it never noticed that the peer was away.
        """
        conversation = peer.conversation
        known = 0 if reset else heard - conversation.acknowledged  # had arrived, but the acknowledgement was lost
        if not reset:
            conversation.heard(heard)  # first: the role may add to a full queue
        if self.finished or self.error is not None:
            conversation.begin(number, reset)  # nothing more is journalled: the peer is only told that it is over
        elif reset or not peer.present or conversation.number != number:
            self._give(Record(self.clock(), PeerJoined(peer.name, reset), number))
        if reset:
            conversation.heard(heard)
        fields = {"reset": reset, "known": known}
        self._changes.info("joined", peer=peer.name, **{name: value for name, value in fields.items() if value})

    def lost(self, peer: Peer, cause: str = "") -> None:
        """Tell the role that the peer is gone: for this cause, or because it has been silent for too long."""
        why = {"cause": cause} if cause else {"silent_s": round(peer.silent_s(), 1)}
        self.log.warning("lost", peer=peer.name, **why)
        self._give(Record(self.clock(), PeerLost(peer.name)))

    def refuse(self, peer: Peer, cause: str) -> str:
        """Restart the conversation with a peer that sent something wrong. The message counts as not taken.

        Returns the reason if this was once too often: the peer is then given up as lost, and may not join again.
        """
        peer.conversation.give_up()  # if the role refused a message, `_handle` did this already
        if not peer.standing.refuse(cause, self.limits.max_refusals):
            return ""
        if peer.present:
            self.lost(peer, peer.standing.given_up)
        return peer.standing.given_up

    def overdue(self, peer: Peer, what: str, owed_s: float) -> None:
        """Give up a peer that is connected, but has owed something for too long."""
        cause = peer.standing.overdue(what, owed_s, self.limits.give_up_s)
        if peer.stream is not None:
            peer.stream.drop(cause)
        if peer.present:
            self.lost(peer, cause)

    def _work_done(self, work: Work, result: Payload) -> None:
        again = work.kind if work.repeatable else ""
        self._give(Record(self.clock(), WorkDone(work.token, result), again=again))

    def _timer_fired(self, name: str) -> None:
        self._alarms.pop(name, None)
        due = self.timers.get(name)
        if due is not None:
            self._give(Record(max(self.clock(), due), TimerFired(name, due)))

    def _give(self, record: Record, body: bytes | memoryview = b"") -> None:
        """Journal and handle an event. A failure ends the node, but a bad message ends only the peer's stream."""
        if self.finished or self.error is not None or self._journal is None:
            return
        try:
            self._journal.append(record, body)
            try:
                self._handle(record)
            finally:
                if self._commits is not None:
                    self._commits.noted()
            if self._checkpoint_due():
                self.checkpoint()
        except RemoteProtocolError as error:
            if not isinstance(record.event, Received):
                self.fail(error)
            else:
                self._shorten_log()
                raise  # ends the peer's stream
        except OSError as error:
            self.fail(NotWritable(f"{self.role.name}: cannot write beside {self.folder}: {error}"))
        except Exception as error:
            self.fail(error)

    def _shorten_log(self) -> None:
        """Write a checkpoint if one is due: refused messages are in the journal, too, and must not fill the disk."""
        try:
            if self._checkpoint_due():
                self.checkpoint()
        except Exception as error:
            self.fail(error)

    def _checkpoint_due(self) -> bool:
        assert self._journal is not None
        late_or_large = time.monotonic() > self._save_by or self._journal.size > self._log_bytes
        due = late_or_large or self.keeper.checkpoint_due(self)
        if due and not descriptors_left():
            self._save_by = time.monotonic() + LATER_S  # the journal goes on meanwhile
            self._changes.warning("no descriptor is left: the checkpoint waits")
            return False
        return due

    @property
    def journal_bytes(self) -> int:
        """The size of the journal in use."""
        return 0 if self._journal is None else self._journal.size

    @property
    def checkpoint_age_s(self) -> float:
        """Seconds since the last checkpoint, or since the node was made."""
        return time.monotonic() - self._saved_at

    def _plan_checkpoint(self, checkpoint_bytes: int) -> None:
        self._saved_at = time.monotonic()
        self._save_by = self._saved_at + self.limits.checkpoint_s
        self._log_bytes = max(self.limits.max_log_mb * 2**20, 2 * checkpoint_bytes)

    def _handle(self, record: Record) -> None:
        """Handle a live or a replayed event in the same way."""
        self.now, event = record.now, record.event
        start = time.monotonic()
        header = self._take_note(record)
        self.trace.add(record.now, 0, self.trace.events, 0, 0, record.size, header)
        try:
            effects = self.role.handle(event, record.now)
        except RemoteProtocolError:
            if isinstance(event, Received):
                peer = self.peers[event.sender]
                if peer.far or not self.forgiving:
                    peer.conversation.give_up()  # here, so that a replay does the same
            raise
        for effect in effects:
            self._perform(effect)
        if spans_on() and self._loop is not None:
            self._trace_update()
        seconds = time.monotonic() - start
        if seconds > SLOW_HANDLER_S and self._loop is not None:
            self.log.debug("slow handler", of=type(event).__name__, ms=round(seconds * 1000, 1))

    def _trace_update(self) -> None:
        """Make a span for each update: from the one before it until now."""
        update, now = self.keeper.update() or 0, time.time_ns()
        if update != self._update:
            if self._updated_at:
                past_span("update", self._updated_at, update=update)
            self._update, self._updated_at = update, now

    def _take_note(self, record: Record) -> bytes:
        """Update the node's own state for an event; returns the event's name for the trace."""
        match record.event:
            case Received(sender=sender, message=message):
                peer, kind, size = self.peers[sender], type(message).__name__, record.size
                peer.conversation.received = record.sequence
                if self._commits is not None:
                    self._commits.touch(peer)
                if peer.far:
                    peer.count_in(size)  # the sender counts what passes the relay
                elif record.evaluation:
                    self._count_evaluation(peer, size)
                else:
                    self.traffic.count_many(kind, self.role.name == "server", 1, size)
                    peer.count_in(size)
                return (kind + sender).encode()
            case WorkDone(token=token):
                self.jobs.settle(token)
            case TimerFired(name=name):
                self.timers.pop(name, None)
            case PeerJoined(peer=name, reset=reset):
                self.peers[name].conversation.begin(record.conversation, reset)
                self.peers[name].present = True
                if self._commits is not None:
                    self._commits.touch(self.peers[name])
            case PeerLost(peer=name):
                self.peers[name].present = False
        return type(record.event).__name__.encode()

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Work():
                self.jobs.submit(effect)
            case CancelWork(token=token):
                self.jobs.cancel(token)
            case SetTimer(name=name, at=at):
                self.timers[name] = at
                self._set_alarm(name, at)
            case CancelTimer(name=name):
                self.timers.pop(name, None)
                if name in self._alarms:
                    self._alarms.pop(name).cancel()
            case Emit(record=record):
                self.keeper.emitted(record, self)
            case Finish(reason=reason):
                self.finished = reason or "finished"
                self.ended.set()

    def _send(self, effect: Send) -> None:
        to, message, evaluation = effect.to, effect.message, effect.evaluation
        peer = self.peers.get(to)
        if peer is None:
            raise LocalProtocolError(f"{self.role.name}: no role {to!r} to send to")
        frame, conversation = self._wire.encode(message), peer.conversation
        for array in frame.buffers:
            if not all_finite(array):
                raise _diverged(self.role.name, message)
        if evaluation:
            self.evaluating_since = self.evaluating_since or time.time_ns()
            self._count_evaluation(peer, frame.size)
        elif peer.far:
            self.traffic.count_between(type(message).__name__, frame.size)
            peer.count_out(frame.size)
        else:
            self.traffic.count_many(type(message).__name__, to == "server", 1, frame.size)
            peer.count_out(frame.size)
        sealed = seal_message(conversation.sent + 1, conversation.received, frame, evaluation)
        conversation.put(sealed, self.trace.events)
        if self._commits is not None:
            self._commits.touch(peer)  # the commit wakes the stream
        elif peer.stream is not None:
            peer.stream.wake()
        if conversation.overflows and self._loop is not None:  # during a replay no peer acknowledges
            self._give_up(peer)

    def _give_up(self, peer: Peer) -> None:
        self._changes.warning("too many messages wait: the conversation will restart", peer=peer.name)
        self.refused["queue"] += 1
        peer.conversation.give_up()
        if peer.stream is not None:
            peer.stream.drop("too many messages wait for this peer")

    def _count_evaluation(self, peer: Peer, size: int) -> None:
        self.traffic.evaluation_bytes += size
        peer.bytes_evaluation += size

    def _set_alarm(self, name: str, due: int) -> None:
        if self._loop is None:
            return
        if name in self._alarms:
            self._alarms.pop(name).cancel()
        wait_s = max(0.0, (due - self.clock()) / NANOSECONDS)
        self._alarms[name] = self._loop.call_later(wait_s, self._timer_fired, name)

    # Liveness

    def look_around(self) -> None:
        """Send heartbeats, drop silent streams and report silent peers as lost."""
        for peer in self.peers.values():
            if peer.stream is not None:
                if peer.silent_s() > self.limits.lost_after_s:
                    peer.stream.drop(f"silent for {peer.silent_s():.1f} s")
                else:
                    peer.stream.beat(self.limits.heartbeat_s)
            elif peer.present and peer.silent_s() > self.limits.lost_after_s:
                self.lost(peer)

    async def watch(self) -> None:
        """Call `look_around` regularly, until cancelled."""
        while True:
            await asyncio.sleep(min(self.limits.heartbeat_s, self.limits.lost_after_s / 4))
            self.look_around()

    def utilisation(self) -> float:
        """The share of the clock in which the lane was busy."""
        return min(1.0, self.jobs.busy_s * NANOSECONDS / max(1, self.clock()))


def _diverged(role: str, message: Message) -> TrainingDiverged:
    what = type(message).__name__
    return TrainingDiverged(f"{role}: its {what} hold NaN or infinity; lower train.learning_rate")
