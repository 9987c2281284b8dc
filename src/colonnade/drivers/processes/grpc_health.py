"""The standard health service of gRPC, grpc.health.v1.Health, for members of the federation.

    HealthCheckRequest { string service = 1 }       ""  or  "colonnade.Federation"
    HealthCheckResponse { ServingStatus status = 1 } 1 SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN (only of Watch)

These two messages are written and read here by hand, in Protocol Buffers' wire format. The package
grpcio-health-checking would bring grpcio and protobuf, whose version other packages pin, for ten lines.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from colonnade.drivers.processes.transport.calls import Call, CallFailed, Status

__all__ = ["HEALTH", "HealthService", "read_request", "response"]

HEALTH = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
MOST_BYTES = 300  # of a request: the name of a service


def response(status: int) -> bytes:
    """A HealthCheckResponse: field 1, a varint."""
    return bytes((0x08, status))


def read_request(data: bytes) -> str | None:
    """The name of the service that a HealthCheckRequest asks for; None if the bytes are no such request."""
    if not data:
        return ""
    if len(data) > MOST_BYTES or data[0] != 0x0A:  # field 1, of a length and bytes
        return None
    size, place = data[1] if len(data) > 1 else 0, 2
    if size & 0x80:  # a length of two bytes
        if len(data) < 3 or data[2] & 0x80:
            return None
        size, place = (size & 0x7F) | data[2] << 7, 3
    if len(data) < 2 or len(data) != place + size:
        return None
    try:
        return data[place:].decode()
    except UnicodeDecodeError:
        return None


class HealthService:
    """Answers Check and Watch. `admit` returns the request of a member, or ends the call of any other caller."""

    def __init__(
        self,
        services: tuple[str, ...],
        admit: Callable[[Call], Awaitable[bytes]],
        ready: Callable[[], bool],
        changed: Callable[[], Awaitable[object]],
    ) -> None:
        self._services, self._admit, self._ready, self._changed = ("", *services), admit, ready, changed

    def handlers(self) -> dict[bytes, Callable[[Call], Coroutine[Any, Any, None]]]:
        """Both methods, by path."""
        return {f"/{HEALTH}/Check".encode(): self._check, f"/{HEALTH}/Watch".encode(): self._watch}

    async def _check(self, call: Call) -> None:
        if await self._service(call) not in self._services:
            raise CallFailed(Status.NOT_FOUND, "there is no such service")
        call.write(response(SERVING if self._ready() else NOT_SERVING))

    async def _watch(self, call: Call) -> None:
        """Write the status now and whenever it changes, until the caller leaves."""
        known, told = await self._service(call) in self._services, 0
        while True:
            status = (SERVING if self._ready() else NOT_SERVING) if known else SERVICE_UNKNOWN
            if status != told:
                await call.send(response(status))
                told = status
            await self._changed()

    async def _service(self, call: Call) -> str:
        name = read_request(await self._admit(call))
        if name is None:
            raise CallFailed(Status.INVALID_ARGUMENT, "this is not a HealthCheckRequest")
        return name
