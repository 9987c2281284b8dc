"""A node killed at any moment restarts with the same state, jobs, timers, outbox and rows."""

import asyncio
import os
import random

import numpy as np
import pytest

from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.drivers import checkpoints
from colonnade.drivers.files import Disk
from colonnade.drivers.processes import node as node_module
from colonnade.drivers.processes.conversation import GIVEN_UP
from colonnade.drivers.processes.journal import Journal, Record, read_journal
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.simulator import Simulator
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError, LocalProtocolError, RemoteProtocolError, TrainingDiverged
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
from colonnade.protocol.messages import Array, Message, Payload

FAR = 10**15  # eleven days


class Number(Message, frozen=True):
    value: int
    values: Array


class Add(Payload, frozen=True):
    value: int


PAYLOADS = (Number, Add)


def number(value):
    return Number(value, np.full(3, value, np.float32))


def step(value):
    return Work(value, "step", 1.0, Add(value), repeatable=value % 2 == 1)


class Toy:
    """Does a little of everything; some numbers are commands."""

    def __init__(self, name="server"):
        self.name = name
        self.heard, self.sums, self.queue, self.busy, self.resets, self.resumed = [], [], [], False, 0, 0
        self.entropy = b""
        self.computed = []  # in this process

    def handle(self, event, now):
        match event:
            case Started(entropy=entropy) | Resumed(entropy=entropy):
                self.entropy = entropy
                self.resumed += isinstance(event, Resumed)
                return [SetTimer("begin", FAR)] if isinstance(event, Started) else []
            case Received(sender=sender, message=Number(value=value)):
                return self._received(sender, value, now)
            case WorkDone(token=token, result=Add(value=value)):
                return self._done(token, value)
            case TimerFired(name=name):
                return [Send("bank", number(-1)), SetTimer(f"{name}+", now + FAR)]
            case PeerJoined(peer=peer, reset=reset):
                self.resets += reset
                return [Send(peer, number(0))]
            case PeerLost():
                return [Emit(Add(-1))]
        raise LocalProtocolError("toy")

    def _received(self, sender, value, now):
        if value == 666:
            raise RemoteProtocolError(sender, "sent the number of the beast")
        if value == 667:
            raise TrainingDiverged("667")
        if value == 668:
            return [Send("nobody", number(1))]
        if value == 669:
            return [Send(sender, Number(1, np.array([np.nan], np.float32)))]
        self.heard.append(value)
        if value == 999:
            return [Finish("enough")]
        effects = [Send(sender, number(value)), SetTimer(f"t{value % 4}", now + FAR)]
        if value % 3 == 0:
            effects.append(Work(-value - 1, "aside", 0.1, Add(value), aside=True))
        elif self.busy:
            self.queue.append(value)
        else:
            self.busy = True
            effects.append(step(value))
        if value % 5 == 0:
            effects += [Emit(Add(value)), CancelTimer("t1")]
        if value % 10 == 6:
            effects.append(CancelWork(-value - 1))
        return effects

    def _done(self, token, value):
        self.sums.append(value)
        if token < 0:
            return [Send("bank", number(value))]
        self.busy = bool(self.queue)
        if not self.queue:
            return []
        following = self.queue.pop(0)
        return [step(following), Send("bank", number(value))]

    def compute(self, job):
        self.computed.append(job.value)
        return Add(job.value * 2)

    def save(self):
        return {name: getattr(self, name) for name in ("heard", "sums", "queue", "busy", "resets")}

    def load(self, saved):
        for name, value in saved.items():
            setattr(self, name, value)

    def validate(self):
        pass

    def summary(self):
        return {}


WIRE = Codec(PAYLOADS)


