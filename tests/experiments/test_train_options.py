"""Options of `[train]` in whole runs: what they change, and what a method without them says."""

import numpy as np
import pytest

from colonnade.algorithms.batches import Draws
from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import ConfigError

LINEAR = ["asysqn-sgd", "synsqn-saga"]
NETWORKS = ["swift", "cascaded", "flex", "fedvs"]  # `sync` and `centralised` are compared with plain torch


def run(tmp_path, name, source="diabetes", protocol=None, **sections):
    tables = {
        "data": {"source": source, "parties": 4},
        "protocol": {"name": name, **(protocol or {})},
        "train": {"updates": 12, "eval_every": 6, "batch_size": 32, **sections.pop("train", {})},
        **sections,
    }
    folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    return prepare(from_dict(tables), out=folder).execute()


def refused(name, **sections):
    tables = {"data": {"source": "diabetes", "parties": 4}, "protocol": {"name": name}, **sections}
    with pytest.raises(ConfigError) as caught:
        prepare(from_dict(tables))
    return str(caught.value)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_with_networks_takes_the_loss(name, tmp_path):
    squared, huber = (run(tmp_path, name, train=train) for train in ({}, {"loss": "huber", "huber_delta": 0.3}))
    assert squared["status"] == huber["status"] == "finished"
    assert squared["weights_sha256"] != huber["weights_sha256"]


def test_shared_labels_take_the_loss_too(tmp_path):
    runs = [run(tmp_path, "flex", protocol={"labels": "shared"}, train=train) for train in ({}, {"loss": "l1"})]
    assert runs[0]["weights_sha256"] != runs[1]["weights_sha256"]


@pytest.mark.parametrize("name", ["cascaded", "flex", "fedvs", "asysqn-sgd", "synsqn-saga"])
def test_every_method_takes_a_rule(name, tmp_path):
    rules = ({}, {"step_rule": "cosine", "warm_up": 3}, {"step_rule": "step", "step_every": 4})
    runs = [run(tmp_path, name, train=rule) for rule in rules]
    assert {s["status"] for s in runs} == {"finished"} and len({s["weights_sha256"] for s in runs}) == 3


@pytest.mark.parametrize("name", ["cascaded", "flex", "fedvs"])
def test_short_gradients_make_short_steps(name, tmp_path):
    norms = ({}, {"max_gradient_norm": 1e3}, {"max_gradient_norm": {"party": 1e-3}})
    free, long, short = (run(tmp_path, name, train={"learning_rate": 0.01, **norm}) for norm in norms)
    assert free["weights_sha256"] == long["weights_sha256"] != short["weights_sha256"], "no gradient is so long"


def test_central_differences_are_accounted(tmp_path):
    """Every upload has c and two ĉ for each direction, each under its own noise."""
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 50.0, "local_updates": "answers"}

    def spent(**protocol):
        return run(
            tmp_path, "cascaded", protocol={"directions": 2, "table": "zeros", **protocol}, privacy=privacy,
            data={"source": "diabetes", "parties": 4, "scale": "none", "validation_fraction": 0},
            train={"updates": 40, "eval_every": 40},
        )["privacy"]  # fmt: skip

    forward, central = spent(), spent(difference="central", smoothing=[0.1, 0.2, 0.3, 0.4])
    of_record = (2 / 50.0) ** 2
    # Ten updates of each party with 32 of 354 rows: no row is in two batches. Two evaluations have the test rows.
    assert forward["mu"] == pytest.approx((max(1 + 2, 2) * of_record) ** 0.5, rel=0.01)
    assert central["mu"] == pytest.approx((max(1 + 4, 2) * of_record) ** 0.5, rel=0.01)


def test_independent_batches_are_accounted_by_record(tmp_path):
    """A record pays for every batch that has drawn it. On a walk no record is in two of these batches."""
    privacy = {
        "mechanism": "output", "clip": 1.0, "noise": 50.0, "local_updates": "dp-sgd",
        "dp_sgd": {"clip": 1.0, "noise": 100.0},
    }  # fmt: skip

    def spent(sampling):
        return run(
            tmp_path, "vafl", protocol={"table": "zeros"}, privacy=privacy,
            data={"source": "diabetes", "parties": 4, "scale": "none", "validation_fraction": 0},
            train={"updates": 40, "eval_every": 40, "sampling": sampling},
        )["privacy"]  # fmt: skip

    assert spent("walk")["mu"] ** 2 == pytest.approx(2 * (2 / 50.0) ** 2), "two evaluations of test rows"
    for party, told in enumerate(spent("iid")["parties"].values()):
        draws, squares = Draws(354, 32, 0, "batches", party), np.zeros(354)
        for step in range(told["by_kind"]["batch"]):
            squares[draws.batch(step)] += (2 / 50.0) ** 2 + (2 / 100.0) ** 2 * (step < told["by_kind"]["step"])
        assert told["mu"] ** 2 == pytest.approx(squares.max()) and squares.max() > 0.006, "some records three times"


