"""The server's side of the network: it admits parties, and holds one stream to each.

Parties connect to the server, so this is the only open port. TLS refuses a caller without a certificate of the
federation. This module then checks the list of parties, the pinned fingerprint and the handshake. A refusal ends the
connection, is logged once, and is answered more slowly each time. If the role refuses a message, the party is told why
and connects again with a new conversation, until it was refused too often (see `standing`). Calls, joins and
connections are limited (see `Limits`); what goes beyond a limit is counted in `Node.refused`. Callers that are not
members share no limit with members, and the server reads nothing that they send.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import msgspec

from colonnade import __version__
from colonnade.drivers.processes.certificates import Identity, fingerprint
from colonnade.drivers.processes.connections import Connections, connections_allowed, raise_descriptor_limit
from colonnade.drivers.processes.conversation import NEVER_MET
from colonnade.drivers.processes.grpc_health import HealthService
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.members import Members
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import Peer, Stream
from colonnade.drivers.processes.relay import Relay
from colonnade.drivers.processes.spans import span
from colonnade.drivers.processes.timeline import Attendance
from colonnade.drivers.processes.wire import (
    ENVELOPE_BYTES,
    RELAY_BYTES,
    Bye,
    End,
    Hello,
    Kind,
    News,
    Refusal,
    Welcome,
    control,
    open_envelope,
    read_control,
    read_hello,
    read_news,
    read_question,
)
from colonnade.protocol.errors import CodecError, ConfigError, RemoteProtocolError
from colonnade.protocol.foreign import harmless
from colonnade.protocol.quota import MINUTE_S, Bucket, take_from_all

__all__ = [
    "BROKEN",
    "FAREWELL_S",
    "JOIN",
    "SERVICE",
    "STATUS",
    "RetryLater",
    "Service",
    "channel_options",
    "until_it_ends",
]

SERVICE, JOIN, STATUS = "colonnade.Federation", "Join", "Status"
REQUEST_S = 2.0  # for the empty request of a status
FAREWELL_S = 5.0
NEWS_PAUSE_S = 2.0  # between two reports of one party
MAX_ABSENT_S = 10.0  # extra time for parties that are away at the end
REFUSAL_DELAYS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # by refusals of the same peer within a minute
MAX_DELAYED = 64
MAX_GUESTS = 1000
MAX_NAME = 255  # characters of a name in a certificate
TOO_MANY = "too many calls at the same time"
AT_DOOR_S = 5.0  # a party waits so long for the others, is told which are missing, and tries again

BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
Terms = Callable[[str, Hello], str | None]  # what differs between a party's HELLO and the server's terms; None: nothing


def channel_options(max_message_bytes: int, heartbeat_s: float, lost_after_s: float) -> list[tuple[str, int]]:
    """gRPC options for both sides: sizes, and pings that notice a dead connection."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes + ENVELOPE_BYTES + RELAY_BYTES),
        ("grpc.max_send_message_length", max_message_bytes + ENVELOPE_BYTES + RELAY_BYTES),
        ("grpc.keepalive_time_ms", max(1000, int(1000 * heartbeat_s))),
        ("grpc.keepalive_timeout_ms", max(1000, int(1000 * lost_after_s))),
        ("grpc.min_reconnect_backoff_ms", max(1000, min(20_000, int(2000 * lost_after_s)))),  # for connecting
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


class RetryLater(str):
    """A difference that may pass with time: a party that is refused for it may try again."""

    __slots__ = ()


class Refused(Exception):
    """A caller that is refused; `final` if trying again is useless, `waited` if it needs no further delay."""

    def __init__(self, cause: str, final: bool = True, waited: bool = False) -> None:
        self.cause = harmless(cause)  # a guest may have chosen a part of it
        super().__init__(self.cause)
        self.final, self.waited = final, waited


