"""Frames of the stream: whole round trips; any other bytes raise a CodecError."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.drivers.processes.wire import (
    ENVELOPE_BYTES,
    MAX_CONTROL_BYTES,
    Bye,
    End,
    Hello,
    Kind,
    LaneBins,
    Position,
    Presence,
    Refusal,
    Welcome,
    acknowledge,
    control,
    open_envelope,
    read_control,
    seal_envelope,
    seal_message,
)
from colonnade.protocol.codec import Frame
from colonnade.protocol.errors import CodecError

WORDS = {
    Kind.HELLO: Hello(1, "0.1", {"train": {"seed": 3}}, 10, "ab", 4, "float32", 2**61, Position(7, 3, 2, 1)),
    Kind.WELCOME: Welcome(True, Position(2**62, 0, 0, 0)),
    Kind.REFUSAL: Refusal("not today", False),
    Kind.END: End("finished", "a note"),
    Kind.BYE: Bye("cd", 0.5, None, LaneBins(8, [0, 250], [1000, 500])),
    Kind.PRESENCE: Presence({"bank": 3}, {"clinic": 1.5}),
}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.name)
def test_control_words_return_as_they_were(kind):
    word = WORDS[kind]
    assert read_control(open_envelope(control(kind, word), "bank"), kind, type(word), "bank") == word


@given(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=64))
def test_envelopes_return_as_they_were(kind, sequence, acknowledged, body):
    found = open_envelope(seal_envelope(kind, sequence, acknowledged, body), "bank")
    assert (found.kind, found.sequence, found.acknowledged, bytes(found.body)) == (kind, sequence, acknowledged, body)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=64))
def test_a_frame_that_waited_acknowledges_the_newest(before, after, body):
    frame = acknowledge(seal_envelope(Kind.MESSAGE, 7, before, body), after)
    assert frame == seal_envelope(Kind.MESSAGE, 7, after, body)


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_message_says_whether_it_was_sent_for_evaluation(evaluation):
    frame = acknowledge(seal_message(7, 1, Frame(b"x", [], 16), evaluation), 2)
    found = open_envelope(frame, "bank")
    assert (found.sequence, found.acknowledged, found.evaluation) == (7, 2, evaluation)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_codec_error_or_a_frame(data):
    try:
        envelope = open_envelope(data, "bank")
    except CodecError as error:
        assert error.peer == "bank"
        return
    for kind, word in WORDS.items():
        with pytest.raises(CodecError, match="bank"):
            read_control(envelope, kind, type(word), "bank")


@given(st.sampled_from(list(WORDS)), st.binary(max_size=100))
def test_a_random_body_is_a_codec_error(kind, body):
    with pytest.raises(CodecError):
        read_control(open_envelope(seal_envelope(kind, 0, 0, body), "bank"), kind, type(WORDS[kind]), "bank")


@given(st.sampled_from(list(WORDS)), st.data())
def test_a_changed_byte_is_a_codec_error_or_another_word_of_the_same_kind(kind, data):
    frame = bytearray(control(kind, WORDS[kind]))
    frame[data.draw(st.integers(ENVELOPE_BYTES, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = read_control(open_envelope(bytes(frame), "bank"), kind, type(WORDS[kind]), "bank")
    except CodecError:
        return
    assert type(found) is type(WORDS[kind])


@pytest.mark.parametrize("size", range(ENVELOPE_BYTES))
def test_a_short_frame_is_refused(size):
    with pytest.raises(CodecError, match=f"bank: frame of {size} bytes is too short"):
        open_envelope(seal_envelope(Kind.ACK, 0, 0)[:size], "bank")


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(CodecError, match=f"bank: frame of unknown kind {kind}"):
        open_envelope(bytes([kind]) + bytes(23), "bank")


def test_another_kind_than_expected_is_refused():
    with pytest.raises(CodecError, match="frame of kind END, expected HELLO"):
        read_control(open_envelope(control(Kind.END, End("finished")), "bank"), Kind.HELLO, Hello, "bank")


def test_a_large_control_body_is_not_even_looked_at():
    body = msgspec.msgpack.encode(End("finished", "x" * MAX_CONTROL_BYTES))
    with pytest.raises(CodecError, match=f"END of {len(body)} bytes, the limit is {MAX_CONTROL_BYTES}"):
        read_control(open_envelope(seal_envelope(Kind.END, 0, 0, body), "bank"), Kind.END, End, "bank")


@pytest.mark.parametrize("share", [float("nan"), -0.1, 1.5])
def test_a_busy_share_that_is_none_is_refused(share):
    with pytest.raises(CodecError, match="BYE cannot be read"):
        read_control(open_envelope(control(Kind.BYE, Bye("", share)), "bank"), Kind.BYE, Bye, "bank")


def test_unknown_fields_and_endless_nesting_are_refused():
    more = msgspec.msgpack.encode({"status": "finished", "note": "", "more": 1})
    nested = b"\x81\xa6status" + b"\x91" * 100_000
    for body in (more, nested):
        with pytest.raises(CodecError, match="END cannot be read"):
            read_control(open_envelope(seal_envelope(Kind.END, 0, 0, body), "bank"), Kind.END, End, "bank")
