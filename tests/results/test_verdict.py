"""What makes a run no result: every case gives a warning, and a good run gives none."""

import numpy as np
import pytest

from colonnade.config.schema import from_dict
from colonnade.data import Task
from colonnade.experiments.run import prepare
from colonnade.results.verdict import Commonest, commonest, flaw_of, flaws_of, warnings_of

SMALL = {
    "data": {"source": "digits", "parties": 2},
    "model": {"party": "linear", "embedding": 4},
    "train": {"updates": 40, "eval_every": 4},
}


def small(**sections):
    return from_dict({**SMALL, **{name: {**SMALL.get(name, {}), **fields} for name, fields in sections.items()}})


def summary(**fields):
    ordinary = {
        "status": "finished", "updates": 40, "parties": 2, "metric": "accuracy", "privacy": None, "warnings": [],
        "validation_rows": 0, "test_rows": 400,
    }  # fmt: skip
    return ordinary | fields


def rows(first, last, losses=(2.3, 0.5), missing=()):
    return [
        {"update": update, "value": value, "loss": loss, "missing": list(missing) if update else []}
        for update, value, loss in zip((0, 40), (first, last), losses, strict=True)
    ]


@pytest.mark.parametrize(
    ("metric", "values", "losses", "warning"),
    [
        ("accuracy", (0.1, 0.9), (2.3, 0.5), None),
        ("accuracy", (0.1, 0.08), (2.3, 2.2), None),  # 0.05 may be chance: 1/√400
        ("accuracy", (0.1, 0.12), (2.3, 2.35), None),
        ("accuracy", (0.5, 0.44), (0.7, 0.6), "the accuracy is worse than before training: 0.44 instead of 0.5"),
        ("accuracy", (0.1, 0.09), (2.3, 8651.0), "the loss is worse than before training: 8651 instead of 2.3"),
        ("accuracy", (0.5, 0.8), (0.69, 0.9), None),  # too sure of its mistakes, but it has learnt
        ("auc", (None, 0.8), (0.69, 0.5), None),
        ("rmse", (80.0, 60.0), (1.0, 0.6), None),
        ("rmse", (80.0, 83.0), (1.0, 1.04), None),
        ("rmse", (80.0, 90.0), (1.0, 1.3), "the rmse is worse than before training: 90 instead of 80"),
        ("loss", (2.3, 0.5), (2.3, 0.5), None),
        ("loss", (2.3, 3.0), (2.3, 3.0), "the loss is worse than before training: 3 instead of 2.3"),
        ("accuracy", (0.1, None), (2.3, None), "the last evaluation has no finite accuracy and no finite loss"),
        ("accuracy", (0.1, 0.1), (2.3, None), "the last evaluation has no finite loss"),
        ("loss", (2.3, None), (2.3, None), "the last evaluation has no finite loss"),
    ],
)
def test_how_it_ended_compared_with_how_it_began(metric, values, losses, warning):
    assert warnings_of(summary(metric=metric), rows(*values, losses)) == ([] if warning is None else [warning])


@pytest.mark.parametrize(
    ("metric", "values", "tested", "warning"),
    [
        ("accuracy", (0.1, 0.9), (0.8, 0.4), None),
        (
            "accuracy",
            (0.5, 0.44),
            (0.8, 0.4),
            "the validation accuracy is worse than before training: 0.44 instead of 0.5",
        ),
        ("accuracy", (0.1, 0.9), (0.8, None), "the last evaluation has no finite test loss"),
        (
            "accuracy",
            (0.1, 0.9),
            (None, None),
            "the last evaluation has no finite test accuracy and no finite test loss",
        ),
        ("auc", (0.5, None), (0.8, 0.4), None),  # a class is missing from the validation rows
    ],
)
def test_with_validation_rows_these_are_compared(metric, values, tested, warning):
    found = rows(*values)
    found[-1] |= {"test_value": tested[0], "test_loss": tested[1]}
    said = warnings_of(summary(metric=metric, validation_rows=400, test_rows=2), found)
    assert said == ([] if warning is None else [warning])


@pytest.mark.parametrize(
    ("metric", "values", "loss", "warned"),
    [
        ("accuracy", (0.5, 0.5), 0.70, True),
        ("accuracy", (0.5, 0.5), 0.69, False),
        ("accuracy", (0.3, 0.78), 0.70, True),  # it has only learnt to guess the commonest class
        ("accuracy", (0.3, 0.80), 0.70, False),
        ("auc", (0.5, 0.7), 0.70, False),
        ("loss", (0.6931, 0.70), 0.70, True),
    ],
)
def test_a_loss_above_that_of_zero_weights_is_never_silent(metric, values, loss, warned):
    found = warnings_of(summary(metric=metric), rows(*values, (0.6931, loss)), (), Commonest(0.78, 2))
    assert found == (["the loss is worse than that of equal odds: 0.7 instead of 0.6931"] if warned else [])


