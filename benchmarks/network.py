"""Round trips per second: a role that only echoes 32 KB, against a bare grpc.aio stream with the same mutual TLS.

Every side is its own process. Bare and driver take turns, so that a noisy neighbour disturbs both; the ratio of
the medians is what counts. `tuned` is the bare stream on uvloop, with gRPC's quicker way of waiting for sockets.
`own` is a bare stream on the driver's own transport: a driver without any cost would reach this rate.
`power` is the driver with network.durability = "power": every event is synced before its answer leaves. Its state lies
in /var/tmp, because /tmp may be in memory, where a sync costs nothing; a line says what one sync takes.

    python benchmarks/network.py [--seconds 4] [--rounds 3] [--parties 1,4] [--against FOLDER]

`--against` also runs this script with the driver of another checkout, in turns with this one. It prints
the ratio of the two: of round trips, and of processor time for a round trip, which a busy machine disturbs less.
The other checkout must have the classes that this script uses.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import uvloop

from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.dial import Dialler
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import PROTOCOL, Bye, Hello
from colonnade.protocol.events import PeerJoined, Received, Send
from colonnade.protocol.messages import Array, Message

PAYLOAD = np.arange(8192, dtype=np.float32)  # 32 KB
LIMITS = Limits()
SYNCS = 200
# gRPC's older way of waiting for sockets wakes one thread less per message. It reads this at its first import.
TUNED = "-event_engine_client,-event_engine_listener"
ON_DISK = "/var/tmp" if Path("/var/tmp").is_dir() else None


class Ball(Message, frozen=True):
    """There and back again."""

    number: int
    values: Array


class EchoRole:
    """Sends back what arrives."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def handle(self, event, now):
        match event:
            case Received(sender=sender, message=message):
                self.count += 1
                return [Send(sender, message)]
            case PeerJoined(peer="server"):
                return [Send("server", Ball(0, PAYLOAD))]
        return []

    def compute(self, job):
        raise NotImplementedError

    def save(self):
        return {"count": self.count}

    def load(self, state):
        self.count = state["count"]

    def validate(self):
        pass

    def summary(self):
        return {}


def identity(folder, name):
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


async def driver_server(folder, parties, limits=LIMITS):
    names = [f"party-{i}" for i in range(parties)]
    node = Node(EchoRole("server"), [Ball], folder / "state-server", names, limits, Log("server", level="error"))
    node.open()
    service = Service(node, identity(folder, "server"), {}, lambda name, hello: None, dict)
    print(await service.start("127.0.0.1:0"), flush=True)
    watch, began = asyncio.ensure_future(node.watch()), time.process_time()
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps((time.process_time() - began) / max(1, node.role.count)), flush=True)
    watch.cancel()
    await service.hang_up()
    node.close()


async def driver_party(folder, name, address, seconds, limits=LIMITS):
    role = EchoRole(name)
    node = Node(role, [Ball], folder / f"state-{name}", ["server"], limits, Log(name, level="error"))
    node.open()

    def hello(instance, position):
        return Hello(PROTOCOL, "bench", {}, 0, "", 0, "float32", instance, position)

    dialler = Dialler(node, identity(folder, name), address, hello, lambda end: Bye("", 0.0))
    talk = asyncio.ensure_future(dialler.run())
    await measure(lambda: role.count, seconds)
    talk.cancel()
    node.close()


async def bare_server(folder):
    import grpc  # noqa: PLC0415 - see `TUNED`

    async def echo(_requests, context):
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(data)

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    own = identity(folder, "server")
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, True)
    )
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(0.0, flush=True)
    await server.stop(0)


async def bare_party(folder, name, address, seconds):
    from colonnade.testing.grpc_client import open_channel  # noqa: PLC0415 - `--against` may lack it

    async def play(landed):
        async with open_channel(identity(folder, name), address, LIMITS) as channel:
            call = channel.stream_stream("/bare/Echo")()
            while True:
                await call.write(PAYLOAD.tobytes())
                await call.read()
                landed()

    await measured(play, seconds)


