"""ResNet-18 in two parts: its size, plain torch's numbers, refused settings, and two steps of two methods."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import colonnade
from colonnade.data import from_views
from colonnade.models import Network, OptimiserSpec, party_module, server_module
from colonnade.protocol.errors import ModelError

PLAIN = 11_173_962  # parameters of a CIFAR ResNet-18 with 10 classes, BatchNorm's included


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stem(name="resnet18-stem:3x8x4", shape=(96,), width=64 * 8 * 4):
    return party_module(name, shape, width, 0, "party-2")


def top(name="resnet18:64x8x8", inputs=64 * 8 * 8, outputs=10):
    return server_module(name, inputs, outputs, seed=0)


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_parts_are_as_large_as_the_whole():
    first = 3 * 64 * 9
    assert size(stem()) == first
    assert size(top()) == PLAIN - first
    assert 2 * size(stem()) + size(top()) == 11_175_690  # two parties: one more first convolution


@pytest.mark.parametrize(
    ("name", "shape", "channels"),
    [("resnet18-stem", (8, 4), 1), ("resnet18-stem", (3, 8, 4), 3), ("resnet18-stem:2x8x4", (8, 8), 2)],
)
def test_the_shape_of_a_piece_is_its_rows_or_its_names(name, shape, channels):
    module = stem(name, shape)
    assert module[1].weight.shape == (64, channels, 3, 3) and module[1].bias is None
    assert module(torch.zeros(5, channels * 32)).shape == (5, 64 * 8 * 4)


def test_pieces_of_unequal_width_lie_side_by_side():
    image = torch.randn(2, 3, 8, 8)
    pieces = image.split([3, 5], dim=3)
    stems = [stem(f"resnet18-stem:3x8x{w}", (24 * w,), 512 * w) for w in (3, 5)]
    whole = top()
    with torch.no_grad():
        embeddings = torch.cat([part(piece.flatten(1)) for part, piece in zip(stems, pieces, strict=True)], 1)
        maps = torch.cat([part[1](piece) for part, piece in zip(stems, pieces, strict=True)], 3)
        assert torch.equal(whole[1](whole[0](embeddings)), maps)


def plain_resnet(weights, x):
    """ResNet-18 written out, with weights in the order in which they are used; in training mode."""
    weights = iter(weights)

    def conv(x, stride=1):
        kernel = next(weights)
        return functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def norm(x):
        return functional.batch_norm(x, None, None, next(weights), next(weights), training=True)

    x = norm(conv(x)).relu()
    for width in (64, 128, 256, 512):
        for stride in (1 if width == 64 else 2, 1):
            inner = norm(conv(norm(conv(x, stride)).relu()))
            x = (inner + (norm(conv(x, stride)) if stride == 2 else x)).relu()
    return functional.linear(x.mean((2, 3)), next(weights), next(weights))


def test_one_party_with_the_whole_image_is_plain_resnet():
    image = torch.randn(4, 3, 8, 8)
    first, rest = stem("resnet18-stem:3x8x8", (192,), 4096), top()
    with torch.no_grad():
        expected = plain_resnet([*first.parameters(), *rest.parameters()], image)
        np.testing.assert_allclose(rest(first(image.flatten(1))), expected, rtol=1e-4, atol=1e-5)


def test_neither_part_draws_random_numbers():
    assert not Network(stem(), OptimiserSpec())._draws and not Network(top(), OptimiserSpec())._draws


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: stem(width=32), "^model.party of party-2 = 'resnet18-stem:3x8x4': .*embedding = 2048, not 32$"),
        (lambda: stem("resnet18-stem", (8, 4), 10), "set model.embedding = 2048, not 10$"),
        (lambda: stem("resnet18-stem"), "a plain list of 96 columns; name the piece .*'resnet18-stem:3x32x16'"),
        (lambda: stem("resnet18-stem:3x8x8"), "that is 192 columns, but a row has 96$"),
        (lambda: stem("resnet18-stem:3x8"), "needs a shape, as in 'resnet18-stem:3x32x16' for parties"),
        (lambda: stem("resnet18"), "needs a shape, as in 'resnet18:64x32x32' for the server"),
        (lambda: top("resnet18"), "^model.server = 'resnet18': needs a shape, as in 'resnet18:64x32x32'"),
        (lambda: top("resnet18:64x0x8"), "needs a shape"),
        (lambda: top("resnet18:64x8x4"), r"as wide as the aggregate \(4096 = 64 x 64\)"),
        (lambda: top("resnet18:32x16x8"), "must be 64 x height x width"),
        (lambda: top("resnet18-stem:64x8x8"), "^model.server = 'resnet18-stem:64x8x8': is for parties"),
    ],
)
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ModelError, match=message):
        made()


@pytest.fixture(scope="module")
def halves():
    generator = np.random.default_rng(0)
    images = generator.random((40, 3, 8, 8)).astype(np.float32)
    views = {name: half.reshape(40, 96) for name, half in zip("ab", np.split(images, 2, axis=3), strict=True)}
    return colonnade.split(from_views(views, np.arange(40) % 4), how="views", validation_fraction=0)


def prepare(data, method, updates=2):
    settings = {"embedding": 2048, "updates": updates, "batch_size": 8, "learning_rate": 0.01, "eval_every": 1}
    return colonnade.prepare(data, method, "resnet18-stem:3x8x4", "resnet18:64x8x8", **settings)


def test_two_steps_of_sync_are_joint_training(halves):
    assert len(halves.y_train) == 32
    runs = [prepare(halves, method) for method in ("sync", "centralised")]
    assert [run.execute()["updates"] for run in runs] == [2, 2]
    sync, joint = (run.simulator.nodes[0].role.network.theta.numpy() for run in runs)
    np.testing.assert_allclose(sync, joint, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("method", "updates"), [("sync", 2), ("cascaded", 4)])  # in turns: two for each party
def test_two_steps_move_the_server_and_every_party(halves, method, updates):
    run = prepare(halves, method, updates)
    networks = [node.role.network for node in run.simulator.nodes]
    before = [network.theta.numpy().copy() for network in networks]
    summary = run.execute()
    assert summary["updates"] == updates and np.isfinite(summary["loss"])
    assert not any(np.array_equal(network.theta, theta) for network, theta in zip(networks, before, strict=True))
    assert networks[0].save()["buffers"][0].any(), "BatchNorm's averages stay at the server"
