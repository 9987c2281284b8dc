"""A member's identity and the checks before it connects: its certificate, its key, its federation.

A certificate names a member. `members.toml` lists the members that may take part, by the SHA-256 fingerprint of their
certificates.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from colonnade.drivers.processes.certificate_files import pem, pem_of_key, read, read_certificate, read_key
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.protocol.formats import MEMBERS

__all__ = [
    "SERVER",
    "Identity",
    "check_authority",
    "check_party_name",
    "common_name",
    "date_in_words",
    "expires_in_days",
    "fingerprint",
    "members_toml",
    "names_in",
    "read_members",
    "whole_seconds",
]

SERVER = "server"

_RESERVED = {SERVER, "ca"}  # their files are in the same folder as the parties'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_MEMBERS_HEADER = "# The members of the federation: name = SHA-256 fingerprint of the certificate.\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a member shows to the others, in PEM, after all checks that need no connection."""

    name: str
    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes
    certificate_file: Path = Path()  # Python's TLS takes files
    key_file: Path = Path()

    @classmethod
    def load(cls, certificate: Path, key: Path, authority: Path, *, now: datetime | None = None) -> "Identity":
        """Read and check the three files; raises ConfigError for the one that is wrong."""
        own = read_certificate("network.certificate", certificate)
        private = read_key("network.key", key)
        ca = read_certificate("network.authority", authority)
        if private.public_key() != own.public_key():
            raise ConfigError("network.key", str(key), f"is not the private key of {certificate}")
        check_authority("network.authority", authority, ca, whole_seconds(now))
        _check_issued_by("network.certificate", certificate, own, ca, authority)
        name = common_name("network.certificate", certificate, own.subject)
        _check_dates("network.certificate", certificate, own, whole_seconds(now), _how_to_renew(name))
        return cls(name, pem_of_key(private), pem(own), pem(ca), certificate, key)


def fingerprint(certificate: bytes | x509.Certificate) -> str:
    """SHA-256 of the certificate (PEM or parsed) in hex, as in members.toml."""
    if isinstance(certificate, bytes):
        certificate = x509.load_pem_x509_certificate(certificate)
    return certificate.fingerprint(hashes.SHA256()).hex()


def expires_in_days(identity: Identity, *, now: datetime | None = None) -> int:
    """Whole days until the certificate or its authority expires, whichever is first."""
    certificates = [x509.load_pem_x509_certificate(text) for text in (identity.certificate, identity.authority)]
    return (min(certificate.not_valid_after_utc for certificate in certificates) - whole_seconds(now)).days


def read_members(path: Path) -> dict[str, str]:
    """The members' fingerprints by name, from members.toml; raises ConfigError."""
    key, text = "network.members", read("network.members", path)
    try:
        tables = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(key, str(path), f"is not TOML: {error}") from error
    try:
        MEMBERS.check(tables.pop("format", 1), path)
    except CheckpointError as error:
        raise ConfigError(key, str(path), str(error).removeprefix(f"{path}: ")) from None
    members = tables.get("members")
    if set(tables) != {"members"} or not isinstance(members, dict):
        raise ConfigError(key, str(path), "must hold one table, [members], of name = fingerprint")
    for name, value in members.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(key, str(path), f"{name!r} is not a member's name")
        if not isinstance(value, str) or not _FINGERPRINT.fullmatch(value):
            raise ConfigError(
                key, str(path), f"{name}: must be 64 lower-case hex digits, as `colonnade certs show` prints them"
            )
    if len(set(members.values())) < len(members):
        raise ConfigError(key, str(path), "two members have the same fingerprint; each needs its own certificate")
    return members


def members_toml(members: Mapping[str, str]) -> bytes:
    return (_MEMBERS_HEADER + tomli_w.dumps({"members": dict(members)})).encode()


def check_party_name(name: str) -> None:
    """Raise ConfigError if a party cannot have this name, which is also the name of its files."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "name", name, "a party's name has 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    if name.lower() in _RESERVED:
        raise ConfigError("name", name, "is reserved; choose another name for the party")


def common_name(key: str, path: Path, subject: x509.Name) -> str:
    """The name in a certificate or request; raises ConfigError unless there is exactly one valid name."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not _NAME.fullmatch(str(names[0].value)):
        raise ConfigError(key, str(path), f"must have one valid member name, but has {names_in(subject)!r}")
    return str(names[0].value)


def names_in(subject: x509.Name) -> str:
    """All common names, for printing."""
    return ", ".join(str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _check_issued_by(key: str, path: Path, certificate: x509.Certificate, ca: x509.Certificate, ca_path: Path) -> None:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(
            key, str(path), f"was not signed by {ca_path}; both must belong to the same federation"
        ) from error


def check_authority(key: str, path: Path, ca: x509.Certificate, now: datetime) -> None:
    """Raise ConfigError unless this certificate may sign others and is valid now."""
    try:
        is_authority = ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise ConfigError(key, str(path), "is a member's certificate, not an authority's; the federation's is ca.pem")
    _check_dates(key, path, ca, now, "make a new federation with `colonnade certs init`")


def _check_dates(key: str, path: Path, certificate: x509.Certificate, now: datetime, remedy: str) -> None:
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > until:
        raise ConfigError(key, str(path), f"expired on {date_in_words(until)}; {remedy}")
    if now < since:
        raise ConfigError(
            key,
            str(path),
            f"is valid only from {date_in_words(since)}, but this machine's clock shows {date_in_words(now)}",
        )


def _how_to_renew(name: str) -> str:
    if name == SERVER:
        return "renew it with `colonnade certs init --renew`"
    return f"the federation renews it with `colonnade certs sign {name}.csr --renew`"


def date_in_words(moment: datetime) -> str:
    """In UTC, to the minute."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def whole_seconds(now: datetime | None) -> datetime:
    """`now`, or the current time, without fractions of a second, as certificates have none."""
    return (now or datetime.now(UTC)).replace(microsecond=0)
