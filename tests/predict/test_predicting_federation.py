"""A whole federation that predicts, in one loop: trained from files, restarted from checkpoints, asked over HTTP."""

import asyncio
import io
import json
import shutil
from contextlib import ExitStack, asynccontextmanager, closing

import numpy as np
import polars
import pytest
import torch

from colonnade.config.schema import from_dict
from colonnade.data import Alignment, save_alignment
from colonnade.data.alignment import digest_of_column
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.ledger_file import read_ledger
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.predict.asking import door_of
from colonnade.predict.processes import predicting_party, predicting_server
from colonnade.predict.tokens import Tokens
from colonnade.privacy.gaussian import epsilon_of
from colonnade.protocol.errors import ColonnadeError, ConfigError, RemoteProtocolError

NAMES = ("bank", "shop")
ROWS, LATER = 120, 6
PATIENCE_S = 60.0
TRAIN = {"updates": 40, "eval_every": 20, "learning_rate": 0.2, "batch_size": 16}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(dial, "LONGEST_PAUSE_S", 0.1)


@pytest.fixture
def folder(tmp_path):
    """Files of the bank (with the label), of the shop, and of clients that came later."""
    generator = np.random.default_rng(0)
    ids = [f"C{row:03}" for row in generator.permutation(ROWS + LATER)]
    x = generator.normal(size=(ROWS + LATER, 5)).round(3)
    frame = polars.DataFrame({"client": ids, **{f"x{n}": x[:, n] for n in range(5)}})
    frame = frame.with_columns(polars.Series("city", generator.choice(["Rom", "Ulm"], ROWS + LATER)))
    frame = frame.with_columns(polars.Series("late", np.where(x[:, 0] + x[:, 3] > 0, "yes", "no")))
    columns = {"bank": ["x0", "x1", "city"], "shop": ["x2", "x3", "x4"]}
    for name in NAMES:
        label = ["late"] if name == "bank" else []
        frame[:ROWS].select("client", *columns[name], *label).write_csv(tmp_path / f"{name}.csv")
        frame[ROWS : ROWS + (LATER if name == "bank" else 3)].select("client", *columns[name]).write_csv(
            tmp_path / f"{name}-new.csv"
        )
    throw_away(NAMES, tmp_path / "keys")
    return tmp_path


class World:
    """The configs of all roles, and their processes in one event loop."""

    def __init__(self, folder, method="sync", **more):
        self.folder, self.method, self.address = folder, method, "127.0.0.1:0"
        self.more, self.budgets = more, {}
        self.logs = {}

    def config(self, name, **own):
        keys = self.folder / "keys"
        network = {
            "parties": list(NAMES), "address": self.address, "certificate": f"{keys}/{name}.pem",
            "key": f"{keys}/{name}.key", "authority": f"{keys}/ca.pem", "members": f"{keys}/members.toml",
        }  # fmt: skip
        if name == "server":
            section = {"server": {"data": f"{self.folder}/bank.csv", "label": "late", "id": "client"}}
        else:
            columns = ["x0", "x1", "city"] if name == "bank" else ["x2", "x3", "x4"]
            more = {"predict_data": f"{self.folder}/{name}-new.csv", "columns": columns}
            budget = {"budget": self.budgets[name]} if name in self.budgets else {}
            section = {"party": {"data": f"{self.folder}/{name}.csv", "id": "client"} | more | budget}
        if self.more.get("aligned"):
            next(iter(section.values()))["aligned"] = f"{self.folder}/{name}-order.safetensors"
        return from_dict(
            {
                "protocol": {"name": self.method},
                "model": {"party": "linear", "embedding": 3, "server": "mlp:4"} | self.more.get("model", {}),
                "train": TRAIN | self.more.get("train", {}),
                "privacy": self.more.get("privacy", {}),
                "predict": {"http": "127.0.0.1:0"} | self.more.get("predict", {}) | own,
                "network": network,
                **section,
            }
        )

    def log(self, name):
        self.logs[name] = io.StringIO()
        return Log(name, stream=self.logs[name])

    def server(self, **own):
        return ServerSide(self.config("server", **own), self.folder / "run" / "server", self.log("server"))

    def party(self, name):
        return PartySide(self.config(name), name, self.folder / "run" / name, self.log(name))

    def training_server(self):
        return ServerHost(ServerTraining(self.server()))

    def training_party(self, name):
        return PartyHost(PartyTraining(self.party(name)))

    async def train(self):
        self.address = "127.0.0.1:0"
        server = self.training_server()
        running = asyncio.ensure_future(server.run())
        await until(lambda: (server.out / "address").is_file() or running.done())
        self.address = (server.out / "address").read_text()
        ends = await asyncio.gather(running, *(self.training_party(name).run() for name in NAMES))
        assert ends[0]["status"] == "finished"

    @asynccontextmanager
    async def up(self, *names, told=None, **own):
        """Server and parties from their checkpoints; the way to ask."""
        self.address, stack = "127.0.0.1:0", ExitStack()
        server = predicting_server(self.server(**own))
        running = {"server": asyncio.ensure_future(server.run())}
        (server.out / "predict" / "http").unlink(missing_ok=True)
        try:
            await until(lambda: (server.out / "predict" / "http").is_file() or running["server"].done())
            self.address, nodes = (server.out / "address").read_text(), {}
            for name in names:
                party = predicting_party(self.party(name))
                nodes[name] = party.node
                running[name] = asyncio.ensure_future(party.run())
            peers = server.node.peers
            if told is None:
                silent = self.more.get("train", {}).get("party_dropout") or "privacy" in self.more
                told = 0 if silent else len(names)
            await until(
                lambda: all(peers[name].stream for name in names) and len(server.application.role.means()) >= told
            )
            token = stack.enter_context(Tokens(server.out / "predict").lent())
            door = stack.enter_context(closing(door_of(server.out, token)))

            async def ask(*ids):
                found = await asyncio.to_thread(door.request, "POST", "/predict", {"ids": list(ids)})
                return found["answers"]

            ask.server, ask.nodes, ask.running, ask.door = server, nodes, running, door
            yield ask
        finally:
            stack.close()
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)


