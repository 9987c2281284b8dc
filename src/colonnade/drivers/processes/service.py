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
import os
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from colonnade import __version__
from colonnade.drivers.processes.certificates import Identity, fingerprint
from colonnade.drivers.processes.conversation import NEVER_MET
from colonnade.drivers.processes.descriptors import connections_allowed, raise_descriptor_limit
from colonnade.drivers.processes.grpc_health import HealthService
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.members import Members
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import Peer, Stream
from colonnade.drivers.processes.relay import Relay
from colonnade.drivers.processes.spans import span
from colonnade.drivers.processes.timeline import Attendance
from colonnade.drivers.processes.transport.calls import Call, CallFailed, CallLost, Status
from colonnade.drivers.processes.transport.listener import Listener
from colonnade.drivers.processes.transport.tls import BY_DATE
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
    "FAREWELL_S",
    "JOIN",
    "SERVICE",
    "STATUS",
    "RetryLater",
    "Service",
    "most_bytes",
    "until_it_ends",
]

SERVICE, JOIN, STATUS = "colonnade.Federation", "Join", "Status"
REQUEST_S = 2.0  # for the empty request of a status, and the first message of a caller that is refused
FAREWELL_S = 5.0
NEWS_PAUSE_S = 2.0  # between two reports of one party
MAX_ABSENT_S = 10.0  # extra time for parties that are away at the end
REFUSAL_DELAYS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # by refusals of the same peer within a minute
MAX_DELAYED = 64
MAX_GUESTS = 1000
MAX_NAME = 255  # characters of a name in a certificate
TOO_MANY = "too many calls at the same time"
AT_DOOR_S = 5.0  # a party waits so long for the others, is told which are missing, and tries again

Terms = Callable[[str, Hello], str | None]  # what differs between a party's HELLO and the server's terms; None: nothing


