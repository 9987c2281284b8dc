"""Random neurons: the noise of every layer, the clipping, and the smoothing of VAFL's Thm 5."""

from math import pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from colonnade.models import Network, OptimiserSpec
from colonnade.privacy.perturb import PerturbedFunction, Stream, drawing, output_noise, random_neurons
from colonnade.protocol.errors import LocalProtocolError, ModelError

LAYERS = ("inner 1", "inner 2", "last")


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU())


@pytest.fixture(scope="module")
def noises():
    """What was added at every layer for 4,000 equal rows: the difference to the layer without noise."""
    module = random_neurons(three_layers(), clip=1e6, noise=0.3, inner=0.2, who="p")
    seen = []
    for stage in module.stages:
        stage.register_forward_hook(lambda stage, x, out: seen.append((x[0], out)))
    module.tail.register_forward_hook(lambda tail, x, out: seen.append((x[0], out)))
    with torch.no_grad(), drawing(Stream(b"s" * 32)):
        module(torch.ones(4000, 4))
    pairs = zip(LAYERS, seen, seen[1:], strict=False)
    return {name: (after[0] - before[1]).numpy().ravel() for name, before, after in pairs}


DISTRIBUTIONS = {"inner 1": stats.uniform(-sqrt(3) * 0.2, 2 * sqrt(3) * 0.2), "last": stats.norm(0, 0.3)}
DISTRIBUTIONS["inner 2"] = DISTRIBUTIONS["inner 1"]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_noise_of_every_layer_has_its_mean_deviation_and_distribution(layer, noises):
    noise, wanted = noises[layer], DISTRIBUTIONS[layer]
    assert abs(noise.mean()) < 4 * wanted.std() / sqrt(len(noise))
    assert noise.std() == pytest.approx(wanted.std(), rel=0.03)
    assert stats.kstest(noise, wanted.cdf).pvalue > 1e-3
    other = stats.norm(0, wanted.std()) if layer != "last" else stats.uniform(-sqrt(3) * 0.3, 2 * sqrt(3) * 0.3)
    assert stats.kstest(noise, other.cdf).pvalue < 1e-3, "the test can tell the two apart"


