"""A party's model that is no torch module: what it may do, what is refused, and that training works."""

import sys
from pathlib import Path

import numpy as np
import pytest

import colonnade
from colonnade.config.schema import from_dict, read_toml
from colonnade.models import OptimiserSpec
from colonnade.models.blackbox import BlackBox, BlackBoxNetwork
from colonnade.models.build import party_module
from colonnade.models.probed import ProbedNetwork, probed_network
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError, ModelError

from ..starting import run

ROOT = Path(__file__).parents[2]
X = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


class Sum:
    """The smallest black box: rows times θ, the same for every output."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs

    def initial(self, generator):
        return generator.standard_normal(self.inputs)

    def __call__(self, theta, rows):
        return np.repeat((rows @ theta)[:, None], self.outputs, 1)


def network(kind=Sum, outputs=2):
    return probed_network(kind, (3,), outputs, 0, "party-7", OptimiserSpec())


def variant(**methods):
    return type("Variant", (Sum,), methods)


def test_a_black_box_is_evaluated_where_it_is_asked_to_be():
    made = network()
    theta = made.theta.numpy()
    assert isinstance(made, BlackBoxNetwork) and isinstance(Sum(3, 2), BlackBox)
    assert theta.dtype == np.float32 and made.embed(X, 0).dtype == np.float32
    np.testing.assert_allclose(made.embed(X, 0)[:, 1], X @ theta, rtol=1e-6)
    np.testing.assert_allclose(made.embed_at(theta + 1, X, 0)[:, 0], X @ (theta + 1), rtol=1e-6)
    np.testing.assert_array_equal(made.read(X), made.embed(X, 5))
    assert made.buffers_after_forward() == []


def test_its_parameters_come_from_the_seed_and_are_stepped_and_saved():
    made, twin = network(), network()
    np.testing.assert_array_equal(made.theta.numpy(), twin.theta.numpy())
    other = probed_network(Sum, (3,), 2, 1, "party-7", OptimiserSpec())
    assert not np.array_equal(other.theta.numpy(), made.theta.numpy())
    before = made.theta.numpy().copy()
    made.apply(np.ones(3, np.float32), 0.5, [])
    np.testing.assert_allclose(made.theta.numpy(), before - 0.5, rtol=1e-6)
    twin.load(state.unpack(state.pack(made.save())))
    assert twin.digest() == made.digest() and twin.steps == 1


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (lambda self, theta, rows: np.ones((len(rows), 3)), r"gives \(2, 3\) for 2 rows, should be \(2, 2\)"),
        (lambda self, theta, rows: np.ones(len(rows)), r"gives \(2,\) for 2 rows"),
        (lambda self, theta, rows: [[1.0, 1.0]] * len(rows), "gives list for 2 rows"),
        (lambda self, theta, rows: None, "gives NoneType for 2 rows"),
        (lambda self, theta, rows: np.full((len(rows), 2), np.nan), "gives NaN or infinity"),
        (lambda self, theta, rows: np.full((len(rows), 2), 1e300), "gives NaN or infinity"),
        (lambda self, theta, rows: np.full((len(rows), 2), "a"), "gives <U1, not numbers"),
        (lambda self, theta, rows: np.full((len(rows), 2), 1j), "gives complex128, not numbers"),
        (lambda self, theta, rows: rows @ np.ones((9, 2)), "fails: "),
        (lambda self, theta, rows: rows[:, 99], "fails: .*out of bounds"),
        (lambda self, theta, rows: 1 / 0, "fails: ZeroDivisionError"),
    ],
)
def test_what_a_call_gives_is_checked_before_anything_runs(made, cause):
    with pytest.raises(ModelError, match=f"model.party of party-7: {cause}"):
        network(variant(__call__=made))


@pytest.mark.parametrize("what", ["theta", "rows"])
def test_changing_its_parameters_or_rows_in_place_is_refused(what):
    def spoil(self, theta, rows):
        (theta if what == "theta" else rows)[0] += 1
        return Sum.__call__(self, theta, rows)

    with pytest.raises(ModelError, match="model.party of party-7: changes its parameters or rows in place; .*copy"):
        network(variant(__call__=spoil))


def test_what_it_gives_may_be_reused_by_it():
    """It refills one buffer at every call: earlier results must stay unchanged."""

    def reuse(self, theta, rows):
        if getattr(self, "buffer", None) is None or len(self.buffer) != len(rows):
            self.buffer = np.zeros((len(rows), 2), np.float32)
        self.buffer[:] = Sum.__call__(self, theta, rows)
        return self.buffer

    made = network(variant(__call__=reuse))
    first = made.embed(X, 0)
    copied = first.copy()
    made.embed_at(made.theta.numpy() + 1, X, 0)
    np.testing.assert_array_equal(first, copied)


@pytest.mark.parametrize(
    "theta",
    [np.ones((3, 1)), np.zeros(0), np.array([1.0, np.nan]), np.array([1e300]), np.array(["a"]), np.array([1j]),
     np.array([object()]), None, "abc", 3.0],
)  # fmt: skip
def test_initial_parameters_are_a_flat_vector_of_numbers(theta):
    with pytest.raises(
        ModelError, match=r"model\.party of party-7: initial\(\) must give a flat vector of finite numbers"
    ):
        network(variant(initial=lambda self, generator: theta))


@pytest.mark.parametrize("theta", [[1, 2, 3], (0.5, 1.5), np.array([1, 2], np.int8), np.ones(2, np.float64)])
def test_any_flat_numbers_will_do(theta):
    made = network(variant(initial=lambda self, generator: theta, __call__=lambda self, t, r: np.ones((len(r), 2))))
    np.testing.assert_array_equal(made.theta.numpy(), np.asarray(theta, np.float32))


def test_the_box_keeps_the_vector_that_it_gave():
    """θ is stepped in place; a box that kept its own initial vector would see it move."""
    own = np.ones(3, np.float32)
    made = network(variant(initial=lambda self, generator: own))
    made.apply(np.ones(3, np.float32), 1.0, [])
    np.testing.assert_array_equal(own, 1)


def test_something_else_is_no_model():
    with pytest.raises(ModelError, match="made a list, not a torch.nn.Module or a black box"):
        network(lambda inputs, outputs: [])
    with pytest.raises(ModelError, match="model.party of party-7: could not be built from"):
        network(variant(__init__=lambda self: None))


def test_a_torch_module_is_still_a_torch_module():
    assert isinstance(network("linear"), ProbedNetwork)


# --- methods


def setting(protocol, model=Sum, **fields):
    data = colonnade.split(colonnade.load("digits"), parties=2)
    return colonnade.prepare(data, protocol, model, "linear", embedding=3, updates=5, **fields)


@pytest.mark.parametrize("method", ["vafl", "t-sync", "sync", "centralised"])
def test_first_order_methods_refuse_it_and_say_what_would_do(method):
    with pytest.raises(
        ModelError, match="model.party of party-1: .*is a black box without gradients; use .*'cascaded'"
    ):
        setting(method)
    with pytest.raises(ModelError, match="black box without gradients"):
        party_module(Sum, (3,), 2, 0, "party-1")


def test_the_server_is_never_one():
    data = colonnade.split(colonnade.load("digits"), parties=2)
    with pytest.raises(ModelError, match="model.server: .*is a black box; the server needs a torch.nn.Module"):
        colonnade.prepare(data, "cascaded", "linear", Sum, embedding=3, updates=5)


@pytest.mark.parametrize("method", ["cascaded", "zoo", "syn-zoo", "frozen"])
def test_zeroth_order_methods_train_it_beside_others(method):
    run = setting(method, [Sum, "linear"], learning_rate=0.001)
    before = [node.role.network.theta.numpy().copy() for node in run.simulator.nodes[1:]]
    run.execute()
    for node, theta in zip(run.simulator.nodes[1:], before, strict=True):
        assert np.array_equal(node.role.network.theta.numpy(), theta) == (method == "frozen")


def test_a_box_that_fails_later_names_its_party():
    class Later(Sum):
        calls = 0

        def __call__(self, theta, rows):
            Later.calls += 1
            return super().__call__(theta, rows) * (np.nan if Later.calls > 8 else 1)

    run = setting("cascaded", Later, learning_rate=0.001)
    with pytest.raises(ModelError, match="model.party of party-[12]: gives NaN or infinity"):
        run.execute()


def test_the_smoothing_is_checked_against_its_parameters():
    with pytest.raises(ConfigError, match="protocol.smoothing = 1e-08: too small for the 32 parameters of party-1"):
        setting({"name": "cascaded", "smoothing": 1e-8})


# --- the example


def test_the_example_imports_no_torch():
    text = (ROOT / "examples" / "black_box.py").read_text(encoding="utf-8")
    assert "import torch" not in text and "import colonnade" not in text and "from colonnade" not in text


def test_stumps_learn_what_frozen_stumps_do_not(monkeypatch):
    """docs/write-a-model.md shows the whole run; 12 of its 30 epochs are enough to tell them apart."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    data = colonnade.split(colonnade.load("digits"), parties=4)
    tables = read_toml(ROOT / "examples" / "black_box.toml")
    assert from_dict(tables).model.party == "black_box:Stumps"
    accuracy = {}
    for protocol in (tables["protocol"], {"name": "frozen"}):
        model, train = tables["model"], tables["train"] | {"epochs": 12, "eval_every": "6 epochs"}
        result = colonnade.train(data, protocol, model["party"], model["server"], embedding=3, **train)
        accuracy[protocol["name"]] = result.summary["accuracy"]
    assert result.predict(list(data.test)).shape == (len(data.y_test), 10)
    assert accuracy["cascaded"] > accuracy["frozen"] + 0.03, accuracy


@pytest.mark.parametrize("method", ["cascaded", "vafl"])
def test_from_the_command_line(method, tmp_path):
    """The module is on PYTHONPATH and named in a setting; a child process, as for a user."""
    config = str(ROOT / "examples" / "digits.toml")
    command = [sys.executable, "-m", "colonnade", "run", config, "--out", str(tmp_path / "run")]
    for pair in ("model.party=black_box:Stumps", f"protocol.name={method}", "train.seconds=0.5", "model.server=linear"):
        command += ["--set", pair]
    paths = f"{ROOT / 'src'}:{ROOT / 'examples'}"
    child = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": ""}
    done = run(command, env=child, capture_output=True, text=True, check=False)
    said = " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in said
    assert (done.returncode == 0) == (method == "cascaded"), said
    if method == "vafl":
        assert "black box without gradients; use a zeroth-order method" in said