def most_bytes(max_message_bytes: int) -> int:
    """The limit for what travels in one piece: a message with everything around it."""
    return max_message_bytes + ENVELOPE_BYTES + RELAY_BYTES


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
        self.shown: dict[str, bytes] = {}  # the certificate of each party at its last join
        self._terms, self._status, self._admit_late, self._run = terms, status, admit_late, run
        self.relay = Relay(node) if relay else None  # if parties talk to each other
        self._complaints, self._changes = Once(node.log), Once(node.log)
        self._outsiders = Once(node.log)  # apart: many addresses must not hide other complaints
        self._refusals: dict[str, list[float]] = {}
        self._delayed = 0
        self._calls: Counter[str] = Counter()  # in progress, by member; "": of callers that are not members
        self._open: set[Call] = set()  # these calls
        self._joins = {name: Bucket(node.limits.max_joins, MINUTE_S) for name in node.peers}
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
        self._listener: Listener | None = None

    async def start(self, address: str) -> str:
        """Listen; returns the address with the actual port. Raises ConfigError if the port is taken."""
        limits = self._node.limits
        raise_descriptor_limit()
        health = HealthService(
            (SERVICE,),
            lambda call: self._asked(call, "the health"),
            lambda: not self.unready(),
            lambda: self.health_changed(),  # noqa: PLW0108 - the host sets it later
        )
        handlers = {
            f"/{SERVICE}/{JOIN}".encode(): self._join,
            f"/{SERVICE}/{STATUS}".encode(): self._answer_status,
        }
        connections = connections_allowed(limits.max_connections)
        listener = self._listener = Listener(
            self._identity,
            handlers | health.handlers(),
            limits,
            connections,
            most_bytes(limits.max_message_bytes),
            self._hung_up_on,
        )
        self._exclude()
        host, _, port = address.rpartition(":")
        try:
            found = await listener.start(host.strip("[]"), int(port))
        except OSError as error:
            raise ConfigError(
                "network.address",
                address,
                f"cannot listen there ({os.strerror(error.errno) if error.errno else error}): if another server uses "
                "this port, stop it or choose another port",
            ) from None
        return f"{host}:{found}"

    def changed(self, identity: Identity, members: Mapping[str, str]) -> None:
        """Show another certificate from now on, and hang up on the parties that the new list excludes."""
        self._identity, self._members = identity, Members.of(members)
        if self._listener is not None:
            self._listener.show(identity)
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
        await self._close(0.2)

    async def _close(self, grace_s: float) -> None:
        if self._listener is not None:
            await self._listener.stop(grace_s)

    # One call

    def _admits_call(self, name: str, call: Call) -> bool:
        """Count a call while it lasts; False if the caller has too many. Members never share with other callers."""
        listener = self._listener
        assert listener is not None
        caller = name if self._is_member(name, call) else ""
        self._calls[caller] += 1
        self._open.add(call)
        if caller:
            listener.member_calls(call)

        def over() -> None:  # later than our end, if the caller does not read
            self._calls[caller] -= 1
            self._open.discard(call)
            if caller:
                listener.member_hung_up(call)

        call.over = over
        if self._calls[caller] > self._node.limits.max_calls:
            self._count("calls", peer=name, cause=TOO_MANY)
            return False
        if caller:
            call.widen()
        return True

    def _is_member(self, name: str, call: Call) -> bool:
        listed = name in self._node.peers or name == self._identity.name
        return (
            listed and call.connection is not None and self._members.why_not(name, call.connection.fingerprint) is None
        )

    def _count(self, kind: str, **complaint: Any) -> None:
        """Count a refusal, and log it once."""
        self._node.refused[kind] += 1
        self._complaints.warning("refused", **complaint)

    def _hung_up_on(self, kind: str, address: str, cause: str) -> None:
        """Count a connection that was ended, and log the cause once."""
        self._node.refused[kind] += 1
        # If a date was the reason, this machine's clock may be wrong.
        clock = {"clock": time.strftime("%Y-%m-%d UTC", time.gmtime())} if cause in BY_DATE else {}
        self._outsiders.warning("refused", host=address, cause=cause, **clock)

    def _cut_if_open(self, call: Call) -> None:
        """End the connection of a call that the server has ended, if the caller has still not read its end."""
        if call in self._open and call.connection is not None:
            call.connection.abort("the caller does not read")

    async def _join(self, call: Call) -> None:
        name = _common_name(call)
        if not self._admits_call(name, call):
            return  # without an answer: such a caller must not keep others out
        try:
            with span("join"):
                peer = await self._listed(name, call)
                hello, protocol = await self._hello(name, call)
                self._admits_join(peer)
                await self._admit(peer, hello)
                peer.protocol = protocol
            await self._converse(peer, hello, call)
        except Refused as refusal:
            await self._refuse(name, refusal, call)
        except RemoteProtocolError as error:
            self._node.refused["protocol"] += 1
            await self._refuse(name, Refused(error.cause), call)
        except (TimeoutError, CallLost):
            self._node.refused["handshake"] += 1
            self._complaints.warning("handshake not finished", peer=name)
        finally:
            asyncio.get_running_loop().call_later(FAREWELL_S, self._cut_if_open, call)

    def _admits_join(self, peer: Peer) -> None:
        if take_from_all([self._joins[peer.name]], 1, time.monotonic_ns()):
            self._node.refused["joins"] += 1
            raise Refused(f"joins more than {self._node.limits.max_joins} times a minute", final=False)

    async def _listed(self, name: str, call: Call) -> Peer:
        """The peer of this name; raises Refused, but not before the caller has spoken.

        gRPC's client drops an answer that arrives before its own first message has left.
        """
        try:
            return self._known(name, call)
        except Refused:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REQUEST_S):
                    await call.read()
            raise

    def _known(self, name: str, call: Call) -> Peer:
        """The peer of this name; raises Refused if it is not on the list or its certificate is not the pinned one."""
        peer = self._node.peers.get(name)
        if peer is None:
            self._node.refused["strangers"] += 1
            raise Refused(f"{name!r} is not on the list of parties")
        self._check_pin(peer, _certificate(call))
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

    async def _hello(self, name: str, call: Call) -> tuple[Hello, int]:
        """The HELLO and the agreed protocol; raises Refused or RemoteProtocolError."""
        async with asyncio.timeout(self._node.limits.handshake_s):
            data = await call.read()
        if data is None:
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

    async def _converse(self, peer: Peer, hello: Hello, call: Call) -> None:
        conversation, node = peer.conversation, self._node
        reset = not conversation.goes_on_with(hello.position)
        number = conversation.number if not reset and conversation.number > 0 else secrets.randbelow(2**62) + 1
        peer.last_heard = time.monotonic()
        peer.met = True
        shown = self.shown[peer.name] = _certificate(call)
        heard = 0 if reset else hello.position.received
        node.joined(peer, number, reset, heard)
        outlet = self.relay.outlet(peer.name) if self.relay is not None else None
        stream = peer.stream = Stream(node, peer, call, heard, outlet)
        if self._end is not None:
            stream.finish(self._end)
        clock = node.clock()
        self.attendance.came(peer.name, clock)
        try:
            await node.settled()
            welcome = Welcome(reset, conversation.position(), self._run, clock)
            await call.send(control(Kind.WELCOME, welcome, peer.protocol))
            if self.relay is not None:
                self.relay.connected(peer.name, stream)
            cause = await until_it_ends(stream, call, partial(self._take, peer, stream), "the party")
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

    def _take(self, peer: Peer, stream: Stream, data: bytes | memoryview) -> str | None:
        """Take a frame; returns why the stream ends, if it does."""
        kind = stream.take(data)
        if kind == Kind.MESSAGE:
            return None
        if kind == Kind.BYE:
            self.byes[peer.name] = read_control(open_envelope(data, peer.name), Kind.BYE, Bye, peer.name)
            return "goodbye"
        if kind == Kind.RELAY and self.relay is not None:
            self.relay.forward(peer.name, open_envelope(data, peer.name).body)
        elif kind == Kind.REFUSAL:
            refusal = read_control(open_envelope(data, peer.name), Kind.REFUSAL, Refusal, peer.name)
            return f"it refused a message: {refusal.cause}"
        elif kind == Kind.ACK:
            self._hear_news(peer, data)
        else:
            raise RemoteProtocolError(peer.name, f"unexpected frame of kind {Kind(kind).name}")
        return None

    def _hear_news(self, peer: Peer, data: bytes | memoryview) -> None:
        """Keep what a party tells about itself with an acknowledgement, unless it told something just now."""
        now = time.monotonic()
        if len(data) > ENVELOPE_BYTES and now - self._news_at.get(peer.name, -NEWS_PAUSE_S) >= NEWS_PAUSE_S:
            self.news[peer.name] = read_news(open_envelope(data, peer.name), peer.name)
            self._news_at[peer.name] = now

    # Refusals

    async def _refuse(self, name: str, refusal: Refused, call: Call) -> None:
        who = f"{name} {_host(call)}"
        self._complaints.warning("refused", peer=name, host=_host(call), cause=refusal.cause)
        delay = 0.0 if refusal.waited else self._delay(who)
        if delay and self._delayed < MAX_DELAYED // 2:
            self._delayed += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._delayed -= 1
        with contextlib.suppress(CallLost, TimeoutError):  # it may have gone, or does not read
            answer = control(Kind.REFUSAL, Refusal(refusal.cause, refusal.final))
            async with asyncio.timeout(FAREWELL_S):
                await call.send(answer)

    def _delay(self, who: str) -> float:
        """Seconds to wait; the more refusals within a minute, the longer."""
        now = time.monotonic()
        if len(self._refusals) > MAX_GUESTS:
            self._refusals.clear()
        recent = [when for when in self._refusals.get(who, []) if now - when < 60.0][-len(REFUSAL_DELAYS_S) :]
        self._refusals[who] = [*recent, now]
        return REFUSAL_DELAYS_S[min(len(recent), len(REFUSAL_DELAYS_S) - 1)]

    # Questions

    async def _answer_status(self, call: Call) -> None:
        asked, name = await self._asked(call, "the status"), _common_name(call)
        try:
            more = self.live(read_question(asked, name).since) if asked and self.live is not None else {}
        except CodecError as error:
            self._complaints.warning("refused", peer=name, host=_host(call), cause=error.cause)
            raise CallFailed(Status.INVALID_ARGUMENT, error.cause) from None
        call.write(msgspec.json.encode(self._status() | more))
        asyncio.get_running_loop().call_later(FAREWELL_S, self._cut_if_open, call)

    async def _asked(self, call: Call, what: str) -> bytes:
        """The request of a member; ends the call of any other caller, and of one that sends no request."""
        name = _common_name(call)
        if not self._admits_call(name, call):
            raise CallFailed(Status.RESOURCE_EXHAUSTED, TOO_MANY)
        if not self._is_member(name, call):
            self._count("strangers", peer=name, host=_host(call), cause=f"asked for {what}, but is not a member")
            raise CallFailed(Status.PERMISSION_DENIED, f"{name!r} is not a member")
        try:
            async with asyncio.timeout(REQUEST_S):
                data = await call.read()
        except TimeoutError:
            self._count("handshake", peer=name, host=_host(call), cause=f"asked for {what}, but sent no request")
            raise CallFailed(Status.DEADLINE_EXCEEDED, "no request came") from None
        return b"" if data is None else bytes(data)


