"""Lines that are chained by hashes: a line that was changed, added or removed no longer fits its neighbours.

    line        {"n": number, …, "hash": …}
    hash        sha256(hash of the line before ‖ the line without its hash, as JSON with sorted keys)

The first line follows `START`. Privacy ledgers and audit logs use this chain. It shows an edit, but not a cut at the
end, and not a file in which all lines after an edit were hashed again: compare a receipt, "n:hash", that another person
has kept.
"""

import hashlib
import json
from typing import Any

__all__ = ["START", "chained", "follows", "parse_receipt", "receipt_of"]

START = "0" * 64
_sorted_json = json.JSONEncoder(sort_keys=True).encode  # json.dumps would make an encoder for every line


def chained(number: int, before: str, content: dict[str, Any]) -> dict[str, Any]:
    """The next line: the content with its number and its hash."""
    line = {"n": number, **content}
    line["hash"] = _hash(before, _sorted_json(line))
    return line


def follows(line: Any, number: int, before: str) -> bool:
    """Whether a decoded line has this number and follows from the hash of the line before it."""
    try:
        text = _sorted_json({key: value for key, value in line.items() if key != "hash"})
        return bool(line["n"] == number and line["hash"] == _hash(before, text))
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def receipt_of(line: dict[str, Any]) -> str:
    """The name of a line, by which it can be found again."""
    return f"{line['n']}:{line['hash']}"


def parse_receipt(receipt: str) -> tuple[int, str] | None:
    """Number and hash of a receipt; None if the text is none."""
    number, _, found = receipt.partition(":")
    return (int(number), found) if number.isdecimal() and len(found) == len(START) else None


def _hash(before: str, text: str) -> str:
    return hashlib.sha256((before + text).encode()).hexdigest()
