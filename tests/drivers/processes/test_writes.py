"""How a stream writes: without a task, one frame at a time, and what happens if a write fails or is abandoned."""

import asyncio
from types import SimpleNamespace

import pytest

from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.peer import Peer, Stream
from colonnade.drivers.processes.wire import ENVELOPE_BYTES, Kind, open_envelope, seal_envelope


class Pipe:
    """A write that ends when the test says so."""

    def __init__(self):
        self.begun, self.ends, self.cancelled = [], [], 0

    async def write(self, frame):
        self.begun.append(frame)
        end = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        try:
            await end
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def numbers(self):
        return [open_envelope(frame, "bank").sequence for frame in self.begun]


def stream_to(pipe, aside=None):
    peer = Peer("bank", Conversation("bank", 100))
    return peer.conversation, Stream(SimpleNamespace(limits=Limits()), peer, pipe.write, 0, aside)


def put(conversation):
    conversation.put(seal_envelope(Kind.MESSAGE, conversation.sent + 1, 0, b"body"))


def test_a_write_begins_in_the_call_and_its_end_begins_the_next_one():
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.wake()
        assert pipe.begun == []  # the handshake is not over
        stream.open()
        assert pipe.numbers() == [1]  # in this call, before the loop turns
        put(conversation)
        put(conversation)
        stream.wake()
        assert pipe.numbers() == [1]  # one at a time
        for _ in range(2):
            pipe.ends[-1].set_result(None)
            await asyncio.sleep(0)
        assert pipe.numbers() == [1, 2, 3]
        stream.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()])
def test_a_write_that_fails_ends_the_stream(error):
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.open()
        put(conversation)
        pipe.ends[0].set_exception(error) if isinstance(error, Exception) else pipe.ends[0].cancel()
        await asyncio.sleep(0)
        assert stream.dropped.done()
        if isinstance(error, Exception):
            assert stream.dropped.exception() is error
        else:
            assert stream.dropped.result() == "connection lost"
        stream.wake()
        assert pipe.numbers() == [1]  # nothing more is written
        stream.close()

    asyncio.run(run())


def test_closing_abandons_the_write_under_way():
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.open()
        stream.close()
        assert pipe.cancelled == 1
        pipe.ends[0].cancel()
        put(conversation)
        stream.wake()
        await asyncio.sleep(0)
        assert pipe.numbers() == [1]
        assert not stream.dropped.done()

    asyncio.run(run())


def test_before_a_refusal_the_write_under_way_ends():
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.open()
        put(conversation)
        waiting = asyncio.ensure_future(stream.last_write(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        pipe.ends[0].set_result(None)
        await waiting
        assert pipe.numbers() == [1]
        assert pipe.cancelled == 0
        stream.close()

    asyncio.run(run())


def test_a_write_that_never_ends_is_waited_for_in_vain():
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.open()
        await stream.last_write(0.01)
        stream.close()
        assert pipe.cancelled == 1

    asyncio.run(run())


def test_frames_aside_take_turns_with_messages():
    class Aside:
        left = 3

        def next_frame(self):
            self.left -= 1
            return seal_envelope(Kind.RELAY, 0, 0) if self.left >= 0 else None

    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe, Aside())
        put(conversation)
        put(conversation)
        stream.open()
        while pipe.ends and not pipe.ends[-1].done():
            pipe.ends[-1].set_result(None)
            await asyncio.sleep(0)
        kinds = [open_envelope(frame, "bank").kind for frame in pipe.begun]
        assert kinds == [Kind.MESSAGE, Kind.RELAY, Kind.MESSAGE, Kind.RELAY, Kind.RELAY]
        stream.close()

    asyncio.run(run())


def test_news_travel_with_an_acknowledgement():
    async def run():
        pipe = Pipe()
        _, stream = stream_to(pipe)
        stream.open()
        stream.tell(b"news")
        assert open_envelope(pipe.begun[0], "bank").kind == Kind.ACK
        assert pipe.begun[0][ENVELOPE_BYTES:] == b"news"
        stream.close()

    asyncio.run(run())
