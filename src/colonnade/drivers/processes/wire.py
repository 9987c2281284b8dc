"""What travels on a stream between the server and a party.

    frame       kind (1 byte) · evaluation (1) · 6 bytes zero · sequence (8) · acknowledged (8) · body
    HELLO       party → server, once: the party's terms, and its position in the conversation
    WELCOME     server → party, once: whether the conversation continues or restarts
    MESSAGE     both ways: a role's message, numbered; the body is a frame of the codec; 1 if sent for evaluation
    ACK         both ways: the newest message that the journal holds; also the heartbeat. A party's may carry News.
    END, BYE    server → party: training is over; party → server: a summary, and goodbye
    REFUSAL     both ways: why a HELLO or a message was not accepted, and whether to try again
    RELAY       party → server → party: a name (first the receiver's, then the sender's) and sealed content
    PRESENCE    server → party: which parties are connected; only if parties talk to each other

Control bodies are msgpack, checked and limited in size like everything that arrives. Their texts are harmless (see
`protocol.foreign`), and their numbers are in range.

Two releases speak the newest protocol that both know. A HELLO says the oldest protocol that the party speaks in its
body, and the newest in the sequence of its frame. The sequence of the WELCOME is the agreed one. (Release 0.1 leaves
both sequences 0: it speaks protocol 6 only.) A frame kind that is newer than `OLDEST_PROTOCOL` is in `_SINCE`, and is
written only if `speaks` says that the peer knows it.
"""

from enum import IntEnum
from struct import Struct
from typing import Annotated, Any, TypeVar

import msgspec

from colonnade.drivers.simulator.timeline import BINS
from colonnade.privacy.accountant import Spent
from colonnade.protocol.codec import Frame
from colonnade.protocol.errors import CodecError, RemoteProtocolError
from colonnade.protocol.foreign import clean_struct, text_fields

__all__ = [
    "ENVELOPE_BYTES",
    "OLDEST_OFFER",
    "OLDEST_PROTOCOL",
    "PERMILLE",
    "PROTOCOL",
    "RELAY_BYTES",
    "Bye",
    "End",
    "Envelope",
    "Hello",
    "Kind",
    "LaneBins",
    "News",
    "Position",
    "Presence",
    "Question",
    "Refusal",
    "Welcome",
    "acknowledge",
    "agree",
    "control",
    "news_body",
    "open_envelope",
    "protocol_of_welcome",
    "read_control",
    "read_hello",
    "read_news",
    "read_question",
    "read_relay",
    "relay",
    "seal_envelope",
    "seal_message",
    "speaks",
]

PROTOCOL = 7  # the newest that this release speaks; 6: release 0.1, 7: release 0.2
OLDEST_PROTOCOL = 6
OLDEST_OFFER = 7  # a party needs a server that speaks this: a HELLO of release 0.2 names the members in another way
OLDEST_RELEASE = "0.1"  # the first release that speaks the oldest protocol
MAX_CONTROL_BYTES = 2**20
MAX_CLOCK_NS = 2**58  # nine years
MAX_SEQUENCE = 2**62  # of messages, and of the numbers of conversations
MAX_SILENT_S = 1e9
MAX_BIN_MS = 2**30
MAX_NEWS_BYTES = 4096
MAX_QUESTION_BYTES, MAX_ROWS = 64, 2**40
MAX_BUDGET = 1e300
PERMILLE = 1000

_HEADER = Struct("<B?6xQQ")
ENVELOPE_BYTES = _HEADER.size
MAX_NAME_BYTES = 255
RELAY_BYTES = 2 * ENVELOPE_BYTES + 1 + MAX_NAME_BYTES + 64  # the most that a relayed message grows


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    MESSAGE = 3
    ACK = 4
    END = 5
    BYE = 6
    REFUSAL = 7
    RELAY = 8
    PRESENCE = 9


_KINDS = frozenset(Kind)
_SINCE: dict[Kind, int] = {}  # the first protocol that has this kind, if it is newer than the oldest protocol


def speaks(protocol: int, kind: Kind) -> bool:
    """Whether a peer with this agreed protocol knows frames of this kind."""
    return protocol >= _SINCE.get(kind, OLDEST_PROTOCOL)


_MESSAGE = int(Kind.MESSAGE)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The parts of a frame."""

    kind: int
    sequence: int
    acknowledged: int
    body: memoryview
    evaluation: bool = False  # of a message


Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one side is in a conversation."""

    number: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE)]
    sent: Sequence  # of its newest message to the other side
    acknowledged: Sequence  # it keeps none of its own messages up to here
    received: Sequence  # its journal holds the other side's messages up to here


