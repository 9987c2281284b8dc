"""The version of every file: what this release writes, and what it still reads.

A file of one release is read by the next release, and by this one as long as there is a way from its version to the
newest. To change a format: add the next version to `since` with the release that writes it, and give the function that
makes the new content of the old one (`upgrades`). Contents are plain dicts. A binary format without such a dict (a
journal, an undo log) keeps a reader for each version instead and lists the versions it can read (`also`).

A field with a default needs no new version: a state that lacks it gets the default (see `saved`). A file without a
version is of version 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colonnade import __version__
from colonnade.protocol.errors import CheckpointError

__all__ = [
    "ALIGNMENT",
    "JOURNAL",
    "LEDGER",
    "MEANS",
    "MEMBERS",
    "NODE",
    "PARTY_SHARE",
    "RUN",
    "SERVER_SHARE",
    "TOKENS",
    "UNDO",
    "Format",
    "stamp",
]

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
NEW_RUN = "start a new run with another --out"


@dataclass(frozen=True)
class Format:
    """One kind of file. `since` maps each version to the first release that wrote it; the last one is written now."""

    what: str
    since: Mapping[int, str]
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)  # from this version to the next
    also: tuple[int, ...] = ()  # earlier versions that a reader of their own reads
    remedy: str = NEW_RUN  # what else to do with a file that is too old

    @property
    def newest(self) -> int:
        return max(self.since)

    @property
    def readable(self) -> list[int]:
        """The versions that this release reads, the oldest first."""
        found = [self.newest]
        while found[0] - 1 in self.upgrades or found[0] - 1 in self.also:
            found.insert(0, found[0] - 1)
        return found

    def check(self, version: object, where: object, release: object = None) -> None:
        """Raise CheckpointError, with the release that can read the file `where`, unless this release can."""
        if version in self.readable and not isinstance(version, bool):
            return
        reads = " or ".join(map(str, self.readable))
        about = f"{where}: {self.what} of format {version!r}, and release {__version__} reads format {reads}"
        if not isinstance(version, int) or isinstance(version, bool):
            raise CheckpointError(f"{about}: not a file of Colonnade, or a damaged one; {self.remedy}")
        name = release if isinstance(release, str) else self.since.get(version)
        which = "the release that wrote it" if name is None else f"release {name}, which wrote it"
        if version > self.newest:
            raise CheckpointError(f"{about}: install {which}")
        raise CheckpointError(f"{about}: continue with {which}, or {self.remedy}")

    def read(self, content: Any, where: object, default: int | None = None) -> dict[str, Any]:
        """The content as this release writes it, from its key "format"; raises CheckpointError as `check` does."""
        if not isinstance(content, dict):
            raise CheckpointError(f"{where}: not {self.what}; {self.remedy}")
        found: dict[str, Any] = content
        version: Any = found.get("format", default)
        if default is not None and not isinstance(version, int):  # a file without a version may use the word otherwise
            version = default
        self.check(version, where, found.get("release"))
        while version != self.newest:
            found = self.upgrades[version](found) | {"format": version + 1}
            version += 1
        return found


def stamp(format: Format) -> dict[str, Any]:
    """What a file of this format says about itself."""
    return {"format": format.newest, "release": __version__}


NODE = Format("the checkpoint of a node", {6: "0.1"})
JOURNAL = Format("a journal", {5: "0.1", 6: "0.2"}, also=(5,))
UNDO = Format("an undo log of a table", {2: "0.1"})
RUN = Format("the checkpoint of a run", {7: "0.1"})
PARTY_SHARE = Format("a party's share", {2: "0.1"}, remedy="make the share again")
SERVER_SHARE = Format("a server's share", {2: "0.1"}, remedy="make the share again")
ALIGNMENT = Format("an alignment", {1: "0.1"}, remedy="run colonnade align again")
LEDGER = Format("a privacy ledger", {1: "0.1"})
TOKENS = Format("a list of tokens", {1: "0.1"}, remedy="make new tokens")
MEMBERS = Format("a list of members", {1: "0.1"}, remedy="write it again with colonnade certs sign")
MEANS = Format(
    "the means for predictions",
    {1: "0.1", 2: "0.2"},
    {1: lambda means: {"means": means}},  # of each party, under its name
    remedy="remove it and restart the parties, which send their means again",
)
