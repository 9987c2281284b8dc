"""A party's side of the network: connect to the server, talk, and connect again when the connection breaks."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.conversation import GIVEN_UP, NEVER_MET
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import Stream
from colonnade.drivers.processes.pin import NotPinned, cause_in_words, pinned_connection, why_lost
from colonnade.drivers.processes.service import FAREWELL_S, JOIN, SERVICE, STATUS, most_bytes, until_it_ends
from colonnade.drivers.processes.spans import span
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.transport.calls import Call, CallFailed, CallLost
from colonnade.drivers.processes.transport.connection import Connection
from colonnade.drivers.processes.wire import (
    PROTOCOL,
    Bye,
    End,
    Hello,
    Kind,
    Position,
    Question,
    Refusal,
    Welcome,
    control,
    news_body,
    open_envelope,
    protocol_of_welcome,
    read_control,
)
from colonnade.protocol.errors import ColonnadeError, ConfigError, RemoteProtocolError
from colonnade.protocol.foreign import clean_tree, harmless

__all__ = ["Dialler", "ServerGone", "ask_status"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
NEWS_S = 3.0  # between two reports on this party
SERVER_NAME = "server"  # in the server's certificate, on any host


class ServerGone(ColonnadeError):
    """The server could not be reached for longer than `give_up_s`."""

    exit_code = 3


class FinalRefusal(RemoteProtocolError):
    """The server does not admit this party, and trying again is useless."""

    exit_code = 2


class NotYet(Exception):
    """The server asks the party to come again later, with a reason."""


class Dialler:
    """Keeps a party's node connected until training ends."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        address: str | Callable[[], str],  # or a function that finds it, called at every try
        hello: Callable[[int, Position], Hello],
        farewell: Callable[[End], Bye],
        meet: Callable[[str], None] = lambda run: None,
        switchboard: Switchboard | None = None,
        pinned: Sequence[str] = (),  # fingerprints that the server may show; (): any server of the authority
    ) -> None:
        self._node, self._identity, self._where = node, identity, address
        self._address = ""
        self._hello, self._farewell, self._meet, self._switchboard = hello, farewell, meet, switchboard
        self._pinned, self._shown = tuple(pinned), ""  # the fingerprint of the certificate that the server showed last
        self._server = node.peers[SERVER_NAME]
        self._instance = secrets.randbelow(2**62)
        self._complaints = Once(node.log)
        self._parting: asyncio.Task[None] | None = None  # says goodbye
        self.end: End | None = None

    def changed(self, identity: Identity, pinned: Sequence[str]) -> None:
        """Dial with this certificate from now on, and hang up if the server's is no longer one of the pinned ones."""
        self._identity, self._pinned = identity, tuple(pinned)
        if self._pinned and self._shown not in self._pinned and self._server.stream is not None:
            self._server.stream.drop("the list of members no longer has the server's certificate")

    async def run(self) -> End:
        """Stay connected until the server sends END; raises ServerGone or RemoteProtocolError."""
        pause = FIRST_PAUSE_S
        since = time.monotonic()
        while self.end is None:
            before = time.monotonic()
            cause = await self._connect()
            if self._server.last_heard > before:  # the server answered
                since, pause = time.monotonic(), FIRST_PAUSE_S
            if self.end is not None:
                break
            gone_s = time.monotonic() - since
            if gone_s > self._node.limits.give_up_s:
                raise ServerGone(f"the server at {self._address} could not be reached for {gone_s:.0f} s: {cause}")
            self._complaints.warning("not connected, trying again", server=self._address, cause=cause)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return self.end

    async def _connect(self) -> str:
        """One connection from HELLO to its end; returns why it ended."""
        self._address = self._where if isinstance(self._where, str) else self._where()
        limits = self._node.limits
        try:
            connection = await pinned_connection(
                self._identity, self._address, self._pinned, most_bytes(limits.max_message_bytes), limits.handshake_s
            )
        except NotPinned as error:
            if self._server.conversation.number == NEVER_MET:
                raise
            return f"{error.cause}; if it was renewed, this party needs the new members.toml"
        except OSError as error:
            return cause_in_words(error)
        self._shown = connection.fingerprint
        async with connection:
            return await self._call(connection)

    async def _call(self, connection: Connection) -> str:
        call = connection.call(f"/{SERVICE}/{JOIN}")
        try:
            with span("connect"):
                position = self._server.conversation.position()
                call.write(control(Kind.HELLO, self._hello(self._instance, position), PROTOCOL))
                welcome = await self._welcome(call)
            return await self._converse(call, welcome)
        except TimeoutError:
            return "no answer to the hello"
        except NotYet as refusal:
            self._server.last_heard = time.monotonic()
            return str(refusal)
        except CallLost as error:
            return why_lost(error, connection, self._identity)
        except CallFailed as error:
            return harmless(str(error), 200)
        except FinalRefusal:
            raise
        except RemoteProtocolError as error:
            if not self._node.forgiving:
                raise
            return str(error)
        finally:
            call.cancel()

    async def _welcome(self, call: Call) -> Welcome:
        limits = self._node.limits
        async with asyncio.timeout(limits.handshake_s + 2 * limits.lost_after_s):  # 3.11's wait_for loses a cancel
            data = await call.read()
        if data is None:
            raise TimeoutError
        envelope = open_envelope(data, SERVER_NAME)
        if envelope.kind == Kind.REFUSAL:
            refusal = read_control(envelope, Kind.REFUSAL, Refusal, SERVER_NAME)
            _raise_if_final(refusal)
            raise NotYet(refusal.cause)
        self._server.protocol = protocol_of_welcome(envelope, SERVER_NAME)
        return read_control(envelope, Kind.WELCOME, Welcome, SERVER_NAME)

    async def _converse(self, call: Call, welcome: Welcome) -> str:
        node, server = self._node, self._server
        self._meet(welcome.run)
        server.last_heard, server.met = time.monotonic(), True
        if not welcome.reset and not server.conversation.agrees(welcome.position):
            if server.conversation.number == GIVEN_UP:
                return "too many messages waited for the welcome"  # the next hello says so, and both restart
            raise RemoteProtocolError(SERVER_NAME, "its welcome does not fit this conversation")
        heard = welcome.position.received
        node.joined(server, welcome.position.number, welcome.reset, heard)
        node.jobs.lane.know_clock(welcome.clock)
        switchboard = self._switchboard
        stream = server.stream = Stream(node, server, call, heard, switchboard)
        if switchboard is not None:
            switchboard.connected(stream, welcome.run)
        telling = asyncio.ensure_future(self._tell_news(stream))
        try:
            return await until_it_ends(stream, call, partial(self._take, stream), "the server")
        except FinalRefusal:
            raise
        except RemoteProtocolError as error:
            return await self._refuse(call, error)
        finally:
            telling.cancel()
            if self._parting is not None:
                self._parting.cancel()
            server.stream = None
            node.jobs.lane.lose_clock()
            if switchboard is not None:
                switchboard.disconnected()

    async def _tell_news(self, stream: Stream) -> None:
        """Tell the server regularly how this party stands, until cancelled."""
        while self._node.news is not None:
            await asyncio.sleep(NEWS_S)
            stream.tell(news_body(self._node.news()))

    async def _refuse(self, call: Call, error: RemoteProtocolError) -> str:
        """Tell the server why its message was not taken; raises if the server was refused too often."""
        given_up = self._node.refuse(self._server, error.cause)
        refusal = Refusal(error.cause, bool(given_up))
        with contextlib.suppress(TimeoutError, CallLost):
            async with asyncio.timeout(FAREWELL_S):
                await call.send(control(Kind.REFUSAL, refusal))
                await call.hung_up()  # cutting the call off earlier would discard the refusal
        if given_up:
            raise RemoteProtocolError(SERVER_NAME, given_up)
        return f"refused a message: {error.cause}"

    def _take(self, stream: Stream, data: bytes | memoryview) -> str | None:
        """Take a frame; returns why the stream ends, if it does."""
        if self.end is not None:
            return None  # only the goodbye is left
        kind = stream.take(data)
        if kind == Kind.MESSAGE:
            return None
        if kind in (Kind.RELAY, Kind.PRESENCE):
            self._hear_of_others(data)
        elif kind == Kind.REFUSAL:
            refusal = read_control(open_envelope(data, SERVER_NAME), Kind.REFUSAL, Refusal, SERVER_NAME)
            _raise_if_final(refusal)
            return f"the server refused a message: {refusal.cause}"
        elif kind == Kind.END:
            self.end = read_control(open_envelope(data, SERVER_NAME), Kind.END, End, SERVER_NAME)
            self._parting = asyncio.ensure_future(self._part(stream, self.end))
        return None

    async def _part(self, stream: Stream, end: End) -> None:
        """Say goodbye after everything that is queued. The server then hangs up: it has our BYE."""
        try:
            await self._node.settled()
            stream.finish(control(Kind.BYE, self._farewell(end)))
        except Exception as error:
            if not stream.dropped.done():
                stream.dropped.set_exception(error)
            return
        await asyncio.sleep(FAREWELL_S)
        stream.drop("training is over")

    def _hear_of_others(self, data: bytes | memoryview) -> None:
        envelope = open_envelope(data, SERVER_NAME)
        if self._switchboard is None:
            cause = f"frame of kind {Kind(envelope.kind).name}, but in this method parties do not talk to each other"
            raise RemoteProtocolError(SERVER_NAME, cause)
        if envelope.kind == Kind.RELAY:
            self._switchboard.take(envelope)
        else:
            self._switchboard.presence(envelope)


