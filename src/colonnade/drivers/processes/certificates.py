"""Who is who in a federation: one authority, a certificate for each member, and the list of members.

Everybody makes their own private key and keeps it:

    the federation   init      ca.key  ca.pem  server.key  server.pem  members.toml
    a party          request   NAME.key  NAME.csr                        the request travels to the federation
    the federation   sign      NAME.pem, and a line in members.toml      both travel back, with ca.pem

A certificate says who somebody is; `members.toml` says who may take part, by the SHA-256 fingerprint of the
certificate. Both must agree, so that deleting a member's line shuts that member out before the certificate expires.

Of a request only the public key and the name are used. What a certificate may do is decided here: a party's opens
connections (clientAuth); the server's accepts them too (serverAuth), and only the authority signs (path length 0).

Keys are P-256, which every TLS library speaks. Private keys are created readable by their owner alone, nothing is
overwritten, and a set of files is written whole or not at all.
"""

import ipaddress
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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

SERVER = "server"

_RESERVED = {SERVER, "ca"}  # their files lie in the federation's folder beside the parties'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"([A-Za-z0-9_-]{1,63}\.)*(?![0-9]+$)[A-Za-z0-9_-]{1,63}")  # 300.1.1.1 is no name but a slip
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_MOST_DAYS = 36_500
_CLOCK_SKEW = timedelta(minutes=5)
_LOCALLY = ("server", "localhost", "127.0.0.1")  # parties ask for "server", wherever it runs
_PARTY_USAGE = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_SERVER_USAGE = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)  # the latter to ask for status
_MEMBERS_HEADER = "# Who may take part: name = SHA-256 fingerprint of the certificate.\n"


@dataclass(frozen=True, slots=True)
class Authority:
    """Where a federation's own files lie."""

    key: Path
    certificate: Path
    server_key: Path
    server_certificate: Path
    members: Path

    @classmethod
    def at(cls, dir: Path) -> "Authority":
        names = ("ca.key", "ca.pem", f"{SERVER}.key", f"{SERVER}.pem", "members.toml")
        return cls(*(dir / name for name in names))


@dataclass(frozen=True, slots=True)
class Identity:
    """What a member shows to the others, in PEM, checked as far as it can be without them."""

    name: str
    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes

    @classmethod
    def load(cls, certificate: Path, key: Path, authority: Path, *, now: datetime | None = None) -> "Identity":
        """Reads the three files; a ConfigError says what is wrong with which."""
        own = _read_certificate("network.certificate", certificate)
        private = _read_key("network.key", key)
        ca = _read_certificate("network.authority", authority)
        if private.public_key() != own.public_key():
            raise ConfigError("network.key", str(key), f"is not the private key of {certificate}")
        _check_authority("network.authority", authority, ca, _now(now))
        _check_issued_by("network.certificate", certificate, own, ca, authority)
        name = _common_name("network.certificate", certificate, own.subject)
        _check_dates("network.certificate", certificate, own, _now(now), _how_to_renew(name))
        return cls(name, _pem_key(private), _pem(own), _pem(ca))


# --- the four steps ------------------------------------------------------------------------------------------------


def init(
    dir: Path, hosts: Iterable[str] = (), days: int = 365, ca_days: int = 3650, *, now: datetime | None = None
) -> Authority:
    """Makes a federation: its authority, its server, and the list of members with the server on it."""
    signer = _Signer.make(ca_days, _now(now))
    key, certificate = signer.server(hosts, days, _now(now))
    paths = Authority.at(dir)
    _write_new(
        {
            paths.key: _pem_key(signer.key),
            paths.certificate: _pem(signer.certificate),
            paths.server_key: _pem_key(key),
            paths.server_certificate: _pem(certificate),
            paths.members: _members_toml({SERVER: fingerprint(certificate)}),
        },
        "a federation lies there already; choose another folder, or renew its server with `certs init --renew`",
    )
    return paths


