"""The floor under `benchmarks/predict.py`: the same hops between the same number of processes, with nothing in them.

An HTTPS connection that stays open, and behind it one stream of the driver's transport with mutual TLS to each party,
all asked at once. Frames and answers have the sizes of the real ones. No id is looked up, no token is checked, no
network runs.
"""

import asyncio
import contextlib
import gc
import re
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.pin import pinned_connection
from colonnade.drivers.processes.transport.calls import Call
from colonnade.drivers.processes.transport.listener import Listener
from colonnade.predict.asking import Door

MOST_BYTES = 2**24
_SIZE = struct.Struct("<I")  # of the answer: the first bytes of a question
_LENGTH = re.compile(rb"Content-Length: (\d+)")


def identity(folder: Path, name: str) -> Identity:
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


async def party(folder: Path, name: str, address: str) -> None:
    """Answer each question with as many bytes as it asks for."""
    async with await pinned_connection(identity(folder, name), address, (), MOST_BYTES) as connection:
        call, over = connection.call("/floor/Join"), asyncio.Event()
        call.write(name.encode())
        call.deliver(lambda data: call.write(bytes(_SIZE.unpack_from(data)[0])), lambda _: over.set())
        await over.wait()


class Parties:
    """The streams of all parties."""

    def __init__(self) -> None:
        self.streams: dict[str, Call] = {}
        self._owed: dict[str, asyncio.Future[None]] = {}
        self.listener: Listener

    async def join(self, call: Call) -> None:
        self.listener.member_calls(call)
        call.widen()
        name, over = bytes(await call.read() or b"").decode(), asyncio.Event()
        self.streams[name] = call
        call.deliver(lambda _: self._owed[name].set_result(None), lambda _: over.set())
        await over.wait()

    async def ask(self, asked: int, found: int) -> None:
        """Send `asked` bytes to every party, and wait until each has sent `found` bytes."""
        question = _SIZE.pack(found).ljust(asked, b"\0")
        self._owed = {name: asyncio.get_running_loop().create_future() for name in self.streams}
        for stream in self.streams.values():
            stream.write(question)
        await asyncio.gather(*self._owed.values())


class Http(asyncio.Protocol):
    """Answers `POST /asked/found/answered`, all in bytes, when the parties have answered."""

    def __init__(self, parties: Parties) -> None:
        self._parties, self._data = parties, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length is not None and len(body) == int(length[1]):
            self._data = b""
            self._task = asyncio.ensure_future(self._answer(*map(int, head.split(b" ")[1][1:].split(b"/"))))

    async def _answer(self, asked: int, found: int, answered: int) -> None:
        await self._parties.ask(asked, found)
        body = b'"%s"' % (b"x" * answered)
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def server(folder: Path, expected: int) -> None:
    """Print both ports, then a line when all parties are here; run until stdin ends."""
    parties = Parties()
    handlers = {b"/floor/Join": parties.join}
    parties.listener = Listener(identity(folder, "server"), handlers, Limits(), 100, MOST_BYTES, print)
    port = await parties.listener.start("127.0.0.1", 0)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "server.pem", folder / "server.key")
    web = await asyncio.get_running_loop().create_server(lambda: Http(parties), "127.0.0.1", 0, ssl=tls)
    print(port, web.sockets[0].getsockname()[1], flush=True)
    while len(parties.streams) < expected:
        await asyncio.sleep(0.05)
    print("here", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    web.close()
    await parties.listener.stop(0)


@contextlib.contextmanager
def floor(names: list[str]) -> Iterator[Callable[[list[str], int, int, int], object]]:
    """A function that sends ids and waits for an answer of the given sizes (asked, found, answered)."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "certificates"
        throw_away(names, folder)
        command = [sys.executable, __file__, str(folder)]
        first = subprocess.Popen(
            [*command, "server", str(len(names))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert first.stdin is not None and first.stdout is not None
        port, web = first.stdout.readline().split()
        others = [subprocess.Popen([*command, name, f"127.0.0.1:{port}"]) for name in names]
        first.stdout.readline()
        door = Door(f"https://127.0.0.1:{web}", "t" * 43, folder / "server.pem")

        def ask(ids: list[str], asked: int, found: int, answered: int) -> object:
            return door.request("POST", f"/{asked}/{found}/{answered}", {"ids": ids})

        try:
            yield ask
        finally:
            door.close()
            for process in others:
                process.kill()
            first.communicate()
            for process in others:
                process.wait()


if __name__ == "__main__":
    gc.freeze()  # as `serve` and `join` do
    where, role, more = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    uvloop.run(server(where, int(more)) if role == "server" else party(where, role, more))