class Offer(msgspec.Struct, frozen=True):
    """What is read of a HELLO first: a HELLO of another release may have other fields."""

    protocol: int
    release: str


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms that both sides must agree on, and the party's position. The name is in the certificate."""

    protocol: int  # the oldest that the party speaks
    release: str
    shared: dict[str, Any]  # the shared part of the config
    rows: int
    ids_sha256: str
    width: int
    dtype: str
    instance: int  # of this process
    position: Position


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's answer to a HELLO that it accepts."""

    reset: bool
    position: Position  # the server's; its number is valid from now on
    run: Annotated[str, msgspec.Meta(pattern=r"^[ -~]{0,64}\Z")] = ""  # a server that starts a new run has another
    clock: Annotated[int, msgspec.Meta(ge=0, le=MAX_CLOCK_NS)] = 0  # the run's, in ns, when this was written


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a HELLO or to a message that the receiver does not accept."""

    cause: str
    final: bool  # trying again without a change is useless


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: str
    note: str = ""


Shares = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=PERMILLE)]], msgspec.Meta(max_length=BINS)]


class LaneBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a party was busy, in bins of the run's clock. Shares are in thousandths of a bin."""

    bin_ms: int  # a power of two
    busy: Shares
    known: Shares  # the party was connected, and still has its record

    def __post_init__(self) -> None:
        if not 0 < self.bin_ms <= MAX_BIN_MS or self.bin_ms.bit_count() != 1:
            raise ValueError(f"bins of {self.bin_ms} ms")
        if len(self.busy) != len(self.known):
            raise ValueError(f"{len(self.busy)} bins busy, {len(self.known)} known")


