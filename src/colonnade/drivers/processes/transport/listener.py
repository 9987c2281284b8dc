"""A server's port: accepts connections, limits them, and starts a task for each call.

A connection is a stranger's until a member calls on it. The server hangs up on strangers that stay too long, on the
oldest ones of an address that has too many, and on the oldest stranger of all if there are too many in all. A member's
connection that gives no sign of life ends, too.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from colonnade.drivers.processes.identity import Identity
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.transport.calls import CONTENT_TYPE, Call, CallFailed, CallLost, Status
from colonnade.drivers.processes.transport.connection import Connection
from colonnade.drivers.processes.transport.http2 import Headers, Receiver
from colonnade.drivers.processes.transport.tls import Tls, cause_of, server_context

__all__ = ["Listener"]

LOOK_S = 0.25
BACKLOG = 512
Handler = Callable[[Call], Coroutine[Any, Any, None]]


class Listener:
    """The connections at one port."""

    def __init__(
        self,
        identity: Identity,
        handlers: Mapping[bytes, Handler],  # by path: /service/method
        limits: Limits,
        most: int,  # connections in all
        most_bytes: int,  # of a message
        refused: Callable[[str, str, str], None],  # gets the kind of limit, the address, and the cause in words
    ) -> None:
        self._handlers, self._limits, self._most_bytes, self._refused = handlers, limits, most_bytes, refused
        self._most, self._most_of_one = most, max(1, min(limits.max_per_address, most // 2))
        self.show(identity)
        self._all: set[Connection] = set()
        # By address, since when: connected, or a member's last call ended. The oldest come first.
        self._strangers: dict[str, dict[Connection, float]] = {}
        self._calls: Counter[Connection] = Counter()  # under way, of members
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    def show(self, identity: Identity) -> None:
        """Show this certificate from the next connection on, and accept those of its authority."""
        self._context = server_context(identity)

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._all)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        listening = _listen(host, port)
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=listening)
        self._watching = asyncio.ensure_future(self._watch())
        return int(listening.getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let calls end within this time, then end all connections."""
        if self._server is None:
            return
        self._server.close()
        if self._watching is not None:
            self._watching.cancel()
        for connection in list(self._all):
            connection.http2.go_away()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        connections = list(self._all)
        for connection in connections:
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if connections:
            await asyncio.wait([connection.gone for connection in connections], timeout=grace_s)
        for connection in connections:
            connection.abort()

    # Connections

    def _connection(self) -> Connection:
        connection = Connection(Tls(self._context, server=True), self._most_bytes, self._opened)
        connection.on_made, connection.on_lost = self._made, self._lost
        connection.on_refused = self._not_understood
        return connection

    def _made(self, connection: Connection) -> None:
        self._all.add(connection)
        self._is_stranger(connection)
        if len(self._strangers[connection.address]) > self._most_of_one:
            self._hang_up_on_oldest(connection.address)
        elif len(self._all) > self._most:
            self._hang_up_on_oldest(max(self._strangers, key=lambda address: len(self._strangers[address])))

    def _is_stranger(self, connection: Connection) -> None:
        self._strangers.setdefault(connection.address, {})[connection] = time.monotonic()

    def _is_no_stranger(self, connection: Connection) -> None:
        same = self._strangers.get(connection.address, {})
        same.pop(connection, None)
        if not same:
            self._strangers.pop(connection.address, None)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._calls.pop(connection, None)
        self._is_no_stranger(connection)

    def _hang_up_on_oldest(self, address: str) -> None:
        self._hang_up(next(iter(self._strangers[address])), "connections", "too many connections")

    def _hang_up(self, connection: Connection, kind: str, cause: str) -> None:
        self._lost(connection)
        connection.abort()
        self._refused(kind, connection.address, cause)

    def _not_understood(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, ssl.SSLError):
            cause = "broken TLS" if connection.certificate else cause_of(error)
            self._refused("tls", connection.address, cause)
        else:
            self._refused("protocol", connection.address, str(error))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        """Hang up on strangers that stay too long, and on members that are silent although they were asked."""
        limits = self._limits
        for same in list(self._strangers.values()):
            for connection, since in list(same.items()):
                if now - since <= limits.handshake_s:
                    break  # the others are newer
                self._hang_up(connection, "handshake", "connected, but no member called")
        for connection in list(self._calls):
            if now - connection.heard > limits.heartbeat_s + limits.lost_after_s:
                connection.abort("no sign of life")
            elif now - connection.heard > limits.heartbeat_s:
                connection.http2.ping()

    def member_calls(self, call: Call) -> None:
        """Note that a member makes this call."""
        if call.connection in self._all:
            self._calls[call.connection] += 1
            self._is_no_stranger(call.connection)

    def member_hung_up(self, call: Call) -> None:
        """Note that a call of a member ended."""
        if call.connection in self._all:
            self._calls[call.connection] -= 1
            if not self._calls[call.connection]:
                del self._calls[call.connection]
                self._is_stranger(call.connection)  # from now on, until its next call

    # Calls

    def _opened(self, connection: Connection, headers: Headers) -> Receiver:
        call = Call(connection.http2, self._most_bytes, connection)
        found = dict(headers)
        handler = self._handlers.get(found.get(b":path", b""))
        if found.get(b":method") != b"POST" or not found.get(b"content-type", b"").startswith(CONTENT_TYPE):
            handler = _not_grpc
        task = call.task = asyncio.get_running_loop().create_task(self._answer(call, handler or _unknown))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return call

    async def _answer(self, call: Call, handler: Handler) -> None:
        try:
            await handler(call)
            call.finish()
        except CallFailed as failure:  # the handler's answer
            call.finish(Status(failure.status), str(failure))
        except CallLost:
            pass
        except asyncio.CancelledError:
            call.cancel()
            raise
        except Exception as error:
            call.finish(Status.UNKNOWN, "an error of the server; see its log")
            context = {"message": "a call failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


async def _unknown(_call: Call) -> None:
    raise CallFailed(Status.UNIMPLEMENTED, "there is no such method")


async def _not_grpc(_call: Call) -> None:
    raise CallFailed(Status.UNIMPLEMENTED, "this is not a gRPC call")


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. A second server on the same port is a mistake, so no port is shared."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    both = host == "::" and socket.has_dualstack_ipv6()  # IPv4 callers, too
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
