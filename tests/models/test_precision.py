"""Mixed precision: what is computed in bfloat16, what stays in float32, and what is refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import colonnade
from colonnade.cli.main import app
from colonnade.config.fitting import fitted
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.config.shared import is_shared
from colonnade.deployment.terms import shared_part
from colonnade.models import Network, OptimiserSpec
from colonnade.models.probed import ProbedNetwork
from colonnade.protocol.errors import ConfigError

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
BF16 = OptimiserSpec("adam", precision="bf16")


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def test_passes_are_rounded_as_autocast_rounds_them():
    network, plain = Network(module(), BF16), module()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = plain(torch.from_numpy(X)).float()
    output = network.forward(X, 0, 0)
    assert output.dtype == np.float32 and np.array_equal(output, wanted.detach().numpy())
    exact = Network(module(), OptimiserSpec()).forward(X, 0, 0)
    assert not np.array_equal(output, exact) and np.allclose(output, exact, atol=0.02)
    ones = np.ones((16, 3), np.float32)
    gradient = network.backward(X, 0, 0, ones)
    wanted.sum().backward()
    assert gradient.dtype == np.float32
    assert np.array_equal(gradient, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]).numpy())


def test_state_and_evaluation_stay_in_float32():
    network = Network(module(), BF16)
    for _ in range(3):
        network.forward(X, 0, 0)
        network.apply(network.backward(X, 0, 0, np.ones((16, 3), np.float32)), 0.01)
    assert network.theta.dtype == torch.float32 and set(network.trained()) == set(module().state_dict())
    small = network.theta.clone()
    assert not torch.equal(small, small.bfloat16().float())  # a step smaller than bfloat16's is not lost
    after = module()
    after.load_state_dict({name: torch.from_numpy(np.array(part)) for name, part in network.trained().items()})
    assert np.array_equal(network.read(X), after(torch.from_numpy(X)).detach().numpy())


def test_probes_stay_in_float32():
    probed, exact = ProbedNetwork(module(), BF16), ProbedNetwork(module(), OptimiserSpec("adam"))
    assert np.array_equal(probed.embed(X, 0), exact.embed(X, 0))


def tables(**more):
    return {"data": {"source": "wine"}, "model": {"precision": "bf16"}, "train": {"updates": 5}} | more


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model": {"precision": "fp16"}}, "model.precision = 'fp16': use one of 'fp32', 'bf16'"),
        ({"protocol": {"name": "fedvs"}}, "fedvs does not compute with torch's networks alone; use 'fp32'"),
        ({"protocol": {"name": "asysqn-sgd"}, "data": {"source": "breast-cancer"}}, "asysqn-sgd does not compute"),
        ({"protocol": {"name": "vafl"}, "privacy": {"mechanism": "output", "clip": 1.0, "noise": 5.0}}, "no noise"),
        ({"protocol": {"name": "wait-dp"}}, "no noise"),
    ],
)
def test_what_cannot_work_is_refused(more, why):
    with pytest.raises(ConfigError, match=why):
        federation(from_dict(tables(**more)))


def test_a_comparison_gives_fedvs_its_own_precision():
    found = fitted(from_dict(tables(protocol={"name": "fedvs"})))
    assert found.changes["model.precision"] == "fp32" and found.config.model.precision == "fp32"
    assert "model.precision" not in fitted(from_dict(tables(protocol={"name": "vafl"}))).changes


def test_each_member_chooses_its_own():
    assert not is_shared("model", "precision")
    assert "precision" not in shared_part(from_dict(tables()), "authority")["model"]


@pytest.mark.parametrize("protocol", ["sync", "vafl", "flex", "cascaded", "centralised"])
def test_methods_learn_in_bf16(protocol):
    data = colonnade.split(colonnade.load("wine"), parties=2)
    results = [colonnade.train(data, protocol, epochs=8, precision=kind) for kind in ("fp32", "bf16")]
    exact, mixed = (result.summary for result in results)
    assert mixed["weights_sha256"] != exact["weights_sha256"]
    assert abs(mixed["value"] - exact["value"]) <= 0.1


@pytest.mark.parametrize("party", ["cnn", "lstm", "resnet:4,8"])
def test_the_command_line_takes_it(party, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = f"run --set data.split=quarters --set model.party={party} --set model.precision=bf16"
    made = CliRunner().invoke(app, [*words.split(), "--set", "train.updates=4", "--out", "run"])
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert 'precision = "bf16"' in (tmp_path / "run" / "config.toml").read_text()
