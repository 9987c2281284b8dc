"""A party's ledger: every release, written and synced BEFORE its message leaves; append-only and chained by hashes.

    line 0      the terms: party, mechanism, clip, noise, δ, numbers of rows
    line n      {"n", "time", "what", "mechanism", "rows", "sensitivity", "noise", "mu", …, "hash"}
    hash        see `protocol.chain`

Of a run that continues another one, line 0 also holds `earlier`: what the costliest record of the earlier run had
paid, with the receipt of that ledger's last line. A record may be in both runs, so the new account begins there.

`mu` covers everything up to and including the line. A receipt, "n:hash", names a line. The role's state holds the
newest receipt that the role knows of. `require` refuses a ledger in which that line is missing or different. The ledger
may be ahead of the role, because it also counts a job whose result was lost. It is never behind.

A driver passes in the lines as a port (`protocol.ports.Lines`). This module chains, checks and counts them.
"""

import base64
import json
import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.privacy.accountant import Account, Part
from colonnade.protocol.chain import START, chained, follows, parse_receipt, receipt_of
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array
from colonnade.protocol.ports import Lines

__all__ = ["Earlier", "Ledger", "account_of", "audit", "earlier_of", "pack_rows"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Earlier:
    """The account of the runs that a run continues, for the record that has paid most."""

    events: tuple[tuple[float, float, int], ...]  # Δ, c and the number of such releases
    head: str  # the receipt of the last line of that ledger
    by_record: bool  # whether θ_m revealed nothing by itself

    def terms(self) -> dict[str, Any]:
        """The fields of line 0."""
        return {"events": [list(event) for event in self.events], "head": self.head}


def earlier_of(account: Account, head: str) -> Earlier:
    """The account of a run that has ended, for the run that continues it."""
    counts = account.worst()
    events = tuple((delta, noise, count) for (delta, noise), count in sorted(counts.items()))
    return Earlier(events, head, account.by_record)


def pack_rows(rows: Array) -> str:
    return base64.b64encode(zlib.compress(rows.astype("<i4").tobytes())).decode()


def _unpack_rows(text: str) -> Array:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i4")


class Ledger:
    """A party's releases; in memory until `keep` provides durable lines."""

    def __init__(self, terms: dict[str, Any]) -> None:
        self.terms = json.loads(json.dumps({"ledger": FORMAT, **terms}))
        self._lines: Lines | None = None
        self._alone: AbstractContextManager[Any] = nullcontext()
        self._begin([])

    def _begin(self, lines: list[dict[str, Any]]) -> None:
        self.account = account_of(self.terms)
        self._hashes: list[str] = []
        self._kinds: dict[str, tuple[int, int]] = {}
        self._times = {part: np.zeros(self.terms[f"{part}_rows"], np.int64) for part in ("train", "test")}
        self._of_any = 0
        for line in lines or [chained(0, START, dict(self.terms))]:
            self._note(line)

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
        with self._alone:
            return f"{len(self._hashes) - 1}:{self._hashes[-1]}"

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """For each kind, the number of releases and the number of rows in them."""
        with self._alone:
            return dict(self._kinds)

    @property
    def most_of_a_row(self) -> int:
        """How often any one row has left, at most; a release that does not name its rows may contain any row."""
        with self._alone:
            return self._of_any + max(int(times.max(initial=0)) for times in self._times.values())

    def keep(self, lines: Lines) -> None:
        """Write to these lines from now on; the releases that they already hold count."""
        held = lines.open()
        self._lines, self._alone = lines, lines.alone
        try:
            self._take_over(lines, held)
        except BaseException:
            self.close()
            raise

    def _take_over(self, lines: Lines, held: bytes) -> None:
        if held:
            found, ends = _parse_lines(held, lines.name)
            self._check_terms(lines.name, found[0])
            self._begin(found)
            lines.cut_back(ends[-1])  # this line was cut off during its write, so its message never left
        else:
            self._write(chained(0, START, dict(self.terms)))
            lines.sync()

    def _check_terms(self, name: str, first: dict[str, Any]) -> None:
        there = {key: value for key, value in first.items() if key not in ("n", "hash")}
        differing = sorted(key for key in there | self.terms if there.get(key) != self.terms.get(key))
        if differing:
            key = differing[0]
            raise CheckpointError(
                f"{name}: line 1: this ledger has {key} = {there.get(key)!r}, but the config has "
                f"{self.terms.get(key)!r}; restore the old setting, or start a new run in another folder"
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
        with self._alone:
            square = self.account.square_with(mechanism, sensitivity, noise, part, of)
            if square > most**2:
                return None
            content: dict[str, Any] = {
                "time": "" if self._lines is None else self._lines.time(),
                "what": what,
                "mechanism": mechanism,
                "rows": rows,
                "sensitivity": sensitivity,
                "noise": noise,
                "mu": float(np.sqrt(square)),
            }
            if of is not None:
                content |= {"part": part, "of": pack_rows(of)}
            line = chained(len(self._hashes), self._hashes[-1], content)
            self._write(line)
            if durable and self._lines is not None:
                self._lines.sync()
            self._note(line)
            return receipt_of(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append((json.dumps(line) + "\n").encode())

    def require(self, receipt: str) -> None:
        """Raise if the line that this receipt names is missing or different."""
        number, found = _parse(receipt)
        with self._alone:
            if number >= len(self._hashes):
                raise CheckpointError(
                    f"{self._name}: ends with line {len(self._hashes)}, but line {number + 1} was written: the "
                    "file was rolled back or cut off. Restore the newest copy"
                )
            if self._hashes[number] != found:
                raise CheckpointError(
                    f"{self._name}: line {number + 1} is not the one that was written: it was edited or "
                    "replaced. Restore the newest copy"
                )

    def cut_back(self, receipt: str) -> None:
        """Remove the lines after this one. Only the simulator may: it makes exactly the same releases again."""
        self.require(receipt)
        number, _ = _parse(receipt)
        if self._lines is None:
            raise CheckpointError("a ledger without a file cannot be cut back")
        found, ends = _parse_lines(self._lines.read(), self._lines.name)
        self._lines.cut_back(ends[number])
        self._lines.sync()
        with self._alone:
            self._begin(found[: number + 1])

    @property
    def _name(self) -> str:
        return self._lines.name if self._lines is not None else "the ledger"

    @property
    def is_open(self) -> bool:
        """Whether lines go to a file."""
        return self._lines is not None

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None


def _parse(receipt: str) -> tuple[int, str]:
    found = parse_receipt(receipt)
    if found is None:
        raise CheckpointError(f"{receipt!r:.80} is not a receipt of a ledger")
    return found


def account_of(terms: dict[str, Any]) -> Account:
    """An empty account for a ledger with these terms."""
    account = Account(terms["local_updates"] != "plain", terms["train_rows"], terms["test_rows"])
    for delta, noise, count in terms.get("earlier", {}).get("events", ()):
        account.add_earlier(delta, noise, count)
    return account


def _count(account: Account, line: dict[str, Any]) -> None:
    of = _unpack_rows(line["of"]) if "of" in line else None
    account.add(line["mechanism"], line["sensitivity"], line["noise"], line.get("part", "any"), of)


def audit(data: bytes, name: str) -> tuple[dict[str, Any], list[dict[str, Any]], Account]:
    """The terms, the releases and their common cost; raises, with the line, if the chain is broken."""
    lines, _ = _parse_lines(data, name)
    account = account_of(lines[0])
    for place, line in enumerate(lines[1:], start=2):
        _count(account, line)
        if not np.isclose(line["mu"], account.mu, rtol=1e-9, atol=0.0):
            raise CheckpointError(f"{name}: line {place}: says μ = {line['mu']:g}, but the lines give {account.mu:g}")
    return lines[0], lines[1:], account


def _parse_lines(data: bytes, name: str) -> tuple[list[dict[str, Any]], list[int]]:
    """All complete lines, checked, and the byte positions at which they end."""
    lines: list[dict[str, Any]] = []
    ends: list[int] = []
    before, end = START, 0
    for text in data.splitlines(keepends=True):
        if not text.endswith(b"\n"):
            break
        line = _checked(name, len(lines), text, before)
        before, end = line["hash"], end + len(text)
        lines.append(line)
        ends.append(end)
    if not lines:
        raise CheckpointError(f"{name}: line 1: this is not the first line of a ledger")
    return lines, ends


def _checked(name: str, number: int, text: bytes, before: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        fits = follows(line, number, before)
        known = number > 0 or (line["ledger"] == FORMAT and {"train_rows", "test_rows", "local_updates"} <= line.keys())
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = known = False
    if not (fits and known):
        raise CheckpointError(
            f"{name}: line {number + 1} does not follow from the lines before it: it was edited, or a line is "
            "missing. Restore the newest copy"
        )
    return line  # type: ignore[no-any-return]
