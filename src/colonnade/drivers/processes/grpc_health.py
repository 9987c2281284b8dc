"""The standard health service of gRPC, grpc.health.v1.Health, for members of the federation.

    HealthCheckRequest { string service = 1 }       ""  or  "colonnade.Federation"
    HealthCheckResponse { ServingStatus status = 1 } 1 SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN (only of Watch)

These two messages are written and read here by hand, in Protocol Buffers' wire format. The package
grpcio-health-checking would bring protobuf, whose version other packages pin, for ten lines.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

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
        admit: Callable[[Any], Awaitable[bytes]],
        ready: Callable[[], bool],
        changed: Callable[[], Awaitable[object]],
    ) -> None:
        self._services, self._admit, self._ready, self._changed = ("", *services), admit, ready, changed

    def handler(self) -> Any:
        """Both methods, as streams: gRPC would wait for a single request without a limit, and without telling."""
        methods = {
            "Check": grpc.stream_stream_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(HEALTH, methods)

    async def _check(self, _requests: object, context: Any) -> None:
        if await self._service(context) not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        await context.write(response(SERVING if self._ready() else NOT_SERVING))

    async def _watch(self, _requests: object, context: Any) -> None:
        """Write the status now and whenever it changes, until the caller leaves."""
        known, told = await self._service(context) in self._services, 0
        while True:
            status = (SERVING if self._ready() else NOT_SERVING) if known else SERVICE_UNKNOWN
            if status != told:
                await context.write(response(status))
                told = status
            await self._changed()

    async def _service(self, context: Any) -> str:
        name = read_request(await self._admit(context))
        if name is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a HealthCheckRequest")
        assert name is not None
        return name
