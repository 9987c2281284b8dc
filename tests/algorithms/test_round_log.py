"""τ_k and η_k of each round of Flex-VFL in metrics.jsonl."""

import json
from typing import Any

import pytest

from colonnade.algorithms.flex.round_log import LOGGED_ROUNDS, RoundLog
from colonnade.config.schema import from_dict
from colonnade.experiments.run import Run, prepare, reopen

FIELDS = ("round", "round_clock_s", "tau", "eta")


def config(method: str, **train: Any) -> Any:
    return from_dict(
        {
            "data": {"source": "digits", "parties": 3},
            "model": {"party": "linear", "embedding": 2},
            "protocol": {"name": method, "timeout_s": 0.06},
            "clock": {
                "compute": [{"mean_s": 0.01}, {"mean_s": 0.02}, {"mean_s": 0.03}],
                "network": {"latency_s": 0.001},
            },
            "train": {"updates": 5, "eval_every": 2} | train,
        }
    )


def run_of(method: str, **train: Any) -> Run:
    run = prepare(config(method, **train))
    run.execute()
    return run


def rounds_of(run: Run) -> dict[str, list[Any]]:
    return {name: [one for row in run.rows for one in row[name]] for name in FIELDS}


def test_tau_is_how_many_steps_fit_and_eta_follows_it():
    """The timeout of 60 ms holds 6, 3 and 2 steps. The fastest party keeps its rate; others get 6/τ_k, at most 2."""
    fixed, adaptive = rounds_of(run_of("flex")), rounds_of(run_of("adaptive-flex"))
    for found in (fixed, adaptive):
        assert found["round"] == [0, 1, 2, 3, 4]
        assert [steps[1:] for steps in found["tau"]] == [[6, 3, 2]] * 5
        assert [steps[0] for steps in found["tau"]] == [1, 6, 6, 6, 6]  # the server knows no party's speed at first
        # A round: the bell, then a message to the server and one from it.
        assert [
            b - a for a, b in zip(found["round_clock_s"], found["round_clock_s"][1:], strict=False)
        ] == pytest.approx([0.062] * 4, abs=2e-3)
    assert fixed["eta"] == [[1.0] * 4] * 5
    assert [factors[1:] for factors in adaptive["eta"]] == [[1.0, 1.0, 1.0], *[[1.0, 2.0, 2.0]] * 4]


def test_every_line_has_the_rounds_since_the_line_before():
    run = run_of("flex")
    assert [row["round"] for row in run.rows] == [[], [0, 1], [2, 3], [4]]
    assert set(FIELDS) <= set(run_of("sync-max", updates=1).rows[0])
    other = from_dict({"protocol": {"name": "sync"}, "train": {"updates": 1}, "model": {"party": "linear"}})
    vertical = prepare(other)
    vertical.execute()
    assert not set(FIELDS) & set(vertical.rows[-1])


def test_an_evaluation_in_the_middle_of_a_round_leaves_the_round_for_the_next():
    run = run_of("adaptive-flex", eval_every="0.05 s")
    found = rounds_of(run)
    assert found["round"] == [0, 1, 2, 3, 4]
    assert [steps[1:] for steps in found["tau"]] == [[6, 3, 2]] * 5


def test_a_resumed_run_has_the_same_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 5)
    settings = config("adaptive-flex", checkpoint_every=1)
    whole, stopped = prepare(settings), prepare(settings, out=tmp_path / "run")
    whole.execute()
    with pytest.raises(KeyboardInterrupt):
        stopped.execute(lambda run: run._stop() if run.clock_s > 0.2 else None)
    again = reopen(settings, tmp_path / "run")
    again.execute()
    assert rounds_of(again) == rounds_of(whole)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["tau"] for line in lines] == [row["tau"] for row in whole.rows]


def test_many_rounds_are_thinned_and_late_reports_are_left_out():
    log = RoundLog(("server", "a"))
    for number in range(200):
        log.begin(number + 1, number, 0.5 * number, {"server": 1.0, "a": 0.25})
        log.steps(number + 1, "a", number)
        log.steps(number + 1, "b", 7)  # not logged
    log.steps(1000, "a", 9)  # not known
    found = log.take(unfinished=None)
    assert found.round == list(range(0, 200, 4)) and len(found.round) <= LOGGED_ROUNDS
    assert found.tau == [[None, number] for number in found.round]
    assert found.eta == [[1.0, 0.25]] * len(found.round)
    assert log.take(None).round == []
    log.begin(201, 200, 1.0, {"server": 1.0})
    log.begin(202, 201, 1.5, {"server": 1.0})
    assert log.take(unfinished=202).round == [200]
    log.steps(202, "a", 3)
    log.begin(203, 202, 2.0, {})
    assert [log.take(None)] == [
        type(found)([201, 202], [1.5, 2.0], [[None, 3], [None, None]], [[1.0, None], [None, None]])
    ]
