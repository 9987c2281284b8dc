"""Each message arrives once and in order, whatever the line does; a missing message is never overlooked."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.drivers.processes.conversation import GIVEN_UP, NEVER_MET, Conversation
from colonnade.drivers.processes.wire import Position
from colonnade.protocol.errors import RemoteProtocolError


class Side:
    """One node's end: what it received and was told, and a cursor into its outbox while a stream lasts."""

    def __init__(self, peer):
        self.conversation = Conversation(peer, max_queue=10_000)
        self.taken, self.resets, self.said, self.next = [], 0, 0, 0

    def put(self):
        self.said += 1
        self.conversation.put(str(self.said).encode())

    def write(self):
        """The next frame: a message, or an acknowledgement alone."""
        conversation = self.conversation
        for sequence, data in conversation.outbox:
            if sequence >= self.next:
                self.next = sequence + 1
                return sequence, conversation.received, data
        return 0, conversation.received, b""

    def take(self, frame):
        sequence, acknowledged, data = frame
        self.conversation.heard(acknowledged)
        if sequence and self.conversation.is_news(sequence):
            self.conversation.received = sequence
            self.taken.append(int(data))

    def begin(self, number, reset):
        self.conversation.begin(number, reset)
        self.resets += reset


class Link:
    """An unreliable pipe in both directions between a server and a party, with the handshake of the real one."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.server, self.party = Side("bank"), Side("server")
        self.pipes = None
        self.numbers = 0

    def connect(self, welcome_lost=False):
        """As `Service._converse` and `Dialler._converse` do it."""
        self.pipes = None
        server, party = self.server.conversation, self.party.conversation
        hello = party.position()
        reset = not server.goes_on_with(hello)
        self.numbers += 1
        number = server.number if not reset and server.number > 0 else self.numbers
        self.server.begin(number, reset)
        server.heard(0 if reset else hello.received)
        if welcome_lost:
            return
        welcome = server.position()
        assert reset or party.agrees(welcome)
        self.party.begin(welcome.number, reset)
        party.heard(welcome.received)
        self.server.next, self.party.next = (0 if reset else hello.received) + 1, welcome.received + 1
        self.pipes = {self.party: deque(), self.server: deque()}

    def cut(self):
        """Lose all messages under way."""
        self.pipes = None

    def step(self):
        """Let something happen to one of the sides."""
        side = self.random.choice([self.server, self.party])
        other = self.party if side is self.server else self.server
        match self.random.randrange(8):
            case 0 | 1:
                side.put()
            case 2 | 3 | 4 if self.pipes is not None:
                self.pipes[other].append(side.write())
            case 5 | 6 if self.pipes is not None and self.pipes[side]:
                side.take(self.pipes[side].popleft())
            case 7 if self.random.random() < 0.3:
                self.cut()
            case _ if self.pipes is None:
                self.connect(welcome_lost=self.random.random() < 0.2)

    def settle(self):
        """A calm end: every message arrives."""
        if self.pipes is None:
            self.connect()
        for side, other in ((self.server, self.party), (self.party, self.server)) * 2:
            while True:
                while self.pipes[other]:
                    other.take(self.pipes[other].popleft())
                frame = side.write()
                other.take(frame)
                if not frame[0]:
                    break


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_everything_arrives_once_and_in_order(seed):
    line = Link(seed)
    for _ in range(300):
        line.step()
    line.settle()
    for side, other in ((line.server, line.party), (line.party, line.server)):
        assert other.taken == list(range(1, side.said + 1))
        assert not side.conversation.outbox and side.conversation.acknowledged == side.said
        assert side.resets == side.conversation.lost == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_a_side_that_was_rolled_back_is_noticed_or_says_so(seed, server_falls, knows_it):
    """Who knows that its newest part may be missing gives up; else positions tell, unless nothing differs."""
    line = Link(seed)
    line.connect()
    for _ in range(60):
        line.step()
    fallen = line.server if server_falls else line.party
    other = line.party if server_falls else line.server
    saved, said, taken = fallen.conversation.save(), fallen.said, list(fallen.taken)
    for _ in range(100):
        line.step()
    moved = fallen.conversation.received > saved["received"] or other.conversation.received > saved["sent"]
    forgotten = other.conversation.acknowledged > saved["received"]
    line.cut()
    fallen.conversation.load(saved)
    fallen.said, fallen.taken = said, taken
    if knows_it:
        fallen.conversation.give_up()
        for _ in range(20):
            fallen.put()
    before = line.server.resets, line.party.resets
    line.connect()
    was_reset = (line.server.resets, line.party.resets) != before
    assert line.server.resets == line.party.resets or not knows_it
    if knows_it or forgotten or other.conversation.number == GIVEN_UP:
        assert was_reset
    if not was_reset:
        assert not moved or not forgotten
    line.settle()
    for conversation in (line.server.conversation, line.party.conversation):
        assert not conversation.outbox and conversation.number > 0
    assert line.server.conversation.sent == line.party.conversation.received
    assert line.party.conversation.sent == line.server.conversation.received


def test_a_first_contact_keeps_what_was_queued():
    line = Link()
    for _ in range(3):
        line.party.put()
        line.server.put()
    assert line.party.conversation.number == NEVER_MET
    line.connect()
    line.settle()
    assert line.server.taken == line.party.taken == [1, 2, 3] and line.party.resets == 0


def test_a_welcome_that_was_lost_at_the_first_contact_loses_nothing():
    line = Link()
    line.party.put()
    line.server.put()
    line.connect(welcome_lost=True)
    line.server.put()
    line.connect()
    line.settle()
    assert (line.server.taken, line.party.taken, line.server.resets) == ([1], [1, 2], 0)


def test_a_party_without_its_memory_resets_the_conversation():
    line = Link()
    line.party.put()
    line.connect()
    line.settle()
    line.cut()
    line.party = Side("server")
    line.party.put()
    line.connect()
    line.settle()
    assert line.server.resets == line.party.resets == 1
    assert line.party.conversation.lost == 1, "what it queued before, the role says again when told of the reset"


def test_a_server_without_its_memory_resets_the_conversation():
    line = Link()
    line.server.put()
    line.connect()
    line.settle()
    line.cut()
    line.server = Side("bank")
    line.connect()
    line.settle()
    assert line.server.resets == line.party.resets == 1


def test_both_given_up_are_reset():
    line = Link()
    line.connect()
    for side in (line.server, line.party):
        side.put()
        side.conversation.give_up()
    assert line.server.conversation.number == line.party.conversation.number == GIVEN_UP
    line.connect()
    assert line.server.resets == line.party.resets == 1 and line.server.conversation.number > 0


def test_overflow_and_giving_up():
    conversation = Conversation("bank", max_queue=3)
    for _ in range(3):
        conversation.put(b"x")
    assert not conversation.overflows
    conversation.put(b"x")
    assert conversation.overflows
    conversation.give_up()
    assert not conversation.overflows and conversation.lost == 4
    assert conversation.position() == Position(GIVEN_UP, 0, 0, 0)


def test_acknowledgements_only_move_forward():
    conversation = Conversation("bank", 10)
    for number in range(4):
        conversation.put(bytes([number]))
    conversation.heard(3)
    conversation.heard(1)
    assert conversation.acknowledged == 3 and [sequence for sequence, _ in conversation.outbox] == [4]
    with pytest.raises(RemoteProtocolError, match="bank: acknowledges message 5 of 4"):
        conversation.heard(5)


def test_repeats_are_dropped_and_gaps_refused():
    conversation = Conversation("bank", 10)
    assert conversation.is_news(1)
    conversation.received = 1
    assert not conversation.is_news(1) and conversation.repeats_dropped == 1
    with pytest.raises(RemoteProtocolError, match="bank: sends message 3 after 1"):
        conversation.is_news(3)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4))
def test_no_claimed_position_breaks_anything(numbers):
    line = Link()
    line.server.put()
    line.connect()
    other = Position(*numbers)
    conversation = line.server.conversation
    if conversation.goes_on_with(other):
        assert (other.number, other.received) in [(1, 0), (1, 1), (NEVER_MET, 0)]
    conversation.agrees(other)


def test_save_and_load():
    conversation = Conversation("bank", 10)
    conversation.put(b"a")
    conversation.put(b"b")
    conversation.heard(1)
    conversation.number, conversation.received = 5, 3
    other = Conversation("bank", 10)
    other.load(conversation.save())
    assert other.position() == conversation.position() and other.outbox == conversation.outbox
