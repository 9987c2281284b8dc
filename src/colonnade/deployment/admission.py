"""The federation admits parties: it signs the keys in their requests, and answers all parties at once.

An answer has the fingerprints of all members, so the answers are written when the last party of `network.parties` is
admitted, and again whenever the list of members has changed. No party fetches the list from the server: a server that
could replace the fingerprints would make them useless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade import __version__
from colonnade.config.resolve import parties_of
from colonnade.config.schema import Config, difference, from_dict, read_toml
from colonnade.config.shared import shared_tables
from colonnade.deployment.acceptance import Answer, Request, install
from colonnade.deployment.invitation import Invitation, open_invitation
from colonnade.deployment.letter import ANSWER, REQUEST, Letter, make_letter, read_letter
from colonnade.drivers.processes import certificates
from colonnade.drivers.processes.certificate_files import pem, read_certificate, read_p256_key, replace
from colonnade.drivers.processes.identity import common_name, fingerprint, key_digest, whole_seconds
from colonnade.drivers.processes.members import Members, list_code, read_members
from colonnade.drivers.processes.signing import Signer
from colonnade.protocol.errors import ConfigError

__all__ = ["Admission", "Admitted", "admit"]


class Admitted(NamedTuple):
    """A party whose request was signed, now or at an earlier call."""

    party: str
    code: str  # of the request
    until: datetime


@dataclass(frozen=True, slots=True)
class Admission:
    """What one call of `admit` has done."""

    admitted: tuple[Admitted, ...]
    missing: tuple[str, ...]  # parties that have no certificate yet: no answers were written
    answers: dict[str, Path]  # by party: the file to send
    installed: tuple[str, ...]  # parties in the server's own folder: nothing to send
    members_code: str


class _Checked(NamedTuple):
    party: str
    request: Letter
    csr: x509.CertificateSigningRequest


def admit(
    requests: Sequence[Path],
    config: Path,
    dir: Path = Path("federation"),
    days: int = 365,
    renew: bool = False,
    *,
    now: datetime | None = None,
) -> Admission:
    """Check all requests, then sign them and write the answers; raises ConfigError before anything is signed."""
    now = whole_seconds(now)
    tables = read_toml(config)
    checked = from_dict(tables)
    paths = certificates.Authority.at(dir)
    signer = Signer.load(paths.certificate, paths.key, now)
    opened = [_open(path, tables, checked, signer, now) for path in requests]
    twice = {one.party for one in opened if [other.party for other in opened].count(one.party) > 1}
    if twice:
        raise ConfigError(REQUEST, ", ".join(sorted(twice)), "two requests have this name; give one of them")
    members, parties = read_members(paths.members), parties_of(checked)
    for one in opened:
        certificates.refuse_revoked_key(one.party, one.csr.public_key(), dir, members)
        if not renew:
            _refuse_another_key(one, dir)
    admitted = tuple(_sign(one, dir, days, renew, now) for one in opened)
    members = read_members(paths.members)
    missing = tuple(members.missing(parties))
    here = [name for name in parties if name in members]
    answers, installed = ({}, ()) if missing else _answer_all(here, members, config.parent, dir, signer, now)
    return Admission(admitted, missing, answers, installed, list_code(members))


def _open(path: Path, tables: Mapping[str, object], config: Config, signer: Signer, now: datetime) -> _Checked:
    """A request that fits its own key, this federation, and the present shared config."""
    letter = read_letter(path)
    letter.expect(REQUEST)
    content = letter.content(Request)
    csr = _csr(letter, content.csr)
    letter.verify(csr.public_key())
    invitation, _ = open_invitation(content.invitation, now=now)
    if key_digest(invitation.authority.encode()) != key_digest(pem(signer.certificate)):
        raise ConfigError(REQUEST, letter.name, "answers an invitation of another federation")
    name = common_name(REQUEST, path, csr.subject)
    if not name == content.party == invitation.party:
        names = f"names {content.party!r}, and its key is for {name!r}"
        raise ConfigError(REQUEST, letter.name, f"{names}, but the invitation is for {invitation.party!r}")
    if name not in parties_of(config):
        raise ConfigError(
            REQUEST, letter.name, f"{name!r} is not in network.parties: {', '.join(config.network.parties)}"
        )
    _check_terms(letter, invitation, tables)
    return _Checked(name, letter, csr)


def _csr(letter: Letter, text: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(text.encode())
        valid = csr.is_signature_valid and isinstance(csr.public_key(), ec.EllipticCurvePublicKey)
        _ = csr.subject  # decoded at its first use
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
        valid = False
    if not valid:
        raise ConfigError(REQUEST, letter.name, "has no valid signing request; ask the party for a new one")
    return csr


def _check_terms(letter: Letter, invitation: Invitation, tables: Mapping[str, object]) -> None:
    """Refuse a party that has accepted another shared config: the handshake would refuse it later."""
    differs = difference(invitation.config, shared_tables(tables))
    if differs:
        raise ConfigError(
            REQUEST,
            letter.name,
            f"the shared config has changed since the invitation ({differs}); undo the change, or invite "
            f"{invitation.party} again",
        )


def _refuse_another_key(one: _Checked, dir: Path) -> None:
    path = dir / f"{one.party}.pem"
    if path.exists() and read_certificate("certificate", path).public_key() != one.csr.public_key():
        raise ConfigError(
            REQUEST,
            one.request.name,
            f"{one.party} was admitted with another key ({path}); to replace its certificate add --renew",
        )


def _sign(one: _Checked, dir: Path, days: int, renew: bool, now: datetime) -> Admitted:
    """Sign the key, unless its certificate exists already: the command can be repeated."""
    path, members = dir / f"{one.party}.pem", read_members(certificates.Authority.at(dir).members)
    if path.exists() and not renew:
        present = read_certificate("certificate", path)
        if members.get(one.party) == fingerprint(present):
            return Admitted(one.party, one.request.code, present.not_valid_after_utc)
    request = dir / f"{one.party}.csr"  # stays there, for a renewal
    replace(request, one.csr.public_bytes(Encoding.PEM))
    signed = read_certificate("certificate", certificates.sign(request, dir, days, renew, now=now))
    return Admitted(one.party, one.request.code, signed.not_valid_after_utc)


def _answer_all(
    parties: Sequence[str], members: Members, home: Path, dir: Path, signer: Signer, now: datetime
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Write an answer for each party; a party in the server's own folder gets its files at once."""
    answers, installed = {}, []
    for party in parties:
        certificate = read_certificate("certificate", dir / f"{party}.pem")
        own = pem(signer.certificate).decode(), pem(certificate).decode()
        content = Answer(party, __version__, now, *own, **members.tables())
        path = home / f"{party}.{ANSWER}"
        comment = f"For the party {party}. Next, in its folder:  colonnade accept {path.name}"
        letter = make_letter(path.name, ANSWER, comment, content, signer.key)
        if _lives_here(party, home, certificate):
            install(content, letter, home)
            installed.append(party)
        else:
            replace(path, letter.data)
            answers[party] = path
    return answers, tuple(installed)


def _lives_here(party: str, home: Path, certificate: x509.Certificate) -> bool:
    """Whether the party's key is in the server's own folder: one organisation may run the server and a party."""
    path = home / f"{party}.key"
    return (
        path.exists()
        and path.with_suffix(".toml").exists()
        and read_p256_key("key", path).public_key() == certificate.public_key()
    )
