"""The text files that a federation and a new party send each other: an invitation, a request, an answer.

    # colonnade invitation 1        what the file is, and the version of its format
    # For the party shop. Next: …   comments for people
    party = "shop"                  TOML
    …
    # signature 3045…               ECDSA with SHA-256 over all bytes before this line, in hex

The first line is signed, too: the signature of one kind of letter does not fit another kind. The signer is the
authority, or the party for its request. A letter is read with limits, and nothing in it is used before its signature
was checked, except to find the key.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from colonnade import __version__
from colonnade.drivers.processes.certificate_files import replace
from colonnade.drivers.processes.signing import short_code
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.foreign import harmless

__all__ = ["ANSWER", "INVITATION", "LARGEST", "REQUEST", "Letter", "certificate_in", "read_letter", "write_letter"]

INVITATION, REQUEST, ANSWER = "invitation", "request", "answer"
FORMAT = 1
LARGEST = 1_000_000  # bytes: the list of 10,000 members fits

_FIRST = re.compile(rb"# colonnade (invitation|request|answer) ([0-9]{1,6})\n")
_LAST = re.compile(rb"\n# signature ([0-9a-f]{16,200})\n\Z")
_CHANGED = "was changed after it was signed, or was damaged on the way; ask for it again, as an attachment"
_ARTICLE = {INVITATION: "an invitation", REQUEST: "a request", ANSWER: "an answer"}
_FORGED = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)

Content = TypeVar("Content", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter as it was read; `verify` must be called before its content is used."""

    kind: str
    name: str  # of the file, for messages
    data: bytes = field(repr=False)
    tables: dict[str, Any] = field(repr=False)

    @property
    def code(self) -> str:
        """The short code of the whole file, to compare by telephone."""
        return short_code(self.data)

    @property
    def text(self) -> str:
        """The whole file, to put it into another letter."""
        return self.data.decode()

    def content(self, kind: type[Content]) -> Content:
        """The content as a struct; raises ConfigError for keys or types that do not fit."""
        try:
            return msgspec.convert(self.tables, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(self.kind, self.name, f"is not valid: {harmless(str(error))}") from None

    def verify(self, key: Any) -> None:
        """Raise ConfigError unless the owner of this public key signed the letter as it is."""
        found = _LAST.search(self.data)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(self.kind, self.name, "must be signed with a P-256 key")
        assert found is not None  # by `parse_letter`
        try:
            key.verify(bytes.fromhex(found[1].decode()), self.data[: found.start() + 1], ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            raise ConfigError(self.kind, self.name, _CHANGED) from None

    def expect(self, kind: str) -> None:
        """Raise ConfigError if it is another kind of letter."""
        if self.kind != kind:
            raise ConfigError(kind, self.name, f"is {_ARTICLE[self.kind]}, not {_ARTICLE[kind]}")


def read_letter(path: Path) -> Letter:
    """Read a file of any kind; raises ConfigError if it is none, too large, or of a newer format."""
    try:
        if not path.is_file():
            raise ConfigError("FILE", str(path), "there is no such file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError("FILE", str(path), f"cannot be read: {error.strerror or error}") from error
    return parse_letter(data, str(path))


def parse_letter(data: bytes, name: str) -> Letter:
    """The same for bytes; `name` is for messages."""
    first = _FIRST.match(data)
    if first is None:
        raise ConfigError("FILE", name, "is not an invitation, a request or an answer that Colonnade wrote")
    kind, version = first[1].decode(), int(first[2])
    if len(data) > LARGEST:
        raise ConfigError(kind, name, f"is larger than {LARGEST // 10**6} MB, so Colonnade did not write it")
    if version != FORMAT:
        raise ConfigError(
            kind, name, f"has format {version}; release {__version__} reads format {FORMAT}: install a newer release"
        )
    if _LAST.search(data) is None:
        raise ConfigError(kind, name, _CHANGED)
    try:
        tables = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ValueError):
        raise ConfigError(kind, name, _CHANGED) from None
    return Letter(kind, name, data, tables)


def write_letter(
    path: Path, kind: str, comment: str, content: msgspec.Struct, key: ec.EllipticCurvePrivateKey
) -> Letter:
    """Sign the content and write it, in one step; returns the letter."""
    letter = make_letter(path.name, kind, comment, content, key)
    replace(path, letter.data)
    return letter


def make_letter(name: str, kind: str, comment: str, content: msgspec.Struct, key: ec.EllipticCurvePrivateKey) -> Letter:
    """The same, not yet written."""
    tables = {field: getattr(content, field) for field in content.__struct_fields__}
    remarks = "".join(f"# {line}\n" for line in comment.splitlines())
    body = f"# colonnade {kind} {FORMAT}\n{remarks}\n{tomli_w.dumps(tables, multiline_strings=True)}\n".encode()
    signature = key.sign(body, ec.ECDSA(hashes.SHA256())).hex()
    data = body + f"# signature {signature}\n".encode()
    if len(data) > LARGEST:
        raise ConfigError(kind, name, f"would be larger than {LARGEST // 10**6} MB, and no member would read it")
    return Letter(kind, name, data, tables)


def certificate_in(letter: Letter, field: str, text: str) -> x509.Certificate:
    """The one certificate of a field; raises ConfigError."""
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode())
        # Each is decoded at its first use, and a forged one may fail there.
        _ = certificate.public_key(), certificate.subject, certificate.extensions, certificate.not_valid_after_utc
    except _FORGED:
        raise ConfigError(letter.kind, letter.name, f"{field}: must be one certificate in PEM") from None
    return certificate
