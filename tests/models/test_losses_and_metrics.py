"""Losses, predictions, metrics and aggregates against torch, scikit-learn and pencil and paper."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import colonnade
from colonnade.data import Task
from colonnade.models import (
    LossSpec,
    Objective,
    OptimiserSpec,
    ServerNetwork,
    aggregated_width,
    block_of,
    default_metric,
)
from colonnade.models.metrics import METRICS, measure, require_also, require_metric
from colonnade.models.server import aggregate
from colonnade.protocol.errors import ConfigError, ModelError

TEN = Task("multiclass", tuple("0123456789"))
MULTI, BINARY, REGRESSION = Task("multiclass", ("a", "b", "c")), Task("binary", ("n", "y")), Task("regression", ())


@pytest.fixture(scope="module")
def digits():
    return colonnade.split(colonnade.load("digits"), parties=2)


def test_multiclass_loss_and_probabilities():
    objective, y = Objective(MULTI, np.array([0, 1, 2])), np.array([2, 0])
    output = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], np.float32)
    p = np.exp(output) / np.exp(output).sum(1, keepdims=True)
    targets = objective.targets(y)
    assert targets.dtype == np.int64
    loss = objective.loss(torch.from_numpy(output), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(-(np.log(p[0, 2]) + np.log(1 / 3)) / 2)
    np.testing.assert_allclose(objective.predict(torch.from_numpy(output)), p, rtol=1e-6)


def test_binary_loss_and_probabilities():
    objective, y = Objective(BINARY, np.array([0, 1])), np.array([1, 0, 1])
    z = np.array([0.5, -1.0, 0.0], np.float32)
    p = 1 / (1 + np.exp(-z))
    loss = objective.loss(torch.from_numpy(z[:, None]), torch.from_numpy(objective.targets(y)))
    assert loss.item() == pytest.approx(-(np.log(p[0]) + np.log(1 - p[1]) + np.log(p[2])) / 3)
    np.testing.assert_allclose(objective.predict(torch.from_numpy(z[:, None])), np.stack([1 - p, p], 1), rtol=1e-6)


def test_regression_is_standardised_by_the_training_labels_and_read_in_their_unit():
    y_train = np.array([10.0, 20.0, 30.0, 40.0], np.float32)
    objective = Objective(REGRESSION, y_train)
    targets = objective.targets(np.array([25.0, 50.0], np.float32))
    np.testing.assert_allclose(targets, np.array([0.0, 25 / y_train.std()]), rtol=1e-6)
    output = torch.tensor([[1.0], [0.0]])
    assert objective.loss(output, torch.from_numpy(targets)).item() == pytest.approx((1 + targets[1] ** 2) / 2)
    np.testing.assert_allclose(objective.predict(output), [25 + y_train.std(), 25])


@pytest.mark.parametrize(
    ("error", "rows"),
    [
        (LossSpec(), [0.25, 4.0]),
        (LossSpec("l1"), [0.5, 2.0]),
        (LossSpec("huber", 1.0), [0.125, 1 * (2.0 - 0.5)]),
        (LossSpec("huber", 0.4), [0.4 * (0.5 - 0.2), 0.4 * (2.0 - 0.2)]),
    ],
)
def test_losses_of_residuals_one_half_and_minus_two(error, rows):
    objective = Objective(REGRESSION, np.array([-1.0, 1.0]), error=error)
    output, targets = torch.tensor([[0.5], [-2.0]]), torch.zeros(2)
    np.testing.assert_allclose(objective.row_losses(output, targets), rows, rtol=1e-6)
    assert objective.loss(output, targets).item() == pytest.approx(sum(rows) / 2)


def test_a_constant_target_is_not_divided_by_zero():
    assert Objective(REGRESSION, np.array([3.0, 3.0])).targets(np.array([4.0])).tolist() == [1.0]


def test_metrics_are_scikit_learns():
    generator = np.random.default_rng(0)
    y, raw = generator.integers(0, 3, 200), generator.random((200, 3))
    prediction = raw / raw.sum(1, keepdims=True)
    assert METRICS["accuracy"].compute(y, prediction) == sk.accuracy_score(y, prediction.argmax(1))
    assert METRICS["auc"].compute(y, prediction) == sk.roc_auc_score(y, prediction, multi_class="ovr")
    y, score = generator.integers(0, 2, 200), generator.random(200)
    pairs = np.stack([1 - score, score], 1)
    assert METRICS["auc"].compute(y, pairs) == sk.roc_auc_score(y, score)
    assert METRICS["accuracy"].compute(y, pairs) == sk.accuracy_score(y, score > 0.5)
    target, value = generator.random(50), generator.random(50)
    assert METRICS["mae"].compute(target, value) == pytest.approx(np.abs(target - value).mean())
    assert METRICS["rmse"].compute(target, value) == pytest.approx(np.sqrt(((target - value) ** 2).mean()))


def test_top5_is_scikit_learns_even_where_a_class_has_no_row():
    generator = np.random.default_rng(0)
    y, raw = generator.integers(0, 9, 200), generator.random((200, 10))  # none of class 9
    by_hand = np.mean([label in np.argsort(-row)[:5] for label, row in zip(y, raw, strict=True)])
    assert METRICS["top5"].compute(y, raw) == by_hand
    assert METRICS["top5"].compute(y, raw) == sk.top_k_accuracy_score(y, raw, k=5, labels=range(10))


def test_metrics_of_skewed_classes_by_hand():
    """Class 1 is chosen in rows 2 and 4: one true positive, one false, one missed."""
    y, score = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.4, 0.6])
    found = measure("f1", BINARY, y, np.stack([1 - score, score], 1), 0.0, ("pr-auc", "brier", "ece"))
    assert found == {
        "f1": 0.5,
        "pr-auc": pytest.approx((1 / 1 + 2 / 3) / 2),  # precision at each of the two positives, from the top
        "brier": pytest.approx((0.04 + 0.01 + 0.36 + 0.36) / 4),
        "ece": pytest.approx((0.2 + 0.1 + 1.2) / 4),  # the two confidences of 0.6 share a bin, and both are wrong
        "accuracy": 0.5,
    }


def test_metrics_of_skewed_classes_are_scikit_learns():
    generator = np.random.default_rng(1)
    y, raw = generator.integers(0, 3, 200), generator.random((200, 3))
    prediction, onehot = raw / raw.sum(1, keepdims=True), np.eye(3)[y]
    assert METRICS["f1"].compute(y, prediction) == sk.f1_score(y, prediction.argmax(1), average="macro")
    assert METRICS["pr-auc"].compute(y, prediction) == pytest.approx(sk.average_precision_score(onehot, prediction))
    assert METRICS["brier"].compute(y, prediction) == pytest.approx(np.square(prediction - onehot).sum(1).mean())
    score = generator.random(2000)
    y = score > generator.random(2000)  # well calibrated
    pairs = np.stack([1 - score, score], 1)
    assert METRICS["brier"].compute(y, pairs) == pytest.approx(sk.brier_score_loss(y, score))
    assert METRICS["f1"].compute(y, pairs) == sk.f1_score(y, score > 0.5)
    assert METRICS["ece"].compute(y, pairs) < 0.05 < METRICS["ece"].compute(y, np.round(pairs))


def test_f1_without_a_chosen_positive_is_0_and_pr_auc_without_a_class_is_no_number():
    y, none = np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]])
    assert METRICS["f1"].compute(y, none) == 0.0
    assert np.isnan(METRICS["pr-auc"].compute(np.zeros(2, int), none))
    assert METRICS["ece"].compute(np.array([0, 0]), np.array([[1.0, 0.0], [1.0, 0.0]])) == 0.0


def test_further_metrics_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="train.also = 'mae': a binary task is judged by one of"):
        require_also(["f1", "mae"], BINARY)
    with pytest.raises(ConfigError, match="train.also = .*names a metric twice"):
        require_also(["f1", "f1"], BINARY)


def test_auc_without_a_class_is_not_a_number_and_not_an_error():
    assert np.isnan(METRICS["auc"].compute(np.zeros(4, int), np.full((4, 2), 0.5)))
    assert np.isnan(METRICS["auc"].compute(np.array([0, 1]), np.full((2, 3), 1 / 3)))


def test_reached_knows_which_way_is_better():
    assert METRICS["accuracy"].reached(0.9, 0.9) and not METRICS["accuracy"].reached(0.89, 0.9)
    assert METRICS["top5"].reached(0.9, 0.9)
    assert METRICS["f1"].reached(0.9, 0.9) and METRICS["pr-auc"].reached(0.9, 0.9)
    for name in ("mae", "rmse", "loss", "brier", "ece"):
        assert METRICS[name].reached(0.1, 0.2) and not METRICS[name].reached(0.3, 0.2)


@pytest.mark.parametrize(("task", "name"), [(MULTI, "accuracy"), (BINARY, "accuracy"), (REGRESSION, "rmse")])
def test_default_metrics_fit(task, name):
    assert default_metric(task) == name
    assert require_metric(name, task) is METRICS[name]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("mae", MULTI),
        ("accuracy", REGRESSION),
        ("f1", REGRESSION),
        ("top5", BINARY),
        ("top5", MULTI),
        ("top5", REGRESSION),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(name, task):
    with pytest.raises(ConfigError, match=f"train.metric = '{name}': .*a {task.kind} task is judged by one of: "):
        require_metric(name, task)


def test_the_refusal_says_what_fits():
    with pytest.raises(
        ConfigError,
        match="always 1 with 3 classes; a multiclass task is judged by one of: accuracy, auc, brier, ece, f1, loss, "
        "pr-auc$",
    ):
        require_metric("top5", MULTI)
    with pytest.raises(ConfigError, match="a regression task is judged by one of: loss, mae, rmse$"):
        require_metric("auc", REGRESSION)
    assert require_metric("top5", TEN) is METRICS["top5"]


def test_measure_adds_accuracy_where_it_applies():
    y, prediction = np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]])
    assert measure("auc", BINARY, y, prediction, loss=0.7) == {"auc": 1.0, "accuracy": 0.5}
    assert measure("loss", BINARY, y, prediction, loss=0.7) == {"loss": 0.7, "accuracy": 0.5}
    assert measure("mae", REGRESSION, np.array([1.0]), np.array([3.0]), loss=0.7) == {"mae": 2.0}
    assert measure("loss", REGRESSION, np.array([1.0]), np.array([3.0]), loss=0.7) == {"loss": 0.7}


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("auc", TEN),
        ("top5", TEN),
        ("f1", TEN),
        ("pr-auc", TEN),
        ("ece", TEN),
        ("brier", TEN),
        ("rmse", REGRESSION),
        ("mae", REGRESSION),
    ],
)
def test_predictions_that_are_not_finite_are_no_error(name, task):
    y, prediction = np.arange(10), np.full((10, 10) if task is TEN else 10, np.nan)
    assert np.isnan(measure(name, task, y, prediction, loss=float("nan"))[name])


@pytest.mark.parametrize("method", ["vafl", "centralised"])
@pytest.mark.parametrize("metric", ["loss", "top5", "auc", "accuracy"])
def test_the_target_is_about_the_chosen_metric(method, metric, digits):
    settings = {"embedding": 8, "updates": 120, "eval_every": 20, "batch_size": 64}
    target = 1.9 if metric == "loss" else 0.7
    run = colonnade.prepare(digits, method, "linear", metric=metric, target=target, **settings)
    summary, rows = run.execute(), run.rows
    assert summary["metric"] == metric and summary["validation_value"] == rows[-1]["value"]
    if metric in ("loss", "accuracy"):
        assert summary["value"] == summary[metric]
    reached = [row["value"] <= target if metric == "loss" else row["value"] >= target for row in rows]
    assert not reached[0] and reached[-1]
    assert summary["time_to_target_s"] == rows[reached.index(True)]["clock_s"]


def test_aggregates_by_hand():
    h = torch.tensor([[1.0, 2.0, 5.0, 0.0, 0.0, 4.0]])  # three parties, two wide
    assert aggregate("concat", h, 3).tolist() == h.tolist()
    assert aggregate("sum", h, 3).tolist() == [[6.0, 6.0]]
    assert aggregate("mean", h, 3).tolist() == [[2.0, 2.0]]
    assert aggregate("max", h, 3).tolist() == [[5.0, 4.0]]


def test_aggregated_widths():
    assert aggregated_width("concat", (2, 3)) == 5
    assert [aggregated_width(how, (4, 4)) for how in ("sum", "mean", "max")] == [4, 4, 4]
    for how in ("sum", "mean", "max"):
        with pytest.raises(ModelError, match=rf"'{how}' needs equal embedding widths, not \[2, 3\]; use 'concat'"):
            aggregated_width(how, (2, 3))
    with pytest.raises(ConfigError, match="model.aggregate = 'median': use one of concat, mean, sum, max"):
        aggregated_width("median", (2, 2))


@pytest.mark.parametrize("how", ["concat", "sum", "mean", "max"])
def test_server_gradients_are_autograds(how):
    torch.manual_seed(0)
    width = aggregated_width(how, (2, 2))
    module = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3))
    network = ServerNetwork(module, OptimiserSpec(), Objective(MULTI, np.array([0, 1, 2])), how, parties=2)
    h, y = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), np.array([0, 2, 1, 1])
    parts = [torch.from_numpy(h[:, :2]).requires_grad_(), torch.from_numpy(h[:, 2:]).requires_grad_()]
    joined = {
        "concat": lambda: torch.cat(parts, 1),
        "sum": lambda: parts[0] + parts[1],
        "mean": lambda: (parts[0] + parts[1]) / 2,
        "max": lambda: torch.maximum(parts[0], parts[1]),
    }[how]()
    loss = nn.functional.cross_entropy(module(joined), torch.from_numpy(y))
    expected = torch.autograd.grad(loss, [*parts, *module.parameters()])
    found = network.gradients(h, y)
    assert found.loss == pytest.approx(loss.item())
    for block, gradient in zip((slice(0, 2), slice(2, 4)), expected[:2], strict=True):
        np.testing.assert_allclose(block_of(found.h, block), gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.theta_0, torch.cat([g.reshape(-1) for g in expected[2:]]), rtol=1e-5, atol=1e-7)
    judged, prediction = network.evaluate(h, y)
    assert judged == pytest.approx(loss.item())
    np.testing.assert_allclose(prediction.sum(1), 1)
