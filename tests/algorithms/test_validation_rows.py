"""Validation rows: evaluations while training use them alone, and the test rows are judged once, at the end."""

import numpy as np
import pytest

from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.fedvs.held_out import HeldOut
from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.experiments.run import prepare
from colonnade.predict.in_one_place import predict_in_one_place
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import EvaluationReply

LINEAR, POLYNOMIAL = {"party": "linear", "embedding": 4}, {"party": "polynomial:1", "embedding": 4, "aggregate": "mean"}
# One of each way to judge: embeddings, averages, one graph, decoded sums, margins that a party judges.
WAYS = {
    "vafl": LINEAR,
    "flex": LINEAR,
    "wait": POLYNOMIAL,
    "centralised": LINEAR,
    "fedvs": POLYNOMIAL,
    "asysqn-saga": {},
    "synsqn-svrg": {},
}


@pytest.fixture(scope="module")
def cancer():
    whole = load("breast-cancer")
    return {scale: split(whole, parties=4, scale=scale, validation_fraction=0.2) for scale in (None, "minmax")}


def tables(method, **train):
    more = {"updates": 12, "eval_every": 4, "batch_size": 32, "learning_rate": 0.1}
    return {"protocol": {"name": method}, "model": WAYS[method], "train": more | train}


def data_of(cancer, method):
    return cancer["minmax" if WAYS[method] is POLYNOMIAL else None]


@pytest.mark.parametrize("method", WAYS)
def test_the_test_rows_are_judged_once_with_the_last_weights(method, cancer, judged, simulate):
    data = data_of(cancer, method)
    run = simulate(tables(method), data=data)
    assert run.status == "finished" and len(run.records) == 4
    assert [record.tested is not None for record in run.records] == [False, False, False, True]
    v, rows = data.validation, len(data.y_test)
    assert v == 91 and [len(one) for one in judged] == [v, v, v, v, rows - v]
    setting = run.federation
    blocks = [np.asarray(block) for block in data.test]
    roles = [run.server, *run.parties]
    predicted = predict_in_one_place(setting.method, setting.options, data.task, roles, blocks, 1).argmax(1)
    right = predicted == data.y_test
    last = run.records[-1]
    assert last.values["accuracy"] == pytest.approx(right[:v].mean(), abs=1e-9)
    assert last.tested.values["accuracy"] == pytest.approx(right[v:].mean(), abs=1e-9)


@pytest.mark.parametrize("method", WAYS)
def test_it_ends_when_it_gets_no_better_and_resumes_alike(method, cancer, tmp_path):
    """At a rate of 0 nothing improves after the first evaluation."""
    data = data_of(cancer, method)
    config = from_dict(tables(method, learning_rate=0.0, updates=100, patience=3))
    run = prepare(config, data, tmp_path / "run")
    whole = run.execute()
    assert (whole["status"], whole["note"]) == ("finished", "ended early: no improvement in 3 evaluations")
    assert 12 <= whole["updates"] < 100 and whole["value"] is not None
    first = prepare(config, data, tmp_path / "cut")
    while len(first.rows) < 3:
        first.simulator.advance(5)
    first.folder.save_checkpoint(first._checkpoint())
    again = prepare(config, data)
    again.folder = first.folder
    again.resume()
    assert {**again.execute(), "wall_s": 0} == {**whole, "wall_s": 0}


def test_patience_needs_validation_rows():
    config = from_dict(tables("vafl", patience=3))
    with pytest.raises(ConfigError, match="train.patience = 3: needs validation rows"):
        prepare(config, split(load("wine"), validation_fraction=0))
    with pytest.raises(ConfigError, match="train.patience = -1: must be 1 or more evaluations; or 0"):
        prepare(from_dict(tables("vafl", patience=-1)), split(load("wine")))


def test_a_missing_party_is_the_mean_of_its_validation_rows():
    evaluation = Evaluation(["a", "b"], [1, 1], np.zeros(5), "loss")
    (ask, _) = evaluation.begin(["a", "b"], 2)
    assert (ask.message.start, ask.message.stop) == (0, 2)
    evaluation.receive("a", EvaluationReply(1, 0, 0, np.array([[1.0], [3.0]], np.float32)))
    evaluation.receive("b", EvaluationReply(1, 0, 0, np.array([[5.0], [6.0]], np.float32)))
    evaluation.begin(["b"], 2, last=True)
    evaluation.receive("b", EvaluationReply(2, 0, 0, np.array([[7.0], [8], [9], [10], [11]], np.float32)))
    assert evaluation.missing == ["a"]
    assert evaluation.table.values[:, 0].tolist() == [1, 3, 2, 2, 2]
    assert evaluation.table.values[:, 1].tolist() == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(("rows", "validation", "segments"), [(7, 3, 2), (9, 0, 2), (5, 1, 3), (6, 4, 1)])
def test_coded_rows_lie_where_they_can_be_asked_for_alone(rows, validation, segments):
    held_out, x = HeldOut(rows, validation, segments), np.arange(1, rows + 1)[:, None]
    cut = Segmentation(segments * held_out.places, segments).cut(held_out.arranged(x))
    assert set(cut[:, : held_out.edge].ravel()) - {0} == set(range(1, validation + 1))
    first, second = held_out.samples(cut)
    assert first.ravel().tolist() == list(range(1, validation + 1))
    assert second.ravel().tolist() == list(range(validation + 1, rows + 1))
    assert held_out.stop(0, 100) == (held_out.edge or held_out.places)


def test_few_validation_rows_without_a_class(tmp_path):
    """Their auc is undefined. The run still ends, and its test auc has a value."""
    data = split(load("breast-cancer"), parties=2, validation_fraction=0.002)
    assert data.validation == 1
    summary = prepare(from_dict(tables("vafl", metric="auc", learning_rate=0.3)), data).execute()
    assert summary["validation_value"] is None and summary["value"] > 0.5 and summary["warnings"] == []
