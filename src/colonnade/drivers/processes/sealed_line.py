"""A sealed line: one end of the conversation between two parties. The server carries the frames and cannot read them.

    opening, answer    both agree on a session (see `session_agreement`); the party whose name sorts first opens
    HELLO, WELCOME     sealed: the opener's position, the answerer's decision; a HELLO of the answerer asks for one
    MESSAGE, ACK       sealed: the same frames as on a stream to the server
    REFUSAL            sealed: why the role did not take a message; both then start a new conversation

A line starts again whenever one of the two connects to the server again. It does not rely on the relay. A party that
misses a message, or waits too long for an acknowledgement, makes both exchange positions again (`_mend`). They continue
from there and seal everything again.

A frame that does not open may come from the relay: the line drops and counts it. A frame that opens is the peer's. If
its content is malformed, the line stays shut until the peer connects again. If the role refused too many messages, the
line stays shut for good. Other lines are not affected.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from colonnade.drivers.processes.peer import ACK_AFTER_S, FarPeer
from colonnade.drivers.processes.sealing import Session, Signet
from colonnade.drivers.processes.session_agreement import Pace, SessionAgreement
from colonnade.drivers.processes.wire import (
    RELAY_BYTES,
    Envelope,
    Kind,
    Position,
    Refusal,
    Welcome,
    acknowledge,
    open_envelope,
    read_control,
    seal_envelope,
)
from colonnade.protocol.errors import CodecError, RemoteProtocolError

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node
    from colonnade.drivers.processes.switchboard import Switchboard

__all__ = ["ANSWER", "OPENING", "SEALED", "SealedLine"]

OPENING, ANSWER, SEALED = b"\1", b"\2", b"\3"  # the first byte of what the relay carries
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0  # until an opening or a greeting is sent again
MAX_WORDS = 4  # a newer handshake replaces an older one
MAX_NUMBER = 2**62


_HELLO = bytes([Kind.HELLO])


class SealedLine:
    """One party's end of the line."""

    def __init__(self, switchboard: "Switchboard", node: "Node", peer: FarPeer, signet: Signet) -> None:
        self._switchboard, self._node, self._peer = switchboard, node, peer
        self.name = peer.name
        self.agreement = SessionAgreement(signet, peer.name)
        self._words: deque[tuple[Session | None, bytes]] = deque(maxlen=MAX_WORDS)  # written before all else
        self._held = self._era = 0  # words that wait for the disk; changes when the line closes, and they are dropped
        self._greetings = 0
        self._hellos = Pace()  # limits the peer's greetings
        self._again: asyncio.TimerHandle | None = None
        self._pause = FIRST_PAUSE_S
        self._shut = False
        self.stands = False  # both know their positions: messages travel
        self._next = 1
        self._told = 0  # the newest sequence that we acknowledged
        self._ack_due = self._ack_planned = False
        self._flight: deque[tuple[int, int]] = deque()  # sequence and size of unacknowledged messages
        self.flying = 0  # their bytes
        self._moved_at = 0.0

    # Called by the switchboard

    def reach(self) -> None:
        """Start the line: the peer can be reached, and one of the two has a new connection."""
        self.leave()
        if self.agreement.opens and not self._shut:
            self._open()

    def leave(self) -> None:
        """Close the line: the peer cannot be reached."""
        self._close()
        self._stop_trying()
        self.agreement.forget()
        self._words.clear()
        self._held, self._era = 0, self._era + 1
        self._pause, self._shut = FIRST_PAUSE_S, bool(self._peer.standing.given_up)

    def take(self, content: memoryview) -> None:
        """Take a frame that arrived in the peer's name; raises RemoteProtocolError if it does not open."""
        if self._shut:
            return
        kind, body = bytes(content[:1]), content[1:]
        if kind == OPENING and not self.agreement.opens:
            self._say(None, ANSWER + self.agreement.answer(body))
        elif kind == ANSWER and self.agreement.opens:
            self._take_answer(body)
        elif kind == SEALED:
            self._take_sealed(body)
        else:
            raise RemoteProtocolError(self._peer.name, "a relayed frame of a kind that it may not send")

    def next_frame(self) -> tuple[bytes, bytes] | None:
        """The kind and content of the next frame to write; None if there is none."""
        if self._words:
            session, word = self._words.popleft()
            return (word[:1], word[1:]) if session is None else (SEALED, session.seal(word))
        session = self.agreement.session
        if not self.stands or session is None or self._held:
            return None
        received = self._peer.conversation.may_acknowledge
        if self._may_write():
            frame = acknowledge(self._next_message(), received)
        elif self._ack_due:
            frame = seal_envelope(Kind.ACK, 0, received)
        else:
            return None
        self._told, self._ack_due = received, False
        return SEALED, session.seal(frame)

    # Called by the node

    def wake(self) -> None:
        """Tell the switchboard that there is something to write."""
        self._switchboard.wants(self)

    def drop(self, cause: str) -> None:
        """Exchange positions: the conversation was given up and restarts."""
        self._mend()

    def beat(self, heartbeat_s: float) -> None:
        """Notice a message that was lost on the way and that no later message reveals."""
        if self._flight and time.monotonic() - self._moved_at > self._node.limits.lost_after_s / 2:
            self._mend()

    def finish(self, last_word: bytes) -> None:
        """Do nothing: the server ends the training, not a line."""

    def released(self) -> None:
        """Write what may leave now."""
        if self.stands:
            self._plan_ack()
            self.wake()

    # Sessions

    def _open(self) -> None:
        self._close()
        self._say(None, OPENING + self.agreement.open())
        self._try_later(self._open)

    def _take_answer(self, body: memoryview) -> None:
        if self.agreement.take_answer(body):
            self._greet()
        else:
            self._switchboard.stale += 1

    def _take_sealed(self, frame: memoryview) -> None:
        before = self.agreement.session
        content = self.agreement.read(frame)
        if content is None:
            self._switchboard.stale += 1  # in transit while a new session started
            return
        if self.agreement.session is not before:
            self._close()
        if content[:1] == _HELLO:
            self._hellos.keep(self._peer.name, "greetings")
        try:
            self._hear(open_envelope(content, self._peer.name))
        except RemoteProtocolError as error:
            self._shut_down(error)

    def _shut_down(self, error: RemoteProtocolError) -> None:
        """Shut this line only: the peer itself sealed something malformed."""
        self.leave()
        self._shut = True
        self._switchboard.refused(error)

    # Greetings

    def _mend(self) -> None:
        """Exchange positions with the peer and continue from there."""
        if self.agreement.opens:
            self._greet()
        else:
            self._ask()

    def _greet(self) -> None:
        self._close()
        if self.agreement.session is None:
            return  # a session is being agreed on, and starts with a greeting
        self._greetings += 1
        position = msgspec.msgpack.encode(self._peer.conversation.position())
        self._say(self.agreement.session, seal_envelope(Kind.HELLO, self._greetings, 0, position))
        self._try_later(self._open)

    def _ask(self) -> None:
        self._close()
        if self.agreement.session is not None:
            self._say(self.agreement.session, seal_envelope(Kind.HELLO, 0, 0))
            self._try_later(self._ask)

    def _hear(self, envelope: Envelope) -> None:
        """Handle a frame that the peer itself sealed."""
        if envelope.kind == Kind.HELLO:
            if self.agreement.opens:
                self._greet()
            else:
                self._welcome(envelope)
        elif envelope.kind == Kind.WELCOME and self.agreement.opens:
            if envelope.sequence == self._greetings and not self.stands:
                self._welcomed(read_control(envelope, Kind.WELCOME, Welcome, self._peer.name))
        elif envelope.kind == Kind.REFUSAL:
            self._switchboard.refused_by(self.name, read_control(envelope, Kind.REFUSAL, Refusal, self.name).cause)
        elif envelope.kind not in (Kind.MESSAGE, Kind.ACK):
            raise RemoteProtocolError(self._peer.name, f"{Kind(envelope.kind).name} on a sealed line")
        elif self.stands:
            self._converse(envelope)

    def _welcome(self, envelope: Envelope) -> None:
        """Decide as the answerer whether the conversation continues, as the server does with a party."""
        theirs = read_control(envelope, Kind.HELLO, Position, self._peer.name)
        conversation = self._peer.conversation
        reset = not conversation.goes_on_with(theirs)
        number = conversation.number if not reset and conversation.number > 0 else secrets.randbelow(MAX_NUMBER) + 1
        heard = 0 if reset else theirs.received
        self._node.joined(self._peer, number, reset, heard)
        if conversation.number != number:
            self._mend()  # given up at once
            return
        welcome = msgspec.msgpack.encode(Welcome(reset, conversation.position()))
        self._say(self.agreement.session, seal_envelope(Kind.WELCOME, envelope.sequence, 0, welcome))
        self._stand(heard)

    def _welcomed(self, welcome: Welcome) -> None:
        if not welcome.reset and not self._peer.conversation.agrees(welcome.position):
            return  # given up in the meantime: the next opening says so
        number, heard = welcome.position.number, 0 if welcome.reset else welcome.position.received
        if not 0 < number <= MAX_NUMBER:
            raise RemoteProtocolError(self._peer.name, "a conversation without a number")
        self._node.joined(self._peer, number, welcome.reset, heard)
        if self._peer.conversation.number == number:
            self._stand(heard)
        else:
            self._mend()  # given up at once

    # Messages

    def _stand(self, heard: int) -> None:
        self._close()
        self._stop_trying()
        self._pause = FIRST_PAUSE_S
        self.stands, self._next, self._told = True, heard + 1, self._peer.conversation.may_acknowledge
        self._peer.stream, self._peer.met = self, True
        self.wake()

    def _close(self) -> None:
        """Send no messages for now."""
        if self.stands:
            self.stands = False
            self._peer.last_heard = time.monotonic()
        if self._peer.stream is self:
            self._peer.stream = None
        self._ack_due = False
        self._flight.clear()
        self._land(self.flying)

    def _converse(self, envelope: Envelope) -> None:
        peer, conversation = self._peer, self._peer.conversation
        peer.last_heard = time.monotonic()
        if envelope.acknowledged >= self._next:
            raise RemoteProtocolError(peer.name, "acknowledges a message that was not sent to it yet")
        conversation.heard(envelope.acknowledged)
        self._arrived(envelope.acknowledged)
        if envelope.kind == Kind.ACK:
            return
        if envelope.sequence > conversation.received + 1:
            self._mend()  # one was lost on the way
            return
        self._receive(envelope)
        if self.stands:
            self._plan_ack()

    def _receive(self, envelope: Envelope) -> None:
        try:
            self._node.received(self._peer, envelope.sequence, envelope.body, envelope.evaluation)
        except CodecError:
            raise  # it cannot be decoded, however often it comes
        except RemoteProtocolError as error:
            self._refuse(error)

    def _refuse(self, error: RemoteProtocolError) -> None:
        """Tell the peer why the role did not take its message, and start a new conversation."""
        given_up = self._node.refuse(self._peer, error.cause)
        self._switchboard.refused(error)
        refusal = msgspec.msgpack.encode(Refusal(given_up or error.cause, bool(given_up)))
        self._close()
        self._say(self.agreement.session, seal_envelope(Kind.REFUSAL, 0, 0, refusal))
        if given_up:
            self._shut = True
        else:
            self._mend()

    def _arrived(self, acknowledged: int) -> None:
        landed = 0
        while self._flight and self._flight[0][0] <= acknowledged:
            landed += self._flight.popleft()[1]
        if landed:
            self._moved_at = time.monotonic()
            self._land(landed)
            self.wake()

    def _land(self, size: int) -> None:
        if size:
            self.flying -= size
            self._switchboard.landed(size)

    def _may_write(self) -> bool:
        conversation, room = self._peer.conversation, self._switchboard.room
        if self._next > min(conversation.may_send, conversation.acknowledged + self._node.limits.max_in_flight):
            return False
        size = self._size_of(self._frame(self._next))
        if self._flight and self.flying + size > room.pair:
            return False
        return self._switchboard.has_room(self, size)

    def _next_message(self) -> bytes:
        frame = self._frame(self._next)
        size = self._size_of(frame)
        if not self._flight:
            self._moved_at = time.monotonic()
        self._flight.append((self._next, size))
        self.flying += size
        self._switchboard.flying += size
        self._next += 1
        return frame

    def _frame(self, sequence: int) -> bytes:
        outbox = self._peer.conversation.outbox
        return outbox[sequence - outbox[0][0]][1]

    @staticmethod
    def _size_of(frame: bytes) -> int:
        return len(frame) + RELAY_BYTES

    def _plan_ack(self) -> None:
        if (self._peer.conversation.received - self._told) * 2 >= self._node.limits.max_in_flight:
            self._ack_now()
        elif not self._ack_planned:
            self._ack_planned = True
            asyncio.get_running_loop().call_later(ACK_AFTER_S, self._ack_in_time)

    def _ack_in_time(self) -> None:
        self._ack_planned = False
        self._ack_now()

    def _ack_now(self) -> None:
        if self.stands and self._peer.conversation.may_acknowledge != self._told:
            self._ack_due = True
            self.wake()

    # Handshakes

    def _say(self, session: Session | None, word: bytes) -> None:
        """Write this word when the events before it are on the disk."""

        self._held, era = self._held + 1, self._era

        def ready() -> None:
            if era == self._era:
                self._held -= 1
                self._words.append((session, word))
                self.wake()

        self._node.when_durable(ready)

    def _try_later(self, what: Callable[[], None]) -> None:
        self._stop_trying()
        self._again = asyncio.get_running_loop().call_later(self._pause, what)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)

    def _stop_trying(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
