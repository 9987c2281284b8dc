"""Every method over the network, as in the simulator: it learns, reports it, and its log alone restores its state."""

import asyncio
import dataclasses
import errno
import io
import json
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.algorithms import METHODS
from colonnade.algorithms.asysqn.messages import Ask, Masked, Masks
from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import training_server
from colonnade.deployment.terms import shared_digest, shared_part
from colonnade.drivers.files import DISK, lock_file
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.journal import read_journal
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.relay import Relay
from colonnade.drivers.processes.sealed_line import SEALED
from colonnade.drivers.processes.sealing import Announcement, Session
from colonnade.drivers.processes.wire import Kind, open_envelope, read_relay
from colonnade.experiments.run import prepare
from colonnade.privacy.masking import decode
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError, RemoteProtocolError
from colonnade.protocol.events import PeerJoined, PeerLost, Received, Send
from colonnade.protocol.messages import Message
from colonnade.results import track, trackers
from colonnade.results.folder import RunFolder

SUMMARY = {
    "protocol", "parties", "seed", "driver", "status", "updates", "epochs", "clock_s", "wall_s", "metric", "value",
    "accuracy", "loss", "target", "time_to_target_s", "messages", "bytes_up", "bytes_down", "bytes_eval", "staleness",
    "utilisation", "privacy", "trace_sha256", "weights_sha256",
}  # fmt: skip
NETWORKED = [name for name, method in METHODS.items() if method.joint is None]
QUIET = {"wait-dp": {"epsilon": 1e14}}  # so little noise that predictions can be compared
VARIANTS = [(name, QUIET.get(name, {})) for name in NETWORKED] + [
    ("vafl", {"order": "query-first"}),
    ("vafl", {"batches": "shared", "extra_rows": 1.0, "table": "zeros"}),
    ("vafl", {"max_delay": 5, "pause_s": 0.0005}),
    ("cascaded", {"directions": 3, "t": 2}),
    ("flex", {"timeout_s": 0.02, "labels": "shared", "momentum": [0.5, 0.0, 0.0]}),
    ("asysqn-svrg", {"share": True, "extrapolate": True}),
]
NAMES = ("party-1", "party-2", "party-3")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A method's data, and what each organisation has before the start: its share and its certificate."""
    made = {}

    def get(method):
        labelled = METHODS[method].capabilities.party_labels
        kind = ("breast-cancer" if labelled else "digits", "minmax" if method == "fedvs" else None)
        if kind not in made:
            data, folder = split(load(kind[0]), parties=len(NAMES), scale=kind[1]), tmp_path_factory.mktemp("shares")
            throw_away(NAMES, folder / "certificates")
            if not labelled:
                save_share(server_share(data), folder / "server.safetensors")
            for index, name in enumerate(NAMES):
                save_share(party_share(data, index, labelled), folder / f"{name}.safetensors")
            made[kind] = data, folder
        return made[kind]

    return get


@pytest.fixture
def data(stock):
    return stock("vafl")[0]


@pytest.fixture
def shares(stock):
    return stock("vafl")[1]


# Estimates need fewer parameters and more, smaller steps; the floors lie well above chance, which is 0.1.
PLAIN = {"party": "mlp:16", "embedding": 8, "server": "linear"}
ESTIMATED = {"party": "linear", "embedding": 4, "server": "linear"}
AVERAGED = PLAIN | {"aggregate": "mean"}
SETTINGS = {  # model, train, floor
    "cascaded": (ESTIMATED, {"epochs": 8, "learning_rate": {"server": 0.3, "party": 0.03}}, 0.75),
    "zoo": (ESTIMATED, {"batch_size": 64, "epochs": 8, "learning_rate": 0.06}, 0.4),
    "syn-zoo": (ESTIMATED, {"batch_size": 64, "epochs": 12, "learning_rate": 0.06}, 0.3),
    "frozen": (ESTIMATED, {"batch_size": 64, "epochs": 8, "learning_rate": 0.6}, 0.5),
    "wait": (AVERAGED, {"epochs": 4, "learning_rate": 1.0}, 0.75),
    "ignore": (AVERAGED, {"epochs": 4, "learning_rate": 1.0}, 0.3),  # on a busy machine it ignores most parties
    "wait-dp": (AVERAGED, {"epochs": 4, "learning_rate": 0.5}, 0.05),  # its noise leaves little to learn
    "fedvs": (AVERAGED | {"party": "polynomial:2"}, {"batch_size": 64, "epochs": 4, "learning_rate": 0.6}, 0.5),
}
LINEAR = [name for name, method in METHODS.items() if method.capabilities.party_labels]  # of two classes
SETTINGS |= dict.fromkeys(LINEAR, ({}, {"batch_size": 64, "epochs": 12, "learning_rate": 0.05}, 0.85))
USUAL = (PLAIN, {"epochs": 4, "learning_rate": 0.3}, 0.7)
LOCAL = ("flex", "adaptive-flex", "sync-min", "sync-max")
SETTINGS |= dict.fromkeys(LOCAL, (PLAIN, {"epochs": 4, "learning_rate": 0.1}, 0.6))
MOST = {"max_steps": 3}  # on a busy machine the clock would let them take so many that they diverge