def _raise_if_final(refusal: Refusal) -> None:
    if refusal.final:
        raise FinalRefusal(SERVER_NAME, f"refused this party: {refusal.cause}")


async def ask_status(
    identity: Identity, address: str, limits: Limits, timeout_s: float = 5.0, question: Question | None = None
) -> bytes:
    """A running server's status as JSON with harmless texts.

    Raises ConfigError if the server does not answer, and RemoteProtocolError if its answer is not JSON.
    """
    body = b"" if question is None else msgspec.msgpack.encode(question)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _ask(identity, address, limits, body)
    except TimeoutError:
        raise ConfigError("ADDRESS", address, f"no answer within {timeout_s:g} s") from None
    except (OSError, CallLost, CallFailed) as error:
        cause = cause_in_words(error) if isinstance(error, OSError) else harmless(str(error), 200)
        raise ConfigError("ADDRESS", address, cause) from None
    try:
        return msgspec.json.encode(clean_tree(msgspec.json.decode(answer)))
    except (msgspec.MsgspecError, RecursionError):
        raise RemoteProtocolError(SERVER_NAME, "its status is not JSON") from None


async def _ask(identity: Identity, address: str, limits: Limits, body: bytes) -> bytes:
    size = most_bytes(limits.max_message_bytes)
    async with await pinned_connection(identity, address, (), size, limits.handshake_s) as connection:
        call = connection.call(f"/{SERVICE}/{STATUS}")
        call.write(body)
        call.half_close()
        try:
            answer = await call.read()
        except CallLost as error:
            raise CallLost(why_lost(error, connection, identity)) from None
        return b"" if answer is None else bytes(answer)