async def own_server(folder):
    from colonnade.drivers.processes.transport.listener import Listener  # noqa: PLC0415 - `--against` may lack it

    async def echo(call):
        listener.member_calls(call)
        call.widen()
        while (data := await call.read()) is not None:
            await call.send(bytes(data))

    listener = Listener(identity(folder, "server"), {b"/bare/Echo": echo}, LIMITS, 100, 2**20, print)
    print(f"127.0.0.1:{await listener.start('127.0.0.1', 0)}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(0.0, flush=True)
    await listener.stop(0)


async def own_party(folder, name, address, seconds):
    from colonnade.drivers.processes.pin import pinned_connection  # noqa: PLC0415 - `--against` may lack it

    async def play(landed):
        async with await pinned_connection(identity(folder, name), address, (), 2**20) as connection:
            call = connection.call("/bare/Echo")
            while True:
                await call.send(PAYLOAD.tobytes())
                await call.read()
                landed()

    await measured(play, seconds)


async def measured(play, seconds):
    """Run `play`, which calls its argument after each round trip."""
    trips = []
    task = asyncio.ensure_future(play(lambda: trips.append(None)))
    await measure(lambda: len(trips), seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def measure(count, seconds):
    """After the first hundred, print round trips per second and the processor time of one."""
    deadline = time.monotonic() + 30
    while count() < 100 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    before, start, cpu = count(), time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    trips, cpu = count() - before, time.process_time() - cpu
    print(json.dumps([trips / (time.perf_counter() - start), cpu / max(1, trips)]), flush=True)


def race(kind, parties, seconds, certificates, checkout=None):
    """Total round trips per second, and processor time of one on both sides. The driver may be another checkout's."""
    with tempfile.TemporaryDirectory(dir=ON_DISK) as scratch:
        folder = Path(scratch)
        for path in certificates.iterdir():
            (folder / path.name).symlink_to(path)
        command = [sys.executable, __file__, "--folder", str(folder), "--seconds", str(seconds)]
        settings = os.environ | ({"GRPC_EXPERIMENTS": TUNED} if kind == "tuned" else {})
        if checkout is not None:
            settings |= {"PYTHONPATH": os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])}
        server = subprocess.Popen(
            [*command, "--role", f"{kind}-server", "--parties", str(parties)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings,
        )  # fmt: skip
        address = server.stdout.readline().strip()
        players = [
            subprocess.Popen(
                [*command, "--role", f"{kind}-party", "--name", f"party-{i}", "--address", address],
                stdout=subprocess.PIPE, text=True, env=settings,
            )
            for i in range(parties)
        ]  # fmt: skip
        played = [json.loads(player.communicate(timeout=120)[0]) for player in players]
        server_cpu = float(server.communicate("", timeout=60)[0])
        return sum(rate for rate, _ in played), statistics.mean(cpu for _, cpu in played) + server_cpu


def sync_ms():
    """The median time of one write and sync."""
    from colonnade.drivers.files import DISK  # noqa: PLC0415 - a checkout for --against may not have it

    with tempfile.TemporaryFile(dir=ON_DISK) as file:
        os.ftruncate(file.fileno(), 2**24)
        found = []
        for place in range(SYNCS):
            start = time.perf_counter()
            os.pwrite(file.fileno(), PAYLOAD.data.cast("B"), place * 32768)
            DISK.sync_data(file.fileno())
            found.append(time.perf_counter() - start)
    return 1000 * statistics.median(found)


def _compare(now, before):
    for what, index in (("round trips/s", 0), ("processor time for one", 1)):
        ratios = sorted(one[index] / other[index] for one, other in zip(now, before, strict=True))
        print(f"  {what}, here / there: {statistics.median(ratios):.3f} ({ratios[0]:.3f}–{ratios[-1]:.3f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parties", default="1,4")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout to compare with")
    for name in ("--role", "--name", "--address"):
        parser.add_argument(name)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    gc.freeze()  # as `serve` and `join` do
    match options.role:
        case "driver-server":
            return uvloop.run(driver_server(options.folder, int(options.parties)))
        case "power-server":
            limits = Limits(durability="power")
            return uvloop.run(driver_server(options.folder, int(options.parties), limits))
        case "power-party":
            limits = Limits(durability="power")
            return uvloop.run(driver_party(options.folder, options.name, options.address, options.seconds, limits))
        case "bare-server":
            return asyncio.run(bare_server(options.folder))
        case "tuned-server":
            return uvloop.run(bare_server(options.folder))
        case "own-server":
            return uvloop.run(own_server(options.folder))
        case "own-party":
            return uvloop.run(own_party(options.folder, options.name, options.address, options.seconds))
        case "driver-party":
            return uvloop.run(driver_party(options.folder, options.name, options.address, options.seconds))
        case "bare-party":
            return asyncio.run(bare_party(options.folder, options.name, options.address, options.seconds))
        case "tuned-party":
            return uvloop.run(bare_party(options.folder, options.name, options.address, options.seconds))
    print(f"one sync of 32 KB takes {sync_ms():.2f} ms here (median)", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        certificates = Path(scratch) / "certificates"
        throw_away([f"party-{i}" for i in range(16)], certificates)
        for parties in map(int, options.parties.split(",")):
            rates = {"bare": [], "tuned": [], "own": [], "driver": [], "power": []}
            before = []
            for _ in range(options.rounds):
                for kind, found in rates.items():
                    found.append(race(kind, parties, options.seconds, certificates))
                if options.against is not None:
                    before.append(race("driver", parties, options.seconds, certificates, options.against))
            bare, tuned, own, driver, power = (statistics.median(rate for rate, _ in found) for found in rates.values())
            print(
                f"{parties} parties: driver {driver:.0f}/s; bare {bare:.0f}/s, ratio {driver / bare:.2f}; "
                f"tuned {tuned:.0f}/s, ratio {driver / tuned:.2f}; own {own:.0f}/s, ratio {driver / own:.2f}; "
                f"durability power {power:.0f}/s, ratio to process {power / driver:.2f}",
                flush=True,
            )
            if before:
                _compare(rates["driver"], before)
    return None


if __name__ == "__main__":
    main()
