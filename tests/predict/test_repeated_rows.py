"""A row that one question names many times has one noise and one price; two questions have two of both."""

from math import sqrt

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.evaluation import RowsRead
from colonnade.algorithms.prediction.messages import Ask
from colonnade.algorithms.prediction.party import MAX_ASKED, PredictParty
from colonnade.algorithms.vafl.messages import FreshRequest
from colonnade.config.schema import from_dict
from colonnade.data import Lookup
from colonnade.experiments.run import prepare
from colonnade.predict.asking import Door, ask
from colonnade.privacy.accountant import STEP
from colonnade.privacy.guard import Guard
from colonnade.privacy.settings import DpSgd, PrivacySettings
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import Received, Started

CLIP, NOISE = 1.0, 10.0
ONE = 2 * CLIP / NOISE  # μ of one row under one noise
STEPS = {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 10.0}}
MODES = [("vafl", {}), ("vafl", STEPS), ("flex", STEPS), ("cascaded", {"local_updates": "answers"})]


@pytest.fixture(scope="module")
def data():
    return colonnade.split(colonnade.load("breast-cancer"), parties=2, scale="none")


def run_of(data, method, mode):
    tables = {
        "protocol": {"name": method},
        "model": {"party": "linear", "embedding": 3, "server": "linear"},
        "train": {"updates": 2, "batch_size": 64, "learning_rate": 0.01, "eval_every": 2},
        "privacy": {"mechanism": "output", "clip": CLIP, "noise": NOISE, **mode},
    }
    return prepare(from_dict(tables), data)


def party_of(data, method="vafl", mode=STEPS):
    """Built as for training; it knows "a", "b" with the same columns as "a", and "c" with different ones."""
    role = run_of(data, method, mode).simulator.nodes[1].role
    table = Lookup({"a": 0, "b": 1, "c": 2}, data.train[0][[0, 0, 1]])
    party = PredictParty(role, table, 3, None)
    party.handle(Started(b"a key"), 0)
    return party, role.guard.ledger


def answer(party, *ids):
    (work,) = party.handle(Received("server", Ask(1, 0, list(ids))), 0)
    return party.compute(work.job).values


@pytest.mark.parametrize(("method", "mode"), MODES, ids=["plain", "dp-sgd", "flex", "answers"])
def test_an_id_that_is_asked_for_2048_times_has_one_noise_and_is_paid_for_once(method, mode, data):
    party, ledger = party_of(data, method, mode)
    values = answer(party, *["a"] * MAX_ASKED)
    assert values.shape == (MAX_ASKED, 3) and (values == values[0]).all(), "bit for bit: no average tells more"
    assert ledger.account.mu == pytest.approx(ONE) and ledger.kinds == {"prediction": (1, 1)}


def test_the_answers_of_the_others_are_in_their_places(data):
    party, ledger = party_of(data)
    mixed = answer(party, "c", "a", "nobody", "c", " a ", "b")
    assert (mixed[0] == mixed[2]).all() and (mixed[1] == mixed[3]).all(), "the same id, spelt in two ways"
    assert len(np.unique(mixed, axis=0)) == 3 and ledger.kinds == {"prediction": (1, 3)}
    sigma = sqrt(2) * NOISE
    assert 0 < np.abs(mixed[1] - mixed[4]).max() < 8 * sigma, "a and b have equal columns, which must not show"


def test_two_questions_for_one_id_are_two_releases(data):
    party, ledger = party_of(data)
    first, second = answer(party, "a", "a"), answer(party, "a")
    assert not np.isin(second, first).any(), "another noise"
    assert ledger.account.mu == pytest.approx(ONE * sqrt(2)) and ledger.kinds == {"prediction": (2, 2)}


@pytest.mark.parametrize(("method", "mode"), MODES[1:], ids=["dp-sgd", "flex", "answers"])
def test_from_python_a_row_that_is_given_2048_times_has_one_noise_and_is_paid_for_once(method, mode, data):
    run = run_of(data, method, mode)
    result = colonnade.api.Result(run, run.execute())
    ledger = run.simulator.nodes[1].role.guard.ledger
    before = ledger.account.mu
    raw = colonnade.load("breast-cancer").x[[7]]
    found = result.predict(np.repeat(raw, 2048, axis=0))
    assert (found == found[0]).all() and ledger.account.mu**2 - before**2 == pytest.approx(ONE**2)
    again = result.predict(raw)
    assert not (again == found[0]).any() and ledger.account.mu**2 - before**2 == pytest.approx(2 * ONE**2)


