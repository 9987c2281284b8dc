"""How a stream writes: in the call that makes a frame, as long as the writer is ready."""

import asyncio
from types import SimpleNamespace

import pytest

from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.peer import Peer, Stream
from colonnade.drivers.processes.wire import ENVELOPE_BYTES, Kind, open_envelope, seal_envelope


class Pipe:
    """A writer that is ready when the test says so, and takes one frame each time."""

    def __init__(self):
        self.begun, self.ready, self.on_ready = [], True, lambda: None

    def write(self, frame):
        assert self.ready, "not asked"
        self.begun.append(frame)
        self.ready = False

    def take(self):
        self.ready = True
        self.on_ready()

    def numbers(self):
        return [open_envelope(frame, "bank").sequence for frame in self.begun]


def stream_to(pipe, aside=None):
    peer = Peer("bank", Conversation("bank", 100))
    return peer.conversation, Stream(SimpleNamespace(limits=Limits()), peer, pipe, 0, aside)


def put(conversation):
    conversation.put(seal_envelope(Kind.MESSAGE, conversation.sent + 1, 0, b"body"))


def test_a_frame_is_written_in_the_call_and_the_next_one_when_the_writer_is_ready():
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
        assert pipe.numbers() == [1]  # the writer is not ready
        pipe.take()
        assert pipe.numbers() == [1, 2]
        pipe.take()
        assert pipe.numbers() == [1, 2, 3]
        pipe.take()
        put(conversation)
        stream.wake()
        assert pipe.numbers() == [1, 2, 3, 4]

    asyncio.run(run())


@pytest.mark.parametrize("end", ["close", "drop"])
def test_nothing_is_written_after_the_end(end):
    async def run():
        pipe = Pipe()
        conversation, stream = stream_to(pipe)
        put(conversation)
        stream.open()
        put(conversation)
        stream.close() if end == "close" else stream.drop("for a reason")
        pipe.take()
        stream.wake()
        assert pipe.numbers() == [1]
        assert stream.dropped.done() == (end == "drop")

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
        for _ in range(5):
            pipe.take()
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
