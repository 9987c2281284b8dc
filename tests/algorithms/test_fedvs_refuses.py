"""What FedVS refuses, before it starts and from peers that break the protocol. A refusal changes no state."""

import numpy as np
import pytest

from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.messages import Answer, DataShare, Gradient, Holding, ModelShare, ShareModels, Sum
from colonnade.config.resolve import make_plan
from colonnade.config.schema import difference, from_dict
from colonnade.data import load, split
from colonnade.deployment.terms import shared_part
from colonnade.privacy.field import P
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError, DataError, ModelError, RemoteProtocolError
from colonnade.protocol.events import Received

MODEL = {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"}
TRAIN = {"batch_size": 32, "updates": 2}


def tables(model=None, **protocol):
    return {"protocol": {"name": "fedvs", **protocol}, "model": MODEL | (model or {}), "train": TRAIN}


@pytest.mark.parametrize(
    "options, key, words",
    [
        ({"K": 2, "T": 1}, "K", "need 2\\(K\\+T−1\\)\\+1 = 5 answers, but there are 4 parties"),
        ({"T": 4}, "T", "0 to 3 of the 4 parties can be colluders"),
        ({"T": -1}, "T", "0 to 3"),
        ({"K": 0, "T": 0}, "K", "1 or more segments"),
        ({"T": 0}, "T", "plain numbers: use 1 or more.* protocol.allow_unprotected = true"),
        ({"K": 2, "T": 0, "allow_unprotected": False}, "T", "use 1 or more"),
        ({"l_w": 25}, "l_w", "must be 0 to 24 bits"),
        ({"x_max": 0.0}, "x_max", "above 0"),
        ({"w_max": float("nan")}, "w_max", "above 0"),
        ({"deadline_s": 0}, "deadline_s", "above 0"),
        ({"max_stale": 0}, "max_stale", "1 or more rounds"),
        ({"catch_up": 0}, "catch_up", "1 or more rounds"),
        ({"min_summed": 2}, "min_summed", "must be 3 to 4"),
        ({"min_summed": 5}, "min_summed", "must be 3 to 4"),
        ({"l_w": 20}, "l_w", "would leave the field .* the largest that fit: l_w = 15 or l_x = 3"),
        ({"w_max": 100.0}, "l_w", "largest that fit: l_w = 9 or l_x = 6"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work(resolve, options, key, words):
    with pytest.raises(ConfigError, match=f"protocol.{key} = .*{words}"):
        resolve(tables(**options))


def test_two_parties_are_too_few(resolve):
    with pytest.raises(ConfigError, match="protocol.T = 1: T = 1 needs at least 3 parties, but there are 2"):
        resolve(tables(), parties=2)


def test_without_masks_the_first_share_is_the_data_and_that_is_said(simulate):
    """The config must ask for T = 0 by name; then every peer holds the columns, and `reveals` says so."""
    setting = tables(K=1, T=0, allow_unprotected=True)
    run = simulate(setting, parties=4)
    own, peer = run.parties[0], run.parties[1]
    assert np.array_equal(peer.training.data.rows(np.arange(20), [0]), own.sharer._train[:20])
    assert "every other party's columns" in own.options.reveals
    assert FedvsOptions().reveals == "" and FedvsOptions(allow_unprotected=True).reveals == ""


def test_a_party_that_did_not_agree_to_it_is_told_what_differs():
    """The server cannot choose T = 0 for a party: the party's own config decides, and the handshake compares."""
    network = {"network": {"parties": ["a", "b", "c"]}}
    mine = shared_part(from_dict(tables() | network), "")
    bare = shared_part(from_dict(tables(T=0, allow_unprotected=True) | network), "")
    assert difference(mine, bare) == "protocol.T: None there, 0 here"
    with pytest.raises(ConfigError, match="protocol.T = 0"):
        make_plan(from_dict(tables(T=0) | network), ("a", "b", "c"), 100, None)


def test_the_field_is_used_to_its_end_and_no_further(resolve):
    resolve(tables(l_w=15)).roles()
    with pytest.raises(ConfigError, match="l_w = 16"):
        resolve(tables(l_w=16))


@pytest.mark.parametrize(
    "name, options, key", [("ignore", {"fastest": 5}, "fastest"), ("wait-dp", {"epsilon": 0.0}, "epsilon"),
                           ("wait-dp", {"delta": 1.0}, "delta"), ("wait-dp", {"clip": -1.0}, "clip"),
                           ("wait", {"K": 0}, "K")],
)  # fmt: skip
def test_settings_of_the_baselines(resolve, name, options, key):
    with pytest.raises(ConfigError, match=f"protocol.{key} = "):
        resolve(tables() | {"protocol": {"name": name, **options}})


def test_models_that_cannot_be_shared(resolve):
    with pytest.raises(ModelError, match="party-1 = 'mlp:8': fedvs evaluates networks on secret shares"):
        resolve(tables({"party": "mlp:8"}))
    with pytest.raises(ModelError, match="widths must be equal, not \\[4, 4, 4, 5\\]"):
        resolve(tables({"embedding": [4, 4, 4, 5]})).roles()
    with pytest.raises(ConfigError, match="model.aggregate = 'concat': fedvs averages embeddings: use 'mean'"):
        resolve(tables({"aggregate": "concat"})).roles()
    with pytest.raises(ModelError, match="degree must be 1 to 16"):
        resolve(tables({"party": "polynomial:0"}))


def test_data_outside_their_bound(resolve):
    data = split(load("digits"), parties=4, scale="standard")
    with pytest.raises(DataError, match="party-1: column .* reaches .*, outside ±1: use data.scale = 'minmax'"):
        resolve(tables(), data=data).roles()
    resolve(tables(x_max=64.0, l_x=4, l_w=6), data=data).roles()


def test_test_rows_outside_it_are_clipped_and_counted(resolve):
    data = split(load("digits"), parties=4, scale="minmax")
    data.test[0][:3, 0] = [1.5, -2.0, 1.0]
    parties = resolve(tables(), data=data).roles()[1:]
    counts = [party.summary()["test_clipped"] for party in parties]
    assert counts[0] >= 2


def test_padding_is_said_once(resolve):
    setting = resolve(tables(K=2, T=0, allow_unprotected=True))  # 1438 training and 359 test rows
    assert [note for note in setting.notes if "divide" in note] == [
        "359 test rows do not divide by K = 2: they are padded with 1 empty"
    ]


def test_rows_that_do_not_divide_are_padded_and_left_out_again(simulate):
    run = simulate(tables(K=3, T=0, allow_unprotected=True) | {"train": {"batch_size": 90, "epochs": 1.0}}, parties=5)
    rows = np.concatenate([run.server.walk.rows(position) for position in range(run.server.walk.per_epoch)])
    assert sorted(rows.tolist()) == list(range(1438)) and run.server.summary()["method"]["padding"] == 2


@pytest.fixture
def world(resolve, by_hand):
    """In the middle of the first round."""
    made = by_hand(resolve(tables(stale="refuse"), parties=5))
    return made.pump(until=lambda: made.heard(Sum))


def unchanged(role):
    before = state.pack(role.save())
    return lambda: state.pack(role.save()) == before


def elements(*shape):
    return np.zeros(shape, np.uint32)


def too_large(*shape):
    return np.full(shape, P, np.uint32)


def test_model_shares(world):
    party = world.parties[0]
    (width, terms), (round, attempt) = (4, party.training.data.terms(1)), party.training.exchange.key
    places, ahead = party.training.exchange.places, (round, attempt + 1)
    wrong = [
        (ModelShare(*ahead, 1, elements(terms + 1, width), elements(places, width)), "a model share of shape"),
        (ModelShare(*ahead, 1, elements(terms, width).astype(np.int32), elements(places, width)), "int32"),
        (ModelShare(*ahead, 1, too_large(terms, width), elements(places, width)), "outside the field"),
        (ModelShare(*ahead, 1, elements(terms, width), too_large(places, width)), "outside the field"),
        (ModelShare(*ahead, 1, elements(terms, width), elements(places, width + 1)), "a blinding share of shape"),
        (ModelShare(*ahead, 2**48, elements(terms, width), elements(places, width)), "version 281474976710656, mark 0"),
        (ModelShare(*ahead, 1, elements(terms, width), elements(places, width), mark=1), "of version 1, mark 1"),
        (ModelShare(-1, 0, 1, elements(terms, width), elements(places, width)), "a model share of round -1"),
    ]
    same = unchanged(party)
    for message, words in wrong:
        with pytest.raises(RemoteProtocolError, match=f"party-2: .*{words}"):
            party.handle(Received("party-2", message), 0)
    assert same()
    old = ModelShare(round, attempt - 1, 1, elements(terms, width), elements(places, width))
    again = ModelShare(round, attempt, 1, elements(terms, width), elements(places, width))
    for late in (old, again):
        assert party.handle(Received("party-2", late), 0) == [], "a late or repeated one is ignored, not refused"
    assert party.state.dropped == 2 and party.training.exchange.versions[1] != 1


def test_data_shares(world):
    party, length = world.parties[0], world.parties[0].training.data.places
    version, terms = party.training.data.version[1], party.training.data.terms(1)
    wrong = [
        (DataShare(version, 0, elements(length + 1, terms)), "coded data of shape"),
        (DataShare(version, -1, elements(2, terms)), "coded data of shape|before the preceding places"),
        (DataShare(version + 1, 5, elements(2, terms)), "before the preceding places"),
        (DataShare(2**48, 0, elements(2, terms)), "version 281474976710656"),
        (DataShare(version, 0, too_large(2, terms)), "outside the field"),
        (DataShare(version, 0, elements(2)), "coded data of shape"),
        (DataShare(version + 1, 0, elements(2, terms + 1)), "columns, expected .* as before"),
    ]
    same = unchanged(party)
    for message, words in wrong:
        with pytest.raises(RemoteProtocolError, match=f"party-2: .*({words})"):
            party.handle(Received("party-2", message), 0)
    assert same()


def test_answers_and_reports(world):
    server = world.server
    round, attempt = server.agreement.key
    places, summed = server.agreement.places, server.agreement.summed
    wrong = [
        (Answer(round, attempt, summed[:-1], elements(places, 4)), "an answer over \\[0, 1, 2, 3\\], but the set"),
        (Answer(round, attempt, summed, elements(places, 5)), "a coded embedding of shape"),
        (Answer(round, attempt, summed, too_large(places, 4)), "outside the field"),
        (Answer(round, attempt + 1, summed, elements(places, 4)), "which has not begun"),
        (Holding(round + 1, 1, [0], [0], 0), "which has not begun"),
        (Gradient(round, 0, 0, summed, elements(1, 4)), "does not expect a Gradient"),
    ]
    same = unchanged(server)
    for message, words in wrong:
        with pytest.raises(RemoteProtocolError, match=f"party-2: .*{words}"):
            server.handle(Received("party-2", message), 0)
    with pytest.raises(RemoteProtocolError, match="stranger: server does not expect a Answer"):
        server.handle(Received("stranger", wrong[0][0]), 0)
    assert same()


def test_orders(world):
    party = world.parties[0]
    (round, attempt), position = party.training.exchange.key, 0
    versions = [party.training.data.version[n] ^ party.training.exchange.versions[n] for n in range(5)]
    wrong = [
        (ShareModels(round, attempt + 1, [0, 1], 8), "an impossible exchange"),
        (ShareModels(round, attempt + 1, [1, 2, 3], 8), "an impossible exchange"),
        (ShareModels(round, attempt + 1, [0, 1, 9], 8), "an impossible exchange"),
        (
            ShareModels(round, attempt + 1, [0, 1, 2, 3, 4], world.server.walk.places, position=0),
            "an impossible exchange",
        ),
        (Sum(round, attempt, 2**31, [0, 1, 2, 3, 4], versions), "a sum at 2147483648, where there are no rows"),
        (Sum(round, attempt, position, [0, 1], versions[:2]), "must name 3 or more parties, each once"),
        (Sum(round, attempt, position, [0, 1, 1], versions[:3]), "each once"),
        (Gradient(round, 0, 0, [0, 1, 2], np.zeros((3, 4), np.float32)), "gradient of shape"),
        (Gradient(round, 0, 2**31, [0, 1, 2], np.zeros((32, 4), np.float32)), "a gradient of batch 2147483648"),
        (Gradient(round, -1, 0, [0, 1, 2], np.zeros((32, 4), np.float32)), "a gradient of batch 0, update -1"),
        (Gradient(round, 0, 0, [0, 1, 2], np.full((32, 4), np.nan, np.float32)), "not finite"),
    ]
    same = unchanged(party)
    for message, words in wrong:
        with pytest.raises(RemoteProtocolError, match=f"server: .*{words}"):
            party.handle(Received("server", message), 0)
    with pytest.raises(RemoteProtocolError, match="party-3: party-1 does not expect a Sum"):
        party.handle(Received("party-3", wrong[4][0]), 0)
    assert same()


def test_weights_that_would_leave_their_bound_are_clipped_and_counted(simulate):
    run = simulate(tables(w_max=0.1) | {"train": {"batch_size": 32, "updates": 60, "learning_rate": 2.0}}, parties=4)
    method, own = run.server.summary()["method"], [party.summary()["clipped"] for party in run.parties]
    assert method["clipped_weights"] > 50 and sum(own) >= method["clipped_weights"]
    assert max(float(party.network.theta.abs().max()) for party in run.parties) <= 0.1, "0.1 as float32 is above"
