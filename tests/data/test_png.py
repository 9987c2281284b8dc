"""PNG files: written here chunk by chunk, with every filter, and read back."""

import struct
import zlib

import numpy as np
import pytest

from colonnade.data.png import read_png
from colonnade.protocol.errors import DataError

WIDTH, ROWS = 6, 5


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width=WIDTH, rows=ROWS, *, bits=8, colours=2, interlaced=0):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, rows, bits, colours, 0, 0, interlaced))


def filtered(pixels, filters):
    """The rows as a writer filters them, straight from RFC 2083, chapter 6."""
    lines = []
    for row, kind in enumerate(filters):
        line = [kind]
        for place in np.ndindex(pixels.shape[1:]):
            at = lambda r, p, c=place[1]: int(pixels[r, p, c]) if r >= 0 and p >= 0 else 0  # noqa: E731
            left, above, corner = at(row, place[0] - 1), at(row - 1, place[0]), at(row - 1, place[0] - 1)
            target = left + above - corner
            far = {value: abs(target - value) for value in (left, above, corner)}
            nearest = next(value for value in (left, above, corner) if far[value] == min(far.values()))
            guess = (0, left, above, (left + above) // 2, nearest)[kind]
            line.append((at(row, place[0]) - guess) % 256)
        lines.append(bytes(line))
    return b"".join(lines)


def png(pixels, filters):
    packed = zlib.compress(filtered(pixels, filters))
    body = chunk(b"IDAT", packed[:20]) + chunk(b"tEXt", b"anything") + chunk(b"IDAT", packed[20:])
    return b"\x89PNG\r\n\x1a\n" + header(pixels.shape[1], len(pixels)) + body + chunk(b"IEND", b"")


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH, 3), dtype=np.uint8)


@pytest.fixture
def written(tmp_path):
    def write(content):
        (tmp_path / "sheet.png").write_bytes(content)
        return tmp_path / "sheet.png"

    return write


@pytest.mark.parametrize("filters", [[0] * 5, [1] * 5, [2] * 5, [3] * 5, [4] * 5, [4, 1, 3, 2, 0], [2, 4, 1, 4, 3]])
def test_every_filter_is_undone(pixels, written, filters):
    assert np.array_equal(read_png(written(png(pixels, filters)), WIDTH, ROWS), pixels)


def packed_file(body, head=None):
    return b"\x89PNG\r\n\x1a\n" + (head or header()) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


SIZE = ROWS * (1 + 3 * WIDTH)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a PNG file, it begins with nothing"),
        (b"GIF89a..", "not a PNG file"),
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", b""), "no IHDR"),
        (packed_file(b"", header(bits=16)), "8-bit RGB"),
        (packed_file(b"", header(colours=6)), "8-bit RGB"),
        (packed_file(b"", header(interlaced=1)), "8-bit RGB"),
        (packed_file(b"", header(width=7)), "6 pixels wide and 1 to 5 high, not 7 x 5"),
        (packed_file(b"", header(rows=2**31)), "not 6 x 2,147,483,648"),
        (packed_file(b"", header(rows=0)), "not 6 x 0"),
        (packed_file(b"no zlib"), "cannot be unpacked"),
        (packed_file(zlib.compress(bytes(SIZE - 1))), "promises 95 bytes of rows, there are 94"),
        (packed_file(zlib.compress(bytes(10_000_000))), "promises 95 bytes of rows, there are more"),
        (packed_file(zlib.compress(bytes([5]) + bytes(SIZE - 1))), "row 0 has the unknown filter 5"),
        (packed_file(zlib.compress(bytes(SIZE)))[:-20], "cut short"),
        (packed_file(zlib.compress(bytes(SIZE))).replace(b"IDATx", b"IDATy"), "checksum of its b'IDAT' chunk"),
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"short") + chunk(b"IEND", b""), "5 bytes, not 13"),
    ],
)
def test_a_damaged_or_forged_file_is_refused(written, content, why):
    with pytest.raises(DataError, match=why):
        read_png(written(content), WIDTH, ROWS)
