"""From a config to roles: the defaults, and every combination that cannot work."""

from math import ceil

import numpy as np
import pytest

from colonnade.algorithms.training import Every, StepRule
from colonnade.config.resolve import federation, make_plan
from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.experiments.run import prepare
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.protocol.errors import ColonnadeError, ConfigError


@pytest.fixture(scope="module")
def digits():
    return split(load("digits"), parties=4, validation_fraction=0)


@pytest.fixture(scope="module")
def resolved(digits):
    return lambda tables: federation(from_dict(tables), digits)


REFUSALS = [
    ({"protocol": {"name": "vaffl"}}, "protocol.name", "unknown method; did you mean 'vafl'"),
    ({"protocol": {"name": "t-sync", "t": 5}}, "protocol.t", "must be between 1 and the number of parties, 4"),
    ({"protocol": {"name": "t-sync", "t": 0}}, "protocol.t", "must be between 1 and the number of parties, 4"),
    ({"protocol": {"name": "vafl", "t": 2}}, "protocol.t", "vafl: unknown key"),
    ({"protocol": {"name": "afsgd", "memory": 5}}, "protocol.memory", "afsgd: unknown key"),
    ({"protocol": {"name": "asysqn-svrg", "l2": -1.0}}, "protocol.l2", "λ must be 0 or more"),
    ({"protocol": {"name": "asysqn-svrg", "memory": 0}}, "protocol.memory", "m must be 1 or more pairs"),
    (
        {"protocol": {"name": "asysqn-svrg"}},
        "protocol.loss",
        "needs labels of two classes (±1 or 0–1); these labels have 10",
    ),
    ({"protocol": {"name": "asysqn-svrg"}, "train": {"optimiser": "adam"}}, "train.optimiser", "their own step"),
    (
        {"protocol": {"name": "afsgd"}, "train": {"regulariser": {"kind": "l2", "weight": 0.1}}},
        "train.regulariser",
        "l2",
    ),
    ({"protocol": {"name": "afsgd"}, "model": {"device": "cuda"}}, "model.device", "computed on the CPU"),
    ({"protocol": {"name": "sync", "max_delay": 2}}, "protocol.max_delay", "sync: unknown key"),
    ({"protocol": {"name": "centralised", "batches": "own"}}, "protocol.batches", "known here: average"),
    ({"protocol": {"name": "vafl", "max_dely": 2}}, "protocol.max_dely", "did you mean 'max_delay'"),
    ({"protocol": {"name": "vafl", "max_delay": "2"}}, "protocol.max_delay", "expected `int"),
    ({"protocol": {"name": "vafl", "max_delay": 0}}, "protocol.max_delay", "must be 1 or more"),
    ({"protocol": {"name": "vafl", "batches": "mine"}}, "protocol.batches", "use one of 'own', 'shared'"),
    ({"protocol": {"name": "vafl", "extra_rows": -1}}, "protocol.extra_rows", "must be 0 or more batches"),
    ({"protocol": {"name": "vafl", "pause_s": [1, 2]}}, "protocol.pause_s", "one value for each of 4 parties"),
    ({"protocol": {"name": "vafl", "pause_s": -1}}, "protocol.pause_s", "must be 0 or more seconds"),
    ({"protocol": {"name": "t-sync", "order": "query-first"}}, "protocol.order", "set protocol.order = 'upload-first'"),
    ({"train": {"epochs": 3, "seconds": 2}}, "train.epochs and train.seconds", "give only one of them"),
    (
        {"train": {"epochs": 3, "updates": 3, "seconds": 2}},
        "train.epochs and train.updates and train.seconds",
        "only one",
    ),
    ({"train": {"epochs": 0}}, "train.epochs", "must be above 0"),
    ({"train": {"updates": -5}}, "train.updates", "must be above 0"),
    ({"train": {"seconds": float("inf")}}, "train.seconds", "must be above 0"),
    ({"train": {"eval_every": "often"}}, "train.eval_every", "give a number of updates, or e.g. '2 s'"),
    ({"train": {"eval_every": "1.2.3 s"}}, "train.eval_every", "give a number of updates, or e.g. '2 s'"),
    ({"train": {"eval_every": "- epochs"}}, "train.eval_every", "give a number of updates, or e.g. '2 s'"),
    ({"train": {"eval_every": "5 minutes"}}, "train.eval_every", "give a number of updates"),
    ({"train": {"eval_every": 0}}, "train.eval_every", "must be above 0"),
    ({"train": {"eval_every": "-1 s"}}, "train.eval_every", "must be above 0"),
    ({"train": {"checkpoint_every": "0 epochs"}}, "train.checkpoint_every", "must be above 0"),
    ({"train": {"metric": "mae"}}, "train.metric", "a multiclass task is judged by one of: accuracy, auc"),
    ({"train": {"metric": "f2"}}, "train.metric", "judged by one of"),
    ({"train": {"also": ["f1", "mae"]}}, "train.also", "judged by one of"),
    ({"diagnose": {"rows": -1}}, "diagnose.rows", "1 or more"),
    ({"train": {"batch_size": 0}}, "train.batch_size", "must be 1 or more rows"),
    ({"train": {"learning_rate": -0.1}}, "train.learning_rate", "must be 0 or more"),
    ({"train": {"learning_rate": float("nan")}}, "train.learning_rate", "must be 0 or more"),
    (
        {"train": {"learning_rate": {"server": 0.1, "party": [0.1]}}},
        "train.learning_rate.party",
        "one entry for each of 4",
    ),
    ({"train": {"optimiser": "rmsprop"}}, "train.optimiser", "use 'sgd', 'momentum', 'adam' or a class of torch.optim"),
    ({"protocol": {"name": "flex", "labels": "nobody"}}, "protocol.labels", "use one of 'server', 'shared'"),
    ({"train": {"optimiser": "LBFGS"}}, "train.optimiser", "a class of torch.optim by its name, e.g. 'RMSprop'"),
    ({"train": {"optimiser": "Optimizer"}}, "train.optimiser", "a class of torch.optim"),
    ({"train": {"optimiser": {"name": "sgd", "prox": "much"}}}, "train.optimiser", "`prox` and `decay` are numbers"),
    ({"train": {"optimiser": {"server": "sgd"}}}, "train.optimiser", "both `server` and `party`"),
    ({"train": {"optimiser": {"name": "sgd", "moment": 1}}}, "train.optimiser", "sgd does not accept these options"),
    ({"train": {"optimiser": {"name": 5}}}, "train.optimiser", "use 'sgd', 'momentum', 'adam', a class"),
    ({"train": {"optimiser": {"server": "sgd", "party": ["sgd"]}}}, "train.optimiser.party", "one entry for each of 4"),
    ({"train": {"regulariser": [{}, {}]}}, "train.regulariser", "one entry for each of 4 parties"),
    (
        {"train": {"step_rule": "linear"}},
        "train.step_rule",
        "use one of 'constant', 'inverse-sqrt', 'inverse', 'step', 'cosine'",
    ),
    ({"train": {"step_rule": "cosine", "seconds": 3}}, "train.step_rule", "limit the run by updates or epochs"),
    ({"train": {"step_rule": "step"}}, "train.step_every", "is missing: after how much training the rate falls"),
    ({"train": {"step_rule": "step", "step_every": "2 s"}}, "train.step_every", "a rate changes with the updates"),
    ({"train": {"step_rule": "step", "step_every": 0}}, "train.step_every", "must be above 0"),
    (
        {"train": {"step_rule": "step", "step_every": 5, "step_factor": 1.5}},
        "train.step_factor",
        "must be above 0, and at most 1",
    ),
    ({"train": {"step_every": 5}}, "train.step_every", "needs train.step_rule = 'step'"),
    ({"train": {"step_rule": "cosine", "step_factor": 0.5}}, "train.step_factor", "needs train.step_rule = 'step'"),
    ({"train": {"warm_up": "3 s"}}, "train.warm_up", "give at least 1 update, or e.g. '5 epochs'"),
    ({"train": {"warm_up": 50, "updates": 50}}, "train.warm_up", "must be shorter than the run: 50 of 50 updates"),
    ({"train": {"step_rule": "inverse-sqrt", "seconds": 3}}, "train.step_rule", "limit the run by updates or epochs"),
    ({"train": {"max_gradient_norm": 0}}, "train.max_gradient_norm", "must be above 0"),
    (
        {"train": {"max_gradient_norm": {"party": [1.0]}}},
        "train.max_gradient_norm.party",
        "a list needs one entry for each of 4 parties",
    ),
    (
        {
            "train": {"max_gradient_norm": 1.0},
            "data": {"scale": "none"},
            "privacy": {
                "mechanism": "output",
                "clip": 1.0,
                "noise": 9.0,
                "local_updates": "dp-sgd",
                "dp_sgd": {"clip": 1.0, "noise": 9.0},
            },
        },
        "train.max_gradient_norm",
        "privacy.dp_sgd.clip already shortens the gradient of every record",
    ),
    ({"train": {"loss": "l1"}}, "train.loss", "is for numbers as labels, but these labels have 10 classes"),
    ({"train": {"huber_delta": 2}}, "train.huber_delta", "needs train.loss = 'huber'"),
    ({"train": {"step_offset": 0}}, "train.step_offset", "must be above 0"),
    ({"train": {"trace": "all"}}, "train.trace", "use 'headers' or 'full'"),
    ({"model": {"embedding": 0}}, "model.embedding", "must be 1 or more"),
    ({"model": {"embedding": [1, 2]}}, "model.embedding", "one entry for each of 4 parties"),
    ({"model": {"party": ["linear"]}}, "model.party", "one entry for each of 4 parties"),
    ({"model": {"aggregate": "median"}}, "model.aggregate", "use one of concat, mean, sum, max"),
    ({"clock": {"compute": [{}, {}]}}, "clock.compute", "one for each of 4"),
    (
        {"clock": {"faults": [{"party": "party-9", "kind": "crash"}]}},
        "clock.faults[0].party",
        "no such role; there are: ",
    ),
    ({"clock": {"lost_after_s": -1}}, "clock.lost_after_s", "must be 0 or more seconds"),
]