def renew_server(dir: Path, hosts: Iterable[str] = (), days: int = 365, *, now: datetime | None = None) -> Path:
    """A new certificate for the server's key, with the hosts it had and those given."""
    paths = Authority.at(dir)
    signer, members = _Signer.load(dir, _now(now)), read_members(paths.members)
    old = _read_certificate("server", paths.server_certificate)
    key = _ec_key("server", paths.server_key)
    certificate = signer.issue(SERVER, key.public_key(), _SERVER_USAGE, days, _now(now), [*_hosts_of(old), *hosts])
    _replace(paths.server_certificate, _pem(certificate))
    _replace(paths.members, _members_toml(members | {SERVER: fingerprint(certificate)}))
    return paths.server_certificate


def request(name: str, dir: Path = Path()) -> Path:
    """Makes a party's private key and the request to have its public half signed; returns the request's path."""
    _check_party(name)
    key = _new_key()
    csr = x509.CertificateSigningRequestBuilder(_subject(name)).sign(key, hashes.SHA256())
    path = dir / f"{name}.csr"
    _write_new(
        {dir / f"{name}.key": _pem_key(key), path: csr.public_bytes(Encoding.PEM)},
        f"a key made twice would leave its certificate behind; send {name}.csr as it is, or move both files away first",
    )
    return path


def sign(csr: Path, dir: Path, days: int = 365, renew: bool = False, *, now: datetime | None = None) -> Path:
    """Signs a party's request and puts the party on the list; returns the certificate's path."""
    name, public_key = _read_request(csr)
    signer, members_path = _Signer.load(dir, _now(now)), Authority.at(dir).members
    members, path = read_members(members_path), dir / f"{name}.pem"
    _check_standing(name, members, path, renew)
    certificate = signer.issue(name, public_key, _PARTY_USAGE, days, _now(now))
    _replace(path, _pem(certificate))
    _replace(members_path, _members_toml(members | {name: fingerprint(certificate)}))
    return path


def _check_standing(name: str, members: Mapping[str, str], path: Path, renew: bool) -> None:
    """A new member is added, a known one renewed, and neither by mistake for the other."""
    known = name in members or path.exists()
    if twin := next((other for other in members if other != name and other.lower() == name.lower()), None):
        raise ConfigError("name", name, f"differs from the member {twin!r} by capitals alone; choose another name")
    if known and not renew:
        raise ConfigError("name", name, f"was signed already ({path}); `--renew` replaces the certificate")
    if renew and not known:
        raise ConfigError("name", name, "has nothing to renew; without --renew it becomes a new member")


def throw_away(names: Iterable[str], dir: Path, days: int = 30, *, now: datetime | None = None) -> None:
    """A whole federation for one machine. The authority's key is never written, so nobody can join later."""
    signer = _Signer.make(days, _now(now))
    key, certificate = signer.server((), days, _now(now))
    members = {SERVER: fingerprint(certificate)}
    files = {dir / "ca.pem": _pem(signer.certificate)}
    files |= {dir / f"{SERVER}.key": _pem_key(key), dir / f"{SERVER}.pem": _pem(certificate)}
    for name in names:
        _check_party(name)
        key = _new_key()
        certificate = signer.issue(name, key.public_key(), _PARTY_USAGE, days, _now(now))
        files |= {dir / f"{name}.key": _pem_key(key), dir / f"{name}.pem": _pem(certificate)}
        members[name] = fingerprint(certificate)
    files[dir / "members.toml"] = _members_toml(members)
    _write_new(files, "certificates lie there already; choose another folder")


# --- what others ask about certificates ----------------------------------------------------------------------------


def fingerprint(certificate: bytes | x509.Certificate) -> str:
    """SHA-256 of the certificate (PEM, or parsed), in hex: what members.toml holds."""
    if isinstance(certificate, bytes):
        certificate = x509.load_pem_x509_certificate(certificate)
    return certificate.fingerprint(hashes.SHA256()).hex()


def expires_in_days(identity: Identity, *, now: datetime | None = None) -> int:
    """Whole days until the certificate or its authority expires, whichever is first."""
    certificates = [x509.load_pem_x509_certificate(pem) for pem in (identity.certificate, identity.authority)]
    return (min(certificate.not_valid_after_utc for certificate in certificates) - _now(now)).days


