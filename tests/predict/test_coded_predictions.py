"""Predictions of `fedvs`: coded sums over all parties, exact with any straggler; the server sees nothing else."""

import asyncio
import io
import types
from contextlib import closing

import numpy as np
import pytest

from colonnade.algorithms.fedvs.prediction import CodedAnswer, CodedParty, CodedShare
from colonnade.algorithms.prediction.messages import Asked, Found, Question
from colonnade.algorithms.prediction.sums import Contribute
from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
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
from colonnade.models.polynomial import powers
from colonnade.predict.asking import door_of
from colonnade.predict.processes import predicting_party, predicting_server
from colonnade.predict.tokens import Tokens
from colonnade.privacy.field import P
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import Emit, Received, Send, Started, WorkDone

NAMES = tuple(f"p{n}" for n in range(5))
PATIENCE_S = 60.0
ASKED = 5


class World:
    """A federation of five, trained once."""

    def __init__(self, folder, **protocol):
        self.protocol = {"name": "fedvs"} | protocol
        self.folder, self.data = folder, split(load("breast-cancer"), parties=5, scale="minmax")
        throw_away(NAMES, folder / "keys")
        save_share(server_share(self.data), folder / "server.safetensors")
        for index, name in enumerate(NAMES):
            save_share(party_share(self.data, index), folder / f"{name}.safetensors")

    def side(self, name, address="127.0.0.1:0"):
        keys = self.folder / "keys"
        network = {
            "parties": list(NAMES), "address": address, "certificate": f"{keys}/{name}.pem",
            "key": f"{keys}/{name}.key", "authority": f"{keys}/ca.pem", "members": f"{keys}/members.toml",
        }  # fmt: skip
        tables = {
            "protocol": self.protocol,
            "model": {"party": "polynomial:2", "embedding": 3, "aggregate": "mean", "server": "mlp:4"},
            "train": {"updates": 4, "learning_rate": 0.1, "batch_size": 64, "eval_every": 4},
            "predict": {"http": "127.0.0.1:0", "deadline_s": 2.0},
            "network": network,
            "server" if name == "server" else "party": {"data": f"{self.folder}/{name}.safetensors"},
        }
        self.log = self.log if name != "server" else io.StringIO()  # of the newest server
        log, out = Log(name, stream=self.log if name == "server" else io.StringIO()), self.folder / "run" / name
        if name == "server":
            return ServerSide(from_dict(tables), out, log)
        return PartySide(from_dict(tables), name, out, log)

    async def together(self, wrap_server, wrap_party, names, then):
        server = wrap_server(self.side("server"))
        address = server.out / "address"
        address.unlink(missing_ok=True)
        running = [asyncio.ensure_future(server.run())]
        await until(lambda: address.is_file() or running[0].done())
        at = address.read_text()
        running += [asyncio.ensure_future(wrap_party(self.side(name, at)).run()) for name in names]
        try:
            return await then(server, running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def train(self):
        async def end(server, running):
            return (await asyncio.gather(*running))[0]["status"]

        server = lambda side: ServerHost(ServerTraining(side))  # noqa: E731
        party = lambda side: PartyHost(PartyTraining(side))  # noqa: E731
        assert asyncio.run(self.together(server, party, NAMES, end)) == "finished"

    def ask(self, *ids, names=NAMES):
        async def then(server, running):
            await until(lambda: all(server.node.peers[name].stream for name in names))
            with Tokens(server.out / "predict").lent() as token, closing(door_of(server.out, token)) as door:
                return (await asyncio.to_thread(door.request, "POST", "/predict", {"ids": list(ids)}))["answers"]

        return asyncio.run(self.together(predicting_server, predicting_party, names, then))

    def plain(self, rows):
        """The predictions of a single process that has all columns, without the code."""
        server, h = self.side("server"), []
        server.read()
        for name in NAMES:
            party = self.side(name)
            party.read()
            role = party.role
            weights = role.network.vector().reshape(-1, role.width)
            h.append(powers(party.share.train[rows], role.degree) @ weights)
        network = server.role.network
        return network.objective.predict(network.output(np.mean(h, axis=0, dtype=np.float32)))


async def until(condition):
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("coded"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dial, "FIRST_PAUSE_S", 0.02)
        world.train()
        yield world


@pytest.fixture
def sent(monkeypatch):
    """All messages while questions are answered; p4 sends nothing to the server after sharing."""
    messages, original = [], Node._send

    def note(self, effect):
        messages.append((self.role.name, effect.to, effect.message))
        if not (note.straggles and self.role.name == "p4" and isinstance(effect.message, CodedAnswer)):
            original(self, effect)

    note.straggles = False
    monkeypatch.setattr(Node, "_send", note)
    return types.SimpleNamespace(messages=messages, note=note)


def test_the_sum_is_that_of_all_and_nothing_but_shares_and_sums_crosses(trained, sent):
    ids = list(trained.data.ids[:ASKED])
    answers = trained.ask(*ids, "nobody")
    found = [answer["probabilities"] for answer in answers[:ASKED]]
    np.testing.assert_allclose(found, trained.plain(np.arange(ASKED)), atol=2e-3)
    assert answers[0]["parties"] == list(NAMES) and answers[ASKED]["refused"] == "no party has this id"
    to_server = [message for _, to, message in sent.messages if to == "server"]
    assert {type(message).__name__ for message in to_server} == {"Found", "CodedAnswer"}
    assert all(message.values.size == 0 for message in to_server if not isinstance(message, CodedAnswer))
    shares = [message for _, to, message in sent.messages if isinstance(message, CodedShare)]
    assert len(shares) == 20 and all(share.data.dtype == np.uint32 for share in shares)

    again = trained.ask(*ids)  # all restarted from their folders
    assert [answer["probabilities"] for answer in again] == found  # bit for bit, under other masks
    fresh = [message for _, _, message in sent.messages if isinstance(message, CodedShare)][20:]
    assert not any(np.array_equal(one.data, other.data) for one in shares for other in fresh)


def test_a_party_that_straggles_after_sharing_is_not_needed(trained, sent):
    ids = list(trained.data.ids[:ASKED])
    sent.note.straggles = True
    found = [answer["probabilities"] for answer in trained.ask(*ids)]
    np.testing.assert_allclose(found, trained.plain(np.arange(ASKED)), atol=2e-3)


# Wrong answers. R = 3 of five parties; with `spare = 2` the server finds one wrong answer.


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("checked"), K=1, T=1, spare=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dial, "FIRST_PAUSE_S", 0.02)
        world.train()
        yield world


