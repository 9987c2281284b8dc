"""A party accepts: an invitation makes its folder, its key and its request; an answer brings its certificate.

    shop.invitation  →  shop.toml  shop.key  ca.pem  shop.request         the request travels to the federation
    shop.answer      →  shop.pem  members.toml                            both checked against this folder

The authority of the folder is the one of the invitation, whose code two people have compared. An answer of another
authority is refused, so it needs no code.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade import __version__
from colonnade.config.first import IGNORED, Answers, first_config
from colonnade.config.schema import PartyConfig, apply_overrides, from_dict, read_toml
from colonnade.config.shared import is_shared
from colonnade.deployment.invitation import Invitation, open_invitation, shared_config
from colonnade.deployment.letter import ANSWER, REQUEST, Letter, certificate_in, make_letter
from colonnade.deployment.own_table import table_faults
from colonnade.drivers.processes.certificate_files import (
    pem,
    pem_of_key,
    read_certificate,
    read_p256_key,
    replace,
    write_new,
)
from colonnade.drivers.processes.identity import (
    SERVER,
    check_party_name,
    common_name,
    fingerprint,
    key_digest,
)
from colonnade.drivers.processes.members import Members, list_code, members_in, members_toml, read_members
from colonnade.drivers.processes.signing import new_key, subject
from colonnade.protocol.errors import ConfigError

__all__ = ["Accepted", "Answer", "Installed", "OwnAnswers", "Request", "accept_answer", "accept_invitation", "install"]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a party asks of the federation: to sign its key."""

    party: str
    release: str
    csr: str
    invitation: str  # the whole file, so that the federation sees what the party has accepted


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the federation sends back: the party's certificate, and the fingerprints of all members."""

    party: str
    release: str
    issued: datetime
    authority: str
    certificate: str
    members: dict[str, str | list[str]]
    revoked: dict[str, list[str]] = {}


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """What the party fills in. Paths start where the command is typed."""

    data: str
    id: str
    label: str | None = None
    predict_data: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # further private settings, by their dotted keys


@dataclass(frozen=True, slots=True)
class Accepted:
    """A party's new folder."""

    party: str
    address: str
    release: str  # of the federation
    files: tuple[Path, ...]
    invitation_code: str
    request_code: str


@dataclass(frozen=True, slots=True)
class Installed:
    """A party's certificate and list, after an answer."""

    party: str
    files: tuple[Path, ...]
    until: datetime
    members_code: str
    changes: dict[str, str]  # by member: what is new in the list of members


def accept_invitation(
    letter: Letter, own: OwnAnswers, folder: Path, trusted: Sequence[str] = (), *, now: datetime | None = None
) -> Accepted:
    """Check the invitation and the party's table, then write all files or none; raises ConfigError."""
    content, letter = open_invitation(letter, now=now)
    _refuse_shared(own.more)
    shared_config(content, trusted)
    _refuse_folder(content, folder)
    text = first_config(_answers(content, own, folder))
    _refuse_faulty_table(own)
    key = new_key()
    csr = x509.CertificateSigningRequestBuilder(subject(content.party)).sign(key, hashes.SHA256())
    wanted = Request(content.party, __version__, csr.public_bytes(Encoding.PEM).decode(), letter.text)
    name = f"{content.party}.{REQUEST}"
    comment = f"Of the party {content.party}. Next, at the federation:  colonnade admit {name}"
    request = make_letter(name, REQUEST, comment, wanted, key)
    files = {
        folder / f"{content.party}.toml": text.encode(),
        folder / f"{content.party}.key": pem_of_key(key),
        folder / "ca.pem": content.authority.encode(),
        folder / name: request.data,
        folder / ".gitignore": IGNORED.encode(),
    }
    kept = [path for path in files if path.name in ("ca.pem", ".gitignore") and path.exists()]
    files = {path: data for path, data in files.items() if path not in kept}
    write_new(
        files,
        f"this folder already has an accepted invitation; change the settings in {content.party}.toml, or remove "
        f"{content.party}.toml, {content.party}.key and {name} first",
    )
    return Accepted(content.party, content.address, content.release, tuple(files), letter.code, request.code)


def _refuse_shared(settings: Mapping[str, Any]) -> None:
    for dotted, value in settings.items():
        section, _, key = dotted.partition(".")
        if is_shared(section, key):
            raise ConfigError(dotted, value, "all members agree on this key, so only the federation sets it")


def _refuse_folder(content: Invitation, folder: Path) -> None:
    """Raise ConfigError if the folder belongs to another party or to another federation."""
    for path in sorted(folder.glob("*.key")):
        if path.stem not in (content.party, SERVER) and (folder / f"{path.stem}.toml").exists():
            raise ConfigError(
                "--dir",
                str(folder),
                f"is the folder of the party {path.stem}, but the invitation is for {content.party}; choose another",
            )
    authority = folder / "ca.pem"
    theirs = key_digest(content.authority.encode())
    if authority.exists() and key_digest(pem(read_certificate("authority", authority))) != theirs:
        raise ConfigError("--dir", str(folder), f"{authority} belongs to another federation; choose another folder")


