"""FedVS over the network with a curious server: it records every byte it reads and writes, and finds no share."""

import asyncio
import io

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.algorithms.fedvs.messages import DataShare, ModelShare
from colonnade.algorithms.fedvs.party import Party
from colonnade.algorithms.fedvs.server import Server
from colonnade.algorithms.remarks import Remark
from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment.application import Pace
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.processes import dial, sealing
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.sealed_line import SEALED
from colonnade.drivers.processes.sealing import Announcement, Session
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import Kind, open_envelope, read_relay
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received

NAMES = ("bank", "clinic", "lab")
COMMON = {
    "protocol": {"name": "fedvs", "T": 1},
    "model": {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"},
    "train": {"batch_size": 64, "updates": 6, "eval_every": "3 updates", "learning_rate": 0.3},
}
NEEDLE_BYTES = 16  # of a share: four uniform field elements, which nothing else contains by chance


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    data = split(load("digits"), parties=3, scale="minmax")
    throw_away(NAMES, folder / "certificates")
    save_share(server_share(data), folder / "server.safetensors")
    for index, name in enumerate(NAMES):
        save_share(party_share(data, index), folder / f"{name}.safetensors")
    return folder


def config_of(name, shares, address="127.0.0.1:0"):
    certificates = shares / "certificates"
    network = {
        "parties": list(NAMES), "address": address, "certificate": str(certificates / f"{name}.pem"),
        "key": str(certificates / f"{name}.key"), "authority": str(certificates / "ca.pem"),
        "members": str(certificates / "members.toml"), "checkpoint_s": 1e6, "max_log_mb": 1000,
    }  # fmt: skip
    section = "server" if name == "server" else "party"
    return from_dict(COMMON | {"network": network, section: {"data": str(shares / f"{name}.safetensors")}})


class Wiretap:
    """Records all traffic of a call at the server."""

    def __init__(self, call, read, written):
        take, write = call._pass_on, call.write
        call._pass_on = lambda data: (read.append(bytes(data)), take(data))
        call.write = lambda data: (written.append(bytes(data)), write(data))


class Recording:
    """What the server saw, and the truth: every share that a party got from another, and their session keys."""

    def __init__(self, monkeypatch):
        self.read, self.written, self.files, self.arrays, self.sessions = [], [], [], [], {}
        converse, handle, make, close = Service._converse, Party.handle, Session.__init__, Node.close
        self.heard, told = set(), Server.handle

        def keep_share(party, event, now):
            message = event.message if isinstance(event, Received) else None
            if isinstance(message, DataShare):
                self.arrays.append(message.values)
            if isinstance(message, ModelShare):
                # A model that has not changed is not sent again, and not every party blinds.
                self.arrays += [array for array in (message.model, message.blinding) if array.size]
            return handle(party, event, now)

        def keep_name(server, event, now):
            if isinstance(event, Received):
                self.heard.add(type(event.message).__name__)
            return told(server, event, now)

        def keep_session(session, *args, **kinds):
            make(session, *args, **kinds)
            self.sessions[session.id, session._from] = session

        def keep_files(node):
            if node.role.name == "server":
                self.files += [path.read_bytes() for path in node.folder.rglob("*") if path.is_file()]
            close(node)

        def listen(service, peer, hello, call):
            Wiretap(call, self.read, self.written)
            return converse(service, peer, hello, call)

        monkeypatch.setattr(Service, "_converse", listen)
        monkeypatch.setattr(Server, "handle", keep_name)
        monkeypatch.setattr(Party, "handle", keep_share)
        monkeypatch.setattr(Session, "__init__", keep_session)
        monkeypatch.setattr(Node, "close", keep_files)

    @property
    def seen(self):
        return self.read + self.written

    def relayed(self):
        """(receiver, content) of every message to be relayed."""
        envelopes = [open_envelope(data, "") for data in self.read]
        return [read_relay(one.body, "") for one in envelopes if one.kind == Kind.RELAY]

    def sealed(self):
        return [(name, bytes(content[1:])) for name, content in self.relayed() if content[:1] == SEALED]

    def opened(self):
        """The messages, opened with the keys of the parties' sessions."""
        found = []
        for name, frame in self.sealed():
            for (id, path), session in self.sessions.items():
                if frame[:8] == id and path.endswith(name.encode()):
                    nonce = bytes(4) + frame[8:16]
                    found.append(session._opens.decrypt(nonce, frame[16:], frame[:16] + path))
        return found

    def found_in(self, haystack):
        """How many pieces of the shares (the beginning, middle and end of each array) it contains."""
        joined = b"\0".join(haystack)
        return sum(piece in joined for array in self.arrays for piece in pieces(array))

    def count(self):
        return sum(len(pieces(array)) for array in self.arrays)


def pieces(array):
    whole = np.ascontiguousarray(array).tobytes()
    middle = len(whole) // 8 * 4
    return [whole[:NEEDLE_BYTES], whole[middle : middle + NEEDLE_BYTES], whole[-NEEDLE_BYTES:]]


def train(shares, folder, tools):
    async def go():
        server = training_server(config_of("server", shares), folder / "server", Log("server", stream=io.StringIO()))
        serving = asyncio.ensure_future(server.run())
        address = folder / "server" / "address"
        await tools.until(lambda: address.is_file() or serving.done(), "the address")
        parties = [
            training_party(
                config_of(name, shares, address.read_text()), name, folder / name, Log(name, stream=io.StringIO())
            )
            for name in NAMES
        ]
        ends = [asyncio.ensure_future(party.run()) for party in parties]
        summary = await serving
        await asyncio.gather(*ends)
        return summary

    return asyncio.run(asyncio.wait_for(go(), 120))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)


