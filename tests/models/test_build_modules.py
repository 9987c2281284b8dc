"""From a model's name, class, module or callable to a network; and every refusal."""

import sys
import types

import pytest
import torch
from torch import nn

from colonnade.models import party_module, server_module
from colonnade.protocol.errors import ModelError


def build(model, inputs=5, outputs=3, seed=7):
    return party_module(model, (inputs,), outputs, seed, "party-2")


def layers(module):
    return [(type(part).__name__, getattr(part, "in_features", None), getattr(part, "out_features", None))
            for part in module.modules() if not isinstance(part, nn.Sequential)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", [("Linear", 5, 3)]),
        ("dense", [("Linear", 5, 3), ("ReLU", None, None)]),
        ("mlp:8", [("Linear", 5, 8), ("ReLU", None, None), ("Linear", 8, 3)]),
        (
            "mlp:8, 4",
            [("Linear", 5, 8), ("ReLU", None, None), ("Linear", 8, 4), ("ReLU", None, None), ("Linear", 4, 3)],
        ),
    ],
)
def test_named_models(name, expected):
    assert layers(build(name)) == expected
    assert layers(server_module(name, 5, 3, seed=0)) == expected


def test_the_seed_alone_decides_the_weights_and_torchs_generator_stays():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = build("mlp:8", seed=3), build("mlp:8", seed=3), build("mlp:8", seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


class Squeeze(nn.Module):
    """A user's own class, called with (inputs, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.tanh(self.layer(x))


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_models_of_a_test")
    module.Squeeze, module.number = Squeeze, lambda inputs, outputs: 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_dotted_class(own_module):
    assert isinstance(build(f"{own_module}:Squeeze"), Squeeze)


def test_class_and_callable():
    assert isinstance(build(Squeeze), Squeeze)
    assert layers(build(lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False))) == [("Linear", 5, 3)]


def test_a_module_is_copied_for_each_party():
    module = nn.Linear(5, 3)
    first, second = build(module), build(module)
    assert first is not module and second is not first
    assert torch.equal(first.weight, module.weight)
    with torch.no_grad():
        first.weight.zero_()
    assert module.weight.abs().sum() > 0 and second.weight.abs().sum() > 0


def test_lazy_layers_are_initialised_reproducibly():
    def lazy(inputs, outputs):
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(outputs))

    first, again = build(lazy), build(lazy)
    assert first[0].weight.shape == (4, 5) and first[2].weight.shape == (3, 4)
    assert torch.equal(first[0].weight, again[0].weight)


def test_the_width_check_moves_no_buffer():
    module = build(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)))
    assert module[0].num_batches_tracked == 0
    assert module.training


def test_server_none_is_the_aggregate_itself():
    assert isinstance(server_module("none", 3, 3, seed=0), nn.Identity)
    with pytest.raises(
        ModelError, match=r"the aggregate is 12 wide but the task has 3 outputs; set model.embedding = "
    ):
        server_module("none", 12, 3, seed=0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lineer", "model.party of party-2 = 'lineer': unknown model; use linear, dense, mlp:WIDTH"),
        ("none", "model.party of party-2 = 'none': unknown model"),
        ("mlp", "'mlp': unknown model"),
        ("mlp:", "'mlp:': widths must be positive whole numbers, as in 'mlp:64,32'"),
        ("mlp:8,-1", "'mlp:8,-1': widths must be positive"),
        ("mlp:0", "'mlp:0': widths must be positive"),
        ("mlp:8.5", "'mlp:8.5': widths must be positive"),
        ("mlp:8;4", "'mlp:8;4': widths must be positive"),
        ("no_such_package_at_all:Net", "cannot import 'no_such_package_at_all'.*put its folder on PYTHONPATH"),
        (":Net", "cannot import ''"),
        ("collections:Nut", "module 'collections' has no 'Nut'"),
        ("collections:OrderedDict", "could not be built from .inputs=5, outputs=3"),
        ("math:gcd", "made a int, not a torch.nn.Module"),
        (lambda inputs, outputs: "net", "made a str, not a torch.nn.Module"),
        (lambda inputs: nn.Identity(), "could not be built from .inputs=5, outputs=3"),
        (nn.Linear(5, 4), r"gives \(2, 4\) for a batch of 2 rows, should be \(2, 3\); check its last layer"),
        (nn.Linear(6, 3), r"fails on a batch of shape \(2, 5\)"),
        (nn.LSTM(5, 3), r"gives tuple for a batch of 2 rows, should be \(2, 3\)"),
        (nn.Flatten(0), r"gives \(10,\) for a batch of 2 rows"),
    ],
)
def test_refusals(model, message):
    with pytest.raises(ModelError, match=message) as caught:
        build(model)
    assert str(caught.value).startswith("model.party of party-2")
    with pytest.raises(ModelError, match=r"^model\.server"):
        server_module(model if model != "none" else "nothing", 5, 3, seed=0)
