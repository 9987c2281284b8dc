"""Signs certificates. This module, never the request, decides what a certificate may do.

A party's certificate may open connections (clientAuth). The server's may also accept them (serverAuth). Only the
authority may sign (path length 0). Keys are P-256, which every TLS library supports.
"""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.drivers.processes.certificate_files import read_certificate, read_p256_key
from colonnade.drivers.processes.identity import SERVER, check_authority
from colonnade.protocol.errors import ConfigError

__all__ = ["PARTY_USAGE", "SERVER_USAGE", "Signer", "new_key", "short_code", "subject"]

PARTY_USAGE = (ExtendedKeyUsageOID.CLIENT_AUTH,)
SERVER_USAGE = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)  # clientAuth to ask for the status

_HOST = re.compile(r"([A-Za-z0-9_-]{1,63}\.)*(?![0-9]+$)[A-Za-z0-9_-]{1,63}")  # 300.1.1.1 is a typing error
_MOST_DAYS = 36_500
_CLOCK_SKEW = timedelta(minutes=5)
_LOCALLY = (SERVER, "localhost", "127.0.0.1")  # parties ask for "server", on any host


@dataclass(frozen=True, slots=True)
class Signer:
    """An authority's key and certificate."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @classmethod
    def make(cls, days: int, now: datetime) -> "Signer":
        name = subject(f"federation {secrets.token_hex(8)}")  # unique, to tell two authorities apart
        return cls._signed_by_itself(new_key(), name, days, now)

    @classmethod
    def _signed_by_itself(cls, key: ec.EllipticCurvePrivateKey, name: x509.Name, days: int, now: datetime) -> "Signer":
        builder = _builder(name, name, key.public_key(), now, now + _lifetime(days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, certificate: Path, key: Path, now: datetime | None) -> "Signer":
        """Read the two files; raises ConfigError if they do not belong together or, with `now`, have expired."""
        ca, private = read_certificate("--dir", certificate), read_p256_key("--dir", key)
        if private.public_key() != ca.public_key():
            raise ConfigError("--dir", str(key), f"is not the private key of {certificate}")
        if now is not None:
            check_authority("--dir", certificate, ca, now)
        return cls(private, ca)

    def renewed(self, days: int, now: datetime) -> "Signer":
        """The same authority, key and name, with a new certificate. The members' certificates stay valid."""
        return self._signed_by_itself(self.key, self.certificate.subject, days, now)

    def server(
        self, hosts: Iterable[str], days: int, now: datetime
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """A new key and certificate for the federation's server, valid for the given hosts and for this machine."""
        key = new_key()
        return key, self.issue(SERVER, key.public_key(), SERVER_USAGE, days, now, [*_LOCALLY, *hosts])

    def issue(
        self,
        name: str,
        public_key: ec.EllipticCurvePublicKey,
        usages: Iterable[x509.ObjectIdentifier],
        days: int,
        now: datetime,
        hosts: Iterable[str] = (),
    ) -> x509.Certificate:
        """A member's certificate; it expires with the authority's at the latest."""
        ca, issuer_id = self.certificate, x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        until = min(now + _lifetime(days), ca.not_valid_after_utc)  # no member would accept it after that
        builder = _builder(subject(name), ca.subject, public_key, now, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(issuer_id, critical=False)
        if addresses := [_address(host) for host in dict.fromkeys(hosts)]:
            builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, public_key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(until)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def short_code(content: bytes) -> str:
    """25 digits for two people to compare by telephone: a file with the same digits takes 2^83 tries."""
    number = int.from_bytes(hashlib.sha256(content).digest()) % 10**25
    digits = f"{number:025}"
    return " ".join(digits[start : start + 5] for start in range(0, 25, 5))


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError("days", days, f"must lie between 1 and {_MOST_DAYS}")
    return timedelta(days=days)


def subject(name: str) -> x509.Name:
    """A subject with this common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > 253 or not _HOST.fullmatch(host):
            raise ConfigError("host", host, "must be a host's name or IP address, without scheme or port") from None
        return x509.DNSName(host)