async def until(condition):
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


def ids_of(folder, file, count=5):
    return polars.read_csv(folder / file)["client"].to_list()[:count]


def expected(world, ids):
    """The same from the trained networks in torch, without any messages."""
    server, parties = world.server(), [world.party(name) for name in NAMES]
    assert server.read()
    role = server.role
    blocks = []
    for party in parties:
        answering = predicting_party(party).node.role
        rows = answering.table.find(ids)
        assert (rows >= 0).all()
        blocks.append(party.role.network.reader(torch.from_numpy(answering.table.x[rows])))
    h = role.evaluation.gathered(torch.cat(blocks, 1).numpy())
    return role.network.objective.predict(role.network.output(h)).tolist()


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("sync", {}),
        ("vafl", {"train": {"party_dropout": 0.3}}),
        ("p-bcd", {}),
        ("wait", {"model": {"aggregate": "mean"}}),
        ("cascaded", {"train": {"learning_rate": 0.01}}),
    ],
    ids=["sync", "vafl-dropout", "p-bcd", "wait", "cascaded"],
)
def test_a_federation_predicts_what_its_networks_say_and_again_after_a_restart(folder, method, more):
    world = World(folder, method, **more)
    ids = ids_of(folder, "bank.csv") + ids_of(folder, "bank-new.csv", 3)

    async def story():
        await world.train()
        async with world.up(*NAMES) as ask:
            first = await ask(*ids)
        async with world.up(*NAMES) as ask:
            return first, await ask(*ids)

    first, again = asyncio.run(story())
    assert first == again, "the same bits"
    np.testing.assert_allclose([answer["probabilities"] for answer in first], expected(world, ids), rtol=0, atol=1e-6)
    assert all(answer["parties"] == list(NAMES) and answer["refused"] is None for answer in first)
    assert not any(id in log.getvalue() for log in world.logs.values() for id in ids), "no ids in logs"


def test_a_method_with_noise_answers_under_noise_that_is_never_the_same(folder):
    world = World(folder, "wait-dp", model={"aggregate": "mean"})
    id = ids_of(folder, "bank.csv", 1)[0]

    async def story():
        await world.train()
        async with world.up(*NAMES, told=0) as ask:  # no mean of training rows is sent: it would be accounted
            return [(await ask(id))[0]["probabilities"] for _ in range(2)]

    first, second = asyncio.run(story())
    assert first != second
    for name in NAMES:
        _, lines, _ = read_ledger(folder / "run" / name / "ledger.jsonl")
        assert [line["what"] for line in lines[-2:]] == ["prediction"] * 2


