"""Encryption between two parties: the server carries the frames, but can neither open nor make them.

    opening     initiator → answerer   certificate, a fresh X25519 key e_i, signed
    answer      answerer → initiator   certificate, a fresh X25519 key e_a, the key that it answers, signed
    sealed      both ways              session (8 bytes) · counter (8) · ChaCha20-Poly1305

The certificate's key signs label, run, both names and the keys. The reader accepts only the certificate that its own
list of members pins. The keys of both directions are HKDF-SHA256 of X25519(e_i, e_a) over run, names and both public
keys.

A private key serves one session and is never written to disk. So no nonce is used twice, even if frames are replayed or
a party restarts from an old state. Counters only grow: a repeated or late frame is refused. A missing frame is not an
error here; the sender seals lost messages again (see `line`).
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from struct import Struct
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from colonnade.drivers.processes.identity import Identity
from colonnade.drivers.processes.members import Members
from colonnade.protocol.errors import ConfigError, RemoteProtocolError

__all__ = ["SEAL_BYTES", "SESSION_BYTES", "Announcement", "Session", "Signet", "public_bytes"]

LABEL = "colonnade sealed relay 1"
MAX_ANNOUNCEMENT_BYTES = 2**14
SESSION_BYTES = 8
_HEAD = Struct("<8sQ")
_NONCE = Struct("<4xQ")
_TAG_BYTES = 16
SEAL_BYTES = _HEAD.size + _TAG_BYTES
_HASH = ec.ECDSA(hashes.SHA256())

_Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key for one session, with the certificate and signature of the party that made it."""

    certificate: bytes  # DER
    key: _Key  # X25519
    signature: bytes
    answers: _Key | None = None  # the key in the opening


class Signet:
    """Signs a party's announcements, and checks those of other parties against their pinned fingerprints."""

    def __init__(self, identity: Identity, members: Mapping[str, str]) -> None:
        self.name, self.run = identity.name, ""
        self.read_with: dict[str, str] = {}  # the fingerprint behind the last announcement of each party
        self.changed(identity, members)

    def changed(self, identity: Identity, members: Mapping[str, str]) -> None:
        """Sign with this certificate from now on, and accept the certificates of this list only."""
        key = load_pem_private_key(identity.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                "network.key", identity.name, "must be a P-256 key, as `colonnade certs request` makes it"
            )
        self._key, self.members = key, Members.of(members)
        self._certificate = x509.load_pem_x509_certificate(identity.certificate).public_bytes(Encoding.DER)

    def announce(self, to: str, key: bytes, answers: bytes | None = None) -> bytes:
        """A signed announcement of this public key for a session with `to`."""
        signature = self._key.sign(_statement(self.run, self.name, to, key, answers), _HASH)
        return msgspec.msgpack.encode(Announcement(self._certificate, key, signature, answers))

    def read(self, sender: str, body: bytes | memoryview) -> Announcement:
        """An announcement from `sender` to us; raises RemoteProtocolError if it is not, or not for this run."""
        if len(body) > MAX_ANNOUNCEMENT_BYTES:
            raise RemoteProtocolError(sender, f"an announcement of {len(body)} bytes")
        try:
            found = msgspec.msgpack.decode(body, type=Announcement)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise RemoteProtocolError(sender, "an announcement that cannot be read") from None
        public = self._public_key(sender, found.certificate)
        try:
            public.verify(found.signature, _statement(self.run, sender, self.name, found.key, found.answers), _HASH)
        except InvalidSignature:
            raise RemoteProtocolError(sender, "an announcement that it did not sign for us and this run") from None
        self.read_with[sender] = hashlib.sha256(found.certificate).hexdigest()
        return found

    def _public_key(self, sender: str, der: bytes) -> ec.EllipticCurvePublicKey:
        """The public key of a pinned certificate. Other certificates are not even parsed."""
        shown = hashlib.sha256(der).hexdigest()
        if shown not in self.members.all_of(sender):
            raise RemoteProtocolError(sender, "a certificate that is not the one in the list of members")
        certificate = x509.load_der_x509_certificate(der)
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            raise RemoteProtocolError(sender, "a certificate that has expired or is not valid yet")
        public = certificate.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise RemoteProtocolError(sender, "a certificate whose key cannot sign announcements")
        return public


def _statement(run: str, sender: str, receiver: str, key: bytes, answers: bytes | None) -> bytes:
    return msgspec.msgpack.encode([LABEL, run, sender, receiver, key, answers])


class Session:
    """One X25519 agreement: seals frames to the peer and opens the peer's frames, each once and in order."""

    def __init__(self, me: str, peer: str, run: str, own: X25519PrivateKey, theirs: bytes, *, initiator: bool) -> None:
        self._peer = peer
        names, keys = [me, peer], [public_bytes(own), theirs]
        if not initiator:
            names.reverse()
            keys.reverse()
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(theirs))
        except ValueError:  # of low order: the shared secret would be known to anyone
            raise RemoteProtocolError(peer, "an invalid key") from None
        info = msgspec.msgpack.encode([LABEL, run, *names, *keys])
        material = HKDF(hashes.SHA256(), 2 * 32 + SESSION_BYTES, None, info).derive(secret)
        ciphers = ChaCha20Poly1305(material[:32]), ChaCha20Poly1305(material[32:64])
        self._seals, self._opens = ciphers if initiator else ciphers[::-1]
        self.id = material[64:]
        self._to, self._from = _path(me, peer), _path(peer, me)
        self.sealed = self.opened = 0  # the newest counters

    def seal(self, content: bytes) -> bytes:
        """A frame that only the peer can open."""
        self.sealed += 1
        head = _HEAD.pack(self.id, self.sealed)
        return head + self._seals.encrypt(_NONCE.pack(self.sealed), content, head + self._to)

    def open(self, frame: bytes | memoryview) -> bytes:
        """The content of a peer's frame; raises RemoteProtocolError without changing state."""
        if len(frame) < SEAL_BYTES:
            raise RemoteProtocolError(self._peer, f"a sealed frame of {len(frame)} bytes")
        id, counter = _HEAD.unpack_from(frame)
        if id != self.id:
            raise RemoteProtocolError(self._peer, "a frame of another session")
        if counter <= self.opened:
            raise RemoteProtocolError(self._peer, "a sealed frame that is a repetition, or comes too late")
        try:
            head, body = bytes(frame[: _HEAD.size]), frame[_HEAD.size :]
            content = self._opens.decrypt(_NONCE.pack(counter), body, head + self._from)
        except InvalidTag:
            raise RemoteProtocolError(self._peer, "a sealed frame that cannot be decrypted") from None
        self.opened = counter
        return content


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _path(sender: str, receiver: str) -> bytes:
    return msgspec.msgpack.encode([sender, receiver])
