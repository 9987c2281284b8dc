"""The certificates of a federation: one authority, a certificate for each member, and the list of members.

Each party makes its own private key and keeps it:

    the federation   init      ca.key  ca.pem  server.key  server.pem  members.toml
    a party          request   NAME.key  NAME.csr                        the request travels to the federation
    the federation   sign      NAME.pem, and a line in members.toml      both travel back, with ca.pem

A certificate names a member. `members.toml` lists the certificates that count (see `members`). Both must agree.
`renewal` replaces certificates and revokes them.

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
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade.drivers.processes.certificate_files import (
    pem,
    pem_of_key,
    read,
    read_certificate,
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
    names_in,
    whole_seconds,
)
from colonnade.drivers.processes.members import Members, members_toml, read_members
from colonnade.drivers.processes.signing import PARTY_USAGE, Signer, new_key, short_code, subject
from colonnade.protocol.errors import ConfigError

__all__ = [
    "EARLIER",
    "SERVER",
    "Authority",
    "Identity",
    "Members",
    "describe",
    "expires_in_days",
    "fingerprint",
    "hosts_of",
    "init",
    "keep_earlier",
    "read_members",
    "read_request",
    "refuse_revoked_key",
    "replace_certificate",
    "request",
    "request_code",
    "sign",
    "throw_away",
    "throw_away_files",
]

EARLIER = "earlier"  # in the federation's folder: certificates that were renewed or revoked


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
        "certs renew server`",
    )
    return paths


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


def sign(
    csr: Path, dir: Path, days: int = 365, renew: bool = False, same_key: bool = False, *, now: datetime | None = None
) -> Path:
    """Sign a party's request and add the party to the list; returns the certificate's path.

    With `same_key`, the request may have the key of a certificate that was revoked.
    """
    name, public_key = read_request(csr)
    paths, now = Authority.at(dir), whole_seconds(now)
    signer, members = Signer.load(paths.certificate, paths.key, now), read_members(paths.members)
    _check_standing(name, members, dir / f"{name}.pem", renew)
    if not same_key:
        refuse_revoked_key(name, public_key, dir, members)
    return replace_certificate(dir, members, signer.issue(name, public_key, PARTY_USAGE, days, now), now)


def replace_certificate(dir: Path, members: Members, certificate: x509.Certificate, now: datetime) -> Path:
    """Write a member's new certificate and the list, in which the one before stays until it expires."""
    name, paths = names_in(certificate.subject), Authority.at(dir)
    path, before = dir / f"{name}.pem", [members[name]] if name in members else []
    old = keep_earlier(dir, name)
    if old is not None and [fingerprint(old)] == before and old.not_valid_after_utc <= now:
        before = []
    replace(path, pem(certificate))
    replace(paths.members, members_toml(members.renewed(name, fingerprint(certificate), before)))
    return path


def keep_earlier(dir: Path, name: str) -> x509.Certificate | None:
    """Copy a member's present certificate to the folder `earlier`, and return it; None if there is none."""
    path = dir / f"{name}.pem"
    if not path.exists():
        return None
    certificate = read_certificate("--dir", path)
    (dir / EARLIER).mkdir(exist_ok=True, mode=0o700)
    replace(dir / EARLIER / f"{name}-{fingerprint(certificate)[:16]}.pem", pem(certificate))
    return certificate


def refuse_revoked_key(name: str, public_key: PublicKeyTypes, dir: Path, members: Members) -> None:
    """Raise ConfigError if a certificate of this key was revoked: the key may have been stolen."""
    for path in sorted((dir / EARLIER).glob(f"{name}-*.pem")):
        old = read_certificate("--dir", path)
        if fingerprint(old) in members.revoked.get(name, ()) and old.public_key() == public_key:
            raise ConfigError(
                "request",
                name,
                f"has the key of a certificate that was revoked ({path}); the party makes a new key with `colonnade "
                f"certs request {name}` in another folder; if the old key is safe, use `certs sign --same-key`",
            )


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


def throw_away(names: Iterable[str], dir: Path, days: int = 100, *, now: datetime | None = None) -> None:
    """Make all files of a federation on one machine, with all its keys."""
    files = throw_away_files(names, dir, days, whole_seconds(now))
    write_new(files, "this folder already holds certificates; choose another folder")


def throw_away_files(names: Iterable[str], dir: Path, days: int, now: datetime) -> dict[Path, bytes]:
    """The files of a federation on one machine. The authority's key is the last one."""
    signer, paths = Signer.make(3650, now), Authority.at(dir)
    key, certificate = signer.server((), days, now)
    members = {SERVER: fingerprint(certificate)}
    files = {paths.certificate: pem(signer.certificate)}
    files |= {paths.server_key: pem_of_key(key), paths.server_certificate: pem(certificate)}
    for name in names:
        check_party_name(name)
        key = new_key()
        certificate = signer.issue(name, key.public_key(), PARTY_USAGE, days, now)
        files |= {dir / f"{name}.key": pem_of_key(key), dir / f"{name}.pem": pem(certificate)}
        members[name] = fingerprint(certificate)
    return files | {paths.members: members_toml(members), paths.key: pem_of_key(signer.key)}


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
    if hosts := hosts_of(certificate):
        rows["hosts"] = ", ".join(hosts)
    return rows


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def request_code(path: Path) -> str:
    """Digits that two people compare by telephone before one of them signs this request."""
    return short_code(_load_request(path).public_bytes(Encoding.DER))


def read_request(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """A request's name and public key. All other requested properties are ignored."""
    csr = _load_request(path)
    key = csr.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("request", str(path), "must be for a P-256 key, as `colonnade certs request` makes it")
    name = common_name("request", path, csr.subject)
    check_party_name(name)
    return name, key


def _load_request(path: Path) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(read("request", path))
        csr.public_key()
        valid = csr.is_signature_valid
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ConfigError("request", str(path), "is not a signing request in PEM") from error
    if not valid:
        raise ConfigError("request", str(path), "its signature is wrong: damaged, or not made by the key's owner")
    return csr
