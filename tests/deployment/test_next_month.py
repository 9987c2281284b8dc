"""A federation of separate members trains in May. In June it continues with new rows, a new column, a party more."""

import asyncio
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import polars
import pytest

from colonnade.config.schema import from_dict
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.wire import PROTOCOL, Hello, Position
from colonnade.predict.processes import predicting_party
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError
from colonnade.results.trained import CONTINUED, MODEL, find_models

PATIENCE_S = 60.0
NAMES = ("bank", "clinic", "shop")


class Members:
    """The files of all members, and a process for each of them in this loop."""

    def __init__(self, folder):
        self.folder = folder
        throw_away(NAMES, folder / "certificates")

    def tables(self, month, rows, seed, more=False):
        draw, place = np.random.default_rng(seed), self.folder / month
        place.mkdir()
        x = draw.normal(seed, 2, (rows, 4))
        ids = [f"c{number}" for number in range(rows)]
        bank = {"id": ids, "age": x[:, 0], "city": draw.choice(["Bern", "Oslo"], rows)}
        bank |= {"debts": x[:, 3]} if more else {}
        polars.DataFrame(bank).write_csv(place / "bank.csv")
        polars.DataFrame({"id": ids, "visits": x[:, 1]}).write_csv(place / "shop.csv")
        polars.DataFrame({"id": ids, "pulse": x[:, 2]}).write_csv(place / "clinic.csv")
        y = (x[:, 0] + x[:, 1] > 2 * seed).astype(int)
        polars.DataFrame({"id": ids, "label": y}).write_csv(place / "server.csv")

    def config(self, name, month, parties, address="127.0.0.1:0", **own):
        files, data = self.folder / "certificates", {"data": str(self.folder / month / f"{name}.csv"), "id": "id"}
        network = {"parties": list(parties), "address": address, "certificate": str(files / f"{name}.pem")}
        network |= {"key": str(files / f"{name}.key"), "authority": str(files / "ca.pem")}
        network |= {"members": str(files / "members.toml"), "admit_late": False, "give_up_s": 20.0}
        section = {"server": data | {"label": "label"}} if name == "server" else {"party": data | own}
        model = {"party": "mlp:5", "embedding": 3, "server": "mlp:4"}
        train = {"updates": 30, "eval_every": 10, "seed": 1}
        return from_dict({"network": network, "model": model, "protocol": {"name": "vafl"}, "train": train} | section)

    def side(self, name, month, parties, continues=None, out=None, address="127.0.0.1:0", **own):
        config, log = self.config(name, month, parties, address, **own), Log(name, stream=io.StringIO())
        out = out or self.folder / f"{name}-{month}"
        if name == "server":
            return ServerSide(config, out, log, continues)
        return PartySide(config, name, out, log, continues)

    def train(self, month, parties, continues):
        """Run all members to the end; returns the ends of the parties, or the error of one."""
        return asyncio.run(asyncio.wait_for(self._train(month, parties, continues), PATIENCE_S))

    async def _train(self, month, parties, continues):
        server = ServerHost(ServerTraining(self.side("server", month, parties, continues.get("server"))))
        running = [asyncio.ensure_future(server.run())]
        try:
            while not (address := server.out / "address").is_file():
                await asyncio.sleep(0.01)
            for name in parties:
                side = self.side(name, month, parties, continues.get(name), address=address.read_text())
                running.append(asyncio.ensure_future(PartyHost(PartyTraining(side)).run()))
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def folders(self, *names):
        return {name: self.folder / f"{name}-may" for name in names}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    made = Members(tmp_path_factory.mktemp("members"))
    made.tables("may", 90, 0)
    made.tables("june", 70, 3, more=True)
    made.train("may", ("bank", "shop"), {})
    return made


def test_every_member_keeps_its_own_network_only(members):
    run = (members.folder / "server-may" / "run_id").read_text()
    for name in ("server", "bank", "shop"):
        found, own = find_models(members.folder / f"{name}-may")
        assert found == run and list(own) == [name]
        assert (members.folder / f"{name}-may" / MODEL).stat().st_mode & 0o077 == 0


def test_june_starts_from_may_with_new_rows_a_new_column_and_a_party_more(members):
    ends = members.train("june", NAMES, members.folders("server", "bank", "shop"))
    assert [end["status"] if isinstance(end, dict) else end.status for end in ends] == ["finished"] * 4
    place = members.folder / "server-june"
    summary = json.loads((place / "summary.json").read_text())
    run = (members.folder / "server-may" / "run_id").read_text()
    assert summary["continued_from"] == {"folder": "server-may", "run": run}
    assert (place / "run_id").read_text() != run and summary["parties"] == 3
    said = json.loads((members.folder / "bank-june" / "summary.json").read_text())
    assert said["continued_from"] == {"folder": "bank-may", "run": run}
    assert "continued_from" not in json.loads((members.folder / "clinic-june" / "summary.json").read_text())
    # May's mean stays: the ages of June are about 3 higher, and so are the scaled ones.
    side = members.side("bank", "june", NAMES)
    assert side.before is not None and side.share.train[:, 0].mean() > 1
    fresh = members.side("bank", "june", NAMES, out=members.folder / "elsewhere")
    assert abs(fresh.share.train[:, 0].mean()) < 1e-5
    answering = predicting_party(members.side("bank", "june", NAMES))  # without --continue: the folder knows
    assert answering.application.side.role.network.digest() == said["weights"]


