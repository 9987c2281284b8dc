"""The list of members, `members.toml`: which certificates each name may show, by SHA-256 fingerprint.

    [members]
    server = "3f…"              the member's certificate
    bank = ["9a…", "c4…"]       a renewed one, and the one before it, which counts until it expires
    [revoked]
    shop = ["77…"]              never accepted again

Each member checks this list when it connects. No state holds a fingerprint, so a renewal strands no trained model.
"""

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from colonnade.drivers.processes.certificate_files import read
from colonnade.drivers.processes.identity import FINGERPRINT, NAME, SERVER
from colonnade.drivers.processes.signing import short_code
from colonnade.protocol.errors import ConfigError

__all__ = ["Change", "Members", "list_code", "members_in", "members_toml", "read_members"]

KEY = "network.members"
MOST_LISTED = 2  # certificates of one member: the newest and the one before
_HEADER = (
    "# The members of the federation: name = SHA-256 fingerprint of the certificate.\n"
    "# Two fingerprints: a renewed certificate, and the one before it.\n"
)

Prints = Mapping[str, "str | Iterable[str]"]


class Change(NamedTuple):
    """What differs between two lists, by name."""

    added: list[str]
    removed: list[str]
    renewed: list[str]

    def __bool__(self) -> bool:
        return any(self)


class Members(Mapping[str, str]):
    """Maps each member to the fingerprint of its newest certificate. An empty list accepts every certificate."""

    def __init__(self, listed: Prints, revoked: Prints | None = None) -> None:
        self._listed, self.revoked = _tuples(listed), _tuples(revoked or {})

    @classmethod
    def of(cls, listed: Mapping[str, str]) -> "Members":
        """The list itself, or one that was made of plain fingerprints."""
        return listed if isinstance(listed, cls) else cls(listed)

    def __getitem__(self, name: str) -> str:
        return self._listed[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def all_of(self, name: str) -> tuple[str, ...]:
        """The fingerprints that this member may show, the newest first."""
        return self._listed.get(name, ())

    def why_not(self, name: str, shown: str) -> str | None:
        """Why a certificate with this fingerprint is not accepted for this name; None if it is."""
        if not self or shown in self.all_of(name):
            return None
        if shown in self.revoked.get(name, ()) or (name in self.revoked and name not in self):
            return f"the certificate of {name!r} was revoked"
        if name not in self:
            return f"{name!r} is not on the list of members"
        return f"the certificate of {name!r} is not the one in the list of members"

    def may_change(self, name: str, shown: str) -> bool:
        """Whether a newer list may accept this certificate: the name is listed, and the certificate is not revoked."""
        return name in self and shown not in self.revoked.get(name, ())

    def missing(self, parties: Iterable[str]) -> list[str]:
        """Which of these parties and the server are not on the list, although they were not revoked."""
        absent = [name for name in (*parties, SERVER) if name not in self]
        return [name for name in absent if name == SERVER or name not in self.revoked]

    def only(self, names: Collection[str]) -> "Members":
        """The part of the list about these names."""
        kept = ({name: prints for name, prints in of.items() if name in names} for of in (self._listed, self.revoked))
        return Members(*kept)

    def renewed(self, name: str, fingerprint: str, before: Iterable[str] = ()) -> "Members":
        """The list with this certificate, and those `before` it, as the member's."""
        return Members(self._listed | {name: (fingerprint, *before)}, self.revoked)

    def without(self, name: str, *also: str) -> "Members":
        """The list without this member. All its certificates, and `also` these, count as revoked."""
        listed = {other: prints for other, prints in self._listed.items() if other != name}
        revoked = dict.fromkeys((*self.revoked.get(name, ()), *self.all_of(name), *also))
        return Members(listed, self.revoked | {name: tuple(revoked)})

    def change_to(self, after: "Members") -> Change:
        both = [name for name in self if name in after]
        return Change(
            [name for name in after if name not in self],
            [name for name in self if name not in after],
            [name for name in both if self.all_of(name) != after.all_of(name)],
        )

    def tables(self) -> dict[str, Any]:
        """The content of the file."""
        listed = {name: prints[0] if len(prints) == 1 else list(prints) for name, prints in self._listed.items()}
        revoked = {name: list(prints) for name, prints in self.revoked.items()}
        return {"members": listed} | ({"revoked": revoked} if revoked else {})


def _tuples(prints: Prints) -> dict[str, tuple[str, ...]]:
    return {name: (one,) if isinstance(one, str) else tuple(one) for name, one in prints.items()}


def members_toml(members: Mapping[str, str]) -> bytes:
    return (_HEADER + tomli_w.dumps(Members.of(members).tables())).encode()


def list_code(members: Members) -> str:
    """Digits for two people to compare by telephone: their lists have the same content, in any order."""
    listed, revoked = members.tables()["members"], {name: sorted(prints) for name, prints in members.revoked.items()}
    return short_code(json.dumps([listed, revoked], sort_keys=True).encode())


def read_members(path: Path) -> Members:
    """The list in a file; raises ConfigError."""
    try:
        tables = tomllib.loads(read(KEY, path).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(KEY, str(path), f"is not TOML: {error}") from error
    return members_in(tables, path)


def members_in(tables: Mapping[str, Any], path: Path) -> Members:
    """The list in the tables of a file; raises ConfigError."""
    listed, revoked = tables.get("members"), tables.get("revoked", {})
    if not {"members"} <= set(tables) <= {"members", "revoked"} or not (
        isinstance(listed, dict) and isinstance(revoked, dict)
    ):
        raise ConfigError(KEY, str(path), "must hold a table [members] of name = fingerprint, and perhaps [revoked]")
    for name, value in (*listed.items(), *revoked.items()):
        _check_entry(path, name, value)
    _check_no_repeats(path, listed, revoked)
    return Members(listed, revoked)


def _check_entry(path: Path, name: str, value: Any) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(KEY, str(path), f"{name!r} is not a member's name")
    prints = value if isinstance(value, list) else [value]
    if not prints or not all(isinstance(one, str) and FINGERPRINT.fullmatch(one) for one in prints):
        raise ConfigError(
            KEY, str(path), f"{name}: must be 64 lower-case hex digits, as `colonnade certs show` prints them"
        )


def _check_no_repeats(path: Path, listed: Prints, revoked: Prints) -> None:
    members = _tuples(listed)
    for name, prints in members.items():
        if len(prints) > MOST_LISTED:
            raise ConfigError(KEY, str(path), f"{name}: has {len(prints)} fingerprints, at most {MOST_LISTED}")
    every = [one for prints in members.values() for one in prints]
    if len(set(every)) < len(every):
        raise ConfigError(KEY, str(path), "two members have the same fingerprint; each needs its own certificate")
    banned = {one: name for name, prints in _tuples(revoked).items() for one in prints}
    for one in every:
        if one in banned:
            raise ConfigError(
                KEY,
                str(path),
                f"{one[:16]}…, the revoked certificate of {banned[one]}, is in [members] again; sign a new one with "
                "`colonnade certs sign`",
            )
