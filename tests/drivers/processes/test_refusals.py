"""Which guests a running server refuses, how often it logs that, and that the others keep training meanwhile.

The server and the honest parties are real processes on loopback. Each kind of unwelcome guest tries several times.
"""

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import tomli_w

from colonnade.config.schema import from_dict, read_toml
from colonnade.data import load_party_share, save_share
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_training import PartyTraining, training_party
from colonnade.deployment.up import FederationUp, prepare_up
from colonnade.drivers.processes import certificates, service
from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log, Once
from colonnade.drivers.processes.wire import (
    PROTOCOL,
    Hello,
    Kind,
    Position,
    Refusal,
    control,
    open_envelope,
    read_control,
)
from colonnade.protocol.errors import ColonnadeError, RemoteProtocolError
from colonnade.testing.grpc_client import open_channel

from ...starting import Popen, run, starter

TRIES = 5
ABSENT = range(2, 10)  # one party's refusals are answered more and more slowly, so each test has its own party
WAIT_S = 60.0
NOW = datetime.now(UTC)
LIMITS = Limits()


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)


class Federation:
    """A server, two parties in training, and other parties that are on the list but absent."""

    def __init__(self, folder: Path) -> None:
        tables = {
            "data": {"parties": 2 + len(ABSENT)},
            "train": {"seconds": 3600.0, "eval_every": 500, "batch_size": 32},
            "protocol": {"name": "vafl", "table": "zeros", "pause_s": 0.01},
            "network": {"heartbeat_s": 0.5, "lost_after_s": 30.0},
        }
        self.up: FederationUp = prepare_up(from_dict(tables), folder / "run")
        self.certificates = self.up.nodes / "certificates"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._certify()

    def start(self) -> None:
        """Wait until the federation trains."""
        self._start_server()
        for name in self.parties[:2]:
            self.up.write_config(name, self.address)
            self._start(name, ["join", "--party", name])
        self.goes_on()

    @property
    def parties(self) -> tuple[str, ...]:
        return self.up.parties

    def _certify(self) -> None:
        """With an authority whose key is kept, so that it can sign further certificates."""
        shutil.rmtree(self.certificates)
        certificates.init(self.certificates, now=NOW - timedelta(days=30))
        for name in self.parties:
            certificates.sign(certificates.request(name, self.certificates), self.certificates)

    def _start_server(self) -> None:
        self._start("server", ["serve"])
        address = self.up.nodes / "server" / "run" / "address"
        until(address.exists, "the server's start")
        self.address = address.read_text()

    def _start(self, name: str, verb: list[str]) -> None:
        folder = self.up.nodes / name
        command = [sys.executable, "-m", "colonnade", verb[0], str(folder / "config.toml"), *verb[1:]]
        with (folder / "log.jsonl").open("ab") as log:
            self.processes[name] = Popen(
                [*command, "--out", str(folder / "run"), "--log-json", "--parent", str(starter().pid)],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def log(self) -> list[dict[str, Any]]:
        text = (self.up.nodes / "server" / "log.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def refused(self) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["event"] == "refused"]

    def identity(self, name: str, folder: Path | None = None) -> Identity:
        folder = folder or self.certificates
        return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", self.certificates / "ca.pem")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            asyncio.run(ask_status(self.identity("server"), self.address, LIMITS, WAIT_S))
        )
        return found

    def goes_on(self) -> None:
        """The server's updates grow, and both honest parties take part in them."""
        before: dict[str, Any] = {}

        def moved() -> bool:
            assert all(process.poll() is None for process in self.processes.values())
            now = self.status()
            if not before:
                before.update(now)
            pairs = list(zip(before["parties"], now["parties"], strict=True))[:2]
            both = all(now["bytes_up"] > then["bytes_up"] and now["state"] == "connected" for then, now in pairs)
            return both and now["updates"] > before["updates"] + 3

        until(moved, "progress")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.processes['server'].pid}/fd").iterdir()))

    def stop(self) -> None:
        for name in (*self.parties[:2], "server"):
            if name in self.processes:
                self.processes[name].send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        found.start()
        yield found
    finally:
        found.stop()
    assert [process.returncode for process in found.processes.values()] == [0, 0, 0]
    said = (found.up.nodes / "server" / "log.jsonl").read_text(encoding="utf-8")
    assert "Traceback" not in said
    assert all("event" in line for line in found.log())


