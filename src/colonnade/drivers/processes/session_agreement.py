"""How two parties agree on a session although the relay between them may lose, repeat and invent frames.

The opener sends a key, and the answerer replies with a key of its own (see `sealing` for what is signed). Each key
serves one session. The answerer keeps the current session until it receives a frame sealed in the new one. So an old
opening that the relay repeats does not end a session, because the relay cannot seal anything in the new one.
"""

import time
from collections import deque
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.drivers.processes.sealing import SESSION_BYTES, Session, Signet, public_bytes
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["Pace", "SessionAgreement"]

BURST, BURST_S = 8, 8.0  # answer at most so many openings within so many seconds; the same for greetings


class Pace:
    """Limits how often a peer may do something: `BURST` times in `BURST_S` seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=BURST)

    def keep(self, peer: str, what: str) -> None:
        """Count one more; raises RemoteProtocolError if it is too many."""
        now = time.monotonic()
        if len(self._recent) == BURST and now - self._recent[0] < BURST_S:
            raise RemoteProtocolError(peer, f"too many {what}")
        self._recent.append(now)


class Offer(NamedTuple):
    """An answered opening that the opener has not used yet."""

    opening: bytes  # the key in the opening
    answer: bytes
    session: Session


class SessionAgreement:
    """One party's side of the agreement. The party whose name sorts first opens."""

    def __init__(self, signet: Signet, peer: str) -> None:
        self.signet, self._peer, self.opens = signet, peer, signet.name < peer
        self.session: Session | None = None
        self._key: X25519PrivateKey | None = None  # of our opening that has no answer yet
        self._offer: Offer | None = None
        self._openings = Pace()

    def forget(self) -> None:
        """Discard the session and any handshake in progress."""
        self.session = self._key = self._offer = None

    def open(self) -> bytes:
        """Make an opening. The previous session ends."""
        self.forget()
        self._key = X25519PrivateKey.generate()
        return self.signet.announce(self._peer, public_bytes(self._key))

    def answer(self, opening: memoryview) -> bytes:
        """Answer an opening. A repeated opening gets the same answer again."""
        self._openings.keep(self._peer, "openings")
        theirs = self.signet.read(self._peer, opening).key
        if self._offer is None or self._offer.opening != theirs:
            own = X25519PrivateKey.generate()
            answer = self.signet.announce(self._peer, public_bytes(own), theirs)
            self._offer = Offer(theirs, answer, self._made(own, theirs))
        return self._offer.answer

    def take_answer(self, answer: memoryview) -> bool:
        """Take an answer; False if it does not belong to our newest opening. If True, there is a session."""
        found, own = self.signet.read(self._peer, answer), self._key
        if own is None or found.answers != public_bytes(own):
            return False  # the answer to an earlier opening, delivered late
        self.session, self._key = self._made(own, found.key), None
        return True

    def read(self, frame: memoryview) -> bytes | None:
        """The content of a sealed frame; None if its session is over."""
        id = bytes(frame[:SESSION_BYTES])
        if self._offer is not None and id == self._offer.session.id:
            content = self._offer.session.open(frame)
            self.session, self._offer = self._offer.session, None  # only the opener could seal this frame
            return content
        if self.session is not None and id == self.session.id:
            return self.session.open(frame)
        return None

    def _made(self, own: X25519PrivateKey, theirs: bytes) -> Session:
        return Session(self.signet.name, self._peer, self.signet.run, own, theirs, initiator=self.opens)
