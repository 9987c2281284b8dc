"""The certificates of a federation: one authority, a certificate for each member, and the list of members.

Each party makes its own private key and keeps it:

    the federation   init      ca.key  ca.pem  server.key  server.pem  members.toml
    a party          request   NAME.key  NAME.csr                        the request travels to the federation
    the federation   sign      NAME.pem, and a line in members.toml      both travel back, with ca.pem

A certificate names a member. `members.toml` lists the members that may take part, by the SHA-256 fingerprint of their
certificates. Both must agree, so deleting a member's line excludes that member before its certificate expires.

Of a request only the public key and the name are used. `signing` decides what a certificate may do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade.drivers.processes.certificate_files import (
    pem,
    pem_of_key,
    read,
    read_certificate,
    read_p256_key,
    replace,
    write_new,
)
from colonnade.drivers.processes.identity import (
    SERVER,
    Identity,
    check_party_name,
    common_name,
    date_in_words,
    expires_in_days,
    fingerprint,
    members_toml,
    names_in,
    read_members,
    whole_seconds,
)
from colonnade.drivers.processes.signing import PARTY_USAGE, SERVER_USAGE, Signer, new_key, subject
from colonnade.protocol.errors import ConfigError

__all__ = [
    "SERVER",
    "Authority",
    "Identity",
    "describe",
    "expires_in_days",
    "fingerprint",
    "init",
    "read_members",
    "renew_server",
    "request",
    "sign",
    "throw_away",
]


@dataclass(frozen=True, slots=True)
class Authority:
    """The paths of a federation's own files."""

    key: Path
    certificate: Path
    server_key: Path
    server_certificate: Path
    members: Path

    @classmethod
    def at(cls, dir: Path) -> "Authority":
        """The paths in the federation's folder."""
        names = ("ca.key", "ca.pem", f"{SERVER}.key", f"{SERVER}.pem", "members.toml")
        return cls(*(dir / name for name in names))


def init(
    dir: Path, hosts: Iterable[str] = (), days: int = 365, ca_days: int = 3650, *, now: datetime | None = None
) -> Authority:
    """Make a federation: its authority, its server, and the list of members with the server on it."""
    signer = Signer.make(ca_days, whole_seconds(now))
    key, certificate = signer.server(hosts, days, whole_seconds(now))
    paths = Authority.at(dir)
    write_new(
        {
            paths.key: pem_of_key(signer.key),
            paths.certificate: pem(signer.certificate),
            paths.server_key: pem_of_key(key),
            paths.server_certificate: pem(certificate),
            paths.members: members_toml({SERVER: fingerprint(certificate)}),
        },
        "this folder already holds a federation; choose another folder, or renew its server with `colonnade "
        "certs init --renew`",
    )
    return paths


def renew_server(dir: Path, hosts: Iterable[str] = (), days: int = 365, *, now: datetime | None = None) -> Path:
    """Make a new certificate for the server's key, with the hosts that it had and the given ones; returns its path."""
    paths = Authority.at(dir)
    signer = Signer.load(paths.certificate, paths.key, whole_seconds(now))
    members = read_members(paths.members)
    old = read_certificate("server", paths.server_certificate)
    key = read_p256_key("server", paths.server_key)
    certificate = signer.issue(
        SERVER, key.public_key(), SERVER_USAGE, days, whole_seconds(now), [*_hosts_of(old), *hosts]
    )
    replace(paths.server_certificate, pem(certificate))
    replace(paths.members, members_toml(members | {SERVER: fingerprint(certificate)}))
    return paths.server_certificate


def request(name: str, dir: Path = Path()) -> Path:
    """Make a party's private key and a request to sign its public key; returns the request's path."""
    check_party_name(name)
    key = new_key()
    csr = x509.CertificateSigningRequestBuilder(subject(name)).sign(key, hashes.SHA256())
    path = dir / f"{name}.csr"
    write_new(
        {dir / f"{name}.key": pem_of_key(key), path: csr.public_bytes(Encoding.PEM)},
        f"a new key would make the old certificate useless; send the existing {name}.csr, or move both files "
        "away first",
    )
    return path


def sign(csr: Path, dir: Path, days: int = 365, renew: bool = False, *, now: datetime | None = None) -> Path:
    """Sign a party's request and add the party to the list; returns the certificate's path."""
    name, public_key = _read_request(csr)
    paths, path = Authority.at(dir), dir / f"{name}.pem"
    signer = Signer.load(paths.certificate, paths.key, whole_seconds(now))
    members = read_members(paths.members)
    _check_standing(name, members, path, renew)
    certificate = signer.issue(name, public_key, PARTY_USAGE, days, whole_seconds(now))
    replace(path, pem(certificate))
    replace(paths.members, members_toml(members | {name: fingerprint(certificate)}))
    return path


def _check_standing(name: str, members: Mapping[str, str], path: Path, renew: bool) -> None:
    """Raise ConfigError if a new member would replace a known one, or a renewal would add a new one."""
    known = name in members or path.exists()
    if twin := next((other for other in members if other != name and other.lower() == name.lower()), None):
        raise ConfigError(
            "name", name, f"differs from the member {twin!r} only by upper and lower case; choose another name"
        )
    if known and not renew:
        raise ConfigError("name", name, f"was signed already ({path}); to replace the certificate add --renew")
    if renew and not known:
        raise ConfigError("name", name, "has no certificate to renew; to add a new member remove --renew")


def throw_away(names: Iterable[str], dir: Path, days: int = 30, *, now: datetime | None = None) -> None:
    """Make all files of a federation on one machine. No member can join later, as the authority's key is not saved."""
    signer = Signer.make(days, whole_seconds(now))
    key, certificate = signer.server((), days, whole_seconds(now))
    members = {SERVER: fingerprint(certificate)}
    files = {dir / "ca.pem": pem(signer.certificate)}
    files |= {dir / f"{SERVER}.key": pem_of_key(key), dir / f"{SERVER}.pem": pem(certificate)}
    for name in names:
        check_party_name(name)
        key = new_key()
        certificate = signer.issue(name, key.public_key(), PARTY_USAGE, days, whole_seconds(now))
        files |= {dir / f"{name}.key": pem_of_key(key), dir / f"{name}.pem": pem(certificate)}
        members[name] = fingerprint(certificate)
    files[dir / "members.toml"] = members_toml(members)
    write_new(files, "this folder already holds certificates; choose another folder")


def describe(path: Path) -> dict[str, str]:
    """A certificate's content in words, for printing."""
    certificate = read_certificate("file", path)
    rows = {
        "name": names_in(certificate.subject),
        "issuer": names_in(certificate.issuer),
        "valid from": date_in_words(certificate.not_valid_before_utc),
        "valid until": date_in_words(certificate.not_valid_after_utc),
        "fingerprint": fingerprint(certificate),
    }
    if hosts := _hosts_of(certificate):
        rows["hosts"] = ", ".join(hosts)
    return rows


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _read_request(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """A request's name and public key. All other requested properties are ignored."""
    try:
        csr = x509.load_pem_x509_csr(read("request", path))
        key, valid = csr.public_key(), csr.is_signature_valid
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ConfigError("request", str(path), "is not a signing request in PEM") from error
    if not valid:
        raise ConfigError("request", str(path), "its signature is wrong: damaged, or not made by the key's owner")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("request", str(path), "must be for a P-256 key, as `colonnade certs request` makes it")
    name = common_name("request", path, csr.subject)
    check_party_name(name)
    return name, key