class Service:
    """Admits parties to a node and answers questions about its status."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        members: Mapping[str, str],
        terms: Terms,
        status: Callable[[], dict[str, Any]],
        *,
        admit_late: bool = True,
        run: str = "",
        relay: bool = False,
    ) -> None:
        self._node, self._identity, self._members = node, identity, Members.of(members)
        self._served: Identity | None = None  # that gRPC has
        self.shown: dict[str, bytes] = {}  # the certificate of each party at its last join
        self._terms, self._status, self._admit_late, self._run = terms, status, admit_late, run
        self.relay = Relay(node) if relay else None  # if parties talk to each other
        self._complaints, self._changes = Once(node.log), Once(node.log)
        self._outsiders = Once(node.log)  # apart: many addresses must not hide other complaints
        self._refusals: dict[str, list[float]] = {}
        self._delayed = 0
        self._calls: Counter[str] = Counter()  # in progress, by member; "": of callers that are not members
        self._open: set[Any] = set()  # contexts of these calls
        self._joins = {name: Bucket(node.limits.max_joins, MINUTE_S) for name in node.peers}
        self._connections: Connections | None = None
        self._watch: asyncio.Future[None] | None = None
        self._instances: dict[str, int] = {}
        self._at_door: list[str] = []  # parties that wait until all are here
        self._all_came = asyncio.Event()
        self.attendance = Attendance(list(node.peers))
        self.byes: dict[str, Bye] = {}
        self.news: dict[str, News] = {}  # the newest of each party
        self._news_at: dict[str, float] = {}
        self.live: Callable[[int], dict[str, Any]] | None = None  # what a page shows; the argument: see `Question`
        self.unready: Callable[[], list[str]] = list  # why the host cannot make progress now
        self.health_changed: Callable[[], Awaitable[object]] = asyncio.Event().wait  # for Watch; the host sets both
        self._end: bytes | None = None  # once training is over: the END frame for all
        self._server: Any = None

    async def start(self, address: str) -> str:
        """Listen; returns the address with the actual port. Raises ConfigError if the port is taken."""
        limits = self._node.limits
        options = channel_options(limits.max_message_bytes, limits.heartbeat_s, limits.lost_after_s)
        raise_descriptor_limit()
        connections = connections_allowed(limits.max_connections)
        options += [
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.handshake_s)),  # of TLS
            ("grpc.max_connection_idle_ms", max(1000, int(1000 * limits.handshake_s))),  # without a call
        ]
        # gRPC's own limit of calls in all would let one caller keep the others out.
        self._server = grpc.aio.server(options=options)
        handlers = {
            JOIN: grpc.stream_stream_rpc_method_handler(self._join),
            # A stream of one request: gRPC would wait for a single request without a limit, and without telling.
            STATUS: grpc.stream_stream_rpc_method_handler(self._answer_status),
        }
        health = HealthService(
            (SERVICE,),
            lambda context: self._asked(context, "the health"),
            lambda: not self.unready(),
            lambda: self.health_changed(),  # noqa: PLW0108 - the host sets it later
        )
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((handler, health.handler()))
        # gRPC asks for the certificate at every handshake, so a renewed one needs no new socket.
        credentials = grpc.dynamic_ssl_server_credentials(self._shows(), self._renewed, True)
        self._exclude()
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(
                "network.address",
                address,
                "cannot listen there: another server may use this port; stop it, or choose another port",
            )
        self._connections = Connections(port, connections, self._hung_up_on)
        await self._server.start()
        self._watch = asyncio.ensure_future(self._connections.watch(limits.handshake_s, limits.max_per_address))
        return f"{address.rpartition(':')[0]}:{port}"

    def _shows(self) -> Any:
        """What the server shows at a handshake, and whose certificates it accepts."""
        own = self._served = self._identity
        return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authority)

    def _renewed(self) -> Any:
        """What the server shows from now on; None: as before. gRPC calls it in a thread of its own."""
        return None if self._served is self._identity else self._shows()

    def changed(self, identity: Identity, members: Mapping[str, str]) -> None:
        """Show another certificate from now on, and hang up on the parties that the new list excludes."""
        self._identity, self._members = identity, Members.of(members)
        self._exclude()

    def _exclude(self) -> None:
        """Give up the parties that are not on the list, and hang up on those whose certificate is not."""
        for name, peer in self._node.peers.items():
            gone = "" if name in self._members else self._members.why_not(name, "") or ""
            peer.standing.exclude(gone)
            shown = self.shown.get(name)
            cause = None if shown is None else self._members.why_not(name, fingerprint(shown))
            if cause is not None and peer.stream is not None:
                peer.stream.drop(cause)
            if gone and peer.present and not self._node.ended.is_set():
                self._node.lost(peer, gone)

    async def stop(self, end: End) -> None:
        """Send END to the parties that are here or come back soon, wait for their BYEs, and close."""
        await self._node.settled()  # no member hears of an end that a power cut could undo
        self._end = control(Kind.END, end)
        known = [peer for peer in self._node.peers.values() if not peer.standing.given_up]
        met = [peer for peer in known if peer.conversation.number != NEVER_MET]
        told = {peer.name for peer in met} | set(self._at_door)
        self._all_came.set()  # wake the waiting parties, which then get END
        for peer in met:
            if peer.stream is not None:
                peer.stream.finish(self._end)
        until = time.monotonic() + FAREWELL_S + min(self._node.limits.lost_after_s, MAX_ABSENT_S)
        while time.monotonic() < until and told - self.byes.keys() and not self._node.stopped:
            await asyncio.sleep(0.02)
        await self._close(0.5)

    async def hang_up(self) -> None:
        """Close without END: this server will restart."""
        if self._server is not None:
            await self._close(0.2)

    async def _close(self, grace_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._server.stop(grace_s)

    # One call

    def _admits_call(self, name: str, context: Any) -> bool:
        """Count a call while it lasts; False if the caller has too many. Members never share with other callers."""
        connections, peer = self._connections, context.peer()
        assert connections is not None
        caller = name if self._is_member(name, context) else ""
        self._calls[caller] += 1
        self._open.add(context)
        if caller:
            connections.called(peer)

        def over(_: object) -> None:  # later than our end, if the caller does not read
            self._calls[caller] -= 1
            self._open.discard(context)
            if caller:
                connections.hung_up(peer)

        context.add_done_callback(over)
        if self._calls[caller] <= self._node.limits.max_calls:
            return True
        self._count("calls", peer=name, cause=TOO_MANY)
        return False

    def _is_member(self, name: str, context: Any) -> bool:
        listed = name in self._node.peers or name == self._identity.name
        return listed and self._members.why_not(name, fingerprint(_certificate(context))) is None

    def _count(self, kind: str, **complaint: Any) -> None:
        """Count a refusal, and log it once."""
        self._node.refused[kind] += 1
        self._complaints.warning("refused", **complaint)

    def _hung_up_on(self, kind: str, address: str) -> None:
        """Count a connection that was ended because no member called on it."""
        cause = "too many connections" if kind == "connections" else "connected, but no member called"
        self._node.refused[kind] += 1
        self._outsiders.warning("refused", host=address, cause=cause)

    def _cut_if_open(self, context: Any) -> None:
        """End the connection of a call that the server has ended, if the caller has still not read its end."""
        if context in self._open and self._connections is not None:
            self._connections.cut(context.peer())

    async def _join(self, _requests: object, context: Any) -> None:
        name = _common_name(context)
        if not self._admits_call(name, context):
            return  # without an answer: such a caller must not keep others out
        try:
            with span("join"):
                peer = self._known(name, context)
                hello, protocol = await self._hello(name, context)
                self._admits_join(peer)
                await self._admit(peer, hello)
                peer.protocol = protocol
            await self._converse(peer, hello, context)
        except Refused as refusal:
            await self._refuse(name, refusal, context)
        except RemoteProtocolError as error:
            self._node.refused["protocol"] += 1
            await self._refuse(name, Refused(error.cause), context)
        except (TimeoutError, grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError):
            self._node.refused["handshake"] += 1
            self._complaints.warning("handshake not finished", peer=name)
        finally:
            asyncio.get_running_loop().call_later(FAREWELL_S, self._cut_if_open, context)

    def _admits_join(self, peer: Peer) -> None:
        if take_from_all([self._joins[peer.name]], 1, time.monotonic_ns()):
            self._node.refused["joins"] += 1
            raise Refused(f"joins more than {self._node.limits.max_joins} times a minute", final=False)

    def _known(self, name: str, context: Any) -> Peer:
        """The peer of this name; raises Refused if it is not on the list or its certificate is not the pinned one."""
        peer = self._node.peers.get(name)
        if peer is None:
            self._node.refused["strangers"] += 1
            raise Refused(f"{name!r} is not on the list of parties")
        self._check_pin(peer, _certificate(context))
        if peer.standing.given_up:
            self._node.refused["given up"] += 1
            raise Refused(peer.standing.given_up)
        if self._end is None and (cause := peer.standing.kept_out()):
            self._node.refused["debts"] += 1
            raise Refused(cause, final=False)  # at the end it may come in and hear of it
        return peer

    def _check_pin(self, peer: Peer, shown: bytes) -> None:
        """Raise Refused if the list of members does not accept this certificate.

        A party of this run may have a renewed certificate that is not on this server's list yet, and may try again.
        """
        cause = self._members.why_not(peer.name, fingerprint(shown))
        if cause is None:
            return
        self._node.refused["strangers"] += 1
        may_change = self._members.may_change(peer.name, fingerprint(shown))
        if may_change and peer.conversation.number != NEVER_MET:
            raise Refused(f"{cause}; if it was renewed, the server needs the new members.toml", final=False)
        raise Refused(cause)

    async def _hello(self, name: str, context: Any) -> tuple[Hello, int]:
        """The HELLO and the agreed protocol; raises Refused or RemoteProtocolError."""
        async with asyncio.timeout(self._node.limits.handshake_s):
            data = await context.read()
        if data is grpc.aio.EOF:
            raise Refused("closed the connection before its hello", final=False)
        try:
            hello, protocol = read_hello(open_envelope(data, name), name, __version__)
        except RemoteProtocolError:
            self._node.refused["terms"] += 1
            raise
        differs = self._terms(name, hello)
        if differs:
            self._node.refused["terms"] += 1
            raise Refused(str(differs), final=not isinstance(differs, RetryLater))
        if not self._admit_late:
            await self._wait_for_all(name)
        return hello, protocol

    async def _wait_for_all(self, name: str) -> None:
        """Hold a party back until all are here, if training must start with all of them."""
        peers = self._node.peers.values()
        if any(peer.conversation.number != NEVER_MET for peer in peers):
            return
        self._at_door.append(name)
        try:
            if not self._missing():
                self._all_came.set()
            async with asyncio.timeout(AT_DOOR_S):
                await self._all_came.wait()
        except TimeoutError:
            cause = f"the run begins when all parties are connected; missing: {', '.join(self._missing())}"
            raise Refused(cause, final=False, waited=True) from None
        finally:
            self._at_door.remove(name)

    def _missing(self) -> list[str]:
        return [name for name in self._node.peers if name not in self._at_door]

    async def _admit(self, peer: Peer, hello: Hello) -> None:
        """Allow one stream per party. The same process may replace its own stream, another process may not."""
        until = time.monotonic() + self._node.limits.handshake_s
        while peer.stream is not None:
            if self._instances.get(peer.name) != hello.instance or time.monotonic() > until:
                self._node.refused["second stream"] += 1
                raise Refused(f"{peer.name!r} is connected already", final=False)
            peer.stream.drop("the party has connected again")
            await asyncio.sleep(0.005)
        self._instances[peer.name] = hello.instance

    async def _converse(self, peer: Peer, hello: Hello, context: Any) -> None:
        conversation, node = peer.conversation, self._node
        reset = not conversation.goes_on_with(hello.position)
        number = conversation.number if not reset and conversation.number > 0 else secrets.randbelow(2**62) + 1
        peer.last_heard = time.monotonic()
        peer.met = True
        shown = self.shown[peer.name] = _certificate(context)
        heard = 0 if reset else hello.position.received
        node.joined(peer, number, reset, heard)
        outlet = self.relay.outlet(peer.name) if self.relay is not None else None
        stream = peer.stream = Stream(node, peer, context.write, heard, outlet)
        if self._end is not None:
            stream.finish(self._end)
        clock = node.clock()
        self.attendance.came(peer.name, clock)
        try:
            await node.settled()
            welcome = Welcome(reset, conversation.position(), self._run, clock)
            await context.write(control(Kind.WELCOME, welcome, peer.protocol))
            if self.relay is not None:
                self.relay.connected(peer.name, stream)
            cause = await until_it_ends(stream, self._read(peer, stream, context))
        except RemoteProtocolError as error:
            node.refused["messages"] += 1
            given_up = node.refuse(peer, error.cause)
            raise Refused(given_up or error.cause, final=bool(given_up)) from None
        finally:
            if self.relay is not None:
                self.relay.disconnected(peer.name)
            if peer.stream is stream:
                peer.stream = None
                self.attendance.left(peer.name, node.clock())
        self._changes.info("disconnected", peer=peer.name, cause=cause)
        self._check_pin(peer, shown)  # a new list may have excluded the party

    async def _read(self, peer: Peer, stream: Stream, context: Any) -> str:
        while True:
            data = await context.read()
            if data is grpc.aio.EOF:
                return "the party closed the connection"
            kind = stream.take(data)
            if kind == Kind.MESSAGE:
                continue
            if kind == Kind.BYE:
                self.byes[peer.name] = read_control(open_envelope(data, peer.name), Kind.BYE, Bye, peer.name)
                return "goodbye"
            elif kind == Kind.RELAY and self.relay is not None:
                self.relay.forward(peer.name, open_envelope(data, peer.name).body)
            elif kind == Kind.REFUSAL:
                refusal = read_control(open_envelope(data, peer.name), Kind.REFUSAL, Refusal, peer.name)
                return f"it refused a message: {refusal.cause}"
            elif kind == Kind.ACK:
                self._hear_news(peer, data)
            else:
                raise RemoteProtocolError(peer.name, f"unexpected frame of kind {Kind(kind).name}")

    def _hear_news(self, peer: Peer, data: bytes) -> None:
        """Keep what a party tells about itself with an acknowledgement, unless it told something just now."""
        now = time.monotonic()
        if len(data) > ENVELOPE_BYTES and now - self._news_at.get(peer.name, -NEWS_PAUSE_S) >= NEWS_PAUSE_S:
            self.news[peer.name] = read_news(open_envelope(data, peer.name), peer.name)
            self._news_at[peer.name] = now

    # Refusals

    async def _refuse(self, name: str, refusal: Refused, context: Any) -> None:
        who = f"{name} {_host(context)}"
        self._complaints.warning("refused", peer=name, host=_host(context), cause=refusal.cause)
        delay = 0.0 if refusal.waited else self._delay(who)
        if delay and self._delayed < MAX_DELAYED // 2:
            self._delayed += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._delayed -= 1
        with contextlib.suppress(*BROKEN, TimeoutError):  # it may have gone, or does not read
            answer = control(Kind.REFUSAL, Refusal(refusal.cause, refusal.final))
            async with asyncio.timeout(FAREWELL_S):
                await context.write(answer)

    def _delay(self, who: str) -> float:
        """Seconds to wait; the more refusals within a minute, the longer."""
        now = time.monotonic()
        if len(self._refusals) > MAX_GUESTS:
            self._refusals.clear()
        recent = [when for when in self._refusals.get(who, []) if now - when < 60.0][-len(REFUSAL_DELAYS_S) :]
        self._refusals[who] = [*recent, now]
        return REFUSAL_DELAYS_S[min(len(recent), len(REFUSAL_DELAYS_S) - 1)]

    # Questions

    async def _answer_status(self, _requests: object, context: Any) -> None:
        asked, name = await self._asked(context, "the status"), _common_name(context)
        try:
            more = self.live(read_question(asked, name).since) if asked and self.live is not None else {}
        except CodecError as error:
            self._complaints.warning("refused", peer=name, host=_host(context), cause=error.cause)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.cause)
        await context.write(msgspec.json.encode(self._status() | more))
        asyncio.get_running_loop().call_later(FAREWELL_S, self._cut_if_open, context)

    async def _asked(self, context: Any, what: str) -> bytes:
        """The request of a member; ends the call of any other caller, and of one that sends no request."""
        name = _common_name(context)
        if not self._admits_call(name, context):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY)
        if not self._is_member(name, context):
            self._count("strangers", peer=name, host=_host(context), cause=f"asked for {what}, but is not a member")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} is not a member")
        try:
            async with asyncio.timeout(REQUEST_S):
                data = await context.read()
        except TimeoutError:
            self._count("handshake", peer=name, host=_host(context), cause=f"asked for {what}, but sent no request")
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request came")
        return b"" if data is grpc.aio.EOF else data


async def until_it_ends(stream: Stream, reading: Any) -> str:
    """Read and write until reading ends or the stream is dropped; returns the cause in words."""
    reader = asyncio.ensure_future(reading)
    stream.open()
    try:
        await asyncio.wait({reader, stream.dropped}, return_when=asyncio.FIRST_COMPLETED)
        if reader.done():
            return str(reader.result())  # raises if the peer sent something wrong
        return stream.dropped.result()  # raises if a write failed
    except BROKEN:
        return "connection lost"
    except RemoteProtocolError:
        await stream.last_write(FAREWELL_S)  # the refusal comes next
        raise
    finally:
        reader.cancel()
        stream.close()
        await asyncio.gather(reader, return_exceptions=True)


def _common_name(context: Any) -> str:
    names = context.auth_context().get("x509_common_name") or [b""]
    return harmless(names[0].decode("utf-8", "replace"))[: MAX_NAME + 1] or "unnamed"


def _certificate(context: Any) -> bytes:
    """The caller's certificate in PEM, which TLS has verified."""
    pem: bytes = context.auth_context()["x509_pem_cert"][0]
    return pem


def _host(context: Any) -> str:
    """The caller's address without the port, which differs every time."""
    return str(context.peer()).rpartition(":")[0]
