"""A party's ledger: every release, written and synced BEFORE its message leaves; append-only and chained by hashes.

    line 0      the terms: party, mechanism, clip, noise, δ, numbers of rows
    line n      {"n", "time", "what", "mechanism", "rows", "sensitivity", "noise", "mu", …, "hash"}
    hash        sha256(hash of the line before ‖ the line without its hash, as JSON with sorted keys)

`mu` is that of everything up to and including the line. A receipt, "n:hash", names a line; the role keeps the newest
that it has heard of in its state, so that a ledger that lacks the line, or has another in its place, is refused. It may
be ahead of the role (a job that ran, and whose result nobody saw, is counted all the same), never behind.
"""

import base64
import fcntl
import hashlib
import json
import os
import zlib
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.privacy.accountant import Account, Part
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array

__all__ = ["Ledger", "Lock", "account_of", "pack_rows", "read_ledger"]

FORMAT = 1
Lock = AbstractContextManager[Any]
_START = "0" * 64


def pack_rows(rows: Array) -> str:
    """Row numbers as text."""
    return base64.b64encode(zlib.compress(rows.astype("<i4").tobytes())).decode()


def _unpack_rows(text: str) -> Array:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4")


def _hash(before: str, line: dict[str, Any]) -> str:
    text = json.dumps({key: value for key, value in line.items() if key != "hash"}, sort_keys=True)
    return hashlib.sha256((before + text).encode()).hexdigest()


