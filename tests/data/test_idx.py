"""IDX files: written here byte by byte, and read back."""

import gzip
import struct

import numpy as np
import pytest

from colonnade.data.idx import read_idx
from colonnade.protocol.errors import DataError


def idx(code, shape, body):
    return bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "some-idx"
        path.write_bytes(content)
        return path

    return write


def test_bytes(written):
    array = read_idx(written(idx(0x08, (2, 1, 3), bytes([0, 1, 2, 253, 254, 255]))))
    assert array.dtype == np.uint8
    assert array.tolist() == [[[0, 1, 2]], [[253, 254, 255]]]


@pytest.mark.parametrize(("code", "letter"), [(0x09, "b"), (0x0B, "h"), (0x0C, "i"), (0x0D, "f"), (0x0E, "d")])
def test_other_types_come_in_native_order(written, code, letter):
    array = read_idx(written(idx(code, (3,), struct.pack(f">3{letter}", -2, 0, 100))))
    assert array.dtype == np.dtype(letter)
    assert array.dtype.isnative
    assert array.tolist() == [-2, 0, 100]


def test_gzip_is_told_by_content_not_by_name(written):
    assert read_idx(written(gzip.compress(idx(0x08, (1,), b"\5")))).tolist() == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file, it begins with nothing"),
        (b"PK\3\4....", "begins with 50 4b 03 04"),
        (idx(0x07, (1,), b"\0"), "unknown IDX element type 0x07"),
        (b"\0\0\x08\0", "0 dimensions"),
        (b"\0\0\x08\3\0\0\0\1", "cut short"),
        (idx(0x08, (2, 2), b"\0" * 3), r"shape \(2, 2\) needs 4 bytes after the header, there are 3"),
        (idx(0x08, (2, 2), b"\0" * 5), "there are 5"),
        (idx(0x08, (2**32 - 1,) * 3, b""), f"needs {(2**32 - 1) ** 3} bytes"),
        (gzip.compress(idx(0x08, (1,), b"\5"), mtime=0)[:-6], "cannot be read"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0garbage", "cannot be read"),
    ],
)
def test_refused_with_the_name_of_the_file(written, content, message):
    with pytest.raises(DataError, match=f"some-idx: .*{message}"):
        read_idx(written(content))


def test_absent_file(tmp_path):
    with pytest.raises(DataError, match="absent: cannot be read"):
        read_idx(tmp_path / "absent")
