"""Read a PNG of 8-bit RGB pixels (RFC 2083), the only kind that an image set of ours comes in.

Written by hand: Pillow would be a dependency of 7 MB for this one format. The reader unpacks no more bytes than the
header of an allowed picture promises.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

__all__ = ["read_png"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB = 3  # bytes of a pixel
SUB, UP, AVERAGE, PAETH = 1, 2, 3, 4  # filters of a row, chapter 6; 0 is none


def read_png(path: Path, width: int, most_rows: int) -> Array:
    """Return the pixels (rows, width, 3) as bytes; raises DataError for another width or for more rows."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not content.startswith(SIGNATURE):
        raise DataError(f"{path}: not a PNG file, it begins with {content[:8].hex(' ') or 'nothing'}")
    packed, rows = bytearray(), 0
    for kind, body in _chunks(path, content):
        if kind == b"IHDR":
            rows = _rows(path, body, width, most_rows)
        elif kind == b"IDAT":
            packed += body
    if not rows:
        raise DataError(f"{path}: there is no IHDR chunk")
    return _unfiltered(path, _unpacked(path, packed, rows * (1 + width * RGB)).reshape(rows, -1))


def _chunks(path: Path, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the body of each chunk up to IEND, with a right checksum."""
    start = len(SIGNATURE)
    while start + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        end = start + 8 + length
        if end + 4 > len(content):
            break
        if zlib.crc32(content[start + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            raise DataError(f"{path}: the checksum of its {kind!r} chunk at byte {start} is wrong: download it again")
        if kind == b"IEND":
            return
        yield kind, content[start + 8 : end]
        start = end + 4
    raise DataError(f"{path}: the PNG is cut short after {len(content):,} bytes")


def _rows(path: Path, header: bytes, width: int, most_rows: int) -> int:
    """Return the height after a check of the header."""
    if len(header) != 13:
        raise DataError(f"{path}: the IHDR chunk has {len(header)} bytes, not 13")
    found, rows, *kind = struct.unpack(">IIBBBBB", header)
    if kind != [8, 2, 0, 0, 0]:  # bits, colours, compression, filters, interlacing
        raise DataError(f"{path}: must have 8-bit RGB pixels without interlacing, but its header says {kind}")
    if found != width or not 1 <= rows <= most_rows:
        raise DataError(f"{path}: must be {width} pixels wide and 1 to {most_rows:,} high, not {found:,} x {rows:,}")
    return int(rows)


def _unpacked(path: Path, packed: bytearray, size: int) -> Array:
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(packed, size + 1)  # one byte more shows that there is too much
    except zlib.error as error:
        raise DataError(f"{path}: its pixels cannot be unpacked: {error}") from error
    if len(content) != size:
        many = "more" if len(content) > size else f"{len(content):,}"
        raise DataError(f"{path}: its header promises {size:,} bytes of rows, there are {many}")
    return np.frombuffer(content, np.uint8)


def _unfiltered(path: Path, rows: Array) -> Array:
    """Undo each row's filter; `rows` (rows, 1 + width · 3) begin with the filter's number."""
    filters = rows[:, 0]
    if filters.max() > PAETH:
        raise DataError(f"{path}: row {int(np.argmax(filters > PAETH))} has the unknown filter {filters.max()}")
    pixels = rows[:, 1:].reshape(len(rows), -1, RGB).copy()
    sub = filters == SUB
    pixels[sub] = np.cumsum(pixels[sub], axis=1, dtype=np.uint8)  # bytes add modulo 256
    before = np.zeros_like(pixels[0])
    for row in np.flatnonzero(filters > SUB):  # these need the finished row above
        above = pixels[row - 1] if row else before
        if filters[row] == UP:
            pixels[row] += above
        else:
            predict = _average if filters[row] == AVERAGE else _paeth
            pixels[row] = _predicted(pixels[row].tobytes(), above.tobytes(), predict).reshape(-1, RGB)
    return pixels


def _predicted(row: bytes, above: bytes, predict: Callable[[int, int, int], int]) -> Array:
    """Add to each byte what `predict` says from the bytes left of it, above it, and left of that."""
    found = bytearray(RGB) + row  # a black pixel is left of the first
    above = bytes(RGB) + above
    for place in range(RGB, len(found)):
        guess = predict(found[place - RGB], above[place], above[place - RGB])
        found[place] = (found[place] + guess) & 0xFF
    return np.frombuffer(found, np.uint8)[RGB:]


def _average(left: int, above: int, _corner: int) -> int:
    return (left + above) // 2


def _paeth(left: int, above: int, corner: int) -> int:
    """Return the neighbour that is nearest to left + above − corner; the first of them wins a tie."""
    target = left + above - corner
    return min((left, above, corner), key=lambda byte: abs(target - byte))
