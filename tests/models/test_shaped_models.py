"""Networks for rows with a shape: layers, refused settings, plain torch's numbers, and exact resuming."""

import copy
import dataclasses
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import colonnade
from colonnade.drivers.simulator import checkpoint
from colonnade.models import Network, OptimiserSpec, party_module, server_module
from colonnade.models.shaped import Recurrent
from colonnade.protocol import state
from colonnade.protocol.errors import ModelError

SHAPED = [("cnn", (14, 14)), ("cnn", (7, 28)), ("lstm", (6, 5))]
SGD = OptimiserSpec()


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(name, shape, outputs=3, seed=7):
    return party_module(name, shape, outputs, seed, "party-2")


def rows(shape, count=5, seed=1):
    return np.random.default_rng(seed).random((count, int(np.prod(shape)))).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "left"),
    [((28, 28), (7, 7)), ((14, 14), (3, 3)), ((7, 28), (1, 7)), ((1, 28), (1, 7)), ((2, 2), (1, 1)), ((1, 1), (1, 1))],
)
def test_cnn_has_seven_layers_and_pools_no_side_away(shape, left):
    module = build("cnn", shape)
    counted = [part for part in module if isinstance(part, nn.Conv2d | nn.MaxPool2d | nn.Linear)]
    names = [type(part).__name__ for part in counted]
    assert names == ["Conv2d", "MaxPool2d", "Conv2d", "MaxPool2d", "Conv2d", "Linear", "Linear"]
    assert counted[-2].in_features == 32 * left[0] * left[1]
    assert module(torch.from_numpy(rows(shape))).shape == (5, 3)


@pytest.mark.parametrize("shape", [(6, 5), (1, 4), (9, 1)])
def test_lstm_is_bidirectional_16_then_16(shape):
    module = build("lstm", shape)
    first, second = module.first, module.second
    assert (first.input_size, first.hidden_size, first.bidirectional) == (shape[1], 16, True)
    assert (second.input_size, second.hidden_size, second.bidirectional) == (32, 16, False)
    assert module(torch.from_numpy(rows(shape))).shape == (5, 3)


def test_cnn_sees_the_piece_as_it_lies():
    """Row by row: a horizontal edge is found by a filter for horizontal edges."""
    module, image = build("cnn", (4, 6)), torch.zeros(4, 6)
    image[2:] = 1
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[-1.0] * 3, [0.0] * 3, [1.0] * 3]).expand(16, 1, 3, 3))
        module[1].bias.zero_()
        found = module[1](module[0](image.reshape(1, 24)))[0, 0]
    assert found[1].tolist() == found[2].tolist() == [2, 3, 3, 3, 3, 2]
    assert found[0].tolist() == [0] * 6


