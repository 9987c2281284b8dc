"""What one lying FedVS member cannot do to the others: run ahead, forge numbers, crowd out shares, decline for ever."""

import msgspec
import numpy as np
import pytest

from colonnade.algorithms.fedvs.holdings import LAST_ROUND, NEVER
from colonnade.algorithms.fedvs.messages import Answer, Declined, Holding, ModelShare, Prepared, ShareModels, Sum
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received, Send

MODEL = {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"}
FAR = LAST_ROUND - 1


def tables(**protocol):
    train = {"batch_size": 64, "learning_rate": 0.5, "eval_every": 100, "updates": 4}
    return {"protocol": {"name": "fedvs", "K": 1, "T": 1, **protocol}, "model": MODEL, "train": train}


def sending(name, kind, change):
    """Pass all messages of this kind that a party sends through `change`."""

    def wrap(role):
        handle = role.handle
        if role.name == name:
            role.handle = lambda event, now: [
                Send(effect.to, change(effect.message), effect.evaluation)
                if isinstance(effect, Send) and type(effect.message) is kind
                else effect
                for effect in handle(event, now)
            ]

    return wrap


def with_fields(**fields):
    return lambda message: msgspec.structs.replace(message, **fields)


def weights(run):
    return [role.summary()["weights"] for role in run.roles.values()]


@pytest.fixture(scope="module")
def honest(simulate):
    return weights(simulate(tables(), parties=5))


@pytest.fixture
def world(resolve, by_hand):
    """In the middle of the first round, after the first evaluation."""
    made = by_hand(resolve(tables(), parties=5))
    return made.pump(until=lambda: made.heard(Sum))


@pytest.mark.parametrize(
    "claim",
    [
        {"round": FAR},
        {"round": 1},
        {"round": 0, "attempt": FAR},
        {"round": FAR, "attempt": FAR, "position": FAR, "tested": FAR},
    ],
    ids=str,
)
def test_one_party_cannot_make_the_others_skip_rounds(simulate, honest, claim):
    """If the server believed it, the honest parties would refuse its next orders."""
    run = simulate(tables(), parties=5, changed=sending("party-2", Prepared, with_fields(**claim)))
    assert run.server.k == 4 and weights(run) == honest


@pytest.mark.parametrize(
    "claims, believed",
    [
        ([(7, 1)], NEVER),  # a single party's word
        ([(7, 1), (7, 1)], (7, 1)),
        ([(7, 2), (7, 1), (7, 1)], (7, 2)),  # the others missed the newest order
        ([(8, 1), (7, 3), (7, 1)], (8, 1)),
        ([(9, 1), (7, 3), (7, 1)], (7, 3)),  # two rounds ahead: a round needs R parties
        ([(FAR, 1), (7, 3), (-1, 0)], (7, 3)),
        ([(7, FAR), (7, 3), (7, 1)], (7, 3)),
        ([(8, FAR), (7, 3), (7, 1)], (7, 3)),
    ],
)
def test_how_far_a_server_without_memory_believes_the_parties_to_be(resolve, claims, believed):
    server = resolve(tables(), parties=5).roles()[0]
    server.state.claims = {n: (key, n, 0) for n, key in enumerate(claims)}
    assert server._remembered()[0] == believed


def test_one_party_cannot_renumber_the_weights_of_others(simulate):
    """A party steps only if the gradient is of the weights that it has: with a wrong number it would never step."""
    forge = lambda message: msgspec.structs.replace(message, trained=[99] * len(message.trained))  # noqa: E731
    run = simulate(tables(), parties=5, changed=sending("party-5", Holding, forge))
    assert [party.network.steps for party in run.parties[:4]] == [4] * 4
    assert run.server.k == 4


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"held": [0, 1, 2] * 4, "versions": list(range(12)), "trained": [0] * 12}, "reports shares of"),
        ({"clipped": -1}, "impossible numbers"),
        ({"trained": [LAST_ROUND] * 5}, "impossible numbers"),
    ],
)
def test_reports(resolve, by_hand, fields, words):
    world = by_hand(resolve(tables(), parties=5))
    world.pump(until=lambda: world.heard(Holding))
    (message,) = world.heard(Holding)
    sender = next(sender for sender, _, said in world.counted if said is message)
    with pytest.raises(RemoteProtocolError, match=f"{sender}: .*{words}"):
        world.server.handle(Received(sender, msgspec.structs.replace(message, **fields)), 0)


def test_a_chunk_of_test_rows_is_never_longer_than_the_memory_of_answers_assumes(world, monkeypatch):
    """A longer one could overlap with a chunk over another S, and the difference would be a party's embedding."""
    for module in ("answered", "party"):
        monkeypatch.setattr(f"colonnade.algorithms.fedvs.{module}.CHUNK_PLACES", 100)
    party = world.parties[0]
    number, everyone = party.testing.exchange.key[0] + 1, [0, 1, 2, 3, 4]
    for places in (101, party.testing.data.places):
        with pytest.raises(RemoteProtocolError, match="server: starts an impossible exchange"):
            party.handle(Received("server", ShareModels(number, 0, everyone, places, testing=True)), 0)
    assert party.handle(Received("server", ShareModels(number, 0, everyone, 100, testing=True)), 0)


def test_a_share_of_a_far_exchange_does_not_crowd_out_the_others(world):
    party, width = world.parties[0], 4
    round = party.training.exchange.key[0]
    none, blinding = np.zeros((0, width), np.uint32), np.zeros((3, width), np.uint32)
    for sender, key in (("party-2", (FAR, 0)), ("party-3", (round + 1, 1)), ("party-3", (round + 1, 0))):
        party.handle(Received(sender, ModelShare(*key, 1, none, blinding, 0, 7)), 0)
    early = {n: (share.round, share.attempt) for n, share in party.training.exchange.early.items()}
    assert early == {1: (FAR, 0), 2: (round + 1, 1)}
    with pytest.raises(RemoteProtocolError, match="party-2: blinding for 9999 places"):
        party.handle(Received("party-2", ModelShare(FAR, 1, 1, none, np.zeros((9999, width), np.uint32), 0, 7)), 0)


def declining(name):
    return sending(name, Answer, lambda m: Declined(m.round, m.attempt) if not m.testing else m)


def test_a_party_that_always_declines_is_not_asked_any_more(simulate, monkeypatch):
    monkeypatch.setattr("colonnade.algorithms.fedvs.suspicion.DECLINES", 3)
    run = simulate(tables(), parties=5, changed=declining("party-2"))
    method = run.server.summary()["method"]
    assert run.server.k == 4 and method["not_asked_any_more"] == ["party-2"] and run.server.state.declined == 3


def test_a_run_that_needs_a_party_that_always_declines_ends_with_its_name(simulate, monkeypatch):
    """N = R."""
    monkeypatch.setattr("colonnade.algorithms.fedvs.suspicion.DECLINES", 3)
    run = simulate(tables(), parties=3, changed=declining("party-2"))
    reason = "party-2 declined 3 sums one after the other, and 4 other parties would be needed to go on without it"
    assert run.status == "finished" and run.server.progress.ending == reason
    assert reason in run.server.summary()["warnings"]


def test_only_a_party_that_owes_an_answer_can_decline(world):
    server = world.server
    key = server.agreement.key
    world.pump(until=lambda: "party-3" in {server.names[n] for n in server.agreement.answers})
    with pytest.raises(RemoteProtocolError, match="party-3: declines a sum of round 0 that it does not owe"):
        server.handle(Received("party-3", Declined(*key)), 0)
    assert server.handle(Received("party-1", Declined(key[0], key[1] - 1)), 0) == []
