"""What replaces the missing functions on Windows, tried on Linux without those functions."""

import asyncio
import fcntl
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest

from colonnade.config.schema import Config
from colonnade.deployment.align_all import AlignAll
from colonnade.deployment.own_side import stop_on_signals
from colonnade.deployment.process import run_process
from colonnade.deployment.up import FederationUp
from colonnade.drivers import files
from colonnade.protocol.errors import ColonnadeError


@pytest.fixture
def windows(monkeypatch, tmp_path):
    """A second copy of the module, imported on "win32": no `preadv`, `pwritev` or `fcntl`, folders cannot be opened."""
    plain_open = os.open

    def open_file(path, flags, *rest, **more):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        assert tmp_path not in Path(path).parents or flags & 1 << 30, "without O_BINARY line ends are changed"
        return plain_open(path, flags & ~(1 << 30), *rest, **more)

    def locking(file, _mode, count):
        # The lock belongs to this descriptor, as on Windows: closing another one of the same file does not release it.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_CUR, 0, count, 0))

    fake = types.ModuleType("msvcrt")
    fake.LK_NBLCK, fake.locking = 2, locking
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(os, "O_BINARY", 1 << 30, raising=False)
    monkeypatch.setattr(os, "open", open_file)
    for name in ("preadv", "pwritev", "pread", "pwrite"):
        monkeypatch.delattr(os, name)
    spec = importlib.util.spec_from_file_location("files_on_windows", files.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reads_and_writes_at_a_place(windows, tmp_path):
    file = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT | windows.BINARY)
    assert windows.write_at(file, [b"ab\n", memoryview(b"cde")], 4) == 6
    assert windows.write_at(file, [b"xy"], 0) == 2
    first, second = bytearray(3), bytearray(9)
    assert windows.read_at(file, [memoryview(first), memoryview(second)], 4) == 6
    assert (bytes(first), bytes(second)) == (b"ab\n", b"cde" + bytes(6))
    os.close(file)


def test_replaces_a_file_without_opening_its_folder(windows, tmp_path):
    for content in (b"one\n", b"two\r\n"):
        windows.replace_file(tmp_path / "state", [content])
        assert (tmp_path / "state").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_lock_keeps_other_processes_out_and_the_content_readable(windows, tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"line\n")
    held = windows.lock_file(path)
    assert path.read_bytes() == b"line\n"
    script = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", script, str(path), str(place)], capture_output=True, check=False
        ).returncode
        for place in (windows.LOCKED_BYTE, 0)
    ]
    assert results == [1, 0]  # one byte is locked, far behind the data
    os.close(held)


def test_signals_stop_a_role_on_the_loop_of_asyncio(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    before = signal.getsignal(signal.SIGTERM)

    async def work() -> str:
        stopped = asyncio.Event()
        monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", None)
        stop_on_signals(types.SimpleNamespace(stop=stopped.set))
        signal.raise_signal(signal.SIGTERM)
        await stopped.wait()
        return "stopped"

    assert run_process(work(), None) == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_federation_in_one_place_is_refused_with_what_to_do_instead(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    for start in (lambda: FederationUp.refuse(Config(), ()), lambda: AlignAll([])):
        with pytest.raises(ColonnadeError, match=r"start each role in its own terminal, or use WSL"):
            start()


@pytest.mark.slow
def test_nothing_that_windows_lacks_is_used_unconditionally(tmp_path):
    """The standard library's type stubs know what each platform has."""
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path), "src"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
