"""`colonnade check`: a member's certificate, key, authority and list of members, and the clock for their dates."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from colonnade.algorithms.method import SERVER
from colonnade.config.schema import Config
from colonnade.deployment.finding import Finding, Findings, error, fine, warning
from colonnade.drivers.processes.certificate_files import read_certificate, read_key
from colonnade.drivers.processes.identity import (
    check_authority,
    common_name,
    date_in_words,
    fingerprint,
    whole_seconds,
)
from colonnade.drivers.processes.members import Members, read_members
from colonnade.protocol.errors import ColonnadeError, ConfigError

__all__ = ["certificate_findings", "name_in_certificate"]

SOON = timedelta(days=30)
Read = TypeVar("Read")


def name_in_certificate(config: Config) -> str | None:
    """The member that the certificate names; None if it cannot be read."""
    try:
        path = Path(str(config.network.certificate))
        return common_name("network.certificate", path, read_certificate("network.certificate", path).subject)
    except ColonnadeError:
        return None


def certificate_findings(config: Config, name: str, now: datetime | None = None) -> Findings:
    """Check each file, then whether they fit each other."""
    now, network = whole_seconds(now), config.network
    server = name == SERVER
    get = f"colonnade invite {' '.join(config.network.parties)}" if server else f"colonnade accept {name}.answer"
    own = _opened("certificate", network.certificate, read_certificate, get)
    private = _opened("key", network.key, read_key, "" if network.key else get)
    ca = _opened("authority", network.authority, read_certificate, get)
    members = _opened("members", network.members, lambda _, path: read_members(path), get)
    if isinstance(own, x509.Certificate):
        authority = ca if isinstance(ca, x509.Certificate) else None
        yield from _certificate(own, authority, config, name, now)
    else:
        yield own
    if isinstance(private, Finding):
        yield private
    elif isinstance(own, x509.Certificate) and private.public_key() != own.public_key():
        text = f"network.key = {network.key!r}: is not the private key of {network.certificate}"
        yield error("key", text, "use the key from which the request was made")
    else:
        yield fine("key", f"{network.key}, which only its owner can read")
    yield _authority(ca, Path(str(network.authority)), now) if isinstance(ca, x509.Certificate) else ca
    if isinstance(members, Finding):
        yield members
    else:
        yield _members(members, config, name, own if isinstance(own, x509.Certificate) else None, get)
    yield _clock([one for one in (own, ca) if isinstance(one, x509.Certificate)], now)


def _opened(key: str, path: str | None, read: Callable[[str, Path], Read], next: str) -> Read | Finding:
    """What a file holds, or the error."""
    if path is None:
        return error(key, f"network.{key} is not set", next)
    try:
        return read(f"network.{key}", Path(path))
    except ColonnadeError as wrong:
        return error(key, str(wrong), next if not Path(path).exists() else "")


def _certificate(
    own: x509.Certificate, ca: x509.Certificate | None, config: Config, name: str, now: datetime
) -> Findings:
    path, until = Path(str(config.network.certificate)), own.not_valid_after_utc
    faults = []
    try:
        shown = common_name("network.certificate", path, own.subject)
        if shown != name:
            faults.append(error("certificate", f"{path} is the certificate of {shown}, not of {name}"))
    except ConfigError as wrong:
        faults.append(error("certificate", str(wrong)))
    if ca is not None and not _issued_by(own, ca):
        text = f"{path} was not signed by {config.network.authority}; both must belong to the same federation"
        faults.append(error("certificate", text))
    if now > until:
        faults.append(error("certificate", f"{path} expired on {date_in_words(until)}", _renew(name)))
    elif now > until - SOON:
        text = f"{path} expires in {(until - now).days} days, on {date_in_words(until)}"
        faults.append(warning("certificate", text, _renew(name)))
    yield from faults or [fine("certificate", f"{name}'s, until {date_in_words(until)}")]


def _renew(name: str) -> str:
    return "colonnade certs renew server" if name == SERVER else "ask the federation to renew it"


def _issued_by(own: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _authority(ca: x509.Certificate, path: Path, now: datetime) -> Finding:
    try:
        check_authority("network.authority", path, ca, max(now, ca.not_valid_before_utc))  # `_clock` says the other
    except ConfigError as wrong:
        return error("authority", str(wrong))
    return fine("authority", f"{fingerprint(ca)[:16]}…, until {date_in_words(ca.not_valid_after_utc)}")


def _members(members: Members, config: Config, name: str, own: x509.Certificate | None, get: str) -> Finding:
    path, parties = config.network.members, config.network.parties
    if missing := members.missing(parties):
        next = "colonnade admit NAME.request" if name == SERVER else "ask the federation for a new answer"
        return error("members", f"{path} has no fingerprint of {', '.join(missing)}", next)
    why_not = None if own is None else members.why_not(name, fingerprint(own))
    if why_not is not None and name in members.revoked:
        return error("members", f"{path}: {why_not}", "ask the federation to sign a request for a new key")
    if why_not is not None:
        return error("members", f"{path} has another certificate for {name} than {config.network.certificate}", get)
    gone = [one for one in parties if one not in members]
    revoked = f"; revoked: {', '.join(gone)}" if gone else ""
    return fine("members", f"{path}: {', '.join(members)}{revoked}")


def _clock(found: list[x509.Certificate], now: datetime) -> Finding:
    """The machine's clock against the certificates: a clock that is a day behind makes them invalid."""
    early = [one.not_valid_before_utc for one in found if now < one.not_valid_before_utc]
    shown = date_in_words(now)
    if early:
        text = f"this machine's clock shows {shown}, but a certificate is valid only from {date_in_words(max(early))}"
        return error("clock", text, "set the clock")
    built = datetime.fromtimestamp(Path(__file__).stat().st_mtime, now.tzinfo)
    if now < built:
        return warning("clock", f"{shown}, before Colonnade was installed ({date_in_words(built)})", "set the clock")
    return fine("clock", shown)
