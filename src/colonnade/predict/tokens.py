"""The callers' tokens: each has a name, an expiry and a hash, in OUT/predict/tokens.json of the server's folder.

A token is 256 random bits, shown once. The file holds HMAC-SHA256(salt, token). One fast hash is enough: an
attacker cannot try 2^256 tokens. A slow hash, as for passwords, would only cost time at every request.

The server reads the file again when it has changed, so new and revoked tokens count at once.
"""

import hmac
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from colonnade.drivers.files import lock_file, replace_file
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.protocol.formats import TOKENS

__all__ = ["OPERATOR", "Token", "Tokens"]

OPERATOR = "operator"  # `colonnade predict` on the server's machine
OPERATOR_S = 86_400.0
DAY_S = 86_400.0
MOST_DAYS = 3_650
LOCK_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Token(msgspec.Struct, frozen=True):
    """What the file holds of a token."""

    name: str
    hash: str
    made: float  # seconds since 1970
    expires: float


class _File(msgspec.Struct, frozen=True):
    salt: str
    tokens: list[Token]
    format: int = 1


class Tokens:
    """The tokens of one server's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokens.json"
        self._name = str(self._path)
        self._seen: tuple[int, int, int] | None = None
        self._salt, self._by_hash = b"", dict[str, Token]()
        self._keyed = hmac.new(b"", digestmod="sha256")

    def new(self, name: str, days: float) -> str:
        """Make a token and return it; raises ConfigError if the caller has one that is valid."""
        if not _NAME.fullmatch(name) or name == OPERATOR:
            advice = "a caller's name has 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
            raise ConfigError("NAME", name, advice if name != OPERATOR else "is taken: `colonnade predict` uses it")
        if not 0 < days <= MOST_DAYS:
            raise ConfigError("--days", days, f"must be above 0 and at most {MOST_DAYS}")
        with self._changing() as tokens:
            if any(token.name == name for token in tokens):
                raise ConfigError("NAME", name, "has a token that is valid; revoke it first, or choose another name")
            return self._add(tokens, name, days * DAY_S)

    def revoke(self, name: str) -> int:
        """Remove the caller's tokens; returns how many there were."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.name != name]
            gone = len(tokens) - len(kept)
            tokens[:] = kept
        return gone

    def all(self) -> list[Token]:
        """Return the tokens, also expired ones, in the order in which they were made."""
        self._read()
        return list(self._by_hash.values())

    @contextmanager
    def lent(self) -> Iterator[str]:
        """A token for this process, which has access to the server's folder. It is removed at the end."""
        with self._changing() as tokens:
            text = self._add(tokens, OPERATOR, OPERATOR_S)
        try:
            yield text
        finally:
            own = self._hash(text)
            with self._changing() as tokens:
                tokens[:] = [token for token in tokens if token.hash != own]

    def find(self, text: str) -> Token | None:
        """Return what is known of a token, also if it has expired; None if it is not known."""
        self._read()
        return self._by_hash.get(self._hash(text))

    def _add(self, tokens: list[Token], name: str, seconds: float) -> str:
        text, now = secrets.token_urlsafe(32), time.time()
        tokens.append(Token(name, self._hash(text), now, now + seconds))
        return text

    def _salted(self, salt: bytes) -> None:
        self._salt, self._keyed = salt, hmac.new(salt, digestmod="sha256")

    def _hash(self, text: str) -> str:
        found = self._keyed.copy()  # `hmac.digest` would look for the algorithm at every request
        found.update(text.encode())
        return found.hexdigest()

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Read, let the caller change, and write the tokens without the expired ones."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = lock_file(self._path.with_name("tokens.lock"), LOCK_S)
        except OSError as error:
            self._unusable(f"cannot be written: {error.strerror}")
        try:
            self._read()
            self._salted(self._salt or secrets.token_bytes(16))
            now = time.time()
            tokens = [token for token in self._by_hash.values() if token.expires > now]
            yield tokens
            replace_file(self._path, [msgspec.json.encode(_File(self._salt.hex(), tokens))], 0o600)
        finally:
            os.close(lock)

    def _read(self) -> None:
        """Read the file if it has changed; raises CheckpointError, and then no token is known."""
        seen = None
        with suppress(FileNotFoundError):
            found = os.stat(self._name)  # noqa: PTH116 - half the time of `Path.stat`, at every request
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return
        self._seen, self._by_hash = None, {}
        if seen is None:
            return
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=_File)
            TOKENS.check(held.format, self._path)
            self._salted(bytes.fromhex(held.salt))
        except (OSError, ValueError) as error:
            self._unusable(f"cannot be read: {error}; remove it, and make new tokens")
        self._by_hash = {token.hash: token for token in held.tokens}
        self._seen = seen

    def _unusable(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: {why}") from None
