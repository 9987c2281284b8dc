"""Alignment between real nodes: what each node can read, refused parties, and training in the common order."""

import asyncio
import hashlib
import io
import json

import msgspec
import numpy as np
import pytest

from colonnade import __version__
from colonnade.algorithms.alignment import PAYLOADS
from colonnade.algorithms.alignment.messages import Points
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.data import load_alignment
from colonnade.deployment.alignment import PartyAlignment, aligning_host, aligning_party, aligning_server
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.relay import Relay
from colonnade.privacy.blinding import DOMAIN
from colonnade.privacy.hash_to_curve import hash_to_curve
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import ConfigError, DataError, RemoteProtocolError
from colonnade.protocol.events import Send

PARTIES = ("clinic", "lab")
COUNTS = {"server": 60, "clinic": 70, "lab": 80}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    throw_away(PARTIES, folder)
    return folder


class Organisations:
    """Three folders with tables of their own, and processes that read nothing else."""

    def __init__(self, folder, keys, labels=True):
        self.folder, self.keys, self.labels, self.processes = folder, keys, labels, {}
        generator = np.random.default_rng(0)
        self.ids = {name: [f"P-{one:05}" for one in generator.permutation(100)[:n]] for name, n in COUNTS.items()}
        for name, ids in self.ids.items():
            (folder / name).mkdir()
            self.write(name, ids)

    def write(self, name, ids):
        numbered = [(one, int(one[2:] or 0)) for one in ids]
        lines = [f"{one},{'yes' if number % 3 else 'no'},{number * 31 % 97}.5" for one, number in numbered]
        (self.folder / name / "table.csv").write_text("\n".join(["nr,sick,x", *lines]) + "\n")

    def config(self, name, **more):
        section, home = "server" if name == "server" else "party", self.folder / name
        network = {
            "parties": list(PARTIES), "address": "127.0.0.1:0", "certificate": str(self.keys / f"{name}.pem"),
            "key": str(self.keys / f"{name}.key"), "authority": str(self.keys / "ca.pem"),
            "members": str(self.keys / "members.toml"),
        }  # fmt: skip
        own = {"data": str(home / "table.csv"), "id": "nr", "aligned": str(home / "aligned.safetensors")}
        own |= {"label": "sick"} if name == "server" else {"columns": ["x"]}
        tables = {
            "network": network,
            "model": {"party": "linear", "embedding": 2},
            "train": {"updates": 20, "batch_size": 8, "eval_every": 10},
            section: own if self.labels or name != "server" else {},
        }
        return from_dict(apply_overrides(tables, more))

    def make(self, kind, name, **more):
        out, log = self.folder / name / kind.__name__, Log(name, stream=io.StringIO())
        arguments = (name, out) if kind is training_party else (out,)
        self.processes[name] = kind(self.config(name, **more), *arguments, log)
        return self.processes[name]

    async def _run(self, tools, server, party, more):
        made = self.make(server, "server", **more.get("server", {}))
        serving = asyncio.ensure_future(made.run())
        address = made.out / "address"
        await tools.until(lambda: address.is_file() or serving.done(), "the address")
        there = {"network.address": address.read_text()}
        made_parties = [self.make(party, name, **(there | more.get(name, {}))) for name in PARTIES]
        joined = [asyncio.ensure_future(one.run()) for one in made_parties]
        try:
            ends = await asyncio.gather(*joined)
        except Exception:  # the others are stopped, as by a signal
            for one in (*made_parties, made):
                one.node.ended.set()
            await asyncio.gather(*joined, serving, return_exceptions=True)
            raise
        return await serving, dict(zip(PARTIES, ends, strict=True))

    def align(self, tools, **more):
        run = self._run(tools, aligning_server, aligning_party, more)
        return asyncio.run(asyncio.wait_for(run, 120))

    def train(self, tools, **more):
        return asyncio.run(asyncio.wait_for(self._run(tools, training_server, training_party, more), 120))

    def order(self, name):
        return [self.ids[name][row] for row in load_alignment(self.folder / name / "aligned.safetensors").rows]


@pytest.fixture
def organisations(tmp_path, keys):
    return Organisations(tmp_path, keys)


@pytest.fixture
def wire(monkeypatch):
    """What every node can read, and what the server passes on."""
    read, relayed = [], []
    received, forward = Node.received, Relay.forward

    def note(node, peer, sequence, body, *more):
        read.append((node.role.name, peer.name, bytes(body)))
        received(node, peer, sequence, body, *more)

    def note_relayed(relay, sender, body):
        relayed.append(bytes(body))
        forward(relay, sender, body)

    monkeypatch.setattr(Node, "received", note)
    monkeypatch.setattr(Relay, "forward", note_relayed)
    return read, relayed