def make_identity(name: str, folder: Path, home: Path, **how: Any) -> Identity:
    """Signed by the authority at `home`, and read without the checks that an honest side makes."""
    folder.mkdir(parents=True, exist_ok=True)
    pem = certificates.sign(certificates.request(name, folder), home, **how)
    return Identity(name, (folder / f"{name}.key").read_bytes(), pem.read_bytes(), (home / "ca.pem").read_bytes())


def knock(address: str, identity: Identity, hello: bytes = b"", tries: int = TRIES) -> str:
    """What the server tells a guest, at every try."""

    async def once() -> str:
        async with open_channel(identity, address, LIMITS) as channel:
            call = channel.stream_stream(f"/{service.SERVICE}/{service.JOIN}")()
            try:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(hello)
                data = await asyncio.wait_for(call.read(), WAIT_S)
                if data is grpc.aio.EOF:
                    return "nothing"
                envelope = open_envelope(data, "server")
                if envelope.kind == Kind.WELCOME:
                    return "WELCOME"
                return read_control(envelope, Kind.REFUSAL, Refusal, "server").cause
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
            finally:
                call.cancel()

    async def until_told() -> str:
        """On a busy machine, a stream may be reset while the guest still writes; then the guest hears nothing."""
        answers = [await once()]
        while answers[-1].startswith("INTERNAL") and len(answers) < 5:
            answers.append(await once())
        return answers[-1]

    async def all_at_once() -> set[str]:
        return set(await asyncio.gather(*(until_told() for _ in range(tries))))

    answers = asyncio.run(all_at_once())
    assert len({answer.partition(":")[0] for answer in answers}) == 1, answers  # TLS words the same cause in many ways
    return answers.pop()


