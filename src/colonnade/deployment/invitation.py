"""An invitation: one file with all that a new party needs, except its own table and key.

It holds the shared part of the config, the server's address and the authority's certificate, and the authority signs
it. The certificate arrives in the same file, so the signature shows only that nothing was changed after the signing.
The telephone shows who signed: the operators of both sides compare the file's short code.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from colonnade import __version__
from colonnade.config.resolve import make_plan, method_of, parties_of
from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.config.shared import shared_tables
from colonnade.config.trust import refuse_untrusted
from colonnade.deployment.letter import INVITATION, Letter, certificate_in, parse_letter, read_letter, write_letter
from colonnade.drivers.processes import certificates
from colonnade.drivers.processes.certificate_files import pem
from colonnade.drivers.processes.identity import check_authority, check_party_name, date_in_words, whole_seconds
from colonnade.drivers.processes.signing import Signer
from colonnade.protocol.errors import ConfigError

__all__ = ["Invitation", "Invited", "invite", "open_invitation", "read_invitation", "shared_config", "signer_of"]

MOST_DAYS = 366
SKEW = timedelta(minutes=5)  # between two machines' clocks
EVERYWHERE = ("", "0.0.0.0", "[::]", "::")  # addresses to listen at, and not to dial

_ASKS = {
    "data": "the file with this party's columns, CSV or Parquet",
    "id": "its column with the ids",
    "columns": "the columns to use as features; left out: all except the id and the label",
    "categorical": "columns whose numbers are codes",
    "predict-data": "a file with further rows, for predictions alone",
}


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an invitation says."""

    party: str
    address: str  # of the server
    release: str
    issued: datetime
    expires: datetime
    authority: str  # its certificate, in PEM
    asks: dict[str, str]  # what the party fills in: options of `colonnade accept`
    config: dict[str, dict[str, Any]]  # the shared tables


class Invited(msgspec.Struct, frozen=True):
    """A written invitation."""

    path: Path
    code: str
    until: str


def invite(
    config: Path,
    names: Sequence[str],
    dir: Path = Path("federation"),
    days: int = 14,
    address: str | None = None,
    trusted: Sequence[str] = (),
    *,
    now: datetime | None = None,
) -> list[Invited]:
    """Write NAME.invitation beside the server's config, for each of these parties."""
    now = whole_seconds(now)
    tables = read_toml(config)
    checked = from_dict(tables)
    parties = parties_of(checked)
    for name in names:
        check_party_name(name)
        if name not in parties:
            raise ConfigError("NAME", name, f"is not in network.parties of {config}: {', '.join(parties)}")
    if not 1 <= days <= MOST_DAYS:
        raise ConfigError("--days", days, f"must lie between 1 and {MOST_DAYS}")
    refuse_untrusted(checked, trusted)
    make_plan(checked, parties, rows=1000, task=None)
    dialled, signer = _dialled(checked, address), signer_of(checked, dir, now)
    return [
        _write(config.with_name(f"{name}.{INVITATION}"), name, tables, dialled, signer, now, days) for name in names
    ]


def _write(
    path: Path, name: str, tables: Mapping[str, Any], address: str, signer: Signer, now: datetime, days: int
) -> Invited:
    content = Invitation(
        party=name,
        address=address,
        release=__version__,
        issued=now,
        expires=now + timedelta(days=days),
        authority=pem(signer.certificate).decode(),
        asks=_asks(from_dict(tables)),
        config=shared_tables(tables),
    )
    until = date_in_words(content.expires)
    comment = (
        f"For the party {name}, until {until}. Do not change it: the authority has signed it.\n"
        f"Next:  colonnade accept {path.name} --data FILE --id COLUMN"
    )
    return Invited(path, write_letter(path, INVITATION, comment, content, signer.key).code, until)


def _asks(config: Config) -> dict[str, str]:
    method, _ = method_of(config.protocol)
    label = {"label": "its column to predict: with this method every party holds the labels"}
    return _ASKS | (label if method.capabilities.party_labels else {})


def _dialled(config: Config, address: str | None) -> str:
    """The address that parties dial."""
    key, value = ("--address", address) if address is not None else ("network.address", config.network.address)
    host, _, port = value.rpartition(":")
    if host in EVERYWHERE or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            key, value, "is not an address that parties can dial; add --address HOST:PORT, as they reach this machine"
        )
    return value


def signer_of(config: Config, dir: Path, now: datetime) -> Signer:
    """The federation's authority; a federation that has none yet gets one."""
    paths = certificates.Authority.at(dir)
    if config.network.authority is None or Path(config.network.authority).resolve() != paths.certificate.resolve():
        raise ConfigError(
            "--dir", str(dir), f"the config names another authority: network.authority = {config.network.authority!r}"
        )
    if not paths.key.exists() and not paths.certificate.exists():
        certificates.init(dir, now=now)
    return Signer.load(paths.certificate, paths.key, now)


def read_invitation(path: Path, *, now: datetime | None = None) -> tuple[Invitation, Letter]:
    """An invitation that was not changed and is valid now; raises ConfigError."""
    return open_invitation(read_letter(path), now=now)


def open_invitation(letter: Letter | str, *, now: datetime | None = None) -> tuple[Invitation, Letter]:
    """The same for a letter that was read, or for its text."""
    now = whole_seconds(now)
    if isinstance(letter, str):
        letter = parse_letter(letter.encode(), "the invitation in the request")
    letter.expect(INVITATION)
    content = letter.content(Invitation)
    ca = certificate_in(letter, "authority", content.authority)
    letter.verify(ca.public_key())
    check_authority(INVITATION, Path(letter.name), ca, now)
    check_party_name(content.party)
    _check_dates(letter, content, now)
    return content, letter


def _check_dates(letter: Letter, content: Invitation, now: datetime) -> None:
    issued, expires = (moment.astimezone(UTC) for moment in (content.issued, content.expires))
    if now > expires:
        raise ConfigError(
            INVITATION, letter.name, f"expired on {date_in_words(expires)}; ask the federation for a new one"
        )
    if now < issued - SKEW:
        raise ConfigError(
            INVITATION,
            letter.name,
            f"was written on {date_in_words(issued)}, but this machine's clock shows {date_in_words(now)}: "
            "set the clock",
        )


def shared_config(content: Invitation, trusted: Sequence[str]) -> Config:
    """The shared part as a config; raises ConfigError if it is not valid here, or would import an untrusted module."""
    try:
        config = from_dict(content.config)
    except ConfigError as error:
        if content.release == __version__:
            raise
        advice = f"{error.advice}; the federation has release {content.release}, this is {__version__}: install theirs"
        raise ConfigError(error.key, error.value, advice) from None
    if shared_tables(content.config) != content.config:
        raise ConfigError(INVITATION, content.party, "sets keys that belong to the party alone; ask for a new one")
    refuse_untrusted(config, trusted)
    parties = parties_of(config)
    if content.party not in parties:
        raise ConfigError(INVITATION, content.party, f"is not one of its parties: {', '.join(parties)}")
    return config
