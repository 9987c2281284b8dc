"""All members of a federation with the dates of their certificates, for `colonnade certs show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from colonnade.drivers.processes.certificate_files import read_certificate
from colonnade.drivers.processes.certificates import EARLIER
from colonnade.drivers.processes.identity import CA, date_in_words, days_left, fingerprint
from colonnade.drivers.processes.members import read_members
from colonnade.protocol.errors import ConfigError

__all__ = ["Standing", "overview"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One certificate of a member. Dates are None if only its fingerprint is here."""

    name: str
    state: str
    fingerprint: str
    until: str | None = None
    days: int | None = None


def overview(path: Path, *, now: datetime | None = None) -> list[Standing]:
    """The certificates of all members, from a list of members and the certificates in its folder."""
    folder, members = path.parent, read_members(path)
    here = dict(_certificates(folder))
    rows = [(CA, "authority", fingerprint(found)) for found in here.values() if _is_authority(found)]
    rows += [
        (name, "before" if index else "member", one)
        for name in members
        for index, one in enumerate(members.all_of(name))
    ]
    rows += [(name, "revoked", one) for name, prints in members.revoked.items() for one in prints]
    return [_standing(name, state, one, here.get(one), now) for name, state, one in rows]


def _certificates(folder: Path) -> Iterator[tuple[str, x509.Certificate]]:
    for path in sorted((*folder.glob("*.pem"), *folder.glob(f"{EARLIER}/*.pem"))):
        try:
            found = read_certificate("file", path)
        except ConfigError:
            continue  # another file of the user
        yield fingerprint(found), found


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _standing(
    name: str, state: str, print_: str, certificate: x509.Certificate | None, now: datetime | None
) -> Standing:
    if certificate is None:
        return Standing(name, state, print_)
    until, days = date_in_words(certificate.not_valid_after_utc), days_left(certificate, now=now)
    return Standing(name, "expired" if days < 0 and state == "member" else state, print_, until, days)