def test_lstm_reads_time_in_order():
    """The last state of the second LSTM, written out with torch's cells."""
    module, x = build("lstm", (6, 5)), torch.from_numpy(rows((6, 5)))
    series = x.reshape(5, 6, 5)

    def scan(lstm, inputs, suffix=""):
        cell = nn.LSTMCell(inputs.shape[2], 16)
        cell.load_state_dict({name: getattr(lstm, f"{name}_l0{suffix}") for name in cell.state_dict()})
        h = c = torch.zeros(len(inputs), 16)
        steps = []
        for moment in inputs.unbind(1):
            h, c = cell(moment, (h, c))
            steps.append(h)
        return torch.stack(steps, 1)

    with torch.no_grad():
        forth, back = scan(module.first, series), scan(module.first, series.flip(1), "_reverse").flip(1)
        last = scan(module.second, torch.cat([forth, back], 2))[:, -1]
        np.testing.assert_allclose(module(x), module.output(last), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_rows_without_a_shape_are_refused(name):
    with pytest.raises(
        ModelError, match="but it is a plain list of 20 columns; .*split = 'rows' or 'quarters'"
    ) as caught:
        build(name, (20,))
    assert str(caught.value).startswith(f"model.party of party-2 = '{name}': a row must be a ")
    with pytest.raises(ModelError, match=f"^model.server = '{name}': is for parties"):
        server_module(name, 20, 3, seed=0)


@pytest.mark.parametrize("how", ["even", {"a": ["pixel0..pixel31"], "b": ["pixel32..pixel63"]}])
def test_a_split_that_keeps_no_pieces_is_refused(how):
    data = colonnade.split(colonnade.load("digits"), 2, how)
    for method in ("vafl", "centralised"):
        with pytest.raises(ModelError, match=f"model.party of {data.parties[1]} = 'cnn'.*is a plain list of 32"):
            colonnade.prepare(data, method, ["linear", "cnn"], embedding=4, updates=1)


@pytest.mark.parametrize(("name", "shape"), SHAPED)
def test_forward_backward_and_steps_are_torchs_own(name, shape):
    oracle, network = build(name, shape), Network(build(name, shape), SGD)
    assert isinstance(oracle, Recurrent if name == "lstm" else nn.Sequential)
    optimiser = torch.optim.SGD(oracle.parameters(), lr=0.1)
    for step in range(4):
        x, g = rows(shape, seed=step), np.random.default_rng(step).standard_normal((5, 3)).astype(np.float32)
        expected = oracle(torch.from_numpy(x))
        np.testing.assert_allclose(network.forward(x, step, 0), expected.detach(), rtol=1e-5, atol=1e-6)
        optimiser.zero_grad()
        expected.backward(torch.from_numpy(g))
        gradient = network.backward(x, step, 0, g)
        plain = torch.cat([p.grad.reshape(-1) for p in oracle.parameters()]).numpy()
        np.testing.assert_allclose(gradient, plain, rtol=1e-4, atol=1e-5)
        optimiser.step()
        network.apply(gradient, 0.1)
    with torch.no_grad():
        np.testing.assert_allclose(network.read(x), oracle(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), SHAPED)
def test_parameters_are_views_in_both_copies(name, shape):
    """An LSTM keeps a second list of its weights, which must hold the views, too."""
    network, x = Network(build(name, shape), SGD), rows(shape)
    network.theta.zero_()
    assert not network.forward(x, 0, 0).any() and not network.read(x).any()
    twin = copy.deepcopy(network.reader)
    network.theta.fill_(0.1)
    assert network.forward(x, 1, 0).all() and network.read(x).all()
    assert not twin(torch.from_numpy(x)).any(), "a copy is not a view"


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(("name", "shape"), SHAPED)
def test_save_and_load_continue_to_the_bit(name, shape, optimiser):
    def train(network, steps):
        for step in steps:
            x, g = rows(shape, seed=step), np.random.default_rng(step).standard_normal((5, 3)).astype(np.float32)
            network.forward(x, step, step)
            network.apply(network.backward(x, step, step, g), 0.05)

    whole, halves, resumed = (Network(build(name, shape), OptimiserSpec(optimiser)) for _ in range(3))
    train(whole, range(6))
    train(halves, range(3))
    resumed.load(state.unpack(state.pack(halves.save())))
    train(resumed, range(3, 6))
    assert resumed.digest() == whole.digest() != halves.digest()
    np.testing.assert_array_equal(resumed.read(rows(shape)), whole.read(rows(shape)))


def drawing(layer):
    return Network(nn.Sequential(nn.Unflatten(1, (2, 2)), layer), SGD)._draws


def test_no_generator_is_swapped_for_layers_that_draw_nothing():
    for name, shape in SHAPED:
        assert not Network(build(name, shape), SGD)._draws
    assert not drawing(nn.LSTM(2, 2)) and not drawing(nn.GRU(2, 2))
    assert drawing(nn.LSTM(2, 2, num_layers=2, dropout=0.5)) and drawing(nn.Dropout(0.1))

    class Noisy(nn.Linear):
        """A subclass may override anything."""

    assert drawing(Noisy(2, 2))


class Shaped(nn.Module):
    """A user's class that wants the shape of a row."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(shape[-1], outputs)

    def forward(self, x):
        return self.layer(x.reshape(-1, *self.shape).mean(1))


def test_ones_own_class_gets_the_shape_if_it_asks_for_it(monkeypatch):
    module = types.ModuleType("own_shaped_models_of_a_test")
    module.Shaped = Shaped
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for model in (f"{module.__name__}:Shaped", Shaped, lambda shape, width: Shaped(shape, width).eval()):
        assert build(model, (4, 6)).shape == (4, 6)
    assert build(nn.Linear, (4, 6)).in_features == 24
    with pytest.raises(ModelError, match=r"could not be built from \(shape=\(4, 6\), outputs=3\)"):
        build(lambda shape: nn.Identity(), (4, 6))
    assert server_module(lambda shape, outputs: nn.Linear(*shape, outputs), 8, 3, seed=0).in_features == 8


@pytest.fixture(scope="module")
def quarters():
    return colonnade.split(colonnade.load("digits"), 4, "quarters", scale="minmax")


@pytest.mark.parametrize("method", ["vafl", "centralised"])
def test_parties_of_three_kinds_learn_together(quarters, method):
    settings = {"embedding": 8, "epochs": 2, "optimiser": "adam", "learning_rate": 0.02, "eval_every": "2 epochs"}
    results = [
        colonnade.train(quarters, method, ["cnn", "lstm", "mlp:16", Shaped], "mlp:32", **settings) for _ in range(2)
    ]
    assert results[0].summary["accuracy"] > 0.6
    assert results[0].summary["weights_sha256"] == results[1].summary["weights_sha256"]
    raw = colonnade.load("digits").x[:7]
    assert results[0].predict(raw).shape == (7, 10)


def test_a_run_that_is_cut_off_goes_on_to_the_bit(quarters):
    def run():
        settings = {"embedding": 4, "updates": 40, "batch_size": 16, "eval_every": 20, "optimiser": "momentum"}
        return colonnade.prepare(quarters, "vafl", ["cnn", "lstm", "mlp:16", Shaped], **settings)

    whole, cut, resumed = run(), run(), run()
    cut.simulator.advance(150)
    assert 0 < cut.summary()["updates"] < 40
    checkpoint.load(resumed.simulator, state.unpack(state.pack(checkpoint.save(cut.simulator))))
    ends = [started.execute() for started in (whole, resumed)]
    assert ends[0]["status"] == ends[1]["status"] == "finished"
    for key in ("updates", "accuracy", "weights_sha256", "trace_sha256"):
        assert ends[0][key] == ends[1][key]


def test_reading_many_rows_reads_each_of_them():
    network, x = Network(build("cnn", (4, 4)), SGD), rows((4, 4), count=2500)
    whole = network.read(x)
    assert whole.shape == (2500, 3)
    for start in (0, 1000, 2400):
        np.testing.assert_allclose(
            network.read(x[start : start + 100]), whole[start : start + 100], rtol=1e-4, atol=1e-6
        )
    assert network.read(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("aggregate", ["concat", "mean", "sum", "max"])
def test_every_aggregate_learns_as_the_joint_model_does(quarters, aggregate):
    """`sync` is joint training under each aggregate, step for step."""
    settings = {"embedding": 8, "updates": 60, "batch_size": 32, "learning_rate": 0.2, "aggregate": aggregate}
    sync, joint = (
        colonnade.train(quarters, method, "linear", "linear", **settings).metrics for method in ("sync", "centralised")
    )
    assert sync["loss"][-1] < sync["loss"][0] - 0.05
    np.testing.assert_allclose(sync["loss"], joint["loss"], rtol=1e-3)


def test_a_series_is_what_its_shape_says():
    """A table whose columns are a series: the test sets the shape."""
    generator = np.random.default_rng(0)
    up = generator.integers(0, 2, 400)
    ramp = np.linspace(-1, 1, 8)[None, :, None] * (2 * up - 1)[:, None, None]
    x = (ramp + generator.standard_normal((400, 8, 4)) * 0.5).reshape(400, 32)
    data = colonnade.split(colonnade.from_arrays(x, up), parties=1)
    data = dataclasses.replace(data, shapes=((8, 4),))
    result = colonnade.train(data, "vafl", "lstm", embedding=4, epochs=15, learning_rate=0.5, metric="auc", target=0.9)
    assert result.summary["value"] > 0.9 and result.summary["time_to_target_s"] is not None
