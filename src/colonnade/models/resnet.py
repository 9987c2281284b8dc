"""ResNet-18 for small images (He et al. 2016, as usual for CIFAR: without max-pool), cut after its first convolution.

    resnet18-stem[:CxHxW]   (party) its piece of the image, channel by channel → 64 maps: conv 3 × 3, stride 1, no bias
    resnet18:64xHxW         (server) the maps of all pieces side by side → BatchNorm, ReLU, 4 × 2 blocks, the classes

A party's maps are laid out column by column, (width, 64, height). The concatenation of such embeddings has the layout
of the whole image, so the server need not know where one piece ends. H is the height of every piece, W the sum of their
widths. The config must give both: from the number of inputs the server cannot tell 32 × 32 from 16 × 64, and it would
mix up all pixels.
"""

import re
from math import prod

from torch import Tensor, nn
from torch.nn import functional

from colonnade.protocol.errors import ModelError

__all__ = ["STEM", "TOP", "BasicBlock", "Permuted", "stem", "top"]

STEM, TOP = "resnet18-stem", "resnet18"
MAPS = 64  # of the first convolution

Shape = tuple[int, ...]
_SIZES = re.compile(r":([1-9]\d*)x([1-9]\d*)x([1-9]\d*)")


class Permuted(nn.Module):
    """The batch with its axes in another order."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Return contiguous memory: torch chooses convolutions by the layout, and another would give other bits."""
        return x.permute(self.axes).contiguous()


class BasicBlock(nn.Module):
    """ReLU(x + BN(conv(ReLU(BN(conv(x)))))); x goes through a 1 × 1 convolution if the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if (before, stride) != (after, 1):
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, before, height, width) → (rows, after, height / stride, width / stride)."""
        return functional.relu(self.residual(x) + self.shortcut(x))


def stem(name: str, shape: Shape, outputs: int, what: str) -> nn.Sequential:
    """Build a party's part, for rows (height, width), (channels, height, width), or of the shape in its name."""
    columns = prod(shape)
    if name == STEM and len(shape) == 1:
        raise ModelError(
            f"{what} = {name!r}: a row is a plain list of {columns} columns; name the piece of the image, "
            f"channel by channel, as '{STEM}:3x32x16' (channels x height x width)"
        )
    piece = (1, *shape)[-3:] if name == STEM else _sizes(name, STEM, what)
    if prod(piece) != columns:
        raise ModelError(f"{what} = {name!r}: that is {prod(piece)} columns, but a row has {columns}")
    channels, height, width = piece
    if outputs != MAPS * height * width:
        raise ModelError(
            f"{what} = {name!r}: the embedding is {MAPS} maps of {height} x {width}: set model.embedding = "
            f"{MAPS * height * width}, not {outputs}"
        )
    return nn.Sequential(
        nn.Unflatten(1, piece),
        nn.Conv2d(channels, MAPS, 3, padding=1, bias=False),
        Permuted(0, 3, 1, 2),  # (rows, width, maps, height)
        nn.Flatten(),
    )


def top(name: str, inputs: int, outputs: int, what: str) -> nn.Sequential:
    """Build the server's part: all but the first convolution."""
    maps, height, width = _sizes(name, TOP, what)
    if maps != MAPS or prod((maps, height, width)) != inputs:
        raise ModelError(
            f"{what} = {name!r}: must be {MAPS} x height x width and as wide as the aggregate ({inputs} = {MAPS} x "
            f"{inputs / MAPS:g}): the height of a piece, and the widths of all pieces together"
        )
    blocks: list[nn.Module] = []
    before = MAPS
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(before, after, stride), BasicBlock(after, after, 1)]
        before = after
    return nn.Sequential(
        nn.Unflatten(1, (width, maps, height)), Permuted(0, 2, 3, 1),
        nn.BatchNorm2d(maps), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs),
    )  # fmt: skip


def _sizes(name: str, kind: str, what: str) -> Shape:
    found = _SIZES.fullmatch(name.removeprefix(kind))
    if found is None:
        whose = {STEM: f"'{STEM}:3x32x16' for parties", TOP: f"'{TOP}:64x32x32' for the server"}[kind]
        raise ModelError(f"{what} = {name!r}: needs a shape, as in {whose} (channels x height x width)")
    return tuple(int(size) for size in found.groups())