def tables(method, options, **train):
    model, usual, _ = SETTINGS.get(method, USUAL)
    return {
        "predict": {"http": "127.0.0.1:0"},
        "protocol": {"name": method, **(MOST if method in LOCAL else {}), **options},
        "model": model,
        "train": {"batch_size": 32, "eval_every": "1 epoch"} | usual | train,
    }


def config_of(name, shares, common, address="127.0.0.1:0", **own):
    certificates = shares / "certificates"
    section = "server" if name == "server" else "party"
    network = {
        "parties": list(NAMES), "address": address, "certificate": str(certificates / f"{name}.pem"),
        "key": str(certificates / f"{name}.key"), "authority": str(certificates / "ca.pem"),
        "members": str(certificates / "members.toml"), "checkpoint_s": 1e6, "max_log_mb": 1000,
    }  # fmt: skip
    train, share = common["train"] | {"checkpoint_every": "1000 epochs"}, shares / f"{name}.safetensors"
    held = {"data": str(share)} if share.is_file() else {"rows": 569}  # the parties have the labels
    held = {} if "data" in own else held
    return from_dict(common | {"train": train, "network": network, section: held | own})


class Federation:
    """All processes of a federation in one event loop; each keeps its log and its last state."""

    def __init__(self, shares, folder, common, own=None):
        self.folder, self.logs = folder, {}
        log = Log("server", stream=io.StringIO())
        self.configs = {"server": config_of("server", shares, common, **(own or {}).get("server", {}))}
        self.server = training_server(self.configs["server"], folder / "server", log)
        self.processes = {"server": self.server}
        self._party = lambda name, address: self._make_party(name, address, shares, common, (own or {}).get(name, {}))

    def _make_party(self, name, address, shares, common, own):
        self.configs[name] = config_of(name, shares, common, address, **own)
        made = training_party(self.configs[name], name, self.folder / name, Log(name, stream=io.StringIO()))
        self.processes[name] = made
        return made

    async def run(self, tools, after_failure=None):
        server = asyncio.ensure_future(self.server.run())
        address = self.folder / "server" / "address"
        await tools.until(lambda: address.is_file() or server.done(), "the address")
        parties = [asyncio.ensure_future(self._party(name, address.read_text()).run()) for name in NAMES]
        try:
            if after_failure is not None:
                server = await after_failure(self, server)
            await asyncio.wait({server, *parties}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (*parties, server):
                if task.done():
                    task.result()  # what went wrong
            self.summary, self.ends = server.result(), [party.result() for party in parties]
            return self
        finally:
            for task in (server, *parties):
                task.cancel()
            await asyncio.gather(server, *parties, return_exceptions=True)


@pytest.fixture
def keep_logs(monkeypatch):
    """Right before a node closes: its log and its role's state."""
    copies = {}
    close = Node.close

    def keep(node):
        if node._journal is not None:
            copy = node.folder / "kept.log"
            shutil.copyfile(node._journal.path, copy)
            copies[node.role.name] = copy, state.pack(node.role.save()), node._journals
        close(node)

    monkeypatch.setattr(Node, "close", keep)
    return copies


def run(federation, tools, after_failure=None):
    return asyncio.run(asyncio.wait_for(federation.run(tools, after_failure), 120))


@pytest.mark.parametrize(
    "variant", VARIANTS, ids=lambda variant: "-".join([variant[0], *map(str, variant[1].values())])
)
def test_learns_predicts_and_its_log_makes_its_state_again(
    variant, stock, tmp_path, tools, keep_logs, judged, predicted
):
    common, (data, shares) = tables(*variant), stock(variant[0])
    found = run(Federation(shares, tmp_path, common), tools)
    summary, last = found.summary, judged[-1]
    assert summary["status"] == "finished" and summary["warnings"] == [] and summary["epochs"] >= 4
    assert summary["accuracy"] > SETTINGS.get(variant[0], USUAL)[2]
    assert set(summary) >= SUMMARY
    assert json.loads((tmp_path / "server" / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["driver"] == "processes" and summary["parties"] == 3 and summary["messages_given_up"] == 0
    assert summary["bytes_eval"] > 0
    assert sum(summary["bytes_by_kind"].values()) == summary["bytes_up"] + summary["bytes_down"]
    assert not any("Evaluation" in kind for kind in summary["bytes_by_kind"])
    assert set(summary["utilisation"]) == {"server", *NAMES}
    assert all(0 <= share <= 1 for share in summary["utilisation"].values())
    assert len(summary["trace_sha256"]) == 64
    assert (summary["weights_sha256"] is None) == (summary["privacy"] is not None) == (variant[0] == "wait-dp")
    rows = [json.loads(line) for line in (tmp_path / "server" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["update"] < rows[-1]["update"] == summary["updates"]
    assert rows[-1]["test_value"] == summary["value"] and rows[-1]["missing"] == []
    assert rows[-1]["value"] == summary["validation_value"] and {row["rows"] for row in rows} == {"validation"}
    assert (tmp_path / "server" / "staleness.json").is_file()
    assert [end.status for end in found.ends] == ["finished"] * 3

    up = {name: json.loads((tmp_path / name / "summary.json").read_text()) for name in NAMES}
    assert sum(one["bytes_up"] for one in up.values()) >= summary["bytes_up"]
    setting = prepare(from_dict(common), data).federation
    for role in setting.roles():
        path, live, journals = keep_logs[role.name]
        assert journals == 0, "a checkpoint came in between"
        trusted, records, *_ = read_journal(path, Codec(setting.method.payloads))
        assert trusted and len(records) > 100
        ledger = tmp_path / role.name / "ledger.jsonl"
        if ledger.is_file():  # the log does not contain what was released
            role.guard.keep(LedgerFile(ledger))
        tools.replay(role, records)
        role.validate()
        assert state.pack(role.save()) == live
        if ledger.is_file():
            role.guard.ledger.close()  # the party that predicts writes it

    log = Log("server", stream=io.StringIO())
    server = lambda: ServerSide(found.configs["server"], tmp_path / "server", log)  # noqa: E731
    party = lambda name, address: found._party(name, address).application.side  # noqa: E731
    predictions = predicted(setting, server, party)
    if setting.method.capabilities.party_labels and not setting.options.synchronous:
        return  # the parties take steps during the last evaluation and until they hear of the end
    if variant[0] == "swift":
        return  # a gradient that waits for the lane is applied after the last evaluation
    apart = 2e-3 if variant[0] == "fedvs" else 1e-6  # every exchange rounds the weights at random
    np.testing.assert_allclose(predictions, last, rtol=0, atol=apart)


def test_sync_gives_the_same_weights_as_in_the_simulator(data, shares, tmp_path, tools):
    common = tables("sync", {}, epochs=2, seed=3)
    over_network = run(Federation(shares, tmp_path, common), tools).summary
    simulated = prepare(from_dict(common), data).execute()
    for key in ("weights_sha256", "updates", "epochs", "value", "loss", "bytes_up", "bytes_down", "bytes_by_kind"):
        assert over_network[key] == simulated[key], key


def test_a_server_that_is_cancelled_lets_go_of_its_port_and_its_folder(shares, tmp_path, tools):
    common = tables("sync", {}, epochs=1)

    async def again(federation, server):
        await tools.until(lambda: federation.server.node.trace.events > 50, "some training")
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*federation.server.address.rsplit(":", 1))
        log = Log("server", stream=io.StringIO())
        federation.server = training_server(federation.configs["server"], tmp_path / "server", log)
        return asyncio.ensure_future(federation.server.run())

    summary = run(Federation(shares, tmp_path, common), tools, again).summary
    assert summary["status"] == "finished" and summary["messages_given_up"] == 0


def test_the_server_tracks_its_evaluations_and_the_parties_do_not(shares, tmp_path, tools, monkeypatch):
    opened, sent, ended = [], [], []

    class Recorder:
        id = None

        def __init__(self, opening):
            opened.append(opening)

        def row(self, step, numbers):
            sent.append((step, numbers["loss"]))

        def end(self, status, numbers):
            ended.append((status, numbers["final/value"]))

    monkeypatch.setitem(track.PACKAGES, "mlflow", "json")  # a package that is there: the real one is an extra
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Recorder)
    common = tables("sync", {}, epochs=1) | {"track": {"to": ["mlflow"], "run": "ours"}}
    summary = run(Federation(shares, tmp_path, common), tools).summary
    rows = RunFolder(tmp_path / "server").rows()
    assert [one.name for one in opened] == ["ours"]
    assert sent == [(row["update"], row["loss"]) for row in rows] and len(rows) > 1
    assert ended == [("finished", summary["value"])]


@pytest.mark.parametrize("taken", ["metrics_port", "address"])
def test_a_port_that_is_taken_is_said_at_once_and_everything_is_let_go(taken, shares, tmp_path):
    pytest.importorskip("prometheus_client")
    folder, log = tmp_path / "server", io.StringIO()
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
        port, spare = other.getsockname()[1], free.getsockname()[1]
        free.close()
        config = config_of("server", shares, tables("sync", {}), f"127.0.0.1:{port if taken == 'address' else spare}")
        metrics = port if taken == "metrics_port" else spare
        config = msgspec.structs.replace(config, network=msgspec.structs.replace(config.network, metrics_port=metrics))
        server = training_server(config, folder, Log("server", stream=log))
        value = port if taken == "metrics_port" else f"'127.0.0.1:{port}'"
        with pytest.raises(ConfigError, match=f"^network.{taken} = {value}: cannot listen there"):
            asyncio.run(server.run())
    assert "listening" not in log.getvalue() and not (folder / "address").exists()
    assert taken == "address" or not (folder / "state").exists(), "nothing had begun"
    for freed in (port, spare):
        socket.create_server(("127.0.0.1", freed)).close()
    (folder / "state").mkdir(exist_ok=True)
    os.close(lock_file(folder / "state" / "lock"))


def test_a_record_whose_state_is_gone_is_not_written_over(shares, tmp_path):
    config = config_of("server", shares, tables("sync", {}))
    folder = RunFolder.create(tmp_path / "server", config)
    folder.append({"update": 1, "value": 0.5})
    folder.write_summary({"status": "finished", "driver": "processes"})
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    server = training_server(config, folder.path, Log("server", stream=io.StringIO()))
    with pytest.raises(
        ConfigError, match="the record of a run that has ended, without its state: choose another --out"
    ):
        asyncio.run(server.run())
    assert before.items() <= {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}.items()


def test_a_server_whose_disk_was_full_goes_on_when_there_is_room_again(data, shares, tmp_path, tools, monkeypatch):
    common = tables("sync", {}, epochs=1)
    real, writes = DISK.write, []

    def write(file, parts, offset):
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(tmp_path / "server"):
            writes.append(file)
            if len(writes) > 60:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, parts, offset)

    monkeypatch.setattr(DISK, "write", write)

    async def again(federation, server):
        with pytest.raises(CheckpointError, match="journal-0.log: cannot be written: No space left on device"):
            await server
        monkeypatch.setattr(DISK, "write", real)
        config = federation.configs["server"]
        federation.server = training_server(config, tmp_path / "server", Log("server", stream=io.StringIO()))
        return asyncio.ensure_future(federation.server.run())

    summary = run(Federation(shares, tmp_path, common), tools, again).summary
    assert summary["status"] == "finished" and summary["messages_given_up"] == 0
    assert summary["weights_sha256"] == prepare(from_dict(common), data).execute()["weights_sha256"]


def files_of_numbers(data, shares, folder):
    """The same shares of a federation as files that stay on disk; the last rows are the test rows."""
    shutil.copytree(shares / "certificates", folder / "certificates")
    np.save(folder / "server.npy", np.concatenate([data.y_train, data.y_test]))
    for index, name in enumerate(NAMES):
        np.save(folder / f"{name}.npy", np.concatenate([data.train[index], data.test[index]]))
    return {name: {"data": str(folder / f"{name}.npy")} for name in ("server", *NAMES)}


def test_a_table_and_columns_that_stay_in_files(data, shares, tmp_path, tools, monkeypatch):
    """The disk under the table is full for a while. Then training continues, and the half-finished write is undone."""
    common, own = tables("vafl", {}, epochs=3), files_of_numbers(data, shares, tmp_path)
    common["data"] = {"scale": "none"}
    own["server"] |= {"table": "file", "table_dtype": "float16"}
    real, writes = DISK.write, []

    def write(file, parts, offset):
        if Path(f"/proc/self/fd/{file}").readlink().name == "train.rows":
            writes.append(file)
            if len(writes) > 800:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, parts, offset)

    monkeypatch.setattr(DISK, "write", write)

    async def again(federation, server):
        with pytest.raises(
            CheckpointError, match=r"train.rows: cannot be written \(No space left on device\).*free some space"
        ):
            await server
        monkeypatch.setattr(DISK, "write", real)
        config = federation.configs["server"]
        federation.server = training_server(config, tmp_path / "server", Log("server", stream=io.StringIO()))
        return asyncio.ensure_future(federation.server.run())

    summary = run(Federation(tmp_path, tmp_path, common, own), tools, again).summary
    assert summary["status"] == "finished" and summary["messages_given_up"] == 0 and summary["accuracy"] > 0.6
    assert sorted(path.name for path in (tmp_path / "server" / "state" / "table").glob("*.rows")) == [
        "test.rows", "train.rows",
    ]  # fmt: skip


class Note(Message, frozen=True):
    text: str


class Gossip:
    """A party that also greets every other party and stores their greetings."""

    def __init__(self, role):
        self.role, self.name, self.compute = role, role.name, role.compute
        self.validate, self.summary, self.heard = role.validate, role.summary, []

    def handle(self, event, now):
        match event:
            case PeerJoined(peer=peer) if peer != "server":
                return [Send(peer, Note(f"{self.name} greets {peer}"))]
            case Received(message=Note(text=text)):
                self.heard.append(text)
                return []
            case PeerLost(peer=peer) if peer != "server":
                return []
        return self.role.handle(event, now)

    def save(self):
        return {"role": self.role.save(), "heard": self.heard}

    def load(self, saved):
        self.role.load(saved["role"])
        self.heard = saved["heard"]


def test_a_method_whose_parties_talk_to_each_other(data, shares, tmp_path, tools, monkeypatch):
    sync = METHODS["sync"]
    gossip = replace(
        sync, name="gossip", capabilities=replace(sync.capabilities, peers=True), payloads=(*sync.payloads, Note),
        party=lambda setup: Gossip(sync.party(setup)),
    )  # fmt: skip
    monkeypatch.setitem(METHODS, "gossip", gossip)
    calm = prepare(from_dict(tables("gossip", {})), data)
    simulated = calm.execute()
    found = run(Federation(shares, tmp_path, tables("gossip", {})), tools)
    assert found.summary["weights_sha256"] == simulated["weights_sha256"]
    assert found.summary["bytes_up"] == simulated["bytes_up"]
    assert found.summary["bytes_by_kind"]["relayed"] == found.summary["bytes_relayed"] > simulated["bytes_relayed"] > 0
    relayed = 0
    for node in calm.simulator.nodes[1:]:
        there = found.processes[node.role.name].node.role
        assert sorted(there.heard) == sorted(node.role.heard) and len(there.heard) == 2
        summary = json.loads((tmp_path / node.role.name / "summary.json").read_text())
        relayed += summary["bytes_relayed"]
        assert summary["bytes_relayed"] == summary["bytes_by_kind"]["Note"] and summary["relay_refused"] == 0
    assert relayed == simulated["bytes_relayed"]


def test_a_partys_own_settings_are_used_and_not_told(data, shares, tmp_path, tools):
    common = tables("sync", {}, updates=10)
    del common["train"]["epochs"]
    common["train"]["eval_every"] = 5
    plain = run(Federation(shares, tmp_path / "plain", common), tools)
    frozen = run(Federation(shares, tmp_path / "own", common, {"party-2": {"learning_rate": 0.0}}), tools)
    adam = run(Federation(shares, tmp_path / "adam", common, {"party-2": {"optimiser": "adam"}}), tools)
    digests = {shared_digest(shared_part(one.configs["party-2"], "ab")) for one in (plain, frozen, adam)}
    digests |= {one.server.status()["digest"] for one in (plain, frozen, adam)} - {plain.server.status()["digest"]}
    assert len(digests) == 1
    byes = [one.server.service.byes["party-2"].weights for one in (plain, frozen, adam)]
    assert len(set(byes)) == 3
    setting = prepare(from_dict(common), data).federation
    assert byes[1] == setting.roles()[2].summary()["weights"], "with a rate of 0 it stays as it began"


@pytest.mark.parametrize(
    ("own", "key"), [({"learning_rate": -1.0}, "party.learning_rate"), ({"optimiser": "magic"}, "magic")]
)
def test_bad_settings_of_a_party_are_refused(own, key, shares, tmp_path):
    config = config_of("party-1", shares, tables("vafl", {}), **own)
    with pytest.raises(ConfigError, match=key):
        training_party(config, "party-1", tmp_path, Log("party-1", stream=io.StringIO()))


def test_a_joint_method_needs_the_simulator(shares, tmp_path):
    config = config_of("server", shares, tables("centralised", {}))
    with pytest.raises(ConfigError, match="needs all columns in one place: it runs in the simulator only"):
        training_server(config, tmp_path / "server", Log("server", stream=io.StringIO()))


def test_what_was_learnt_in_one_run_does_not_go_into_another(shares, tmp_path):
    config = config_of("party-1", shares, tables("vafl", {}))
    party = training_party(config, "party-1", tmp_path, Log("party-1", stream=io.StringIO()))
    (tmp_path / "state").mkdir()
    party.application.meet("first")
    party.application.meet("first")
    with pytest.raises(ConfigError, match="holds another run of this federation: choose another --out"):
        party.application.meet("second")


def test_a_party_that_diverges_ends_the_run_for_all_with_the_cause(stock, tmp_path, tools):
    common, (_, shares) = tables("asysqn-svrg", {}, learning_rate=1e3), stock("asysqn-svrg")
    found = run(Federation(shares, tmp_path, common), tools)
    assert found.summary["status"] == "diverged" and [end.status for end in found.ends] == ["diverged"] * 3
    assert found.summary["note"].startswith("party-")
    assert found.summary["note"].endswith("; lower train.learning_rate, or set protocol.ahead = 0")


def test_a_party_with_other_labels_is_waited_for_until_they_are_mended(stock, tmp_path, tools):
    """The party stops and says why. Restarted in its folder with the right labels, it takes part, and all continue."""
    common, (data, shares) = tables("asysqn-sgd", {}, epochs=1), stock("asysqn-sgd")
    share, wrong = party_share(data, 1, True), tmp_path / "wrong.safetensors"
    task, train, test = share.labels
    save_share(dataclasses.replace(share, labels=(task, 1 - train, test)), wrong)
    federation = Federation(shares, tmp_path, common, {"party-2": {"data": str(wrong)}})

    async def story():
        server = asyncio.ensure_future(federation.server.run())
        address = tmp_path / "server" / "address"
        await tools.until(address.is_file, "the address")
        parties = {name: asyncio.ensure_future(federation._party(name, address.read_text()).run()) for name in NAMES}
        try:
            for _ in range(2):  # the second time it is started again as it was
                with pytest.raises(DataError, match="party-2 holds different labels from the rest: compare the label"):
                    await parties["party-2"]
                federation.processes["party-2"].node.close()  # its process ends
                assert list(federation.server.application.owes()) == ["party-2"] and not server.done()
                parties["party-2"] = asyncio.ensure_future(federation._party("party-2", address.read_text()).run())
            parties["party-2"].cancel()
            mended = federation._make_party("party-2", address.read_text(), shares, common, {})
            parties["party-2"] = asyncio.ensure_future(mended.run())
            return [await server, *[await party for party in parties.values()]]
        finally:
            for task in (server, *parties.values()):
                task.cancel()
            await asyncio.gather(server, *parties.values(), return_exceptions=True)

    summary, *ends = asyncio.run(asyncio.wait_for(story(), 120))
    assert summary["status"] == "finished" and [end.status for end in ends] == ["finished"] * 3


# A curious relay


@pytest.fixture
def recorded(monkeypatch):
    """Everything that the server passes on, and what it does not have: the private keys of the parties' sessions."""
    passed, keys, forward, begin = [], [], Relay.forward, Session.__init__

    def record(relay, sender, body):
        to, content = read_relay(body, sender)
        passed.append((sender, to, bytes(content)))
        forward(relay, sender, body)

    def keep(session, *made, initiator):
        begin(session, *made, initiator=initiator)
        keys.append((made, initiator, session.id))

    monkeypatch.setattr(Relay, "forward", record)
    monkeypatch.setattr(Session, "__init__", keep)
    return passed, keys


def opened_with(keys, passed):
    """What the two ends of each session read from the recorded frames: (sender, receiver, message)."""
    codec, found = Codec(METHODS["asysqn-sgd"].payloads), []
    for made, initiator, id in list(keys):
        session = Session(*made, initiator=initiator)
        me, peer = made[:2]
        for sender, to, content in passed:
            if content[:1] == SEALED and (sender, to) == (peer, me) and content[1:9] == id:
                envelope = open_envelope(session.open(content[1:]), peer)
                if envelope.kind == Kind.MESSAGE:
                    found.append((sender, to, codec.decode(envelope.body)))
    return found


def terms_of(messages):
    """θ^ℓ of every party that answered: what it sent less what it received, on one tree minus the other."""
    trees, terms = ({}, {}), []
    for sender, to, message in messages:
        if type(message) in (Masked, Masks):
            sums = trees[type(message) is Masks].setdefault((message.initiator, message.nonce), {})
            sums[sender] = to, message.values

    def own(sums, party):
        return sums[party][1] - sum((values for to, values in sums.values() if to == party), np.uint64(0))

    for name in trees[0].keys() & trees[1].keys():
        first, second = trees[0][name], trees[1][name]
        if len(first) == len(second) == len(NAMES) - 1:  # not cut off by the end of the run
            terms += [decode(own(first, party) - own(second, party), 32) for party in first]
    return terms


def test_a_curious_relay_learns_nothing_of_a_run_between_parties(stock, tmp_path, tools, recorded):
    """Each party's masked margins and its masks pass through the server: their difference would reveal everything."""
    passed, keys = recorded
    common, (_, shares) = tables("asysqn-sgd", {}, epochs=1), stock("asysqn-sgd")
    assert run(Federation(shares, tmp_path, common), tools).summary["status"] == "finished"
    messages = opened_with(keys, passed)
    terms = terms_of(messages)
    assert len(terms) > 20 and max(np.abs(term).max() for term in terms) < 100, "with the keys all margins are known"
    secrets = {np.asarray(m.values)[:4].tobytes() for *_, m in messages if isinstance(m, Masked | Masks)}
    secrets |= {m.rows[:8].tobytes() for *_, m in messages if type(m) is Ask and not m.tests} | {b"Masked", b"values"}
    contents = b"".join(content for *_, content in passed)
    assert len(secrets) > 50 and not any(secret in contents for secret in secrets)
    files = [path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()]
    numbers = {secret for secret in secrets if len(secret) == 32}
    assert len(files) > 2 and not any(secret in file for secret in numbers for file in files)
    party = b"".join(path.read_bytes() for path in (tmp_path / NAMES[0]).rglob("journal*"))
    assert any(secret in party for secret in numbers), "so the assertions above can fail"
    sealed = [(sender, to, content[1:]) for sender, to, content in passed if content[:1] == SEALED]
    bodies = b"".join(frame[16:] for *_, frame in sealed)
    counts = np.bincount(np.frombuffer(bodies, np.uint8), minlength=256)
    deviation = np.square(counts - counts.mean()).sum() / counts.mean()  # χ² with 255 degrees of freedom
    assert len(bodies) > 50_000 and deviation < 255 + 8 * np.sqrt(2 * 255), "every byte is as frequent as any other"
    for content in (content for *_, content in passed if content[:1] != SEALED):
        key = msgspec.msgpack.decode(content[1:], type=Announcement).key
        for sender, to, frame in sealed[:5]:
            guess = Session(to, sender, "", X25519PrivateKey.generate(), key, initiator=True)
            with pytest.raises(RemoteProtocolError, match="cannot be decrypted"):
                guess.open(guess.id + frame[8:])
