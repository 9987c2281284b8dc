"""Predictions by masked sums: the server sees only sums, refuses an id that a party lacks, and replaces no party."""

import asyncio
import io
from contextlib import closing

import numpy as np
import pytest

from colonnade.algorithms.asysqn.holdings import predictions
from colonnade.algorithms.asysqn.messages import Ask, Members
from colonnade.algorithms.asysqn.prediction import Summed, SummedParty, SummedServer
from colonnade.algorithms.prediction.messages import Asked
from colonnade.algorithms.prediction.standing_in import AWAY, LACKS
from colonnade.algorithms.prediction.sums import Contribute
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import Lookup, from_arrays, load, party_share, save_share, server_share, split
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.predict.asking import door_of
from colonnade.predict.processes import predicting_party, predicting_server
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import Emit, PeerLost, Received, Send, Started, TimerFired, WorkDone

NAMES = ("p1", "p2", "p3")
PATIENCE_S = 60.0


async def until(condition):
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


def config_of(name, folder, address):
    network = {
        "parties": list(NAMES), "address": address, "certificate": f"{folder}/keys/{name}.pem",
        "key": f"{folder}/keys/{name}.key", "authority": f"{folder}/keys/ca.pem",
        "members": f"{folder}/keys/members.toml",
    }  # fmt: skip
    own = {"server" if name == "server" else "party": {"data": f"{folder}/{name}.safetensors"}}
    train = {"epochs": 1, "learning_rate": 0.05, "batch_size": 64, "eval_every": "1 epoch"}
    tables = {"protocol": {"name": "asysqn-sgd"}, "train": train, "predict": {"http": "127.0.0.1:0"}}
    return from_dict(tables | {"network": network} | own)


def side(name, folder, address="127.0.0.1:0"):
    config, log = config_of(name, folder, address), Log(name, stream=io.StringIO())
    if name == "server":
        return ServerSide(config, folder / "run" / name, log)
    return PartySide(config, name, folder / "run" / name, log)