def test_equal_columns_of_one_party_beside_others_of_another_have_one_noise(data):
    """Otherwise a caller could vary the other party's columns 2,048 times and see the first party's that often."""
    run = run_of(data, "vafl", STEPS)
    result = colonnade.api.Result(run, run.execute())
    ledgers = [node.role.guard.ledger for node in run.simulator.nodes[1:]]
    raw = colonnade.load("breast-cancer").x[:64].copy()
    raw[:, data.indices[0]] = raw[0, data.indices[0]]
    raw[1::2, data.indices[0][0]] = 0.0
    raw[3::4, data.indices[0][0]] *= -1  # −0 is the same number as 0
    result.predict(raw)
    assert [ledger.kinds["prediction"] for ledger in ledgers] == [(1, 2), (1, 64)]


def test_noise_of_perturbed_methods_without_a_ledger_is_not_averaged_away_either(data):
    tables = {"protocol": {"name": "wait-dp"}, "model": {"party": "linear", "embedding": 3, "aggregate": "mean"}}
    run = prepare(from_dict(tables | {"train": {"updates": 2, "batch_size": 64}}), data)
    result = colonnade.api.Result(run, run.execute())
    raw = colonnade.load("breast-cancer").x[[7]]
    found = result.predict(np.repeat(raw, 100, axis=0))
    assert (found == found[0]).all() and not (result.predict(raw) == found[0]).any()
    party = PredictParty(run.simulator.nodes[1].role, Lookup({"a": 0}, data.train[0][:1]), 3, None)
    values = answer(party, *["a"] * 100)
    assert (values == values[0]).all() and not (answer(party, "a") == values[0]).any()


# The guard, for any request


def guard(**mode):
    made = Guard(PrivacySettings("output", CLIP, NOISE, **mode), None, "shop", 100, 100)
    made.key.renew(b"a key")
    return made


@pytest.mark.parametrize("part", ["any", "train", "test"])
@pytest.mark.parametrize("mode", ["plain", "answers"])
def test_a_release_with_a_row_in_it_often_costs_as_often(part, mode):
    """If a row has several noises after all, each of them counts, for rows of any part."""
    made = guard(local_updates=mode)
    release = made.plan("fresh rows", np.array([5, 5, 5, 5]), part)
    made.released(release, lambda values: RowsRead(0, 0, values), np.zeros((4, 3), np.float32))
    assert made.ledger.account.mu == pytest.approx(ONE * 2)


def test_the_server_pays_for_a_row_as_often_as_it_asks_for_it(data):
    role = run_of(data, "vafl", STEPS).simulator.nodes[1].role
    role.guard.key.renew(b"a key")
    with pytest.raises(RemoteProtocolError, match="request that cannot be"):
        role.handle(Received("server", FreshRequest(1, np.full(9, 4, np.int32))), 0)
    for request in range(1, 5):
        (work,) = role.handle(Received("server", FreshRequest(request, np.array([4], np.int32))), 0)
        role.compute(work.job)
    assert role.guard.ledger.account.mu == pytest.approx(ONE * 2)


def test_a_private_step_never_has_a_row_twice():
    """A repeated row's gradient would count twice in the sum and move it by 4G."""
    made = guard(local_updates="dp-sgd", dp_sgd=DpSgd(1.0, 10.0))
    release = made.plan(STEP, np.array([1, 2, 1]))
    with pytest.raises(LocalProtocolError, match="a row occurs twice in a step"):
        made.stepped(release, pytest.fail, pytest.fail)
    assert made.ledger.account.mu == 0


# The caller


def test_a_list_of_ids_with_repeats_is_one_question_for_each():
    asked = []

    class Recorder(Door):
        """A door that answers at once."""

        def request(self, method, path, content=None):
            asked.append(content["ids"])
            return {"classes": ["no"], "answers": [{"id": id} for id in content["ids"]]}

    ids = ["7", "8"] * 1200 + ["9"]
    classes, answers = ask(Recorder("", ""), ids, lambda done: None)
    assert asked == [["7", "8", "9"]] and [one["id"] for one in answers] == ids and classes == ["no"]
