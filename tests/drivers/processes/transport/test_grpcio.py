"""Calls against the package grpcio, an independent implementation: our server, its client; its server, our client."""

import asyncio
import contextlib

import grpc
import pytest

from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.pin import pinned_connection
from colonnade.drivers.processes.transport.calls import Call, CallFailed, CallLost, Status
from colonnade.drivers.processes.transport.listener import Listener
from colonnade.testing.grpc_client import open_channel

from .conftest import identity

SIZES = (0, 1, 5, 16_384, 65_530, 65_535, 65_536, 1_000_000, 10_000_000)
MOST = 11_000_000
LIMITS = Limits(max_message_mb=11.0)
WAIT_S = 60
TEXT = "50 % of Ä\nis “less” than 100 %"


class Server:
    """Ours, with a few methods."""

    def __init__(self, certificates):
        methods = {"Echo": self.echo, "Burst": self.burst, "Fail": self.fail, "Wait": self.wait, "Break": self.broken}
        handlers = {f"/test/{name}".encode(): method for name, method in methods.items()}
        self.refused, self.ended = [], []
        own = identity(certificates, "server")
        self.listener = Listener(own, handlers, LIMITS, 100, MOST, lambda *refusal: self.refused.append(refusal))

    async def echo(self, call: Call):
        self.listener.member_calls(call)
        call.widen()
        while (data := await call.read()) is not None:
            await call.send(bytes(data))

    async def burst(self, call: Call):
        call.widen()
        await call.read()
        for size in SIZES:
            call.write(bytes(size))  # without waiting

    async def fail(self, call: Call):
        await call.read()
        call.write(b"first")
        raise CallFailed(Status.NOT_FOUND, TEXT)

    async def wait(self, call: Call):
        try:
            await call.read()
            await asyncio.sleep(WAIT_S)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise

    async def broken(self, call: Call):
        raise RuntimeError("of the server's own")

    async def __aenter__(self):
        self.address = f"127.0.0.1:{await self.listener.start('127.0.0.1', 0)}"
        return self

    async def __aexit__(self, *_):
        await self.listener.stop(0.1)


def timed(run):
    asyncio.run(asyncio.wait_for(run(), WAIT_S))


async def until(holds):
    while not holds():
        await asyncio.sleep(0.005)


def test_a_grpcio_client_gets_back_what_it_sent(certificates):
    async def run():
        async with (
            Server(certificates) as server,
            open_channel(identity(certificates, "bank"), server.address, LIMITS) as to,
        ):
            call = to.stream_stream("/test/Echo")()
            for size in SIZES:
                await call.write(bytes(size))
                assert await call.read() == bytes(size)
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() == grpc.StatusCode.OK
            assert await to.unary_unary("/test/Echo")(b"once") == b"once"

    timed(run)


def test_a_grpcio_client_gets_many_large_messages_at_its_own_pace(certificates):
    async def run():
        async with (
            Server(certificates) as server,
            open_channel(identity(certificates, "bank"), server.address, LIMITS) as to,
        ):
            calls = [to.stream_stream("/test/Burst")() for _ in range(3)]
            for call in calls:
                await call.write(b"go")
            for call in calls:
                assert [len(await call.read()) for _ in SIZES] == list(SIZES)
                assert await call.read() is grpc.aio.EOF

    timed(run)


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        ("/test/Fail", grpc.StatusCode.NOT_FOUND, TEXT),
        ("/test/Nothing", grpc.StatusCode.UNIMPLEMENTED, "there is no such method"),
        ("/test/Break", grpc.StatusCode.UNKNOWN, "an error of the server; see its log"),
    ],
)
def test_a_grpcio_client_hears_the_status(certificates, method, code, words):
    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with (
            Server(certificates) as server,
            open_channel(identity(certificates, "bank"), server.address, LIMITS) as to,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await to.unary_unary(method)(b"x")
            assert (raised.value.code(), raised.value.details()) == (code, words)

    timed(run)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_grpcio_client_is_told_what_the_server_does_not_take(certificates, compressed):
    async def run():
        own = identity(certificates, "bank")
        async with Server(certificates) as server, open_channel(own, server.address, Limits(max_message_mb=20.0)) as to:
            how = {"compression": grpc.Compression.Gzip} if compressed else {}
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await to.unary_unary("/test/Echo")(bytes(1000 if compressed else MOST + 1), **how)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert ("compressed" if compressed else f"the limit is {MOST}") in raised.value.details()
            assert await to.unary_unary("/test/Echo")(b"still here") == b"still here"

    timed(run)


def test_a_handler_ends_with_its_caller(certificates):
    """Whether it reads or waits for something else."""

    async def run():
        async with (
            Server(certificates) as server,
            open_channel(identity(certificates, "bank"), server.address, LIMITS) as to,
        ):
            reading = to.stream_stream("/test/Wait")()
            sleeping = to.stream_stream("/test/Wait")()
            await sleeping.write(b"x")
            await until(lambda: len(server.listener._tasks) == 2)
            await asyncio.sleep(0.05)
            reading.cancel()
            sleeping.cancel()
            await until(lambda: len(server.ended) == 2)
            assert sorted(server.ended) == ["CallLost", "CancelledError"]
            await until(lambda: not server.listener._tasks)

    timed(run)


# Our client


async def serve_with_grpcio(certificates, method):
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", MOST), ("grpc.max_send_message_length", MOST)]
    )
    handlers = {"Call": grpc.stream_stream_rpc_method_handler(method)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    own = identity(certificates, "server")
    credentials = grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, f"127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def calling(certificates, method):
    server, address = await serve_with_grpcio(certificates, method)
    try:
        async with await pinned_connection(identity(certificates, "bank"), address, (), MOST) as connection:
            yield connection.call("/test/Call")
    finally:
        await server.stop(0)


def test_a_grpcio_server_sends_back_what_it_got(certificates):
    async def echo(_requests, context):
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    async def run():
        async with calling(certificates, echo) as call:
            for size in SIZES:
                await call.send(bytes(size))
                assert await call.read() == bytes(size)
            heard, over = [], asyncio.Event()
            call.deliver(lambda data: heard.append(len(data)), lambda error: over.set() if error is None else None)
            for size in SIZES:
                await call.send(bytes(size))
            call.half_close()
            await over.wait()
            assert heard == list(SIZES)

    timed(run)


def test_the_status_of_a_grpcio_server(certificates):
    async def fail(_requests, context):
        await context.write(b"first")
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, TEXT)

    async def run():
        async with calling(certificates, fail) as call:
            assert await call.read() == b"first"
            with pytest.raises(CallFailed) as raised:
                await call.read()
            assert raised.value.status == Status.PERMISSION_DENIED and str(raised.value) == TEXT

    timed(run)


def test_a_grpcio_server_that_hangs_up(certificates):
    started = asyncio.Event()

    async def wait(_requests, context):
        started.set()
        await asyncio.sleep(WAIT_S)

    async def run():
        server, address = await serve_with_grpcio(certificates, wait)
        async with await pinned_connection(identity(certificates, "bank"), address, (), MOST) as connection:
            call = connection.call("/test/Call")
            await started.wait()
            await server.stop(0)
            with pytest.raises((CallLost, CallFailed)):
                await call.read()
            await connection.gone

    timed(run)