async def together(server, make_party, ready):
    """All roles in one loop; return what `ready` gives once all are connected."""
    running = [asyncio.ensure_future(server.run())]
    address = server.out / "address"
    address.unlink(missing_ok=True)
    await until(lambda: address.is_file() or running[0].done())
    running += [asyncio.ensure_future(make_party(name, address.read_text()).run()) for name in NAMES]
    try:
        return await ready(running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def test_a_sum_is_what_all_margins_say_and_nothing_but_sums_crosses(tmp_path, monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.02)
    data = split(load("breast-cancer"), parties=3)
    throw_away(NAMES, tmp_path / "keys")
    save_share(server_share(data), tmp_path / "server.safetensors")
    for index, name in enumerate(("p1", "p2", "p3")):
        save_share(party_share(data, index, True), tmp_path / f"{name}.safetensors")
    renamed = dict(zip(data.parties, NAMES, strict=True))
    assert len(renamed) == 3
    sent = []
    original = Node._send
    monkeypatch.setattr(
        Node, "_send", lambda self, effect: (sent.append((effect.to, effect.message)), original(self, effect))
    )
    ids = list(data.ids[:4])

    async def train(running):
        await asyncio.gather(*running)

    async def ask(running):
        server = await_server[0]
        await until(lambda: all(peer.stream for peer in server.node.peers.values()))
        sent.clear()
        with Tokens(server.out / "predict").lent() as token, closing(door_of(server.out, token)) as door:
            return await asyncio.to_thread(door.request, "POST", "/predict", {"ids": [*ids, "nobody"]})

    await_server = []

    async def story():
        party = lambda name, at: PartyHost(PartyTraining(side(name, tmp_path, at)))  # noqa: E731
        await together(ServerHost(ServerTraining(side("server", tmp_path))), party, train)
        await_server.append(predicting_server(side("server", tmp_path)))
        party = lambda name, at: predicting_party(side(name, tmp_path, at))  # noqa: E731
        return await together(await_server[0], party, ask)

    answers = asyncio.run(story())["answers"]
    parties = [side(name, tmp_path) for name in NAMES]
    for party in parties:
        party.read()
    margins = [party.role.margins(party.share.train[:4]) for party in parties]
    expected = predictions(np.sum(margins, 0), data.task)
    assert np.allclose([answer["probabilities"] for answer in answers[:4]], expected, atol=1e-6)
    assert answers[0]["parties"] == list(NAMES) and answers[4]["refused"] == "no party has this id"
    to_server = {type(message).__name__ for to, message in sent if to == "server"}
    assert to_server == {"Found", "Summed"}
    assert all(message.values.size == 0 for to, message in sent if type(message).__name__ == "Found")
    masked = [message.values for _, message in sent if type(message).__name__ == "Masked"]
    assert masked and all(values.dtype == np.uint64 for values in masked)


@pytest.fixture
def server():
    made = SummedServer(NAMES, lambda theta: np.stack([-theta, theta], 1), 1.0)
    made.handle(Started(b"key"), 0)
    return made


def found(number, has):
    from colonnade.algorithms.prediction.messages import Found

    return Found(number, 0, np.array(has), np.zeros((sum(has), 0), np.float32))


def ask(server, *has):
    server.handle(Asked(1, ["a", "b"], list(NAMES)), 0)
    effects = []
    for name, held in zip(NAMES, has, strict=True):
        effects = server.handle(Received(name, found(1, held)), 0)
    return effects


def test_only_ids_that_all_have_are_summed(server):
    effects = ask(server, [True, True], [True, False], [True, True])
    assert all(isinstance(effect, Send) and effect.message.ids == ["a"] for effect in effects) and len(effects) == 3
    message = effects[0].message
    answer = server.handle(Received(NAMES[message.root], Summed(message.nonce, np.array([2.0]))), 1)[-1]
    assert isinstance(answer, Emit) and answer.record.values[0].tolist() == [-2, 2]
    assert answer.record.blocks[1].tolist() == [0, LACKS, 0] and not server.state.sums


@pytest.mark.parametrize("event", [TimerFired("1", 0), PeerLost("p2")])
def test_a_sum_that_does_not_come_is_no_answer(server, event):
    nonce = ask(server, [True, True], [True, True], [True, True])[0].message.nonce
    answer = server.handle(event, 1)[-1]
    assert (answer.record.blocks == AWAY).all()
    assert server.handle(Received("p1", Summed(nonce, np.zeros(2))), 2) == []


def test_with_a_party_away_nothing_is_summed(server):
    effects = server.handle(Asked(1, ["a"], ["p1", "p2"]), 0)
    effects = server.handle(Received("p1", found(1, [True])), 0)
    effects = server.handle(Received("p2", found(1, [True])), 0)
    assert not any(isinstance(effect, Send) and isinstance(effect.message, Contribute) for effect in effects)
    assert effects[-1].record.away == ["p3"] and not server.state.sums


def test_a_sum_of_another_shape_is_refused(server):
    nonce = ask(server, [True, True], [True, True], [True, True])[0].message.nonce
    with pytest.raises(RemoteProtocolError, match="shape"):
        server.handle(Received("p1", Summed(nonce, np.zeros(3))), 1)


# Trained parties: the members of their sums, and the ids for which they contribute.


def predicting(members):
    """Predicting parties whose last training sums were over these members."""
    x = np.random.default_rng(0).standard_normal((20, 3))
    data = split(from_arrays(x, np.arange(20) % 2, columns=list("abc")), how={"p1": ["a"], "p2": ["b"], "p3": ["c"]})
    protocol = {"name": "afsgd", "masking": "off"} if len(members) < 3 else {"name": "afsgd"}
    setting = federation(from_dict({"protocol": protocol, "train": {"batch_size": 4}}), data)
    made = []
    for index, role in enumerate(setting.roles()[1:]):
        role.handle(Started(b""), 0)
        role.handle(Received("server", Members(members)), 0)
        role.estimator.state.w = np.ones(role._block.columns)
        if index in members:
            ask = Ask(1, members, False, np.arange(3, dtype=np.int32))
            role.handle(Received(NAMES[members[index - 1]], ask), 0)
        table = Lookup({"a": 0, "b": 1}, np.ones((2, 1), np.float32))
        made.append(SummedParty(role, table, NAMES, setting.options))
        made[-1].handle(Started(role.name.encode()), 0)
    return made


def test_weights_that_were_summed_without_a_party_do_not_predict():
    with pytest.raises(ConfigError, match="'p1': the last sums .* with these weights left out some parties"):
        predicting([0, 1])
    assert len(predicting([0, 1, 2])) == 3


def contribute(party, message):
    """What follows from the server's order."""
    _, work = party.handle(Received("server", message), 0)
    return party.handle(WorkDone(work.token, party.compute(work.job)), 0)


def summed(questions, order):
    """The parties after a sum with root p1, for which the server asks each party its own question, and what was sent.

    All that the parties send each other arrives; an honest party refuses none of it.
    """
    parties, sent = dict(zip(NAMES, predicting([0, 1, 2]), strict=True)), []
    for name in order:
        effects = contribute(parties[name], Contribute(5, 0, questions[name]))
        new = [(name, effect) for effect in effects if isinstance(effect, Send)]
        for sender, send in new:  # grows
            if send.to != "server":
                further = parties[send.to].handle(Received(sender, send.message), 0)
                new += [(send.to, effect) for effect in further if isinstance(effect, Send)]
        sent += [send for _, send in new]
    return parties, sent


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids=["root asked first", "root asked last"])
@pytest.mark.parametrize("asked", ["abb", "aab", "aba"])
def test_a_server_that_asks_parties_for_different_ids_gets_no_sum(asked, order):
    questions = {name: [one] for name, one in zip(NAMES, asked, strict=True)}
    parties, sent = summed(questions, order)
    assert {send.to for send in sent} <= set(NAMES), "nothing goes to the server"
    entry = parties["p1"].sums.sums[0, 5]
    assert entry.own and parties["p1"].sums.take_total(5) is None
    if asked == "abb":  # the others agree, so complete sums over their ids reach the root on both trees
        assert sorted(type(send.message).__name__ for send in sent if send.to == "p1") == ["Masked", "Masks"]
        assert list(entry.masked) == list(entry.masks) == [0], "they are dropped"
    _, sent = summed({name: ["a"] for name in NAMES}, order)
    (total,) = [send.message for send in sent if send.to == "server"]
    assert isinstance(total, Summed) and total.values.shape == (1,), "asked alike, they give one"
