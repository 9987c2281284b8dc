"""VGG and ResNet blocks: layers, plain torch's numbers, refused names, and a run."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.models import party_module, server_module
from colonnade.models.build import is_dotted, refuse_unknown
from colonnade.protocol.errors import ModelError


def build(name, shape, outputs=3):
    return party_module(name, shape, outputs, 7, "party-2")


def images(*shape):
    return torch.from_numpy(np.random.default_rng(0).random(shape, np.float32))


@pytest.mark.parametrize(("shape", "left"), [((8, 4), (2, 1)), ((3, 8, 8), (2, 2)), ((1, 7), (1, 1))])
def test_vgg_has_two_convolutions_and_a_pool_for_each_width(shape, left):
    module = build("vgg:4,6", shape)
    kinds = [part for part in module if isinstance(part, nn.Conv2d | nn.MaxPool2d | nn.Linear)]
    names = "".join(type(part).__name__[0] for part in kinds)
    assert names == "CCMCCMLL" and kinds[-2].in_features == 6 * left[0] * left[1]
    x = images(5, int(np.prod(shape)))
    h = x.reshape(5, *(1, *shape)[-3:])
    weights = iter(module.parameters())
    for _ in range(2):
        for _ in range(2):
            h = functional.relu(functional.conv2d(h, next(weights), next(weights), padding=1))
        h = functional.max_pool2d(h, [min(2, side) for side in h.shape[2:]])
    h = functional.relu(functional.linear(h.flatten(1), next(weights), next(weights)))
    assert torch.allclose(module(x), functional.linear(h, next(weights), next(weights)), atol=1e-6)


def test_resnet_has_a_residual_block_for_each_width():
    module, x = build("resnet:4,6,8", (3, 8, 8)), images(5, 192)
    weights = iter(module.parameters())

    def conv(h, stride=1):
        kernel = next(weights)
        return functional.conv2d(h, kernel, stride=stride, padding=kernel.shape[2] // 2)

    def norm(h):
        return functional.batch_norm(h, None, None, next(weights), next(weights), training=True)

    h = norm(conv(x.reshape(5, 3, 8, 8))).relu()
    for stride in (1, 2, 2):
        inner = norm(conv(norm(conv(h, stride)).relu()))
        h = (inner + (norm(conv(h, stride)) if stride == 2 else h)).relu()
    assert h.shape == (5, 8, 2, 2)
    wanted = functional.linear(h.mean((2, 3)), next(weights), next(weights))
    assert torch.allclose(module(x), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["vgg", "vgg:", "vgg:0", "vgg:8,x", "vgg:2000", "resnet:1,1,1,1,1,1,1,1,1"])
def test_widths_are_checked(name):
    with pytest.raises(ModelError, match="needs the maps of 1 to 8 blocks, each from 1 to 1024, as in 'vgg:32,64'"):
        build(name, (8, 8))


def test_rows_without_a_shape_and_servers_are_refused():
    with pytest.raises(ModelError, match=r"party-2 = 'vgg:8': a row must be a piece of an image, but .* 10 columns"):
        build("vgg:8", (10,))
    with pytest.raises(ModelError, match="is for parties"):
        server_module("resnet:8", 10, 3, 0)


def test_the_names_are_not_classes_to_import():
    for name in ("vgg:8", "resnet:8,16"):
        assert not is_dotted(name)
        refuse_unknown(name, "model.party")


@pytest.mark.parametrize("name", ["vgg:8,16", "resnet:8,16"])
def test_a_run_on_quarters(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = f"run --set data.split=quarters --set model.party={name} --set protocol.name=sync"
    made = CliRunner().invoke(app, [*words.split(), "--set", "train.epochs=3", "--out", "run"])
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] > 0.3  # of ten classes