def test_nothing_but_raised_points_is_on_the_wire(organisations, tools, wire):
    summary, ends = organisations.align(tools)
    common = set.intersection(*map(set, organisations.ids.values()))
    assert summary["status"] == "finished" and summary["common"] == len(common) and summary["ids"] == COUNTS
    orders = [organisations.order(name) for name in COUNTS]
    assert orders[0] == orders[1] == orders[2] and set(orders[0]) == common
    assert {end.status for end in ends.values()} == {"finished"}

    read, relayed = wire
    codec, messages = Codec(PAYLOADS), []
    for _, sender, body in read:
        messages.append(codec.decode(body, sender))  # no other message is sent
    everything = b"\0".join([*(body for _, _, body in read), *relayed])
    ids = sorted(set().union(*organisations.ids.values()))
    bare = hash_to_curve([text.encode() for text in ids], DOMAIN)
    for text, point in zip(ids, bare, strict=True):
        hashes = [hashlib.new(name, text.encode()).digest() for name in ("sha256", "sha1", "md5", "sha512", "blake2b")]
        for secret in (text.encode(), point.tobytes(), *hashes, *(one.hex().encode() for one in hashes)):
            assert secret not in everything
    raised = [message.points[0].tobytes() for message in messages if isinstance(message, Points)]
    assert raised and all(point in everything for point in raised)  # the search does find what is present
    assert relayed and not any(point in body for point in raised for body in relayed)  # sealed between parties

    for name, count in COUNTS.items():  # and no file is left
        assert not (organisations.processes[name].out / "state").exists()
        log = organisations.processes[name].log.stream.getvalue()
        assert f"rows={count} ids={count} empty=0 repeated=0" in log
        assert not any(one in log for one in organisations.ids[name])


def test_training_reads_the_common_order_and_sees_when_a_file_has_changed(organisations, tools):
    organisations.align(tools)
    summary, _ = organisations.train(tools)
    assert summary["status"] == "finished"
    shares = [organisations.processes[name].application.side.share for name in COUNTS]
    assert {share.rows for share in shares} == {len(organisations.order("lab"))}
    assert {share.ids_sha256 for share in shares} == {
        load_alignment(organisations.folder / "lab/aligned.safetensors").sha256
    }

    organisations.write("lab", organisations.ids["lab"][1:])
    with pytest.raises(DataError, match="the ids of lab have changed since the alignment .79 rows now"):
        organisations.make(training_party, "lab")
    organisations.write("lab", organisations.ids["lab"])
    organisations.make(training_party, "lab")

    path = organisations.folder / "lab" / "aligned.safetensors"
    with pytest.raises(ConfigError, match=r"party.aligned = .*is the order of server's rows, not of lab's"):
        organisations.make(training_party, "lab", **{"party.aligned": str(organisations.folder / "server" / path.name)})
    path.unlink()
    with pytest.raises(ConfigError, match=r"party.aligned = .*run colonnade align CONFIG.toml"):
        organisations.make(training_party, "lab")


def test_rows_that_some_lack_are_trained_on(organisations, tools):
    ids = {name: set(held) for name, held in organisations.ids.items()}
    some = {name: {"align.min_parties": 1} for name in COUNTS}
    summary, _ = organisations.align(tools, **some)
    labelled = ids["server"] & (ids["clinic"] | ids["lab"])
    assert summary["common"] == summary["have"]["server"] == len(labelled)
    assert summary["have"]["lab"] == len(labelled & ids["lab"]) < len(labelled)
    trained, _ = organisations.train(tools, **some)
    assert trained["status"] == "finished"
    assert {organisations.processes[name].application.side.share.rows for name in COUNTS} == {len(labelled)}
    assert "some parties lack rows" in organisations.processes["server"].log.stream.getvalue()
    for kind, name in ((training_server, "server"), (training_party, "lab")):
        with pytest.raises(ConfigError, match=r"protocol.name = 'flex': needs every row of every party.*t-sync"):
            organisations.make(kind, name, **some[name], **{"protocol.name": "flex"})


@pytest.mark.parametrize(
    ("least", "labels", "words"),
    [(3, True, "there are 2 parties"), (1, False, "needs the labels at the server"), (-1, True, "0 means all")],
    ids=["too many", "no labels", "negative"],
)
def test_so_many_parties_cannot_be(least, labels, words, tmp_path, keys):
    with pytest.raises(ConfigError, match=words) as error:
        Organisations(tmp_path, keys, labels).make(aligning_server, "server", **{"align.min_parties": least})
    assert error.value.key == "align.min_parties"


