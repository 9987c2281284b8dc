"""Step rules, cadences, and the counters that end a run."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from colonnade.algorithms.evaluation import Evaluated, Scores
from colonnade.algorithms.training import Cadence, Every, StepRule, Training
from colonnade.algorithms.training_progress import END_TIMER, EVALUATE_TIMER, TrainingProgress
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.protocol.events import Emit, Finish, SetTimer, TimerFired


def training(limit, eval_every, rows=10, parties=2):
    spec = OptimiserSpec()
    return Training(0, rows, 5, 0.1, (0.1,) * parties, spec, (spec,) * parties, (Regulariser(),) * parties,
                    StepRule(), limit, eval_every, "accuracy")  # fmt: skip


def test_steps_cosine_and_warm_up_by_hand():
    steps = StepRule("step", factor=0.1, every=3)
    assert [steps.rate(2.0, k) for k in (0, 2, 3, 5, 6)] == pytest.approx([2.0, 2.0, 0.2, 0.2, 0.02])
    wave = StepRule("cosine", K=4)
    half = sqrt(0.5)
    expected = [2.0, 1 + half, 1.0, 1 - half, 1 - half, 1 - half]  # 1 + cos(πk/4), and never 0
    assert [wave.rate(2.0, k) for k in range(6)] == pytest.approx(expected)
    warm = StepRule("step", factor=0.5, every=3, warm_up=4)
    assert [warm.rate(8.0, k) for k in range(6)] == pytest.approx([2.0, 4.0, 6.0, 4.0, 4.0, 4.0])
    assert [StepRule(warm_up=2).rate(1.0, k) for k in range(3)] == [0.5, 1.0, 1.0]


def test_step_rules():
    assert [StepRule().rate(0.5, k) for k in (0, 100)] == [0.5, 0.5]
    assert [StepRule("inverse-sqrt", K=100).rate(0.5, k) for k in (0, 99)] == [0.5 / sqrt(100)] * 2
    assert [StepRule("inverse", K0=10).rate(0.5, k) for k in (0, 10, 90)] == [0.5, 0.25, 0.05]


def test_amounts_in_updates():
    assert Every("updates", 7).updates(5, 100) == 7
    assert Every("epochs", 1.5).updates(8, 100) == 19  # 150 party-rows, 8 at a time
    assert Every("seconds", 3).updates(5, 100) is None


def test_cadence_by_updates():
    cadence = Cadence(Every("updates", 3), 100)
    assert [k for k in range(1, 11) if cadence.due(k, 0)] == [3, 6, 9]
    assert cadence.timer() is None


def test_cadence_skips_what_was_passed_at_once():
    cadence = Cadence(Every("updates", 3), 100)
    assert cadence.due(8, 0) and not cadence.due(8, 0) and cadence.due(9, 0)


@pytest.mark.parametrize("amount", [0.1, 0.2, 0.3, 0.7, 1 / 3, 0.075])
def test_cadence_by_epochs_never_says_the_same_amount_twice(amount):
    cadence = Cadence(Every("epochs", amount), 1000)
    due = [rows for rows in range(0, 5001, 5) if cadence.due(0, rows)]
    assert np.diff(due).min() >= 1000 * amount - 5
    assert len(due) == int(5 / amount + 1e-9)


def test_cadence_by_the_clock():
    cadence = Cadence(Every("seconds", 0.5), 100)
    assert not cadence.due(10**9, 10**9)
    assert cadence.timer() == 500_000_000
    cadence.count = 3
    assert cadence.timer() == 1_500_000_000


def test_an_epoch_is_all_rows_of_all_parties():
    progress = TrainingProgress(training(Every("epochs", 2), Every("epochs", 1)))
    for _ in range(3):
        progress.count(5, [1.0])
    assert (progress.k, progress.rows, progress.epochs) == (3, 15, 0.75)
    assert not progress.evaluation_due() and not progress.at_limit()
    progress.count(5, [1.0])
    assert progress.epochs == 1 and progress.evaluation_due() and not progress.at_limit()
    progress.count(20, [1.0])
    assert progress.at_limit()


def test_timers_only_where_the_clock_decides():
    assert TrainingProgress(training(Every("updates", 9), Every("epochs", 1))).timers() == []
    progress = TrainingProgress(training(Every("seconds", 10), Every("seconds", 2)))
    assert progress.timers() == [SetTimer(EVALUATE_TIMER, 2 * 10**9), SetTimer(END_TIMER, 10**10)]
    fired = TimerFired(EVALUATE_TIMER, 2 * 10**9)
    assert progress.evaluation_timer_fired(fired) == [SetTimer(EVALUATE_TIMER, 4 * 10**9)]


def test_reports_hold_the_mean_training_loss_since_the_last_and_the_last_one_ends():
    progress = TrainingProgress(training(Every("updates", 3), Every("updates", 1)))
    progress.count(5, [1.0, 2.0])
    progress.count(5, [6.0])
    (emitted,) = progress.report(Evaluated(1, 0.5, {"accuracy": 0.7}), [0.0, 1.0], ["party-2"])
    assert isinstance(emitted, Emit)
    row = emitted.record
    assert (row.update, row.epochs, row.loss, row.train_loss) == (2, 0.5, 0.5, 3.0)
    assert (row.values, row.staleness, row.missing) == ({"accuracy": 0.7}, [0.0, 1.0], ["party-2"])
    progress.ending = "done"
    last, finish = progress.report(Evaluated(2, 0.5, {"accuracy": 0.7}), [], [])
    assert np.isnan(last.record.train_loss), "no step since"
    assert finish == Finish("done")


def judged(progress, value, loss, tested=None):
    return progress.report(Evaluated(1, loss, {"accuracy": value}, tested), [], [])


def test_no_better_is_neither_a_better_metric_nor_a_lower_loss():
    progress = TrainingProgress(replace(training(Every("updates", 9), Every("updates", 1)), validation=5, patience=2))
    for value, loss in [(0.5, 1.0), (0.4, 0.9), (0.6, 2.0), (0.6, 0.9), (0.5, 0.8), (float("nan"), float("nan"))]:
        judged(progress, value, loss)
        assert not progress.no_better()
    other = TrainingProgress(replace(training(Every("updates", 9), Every("updates", 1)), validation=5, patience=2))
    other.load(progress.save())
    for one in (progress, other):
        judged(one, 0.6, 0.8)
        assert one.no_better() == "no improvement in 2 evaluations" and one.note() == "", "it has not ended yet"
        one.ending = one.no_better()
        assert one.note() == "ended early: no improvement in 2 evaluations"
    off = TrainingProgress(training(Every("updates", 9), Every("updates", 1)))
    for _ in range(50):
        judged(off, 0.5, 1.0)
    assert off.no_better() == ""


def test_a_lower_metric_may_be_better():
    spec = replace(training(Every("updates", 9), Every("updates", 1)), validation=5, patience=1, metric="rmse")
    progress = TrainingProgress(spec)
    for value in (3.0, 2.0, 1.0):
        progress.report(Evaluated(1, float("nan"), {"rmse": value}), [], [])
        assert not progress.no_better()
    progress.report(Evaluated(1, float("nan"), {"rmse": 1.5}), [], [])
    assert progress.no_better() == "no improvement in 1 evaluation"


def test_with_validation_rows_the_run_ends_with_the_test_rows():
    progress = TrainingProgress(replace(training(Every("updates", 3), Every("updates", 1)), validation=5))
    progress.ending = "done"
    under_way, last = Evaluated(1, 0.5, {"accuracy": 0.7}), Evaluated(2, 0.5, {"accuracy": 0.7}, Scores(0.6, {}))
    assert progress.tests_due(under_way) and not progress.tests_due(last)
    assert [type(effect) for effect in progress.report(under_way, [], [])] == [Emit]
    row, finish = progress.report(last, [], [])
    assert row.record.tested == Scores(0.6, {}) and finish == Finish("done")


def test_save_and_load():
    one = TrainingProgress(training(Every("updates", 9), Every("updates", 2)))
    for _ in range(3):
        one.count(5, [1.0])
    assert one.evaluation_due()
    other = TrainingProgress(training(Every("updates", 9), Every("updates", 2)))
    other.load(one.save())
    assert other.save() == one.save()
    for progress in (one, other):
        assert not progress.evaluation_due()
        progress.count(5, [1.0])
        assert progress.evaluation_due()