def logged_once(federation: Federation, before: int, cause: str) -> dict[str, Any]:
    """Exactly one new line, with this cause."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in federation.refused()[before:] if cause in line["cause"]]

    until(lines, f"a line about {cause!r}")
    federation.goes_on()  # long enough to see a second line
    new = lines()
    assert len(new) == 1, new
    assert new[0]["level"] == "warning"
    return new[0]


# Guests that are no members


def test_no_certificate(federation: Federation) -> None:
    before = len(federation.refused())

    async def attempt() -> str:
        credentials = grpc.ssl_channel_credentials((federation.certificates / "ca.pem").read_bytes())
        options = [("grpc.ssl_target_name_override", "server"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(federation.address, credentials, options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/{service.SERVICE}/{service.STATUS}")(b"", timeout=WAIT_S)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            return caught.value.details() or ""

    for _ in range(TRIES):
        assert asyncio.run(attempt())
    logged_once(federation, before, "no certificate")


def test_another_authority(federation: Federation, tmp_path: Path) -> None:
    before = len(federation.refused())
    home = tmp_path / "other"
    certificates.init(home)
    name = federation.parties[0]
    stranger = make_identity(name, tmp_path / "stranger", home)
    assert knock(federation.address, stranger).startswith("UNAVAILABLE")  # it does not trust our server either
    trusting = replace(stranger, authority=(federation.certificates / "ca.pem").read_bytes())
    assert knock(federation.address, trusting).startswith("UNAVAILABLE")
    with pytest.raises(ColonnadeError, match="may not accept this certificate"):
        asyncio.run(ask_status(trusting, federation.address, LIMITS))
    logged_once(federation, before, "another authority")


def test_an_expired_certificate(federation: Federation, tmp_path: Path) -> None:
    before = len(federation.refused())
    late = make_identity("late", tmp_path, federation.certificates, days=1, now=NOW - timedelta(days=10))
    assert knock(federation.address, late).startswith("UNAVAILABLE")
    logged_once(federation, before, "expired")


def test_a_valid_certificate_that_is_not_on_the_list(federation: Federation, tmp_path: Path) -> None:
    before = len(federation.refused())
    outsider = make_identity("outsider", tmp_path, federation.certificates)
    assert knock(federation.address, outsider) == "'outsider' is not on the list of parties"
    line = logged_once(federation, before, "not on the list")
    assert line["peer"] == "outsider"
    with pytest.raises(ColonnadeError, match="not a member"):
        asyncio.run(ask_status(outsider, federation.address, LIMITS))


def test_a_member_with_another_certificate_than_the_one_on_the_list(federation: Federation, tmp_path: Path) -> None:
    """The authority may have been tricked into signing twice: the list has only one of them."""
    before = len(federation.refused())
    members = federation.certificates / "members.toml"
    original = members.read_bytes()
    own = federation.certificates / f"{federation.parties[0]}.pem"
    pem = own.read_bytes()
    twin = make_identity(federation.parties[0], tmp_path, federation.certificates, renew=True)
    members.write_bytes(original)
    own.write_bytes(pem)
    assert "not the one in the list of members" in knock(federation.address, twin)
    logged_once(federation, before, "not the one in the list")


def test_a_second_party_of_the_same_name(federation: Federation) -> None:
    before = len(federation.refused())
    name = federation.parties[1]
    twin = federation.identity(name)
    hello = hello_of(federation, name)
    assert knock(federation.address, twin, control(Kind.HELLO, hello)) == f"{name!r} is connected already"
    assert logged_once(federation, before, "connected already")["peer"] == name


def plaintext(address: str, data: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as guest:
        guest.sendall(data)
        guest.settimeout(WAIT_S)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := guest.recv(4096):
                answer += part
        return answer


def test_a_guest_without_tls(federation: Federation) -> None:
    before = len(federation.refused())
    for _ in range(TRIES):
        plaintext(federation.address, b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        plaintext(federation.address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100))
        plaintext(federation.address, b"\xde\xad\xbe\xef" * 64)

    async def insecure() -> None:
        async with grpc.aio.insecure_channel(federation.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{service.SERVICE}/{service.STATUS}")(b"", timeout=WAIT_S)

    for _ in range(TRIES):
        asyncio.run(insecure())
    logged_once(federation, before, "does not speak TLS")


# Members that disagree with the server


def hello_of(federation: Federation, name: str, **changes: Any) -> Hello:
    process = party_of(federation, name)
    hello = process.application.hello(1, Position(0, 0, 0, 0))
    return Hello(**({field: getattr(hello, field) for field in hello.__struct_fields__} | changes))


def party_of(federation: Federation, name: str, **settings: Any) -> PartyHost[PartyTraining]:
    if name in federation.parties[2:]:
        federation.up.write_config(name, federation.address)
    folder = federation.up.nodes / name
    tables = read_toml(folder / "config.toml")
    for key, value in settings.items():
        table, _, field = key.partition("_")
        tables[table][field] = value
    return training_party(from_dict(tables), name, folder / "run", Log(name, stream=io.StringIO()))


@pytest.mark.parametrize(
    ("index", "changes", "words"),
    [
        (2, {"protocol": 1}, ["protocol 1", f"to {PROTOCOL} (", "install release"]),
        (3, {"width": 31}, ["width 31 of float32", "expected 32 of float32"]),
        (4, {"dtype": "float16"}, ["width 32 of float16", "expected 32 of float32"]),
        (5, {"rows": 7}, ["has 7 rows, the server has 1797", "align"]),
        (6, {"ids_sha256": "0" * 64}, ["ids"]),
        (7, {"shared": {}}, ["the shared config differs", "there", "here"]),
    ],
    ids=["protocol", "width", "dtype", "rows", "ids", "shared"],
)
def test_a_hello_that_differs(federation: Federation, index: int, changes: dict[str, Any], words: list[str]) -> None:
    before, name = len(federation.refused()), federation.parties[index]
    hello = hello_of(federation, name, **changes)
    answer = knock(federation.address, federation.identity(name), control(Kind.HELLO, hello), tries=2)
    for word in words:
        assert word in answer
    assert logged_once(federation, before, words[0])["cause"] == answer


def test_other_ids_in_a_share(federation: Federation, tmp_path: Path) -> None:
    """End to end: a party whose table is in another order stops by itself, with the server's message."""
    name = federation.parties[8]
    federation.up.write_config(name, federation.address)
    share = load_party_share(federation.up.nodes / name / "share.safetensors")
    other = tmp_path / "share.safetensors"
    save_share(replace(share, ids_sha256="ab" * 32), other)
    process = party_of(federation, name, party_data=str(other))
    process.node.folder = tmp_path / "state"
    with pytest.raises(RemoteProtocolError, match=r"refused this party: .*ids"):
        asyncio.run(process.run())
    federation.goes_on()


