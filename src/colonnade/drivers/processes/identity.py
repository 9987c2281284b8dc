"""A member's identity and the checks before it connects: its certificate, its key, its federation.

A member is identified by its name and by the key of the authority that signed its certificate. Certificates come and
go. `members` pins the certificates that count at present.
"""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from colonnade.drivers.processes.certificate_files import pem, pem_of_key, read_certificate, read_key
from colonnade.protocol.errors import ConfigError

__all__ = [
    "CA",
    "FINGERPRINT",
    "NAME",
    "SERVER",
    "Identity",
    "certificate_days",
    "check_authority",
    "check_dates",
    "check_party_name",
    "common_name",
    "date_in_words",
    "days_left",
    "expires_in_days",
    "fingerprint",
    "key_digest",
    "names_in",
    "whole_seconds",
]

SERVER, CA = "server", "ca"

_RESERVED = {SERVER, CA}  # their files are in the same folder as the parties'
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FINGERPRINT = re.compile(r"[0-9a-f]{64}")


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
        check_dates("network.certificate", certificate, own, whole_seconds(now), _how_to_renew(name))
        return cls(name, pem_of_key(private), pem(own), pem(ca), certificate, key)


def fingerprint(certificate: bytes | x509.Certificate) -> str:
    """SHA-256 of the certificate (PEM or parsed) in hex, as in members.toml."""
    if isinstance(certificate, bytes):
        certificate = x509.load_pem_x509_certificate(certificate)
    return certificate.fingerprint(hashes.SHA256()).hex()


def key_digest(certificate: bytes) -> str:
    """SHA-256 of a certificate's public key in hex. A renewed authority with the same key has the same digest."""
    public = x509.load_pem_x509_certificate(certificate).public_key()
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def days_left(certificate: bytes | x509.Certificate, *, now: datetime | None = None) -> int:
    """Whole days until a certificate expires; negative if it has."""
    if isinstance(certificate, bytes):
        certificate = x509.load_pem_x509_certificate(certificate)
    return (certificate.not_valid_after_utc - whole_seconds(now)).days


def certificate_days(identity: Identity, *, now: datetime | None = None) -> dict[str, int]:
    """Whole days until this member's certificate and the authority's (`ca`) expire."""
    return {identity.name: days_left(identity.certificate, now=now), CA: days_left(identity.authority, now=now)}


def expires_in_days(identity: Identity, *, now: datetime | None = None) -> int:
    """Whole days until the certificate or its authority expires, whichever is first."""
    return min(certificate_days(identity, now=now).values())


def check_party_name(name: str) -> None:
    """Raise ConfigError if a party cannot have this name, which is also the name of its files."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            "name", name, "a party's name has 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    if name.lower() in _RESERVED:
        raise ConfigError("name", name, "is reserved; choose another name for the party")


def common_name(key: str, path: Path, subject: x509.Name) -> str:
    """The name in a certificate or request; raises ConfigError unless there is exactly one valid name."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not NAME.fullmatch(str(names[0].value)):
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
    check_dates(key, path, ca, now, "renew it with `colonnade certs renew ca`")


def check_dates(key: str, path: Path, certificate: x509.Certificate, now: datetime, remedy: str) -> None:
    """Raise ConfigError if the certificate is not valid now, with its date and what the clock shows."""
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock shows {date_in_words(now)}"
    if now > until:
        raise ConfigError(
            key, str(path), f"expired on {date_in_words(until)}; {clock}: correct the clock if it is wrong, or {remedy}"
        )
    if now < since:
        raise ConfigError(
            key, str(path), f"is valid only from {date_in_words(since)}, but {clock}: correct the clock if it is wrong"
        )


def _how_to_renew(name: str) -> str:
    if name == SERVER:
        return "renew it with `colonnade certs renew server`"
    return f"ask the federation to renew it with `colonnade certs renew {name}`"


def date_in_words(moment: datetime) -> str:
    """In UTC, to the minute."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def whole_seconds(now: datetime | None) -> datetime:
    """`now`, or the current time, without fractions of a second, as certificates have none."""
    return (now or datetime.now(UTC)).replace(microsecond=0)
