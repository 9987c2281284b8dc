"""How gRPC waits for sockets: the first import decides, no other module does. Each case is a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux does")

TALK = """
import asyncio, os
import colonnade.drivers.processes.service
import grpc

async def echo(_requests, context):
    while (data := await context.read()) is not grpc.aio.EOF:
        await context.write(data)

def switches_of_engine():
    texts = [open(f"/proc/self/task/{task}/status").read() for task in os.listdir("/proc/self/task")]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts if "event_engine" in text)

async def main():
    server = grpc.aio.server()
    handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/bare/Echo")()
        for _ in range(1000):
            await call.write(b"x")
            await call.read()
    print(os.environ.get("GRPC_EXPERIMENTS"), switches_of_engine())
    await server.stop(0)

asyncio.run(main())
"""


def talk(**settings):
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    command = [sys.executable, "-c", TALK]
    done = subprocess.run(command, env=inherited | settings, capture_output=True, text=True, timeout=60, check=True)
    left, switches = done.stdout.split()
    return left, int(switches)


def test_no_thread_of_grpc_stands_between_socket_and_loop():
    left, switches = talk()
    assert left == "None", "left for child processes"
    assert switches < 1000, "one for each round trip"


def test_a_users_choice_is_not_overruled():
    left, switches = talk(GRPC_EXPERIMENTS="event_engine_client,event_engine_listener")
    assert left == "event_engine_client,event_engine_listener"
    assert switches > 1000