def test_a_curious_server_recovers_no_share(shares, tmp_path, tools, monkeypatch):
    recording = Recording(monkeypatch)
    assert train(shares, tmp_path, tools)["updates"] == 6
    assert len(recording.arrays) > 6 * 6 * 2, "models and blinding of six rounds, in six directions"
    assert recording.found_in(recording.seen) == 0
    assert recording.found_in(recording.files) == 0, "no share in the files that the server wrote"
    assert recording.found_in(recording.opened()) == recording.count(), "with the parties' keys: all of them"
    assert recording.heard == {"Prepared", "Holding", "Shared", "Answer"}
    assert_no_key_opens(recording)


def assert_no_key_opens(recording):
    """The server's own key opens no frame with any announced key."""
    announced = {
        msgspec.msgpack.decode(content[1:], type=Announcement).key
        for _, content in recording.relayed()
        if content[:1] != SEALED
    }
    frames = {frame[:8]: frame for _, frame in recording.sealed()}
    assert len(announced) >= 6 and len(frames) >= 3
    for key in announced:
        for initiator in (True, False):
            own = Session("lab", "bank", "", X25519PrivateKey.generate(), key, initiator=initiator)
            for frame in frames.values():
                with pytest.raises(RemoteProtocolError, match="cannot be decrypted"):
                    own.open(own.id + frame[8:])


class NoCipher:
    """A seal without a cipher."""

    def __init__(self, key):
        pass

    def encrypt(self, nonce, content, extra):
        return bytes(content) + bytes(16)

    def decrypt(self, nonce, content, extra):
        return bytes(content[:-16])


def test_without_the_seal_it_would_find_every_share(shares, tmp_path, tools, monkeypatch):
    """The control: the same search over the same recording."""
    monkeypatch.setattr(sealing, "ChaCha20Poly1305", NoCipher)
    recording = Recording(monkeypatch)
    assert train(shares, tmp_path, tools)["updates"] == 6
    assert recording.found_in(recording.seen) == recording.count() > 0


def test_a_remark_on_a_party_is_logged_and_counted(shares, tmp_path):
    """E.g. a wrong answer, which the server finds with `spare`."""
    log = io.StringIO()
    host = training_server(config_of("server", shares), tmp_path / "server", Log("server", stream=log))
    host.application.emitted(Remark("clinic", "wrong answer (1 of 3), left out"), host.node)
    assert "warning server: wrong answer (1 of 3), left out party=clinic" in log.getvalue()
    remarks = {party["name"]: party["remarks"] for party in host.application.status(Pace())["parties"]}
    assert remarks == {"bank": 0, "clinic": 1, "lab": 0}