def test_two_alignments_do_not_mix(organisations, tools, tmp_path):
    organisations.align(tools)
    path = organisations.folder / "lab" / "aligned.safetensors"
    before = path.read_bytes()
    organisations.align(tools)
    path.write_bytes(before)  # the lab missed the newer alignment
    with pytest.raises(
        RemoteProtocolError, match="lab has other ids than the server, or in another order: run colonnade align"
    ):
        organisations.train(tools)


def test_a_server_without_a_table_learns_sizes_only(tmp_path, keys, tools):
    organisations = Organisations(tmp_path, keys, labels=False)
    summary, _ = organisations.align(tools)
    common = set(organisations.ids["clinic"]) & set(organisations.ids["lab"])
    assert summary["common"] == len(common) and summary["ids"] == {"clinic": 70, "lab": 80}
    assert organisations.order("clinic") == organisations.order("lab") and set(organisations.order("lab")) == common
    assert not (tmp_path / "server" / "aligned.safetensors").exists()


def test_disjoint_ids_are_told_with_sizes_only(organisations, tools):
    organisations.write("lab", [f"Q-{one:05}" for one in range(9)])
    summary, ends = organisations.align(tools)
    assert summary["status"] == "refused"
    for note in (summary["note"], ends["clinic"].note, ends["lab"].note):
        assert note.startswith("no id is in all tables; ids: clinic 70, lab 9, server 60. ")
    assert not (organisations.folder / "lab" / "aligned.safetensors").exists()


@pytest.mark.parametrize("more", [1, -1], ids=["more", "fewer"])
def test_more_or_fewer_than_declared_is_refused_for_all(more, organisations, tools, monkeypatch):
    real = Node._perform

    def lie(node, effect):
        match effect:
            case Send(message=Points(owner="lab") as message) if node.role.name == "lab" and message.last:
                points = message.points[:-1] if more < 0 else np.concatenate([message.points, message.points[:1]])
                effect = Send(effect.to, msgspec.structs.replace(message, points=points))
        real(node, effect)

    monkeypatch.setattr(Node, "_perform", lie)
    summary, ends = organisations.align(tools)
    words = "sends more ids of lab than the 80" if more > 0 else "sends 79 ids of lab, fewer than the 80"
    assert summary["status"] == "refused" and summary["note"].endswith(f"lab {words} that it declared")
    assert {end.status for end in ends.values()} == {"refused"} and ends["clinic"].note == summary["note"]
    assert json.loads((organisations.processes["lab"].out / "summary.json").read_text())["note"] == summary["note"]


def test_other_rules_and_other_aims_are_refused_by_name(organisations, tools):
    with pytest.raises(RemoteProtocolError, match=r"shared config differs: align.case: 'fold' there, 'keep' here"):
        organisations.align(tools, lab={"align.case": "fold"})
    organisations.align(tools)
    with pytest.raises(RemoteProtocolError, match=r"aim: 'training' there, 'alignment' here .there: (clinic|lab);"):
        run = organisations._run(tools, aligning_server, training_party, {})
        asyncio.run(asyncio.wait_for(run, 120))


def test_a_member_whose_points_are_of_another_curve_is_refused_by_name(organisations, tools, monkeypatch):
    """Not an empty intersection: release 0.1 names no curve, and a later one may name another."""
    real = PartyAlignment.hello

    def older(alignment, *position):
        hello = real(alignment, *position)
        rules = {key: value for key, value in hello.shared["align"].items() if key != "curve"}
        return msgspec.structs.replace(hello, shared=hello.shared | {"align": rules | curve})

    monkeypatch.setattr(PartyAlignment, "hello", older)
    curve = {}
    with pytest.raises(RemoteProtocolError, match=rf"older release.*another curve: install {__version__} there"):
        organisations.align(tools)
    curve = {"curve": "P-521"}
    with pytest.raises(
        RemoteProtocolError, match=r"align.curve: 'P-521' there, 'curve25519_XMD:SHA-512_ELL2_NU_' here"
    ):
        organisations.align(tools)


