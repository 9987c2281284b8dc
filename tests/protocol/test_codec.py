"""The codec: messages survive a round trip, and foreign bytes either decode or are refused, without other effects."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colonnade.protocol import codec as codec_module
from colonnade.protocol.codec import DTYPES, MAX_HEADER_BYTES, VERSION, Codec
from colonnade.protocol.errors import CodecError, LocalProtocolError
from colonnade.protocol.messages import Array, Payload


class Leaf(Payload, frozen=True):
    name: str
    values: Array


class Branch(Payload, frozen=True):
    number: int
    weight: float
    text: str
    flag: bool
    leaves: list[Leaf]
    nested: list[list[Array]]
    maybe: Array | None = None


class Other(Payload, frozen=True):
    name: str


CODEC = Codec([Leaf, Branch])

arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
leaves = st.builds(Leaf, st.text(max_size=5), arrays)
branches = st.builds(
    Branch,
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.booleans(),
    st.lists(leaves, max_size=3),
    st.lists(st.lists(arrays, max_size=3), max_size=3),
    st.none() | arrays,
)


def all_arrays(payload: Payload) -> list[Array]:
    if isinstance(payload, Leaf):
        return [payload.values]
    assert isinstance(payload, Branch)
    maybe = [] if payload.maybe is None else [payload.maybe]
    return [leaf.values for leaf in payload.leaves] + [a for row in payload.nested for a in row] + maybe


def by_hand(header: object, body: bytes = b"") -> bytes:
    """A frame around an arbitrary header."""
    text = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return b"CLN" + bytes([VERSION]) + len(text).to_bytes(4, "little") + text + bytes(-len(text) % 8) + body


def leaf_by_hand(dtype: object, shape: object, body: bytes = b"") -> bytes:
    return by_hand({"type": "Leaf", "name": "x", "values": [dtype, shape]}, body)


def refusal(data: bytes, codec: Codec = CODEC) -> str:
    with pytest.raises(CodecError) as caught:
        codec.decode(data, "party 7")
    assert caught.value.peer == "party 7"
    assert str(caught.value).startswith("party 7: ")
    return caught.value.cause


@settings(deadline=None)
@given(st.one_of(leaves, branches))
def test_what_goes_in_comes_out(payload: Payload) -> None:
    frame = CODEC.encode(payload)
    data = bytes(frame)
    assert frame.size == len(data)
    decoded = CODEC.decode(data)
    assert type(decoded) is type(payload)
    pairs = list(zip(all_arrays(decoded), all_arrays(payload), strict=True))
    for got, given_ in pairs:
        assert (got.dtype, got.shape, got.tobytes()) == (given_.dtype, given_.shape, given_.tobytes())
        assert not got.flags.writeable
        assert got.flags.aligned
    if isinstance(payload, Branch):
        for name in ("number", "weight", "text", "flag"):
            assert getattr(decoded, name) == getattr(payload, name)
    assert bytes(CODEC.encode(decoded)) == data


def test_floats_that_equal_nothing_survive() -> None:
    for weight in (float("inf"), float("-inf"), float("nan"), -0.0):
        decoded = CODEC.decode(bytes(CODEC.encode(Branch(0, weight, "", True, [], []))))
        assert repr(decoded.weight) == repr(weight)  # type: ignore[attr-defined]


def test_decoded_arrays_are_views_of_the_frame() -> None:
    data = bytes(CODEC.encode(Leaf("x", np.arange(5.0))))
    values = CODEC.decode(data).values  # type: ignore[attr-defined]
    assert np.shares_memory(values, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1


def test_arrays_are_read_only_even_where_the_buffer_is_not() -> None:
    data = bytearray(bytes(CODEC.encode(Leaf("x", np.arange(5.0)))))
    assert not CODEC.decode(memoryview(data)).values.flags.writeable  # type: ignore[attr-defined]


def test_what_is_not_contiguous_is_encoded_by_value() -> None:
    wide = np.arange(12, dtype=np.float32).reshape(3, 4)
    decoded = CODEC.decode(bytes(CODEC.encode(Leaf("x", wide.T[::2]))))
    np.testing.assert_array_equal(decoded.values, wide.T[::2])  # type: ignore[attr-defined]


def test_a_frame_can_be_checked_by_eye() -> None:
    frame = bytes(CODEC.encode(Leaf("x", np.array([1, 2, 3], np.uint8))))
    header = msgspec.msgpack.encode({"type": "Leaf", "name": "x", "values": ("|u1", (3,))})
    assert frame[:4] == b"CLN\x01"
    assert frame[4:8] == len(header).to_bytes(4, "little")
    assert frame[8:] == header + bytes(-len(header) % 8) + b"\1\2\3" + bytes(5)


def test_one_codec_can_be_used_again_and_again() -> None:
    first, second = Leaf("a", np.arange(3.0)), Leaf("b", np.arange(4, dtype=np.int32))
    one, two = CODEC.encode(first), CODEC.encode(second)
    assert CODEC.decode(bytes(one)).name == "a"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(CODEC.decode(bytes(two)).values, second.values)  # type: ignore[attr-defined]


GOOD = bytes(
    CODEC.encode(
        Branch(3, 0.5, "text", True, [Leaf("x", np.arange(3, dtype=np.uint8))], [[np.arange(2.0)], []], np.ones((2, 3)))
    )
)


def test_a_frame_cut_off_anywhere_is_refused() -> None:
    endings_in_padding = bytes(CODEC.encode(Leaf("x", np.arange(3, dtype=np.uint8))))
    header_only = bytes(CODEC.encode(Branch(1, 0.0, "abc", True, [], [])))
    for frame in (GOOD, endings_in_padding, header_only):
        CODEC.decode(frame)
        for length in range(len(frame)):
            refusal(frame[:length])


@pytest.mark.parametrize("extra", [1, 7, 8, 100])
def test_trailing_bytes_are_refused(extra: int) -> None:
    assert "too many" in refusal(GOOD + bytes(extra))


def test_other_magic_and_other_versions_are_refused() -> None:
    assert "not a Colonnade frame" in refusal(b"XLN" + GOOD[3:])
    assert "not a Colonnade frame" in refusal(b"")
    newer = refusal(GOOD[:3] + b"\x02" + GOOD[4:])
    assert "version 2" in newer
    assert "this member uses 1" in newer


def test_a_header_too_long_for_its_frame_or_for_any_frame_is_refused() -> None:
    assert "does not fit" in refusal(GOOD[:4] + (len(GOOD)).to_bytes(4, "little") + GOOD[8:])
    assert "does not fit" in refusal(GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:])
    long = by_hand({"type": "Leaf", "name": "x" * MAX_HEADER_BYTES, "values": ["|u1", [0]]})
    assert "does not fit" in refusal(long)


@pytest.mark.parametrize(
    "dtype", ["|O", "O", ">f4", "<c8", "<U4", "|S4", "|V4", "<M8[s]", "<f4,<f4", "float32", "", 4, None, ["<f4"]]
)
def test_dtypes_outside_the_list_are_refused(dtype: object) -> None:
    assert "bad array description" in refusal(leaf_by_hand(dtype, [1], bytes(8)))


@pytest.mark.parametrize("shape", [[-1], [2, -3], [-(2**63)], [1.0], [True], ["1"], [None], [[1]]])
def test_shapes_that_are_no_shapes_are_refused(shape: object) -> None:
    assert "bad array description" in refusal(leaf_by_hand("<f4", shape, bytes(8)))


@pytest.mark.parametrize("shape", [[2**63], [2**64 - 1], [2**40], [2**32, 2**32], [2**31, 2**31, 2**31, 2**31], [3]])
def test_shapes_larger_than_the_frame_are_refused(shape: list[int]) -> None:
    assert "past the end" in refusal(leaf_by_hand("<f4", shape, bytes(8)))


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**64 - 1], [2**62, 0, 2**62]])
def test_empty_arrays_of_impossible_extent_are_refused(shape: list[int]) -> None:
    refusal(leaf_by_hand("<f4", shape))


@pytest.mark.parametrize("description", [[], ["<f4"], ["<f4", [1], 3], "<f4", 3, {}, ["<f4", 1], ["<f4", "1"]])
def test_descriptions_of_other_forms_are_refused(description: object) -> None:
    refusal(by_hand({"type": "Leaf", "name": "x", "values": description}, bytes(8)))


def test_more_than_four_dimensions_are_refused() -> None:
    assert "bad array description" in refusal(leaf_by_hand("<f4", [1] * 5, bytes(8)))


def test_payloads_of_unknown_type_or_with_wrong_fields_are_refused() -> None:
    refusal(by_hand({"type": "Other", "name": "x"}))
    refusal(by_hand({"name": "x"}))
    refusal(by_hand({"type": "Leaf", "name": 3, "values": ["|u1", [0]]}))
    refusal(by_hand({"type": "Leaf", "name": "x"}))
    refusal(by_hand([1, 2]))
    refusal(by_hand(b"\x91" * 100_000))  # nested deeper than any stack


def test_frames_over_the_limit_are_refused_on_both_sides() -> None:
    small = Codec([Leaf], max_frame_bytes=200)
    fits, large = Leaf("x", np.zeros(100, np.uint8)), Leaf("x", np.zeros(200, np.uint8))
    assert small.decode(bytes(small.encode(fits))) is not None
    with pytest.raises(LocalProtocolError, match=r"Leaf is \d+ bytes, the limit is 200"):
        small.encode(large)
    assert "the limit is 200" in refusal(bytes(CODEC.encode(large)), small)


def test_the_limit_is_exact() -> None:
    payload = Leaf("x", np.zeros(64, np.uint8))
    size = CODEC.encode(payload).size
    exact = Codec([Leaf], max_frame_bytes=size)
    assert exact.decode(bytes(exact.encode(payload))) is not None
    with pytest.raises(LocalProtocolError, match="limit"):
        Codec([Leaf], max_frame_bytes=size - 1).encode(payload)


@pytest.mark.parametrize(
    "values",
    [
        np.array([object()]),
        np.array(["text"]),
        np.array([1 + 2j]),
        np.zeros(2, ">f4"),
        np.zeros(2, np.int16),
        np.zeros(2, "datetime64[s]"),
        np.zeros(2, [("a", "<f4")]),
    ],
)
def test_arrays_of_other_dtypes_are_not_sent(values: Array) -> None:
    with pytest.raises(LocalProtocolError, match="cannot carry an array of"):
        CODEC.encode(Leaf("x", values))


def test_other_objects_are_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="cannot carry a complex"):
        CODEC.encode(Leaf("x", 1j))  # type: ignore[arg-type]


def test_a_refused_payload_leaves_the_codec_usable() -> None:
    codec = Codec([Leaf])
    with pytest.raises(LocalProtocolError):
        codec.encode(Leaf("x", np.zeros(2, np.int16)))
    with pytest.raises(CodecError):
        codec.decode(leaf_by_hand("<f4", [9]))
    good = codec.encode(Leaf("x", np.arange(3.0)))
    np.testing.assert_array_equal(codec.decode(bytes(good)).values, np.arange(3.0))  # type: ignore[attr-defined]


def test_no_byte_sequence_does_anything_but_decode_or_be_refused() -> None:
    random = np.random.default_rng(1)
    decoded = 0
    for index in range(20_000):
        kind = index % 4
        if kind == 0:
            data = random.bytes(int(random.integers(0, 100)))
        elif kind == 1:
            text = random.bytes(int(random.integers(0, 60)))
            data = by_hand(text, random.bytes(8 * int(random.integers(0, 5))))
        else:
            mutable = bytearray(GOOD)
            for _ in range(int(random.integers(1, 4))):
                mutable[int(random.integers(0 if kind == 2 else 8, len(mutable)))] = int(random.integers(256))
            start = int(random.integers(0, len(mutable)))
            if random.random() < 0.2:
                del mutable[start : start + int(random.integers(1, 20))]
            data = bytes(mutable)
        try:
            CODEC.decode(data, "party 7")
            decoded += 1
        except CodecError as error:
            assert error.peer == "party 7"
    assert 0 < decoded < 10_000  # both outcomes occurred


def test_nothing_is_ever_unpickled() -> None:
    import pickle

    refusal(by_hand(pickle.dumps({"type": "Leaf"})))
    assert "pickle" not in vars(codec_module)
    assert all(not dtype.hasobject for dtype in DTYPES.values())