def changed(monkeypatch, change):
    """Pass every answer of a party through `change`; None: it is not sent."""
    original = Node._send

    def send(self, effect):
        message = effect.message
        if isinstance(message, CodedAnswer):
            message = change(self.role.name, message)
        if message is not None:
            original(self, Send(effect.to, message))

    monkeypatch.setattr(Node, "_send", send)


def off(answer, by=1):
    return CodedAnswer(answer.nonce, (answer.values + by) % np.uint32(P))


@pytest.mark.parametrize("liar", ["p0", "p4"])
def test_a_wrong_answer_is_located_and_the_prediction_is_exact(checked, monkeypatch, liar):
    calm = checked.ask(*checked.data.ids[:ASKED])
    changed(monkeypatch, lambda name, answer: off(answer) if name == liar else answer)
    assert checked.ask(*checked.data.ids[:ASKED]) == calm
    assert f"wrong answer to a prediction, left out party={liar}" in checked.log.getvalue()


def test_wrong_answers_that_cannot_be_located_are_no_prediction(checked, monkeypatch):
    lies = {"p1": 1, "p3": 2}  # with twice the same lie, p2 would fit worse
    changed(monkeypatch, lambda name, answer: off(answer, lies.get(name, 0)))
    (answer,) = checked.ask(checked.data.ids[0])
    assert answer["probabilities"] is None and answer["refused"]
    assert "the answers do not fit together" in checked.log.getvalue()


def test_a_prediction_waits_half_of_the_deadline_for_spare_answers(checked, monkeypatch):
    (calm,) = checked.ask(checked.data.ids[0])
    changed(monkeypatch, lambda name, answer: None if name in ("p1", "p3") else answer)
    assert checked.ask(checked.data.ids[0]) == [calm]