class Ledger:
    """What a party has released; in memory until `keep` gives it a file."""

    _file: int | None = None

    def __init__(self, terms: dict[str, Any]) -> None:
        self.terms = json.loads(json.dumps({"ledger": FORMAT, **terms}))
        self.path: Path | None = None
        self._lock: Lock = nullcontext()
        self._begin([])

    def _begin(self, lines: list[dict[str, Any]]) -> None:
        self.account = account_of(self.terms)
        self._hashes: list[str] = []
        self._kinds: dict[str, tuple[int, int]] = {}
        self._times = {part: np.zeros(self.terms[f"{part}_rows"], np.int64) for part in ("train", "test")}
        self._of_any = 0
        for line in lines or [self._line(0, _START, dict(self.terms))]:
            self._note(line)

    @staticmethod
    def _line(number: int, before: str, content: dict[str, Any]) -> dict[str, Any]:
        line = {"n": number, **content}
        return line | {"hash": _hash(before, line)}

    def _note(self, line: dict[str, Any]) -> None:
        if line["n"]:
            _count(self.account, line)
            times, rows = self._kinds.get(line["what"], (0, 0))
            self._kinds[line["what"]] = times + 1, rows + line["rows"]
            if "of" in line:
                np.add.at(self._times[line["part"]], _unpack_rows(line["of"]), 1)
            else:
                self._of_any += 1
        self._hashes.append(line["hash"])

    @property
    def head(self) -> str:
        """The receipt of the newest line."""
        with self._lock:
            return f"{len(self._hashes) - 1}:{self._hashes[-1]}"

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """How many releases of each kind, and how many rows in them."""
        with self._lock:
            return dict(self._kinds)

    @property
    def most_of_a_row(self) -> int:
        """How often one row has left at most; a release that does not name its rows may be of any."""
        with self._lock:
            return self._of_any + max(int(times.max(initial=0)) for times in self._times.values())

    def keep(self, path: Path, lock: Lock) -> None:
        """From now on in this file; what it holds already counts. Jobs may run on several threads of the driver."""
        self.path, self._lock = path, lock
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._take_over(path, self._file)
        except BaseException:
            self.close()
            raise

    def _take_over(self, path: Path, file: int) -> None:
        """Alone with the file: what it holds is read, or it begins here."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CheckpointError(f"{path}: another process writes this ledger; stop it first") from None
        if os.fstat(file).st_size:
            lines, ends = _read(path)
            self._check_terms(lines[0])
            self._begin(lines)
            os.ftruncate(file, ends[-1])  # a line that was cut off while it was written: its message never left
        else:
            self._write(self._line(0, _START, dict(self.terms)))
            self.sync()
            _sync_folder(path.parent)

    def _check_terms(self, first: dict[str, Any]) -> None:
        there = {key: value for key, value in first.items() if key not in ("n", "hash")}
        differing = sorted(key for key in {*there, *self.terms} if there.get(key) != self.terms.get(key))
        if differing:
            key = differing[0]
            raise CheckpointError(
                f"{self.path}: line 1: a ledger with {key} = {there.get(key)!r}, now it is {self.terms.get(key)!r}; "
                "go on with the settings of before, or begin a new run in another folder"
            )

    def enter(
        self,
        what: str,
        mechanism: str,
        sensitivity: float,
        noise: float,
        part: Part,
        rows: int,
        of: Array | None,
        most: float,
        durable: bool = True,
    ) -> str | None:
        """Write a release down, before it is made; None, and nothing is written, if μ would exceed `most`."""
        with self._lock:
            square = self.account.square_with(mechanism, sensitivity, noise, part, of)
            if square > most**2:
                return None
            content: dict[str, Any] = {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "what": what,
                "mechanism": mechanism,
                "rows": rows,
                "sensitivity": sensitivity,
                "noise": noise,
                "mu": float(np.sqrt(square)),
            }
            if of is not None:
                content |= {"part": part, "of": pack_rows(of)}
            line = self._line(len(self._hashes), self._hashes[-1], content)
            self._write(line)
            if durable:
                self.sync()
            self._note(line)
            return f"{line['n']}:{line['hash']}"

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        data = (json.dumps(line) + "\n").encode()
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written ({error.strerror}): nothing is uploaded") from None
        if written != len(data):
            raise CheckpointError(f"{self.path}: only {written} of {len(data)} bytes were written: nothing is uploaded")

    def sync(self) -> None:
        """Until here it survives a power cut."""
        if self._file is None:
            return
        try:
            os.fsync(self._file)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be synced ({error.strerror}): nothing is uploaded") from None

    def require(self, receipt: str) -> None:
        """Refuse to go on if the line that was heard of is not there, or is another."""
        number, found = _parse(receipt)
        with self._lock:
            if number >= len(self._hashes):
                raise CheckpointError(
                    f"{self._name}: ends with line {len(self._hashes)}, but line {number + 1} was written before: it "
                    "was rolled back or cut off; bring the newest copy back"
                )
            if self._hashes[number] != found:
                raise CheckpointError(
                    f"{self._name}: line {number + 1} is not the one that was written: it was edited or replaced; "
                    "bring the newest copy back"
                )

    def cut_back(self, receipt: str) -> None:
        """To this line: only for a simulator, which makes the very same releases once more."""
        self.require(receipt)
        number, _ = _parse(receipt)
        if self._file is None or self.path is None:
            raise CheckpointError("a ledger without a file cannot be cut back")
        lines, ends = _read(self.path)
        os.ftruncate(self._file, ends[number])
        self.sync()
        with self._lock:
            self._begin(lines[: number + 1])

    @property
    def _name(self) -> str:
        return str(self.path) if self.path is not None else "the ledger"

    @property
    def is_open(self) -> bool:
        """Whether lines go to a file."""
        return self._file is not None

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.close()


def _parse(receipt: str) -> tuple[int, str]:
    number, _, found = receipt.partition(":")
    if not number.isdecimal() or len(found) != 64:
        raise CheckpointError(f"{receipt!r:.80} is no receipt of a ledger")
    return int(number), found


def account_of(terms: dict[str, Any]) -> Account:
    """An empty account for a ledger with these terms."""
    return Account(terms["local_updates"] != "plain", terms["train_rows"], terms["test_rows"])


def _count(account: Account, line: dict[str, Any]) -> None:
    of = _unpack_rows(line["of"]) if "of" in line else None
    account.add(line["mechanism"], line["sensitivity"], line["noise"], line.get("part", "any"), of)


def read_ledger(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Account]:
    """The terms, the releases and what they cost together; refused, with the line, if the chain is broken."""
    lines, _ = _read(path)
    account = account_of(lines[0])
    for place, line in enumerate(lines[1:], start=2):
        _count(account, line)
        if not np.isclose(line["mu"], account.mu, rtol=1e-9, atol=0.0):
            raise CheckpointError(f"{path}: line {place}: says μ = {line['mu']:g}, the lines give {account.mu:g}")
    return lines[0], lines[1:], account


def _read(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """All whole lines, checked, and the bytes at which they end."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    lines: list[dict[str, Any]] = []
    ends: list[int] = []
    before, end = _START, 0
    for text in data.splitlines(keepends=True):
        if not text.endswith(b"\n"):
            break
        line = _checked(path, len(lines), text, before)
        before, end = line["hash"], end + len(text)
        lines.append(line)
        ends.append(end)
    if not lines:
        raise CheckpointError(f"{path}: line 1: no ledger begins here")
    return lines, ends


def _checked(path: Path, number: int, text: bytes, before: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        fits = line["n"] == number and line["hash"] == _hash(before, line)
        known = number > 0 or (line["ledger"] == FORMAT and {"train_rows", "test_rows", "local_updates"} <= line.keys())
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = known = False
    if not (fits and known):
        raise CheckpointError(
            f"{path}: line {number + 1} does not follow from the lines before it: it was edited, or a line is missing; "
            "bring the newest copy back"
        )
    return line  # type: ignore[no-any-return]


def _sync_folder(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)  # the file's name, too
    finally:
        os.close(directory)
