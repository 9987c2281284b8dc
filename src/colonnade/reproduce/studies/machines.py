"""What machines and links do: Google's CPU traces (Flex-VFL, Fig. 3), and scalars against vectors (AsySQN, Table 3)."""

import socket
import time
from collections.abc import Sequence
from statistics import median
from threading import Thread

import numpy as np

from colonnade.drivers.simulator.cpu_loads import read_load
from colonnade.protocol.codec import Codec
from colonnade.protocol.messages import Array, Payload
from colonnade.reproduce.conduct import Curve, Job
from colonnade.reproduce.item import Column
from colonnade.reproduce.result import Cell

__all__ = ["communication", "traces"]

Found = tuple[list[Cell], dict[str, dict[str, Curve]]]
HOURS = 24.0


class Numbers(Payload, frozen=True):
    """A message with a vector."""

    values: Array


def traces(job: Job, columns: Sequence[Column]) -> Found:
    """The CPU use of four machines over a day, and how far it ranges."""
    cells, lines = [], {}
    for column in columns:
        file = f"{job.tables(column)['trace']['file']}"
        for row in job.rows():
            cpu = read_load("file", file, row.set["machine"]).tolist()
            cells.append(Cell(row=row.name, column=column.name, values=[max(cpu) - min(cpu)]))
            hours = np.linspace(0, HOURS, len(cpu), endpoint=False)[::4]
            lines[row.name] = [[round(float(x), 3) for x in hours], [round(float(y), 3) for y in cpu[::4]]]
    return cells, {columns[0].name: lines}


def communication(job: Job, columns: Sequence[Column]) -> Found:
    """Time to send d numbers over a socket of this machine, over the time to send one: the paper's CTI."""
    codec, sizes = Codec([Numbers]), [1, *(int(column.x or 1) for column in columns)]
    times: list[list[float]] = [[] for _ in sizes]
    with _echo() as connection:
        for _ in range(200 if job.size == "quick" else 2000):
            for place, size in enumerate(sizes):  # in turns, so that a noisy machine disturbs all alike
                _round_trip(connection, codec, 1)  # every size comes after the same message
                times[place].append(_round_trip(connection, codec, size))
    one, *others = map(median, times)
    pairs = zip(columns, others, strict=True)
    return [Cell(row="vector / scalar", column=column.name, values=[own / one]) for column, own in pairs], {}


class _echo:
    """A connection to a thread that answers each message with one byte."""

    def __enter__(self) -> socket.socket:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.connection = socket.create_connection(self._server.getsockname())
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.connection

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        peer, _ = self._server.accept()
        with peer:
            while size := int.from_bytes(_exactly(peer, 4) or b"", "big"):
                _exactly(peer, size)
                peer.sendall(b"\0")


def _exactly(peer: socket.socket, count: int) -> bytes:
    """So many bytes; b"" if the connection has ended."""
    parts = []
    while count:
        part = peer.recv(min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _round_trip(connection: socket.socket, codec: Codec, numbers: int) -> float:
    """The seconds to encode, send and have acknowledged so many numbers."""
    values, start = np.zeros(numbers), time.perf_counter()
    data = b"".join(codec.encode(Numbers(values)).parts())
    connection.sendall(len(data).to_bytes(4, "big") + data)
    connection.recv(1)
    return time.perf_counter() - start
