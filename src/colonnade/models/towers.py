"""Deeper networks for pieces of images: blocks as in VGG and in ResNet, as many as the name has widths.

    vgg:32,64       each block: two convolutions 3 × 3 with ReLU, then a pool that halves the sides (Simonyan and
                    Zisserman 2015); then dense 128 with ReLU, and a layer to the embedding. No BatchNorm, as there.
    resnet:16,32    a convolution 3 × 3 of the first width, BatchNorm and ReLU; a residual block for each width, which
                    halves the sides from the second on (He et al. 2016); the mean over the pixels, a layer to the
                    embedding

A piece is (height, width), or (channels, height, width) in colour. A side of length 1 is not halved further.
"""

import itertools
from math import prod

from torch import nn

from colonnade.models.resnet import BasicBlock
from colonnade.models.shaped import pool
from colonnade.protocol.errors import ModelError

__all__ = ["KINDS", "tower"]

KINDS = ("vgg", "resnet")
MOST_BLOCKS, MOST_MAPS = 8, 1024
DENSE = 128  # of vgg, before the embedding

Shape = tuple[int, ...]


def tower(name: str, shape: Shape, outputs: int, what: str) -> nn.Sequential:
    """Build `vgg:WIDTH,…` or `resnet:WIDTH,…` for a piece of an image; raises ModelError if either does not fit."""
    kind, _, given = name.partition(":")
    widths = _widths(name, given, what)
    if len(shape) not in (2, 3):
        raise ModelError(
            f"{what} = {name!r}: a row must be a piece of an image, but it is a plain list of {prod(shape)} columns; "
            "images keep their pieces with data.split = 'rows', 'columns' or 'quarters', for tables use 'mlp:64'"
        )
    piece = (1, *shape)[-3:]
    layers = _vgg(piece, widths, outputs) if kind == "vgg" else _resnet(piece, widths, outputs)
    return nn.Sequential(nn.Unflatten(1, piece), *layers)


def _vgg(piece: Shape, widths: list[int], outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    before, sides = piece[0], piece[1:]
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        halving, sides = pool(sides)
        layers.append(halving)
        before = width
    dense = [nn.Linear(before * prod(sides), DENSE), nn.ReLU(), nn.Linear(DENSE, outputs)]
    return [*layers, nn.Flatten(), *dense]


def _resnet(piece: Shape, widths: list[int], outputs: int) -> list[nn.Module]:
    first = widths[0]
    layers: list[nn.Module] = [
        nn.Conv2d(piece[0], first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU(),
        BasicBlock(first, first, 1),
    ]  # fmt: skip
    layers += [BasicBlock(before, after, 2) for before, after in itertools.pairwise(widths)]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], outputs)]


def _widths(name: str, given: str, what: str) -> list[int]:
    parts = [part.strip() for part in given.split(",")]
    right = all(part.isdecimal() and 1 <= int(part) <= MOST_MAPS for part in parts)
    if not right or len(parts) > MOST_BLOCKS:
        raise ModelError(
            f"{what} = {name!r}: needs the maps of 1 to {MOST_BLOCKS} blocks, each from 1 to {MOST_MAPS}, as in "
            "'vgg:32,64' or 'resnet:16,32'"
        )
    return [int(part) for part in parts]