def hello(side, **change):
    shared = PartyTraining(side).hello(1, Position(0, 0, 0, 0)).shared | change
    return Hello(
        PROTOCOL, "0", shared, side.share.rows, side.share.ids_sha256, side.width, "float32", 1, Position(0, 0, 0, 0)
    )


def test_the_handshake_compares_the_runs_and_says_what_to_type(members, tmp_path):
    folders = members.folders("server", "bank", "shop")
    server = members.side("server", "june", NAMES, folders["server"], tmp_path / "server")
    terms = server.terms(server.shared)
    bank = members.side("bank", "june", NAMES, folders["bank"], tmp_path / "bank")
    clinic = members.side("clinic", "june", NAMES, out=tmp_path / "clinic")
    plain = members.side("bank", "june", NAMES, out=tmp_path / "plain")
    assert terms("bank", hello(bank)) is None and terms("clinic", hello(clinic)) is None
    said = terms("bank", hello(plain))
    assert "in which bank was; bank starts untrained: start bank with --continue FOLDER" in said
    assert "bank continues run 'ffff'" in terms("bank", hello(plain, continues="ffff"))
    said = terms("clinic", hello(clinic, continues=server.before.run))
    assert "in which clinic was not: start clinic without --continue" in said
    assert terms("bank", hello(plain, continues=["x"])) and terms("bank", hello(plain, continues={"a": 1}))
    fresh = members.side("server", "june", NAMES, out=tmp_path / "fresh")
    assert fresh.shared == server.shared  # people compare the same digest
    said = fresh.terms(fresh.shared)("bank", hello(bank))
    assert "but the server starts a new run: start bank without --continue, or the server with it" in said
    assert fresh.terms(fresh.shared)("bank", hello(plain)) is None


def test_a_party_that_was_away_at_the_end_may_start_either_way(members, tmp_path):
    folders = members.folders("server", "bank")
    server = members.side("server", "june", NAMES, folders["server"], tmp_path / "server")
    member = server.before.members["server"]
    part = replace(member.server, away=("bank",))
    server.before = replace(server.before, members={"server": replace(member, server=part)})
    terms = server.terms(server.shared)
    for given in (None, folders["bank"]):
        bank = members.side("bank", "june", NAMES, given, tmp_path / f"bank-{given is None}")
        assert terms("bank", hello(bank)) is None
    assert terms("bank", hello(bank, continues="ffff")) is not None


def test_the_same_command_typed_again_needs_no_earlier_folder(members, tmp_path):
    shutil.copytree(members.folder / "bank-may", tmp_path / "may")
    PartyTraining(members.side("bank", "june", NAMES, tmp_path / "may", tmp_path / "june")).prepare()
    with pytest.raises(ConfigError, match="the run in .*june continues may: choose another --out"):
        found = state.unpack((tmp_path / "may" / MODEL).read_bytes())
        (tmp_path / "may" / MODEL).write_bytes(state.pack(found | {"run": "another"}))
        members.side("bank", "june", NAMES, tmp_path / "may", tmp_path / "june")
    shutil.rmtree(tmp_path / "may")
    assert members.side("bank", "june", NAMES, tmp_path / "may", tmp_path / "june").before.folder == "may"


def test_wrong_folders_are_refused(members, tmp_path):
    folders = members.folders("server", "bank", "shop")
    with pytest.raises(ConfigError, match="has the network of shop, not of bank: name bank's folder"):
        members.side("bank", "june", NAMES, folders["shop"], tmp_path / "a")
    with pytest.raises(ConfigError, match="has the network of bank, not of server"):
        members.side("server", "june", NAMES, folders["bank"], tmp_path / "a")
    with pytest.raises(ConfigError, match="the run in .*bank-may starts from untrained networks: choose another --out"):
        members.side("bank", "may", ("bank", "shop"), folders["bank"], folders["bank"])
    with pytest.raises(ConfigError, match="party.columns = 'city': is missing"):
        members.side("bank", "june", NAMES, folders["bank"], tmp_path / "b", columns=["age"])
    dropped = {"columns": ["age"], "drop_columns": ["city"]}
    assert members.side("bank", "june", NAMES, folders["bank"], tmp_path / "b", **dropped).before is not None


def test_a_party_that_was_never_welcomed_leaves_no_start_behind(members, tmp_path):
    side = members.side("bank", "june", NAMES, members.folders("bank")["bank"], tmp_path / "bank")
    training = PartyTraining(side)
    training.prepare()
    assert (tmp_path / "bank" / CONTINUED).is_file()
    training.closed(met=False)
    assert not list((tmp_path / "bank").iterdir())