@pytest.mark.parametrize("name", ["cascaded", "flex", "fedvs"])
def test_a_heavy_penalty_makes_the_server_small(name):
    """The parties have no penalty, and learn nothing. λ = 20 at rate 0.01 leaves 0.8 of θ_0 in every step."""
    sizes = []
    for penalty in ({}, {"server_regulariser": {"kind": "l2", "weight": 20.0}}):
        tables = {
            "data": {"source": "diabetes", "parties": 4},
            "protocol": {"name": name},
            "train": {"updates": 12, "learning_rate": {"server": 0.01, "party": 0.0}, "batch_size": 32, **penalty},
        }
        made = prepare(from_dict(tables))
        made.execute()
        server = made.simulator.nodes[0].role
        sizes.append(np.linalg.norm(np.concatenate([part.ravel() for part in server.trained()["server"].values()])))
    assert sizes[1] < 0.7 * sizes[0]


def test_no_epsilon_is_claimed_for_the_noise_of_inner_layers(tmp_path):
    """The account has the Gaussian noise of the last layer alone: the same whatever the inner layers have."""
    privacy = {"mechanism": "neurons", "clip": 1.0, "noise": 30.0}
    model = {"party": "mlp:8,6", "embedding": 4}
    quiet, loud = (
        run(tmp_path, "vafl", privacy=privacy | {"inner": inner}, model=model) for inner in (0.0, [3.0, 0.5])
    )
    assert quiet["weights_sha256"] != loud["weights_sha256"]
    assert quiet["privacy"]["mu"] == loud["privacy"]["mu"] > 0
    assert quiet["privacy"]["epsilon"] == loud["privacy"]["epsilon"]


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_method_has_its_own_losses(name, tmp_path):
    ridge, huber = (run(tmp_path, name, protocol=protocol) for protocol in ({}, {"loss": "huber"}))
    assert huber["status"] == "finished" and huber["weights_sha256"] != ridge["weights_sha256"]
    said = refused(name, train={"loss": "l1"})
    assert said.startswith(f"train.loss = 'l1': {name}: a linear method has its own losses: set protocol.loss")


@pytest.mark.parametrize(
    ("name", "sections", "message"),
    [
        ("vafl", {"train": {"loss": "huber", "huber_delta": 0}}, "train.huber_delta = 0.0: must be above 0"),
        ("afsgd", {"train": {"max_gradient_norm": 1.0}}, "afsgd takes its steps from curvature and its own rate"),
        (
            "afsgd",
            {"train": {"server_regulariser": {"kind": "l2", "weight": 1.0}}},
            "protocol.l2 is the penalty of all",
        ),
        (
            "vafl",
            {"train": {"server_regulariser": {"kind": "l3"}}},
            "train.server_regulariser.kind = 'l3': use 'none', 'l1' or 'l2'",
        ),
        (
            "vafl",
            {"privacy": {"mechanism": "neurons", "clip": 1.0, "noise": 1.0, "inner": [0.1, -0.1]}},
            "privacy.inner = [0.1, -0.1]: must be a standard deviation of 0 or more",
        ),
        (
            "vafl",
            {"privacy": {"mechanism": "output", "clip": 1.0, "noise": 1.0, "inner": [0.1]}},
            "privacy.inner = [0.1]: noise in inner layers needs mechanism = 'neurons'",
        ),
        ("vafl", {"train": {"loss": "mape"}}, "train.loss = 'mape': invalid enum value 'mape'"),
    ],
)
def test_refusals(name, sections, message):
    assert message in refused(name, **sections)


def test_hubers_delta_of_a_linear_method():
    with pytest.raises(ConfigError, match=r"protocol.huber_delta = 2.0: needs protocol.loss = 'huber'"):
        prepare(from_dict({"data": {"source": "diabetes"}, "protocol": {"name": "afsgd", "huber_delta": 2.0}}))
    with pytest.raises(ConfigError, match="must be above 0 standard deviations"):
        tables = {"name": "afsgd", "loss": "huber", "huber_delta": -1.0}
        prepare(from_dict({"data": {"source": "diabetes"}, "protocol": tables}))