async def until_it_ends(
    stream: Stream, call: Call, take: Callable[[bytes | memoryview], str | None], other: str
) -> str:
    """Read and write until `take` returns a cause, the call ends or the stream is dropped; returns why, in words."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def took(data: bytes | memoryview) -> None:
        if ended.done() or stream.dropped.done():
            return
        try:
            cause = take(data)
        except Exception as error:  # raised below, in the task of this call
            ended.set_exception(error)
        else:
            if cause is not None:
                ended.set_result(cause)

    def over(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(f"{other} closed the connection" if error is None else "connection lost")

    stream.open()
    call.deliver(took, over)
    try:
        await asyncio.wait({ended, stream.dropped}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else stream.dropped.result()  # raises if the peer sent something wrong
    finally:
        stream.close()
        if not ended.done():
            ended.set_result("")


def _common_name(call: Call) -> str:
    names = x509.load_der_x509_certificate(_shown(call)).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return harmless(str(names[0].value) if names else "")[: MAX_NAME + 1] or "unnamed"


def _certificate(call: Call) -> bytes:
    """The caller's certificate in PEM, which TLS has verified."""
    return ssl.DER_cert_to_PEM_cert(_shown(call)).encode()


def _shown(call: Call) -> bytes:
    assert call.connection is not None
    return call.connection.certificate


def _host(call: Call) -> str:
    """The caller's address without the port, which differs every time."""
    assert call.connection is not None
    return call.connection.address
