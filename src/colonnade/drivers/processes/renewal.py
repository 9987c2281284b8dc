"""Renews and revokes certificates, on the authority's side.

A renewal makes a new certificate for the same member. The one before stays on the list until it expires, so the files
may reach the members in any order. A revocation takes the member off the list. The list keeps its fingerprints as
revoked, and the folder `earlier` its certificates, so that they cannot be put back by accident.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from colonnade.drivers.processes.certificate_files import pem, pem_of_key, read_certificate, read_p256_key, replace
from colonnade.drivers.processes.certificates import (
    Authority,
    hosts_of,
    keep_earlier,
    read_request,
    refuse_revoked_key,
    replace_certificate,
    throw_away_files,
)
from colonnade.drivers.processes.identity import SERVER, fingerprint, whole_seconds
from colonnade.drivers.processes.members import Members, members_toml, read_members
from colonnade.drivers.processes.signing import PARTY_USAGE, SERVER_USAGE, Signer, new_key
from colonnade.protocol.errors import ConfigError

__all__ = ["freshen", "renew", "renew_authority", "renew_server", "revoke"]


def renew(name: str, dir: Path, days: int = 365, csr: Path | None = None, *, now: datetime | None = None) -> Path:
    """Make a party's next certificate, for its present key or for the key of a request; returns the path."""
    paths, path, now = Authority.at(dir), dir / f"{name}.pem", whole_seconds(now)
    signer, members = Signer.load(paths.certificate, paths.key, now), read_members(paths.members)
    if name not in members:
        raise ConfigError("NAME", name, _why_unlisted(name, members))
    if csr is not None:
        asked, public_key = read_request(csr)
        if asked != name:
            raise ConfigError("--request", str(csr), f"is a request of {asked}, not of {name}")
        refuse_revoked_key(name, public_key, dir, members)
    else:
        found = read_certificate("--dir", path).public_key()
        assert isinstance(found, ec.EllipticCurvePublicKey)  # `sign` accepts no other
        public_key = found
    return replace_certificate(dir, members, signer.issue(name, public_key, PARTY_USAGE, days, now), now)


def renew_server(
    dir: Path, hosts: Iterable[str] = (), days: int = 365, new_key_too: bool = False, *, now: datetime | None = None
) -> Path:
    """Make the server's next certificate, with the hosts that it had and the given ones; returns its path.

    With `new_key_too` the server gets a new key, and its certificates so far count as revoked.
    """
    paths, now = Authority.at(dir), whole_seconds(now)
    signer, members = Signer.load(paths.certificate, paths.key, now), read_members(paths.members)
    old = read_certificate("server", paths.server_certificate)
    key = new_key() if new_key_too else read_p256_key("server", paths.server_key)
    certificate = signer.issue(SERVER, key.public_key(), SERVER_USAGE, days, now, [*hosts_of(old), *hosts])
    if new_key_too:
        members = _revoked(dir, SERVER, members)
        replace(paths.server_key, pem_of_key(key))
    return replace_certificate(dir, members, certificate, now)


def renew_authority(dir: Path, days: int = 3650, *, now: datetime | None = None) -> Path:
    """Make the authority's next certificate, for the same key: the members' certificates stay valid."""
    paths = Authority.at(dir)
    signer = Signer.load(paths.certificate, paths.key, None).renewed(days, whole_seconds(now))
    replace(paths.certificate, pem(signer.certificate))
    return paths.certificate


def revoke(name: str, dir: Path) -> list[str]:
    """Take a party off the list for good; returns the members that need the new list."""
    paths = Authority.at(dir)
    members = read_members(paths.members)
    if name == SERVER:
        advice = "a federation needs its server; if its key was stolen, run `colonnade certs renew server --new-key`"
        raise ConfigError("NAME", name, advice)
    if name not in members:
        raise ConfigError("NAME", name, _why_unlisted(name, members))
    members = _revoked(dir, name, members)
    replace(paths.members, members_toml(members))
    (dir / f"{name}.pem").unlink(missing_ok=True)
    return list(members)


def _revoked(dir: Path, name: str, members: Members) -> Members:
    """The list without this member."""
    certificate = keep_earlier(dir, name)
    return members.without(name, *([] if certificate is None else [fingerprint(certificate)]))


def _why_unlisted(name: str, members: Members) -> str:
    if name in members.revoked:
        return f"was revoked; to admit it again, sign its new request with `colonnade certs sign {name}.csr`"
    return f"is not a member; the members are {', '.join(members)}"


def freshen(names: Iterable[str], dir: Path, days: int = 100, *, now: datetime | None = None) -> list[str]:
    """Renew what has less than a third of its life left, in a federation on one machine; returns the renewed names.

    A folder of an older release has no key of the authority. It gets a new authority.
    """
    paths, names, now = Authority.at(dir), list(names), whole_seconds(now)
    if not paths.key.exists():
        for path, data in throw_away_files(names, dir, days, now).items():
            replace(path, data)
        return [SERVER, *names]
    if _is_due(read_certificate("ca", paths.certificate), now):
        renew_authority(dir, now=now)
    renewed = []
    for name in (SERVER, *names):
        certificate, members = read_certificate(name, dir / f"{name}.pem"), read_members(paths.members)
        if _is_due(certificate, now) or members.get(name) != fingerprint(certificate):
            renew_server(dir, days=days, now=now) if name == SERVER else renew(name, dir, days, now=now)
            renewed.append(name)
    return renewed


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return until - now < (until - since) / 3