def test_answers_that_cannot_be(checked):
    server, ids = predicting_server(checked.side("server")).node.role, list(checked.data.ids[:2])
    server.handle(Started(b"key"), 0)
    server.handle(Asked(1, ids, list(NAMES)), 0)
    for name in NAMES:
        effects = server.handle(Received(name, Found(1, 0, np.ones(2, bool), np.zeros((2, 0), np.float32))), 0)
    nonce = next(effect.message.nonce for effect in effects if isinstance(effect, Send))
    good = np.zeros((2, 3), np.uint32)
    for values in (good[:1], good[:, :2], good.astype(np.int64), good + np.uint32(P), good.astype(np.float32)):
        with pytest.raises(RemoteProtocolError, match="p1: a coded sum"):
            server.handle(Received("p1", CodedAnswer(nonce, values)), 0)
    assert server.handle(Received("p1", CodedAnswer(nonce + 1, good)), 0) == [], "of no sum, or too late"
    server.handle(Received("p1", CodedAnswer(nonce, good)), 0)
    with pytest.raises(RemoteProtocolError, match="p1: answers one sum twice"):
        server.handle(Received("p1", CodedAnswer(nonce, good + np.uint32(1))), 0)
    assert list(server.state.answers[nonce].values) == [1]


def test_rows_in_segments(tmp_path, monkeypatch):
    """Five ids in two segments, one place of padding; all answers are needed."""
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.02)
    world = World(tmp_path, K=2, T=1)
    world.train()
    found = [answer["probabilities"] for answer in world.ask(*world.data.ids[:ASKED])]
    np.testing.assert_allclose(found, world.plain(np.arange(ASKED)), atol=2e-3)


def test_nothing_stands_in_for_a_party_that_is_away(trained):
    answer = trained.ask(trained.data.ids[0], names=NAMES[:4])[0]
    assert "p4" in answer["refused"] and answer["probabilities"] is None


@pytest.fixture
def party(trained):
    made = predicting_party(trained.side("p0")).node.role
    made.handle(Started(b"key"), 0)
    return made


def shares_of(party, nonce, ids):
    """What it sends to the others."""
    _, work = party.handle(Received("server", Contribute(nonce, 0, ids)), 0)
    return party.handle(WorkDone(work.token, party.compute(work.job)), 0)


def test_a_party_refuses_what_cannot_be(trained, party):
    ids = list(trained.data.ids[:2])
    sends = shares_of(party, 1, ids)
    assert [send.to for send in sends] == list(NAMES[1:])
    share = sends[0].message
    for wrong in (
        CodedShare(1, b"other ids", share.data, share.model, share.blinding),
        CodedShare(1, share.asked, share.data[:0], share.model, share.blinding),
        CodedShare(1, share.asked, share.data, share.model[:, :1], share.blinding),
        CodedShare(1, share.asked, share.data, share.model, share.blinding[:0]),
    ):
        with pytest.raises(RemoteProtocolError, match="p1"):
            party.handle(Received("p1", wrong), 0)
    assert party.handle(Received("p1", share), 0) == []
    with pytest.raises(RemoteProtocolError, match="twice"):
        party.handle(Received("p1", share), 0)
    for question in (["nobody"], []):
        refused = Question(len(question), 0, len(question), "malformed")
        assert party.handle(Received("server", Contribute(2, 0, question)), 0) == [Emit(refused)]


def test_shares_may_come_before_the_order(trained, party):
    ids = list(trained.data.ids[:2])
    share = shares_of(party, 1, ids)[0].message
    for name in NAMES[1:]:
        early = CodedShare(2, share.asked, share.data, share.model, share.blinding)
        assert party.handle(Received(name, early), 0) == []
    effects = shares_of(party, 2, ids)
    answer = party.compute(effects[-1].job)
    assert isinstance(effects[-2], Send) and answer.values.shape == (2, 3) and list(party.state.sums) == [1]


def test_after_sums_over_others_it_does_not_predict(trained):
    """With the same weights, a sum over all parties would reveal an embedding by subtraction."""
    side = trained.side("p0")
    side.read()
    role = side.role
    assert all(list(summed) == list(range(5)) for _, _, summed in role.answered.sums)
    role.answered.sums = [(True, 0, dict.fromkeys([0, 1, 2, 4], 0))]
    with pytest.raises(ConfigError, match="by subtraction"):
        CodedParty(role, None, NAMES, side.plan.options)
