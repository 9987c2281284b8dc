"""Read CSV in pieces directly into 32-bit columns; the whole text is never in memory.

The reader makes two passes over the file: it counts the lines, then it reads. It takes all columns for numbers until a
piece shows that one is text. Then it starts again, because "007" cannot be restored from a number.
"""

import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import polars

from colonnade.data.dialect import SAMPLE_LINES, USUAL, Dialect, separator_of
from colonnade.data.formats import opened
from colonnade.data.report_progress import ReportProgress
from colonnade.data.table import Coder, Column, own_memory
from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

PIECE_BYTES = 1 << 22
LONGEST_ROW = 1 << 26  # bytes; a longer row has lost a quote
SAMPLE_BYTES = 1 << 16  # bytes in which the separator is searched
BOM = b"\xef\xbb\xbf"
NUMBER = polars.Float32
Types = Mapping[str, type[polars.DataType]]


class CsvFile:
    """A CSV file: the names of its columns, and its rows in pieces."""

    def __init__(self, path: Path, progress: ReportProgress, dialect: Dialect = USUAL) -> None:
        self.path, self._progress, self._dialect = path, progress, dialect
        self._separator, self._blanks = ",", False
        self.names, self._start = self._header()
        self._first_line = 2 if dialect.header else 1

    @property
    def decimal_comma(self) -> bool:
        """Whether a comma is the decimal sign, so that 1,5 is a number."""
        return self._dialect.decimal == ","

    def _open(self) -> IO[bytes]:
        return opened(self.path)

    def _header(self) -> tuple[list[str], int]:
        """Return the names of the columns, and the offset of the first row in bytes."""
        try:
            with self._open() as file:
                first = file.readline(PIECE_BYTES)
                sample = file.read(SAMPLE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path}: cannot be read: {error}") from error
        if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first:
            raise DataError(
                f"{self.path}: cannot be read: it is not UTF-8 text; save it as a UTF-8 CSV file (it may be UTF-16)"
            )
        try:
            line = first.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: cannot be read: line 1 is not UTF-8 text ({error.reason})") from error
        if not line:
            raise DataError(f"{self.path}: cannot be read: it has no line of column names")
        self._look_at(line, sample)
        text = self._tidied(line.encode())
        cells = polars.read_csv(text, has_header=False, infer_schema=False, separator=self._separator).row(0)
        if not self._dialect.header:
            return [f"x{place}" for place in range(len(cells))], 3 if first.startswith(BOM) else 0
        return ["" if cell is None else str(cell) for cell in cells], len(first)

    def _look_at(self, line: str, sample: bytes) -> None:
        """Find the separator in the first lines, and whether blanks follow it."""
        whole = sample.rpartition(b"\n")[0] if len(sample) == SAMPLE_BYTES else sample
        lines = [line, *filter(None, whole.decode("utf-8", errors="replace").splitlines())]
        try:
            self._separator = separator_of(lines, self._dialect)
        except DataError as error:
            raise DataError(f"{self.path}: cannot be read: {error}") from None
        first = [one for one in lines[:SAMPLE_LINES] if self._separator in one]
        self._blanks = bool(first) and all(
            one.count(f"{self._separator} ") == one.count(self._separator) for one in first
        )

    def _tidied(self, text: bytes) -> bytes:
        """Remove the blanks after separators if the file has them everywhere ("39, State-gov, ?").

        Quoted texts stay.
        """
        if not self._blanks:
            return text
        blanks = rb"(?:(?<=" + re.escape(self._separator.encode()) + rb")|(?<=\n)|^) +"
        if b'"' not in text:
            return re.sub(blanks, b"", text)
        return re.sub(rb'("[^"]*")|' + blanks, lambda found: found[1] or b"", text)

    def pieces(self, what: str) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines, some MB at a time, with the line number of the first of them; skips the line of names."""
        size, line, rest = self.path.stat().st_size, self._first_line, b""
        try:
            with self._open() as file:
                below = getattr(file, "fileobj", file)  # of gzip: the packed file, whose position is the progress
                file.read(self._start)
                while True:
                    read = file.read(PIECE_BYTES)
                    text = rest + read
                    cut = _end_of_lines(text) if read else len(text)
                    piece = text[:cut].rstrip(b"\r\n")  # empty lines at the end of the file are not rows
                    if piece:
                        rest = text[len(piece) :]
                        piece = piece if line == self._first_line else piece.removeprefix(b"\r").removeprefix(b"\n")
                        yield line, piece
                        line += piece.count(b"\n") + 1
                    else:
                        rest = text
                    if len(rest) > LONGEST_ROW:
                        raise DataError(f"{self.path}: cannot be read: quotes are not closed, in or after line {line}")
                    self._progress(what, min(below.tell() / max(size, 1), 1.0))
                    if not read:
                        return
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.path}: cannot be read: {error}") from error

    def parse(self, line: int, piece: bytes, types: Types) -> polars.DataFrame:
        """Parse one piece; raises DataError with the line number of a row with too few or too many cells."""
        between = piece.count(self._separator.encode())
        lines = piece.count(b"\n") + 1
        if b'"' in piece or between != lines * (len(self.names) - 1):
            self.refuse_ragged(line, piece)
        return polars.read_csv(
            io.BytesIO(self._tidied(piece)),
            has_header=False,
            schema=dict(types),
            null_values=list(self._dialect.empty),
            truncate_ragged_lines=False,
            separator=self._separator,
            decimal_comma=self.decimal_comma,
        )

    def refuse_ragged(self, line: int, piece: bytes) -> None:
        """Raise DataError that names the first line with too few or too many cells, if there is one."""
        data = np.frombuffer(piece, np.uint8)
        outside = _outside_quotes(piece)
        ends = np.append(np.flatnonzero((data == ord("\n")) & outside), len(data))
        between = np.searchsorted(np.flatnonzero((data == ord(self._separator)) & outside), ends)
        cells = np.diff(between, prepend=0) + 1
        bad = np.flatnonzero(cells != len(self.names))
        if bad.size:
            before = piece[: ends[bad[0] - 1] + 1] if bad[0] else b""
            raise DataError(
                f"{self.path}: cannot be read: line {line + before.count(bytes([10]))} has {cells[bad[0]]} cells,"
                f" not {len(self.names)} as line 1"
            )


def _outside_quotes(text: bytes) -> Array:
    """Return bool (bytes,): True where a byte is outside quotes."""
    data = np.frombuffer(text, np.uint8)
    outside: Array = np.cumsum(data == ord('"')) % 2 == 0
    return outside


def _end_of_lines(text: bytes) -> int:
    """Return the place after the last line break outside quotes."""
    cut = text.rfind(b"\n") + 1
    if text.count(b'"', 0, cut) % 2 == 0:
        return cut
    breaks = np.flatnonzero((np.frombuffer(text, np.uint8) == ord("\n")) & _outside_quotes(text))
    return int(breaks[-1]) + 1 if breaks.size else 0


class _Restart(Exception):
    """Raised when columns that were taken for numbers turn out to be text."""

    def __init__(self, columns: set[str]) -> None:
        self.columns = columns


def read_csv(
    path: Path,
    features: Sequence[str],
    texts: Sequence[str],
    categorical: Sequence[str],
    progress: ReportProgress,
    dialect: Dialect = USUAL,
) -> tuple[dict[str, Column], dict[str, polars.Series]]:
    """Read some columns of a CSV file: `features` as a `Column` each, those in `texts` (label, id) as text."""
    file = CsvFile(path, progress, dialect)
    lines = sum(piece.count(b"\n") + 1 for _, piece in file.pieces("counting rows"))
    words = {*categorical}
    while True:
        try:
            return _read(file, lines, features, texts, words)
        except _Restart as found:
            words |= found.columns


def _read(
    file: CsvFile, lines: int, features: Sequence[str], texts: Sequence[str], words: set[str]
) -> tuple[dict[str, Column], dict[str, polars.Series]]:
    text_parts: dict[str, list[polars.Series]] = {name: [] for name in texts}
    values: dict[str, Array] = {n: own_memory(lines, np.int32 if n in words else np.float32) for n in features}
    coders = {name: Coder() for name in features if name in words}
    numbers = {*features} - words
    rows = 0
    for line, piece in file.pieces("reading"):
        frame = _frame(file, line, piece, numbers)
        place = slice(rows, rows + len(frame))
        for name in features:
            if name in coders:
                values[name][place] = coders[name].encode(frame[name])
            else:
                values[name][place] = frame[name].fill_null(float("nan")).to_numpy()
        for name, parts in text_parts.items():
            parts.append(frame[name])
        rows += len(frame)
    columns = {
        name: coders[name].finish(values[name][:rows]) if name in coders else Column(values[name][:rows])
        for name in features
    }
    empty = polars.Series(dtype=polars.String)
    return columns, {name: polars.concat(parts) if parts else empty.rename(name) for name, parts in text_parts.items()}


def _frame(file: CsvFile, line: int, piece: bytes, numbers: set[str]) -> polars.DataFrame:
    types = {name: NUMBER if name in numbers else polars.String for name in file.names}
    try:
        return file.parse(line, piece, types)
    except polars.exceptions.PolarsError as error:
        found = _words(file, line, piece) & numbers
        if found:
            raise _Restart(found) from None
        reason = str(error).splitlines()[0]
        raise DataError(f"{file.path}: cannot be read: {reason}, in or after line {line}") from error


def _words(file: CsvFile, line: int, piece: bytes) -> set[str]:
    """Return the columns of a piece that contain a value that is not a number."""
    everything = dict.fromkeys(file.names, polars.String)
    try:
        frame = file.parse(line, piece, everything)
    except polars.exceptions.PolarsError as error:
        file.refuse_ragged(line, piece)
        raise DataError(f"{file.path}: cannot be read as UTF-8 CSV, in or after line {line}: {error}") from error
    texts = polars.all().str.strip_chars()
    texts = texts.str.replace(",", ".", literal=True) if file.decimal_comma else texts
    numbers = frame.select(texts.cast(NUMBER, strict=False))
    return {name for name in file.names if numbers[name].null_count() > frame[name].null_count()}
