"""A federation outlives its certificates: they are renewed and revoked while real servers and parties run."""

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import ssl
import sys
import time

import pytest

from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment import membership
from colonnade.deployment.membership import Membership
from colonnade.deployment.own_side import OwnSide
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.processes import certificates, dial, renewal, service
from colonnade.drivers.processes.certificates import read_members
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import ConfigError, RemoteProtocolError

NAMES = ("bank", "clinic", "shop")
MEMBERS = ("server", *NAMES)
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(dial, "LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(membership, "LOOK_S", 0.05)
    monkeypatch.setattr(service, "REFUSAL_DELAYS_S", (0.0, 0.1))


class Town:
    """The federation's folder, and a folder of each member with only its own files; all processes in one loop."""

    def __init__(self, folder, protocol="vafl", days=365):
        self.home, self.folder, self.hosts, self.tasks, self.logs = folder / "federation", folder, {}, {}, {}
        labelled = protocol != "vafl"
        data = split(load("breast-cancer"), parties=len(NAMES))
        certificates.init(self.home, days=days)
        for index, name in enumerate(NAMES):
            (folder / name).mkdir()
            certificates.sign(certificates.request(name, folder / name), self.home, days)
            save_share(party_share(data, index, labelled), folder / name / "share.safetensors")
        (folder / "server").mkdir()
        shutil.copy(self.home / "server.key", folder / "server")
        if not labelled:
            save_share(server_share(data), folder / "server/share.safetensors")
        for name in MEMBERS:
            self.send(name, f"{name}.pem", "ca.pem", "members.toml")
        model = {} if labelled else {"model": {"party": "linear", "embedding": 4, "server": "linear"}}
        self.common = model | {
            "protocol": {"name": protocol},
            "train": {"batch_size": 32, "epochs": 100_000, "learning_rate": 0.01, "eval_every": "1000 epochs"},
        }

    def send(self, name, *files):
        """As by mail: the federation's files, to one member."""
        for file in files:
            shutil.copyfile(self.home / file, self.folder / name / file)

    def config(self, name, address="127.0.0.1:0"):
        own = self.folder / name
        files = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": "ca.pem", "members": "members.toml"}
        network = {key: str(own / file) for key, file in files.items()}
        network |= {"parties": list(NAMES), "address": address, "heartbeat_s": 0.5, "lost_after_s": 2.0}
        share = own / "share.safetensors"
        held = {"data": str(share)} if share.is_file() else {"rows": 569}
        return from_dict(self.common | {"network": network, "server" if name == "server" else "party": held})

    def start(self, name):
        log = self.logs[name] = Log(name, stream=io.StringIO())
        out = self.folder / name / "run"
        if name == "server":
            host = training_server(self.config(name), out, log)
        else:
            host = training_party(self.config(name, (self.folder / "server/run/address").read_text()), name, out, log)
        self.hosts[name], self.tasks[name] = host, asyncio.ensure_future(host.run())

    async def start_all(self):
        self.start("server")
        await self.until((self.folder / "server/run/address").is_file, "the address")
        for name in NAMES:
            self.start(name)
        await self.until(self.all_here, "all parties")

    async def stop(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def until(self, condition, what):
        until = time.monotonic() + PATIENCE_S
        while not condition():
            logs = "\n".join(log.stream.getvalue()[-600:] for log in self.logs.values())
            assert time.monotonic() < until, f"waited for {what}:\n{logs}"
            await asyncio.sleep(0.01)

    @property
    def server(self):
        return self.hosts["server"]

    def peer(self, name):
        return self.server.node.peers[name]

    def all_here(self, but=()):
        return all(self.peer(name).stream is not None for name in NAMES if name not in but)

    def said(self, name):
        return self.logs[name].stream.getvalue()

    async def progress(self):
        before = self.server.application.update()
        await self.until(lambda: self.server.application.update() > before + 20, "updates")

    def shows(self, name):
        """Whether the party's connection has the certificate that the federation made last."""
        shown = self.server.service.shown.get(name)
        return self.peer(name).stream is not None and shown == (self.home / f"{name}.pem").read_bytes()


def run(town, story):
    async def whole():
        try:
            await town.start_all()
            await story()
        finally:
            await town.stop()

    asyncio.run(asyncio.wait_for(whole(), 3 * PATIENCE_S))


@pytest.mark.parametrize("protocol", ["vafl", "afsgd"])  # without and with lines between the parties
def test_every_certificate_is_renewed_while_a_training_runs(tmp_path, protocol):
    town = Town(tmp_path, protocol)

    async def story():
        await town.progress()
        for name in NAMES:  # the party has its new certificate before the server has the new list
            renewal.renew(name, town.home)
            town.send(name, f"{name}.pem")
            await town.until(lambda: "certificate renewed" in town.said(name), "the new certificate")  # noqa: B023
            town.peer(name).stream.drop("the test cut it")
            await town.until(lambda: "needs the new members.toml" in town.said(name), "a refusal")  # noqa: B023
            for member in MEMBERS:
                town.send(member, "members.toml")
            await town.until(lambda: town.shows(name), f"{name} with its new certificate")  # noqa: B023
            await town.progress()
        renewal.renew_server(town.home)
        town.send("server", "server.pem", "members.toml")
        await town.until(lambda: "certificate renewed" in town.said("server"), "the server's new certificate")
        for name in NAMES:
            town.peer(name).stream.drop("the test cut it")
            await town.until(lambda: "this party needs the new members.toml" in town.said(name), "a refusal")  # noqa: B023
            town.send(name, "members.toml")
        await town.until(town.all_here, "all parties")
        await town.progress()
        renewal.renew_authority(town.home)
        for member in MEMBERS:
            town.send(member, "ca.pem")
        town.peer("bank").stream.drop("the test cut it")
        await town.until(town.all_here, "all parties")
        await town.progress()
        assert "reset" not in town.said("server"), "no conversation was lost"
        assert "members changed renewed=shop" in town.said("server")

    run(town, story)
    for name in NAMES:  # a party's state is still its own
        party = PartySide(town.config(name), name, tmp_path / name / "run", Log(name, stream=io.StringIO()))
        party.refuse_others_state()


def test_a_revoked_party_is_refused_and_comes_back_with_a_new_key(tmp_path):
    town = Town(tmp_path)

    async def story():
        await town.progress()
        assert renewal.revoke("shop", town.home) == ["server", "bank", "clinic"]
        town.send("server", "members.toml")
        with pytest.raises(RemoteProtocolError, match="refused this party: the certificate of 'shop' was revoked"):
            await town.tasks.pop("shop")
        await town.progress()  # without it
        assert town.all_here(but=["shop"])
        states = {party["name"]: party["state"] for party in town.server.status()["parties"]}
        assert states == {"bank": "connected", "clinic": "connected", "shop": "given up"}
        assert "members changed removed=shop" in town.said("server")
        town.start("shop")  # its list still has it
        with pytest.raises(RemoteProtocolError, match="was revoked"):
            await town.tasks.pop("shop")
        assert (tmp_path / "shop/run/state/made_with.json").is_file()

        with pytest.raises(ConfigError, match="has the key of a certificate that was revoked"):
            certificates.sign(tmp_path / "shop/shop.csr", town.home)
        certificates.sign(certificates.request("shop", tmp_path / "new"), town.home)
        shutil.copy(tmp_path / "new/shop.key", tmp_path / "shop/shop.key")
        town.send("shop", "shop.pem", "members.toml")
        town.send("server", "members.toml")
        await town.until(lambda: "members changed added=shop" in town.said("server"), "the new list")
        town.start("shop")
        await town.until(lambda: town.shows("shop"), "shop again")
        assert "continuing" in town.said("shop"), "its state was not lost"
        await town.progress()

    run(town, story)


def test_a_server_starts_without_a_revoked_party(tmp_path):
    town = Town(tmp_path)
    renewal.revoke("shop", town.home)
    for name in ("server", "bank"):
        town.send(name, "members.toml")

    async def story():
        town.start("server")
        await town.until((tmp_path / "server/run/address").is_file, "the address")
        town.start("bank")
        await town.until(lambda: town.peer("bank").stream is not None, "the bank")
        assert town.peer("shop").standing.given_up == "the certificate of 'shop' was revoked"
        await town.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    lines = [line for line in (town.home / "members.toml").read_text().splitlines() if "bank" not in line]
    (tmp_path / "server/members.toml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="has no fingerprint of bank"):
        OwnSide(town.config("server"), tmp_path / "x", Log("server"))


# Files


def side_of(town, name):
    return OwnSide(town.config(name), town.folder / "x", Log(name, stream=io.StringIO()))


def changes_of(side):
    told = []
    return told, Membership(side, lambda: told.append(dict(side.pins)))


def settle(found):
    found.look()
    found.look()


def test_a_bad_list_is_refused_and_the_old_one_stays(tmp_path):
    town = Town(tmp_path)
    side, path = side_of(town, "bank"), tmp_path / "bank/members.toml"
    told, found = changes_of(side)
    before = side.pins
    whole = path.read_text()
    strangers = tmp_path / "strangers"
    certificates.throw_away(NAMES, strangers)
    for text, cause in ((whole[:-70], "is not TOML"), ("[members]\n", "has no fingerprint of bank"), ("", "must hold")):
        path.write_text(text)
        settle(found)
        assert cause in side.log.stream.getvalue()
        settle(found)
    assert side.log.stream.getvalue().count("refused new certificates") == 3, "each version once"
    shutil.copy(strangers / "ca.pem", tmp_path / "bank/ca.pem")
    settle(found)
    assert "was not signed by" in side.log.stream.getvalue()
    assert (side.pins, told) == (before, [])
    for file in ("bank.pem", "bank.key", "ca.pem", "members.toml"):
        shutil.copy(strangers / file, tmp_path / "bank" / file)
    settle(found)
    assert "another authority" in side.log.stream.getvalue() and told == []
    (tmp_path / "bank/members.toml").unlink()
    settle(found)
    assert "No such file" in side.log.stream.getvalue() and side.pins == before


def test_a_file_that_is_still_being_written_is_not_read(tmp_path):
    town = Town(tmp_path)
    side = side_of(town, "bank")
    told, found = changes_of(side)
    whole = (town.home / renewal.renew("clinic", town.home).name).parent / "members.toml"
    path = tmp_path / "bank/members.toml"
    path.write_bytes(whole.read_bytes()[:80])
    found.look()
    path.write_bytes(whole.read_bytes())
    found.look()
    assert side.log.stream.getvalue() == "" and told == []
    found.look()
    assert told == [dict(read_members(whole))] and "members changed renewed=clinic" in side.log.stream.getvalue()


def test_a_list_that_came_while_the_data_were_loaded_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_S", 1000.0)
    town = Town(tmp_path)
    side = side_of(town, "bank")
    renewal.revoke("shop", town.home)
    town.send("bank", "members.toml")

    async def story():
        told, found = changes_of(side)
        watch = asyncio.ensure_future(found.watch())
        await asyncio.sleep(0)
        watch.cancel()
        return told

    before = signal.getsignal(signal.SIGHUP)
    assert [list(pins) for pins in asyncio.run(story())] == [["server", "bank", "clinic"]]
    signal.signal(signal.SIGHUP, before)


def test_a_certificate_that_a_role_cannot_use_is_refused_whole(tmp_path):
    town = Town(tmp_path)
    side = side_of(town, "bank")
    own = side.identity

    def cannot():
        raise ConfigError("network.key", "bank", "must be a P-256 key")

    found = Membership(side, cannot)
    renewal.renew("bank", town.home)
    town.send("bank", "bank.pem", "members.toml")
    settle(found)
    assert side.identity == own and "must be a P-256 key" in side.log.stream.getvalue()
    assert "certificate renewed" not in side.log.stream.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_hangup_reads_the_files_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_S", 1000.0)
    town = Town(tmp_path)
    side = side_of(town, "bank")

    async def story():
        told, found = changes_of(side)
        watch = asyncio.ensure_future(found.watch())
        await asyncio.sleep(0)
        renewal.revoke("shop", town.home)
        town.send("bank", "members.toml")
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(PATIENCE_S):
            while not told:
                await asyncio.sleep(0.01)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        assert "shop" not in told[0]

    before = signal.getsignal(signal.SIGHUP)
    asyncio.run(story())
    signal.signal(signal.SIGHUP, before)


def test_the_endpoint_for_predictions_shows_the_new_certificate(tmp_path):
    from colonnade.predict.processes import _tls

    town = Town(tmp_path)
    side = side_of(town, "server")
    _, found = changes_of(side)
    context = _tls(side, tmp_path / "shown.pem")

    async def shown():
        door = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with door:
            return await asyncio.to_thread(ssl.get_server_certificate, door.sockets[0].getsockname())

    before = asyncio.run(shown()).split()
    assert before == (town.home / "server.pem").read_text().split()
    renewal.renew_server(town.home)
    town.send("server", "server.pem", "members.toml")
    settle(found)
    assert asyncio.run(shown()).split() == (town.home / "server.pem").read_text().split() != before
    assert (tmp_path / "shown.pem").read_bytes() == (town.home / "server.pem").read_bytes()


# Dates


def test_an_expiry_is_warned_of_once_a_day(tmp_path):
    town = Town(tmp_path, days=20)
    side, clock = side_of(town, "bank"), [0.0]
    found = Membership(side, lambda: None, lambda: {"clinic": 3, "shop": 30}, lambda: clock[0])
    days = found.days()
    assert days["bank"] in (19, 20) and days == {"bank": days["bank"], "ca": days["ca"], "clinic": 3, "shop": 30}
    for hour in range(49):
        clock[0] = hour * 3600.0
        found.warn()
    lines = side.log.stream.getvalue().splitlines()
    assert sum("member=bank days=" in line for line in lines) == 3 and len(lines) == 6
    assert "expires soon: the federation renews it with `colonnade certs renew clinic`" in lines[1]


def test_status_and_metrics_have_the_days(tmp_path):
    from rich.console import Console

    from colonnade.cli.live import status_table
    from colonnade.drivers.processes.metrics import _Collector

    town = Town(tmp_path, days=10)

    async def story():
        await town.until(lambda: "member=shop days=9" in town.said("server"), "the warning")  # a second has passed
        status = town.server.status()
        days = status["certificate_days"]
        assert set(days) == {"server", "ca", *NAMES} and {days[name] for name in MEMBERS} == {9}
        console = Console(file=io.StringIO(), width=200)
        console.print(status_table(status))
        assert "certificates to renew: server 9 days, bank 9 days" in console.file.getvalue()
        samples = {
            (sample.name, sample.labels.get("member")): sample.value
            for family in _Collector(lambda: status).collect()
            for sample in family.samples
        }
        assert samples["colonnade_certificate_days", "bank"] == 9
        assert "a certificate expires soon" in town.said("bank")

    time.sleep(1.1)  # certificates have whole seconds: now nine days and a part are left
    run(town, story)


# States of earlier releases


def test_a_state_with_fingerprints_continues(tmp_path):
    town = Town(tmp_path)

    def party(**tables):
        town.common |= tables
        return PartySide(town.config("bank"), "bank", tmp_path / "bank/run", Log("bank", stream=io.StringIO()))

    party().refuse_others_state()
    path = tmp_path / "bank/run/state/made_with.json"
    made_with = json.loads(path.read_text())
    assert made_with["shared"].pop("federation")["members"] == ["bank", "clinic", "server", "shop"]
    text = json.dumps(made_with)
    assert not any(mark in text for mark in read_members(town.home / "members.toml").values())
    made_with["shared"]["members"] = dict.fromkeys(MEMBERS, "ab" * 32)
    path.write_text(json.dumps(made_with))
    with pytest.raises(ConfigError, match=r"shared\.model\.embedding: 4 there, 8 here"):
        party(model={"party": "linear", "embedding": 8, "server": "linear"}).refuse_others_state()
    party(model={"party": "linear", "embedding": 4, "server": "linear"}).refuse_others_state()
    assert "federation" in json.loads(path.read_text())["shared"], "written in today's form"
    other = json.loads(path.read_text())
    other["shared"]["federation"]["authority"] = "cd" * 32
    path.write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=r"shared\.federation\.authority: 'cdcd"):
        party().refuse_others_state()
