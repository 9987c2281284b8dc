"""Put a known data set into the data folder: from a file, a folder, an archive or an address, checked by its digest.

Only content with the digest of the catalogue is written.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from colonnade.data.catalogue import File, Known
from colonnade.data.formats import GZIP
from colonnade.protocol.errors import DataError

__all__ = ["digest_of", "digest_of_members", "download", "install", "instructions", "is_there", "packed_in"]

TIMEOUT_S = 30.0
TAR = ".tar.xz"
SLACK = 1 << 24  # bytes that an archive may have beside its files
_OPEN: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    GZIP: lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)

Say = Callable[[str], None]


def unpacked(file: File, content: bytes) -> bytes:
    """Remove gzip, bzip2 or xz packing; the result is cut off if it is much larger than the file should be."""
    for magic, open_packed in _OPEN.items():
        if content.startswith(magic):
            with open_packed(io.BytesIO(content)) as packed:
                return packed.read(2 * file.size + SLACK)
    return content


def digest_of(file: File, content: bytes) -> str:
    """Return the digest of the unpacked content, whatever packing `content` has."""
    if file.name.endswith(TAR):
        return digest_of_members(members_of(unpacked(file, content)))
    return hashlib.sha256(unpacked(file, content)).hexdigest()


def members_of(archive: bytes) -> dict[str, bytes]:
    """Return the text files of a tar archive, by their names without folders."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                found[member.name.rpartition("/")[2]] = file.read()
    return found


def digest_of_members(members: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of name, length and content of each file, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(members):
        digest.update(f"{name}\n{len(members[name])}\n".encode())
        digest.update(members[name])
    return digest.hexdigest()


def is_there(known: Known, folder: Path) -> bool:
    """Whether all files of the data set are in their folder; their content is not checked."""
    return known.embedded or all((folder / known.name / file.name).is_file() for file in known.files)


def install(known: Known, source: Path, folder: Path, say: Say) -> Path:
    """Check the files of a data set in `source`, and put them into their folder.

    `source` is a folder, a .zip, or the only file of the set. All files are checked before the first is written.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file or folder")
    checked = {file.name: _checked(known, file, source) for file in known.files}
    place = folder / known.name
    place.mkdir(parents=True, exist_ok=True)
    for file in known.files:
        _write(place / file.name, packed_in(file, checked[file.name]))
        say(f"{place / file.name}: sha256 of its content is right ({file.sha256[:16]}…)")
    return place


def packed_in(file: File, content: bytes) -> bytes:
    """Return the content with the packing that the readers expect: gzip, .tar.xz or none.

    The bytes are the same at every call.
    """
    if file.name.endswith(TAR):
        packed = content if content.startswith(b"\xfd7zXZ") else lzma.compress(unpacked(file, content), preset=6)
    elif file.name.endswith(".gz"):
        packed = content if content.startswith(GZIP) else gzip.compress(unpacked(file, content), mtime=0)
    else:
        packed = unpacked(file, content)
    return packed


def _checked(known: Known, file: File, source: Path) -> bytes:
    tried = []
    for name, content in _candidates(file, source, only=len(known.files) == 1):
        try:
            found = digest_of(file, content)
        except _DAMAGED as error:
            raise DataError(f"{name}: cannot be unpacked: {error}") from error
        if found == file.sha256:
            return content
        tried.append(f"{name} has the content digest {found[:16]}…")
    if tried:
        raise DataError(f"{file.name}: wanted {file.sha256[:16]}…, but {'; '.join(tried)}: download it again")
    raise DataError(f"{source}: there is no {file.bare}, plain or packed (.gz, .bz2, .xz)")


def _candidates(file: File, source: Path, only: bool) -> Iterator[tuple[str, bytes]]:
    """Yield what may be the file, by its name in a folder or .zip, with any packing."""
    if source.is_dir():
        for path in sorted(source.rglob(f"{file.bare}*")):
            if path.is_file() and _means(path.name, file):
                yield str(path), path.read_bytes()
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for member in archive.namelist():
                if _means(member.rpartition("/")[2], file):
                    yield f"{source}: {member}", archive.read(member)
    elif only or _means(source.name, file):
        yield str(source), source.read_bytes()


def _means(name: str, file: File) -> bool:
    rest = name.removeprefix(file.bare) if name.startswith(file.bare) else None
    archives = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
    return rest in (archives if file.name.endswith(TAR) else ("", ".gz", ".bz2", ".xz"))


def download(known: Known, folder: Path, say: Say, base: str | None = None) -> Path:
    """Fetch all files from their owners, or from a mirror that has them under `base`.

    A file is kept only after its check.
    """
    place = folder / known.name
    for file in known.files:
        urls = file.urls if base is None else (f"{base.rstrip('/')}/{file.name}",)
        if not urls:
            raise DataError(f"{file.name}: its owners require an account, so this command cannot fetch it")
        say(f"Fetching {urls[0]}")
        content = _fetched(urls[0], file)
        place.mkdir(parents=True, exist_ok=True)
        _write(place / file.name, packed_in(file, content))
        say(f"{place / file.name}: sha256 of its content is right ({file.sha256[:16]}…)")
    return place


def _fetched(url: str, file: File) -> bytes:
    most = 2 * file.size + (1 << 20)  # an error page, or another large answer, is cut off
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read(most)
        found = digest_of(file, content)
    except (urllib.error.URLError, ValueError, *_DAMAGED) as error:
        raise DataError(f"{url}: cannot be fetched: {getattr(error, 'reason', error)}") from error
    if found != file.sha256:
        raise DataError(
            f"{url}: has the content digest {found[:16]}…, not {file.sha256[:16]}…: the download was discarded"
        )
    return content


def instructions(known: Known, folder: Path) -> list[str]:
    """Return the lines that tell a user what to download and what to type."""
    lines = [f"{known.name} ({known.licence}): {known.page}"]
    if known.advice:
        lines.append(f"  {known.advice}")
    lines.append("  download, plain or packed:")
    lines += [f"    {file.bare}  ({file.size:,} bytes unpacked, sha256 {file.sha256})" for file in known.files]
    lines.append(f"  then type: colonnade data get {known.name} --from FOLDER --dir {folder}")
    return lines


def _write(path: Path, content: bytes) -> None:
    """Write with one rename, so that no partial file is left."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
