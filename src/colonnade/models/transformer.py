"""A small transformer encoder for texts (Vaswani et al. 2017, with the norms first), trained from scratch.

    transformer             5,000 words, width 32
    transformer:2000        2,000 words
    transformer:2000x64     2,000 words, width 64

Word and place get a vector each; two blocks of attention (4 heads) and a dense layer follow; the mean over the words of
the document goes through a layer to the embedding. No layer draws random numbers. Rows are those of `data.text`: word
numbers divided by 65,536 (`data/texts.py`). A number that the table lacks counts as an unknown word.
"""

import re
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from colonnade.data.word_numbers import NUMBERS, UNKNOWN
from colonnade.protocol.errors import ModelError

__all__ = ["NAME", "Attention", "TextEncoder", "transformer"]

NAME = "transformer"
WORDS, WIDTH = 5_000, 32
BLOCKS, HEADS = 2, 4
MOST_WIDTH = 1_024
_SIZES = re.compile(r"transformer(?::(\d{1,6})(?:x(\d{1,5}))?)?")

Shape = tuple[int, ...]


class Attention(nn.Module):
    """x + attention(norm(x)), then x + dense(norm(x)); padding is not attended to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """(rows, words, width), (rows, words) bool → (rows, words, width)."""
        rows, words, width = x.shape
        parts = self.parts(self.before(x)).view(rows, words, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (rows, heads, words, width / heads)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None, :])
        x = x + self.joined(found.transpose(1, 2).reshape(rows, words, width))
        result: Tensor = x + self.dense(self.after(x))
        return result


class TextEncoder(nn.Module):
    """Word numbers (rows, words) → (rows, outputs)."""

    def __init__(self, length: int, outputs: int, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Attention(width) for _ in range(BLOCKS))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, words) → (rows, outputs)."""
        numbers = (x * NUMBERS).round().long().clamp_min(0)
        numbers = torch.where(numbers < self.words.num_embeddings, numbers, UNKNOWN)
        seen = numbers > 0
        seen = seen | (torch.arange(x.shape[1], device=x.device) == 0)  # an empty document has one place to look at
        h = self.words(numbers) + self.places
        for block in self.blocks:
            h = block(h, seen)
        weights = seen.to(h.dtype)
        mean = (self.norm(h) * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)
        result: Tensor = self.output(mean)
        return result


def transformer(name: str, shape: Shape, outputs: int, what: str) -> TextEncoder:
    """Build `transformer[:WORDS[xWIDTH]]`; raises ModelError if the name is wrong or the rows are no texts."""
    found = _SIZES.fullmatch(name)
    words, width = (WORDS, WIDTH) if found is None else (int(found[1] or WORDS), int(found[2] or WIDTH))
    if found is None or not 2 < words <= NUMBERS or not HEADS <= width <= MOST_WIDTH or width % HEADS:
        raise ModelError(
            f"{what} = {name!r}: give the size of the vocabulary (3 to {NUMBERS}) and the width (a multiple of "
            f"{HEADS}, at most {MOST_WIDTH}), as in 'transformer:2000x32'"
        )
    if len(shape) != 2 or shape[1] != 1:
        raise ModelError(
            f"{what} = {name!r}: a row must be a text, but it is {prod(shape)} other columns; name the party's text "
            "columns in data.text, and give it no other columns"
        )
    return TextEncoder(shape[0], outputs, words, width)