class Bank:
    """Feeds a node as a stream does."""

    def __init__(self, tools, folder, limits=None):
        self.tools, self.folder, self.limits, self.sequence = tools, folder, limits or tools.CALM, 0
        self.node = None

    def start(self):
        self.node = self.tools.make_node(Toy(), PAYLOADS, self.folder, ["bank", "clinic"], self.limits)
        self.node.open()
        return self.node

    def meet(self, reset=False, number=7):
        self.node.joined(self.node.peers["bank"], number, reset)
        self.sequence = 0 if reset else self.sequence

    def say(self, value):
        self.sequence += 1
        body = memoryview(bytes(WIRE.encode(number(value))))
        self.node.received(self.node.peers["bank"], self.sequence, body)

    async def settle(self):
        await self.tools.until(lambda: not self.node.jobs.pending, "the jobs")

    def restart(self):
        """Kill and restart; the node must be unchanged."""
        before = self.tools.picture(self.node)
        self.tools.kill(self.node)
        node = self.start()
        after = self.tools.picture(node)
        assert node.role.resumed == 1 and len(node.role.entropy) == 32
        self.tools.assert_same(after, before)
        return node


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_goes_on_as_it_was(seed, tmp_path, tools):
    chance = random.Random(seed)

    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        said = []
        for value in range(1, 60):
            match chance.randrange(8):
                case 0:
                    bank.restart()
                case 1:
                    await bank.settle()
                case 2:
                    conversation = bank.node.peers["bank"].conversation
                    conversation.heard(chance.randrange(conversation.sent + 1))
                case 3:
                    bank.node.checkpoint()
                case 4:
                    bank.node._timer_fired(chance.choice(list(bank.node.timers) or ["none"]))
                case 5 if bank.node.peers["bank"].present:
                    bank.node.lost(bank.node.peers["bank"])
                case 5:
                    bank.meet()
            bank.say(value)
            said.append(value)
        bank.restart()
        await bank.settle()
        role = bank.node.role
        assert role.heard == said
        cancelled = {value for value in said if value % 10 == 6 and value % 3 == 0}
        assert sorted(role.sums) == [2 * value for value in said if value not in cancelled]
        assert set(bank.node._alarms) == set(bank.node.timers)
        rows = [row for row in bank.node.keeper.path.read_text().splitlines() if row != repr(Add(-1))]
        assert rows == [repr(Add(value)) for value in said if value % 5 == 0]
        bank.node.close()

    asyncio.run(run())