def test_before_anything_is_dialled(organisations, tmp_path):
    make = organisations.make
    with pytest.raises(ConfigError, match=r"party.id = 'number': no such column in table.csv"):
        make(aligning_party, "lab", **{"party.id": "number"})
    with pytest.raises(ConfigError, match=r"party.aligned = None: name the file to write the common order to"):
        make(aligning_party, "lab", **{"party.aligned": None})
    with pytest.raises(
        ConfigError, match=r"party.aligned = 'no/where.safetensors': must end in .safetensors, in a fol"
    ):
        make(aligning_party, "lab", **{"party.aligned": "no/where.safetensors"})
    with pytest.raises(ConfigError, match=r"party.data = 'x.safetensors': name the file with the column of ids"):
        make(aligning_party, "lab", **{"party.data": "x.safetensors"})
    with pytest.raises(ConfigError, match=r"network.parties = \['lab'\]: one table needs no alignment"):
        make(aligning_server, "server", **{"network.parties": ["lab"], "server.data": None})
    with pytest.raises(
        ConfigError, match=r"network.certificate = .* is the certificate of 'lab', which is not in network.parties"
    ):
        make(aligning_party, "lab", **{"network.parties": ["clinic"]})
    with pytest.raises(ConfigError, match=r"align.case = 'upper': use one of 'keep', 'fold'"):
        make(aligning_party, "lab", **{"align.case": "upper"})
    with pytest.raises(ConfigError, match=r"align.cases = 'fold': unknown key; did you mean 'case'"):
        make(aligning_party, "lab", **{"align.cases": "fold"})
    organisations.write("lab", ["P-1", "", "P-1"])
    with pytest.raises(
        DataError, match=r"lab: .*table.csv: column 'nr': 1 rows have no id, 1 rows repeat an earlier id"
    ):
        make(aligning_party, "lab")
    made = make(aligning_party, "lab", **{"align.empty": "drop", "align.duplicates": "drop"})
    assert "rows=3 ids=1 empty=1 repeated=1" in made.log.stream.getvalue() and made.application.bars() == {
        "lab": (0, 0)
    }
    with pytest.raises(ConfigError, match=r"--party = 'clinic': network.certificate is lab's"):
        aligning_host(organisations.config("lab"), "clinic", lambda _: tmp_path, lambda _: made.log)


def test_lines_that_break_are_mended(organisations, tools, monkeypatch):
    """Small messages, and a line that breaks at every tenth message to the server or the lab."""
    received, count = Node.received, [0]

    def note(node, peer, sequence, body, *more):
        received(node, peer, sequence, body, *more)
        count[0] += 1
        if count[0] % 10 == 0 and node.role.name in ("server", "lab"):
            line = organisations.processes["server"].node.peers["lab"].stream
            if line is not None:
                line.drop("a test")

    monkeypatch.setattr(Node, "received", note)
    small = {"network.max_message_mb": 0.003, "network.heartbeat_s": 0.1, "network.lost_after_s": 30.0}
    summary, _ = organisations.align(tools, **dict.fromkeys(COUNTS, small))
    assert summary["status"] == "finished" and count[0] > 60
    assert "cause='a test'" in organisations.processes["server"].log.stream.getvalue()
    orders = [organisations.order(name) for name in COUNTS]
    assert orders[0] == orders[1] == orders[2]
    assert set(orders[0]) == set.intersection(*map(set, organisations.ids.values()))


def test_a_partys_restart_in_the_middle_ends_it_for_all(organisations, tools, monkeypatch):
    """Its secrets were only in memory."""
    real, killed = Node._perform, []

    async def scenario():
        server = organisations.make(aligning_server, "server")
        serving = asyncio.ensure_future(server.run())
        address = server.out / "address"
        await tools.until(address.is_file, "the address")
        there = {"network.address": address.read_text()}
        clinic = asyncio.ensure_future(organisations.make(aligning_party, "clinic", **there).run())
        lab = organisations.make(aligning_party, "lab", **there)

        def stop(node, effect):
            if node is lab.node and isinstance(effect, Send) and isinstance(effect.message, Points):
                killed.append(effect)
                node.ended.set()  # as a signal does
            else:
                real(node, effect)

        monkeypatch.setattr(Node, "_perform", stop)
        assert (await lab.run()).status == "stopped" and killed
        again = await organisations.make(aligning_party, "lab", **there).run()
        return await serving, again, await clinic

    summary, again, clinic = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert "lab restarted in the middle of the alignment; run colonnade align again on every" in summary["note"]
    assert again.note == clinic.note == summary["note"] and clinic.status == "refused"


def test_status_has_the_bars(organisations, tools):
    seen = []

    async def scenario():
        server = organisations.make(aligning_server, "server")
        seen.append(server.status())
        serving = asyncio.ensure_future(server.run())
        await tools.until((server.out / "address").is_file, "the address")
        there = {"network.address": (server.out / "address").read_text()}
        parties = [organisations.make(aligning_party, name, **there) for name in PARTIES]
        await asyncio.gather(*(party.run() for party in parties))
        await serving
        seen.append(server.status())

    asyncio.run(asyncio.wait_for(scenario(), 120))
    assert seen[0]["state"] == "waiting" and seen[0]["waits_for"] == ["clinic", "lab"] and seen[0]["fraction"] == 0
    assert seen[1]["state"] == "finished" and seen[1]["fraction"] == 1
    assert seen[1]["bars"] == dict.fromkeys(COUNTS, (210, 210))
