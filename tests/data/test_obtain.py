"""Known data sets: the data folder gets only files with the right digest, packed as the readers expect."""

import bz2
import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data import load
from colonnade.data.catalogue import CATALOGUE, File, Known, find_known
from colonnade.data.obtain import digest_of_members, download, install, instructions, is_there, members_of
from colonnade.data.sources import EMBEDDED, FOLDERS, NAMED
from colonnade.protocol.errors import ConfigError, DataError

ROWS = b"-1 1:1\n+1 2:1\n" * 20


def known(*files):
    return Known("rows", "rows", "2 x 2", "CC0", "https://example.org/rows", files)


def file(name, content=ROWS, **more):
    return File(name, hashlib.sha256(content).hexdigest(), len(content), **more)


@pytest.mark.parametrize("packing", ["", ".gz", ".bz2", ".zip"])
def test_any_packing_is_taken_and_the_readers_get_theirs(packing, tmp_path):
    rows, there = known(file("rows.gz"), file("rows.t.gz", ROWS[:14])), tmp_path / "downloads"
    (there / "deeper").mkdir(parents=True)
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}.get(packing, bytes)
    if packing == ".zip":
        there = tmp_path / "downloads.zip"
        with zipfile.ZipFile(there, "w") as archive:
            archive.writestr("deeper/rows", ROWS)
            archive.writestr("rows.t", ROWS[:14])
    else:
        (there / "deeper" / f"rows{packing}").write_bytes(pack(ROWS))
        (there / f"rows.t{packing}").write_bytes(pack(ROWS[:14]))
    said = []
    place = install(rows, there, tmp_path / "data", said.append)
    assert gzip.decompress((place / "rows.gz").read_bytes()) == ROWS and is_there(rows, tmp_path / "data")
    assert load("rows.gz", dir=place, format="libsvm", test="rows.t.gz").test_rows == 2
    assert len(said) == 2 and all("is right" in line for line in said)


def test_an_archive_is_known_by_what_it_holds(tmp_path):
    members = {"1.txt": b"Time,Parameter,Value\n", "2.txt": b"more\n"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in sorted(members, reverse=True):
            info = tarfile.TarInfo(f"set-a/{name}")
            info.size = len(members[name])
            tar.addfile(info, io.BytesIO(members[name]))
    (tmp_path / "set-a.tar.gz").write_bytes(packed.getvalue())
    stays = known(File("set-a.tar.xz", digest_of_members(members), 26))
    place = install(stays, tmp_path / "set-a.tar.gz", tmp_path / "data", lambda line: None)
    with tarfile.open(place / "set-a.tar.xz", "r|xz") as tar:
        assert tar.next().name == "set-a/2.txt"
    assert members_of(gzip.decompress(packed.getvalue())) == members


def test_what_is_wrong_is_not_kept(tmp_path):
    rows = known(file("rows.gz"), file("more.gz"))
    with pytest.raises(DataError, match="there is no such file or folder"):
        install(rows, tmp_path / "none", tmp_path, print)
    with pytest.raises(DataError, match="there is no rows, plain or packed"):
        install(rows, tmp_path, tmp_path, print)
    (tmp_path / "rows").write_bytes(ROWS)
    (tmp_path / "more").write_bytes(ROWS + b"0")
    with pytest.raises(DataError, match=r"more.gz: wanted \w{16}…, but .*more has the content digest"):
        install(rows, tmp_path, tmp_path / "data", print)
    (tmp_path / "more").write_bytes(gzip.compress(ROWS)[:-9])
    with pytest.raises(DataError, match="more: cannot be unpacked"):
        install(rows, tmp_path, tmp_path / "data", print)
    assert not (tmp_path / "data").exists()


def test_a_download_is_checked_too(tmp_path):
    (tmp_path / "mirror").mkdir()
    mirror = (tmp_path / "mirror" / "rows.gz").as_uri()
    rows = known(file("rows.gz", urls=(mirror,)))
    with pytest.raises(DataError, match="cannot be fetched"):
        download(rows, tmp_path / "data", print)
    (tmp_path / "mirror" / "rows.gz").write_bytes(b"<html>moved</html>")
    with pytest.raises(DataError, match="the download was discarded"):
        download(rows, tmp_path / "data", print)
    assert not (tmp_path / "data").exists()
    (tmp_path / "mirror" / "rows.gz").write_bytes(ROWS)
    for base in (None, (tmp_path / "mirror").as_uri()):
        place = download(rows, tmp_path / "data", lambda line: None, base)
        assert gzip.decompress((place / "rows.gz").read_bytes()) == ROWS
    with pytest.raises(DataError, match="require an account"):
        download(known(file("rows.gz")), tmp_path / "data", print)


def test_every_named_source_is_in_the_catalogue():
    assert {*EMBEDDED, *NAMED, *FOLDERS} | {"uci-credit-card"} == set(CATALOGUE)
    assert all(one.licence and one.page.startswith("http") for one in CATALOGUE.values())
    digests = [one.sha256 for known in CATALOGUE.values() for one in known.files]
    assert len(set(digests)) == len(digests) and all(len(digest) == 64 for digest in digests)
    with pytest.raises(ConfigError, match="unknown .did you mean 'mnist'"):
        find_known("minst")


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "200"}).output
    assert all(name in listed for name in CATALOGUE) and "CC BY-SA 3.0" in listed
    built_in = CliRunner().invoke(app, ["data", "get", "wine"]).output
    assert "No download is needed" in built_in and "colonnade run --set data.source=wine" in built_in
    (tmp_path / "a9a").write_bytes(b"-1 1:1\n")
    refused = CliRunner().invoke(app, ["data", "get", "a9a", "--from", "a9a"])
    assert refused.exit_code == 1 and "download it again" in refused.output
    for line in instructions(CATALOGUE["a9a"], tmp_path / "data")[:3]:
        assert line in refused.output
