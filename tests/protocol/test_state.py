"""State to bytes and back: every value that a role may hold keeps its value and type."""

from math import isnan
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError

DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<u8", "<u4", "|u1", "|b1")

arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8), arrays
)
keys = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=3)), st.binary())
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=15,
)


def assert_same(got: Any, given_: Any) -> None:
    assert type(got) is type(given_)
    if isinstance(given_, dict):
        assert list(got) == list(given_)  # the order, too
        for key, value in given_.items():
            assert_same(got[key], value)
    elif isinstance(given_, list | tuple):
        assert len(got) == len(given_)
        for one, other in zip(got, given_, strict=True):
            assert_same(one, other)
    elif isinstance(given_, np.ndarray):
        assert (got.dtype, got.shape, got.tobytes()) == (given_.dtype, given_.shape, given_.tobytes())
    elif isinstance(given_, float) and isnan(given_):
        assert isnan(got)
    elif isinstance(given_, float):
        assert (got, np.signbit(got)) == (given_, np.signbit(given_))
    else:
        assert got == given_


def round_trip(value: Any) -> Any:
    return state.unpack(state.pack(value))


@settings(deadline=None)
@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    assert_same(round_trip(tree), tree)


def test_the_corners() -> None:
    tree = {
        "floats": [float("inf"), float("-inf"), float("nan"), -0.0, 5e-324],
        "integers": {0: 2**200, -1: True, (1, "a"): None},
        "zero dimensions": np.array(3.5, np.float32),
        "empty": [np.zeros((0, 4)), np.zeros(0, np.uint8), {}, [], (), b"", ""],
        "looks like ours": {"tuple": [1], "array": "0", "bytes": "00"},
        "text": 'quotes " and \\ and \ud800 and 日本',
        "nested": ((1, (2, [3, (4,)])),),
    }
    assert_same(round_trip(tree), tree)


def test_numpy_scalars_become_plain_ones() -> None:
    assert_same(round_trip([np.float32(0.5), np.int64(7), np.bool_(True)]), [0.5, 7, True])


def test_generators_go_on_with_the_same_numbers() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    generator.integers(10, size=3, dtype=np.uint32)  # leaves half of a draw in the bit generator
    generator.standard_normal(5)
    copy = round_trip({"pace": generator})["pace"]
    for draw in ("random", "standard_normal", "exponential"):
        np.testing.assert_array_equal(getattr(copy, draw)(7), getattr(generator, draw)(7))
    np.testing.assert_array_equal(
        copy.integers(9, size=5, dtype=np.uint32), generator.integers(9, size=5, dtype=np.uint32)
    )


def test_saving_moves_no_generator() -> None:
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    state.pack([one])
    assert one.random() == other.random()


def test_what_is_not_contiguous_is_kept_by_value() -> None:
    wide = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(round_trip(wide.T[::2]), wide.T[::2])


def test_the_pieces_are_the_file() -> None:
    tree = [np.arange(5, dtype=np.uint8), np.arange(3.0), "text"]
    assert b"".join(bytes(piece) for piece in state.chunks(tree)) == state.pack(tree)


def test_the_safetensors_library_reads_the_file() -> None:
    given_ = [np.arange(3).astype(name).reshape(1, 3) for name in DTYPES] + [np.zeros((0, 2)), np.array(1.5)]
    arrays_read = safetensors.numpy.load(b"".join(state.chunks({"a": given_, 3: "text"})))
    assert set(arrays_read) == {str(index) for index in range(len(given_))}
    for index, array in enumerate(given_):
        read = arrays_read[str(index)]
        assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_every_array_is_aligned_in_the_file() -> None:
    import json

    data = state.pack([np.zeros(3, np.uint8), np.zeros(1, np.float32), np.zeros(2), np.zeros(1, np.float16)])
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    sizes = {"U8": 1, "F32": 4, "F64": 8, "F16": 2}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % sizes[entry["dtype"]] == 0


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.array(["a"]), np.zeros(2, ">f8"), np.zeros(2, np.int16), {1, 2}, object(), 1j],
    ids=["object", "text", "big-endian", "int16", "set", "anything", "complex"],
)
def test_what_cannot_be_kept_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match="a state cannot hold"):
        state.pack({"x": [value]})


TREE = {
    "step": 3,
    "arrays": [np.arange(6.0).reshape(2, 3), np.arange(5, dtype=np.uint8)],
    "pace": np.random.default_rng(0),
    "key": b"\0\1",
    "plain": (1, None, 0.5),
}


def test_a_file_cut_off_anywhere_is_refused() -> None:
    data = state.pack(TREE)
    state.unpack(data)
    for length in range(len(data)):
        with pytest.raises(CheckpointError, match="damaged"):
            state.unpack(data[:length])


def test_a_longer_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        state.unpack(state.pack(TREE) + b"\0")


def test_a_damaged_file_raises_nothing_else() -> None:
    random, data = np.random.default_rng(2), state.pack(TREE)
    refused = 0
    for _ in range(4_000):
        damaged = bytearray(data)
        for _ in range(int(random.integers(1, 4))):
            damaged[int(random.integers(len(damaged)))] = int(random.integers(256))
        try:
            state.unpack(bytes(damaged))
        except CheckpointError:
            refused += 1
    assert refused > 1_000


def test_other_files_are_refused() -> None:
    other = safetensors.numpy.save({"weights": np.zeros(3)})
    foreign = safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"tree": '{"unknown": 1}'})
    deep = safetensors.numpy.save({"weights": np.zeros(3)}, metadata={"tree": "[" * 200_000})
    huge = safetensors.numpy.save({}, metadata={"tree": '{"generator": {"dict": [["state", 1e999]]}}'})
    for data in (b"", b"\0" * 8, b"PK\3\4 a zip archive", other, foreign, deep, huge):
        with pytest.raises(CheckpointError, match="not a Colonnade checkpoint"):
            state.unpack(data)
