"""Log files rotate by size, and follow a rename by logrotate, with and without SIGUSR1."""

import os
import sys
from pathlib import Path

import pytest

from colonnade.drivers.processes import log_file
from colonnade.drivers.processes.log_file import LogFile
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import ConfigError


def numbers(path):
    return [int(line.rpartition("=")[2]) for line in path.read_text().splitlines()]


def test_it_rotates_by_size_and_no_line_is_lost_or_split(tmp_path):
    path = tmp_path / "server.log"
    log = Log("server", stream=LogFile(path, 1000, 3).check())
    for number in range(60):
        log.info("line", number=number)
    files = [path, *(Path(f"{path}.{number}") for number in (1, 2, 3))]
    assert sorted(tmp_path.iterdir()) == sorted(files) and all(file.stat().st_size < 1100 for file in files)
    found = [number for file in reversed(files) for number in numbers(file)]
    assert found == list(range(found[0], 60))


def test_with_none_to_keep_the_file_starts_again(tmp_path):
    log = Log("server", stream=LogFile(tmp_path / "log", 200, 0))
    for number in range(20):
        log.info("line", number=number)
    assert [path.name for path in tmp_path.iterdir()] == ["log"] and numbers(tmp_path / "log")[-1] == 19


@pytest.mark.parametrize("told", [True, False])
def test_a_file_that_was_renamed_is_opened_again(told, tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "LOOK_S", 1e9 if told else 0.0)  # without a signal: at the next look
    stream = LogFile(tmp_path / "log", 10**6, 3)
    log = Log("server", stream=stream)
    log.info("line", number=1)
    (tmp_path / "log").rename(tmp_path / "log-20261117")
    if told:
        stream.reopen()
    log.info("line", number=2)
    assert numbers(tmp_path / "log-20261117") == [1] and numbers(tmp_path / "log") == [2]


def test_a_full_disk_sends_the_lines_to_the_error_stream(tmp_path, monkeypatch, capsys):
    log = Log("server", stream=LogFile(tmp_path / "log", 10**6, 3).check())

    def full(number, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.info("line", number=1)
    assert "number=1" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"--log-file = .*cannot be written: No such file or directory"):
        LogFile(tmp_path / "none" / "log", 1, 1).check()