def test_only_results_of_repeatable_jobs_are_left_out_and_computed_again(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in (1, 2, 3, 4, 5):
            bank.say(value)
            await bank.settle()
        assert sorted(bank.node.role.computed) == [1, 2, 3, 4, 5]  # 3 aside
        records = read_journal(tmp_path / "journal-0.log", Codec(PAYLOADS)).records
        ends = {record.event.token: record for record in records if isinstance(record.event, WorkDone)}
        assert {token: record.event.result for token, record in ends.items()} == {
            1: None, 2: Add(4), -4: Add(6), 4: Add(8), 5: None
        }  # fmt: skip
        assert {token: record.again for token, record in ends.items()} == {1: "step", 2: "", -4: "", 4: "", 5: "step"}
        bank.restart()
        assert bank.node.role.computed == [1, 5] and bank.node.role.sums == [2, 4, 6, 8, 10]
        bank.node.close()

    asyncio.run(run())


def test_a_repeatable_job_that_a_checkpoint_holds_is_computed_again(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(1)
        bank.node.checkpoint()  # the job runs
        await bank.settle()
        bank.restart()
        assert bank.node.role.computed == [1] and bank.node.role.sums == [2]
        bank.node.close()

    asyncio.run(run())


@pytest.mark.parametrize(("token", "kind"), [(2, "step"), (1, "refine")])
def test_an_end_of_a_job_that_never_began_is_refused_by_name(token, kind, tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(1)
        bank.node._journal.append(Record(bank.node.now, WorkDone(token, Add(2)), again=kind))
        tools.kill(bank.node)
        with pytest.raises(CheckpointError, match=rf"journal-0\.log: job {token} \({kind}\) ends, and never began"):
            bank.start()
        tools.kill(bank.node)

    asyncio.run(run())


def test_a_clean_stop_goes_on_too(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in (1, 3, 4):
            bank.say(value)
        before = tools.picture(bank.node)
        bank.node.close()
        node = bank.start()
        assert tools.picture(node) == before and node.replayed == 0
        await bank.settle()
        assert sorted(node.role.sums) == [2, 6, 8]
        node.close()

    asyncio.run(run())


def test_what_the_bank_repeats_is_dropped(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in (1, 2):
            bank.say(value)
        bank.restart()
        bank.sequence = 1
        bank.say(2)
        bank.say(3)
        assert bank.node.role.heard == [1, 2, 3] and bank.node.traffic.duplicates_dropped == 1
        bank.node.close()

    asyncio.run(run())


class Crash(BaseException):
    """The process ends here."""


def crash(*_, **__):
    raise Crash


def rename_only_the_old_one(self, old, new):
    if new.name == checkpoints.NEWEST:
        raise Crash
    old.replace(new)


CRASHES = {
    "before the new log": lambda patch: patch.setattr(node_module, "Journal", crash),
    "before the new checkpoint": lambda patch: patch.setattr(checkpoints, "write_beside", crash),
    "before its rename": lambda patch: patch.setattr(Disk, "rename", crash),
    "between its renames": lambda patch: patch.setattr(Disk, "rename", rename_only_the_old_one),
    "after its rename": lambda patch: patch.setattr(Journal, "close", crash),
}


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("place", CRASHES)
def test_a_crash_between_the_steps_of_a_checkpoint(place, rounds, tmp_path, tools, monkeypatch):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in range(rounds):
            bank.say(value + 1)
            bank.node.checkpoint()
        for value in (11, 12, 13):
            bank.say(value)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            CRASHES[place](patch)
            bank.node.checkpoint()
        node = bank.restart()
        assert node.role.heard == [*range(1, rounds + 1), 11, 12, 13]
        bank.say(14)
        bank.restart()
        assert bank.node.role.heard[-1] == 14
        bank.node.close()

    asyncio.run(run())


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_a_flipped_bit_in_the_checkpoint_is_found_and_nothing_is_lost(rounds, tmp_path, tools):
    """The checkpoint before it and two journals give the same state; before the second one, the journals alone."""

    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in range(rounds):
            bank.say(value + 1)
            bank.node.checkpoint()
        bank.say(15)
        flip(tmp_path / "checkpoint.safetensors", -1)
        node = bank.restart()
        assert node.damaged_files == 1 and node.peers["bank"].conversation.number == 7
        said = node.log.stream.getvalue()
        assert f"{tmp_path / 'checkpoint.safetensors'}: damaged: the checksum of its" in said
        flip(tmp_path / "checkpoint.safetensors", 50)  # the one that the restart wrote
        assert bank.restart().role.heard == [*range(1, rounds + 1), 15]
        bank.node.close()

    asyncio.run(run())


def test_two_damaged_checkpoints_are_refused_by_their_names(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        for _ in range(3):
            bank.node.checkpoint()
        tools.kill(bank.node)
        for name in (checkpoints.NEWEST, checkpoints.BEFORE):
            flip(tmp_path / name, 100)
        with pytest.raises(CheckpointError) as caught:
            bank.start()
        assert all(str(tmp_path / name) in str(caught.value) for name in (checkpoints.NEWEST, checkpoints.BEFORE))
        assert "start a new run" in str(caught.value)
        os.close(bank.node._lock)

    asyncio.run(run())


def test_without_the_journal_between_them_the_checkpoint_before_is_used_and_conversations_restart(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        for value in (1, 2, 3):
            bank.say(value)
            bank.node.checkpoint()
        bank.say(4)
        tools.kill(bank.node)
        flip(tmp_path / checkpoints.NEWEST, -1)
        flip(tmp_path / "journal-2.log", -1)  # the second: the message 3 is its last record
        node = bank.start()
        assert node.role.heard == [1, 2] and node.peers["bank"].conversation.number == GIVEN_UP
        assert "journal-2.log: damaged: its end is missing" in node.log.stream.getvalue()
        node.close()

    asyncio.run(run())


def test_a_crash_right_after_the_log_was_begun_is_a_fresh_start(tmp_path, tools, monkeypatch):
    async def run():
        bank = Bank(tools, tmp_path)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Journal, "append", crash)
            bank.start()
        tools.kill(bank.node)
        node = bank.start()
        assert node.role.resumed == 0 and node.timers == {"begin": FAR}
        node.close()

    asyncio.run(run())


def test_two_nodes_on_one_state_are_refused(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        first = bank.start()
        with pytest.raises(
            CheckpointError, match="another process uses this folder; stop it, or choose another folder"
        ):
            bank.start()
        first.close()
        bank.start().close()

    asyncio.run(run())


def test_another_federations_state_is_refused(tmp_path, tools):
    async def run():
        Bank(tools, tmp_path).start().close()
        other = tools.make_node(Toy(), PAYLOADS, tmp_path, ["bank", "hospital"])
        with pytest.raises(CheckpointError, match="belongs to a federation with bank, clinic; use another folder"):
            other.open()
        os.close(other._lock)

    asyncio.run(run())


def test_a_refused_message_is_not_taken_and_the_conversation_restarts_in_the_replay_too(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(1)
        before = bank.node.role.save() | {}
        with pytest.raises(RemoteProtocolError, match="bank: sent the number of the beast"):
            bank.say(666)
        assert bank.node.role.save() == before and bank.node.error is None
        conversation = bank.node.peers["bank"].conversation
        assert (conversation.number, conversation.received, conversation.sent) == (GIVEN_UP, 0, 0)
        bank.restart()
        conversation = bank.node.peers["bank"].conversation
        assert (conversation.number, conversation.received, conversation.sent) == (GIVEN_UP, 0, 0)
        bank.meet(reset=True)
        bank.say(3)
        bank.restart()
        assert bank.node.role.heard == [1, 3] and bank.node.role.resets == 1
        bank.node.close()

    asyncio.run(run())


def test_a_garbled_message_is_not_logged_and_not_taken(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        size = bank.node._journal.size
        for body in (b"", b"garbage", bytes(WIRE.encode(Number(1, np.array([np.inf]))))):
            with pytest.raises(RemoteProtocolError, match="bank: "):
                bank.node.received(bank.node.peers["bank"], 1, memoryview(body))
        assert bank.node._journal.size == size and bank.node.peers["bank"].conversation.received == 0
        bank.say(1)
        assert bank.node.role.heard == [1]
        bank.node.close()

    asyncio.run(run())


@pytest.mark.parametrize("full", ["log", "checkpoint", "rows"])
def test_a_full_disk_ends_the_node_with_its_cause(full, tmp_path, tools, monkeypatch):
    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(1)
        heard = list(bank.node.role.heard)
        with monkeypatch.context() as patch:
            if full == "log":
                patch.setattr(Disk, "write", no_space)
            elif full == "checkpoint":
                patch.setattr(checkpoints, "write_beside", no_space)
                patch.setattr(bank.node.keeper, "checkpoint_due", lambda node: True)
            else:
                patch.setattr(bank.node.keeper, "emitted", no_space)
            bank.say(5)
            assert isinstance(bank.node.error, CheckpointError) and "No space left" in str(bank.node.error)
            assert str(tmp_path) in str(bank.node.error) and bank.node.ended.is_set()
            bank.say(7)  # messages that still arrive are not lost, and their senders are not at fault
            bank.say(8)
            bank.node.close()
        bank.start()
        assert bank.node.role.heard == (heard if full == "log" else [*heard, 5])
        bank.sequence = bank.node.peers["bank"].conversation.received
        bank.say(7)
        assert bank.node.role.heard[-1] == 7
        bank.node.close()

    asyncio.run(run())


@pytest.mark.parametrize(("value", "cause"), [(668, "no role 'nobody' to send to"), (669, "its Number hold NaN")])
def test_a_role_that_breaks_the_contract_ends_the_node(value, cause, tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(value)
        assert cause in str(bank.node.error)
        bank.node.close()

    asyncio.run(run())


def test_divergence_is_found_again_at_every_start(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(667)
        for _ in range(3):
            assert isinstance(bank.node.error, TrainingDiverged) and bank.node.ended.is_set()
            bank.node.close()
            bank.start()
        bank.node.close()

    asyncio.run(run())


def test_a_finished_node_takes_nothing_more_and_stays_finished(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(999)
        assert bank.node.finished == "enough" and bank.node.ended.is_set()
        bank.say(1)
        bank.say(2)
        assert bank.node.role.heard == [999]
        bank.restart()
        assert bank.node.ended.is_set()
        bank.node.close()

    asyncio.run(run())


def test_a_lost_tail_restarts_all_conversations(tmp_path, tools, monkeypatch):
    async def run():
        bank = Bank(tools, tmp_path)
        bank.start()
        bank.meet()
        bank.say(1)
        tools.kill(bank.node)
        monkeypatch.setattr(Disk, "boot_id", lambda self: b"x" * 16)
        node = bank.start()
        conversations = {name: peer.conversation for name, peer in node.peers.items()}
        assert conversations["bank"].number == GIVEN_UP and conversations["bank"].lost == 2
        assert conversations["clinic"].number == 0, "never met: nothing of it can be lost"
        bank.meet(reset=True, number=8)
        bank.say(2)
        assert node.role.heard == [1, 2] and node.role.resets == 1
        bank.restart()
        node.close()

    asyncio.run(run())


def test_flooding_an_absent_peer_restarts_the_conversation_instead_of_growing(tmp_path, tools):
    async def run():
        bank = Bank(tools, tmp_path, Limits(max_queue=5, checkpoint_s=1e6, lost_after_s=1e6, heartbeat_s=1e5))
        bank.start()
        bank.meet()
        for value in range(1, 40):
            bank.say(3 * value + 1)
            conversation = bank.node.peers["bank"].conversation
            assert len(conversation.outbox) <= 5
            bank.sequence = conversation.received
        assert conversation.lost > 0
        tools.kill(bank.node)
        bank.start()  # the replay itself gives up no conversation
        bank.meet(reset=True, number=9)
        assert len(bank.node.peers["bank"].conversation.outbox) == 1
        bank.node.close()

    asyncio.run(run())


# The roles of a real method


TABLES = {
    "model": {"party": "linear", "embedding": 4, "server": "linear"},
    "train": {"updates": 40, "batch_size": 64, "learning_rate": 0.3, "eval_every": 10},
}


@pytest.fixture(scope="module")
def setting():
    data = split(load("digits"), parties=2)

    def make(method, table="memory", **options):
        tables = TABLES | {"protocol": {"name": method, **options}, "server": {"table": table}}
        return federation(from_dict(tables), data)

    return make


def weights(roles):
    return [role.summary()["weights"] for role in roles]


@pytest.mark.parametrize(
    ("method", "table"),
    [
        ("vafl", "memory"), ("vafl", "file"), ("sync", "memory"), ("t-sync", "file"), ("swift", "memory"),
        ("cascaded", "memory"), ("zoo", "memory"), ("flex", "memory"), ("wait", "memory"),
    ],
)  # fmt: skip
def test_a_federation_whose_members_are_killed_all_the_time(method, table, setting, tmp_path, tools):
    options = {"timeout_s": 0.002, "max_steps": 3} if method == "flex" else {}
    found = setting(method, table, **options)
    chance = random.Random(1)
    kills = 0

    def start(role):
        peers = [name for name in names if (name == "server") != (role.name == "server")]
        node = tools.make_node(role, found.method.payloads, tmp_path / role.name, peers)
        node.open()
        post.nodes[role.name] = node
        for name in names[1:]:
            if len(post.nodes) == len(names) and role.name in ("server", name):
                assert not post.meet(name)

    def kill_one():
        name = chance.choice(names)
        before = tools.picture(post.nodes[name])
        tools.kill(post.nodes.pop(name))
        role = next(role for role in found.roles() if role.name == name)
        node = tools.make_node(role, found.method.payloads, tmp_path / name, list(before["outboxes"]))
        node.open()
        tools.assert_same(tools.picture(node), before)
        post.nodes[name] = node
        for party in names[1:]:
            if name in ("server", party):
                assert not post.meet(party)

    async def run():
        nonlocal kills
        for role in found.roles():
            start(role)
        for name in names[1:]:
            if post.nodes[name].peers["server"].conversation.number == 0:
                post.meet(name)
        server = post.nodes["server"]
        while not post.nodes["server"].finished:
            pairs = [(one, other) for one in names for other in names if (one == "server") != (other == "server")]
            post.carry(*chance.choice(pairs), most=chance.randrange(1, 4))
            if chance.random() < (0.005 if method == "flex" else 0.05):  # a phase of flex takes real time
                kill_one()
                kills += 1
            await asyncio.sleep(0)
        server = post.nodes["server"]
        assert server.role.progress.k >= 40 and kills > 5
        rows = server.keeper.path.read_text().splitlines()
        assert len(rows) == len(set(rows)) >= 4
        if method == "sync":
            calm = Simulator(found.roles(), Codec(found.method.payloads), found.config.clock, found.config.train.seed)
            calm.run()
            assert weights(post.nodes[name].role for name in names) == weights(node.role for node in calm.nodes)
        for node in post.nodes.values():
            node.role.validate()
            node.close()

    names = ["server", *found.data.parties]
    post = tools.Post()
    asyncio.run(run())