def test_the_commonest_class_is_that_of_the_rows_of_the_curve():
    labels, task = np.array([0, 1, 1, 1, 0, 0, 0, 0]), Task("binary", ("no", "yes"))
    assert commonest(task, labels, 4) == Commonest(0.75, 2) and commonest(task, labels, 0) == Commonest(0.625, 2)
    assert commonest(Task("regression", ()), labels, 4) is None and commonest(task, labels[:0], 0) is None


def test_the_margin_shrinks_with_the_test_rows():
    assert warnings_of(summary(), rows(0.5, 0.48)) == []
    assert warnings_of(summary(test_rows=40_000), rows(0.5, 0.48)) != []


def test_without_test_rows_there_is_nothing_to_judge():
    assert warnings_of(summary(test_rows=0), rows(None, None, (None, None))) == []


def test_members_that_were_not_there():
    spent = {"withdrawn": {"party-2": "its budget"}}
    found = warnings_of(summary(privacy=spent, updates=3), rows(0.1, 0.9, missing=["party-2"]))
    assert found == ["withdrew before the end: party-2 (1 of 2 parties); 3 updates were made in all"]
    found = warnings_of(summary(), rows(0.1, 0.9, missing=["party-1"]))
    assert found == ["missing in the last evaluation: party-1 (1 of 2 parties)"]


def test_in_a_word():
    assert flaw_of(summary()) == ""
    assert flaw_of(summary(warnings=["no"])) == "with warnings"
    assert flaw_of(summary(status="diverged", warnings=["no"])) == "diverged"
    assert flaw_of(None) == "without a result"
    assert flaw_of({"status": "finished"}) == "", "a summary of an older release"
    assert flaws_of([summary(status="stalled")]) == "stalled"
    assert flaws_of([summary(), summary(status="stalled"), summary(warnings=["no"])]) == (
        "1 of 3 stalled, 1 of 3 with warnings"
    )
    assert flaws_of([summary()] * 3) == ""


# --- real runs


def test_a_good_run_has_none():
    assert prepare(small(train={"learning_rate": 0.3})).execute()["warnings"] == []


def test_diverged_says_of_which_update_its_numbers_are():
    """The note may name another loss: the one of that moment."""
    run = prepare(small(train={"learning_rate": 300.0}))
    found = run.execute()
    assert found["status"] == "diverged" and found["validation_loss"] == run.rows[-1]["loss"]
    assert found["value"] is found["loss"] is None
    update = run.rows[-1]["update"]
    assert 0 < update < found["updates"]
    assert found["warnings"] == [
        f"diverged at update {found['updates']}; its validation metric and loss are those of update {update}, and the "
        "test rows were not evaluated"
    ]


def test_stalled_and_missing():
    clock = {"faults": [{"party": "party-2", "kind": "crash", "at_s": 0.3}]}
    stalled = prepare(small(protocol={"name": "sync"}, clock=clock)).execute()
    assert stalled["status"] == "stalled" and stalled["warnings"][0].startswith("stalled at update ")
    alone = prepare(small(clock=clock, train={"learning_rate": 0.3, "updates": 150})).execute()
    assert alone["status"] == "finished"
    assert alone["warnings"] == ["missing in the last evaluation: party-2 (1 of 2 parties)"]


def test_a_budget_without_room_for_an_upload():
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    party = {"budget": {"epsilon": 0.01, "delta": 1e-5}}
    found = prepare(small(privacy=privacy, party=party, data={"scale": "none"})).execute()
    assert (found["status"], found["updates"]) == ("finished", 0)
    assert found["warnings"] == [
        "withdrew before the end: party-1, party-2 (2 of 2 parties); 0 updates were made in all",
        "no update was made: the model is the untrained one",
    ]


@pytest.mark.parametrize(("rate", "clipped"), [(3.0, False), (30.0, True)])
def test_weights_at_the_bound_of_the_field(rate, clipped):
    tables = {
        "model": {"party": "polynomial:2", "embedding": 8, "server": "linear", "aggregate": "mean"},
        "protocol": {"name": "fedvs", "blinding": False, "l_w": 12},
        "data": {"scale": "minmax"},
        "train": {"updates": 30, "eval_every": 15, "batch_size": 32, "learning_rate": {"server": 0.5, "party": rate}},
    }
    found = prepare(from_dict(tables)).execute()
    told = [
        text for text in found["warnings"] if f"{found['method']['clipped_weights']:,} weights were clipped" in text
    ]
    assert bool(told) == clipped == bool(found["warnings"])
    assert not clipped or "party-1 (" in told[0]
