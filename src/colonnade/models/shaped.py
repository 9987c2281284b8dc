"""Networks for rows with a shape: pieces of images, and series. They are the networks of VAFL's App. G.3.

    cnn     seven layers, counted as LeNet's: conv 16, pool, conv 32, pool, conv 32, dense 64, dense to the embedding
    lstm    a bidirectional LSTM of 16 units each way, an LSTM of 16, its last state to the embedding

A party's rows are flat (rows, columns) everywhere else, so each network first restores their shape. VAFL gives only the
number of layers and of LSTM units; widths and kernels are ours, small enough for a CPU. The layer to the embedding's
width is ours too: the paper's server takes the last LSTM's units directly.
"""

from math import prod

from torch import Tensor, nn

__all__ = ["Recurrent", "cnn", "lstm", "pool"]

UNITS = 16  # of each LSTM


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Build a convolutional network from a piece (height, width) or (channels, height, width) to `outputs`."""
    channels, *sides = (1, *shape)[-3:]
    first, halved = pool(tuple(sides))
    second, quartered = pool(halved)
    return nn.Sequential(
        nn.Unflatten(1, (channels, *sides)),
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), first,
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), second,
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * prod(quartered), 64), nn.ReLU(),
        nn.Linear(64, outputs),
    )  # fmt: skip


def pool(shape: tuple[int, ...]) -> tuple[nn.MaxPool2d, tuple[int, ...]]:
    """Halve each side that can be halved; also returns the new sides."""
    strides = tuple(min(2, side) for side in shape)
    return nn.MaxPool2d(strides), tuple(side // stride for side, stride in zip(shape, strides, strict=True))


def lstm(shape: tuple[int, ...], outputs: int) -> "Recurrent":
    """Build a recurrent network from a series (time, channels) to `outputs`."""
    return Recurrent((shape[0], shape[1]), outputs)


class Recurrent(nn.Module):
    """Two LSTMs, the first in both directions, and a layer from the last state of the second."""

    def __init__(self, shape: tuple[int, int], outputs: int) -> None:
        super().__init__()
        self.series = nn.Unflatten(1, shape)
        self.first = nn.LSTM(shape[1], UNITS, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * UNITS, UNITS, batch_first=True)
        self.output = nn.Linear(UNITS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, time · channels) → (rows, outputs)."""
        states, _ = self.first(self.series(x))  # (rows, time, 2 · UNITS)
        _, (last, _) = self.second(states)  # (1, rows, UNITS)
        embedding: Tensor = self.output(last[0])
        return embedding