def _answers(content: Invitation, own: OwnAnswers, folder: Path) -> Answers:
    more = dict(own.more)
    if own.predict_data is not None:
        more["party.predict_data"] = _from(folder, own.predict_data)
    return Answers(
        name=content.party,
        parties=tuple(content.config["network"]["parties"]),
        data=_from(folder, own.data),
        id=own.id,
        label=own.label,
        address=content.address,
        more=more,
        shared=content.config,
    )


def _from(folder: Path, typed: str) -> str:
    """A typed path as it is written in the folder's config, whose commands are typed in that folder."""
    path = Path(typed).expanduser()
    if path.is_absolute() or path.absolute().drive != folder.absolute().drive:
        return str(path.absolute())
    return Path(os.path.relpath(path, folder)).as_posix()


def _refuse_faulty_table(own: OwnAnswers) -> None:
    """Raise the first fault of the table; all others are for `colonnade check`."""
    tables = {"party": {"data": own.data, "id": own.id}}
    typed = {"party.label": own.label, "party.predict_data": own.predict_data}
    settings = {key: value for key, value in typed.items() if value is not None} | dict(own.more)
    party: PartyConfig = from_dict(apply_overrides(tables, settings)).party
    faults = table_faults(party, "party")
    if faults:
        raise faults[0]


def accept_answer(letter: Letter, folder: Path) -> Installed:
    """Check an answer against this folder's authority and key, and install it; raises ConfigError."""
    letter.expect(ANSWER)
    content = letter.content(Answer)
    check_party_name(content.party)
    authority = folder / "ca.pem"
    if not (folder / f"{content.party}.toml").exists() or not authority.exists():
        raise ConfigError(
            "--dir",
            str(folder),
            f"is not the folder of the party {content.party}: type the command where {content.party}.toml is",
        )
    ca = read_certificate("authority", authority)
    if certificate_in(letter, "authority", content.authority).public_key() != ca.public_key():
        raise ConfigError(ANSWER, letter.name, f"is an answer of another federation than {authority}")
    letter.verify(ca.public_key())
    return install(content, letter, folder)


def install(content: Answer, letter: Letter, folder: Path) -> Installed:
    """Write the certificate and the list of members; each file is replaced in one step, so the command can be repeated.

    The letter's signature must have been checked.
    """
    certificate = _certificate(content, letter, folder)
    members = members_in({"members": content.members, "revoked": content.revoked}, Path(letter.name))
    _check_members(members, content.party, letter, folder, certificate)
    path = folder / "members.toml"
    before = read_members(path) if path.exists() else Members({})
    files = {folder / f"{content.party}.pem": pem(certificate), folder / "ca.pem": content.authority.encode()}
    files[path] = members_toml(members)
    for path, data in files.items():
        replace(path, data)
    changes = _changes(before, members) if before else {}
    return Installed(content.party, tuple(files), certificate.not_valid_after_utc, list_code(members), changes)


def _certificate(content: Answer, letter: Letter, folder: Path) -> x509.Certificate:
    """The party's certificate, of its own key and of the authority."""
    certificate = certificate_in(letter, "certificate", content.certificate)
    key = folder / f"{content.party}.key"
    if read_p256_key("key", key).public_key() != certificate.public_key():
        raise ConfigError(ANSWER, letter.name, f"has a certificate for another key than {key}; send the request again")
    try:
        certificate.verify_directly_issued_by(certificate_in(letter, "authority", content.authority))
    except (ValueError, TypeError, InvalidSignature):
        raise ConfigError(ANSWER, letter.name, "has a certificate that its authority did not sign") from None
    if common_name(ANSWER, Path(letter.name), certificate.subject) != content.party:
        raise ConfigError(ANSWER, letter.name, f"has a certificate for another name than {content.party}")
    return certificate


def _check_members(members: Members, party: str, letter: Letter, folder: Path, certificate: x509.Certificate) -> None:
    parties = from_dict(read_toml(folder / f"{party}.toml")).network.parties
    missing = members.missing(parties)
    if missing:
        raise ConfigError(ANSWER, letter.name, f"its list of members lacks {', '.join(missing)}")
    if members.get(party) != fingerprint(certificate):
        raise ConfigError(ANSWER, letter.name, "its list of members has another certificate for this party")


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    changed = {name: "another certificate" for name in after if name in before and before[name] != after[name]}
    added = {name: "new" for name in after if name not in before}
    return changed | added | {name: "removed" for name in before if name not in after}
