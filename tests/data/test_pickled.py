"""Pickles are read as data: what they would call is never called."""

import pickle
import struct

import numpy as np
import pytest

from colonnade.data.pickled import bytes_array, read_pickled
from colonnade.protocol.errors import DataError


@pytest.fixture
def read(tmp_path):
    def from_bytes(content):
        (tmp_path / "batch").write_bytes(content)
        return read_pickled(tmp_path / "batch")

    return from_bytes


def python_2_batch(images, labels):
    """The operations that cPickle of Python 2 writes for a batch of CIFAR-10, one by one."""
    put = iter(range(1, 200))
    keep = lambda: b"q" + bytes([next(put)])  # noqa: E731
    short = lambda text: b"U" + bytes([len(text)]) + text + keep()  # noqa: E731
    content = images.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + keep() + b"cnumpy\nndarray\n" + keep() + b"K\x00\x85" + keep()
    array += short(b"b") + b"\x87" + keep() + b"R" + keep()
    shape = b"M" + struct.pack("<H", images.shape[0]) + b"M" + struct.pack("<H", images.shape[1]) + b"\x86" + keep()
    dtype = b"cnumpy\ndtype\n" + keep() + short(b"u1") + b"K\x00K\x01\x87" + keep() + b"R" + keep()
    dtype += b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t" + keep() + b"b"
    state = b"(K\x01" + shape + dtype + b"\x89" + b"T" + struct.pack("<i", len(content)) + content + keep()
    array += state + b"t" + keep() + b"b"
    names = b"".join(short(b"cat_%d.png" % i) for i in range(len(labels)))
    return (
        b"\x80\x02}" + keep() + b"(" + short(b"batch_label") + short(b"training batch 1 of 5")
        + short(b"labels") + b"]" + keep() + b"(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        + short(b"data") + array + short(b"filenames") + b"]" + keep() + b"(" + names + b"eu."
    )  # fmt: skip


def test_a_batch_of_python_2(read):
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    content = python_2_batch(images, [6, 9, 0])
    found = read(content)
    assert found["labels"] == [6, 9, 0] and found["batch_label"] == "training batch 1 of 5"
    assert np.array_equal(bytes_array(found["data"]), images)
    theirs = pickle.loads(content, encoding="bytes")  # its bytes are written above
    assert np.array_equal(theirs[b"data"], images) and theirs[b"labels"] == [6, 9, 0]


@pytest.mark.parametrize("protocol", [3, 4])
def test_data_of_python_3(read, protocol):
    images = np.arange(12, dtype=np.uint8).reshape(3, 4)
    batch = {"data": images, "labels": [1, 300, -5], "more": (None, True, False, (1,), b"b", [[]])}
    found = read(pickle.dumps(batch, protocol=protocol))
    assert (found["labels"], found["more"]) == (batch["labels"], batch["more"])
    assert np.array_equal(bytes_array(found["data"]), images)


class Evil:
    def __reduce__(self):
        return eval, ("open('gone', 'w').write('x')",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_code_of_the_file_runs(read, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    found = read(pickle.dumps({"data": Evil(), "labels": []}, protocol=protocol))
    with pytest.raises(ValueError, match="no numpy array"):
        bytes_array(found["data"])
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "pickle"),
        (b"\x80\x02}", "pickle"),
        (b"\x80\x02.", "not enough values|unpack"),
        (b"\x80\x02R.", "stack is too short"),
        (b"\x80\x02h\x05.", "cannot be read"),
        (b"\x80\x02t.", "cannot be read"),
        (b"\x80\x02]U\x01aK\x02s.", "dict was expected, not a list"),
        (b"\x80\x02}]K\x01s.", "text was expected, not a list"),
        (b"(lp0\n.", "LIST is not one of plain data"),
        (b"(i__builtin__\neval\n.", "INST is not one of plain data"),
        (b"\x80\x02cos\nsystem\n)\x81.", "NEWOBJ is not one of plain data"),
        (b"\x80\x02K\x01N\x82\x01.", "EXT1 is not one of plain data"),
        (b"Pnumber\n.", "PERSID is not one of plain data"),
        (b"\x80\x02T\xff\xff\xff\x7fabc.", "expected 2147483647 bytes"),
    ],
)
def test_other_operations_are_refused(read, content, why):
    with pytest.raises(DataError, match=why):
        read(content)


def test_a_nest_of_tuples_costs_no_more_than_its_bytes(read):
    nest = b"K\x01" + b"q\x00h\x00\x86" * 200  # 2^200 numbers, if they were written out
    with pytest.raises(DataError, match="text was expected, not a tuple"):
        read(b"\x80\x02}" + nest + b"K\x01s.")
    state = b"(K\x01" + nest + b"NI00\n" + b"U\x01at"
    with pytest.raises(DataError, match="INT is not one"):
        read(b"\x80\x02" + state + b".")


def test_arrays_that_are_no_bytes_in_c_order_are_refused(read):
    for array in (np.zeros(3, np.float32), np.asfortranarray(np.zeros((2, 3), np.uint8)), "text", None):
        with pytest.raises(ValueError, match="unsigned bytes|no numpy array"):
            bytes_array(read(pickle.dumps(array, protocol=4)))
    content = pickle.dumps(np.zeros(300, np.uint8), protocol=3)
    with pytest.raises(ValueError, match="needs 301 bytes, there are 300"):
        bytes_array(read(content.replace(b"M\x2c\x01", b"M\x2d\x01", 1)))


def test_the_number_of_operations_is_limited(read, monkeypatch):
    monkeypatch.setattr("colonnade.data.pickled.MOST_OPERATIONS", 100)
    with pytest.raises(DataError, match="more than 100 operations"):
        read(b"\x80\x02](" + b"N" * 200 + b"e.")