def read_members(path: Path) -> dict[str, str]:
    """Name to fingerprint, from members.toml."""
    key, text = "network.members", _read("network.members", path)
    try:
        tables = tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(key, str(path), f"is not TOML: {error}") from error
    members = tables.get("members")
    if set(tables) != {"members"} or not isinstance(members, dict):
        raise ConfigError(key, str(path), "must hold one table, [members], of name = fingerprint")
    for name, value in members.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(key, str(path), f"{name!r} is not a member's name")
        if not isinstance(value, str) or not _FINGERPRINT.fullmatch(value):
            raise ConfigError(key, str(path), f"{name}: 64 small hex digits are wanted, as `certs show` prints them")
    if len(set(members.values())) < len(members):
        raise ConfigError(key, str(path), "two members have the same fingerprint; each needs its own certificate")
    return members


def describe(path: Path) -> dict[str, str]:
    """What a certificate says, in words, for printing."""
    certificate = _read_certificate("file", path)
    rows = {
        "name": _names(certificate.subject),
        "issuer": _names(certificate.issuer),
        "valid from": _date(certificate.not_valid_before_utc),
        "valid until": _date(certificate.not_valid_after_utc),
        "fingerprint": fingerprint(certificate),
    }
    if hosts := _hosts_of(certificate):
        rows["hosts"] = ", ".join(hosts)
    return rows