def test_a_party_process_with_another_learning_rate_says_so_and_ends(federation: Federation, tmp_path: Path) -> None:
    before, name = len(federation.refused()), federation.parties[9]
    federation.up.write_config(name, federation.address)
    tables = read_toml(federation.up.nodes / name / "config.toml")
    tables["train"]["learning_rate"] = 0.25
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(tables), encoding="utf-8")
    command = [sys.executable, "-m", "colonnade", "join", str(config), "--party", name, "--out", str(tmp_path / "run")]
    ended = run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode == 2, said
    assert "train.learning_rate: 0.25 there, 'auto' here" in said
    assert "Traceback" not in said
    line = logged_once(federation, before, "train.learning_rate: 0.25 there, 'auto' here")
    assert line["peer"] == name


# Many guests


def test_a_storm_of_guests_leaves_the_server_as_it_was(federation: Federation, tmp_path: Path) -> None:
    outsider = make_identity("stormy", tmp_path, federation.certificates)
    host, _, port = federation.address.rpartition(":")
    before, lines = federation.descriptors(), len(federation.refused())

    async def storm() -> None:
        silent = [socket.create_connection((host, int(port))) for _ in range(50)]  # not even a handshake
        async with open_channel(outsider, federation.address, LIMITS) as channel:
            calls = [channel.stream_stream(f"/{service.SERVICE}/{service.JOIN}")() for _ in range(100)]
            reads = [asyncio.ensure_future(call.read()) for call in calls]
            answer = await ask_status(federation.identity("server"), federation.address, LIMITS, WAIT_S)
            assert json.loads(answer)["updates"] > 0
            _, waiting = await asyncio.wait(reads, timeout=WAIT_S)
            assert not waiting
        for guest in silent:
            guest.close()

    asyncio.run(storm())
    for _ in range(50):
        plaintext(federation.address, b"\xca\xfe" * 64)
    federation.goes_on()
    until(lambda: federation.descriptors() <= before + 4, "closing of the guests' connections")
    causes = [line["cause"] for line in federation.refused()[lines:]]
    assert "too many calls at the same time" in causes
    assert len(causes) <= 6  # of two hundred; a cause heard before may be counted again


def test_refusals_are_answered_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    desk = service.Service.__new__(service.Service)
    desk._refusals = {}
    delays = [desk._delay("mallory 10.0.0.1") for _ in range(8)]
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] == delays[-2] == service.REFUSAL_DELAYS_S[-1]
    assert desk._delay("eve 10.0.0.1") == 0.0
    clock[0] += 61.0
    assert desk._delay("mallory 10.0.0.1") == 0.0
    for number in range(5 * service.MAX_GUESTS):
        desk._delay(f"guest {number}")
    assert len(desk._refusals) <= service.MAX_GUESTS + 1


def test_a_complaint_is_written_once_and_new_ones_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    log = Log("server")
    monkeypatch.setattr(log, "_write", lambda _level, what, fields: lines.append((what, fields)))
    once = Once(log)
    for _ in range(5):
        once.warning("refused", peer="party-1", cause="sends message 9 after 0")
    once.warning("refused", peer="party-2", cause="sends message 9 after 0")
    assert [fields["peer"] for _, fields in lines] == ["party-1", "party-2"]
    clock[0] += 61.0
    once.warning("refused", peer="party-1", cause="sends message 9 after 0")
    assert lines[-1][1]["repeated"] == 4
    for number in range(5000):
        once.warning("refused", peer="mallory", cause="x" * number)
    assert len(lines) <= 3 + Once.MAX_LINES
    assert "are not written for a while" in lines[-1][0]
    clock[0] += 61.0
    once.warning("refused", peer="mallory", cause="again")
    assert lines[-1][1]["cause"] == "again"
