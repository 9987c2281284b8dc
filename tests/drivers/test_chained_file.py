"""Chained files: edits are found, torn lines are closed off, and the chain goes on over files and processes."""

import json
import os
import subprocess
import sys

import pytest

from colonnade.drivers.chained_file import ChainBroken, ChainedFile, generations, read_lines, verify
from colonnade.protocol.chain import START, chained, follows, parse_receipt, receipt_of


def written(path, count=5, most_bytes=10**6, keep=3):
    file = ChainedFile(path, most_bytes, keep)
    for number in range(count):
        file.append({"event": "joined", "fields": {"peer": f"p{number}"}})
    file.close()
    return path


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


def test_a_line_follows_only_its_own_predecessor():
    first = chained(0, START, {"a": 1})
    second = chained(1, first["hash"], {"a": 2})
    assert (
        follows(second, 1, first["hash"]) and not follows(second, 1, START) and not follows(second | {"a": 3}, 1, "x")
    )
    assert parse_receipt(receipt_of(second)) == (1, second["hash"])
    assert parse_receipt("1:short") is None and not follows(None, 0, START) and not follows({}, 0, START)


def test_a_whole_file_is_verified_and_its_head_is_named(tmp_path):
    path = written(tmp_path / "audit.jsonl")
    found = verify(generations(path), wanted="")
    assert found.lines == 5 and found.notes == []
    assert found.head == receipt_of(json.loads(lines_of(path)[-1]))
    assert verify([path], wanted=receipt_of(json.loads(lines_of(path)[2]))).holds
    assert not verify([path], wanted=f"2:{'0' * 64}").holds
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda lines: [*lines[:2], lines[2].replace("p2", "pX"), *lines[3:]], 3),
        (lambda lines: [*lines[:1], *lines[2:]], 2),
        (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], 3),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [lines[0], "{}\n", *lines[1:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:4], lines[4].replace("p4", "pX")], 5),
    ],
)
def test_every_edit_is_found_at_its_line(change, place, tmp_path):
    path = written(tmp_path / "audit.jsonl")
    path.write_text("".join(change(lines_of(path))))
    with pytest.raises(ChainBroken) as error:
        verify([path])
    assert error.value.place == place


@pytest.mark.parametrize("torn", [b'{"n": 5, "event": "le', b"\0" * 100, b'{"n": 5}\n{"n', b"nonsense\n"])
def test_a_torn_end_is_closed_off_by_a_line_that_says_so(torn, tmp_path):
    path = written(tmp_path / "audit.jsonl")
    with path.open("ab") as file:
        file.write(torn)
    written(path, 1)
    found = verify([path])
    assert found.lines == 7 and found.notes == []
    closing = [line for line in read_lines([path]) if "torn" in line]
    assert [line["event"] for line in closing] == ["torn line"] and closing[0]["torn"]["bytes"] >= len(torn)
    path.write_bytes(path.read_bytes().replace(torn, torn[:-1] + b"X" if torn[-1:] != b"\n" else b"NONSENSE\n"))
    with pytest.raises(ChainBroken, match="line 6"):
        verify([path])


def test_a_torn_end_before_the_next_start_is_a_note(tmp_path):
    path = written(tmp_path / "audit.jsonl")
    with path.open("ab") as file:
        file.write(b'{"n": 5, "ev')
    assert "torn" in verify([path]).notes[0]


def test_the_chain_goes_on_over_files_and_old_ones_are_removed(tmp_path):
    path = written(tmp_path / "audit.jsonl", 40, most_bytes=1000, keep=2)
    files = generations(path)
    assert [file.name for file in files] == ["audit.2.jsonl", "audit.1.jsonl", "audit.jsonl"]
    found = verify(files)
    assert found.head.startswith("39:") and "older files were removed" in found.notes[0]
    assert all(file.stat().st_size < 1300 for file in files)
    files[1].unlink()
    assert generations(path) == [files[0], files[2]]
    with pytest.raises(ChainBroken) as error:
        verify(generations(path))
    assert error.value.path == path and error.value.place == 1


def test_a_restart_between_two_files_continues_the_chain(tmp_path):
    path = written(tmp_path / "audit.jsonl")
    path.rename(tmp_path / "audit.1.jsonl")  # killed after the rename
    written(path, 2)
    assert verify(generations(path)).lines == 7


def test_two_processes_write_one_chain(tmp_path):
    path = tmp_path / "audit.jsonl"
    code = (
        "import sys; from pathlib import Path; from colonnade.drivers.chained_file import ChainedFile\n"
        "file = ChainedFile(Path(sys.argv[1]), 2000, 100)\n"
        "for number in range(100): file.append({'event': 'x', 'fields': {}})\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert verify(generations(path)).lines == 300


def test_a_full_disk_raises_and_the_next_line_closes_off_the_part(tmp_path, monkeypatch):
    path = tmp_path / "audit.jsonl"
    file = ChainedFile(path, 10**6, 1)
    file.append({"event": "a", "fields": {}})
    real = os.write
    monkeypatch.setattr(os, "write", lambda number, data: real(number, data[:9]))
    with pytest.raises(OSError, match="only a part"):
        file.append({"event": "b", "fields": {}})
    monkeypatch.setattr(os, "write", real)
    file.append({"event": "c", "fields": {}})
    file.close()
    assert [line.get("event") for line in read_lines([path])] == ["a", "torn line", "c"]
    assert verify([path]).lines == 3


def test_a_file_of_an_earlier_release_is_set_aside_with_a_note(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('{"time": "2026-11-16T21:40:03Z", "ids": 5}\n' * 3)
    written(path, 2)
    found = verify(generations(path))
    assert found.lines == 2 and "holds no chain" in found.notes[0]
    assert len(list(read_lines(generations(path)))) == 5
