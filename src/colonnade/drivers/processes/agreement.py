"""How two parties agree upon a session while the relay between them may lose, repeat and invent.

The opener sends a key, the answerer answers it with one of its own (see `sealing` for what is signed). Each key serves
one session. The answerer keeps the session in use until it hears something sealed in the new one: an opening that the
relay has kept from earlier days ends nothing, since nobody can go on with it.
"""

import time
from collections import deque
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.drivers.processes.sealing import SESSION_BYTES, Session, Signet, public_bytes
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["Agreement", "Pace"]

BURST, BURST_S = 8, 8.0  # so many openings are answered within so long, and greetings: each costs something


class Pace:
    """Not too often."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=BURST)

    def keep(self, peer: str, what: str) -> None:
        """Raise if this is one too many."""
        now = time.monotonic()
        if len(self._recent) == BURST and now - self._recent[0] < BURST_S:
            raise RemoteProtocolError(peer, f"too many {what}")
        self._recent.append(now)


class Offer(NamedTuple):
    """An answered opening; the opener has not used it yet."""

    opening: bytes  # its key
    answer: bytes
    session: Session


class Agreement:
    """One party's side; whoever's name comes first opens."""

    def __init__(self, signet: Signet, peer: str) -> None:
        self.signet, self._peer, self.opens = signet, peer, signet.name < peer
        self.session: Session | None = None
        self._key: X25519PrivateKey | None = None  # of an opening without an answer
        self._offer: Offer | None = None
        self._openings = Pace()

    def forget(self) -> None:
        """Whatever was agreed upon or under way."""
        self.session = self._key = self._offer = None

    def open(self) -> bytes:
        """An opening; the session before is over."""
        self.forget()
        self._key = X25519PrivateKey.generate()
        return self.signet.announce(self._peer, public_bytes(self._key))

    def answer(self, opening: memoryview) -> bytes:
        """The answer to an opening; to the same one, the same."""
        self._openings.keep(self._peer, "openings")
        theirs = self.signet.read(self._peer, opening).key
        if self._offer is None or self._offer.opening != theirs:
            own = X25519PrivateKey.generate()
            answer = self.signet.announce(self._peer, public_bytes(own), theirs)
            self._offer = Offer(theirs, answer, self._made(own, theirs))
        return self._offer.answer

    def take_answer(self, answer: memoryview) -> bool:
        """Whether it answers our opening, and there is a session now."""
        found, own = self.signet.read(self._peer, answer), self._key
        if own is None or found.answers != public_bytes(own):
            return False  # an earlier one, which had to wait
        self.session, self._key = self._made(own, found.key), None
        return True

    def read(self, frame: memoryview) -> bytes | None:
        """What the peer has sealed; None: in a session that is over."""
        id = bytes(frame[:SESSION_BYTES])
        if self._offer is not None and id == self._offer.session.id:
            content = self._offer.session.open(frame)
            self.session, self._offer = self._offer.session, None  # only its opener could seal that
            return content
        if self.session is not None and id == self.session.id:
            return self.session.open(frame)
        return None

    def _made(self, own: X25519PrivateKey, theirs: bytes) -> Session:
        return Session(self.signet.name, self._peer, self.signet.run, own, theirs, initiator=self.opens)