def test_predictions_are_perturbed_and_accounted_as_any_upload(folder):
    """Fresh noise for each, a line in the ledger for each, and nothing beyond the budget."""
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 0.5, "delta": 1e-3}
    world = World(folder, "vafl", privacy=privacy)
    id = ids_of(folder, "bank.csv", 1)[0]
    ledger = {name: folder / "run" / name / "ledger.jsonl" for name in NAMES}

    def lines(name):
        return [json.loads(line) for line in ledger[name].read_text().splitlines()]

    async def story():
        await world.train()
        before = {name: len(lines(name)) for name in NAMES}
        async with world.up(*NAMES) as ask:
            first, second = await ask(id), await ask(*[id, f" {id} "] * 1500)  # more than one message has room for
        assert first[0]["probabilities"] != second[0]["probabilities"] and first[0]["parties"] == list(NAMES)
        assert len(second) == 3000 and {str(one | {"id": id}) for one in second} == {str(second[0])}
        for name in NAMES:
            new = lines(name)[before[name] :]
            assert [line["what"] for line in new] == ["prediction"] * 2
            assert [line["sensitivity"] for line in new] == [2.0, 2.0], "of one row, for any number of requests"
        spent = lines("shop")[-1]["mu"]
        world.budgets = {"shop": {"epsilon": epsilon_of(spent * (1 + 1e-6), 1e-3), "delta": 1e-3}}
        count = len(lines("shop"))
        async with world.up(*NAMES, away=["refuse"], min_parties=1) as ask:
            (third,) = await ask(id)
        assert len(lines("shop")) == count and lines("bank")[-1]["what"] == "prediction"
        return third

    third = asyncio.run(story())
    assert "shop" not in third["parties"]


@pytest.fixture
def trained(folder):
    world = World(folder)
    asyncio.run(world.train())
    return world


def test_a_party_that_is_away_is_replaced_by_policy_and_the_answer_says_so(trained):
    ids = ids_of(trained.folder, "bank.csv", 2)

    async def story():
        async with trained.up(*NAMES) as ask:
            full = await ask(ids[0])
            ask.nodes["shop"].ended.set()
            await until(lambda: ask.server.node.peers["shop"].stream is None)
            cached, fallback = await ask(*ids)
        async with trained.up("bank", away=["refuse"]) as ask:
            refused = await ask(ids[0])
        async with trained.up("bank") as ask:  # the shop's mean was sent before, and stored
            return full[0], cached, fallback, refused[0], (await ask(ids[0]))[0]

    full, cached, fallback, refused, later = asyncio.run(story())
    assert full["parties"] == ["bank", "shop"] and not full["cached"]
    assert (cached["parties"], cached["cached"], cached["fallback"]) == (["bank"], ["shop"], [])
    assert np.allclose(cached["probabilities"], full["probabilities"], atol=1e-6)
    assert (fallback["parties"], fallback["fallback"]) == (["bank"], ["shop"]) and fallback["prediction"]
    assert refused["prediction"] is None and "nothing replaces shop" in refused["refused"]
    assert later["fallback"] == ["shop"] and later["refused"] is None


def test_a_party_that_falls_silent_during_a_request_costs_the_deadline_and_no_more(trained):
    ids = ids_of(trained.folder, "bank.csv", 2)

    async def story():
        async with trained.up(*NAMES, deadline_s=0.3) as ask:
            shop = ask.nodes["shop"]
            shop.jobs.submit = lambda work: None  # it hears the question, and never answers
            return await asyncio.wait_for(ask(*ids), PATIENCE_S)

    answers = asyncio.run(story())
    assert [answer["fallback"] for answer in answers] == [["shop"], ["shop"]]


def test_ids_that_some_have_and_that_no_member_has(trained):
    new = ids_of(trained.folder, "bank-new.csv", LATER)

    async def story():
        async with trained.up(*NAMES) as ask:
            return await ask(new[0], f" {new[-1]} ", "nobody")

    both, bank, nobody = asyncio.run(story())
    assert both["parties"] == ["bank", "shop"]
    assert (bank["parties"], bank["fallback"]) == (["bank"], ["shop"]), "trimmed, and not at the shop"
    assert nobody["refused"] == "no party has this id" and nobody["probabilities"] is None