@pytest.mark.parametrize(
    ("tables", "key", "advice"), REFUSALS, ids=[f"{key}-{i}" for i, (_, key, _) in enumerate(REFUSALS)]
)
def test_refused_before_anything_starts(tables, key, advice, digits, tmp_path):
    with pytest.raises(ConfigError) as caught:
        prepare(from_dict(tables), digits, out=tmp_path / "run")
    assert caught.value.key == key
    assert advice in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"party": "lineer"}, "model.party of party-1 = 'lineer': unknown model"),
        ({"party": ["linear", "linear", "mlp:x", "linear"]}, "model.party of party-3 = 'mlp:x': widths"),
        ({"server": "none"}, "model.server = 'none': the aggregate is 128 wide but the task has 10 outputs"),
        ({"embedding": [1, 2, 3, 4], "aggregate": "sum"}, "needs equal embedding widths"),
        ({"server": "no_such_module:Net"}, "model.server = 'no_such_module:Net': cannot import"),
    ],
)
def test_models_are_refused_before_anything_starts(model, message, digits, tmp_path):
    with pytest.raises(ColonnadeError, match=message):
        prepare(from_dict({"model": model}), digits, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_defaults(resolved):
    setting = resolved({})
    training = setting.training
    assert setting.method.name == "swift"
    assert training.limit == Every("epochs", 100) and training.eval_every == Every("epochs", 2.5)
    assert setting.plan.checkpoint_every == Every("epochs", 10) and training.patience == 0
    assert training.metric == "accuracy" and training.rule.kind == "constant"
    assert (training.server_rate, training.party_rates) == (0.01, (0.01,) * 4)
    assert [role.name for role in setting.roles()] == ["server", "party-1", "party-2", "party-3", "party-4"]


def test_intervals(resolved):
    def every(value, **limit):
        return resolved({"train": {"eval_every": value, **limit}}).training.eval_every

    assert every(50) == Every("updates", 50)
    assert every("2 s") == every("2 seconds") == every(" 2s ") == Every("seconds", 2)
    assert every("0.5 epochs") == Every("epochs", 0.5) and every("1 epoch") == Every("epochs", 1)
    assert every("1e2 updates") == Every("updates", 100)
    assert every(None, updates=10) == Every("updates", 1) and every(None, updates=800) == Every("updates", 20)
    assert every(None, seconds=80.0) == Every("seconds", 2)


def test_planned_updates_of_the_square_root_rule(resolved):
    def rule(method, **train):
        return resolved(
            {"protocol": method, "train": {"step_rule": "inverse-sqrt", "batch_size": 100, **train}}
        ).training.rule

    assert rule({"name": "vafl"}, updates=77) == StepRule("inverse-sqrt", 77, 1000.0)
    methods = ({"name": "vafl"}, {"name": "t-sync", "t": 2}, {"name": "sync"}, {"name": "centralised"})
    planned = [rule(method, epochs=2).K for method in methods]
    assert planned == [ceil(2 * 4 * 1438 / rows) for rows in (100, 200, 400, 400)]


def test_steps_and_warm_up_count_updates_of_the_method(resolved):
    def rule(method, **train):
        steps = {"step_rule": "step", "step_every": "2 epochs", "warm_up": "0.5 epochs", "batch_size": 100}
        return resolved({"protocol": method, "train": {**steps, "epochs": 9, **train}}).training.rule

    for method, rows in (({"name": "vafl"}, 100), ({"name": "t-sync", "t": 2}, 200), ({"name": "sync"}, 400)):
        found = rule(method)
        assert (found.every, found.warm_up) == (ceil(2 * 4 * 1438 / rows), ceil(0.5 * 4 * 1438 / rows))
    by_updates = rule({"name": "flex"}, step_every=30, warm_up=7, step_factor=0.5)
    assert (by_updates.every, by_updates.warm_up, by_updates.factor) == (30, 7, 0.5)


def test_one_for_each_party(resolved):
    setting = resolved(
        {
            "model": {"party": ["linear", "dense", "mlp:8", "linear"], "embedding": [1, 2, 3, 4]},
            "train": {
                "learning_rate": {"server": 0.5, "party": [1, 2, 3, 4]},
                "optimiser": {"server": "adam", "party": ["sgd", "momentum", {"name": "adam", "eps": 1e-3}, "sgd"]},
                "regulariser": [{"kind": "l2", "weight": 0.1}, {}, {}, {}],
            },
        }
    )
    training = setting.training
    assert (training.server_rate, training.party_rates) == (0.5, (1, 2, 3, 4))
    assert training.party_optimisers[2] == OptimiserSpec("adam", {"eps": 1e-3})
    assert training.server_optimiser == OptimiserSpec("adam") and training.regularisers[0] == Regulariser("l2", 0.1)
    made = zip(setting.roles()[1:], setting.data.train, strict=True)
    assert [party.network.read(block[:1]).shape[1] for party, block in made] == [1, 2, 3, 4]


def test_a_batch_cannot_be_larger_than_the_data(resolved):
    assert resolved({"train": {"batch_size": 10**6}}).training.batch_size == 1438


def test_t_defaults_to_half_rounded_up():
    three = split(load("digits"), parties=3)
    assert federation(from_dict({"protocol": {"name": "t-sync"}}), three).options.threshold(3) == 2


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    for count, name in ((0, "cuda"), (1, "cuda:1"), (2, "tpu"), (2, "tpu:one")):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        for device in (name, {"server": name}, {"party": ["cpu", "cpu", "cpu", name]}):
            with pytest.raises(ConfigError, match=f"model.device = '{name}': use 'cpu'; 'cuda' and 'cuda:1' need"):
                federation(from_dict({"model": {"device": device}}))
    with pytest.raises(ConfigError, match=r"model.device.party .* one entry for each of 4 parties"):
        federation(from_dict({"model": {"device": {"party": ["cpu"]}}}))


def test_a_party_without_labels_is_refused_where_all_hold_them():
    config = from_dict({"protocol": {"name": "asysqn-svrg"}})
    plan = make_plan(config, ("a", "b", "c"), 10, None)
    with pytest.raises(ConfigError, match="party.label = None: asysqn-svrg: every party holds the labels"):
        plan.party(0, np.ones((10, 1)), np.ones((2, 1)), (1,))