def test_every_inner_layer_may_have_its_own_noise():
    """Layers that only pass on what they get: the sum of the first two noises reaches the last layer."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    module = random_neurons(nn.Sequential(*layers), 1e6, 0.0, [0.5, 2.0], "p")
    with torch.no_grad(), drawing(Stream(b"s" * 32)):
        both = module(torch.zeros(20000, 1))
    assert both.std().item() == pytest.approx(sqrt(0.5**2 + 2.0**2), rel=0.03)
    module = random_neurons(nn.Sequential(*layers), 1e6, 0.0, [0.0, 2.0], "p")
    with torch.no_grad(), drawing(Stream(b"s" * 32)):
        second = module(torch.zeros(20000, 1))
    assert second.std().item() == pytest.approx(2.0, rel=0.03)
    assert second.abs().max().item() <= sqrt(3) * 2.0 * (1 + 1e-6), "uniform"


def test_one_number_is_the_same_as_a_list_of_it():
    outputs = []
    for inner in (0.2, [0.2, 0.2]):
        module = random_neurons(three_layers(), 1.0, 0.3, inner, "p")
        with torch.no_grad(), drawing(Stream(b"s" * 32)):
            outputs.append(module(torch.ones(5, 4)))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("inner", [[0.1], [0.1, 0.1, 0.1], []])
def test_a_list_of_another_length_is_refused(inner):
    cause = rf"model.party of p: has 2 inner layers .*privacy.inner lists {len(inner)} deviations"
    with pytest.raises(ModelError, match=cause):
        random_neurons(three_layers(), 1.0, 0.3, inner, "p")


def test_rows_are_independent_and_streams_are_told_apart():
    module = output_noise(nn.Identity(), clip=1.0, noise=1.0)
    with drawing(Stream(b"a" * 32)):
        first, second = module(torch.zeros(2000, 2)), module(torch.zeros(2000, 2))
    with drawing(Stream(b"a" * 32)):
        again = module(torch.zeros(2000, 2))
    with drawing(Stream(b"b" * 32)):
        other = module(torch.zeros(2000, 2))
    assert torch.equal(first, again)
    for one, two in ((first, second), (first, other), (first[:1000], first[1000:])):
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.1


def test_every_row_is_shrunk_to_its_norm_before_the_noise():
    torch.manual_seed(1)
    module = output_noise(nn.Identity(), clip=0.7, noise=1e-9)
    rows = torch.randn(5000, 8) * torch.logspace(-6, 6, 5000)[:, None]
    with drawing(Stream(b"s" * 32)):
        norms = torch.linalg.vector_norm(module(rows).double(), dim=1)
    assert norms.max() <= 0.7 + 1e-7 and norms[-1] > 0.699
    assert torch.allclose(norms[0], torch.linalg.vector_norm(rows[0].double()), rtol=1e-2), "short ones stay"
    with drawing(Stream(b"s" * 32)):
        assert not module(torch.zeros(3, 8)).isnan().any()


def test_a_convolution_is_clipped_by_row_not_by_channel():
    module = random_neurons(
        nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.Flatten()), 1.0, 1e-9, 0, "p"
    )
    with drawing(Stream(b"s" * 32)):
        assert torch.linalg.vector_norm(module(100 * torch.ones(2, 16)), dim=1).max() <= 1.0 + 1e-6


def test_without_a_stream_it_refuses_to_run():
    for module in (random_neurons(three_layers(), 1.0, 1.0, 0.0, "p").eval(), output_noise(three_layers(), 1.0, 1.0)):
        with pytest.raises(LocalProtocolError, match="neither drawn nor accounted for"):
            module(torch.ones(2, 4))


REFUSED = {
    "no layers": (nn.Identity(), "Identity is not made of layers"),
    "own module": (nn.Bilinear(2, 2, 2), "Bilinear is not made of layers"),
    "parameters behind": (nn.Sequential(nn.Linear(4, 3), nn.PReLU()), "have their own parameters or averages"),
    "averages behind": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "have their own parameters or averages"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_noise_would_not_cover_is_refused(why):
    module, words = REFUSED[why]
    with pytest.raises(ModelError, match=words):
        random_neurons(module, 1.0, 1.0, 0.0, "p")


def test_a_black_box_is_shrunk_and_perturbed_too():
    class Ones:
        def initial(self, generator):
            return np.zeros(1)

        def __call__(self, theta, rows):
            return np.full((len(rows), 4), 50.0)

    function = PerturbedFunction(Ones(), clip=2.0, noise=0.5)
    with drawing(Stream(b"s" * 32)):
        values = function(np.zeros(1), np.zeros((4000, 2)))
    assert values.mean() == pytest.approx(1.0, abs=0.02) and values.std() == pytest.approx(0.5, rel=0.03)
    with pytest.raises(LocalProtocolError):
        function(np.zeros(1), np.zeros((1, 2)))


def steepest(module, bias, width):
    """The Lipschitz constant of the gradient of E[Σ h] in the bias, by differences of a width, with one noise."""
    rows = torch.zeros(20_000, 1)
    gradients = []
    for shift in torch.arange(-1.0 + width / 3, 1.0, width):
        with torch.no_grad():
            bias.fill_(float(shift))
        with drawing(Stream(b"s" * 32)):
            output = module(rows).mean()
        gradients.append(float(torch.autograd.grad(output, bias)[0]))
    return float(np.abs(np.diff(gradients)).max() / width)


def test_theorem_5_the_expected_loss_of_a_relu_is_smooth_and_smoother_with_more_noise():
    """ReLU'(b + Z) has the mean Φ(b/c), so the constant is 1/(c√(2π)): it falls as 1/c, as L_h = L_σ·d/c says."""
    found = []
    for c in (0.1, 0.3, 1.0):
        layer = nn.Linear(1, 1)
        module = random_neurons(nn.Sequential(layer, nn.ReLU()), clip=1e6, noise=c, inner=0.0, who="p")
        found.append(steepest(module, layer.bias, width=0.1))
        if c >= 0.3:  # a difference of 0.1 sees a slope of such a bell
            assert found[-1] == pytest.approx(1 / (c * sqrt(2 * pi)), rel=0.1)
    sharp = nn.Linear(1, 1)
    found.insert(0, steepest(random_neurons(nn.Sequential(sharp, nn.ReLU()), 1e6, 1e-6, 0.0, "p"), sharp.bias, 0.1))
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9 / 0.1, "without noise the gradient jumps by 1 within any width"


def test_theorem_5_inner_layers_are_smoothed_by_uniform_noise():
    found = []
    for inner in (1e-6, 0.1, 0.3):
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        nn.init.ones_(second.weight)
        module = random_neurons(nn.Sequential(first, nn.ReLU(), second), 1e6, 1e-6, inner, "p")
        found.append(steepest(module, first.bias, 0.05))
        if inner > 0.05:
            assert found[-1] == pytest.approx(1 / (2 * sqrt(3) * inner), rel=0.1), "one over the width of the uniform"
    assert found == sorted(found, reverse=True)


def test_private_gradients_are_clipped_record_by_record():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    network = Network(random_neurons(module, 1.0, 0.1, 0.1, "p"), OptimiserSpec())
    x, v = np.random.default_rng(0).normal(size=(2, 300, 3)).astype(np.float32)
    v = v[:, :2].copy()

    def private(rows, clip):
        with drawing(Stream(b"s" * 32, keep=True)):
            return network.private_gradient(x[rows], 0, v[rows] / len(x[rows]), clip, np.zeros)

    with drawing(Stream(b"s" * 32)):
        plain = network.backward(x[:200], 0, 0, v[:200] / 200)
    assert np.allclose(private(slice(200), 1e9), plain, atol=1e-5), "the same noise, and nothing clipped"
    assert np.linalg.norm(private(slice(1), 0.01)) == pytest.approx(0.01, rel=1e-4)
    everyone, without = private(slice(300), 0.5) * 300, private(slice(299), 0.5) * 299
    assert np.linalg.norm(everyone - without) < 2 * 0.5 + 1e-3
    assert np.linalg.norm(private(slice(300), 0.01)) <= 0.01
    noisy = network.private_gradient
    with drawing(Stream(b"s" * 32, keep=True)):
        found = noisy(x[:4], 0, v[:4], 1e-9, lambda count: np.full(count, 8.0, np.float32))
    assert np.allclose(found, 2.0, atol=1e-6), "noise is added to the sum, and divided by the rows with it"