def test_a_wrong_token_is_said(trained):
    async def story():
        async with trained.up("bank") as ask:
            with pytest.raises(ColonnadeError, match="wrong token"):
                await asyncio.to_thread(door_of(ask.server.out, "guess").request, "GET", "/status")

    asyncio.run(story())


def test_files_that_changed_since_the_training_are_refused(trained):
    path = trained.folder / "shop.csv"
    frame = polars.read_csv(path)
    frame.with_columns(x2=frame["x2"] + 1.0 * (frame["client"] == frame["client"][0])).write_csv(path)
    with pytest.raises(ConfigError, match=r"shop.*holds a run with other settings \(features"):
        predicting_party(trained.party("shop"))
    frame.reverse().write_csv(path)
    with pytest.raises(ConfigError, match=r"holds a run with other settings \((features|ids)"):
        predicting_party(trained.party("shop"))
    frame.write_csv(path)
    predicting_party(trained.party("shop"))


def test_a_party_that_still_trains_is_not_let_in(trained):
    async def story():
        async with trained.up("bank"):
            (trained.folder / "run" / "shop" / "summary.json").unlink()
            with pytest.raises(RemoteProtocolError, match="start shop with --predict"):
                await trained.training_party("shop").run()

    asyncio.run(story())


def test_a_party_that_predicts_already_waits_for_the_server_that_still_trains(trained):
    """At the end of a training one party may be quicker than another's goodbye."""

    async def story():
        trained.address = "127.0.0.1:0"
        shutil.rmtree(trained.folder / "run" / "server")
        server = trained.training_server()
        training = asyncio.ensure_future(server.run())
        await until((server.out / "address").is_file)
        trained.address = (server.out / "address").read_text()
        early = predicting_party(trained.party("shop"))
        answering = asyncio.ensure_future(early.run())
        await until(lambda: "the server is still training" in trained.logs["shop"].getvalue())
        assert not answering.done() and not training.done()
        for task in (answering, training):
            task.cancel()
        await asyncio.gather(answering, training, return_exceptions=True)
        await server.service.hang_up()
        server.node.close()

    asyncio.run(story())


def test_nothing_trained_nothing_predicted(folder):
    world = World(folder)
    with pytest.raises(ConfigError, match="training in this folder has not ended"):
        predicting_server(world.server())
    with pytest.raises(ConfigError, match="this folder holds no trained model"):
        predicting_party(world.party("bank"))
    assert not (folder / "run").exists(), "no folder that a training would use"


def test_the_status_says_which_parties_are_here(trained):
    async def story():
        async with trained.up("bank") as ask:
            return await asyncio.to_thread(ask.door.request, "GET", "/status")

    status = asyncio.run(story())
    assert {party["name"]: party["state"] for party in status["parties"]} == {
        "bank": "connected",
        "shop": "not here yet",
    }
    assert status["state"] == "predicting" and json.dumps(status)


def test_for_a_party_that_lacked_rows_stands_what_was_learned(folder):
    """A party that lacked no rows is replaced by the mean."""
    presence = np.ones((ROWS, 3), bool)
    presence[::4, 1] = False  # bank, shop, server
    held = {"bank": np.arange(ROWS), "server": np.arange(ROWS), "shop": np.where(presence[:, 1], np.arange(ROWS), -1)}
    digest = digest_of_column(polars.read_csv(folder / "bank.csv")["client"])
    for name, rows in held.items():
        seen = presence if name == "server" else None
        aligned = Alignment(name, ("bank", "shop", "server"), rows, "ab" * 32, digest, seen)
        save_alignment(aligned, folder / f"{name}-order.safetensors")

    async def answers():
        world = World(folder, aligned=True)
        await world.train()
        ids = ids_of(folder, "bank.csv", 3)
        async with world.up("bank", told=2) as ask:
            means = ask.server.application.role.means()
            taught = ask.server.application.side.role.network.reader.fallback.detach().numpy()
            assert np.array_equal(means["shop"], taught[3:]) and taught[3:].any()
            assert not taught[:3].any() and means["bank"].any()
            return await ask(*ids)

    for answer in asyncio.run(answers()):
        assert answer["parties"] == ["bank"] and answer["fallback"] == ["shop"] and not answer["refused"]