# --- signing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Signer:
    """An authority at work: its key and its certificate."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @classmethod
    def make(cls, days: int, now: datetime) -> "_Signer":
        key = _new_key()
        name = _subject(f"federation {secrets.token_hex(8)}")  # its own, so that two authorities are told apart
        builder = _builder(name, name, key.public_key(), now, now + _lifetime(days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, dir: Path, now: datetime) -> "_Signer":
        paths = Authority.at(dir)
        certificate, key = _read_certificate("--dir", paths.certificate), _ec_key("--dir", paths.key)
        if key.public_key() != certificate.public_key():
            raise ConfigError("--dir", str(paths.key), f"is not the private key of {paths.certificate}")
        _check_authority("--dir", paths.certificate, certificate, now)
        return cls(key, certificate)

    def server(
        self, hosts: Iterable[str], days: int, now: datetime
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = _new_key()
        return key, self.issue(SERVER, key.public_key(), _SERVER_USAGE, days, now, [*_LOCALLY, *hosts])

    def issue(
        self,
        name: str,
        public_key: ec.EllipticCurvePublicKey,
        usages: Iterable[x509.ObjectIdentifier],
        days: int,
        now: datetime,
        hosts: Iterable[str] = (),
    ) -> x509.Certificate:
        ca, issuer_id = self.certificate, x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        until = min(now + _lifetime(days), ca.not_valid_after_utc)  # beyond that nobody would accept it
        builder = _builder(_subject(name), ca.subject, public_key, now, until)
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


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _now(now: datetime | None) -> datetime:
    return (now or datetime.now(UTC)).replace(microsecond=0)  # certificates count whole seconds


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError("days", days, f"must lie between 1 and {_MOST_DAYS}")
    return timedelta(days=days)


# --- names ---------------------------------------------------------------------------------------------------------


def _check_party(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "name", name, "a party's name has 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    if name.lower() in _RESERVED:
        raise ConfigError("name", name, "is the federation's own; choose another name for the party")


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(subject: x509.Name) -> str:
    return ", ".join(str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def _common_name(key: str, path: Path, subject: x509.Name) -> str:
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not _NAME.fullmatch(str(names[0].value)):
        raise ConfigError(key, str(path), f"must have one name that a member can bear, has {_names(subject)!r}")
    return str(names[0].value)


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > 253 or not _HOST.fullmatch(host):
            raise ConfigError("host", host, "must be a host's name or IP address, without scheme or port") from None
        return x509.DNSName(host)


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


# --- checks --------------------------------------------------------------------------------------------------------


def _check_issued_by(key: str, path: Path, certificate: x509.Certificate, ca: x509.Certificate, ca_path: Path) -> None:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(key, str(path), f"was not signed by {ca_path}; both must be of one federation") from error


def _check_authority(key: str, path: Path, ca: x509.Certificate, now: datetime) -> None:
    try:
        is_authority = ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise ConfigError(key, str(path), "is a member's certificate, not an authority's; the federation's is ca.pem")
    _check_dates(key, path, ca, now, "the federation must be made anew with `colonnade certs init`")


def _check_dates(key: str, path: Path, certificate: x509.Certificate, now: datetime, remedy: str) -> None:
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > until:
        raise ConfigError(key, str(path), f"expired on {_date(until)}; {remedy}")
    if now < since:
        raise ConfigError(key, str(path), f"is valid only from {_date(since)}, and the clock says {_date(now)}")


def _how_to_renew(name: str) -> str:
    if name == SERVER:
        return "renew it with `colonnade certs init --renew`"
    return f"the federation renews it with `colonnade certs sign {name}.csr --renew`"


def _date(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


# --- files ---------------------------------------------------------------------------------------------------------


@contextmanager
def _os_errors(key: str, path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(key, str(path), f"cannot be {what}: {error.strerror or error}") from error


def _read(key: str, path: Path) -> bytes:
    with _os_errors(key, path, "read"):
        return path.read_bytes()


def _read_certificate(key: str, path: Path) -> x509.Certificate:
    try:
        certificates = x509.load_pem_x509_certificates(_read(key, path))
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError(key, str(path), "is not a certificate in PEM") from error
    if len(certificates) != 1:
        # All of a bundle would be trusted, and only the first was looked at.
        raise ConfigError(key, str(path), f"holds {len(certificates)} certificates; one is wanted")
    return certificates[0]


def _read_key(key: str, path: Path) -> PrivateKeyTypes:
    with _os_errors(key, path, "read"), path.open("rb") as file:
        mode, data = os.fstat(file.fileno()).st_mode, file.read()
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(key, str(path), f"others can read this private key; `chmod 600 {path}`")
    try:
        return load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ConfigError(key, str(path), "is protected by a passphrase, which nobody could type here") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(key, str(path), "is not a private key in PEM") from error


def _ec_key(key: str, path: Path) -> ec.EllipticCurvePrivateKey:
    private = _read_key(key, path)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(key, str(path), "must be a P-256 key, as `colonnade certs init` makes it")
    return private


def _read_request(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """A request's name and public key; whatever else it asks for is left unread."""
    try:
        csr = x509.load_pem_x509_csr(_read("request", path))
        key, valid = csr.public_key(), csr.is_signature_valid
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ConfigError("request", str(path), "is not a signing request in PEM") from error
    if not valid:
        raise ConfigError("request", str(path), "its signature is wrong: damaged, or not made by the key's owner")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("request", str(path), "must be for a P-256 key, as `colonnade certs request` makes it")
    name = _common_name("request", path, csr.subject)
    _check_party(name)
    return name, key


def _write_new(files: Mapping[Path, bytes], advice: str) -> None:
    """All of them or none; never over a file that is there."""
    for path in files:
        with _os_errors("file", path, "written"):
            there = path.exists()
        if there:
            raise ConfigError("file", str(path), f"exists: {advice}")
    written: list[Path] = []
    try:
        for path, data in files.items():
            with _os_errors("file", path, "written"):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _mode(path))
                written.append(path)
                _fill(descriptor, data)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _replace(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one."""
    fresh = path.with_name(path.name + ".new")
    with _os_errors("file", path, "written"):
        _fill(os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, _mode(path)), data)
        fresh.replace(path)


def _fill(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _mode(path: Path) -> int:
    return 0o600 if path.suffix == ".key" else 0o644


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _pem_key(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _members_toml(members: Mapping[str, str]) -> bytes:
    return (_MEMBERS_HEADER + tomli_w.dumps({"members": dict(members)})).encode()