class Bye(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A party's summary at the end."""

    weights: str  # a digest; "": not given
    utilisation: Annotated[float, msgspec.Meta(ge=0, le=1)]
    privacy: Spent | None = None  # if the party accounts for it
    lane: LaneBins | None = None


class News(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a party tells about itself while it trains: the body of an ACK. An earlier release ignores that body."""

    lane: LaneBins
    utilisation: Annotated[float, msgspec.Meta(ge=0, le=1)]
    privacy: Spent | None = None  # if the party accounts for it
    budget: Annotated[float, msgspec.Meta(gt=0, le=MAX_BUDGET)] | None = None  # ε that the party is ready to spend


Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SILENT_S)]


class Presence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which parties are connected, according to the server."""

    here: dict[str, int]  # name → number of its connection; a new number is a new connection
    silent_s: dict[str, Seconds]  # of parties that left: since they were heard


_Control = TypeVar("_Control", Offer, Hello, Welcome, Refusal, End, Bye, News, Presence, Position)


def seal_envelope(kind: Kind, sequence: int, acknowledged: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(kind, False, sequence, acknowledged) + body


def seal_message(sequence: int, acknowledged: int, body: Frame, evaluation: bool = False) -> bytes:
    """A MESSAGE frame. This makes the only copy of what the role sends."""
    return body.after(_HEADER.pack(_MESSAGE, evaluation, sequence, acknowledged))


def acknowledge(frame: bytes, acknowledged: int) -> bytes:
    """The same frame with another acknowledgement."""
    kind, evaluation, sequence, before = _HEADER.unpack_from(frame)
    if before == acknowledged:
        return frame
    return b"".join((_HEADER.pack(kind, evaluation, sequence, acknowledged), memoryview(frame)[ENVELOPE_BYTES:]))


def open_envelope(data: bytes | memoryview, peer: str) -> Envelope:
    """Split a frame; raises CodecError if it is too short or of unknown kind."""
    if len(data) < ENVELOPE_BYTES:
        raise CodecError(peer, f"frame of {len(data)} bytes is too short")
    kind, evaluation, sequence, acknowledged = _HEADER.unpack_from(data)
    if kind not in _KINDS:
        raise CodecError(peer, f"frame of unknown kind {kind}")
    return Envelope(kind, sequence, acknowledged, memoryview(data)[ENVELOPE_BYTES:], evaluation)


def control(kind: Kind, content: msgspec.Struct, protocol: int = 0) -> bytes:
    """A frame with a control body; `protocol` is for a HELLO and a WELCOME."""
    return seal_envelope(kind, protocol, 0, msgspec.msgpack.encode(content))


def agree(oldest: int, newest: int) -> int | None:
    """The newest protocol that this release and a peer both speak; None if there is none."""
    both = min(newest, PROTOCOL)
    return both if both >= max(oldest, OLDEST_PROTOCOL) else None


def read_hello(envelope: Envelope, peer: str, release: str) -> tuple[Hello, int]:
    """A HELLO and the agreed protocol. `release` is this release.

    Raises RemoteProtocolError with the release to install if there is no such protocol, and CodecError.
    """
    offer = read_control(envelope, Kind.HELLO, Offer, peer)
    newest = max(offer.protocol, envelope.sequence)
    protocol = agree(offer.protocol, newest)
    if protocol is None:
        theirs = _range(offer.protocol, newest)
        remedy = f"install release {offer.release} on the server"
        if newest < OLDEST_PROTOCOL:
            remedy = f"install release {release} on {peer} (release {OLDEST_RELEASE} or newer also fits)"
        raise RemoteProtocolError(
            peer,
            f"{peer} speaks {theirs} (release {offer.release}), and the server speaks "
            f"{_range(OLDEST_PROTOCOL, PROTOCOL)} (release {release}): {remedy}",
        )
    return read_control(envelope, Kind.HELLO, Hello, peer), protocol


def _range(oldest: int, newest: int) -> str:
    return f"protocol {oldest}" if oldest == newest else f"protocols {oldest} to {newest}"


def protocol_of_welcome(envelope: Envelope, peer: str) -> int:
    """The protocol that the server chose; raises RemoteProtocolError if this side did not offer it."""
    protocol = envelope.sequence or OLDEST_PROTOCOL
    if not OLDEST_OFFER <= protocol <= PROTOCOL:
        raise RemoteProtocolError(peer, f"chooses protocol {protocol}, which this party did not offer")
    return protocol


def read_control(envelope: Envelope, kind: Kind, content: type[_Control], peer: str) -> _Control:
    """The control body of a frame; raises CodecError if it is not of this kind, too long or malformed."""
    if envelope.kind != kind:
        raise CodecError(peer, f"frame of kind {Kind(envelope.kind).name}, expected {kind.name}")
    if len(envelope.body) > MAX_CONTROL_BYTES:
        raise CodecError(peer, f"{kind.name} of {len(envelope.body)} bytes, the limit is {MAX_CONTROL_BYTES}")
    try:
        found = msgspec.msgpack.decode(envelope.body, type=content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(peer, f"{kind.name} cannot be read: {str(error)[:200]}") from None
    clean_struct(found, text_fields(content))
    return found


def news_body(news: News) -> bytes:
    """The body of an ACK with these news; empty if they are too long."""
    body = msgspec.msgpack.encode(news)
    return body if len(body) <= MAX_NEWS_BYTES else b""


def read_news(envelope: Envelope, peer: str) -> News:
    """The news in a party's ACK; raises CodecError."""
    if len(envelope.body) > MAX_NEWS_BYTES:
        raise CodecError(peer, f"ACK with {len(envelope.body)} bytes of news, the limit is {MAX_NEWS_BYTES}")
    return read_control(envelope, Kind.ACK, News, peer)


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request for the status that also asks for what a page shows. Without it the body is empty."""

    since: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]  # the number of lines of metrics.jsonl that the asker has


def read_question(body: bytes, peer: str) -> Question:
    """The question of a member; raises CodecError."""
    if len(body) > MAX_QUESTION_BYTES:
        raise CodecError(peer, f"question of {len(body)} bytes, the limit is {MAX_QUESTION_BYTES}")
    try:
        return msgspec.msgpack.decode(body, type=Question)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(peer, f"its question cannot be read: {str(error)[:200]}") from None


def relay(name: str, *content: bytes | memoryview) -> bytes:
    """A RELAY frame to, or from, this party."""
    text = name.encode()
    return b"".join((_HEADER.pack(Kind.RELAY, False, 0, 0), bytes([len(text)]), text, *content))


def read_relay(body: memoryview, peer: str) -> tuple[str, memoryview]:
    """The name on a RELAY frame and its content; raises CodecError."""
    end = 1 + body[0] if len(body) else 1
    if len(body) < end:
        raise CodecError(peer, "RELAY without a name")
    try:
        return str(body[1:end], "utf-8"), body[end:]
    except UnicodeDecodeError:
        raise CodecError(peer, "RELAY with an invalid name") from None
