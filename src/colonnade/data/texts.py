"""Texts: a column with one document per row becomes word numbers, with the party's own vocabulary.

A party counts the words of its training rows alone. Its vocabulary has at most `size` entries:

| number | word |
|---|---|
| 0 | none: the document has ended |
| 1 | any word that the vocabulary lacks |
| 2, 3, … | the words of the training rows, the most frequent first, equal ones in alphabetical order |

A document becomes its first `length` words. Words are runs of letters, digits and apostrophes, in lower case. A feature
is number / 65,536: exact in 32-bit floats, and small beside other columns.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from colonnade.data.table import MISSING
from colonnade.data.task import Array
from colonnade.data.word_numbers import FIRST, NUMBERS, PADDING, UNKNOWN
from colonnade.protocol.errors import ConfigError

__all__ = ["NO_TEXTS", "Texts", "tokens", "vocabulary_of"]

MOST_WORDS = 4_096  # of one document
LONGEST = 40  # characters of a word: longer ones are codes
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@dataclass(frozen=True, slots=True)
class Texts:
    """Which columns hold documents, and how they are read."""

    columns: tuple[str, ...] = ()
    size: int = 5_000  # of a vocabulary, with the two numbers for padding and for unknown words
    length: int = 64  # words of a document that count

    def __post_init__(self) -> None:
        """Raise ConfigError for a size or length out of range."""
        if not FIRST < self.size <= NUMBERS:
            raise ConfigError("data.vocabulary", self.size, f"must be from {FIRST + 1} to {NUMBERS:,} words")
        if not 1 <= self.length <= MOST_WORDS:
            raise ConfigError("data.text_length", self.length, f"must be from 1 to {MOST_WORDS:,} words")

    def lengths(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the number of features of each text column; 0 for other columns."""
        return tuple(self.length if name in self.columns else 0 for name in names)


NO_TEXTS = Texts()


def words_of(document: str) -> Iterator[str]:
    """Yield the words in lower case; an empty cell has none."""
    if document != MISSING:
        for found in _WORD.finditer(document):
            yield found[0].lower()[:LONGEST]


def vocabulary_of(documents: tuple[str, ...], counts: Array, size: int) -> tuple[str, ...]:
    """Return the most frequent words of documents that occur so often; number `FIRST` is the first of them."""
    found: Counter[str] = Counter()
    for document, count in zip(documents, counts, strict=True):
        for word in words_of(document) if count else ():
            found[word] += int(count)
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return tuple(word for word, _ in ranked[: size - FIRST])


def tokens(documents: tuple[str, ...], vocabulary: tuple[str, ...], length: int) -> Array:
    """Return the features (documents, length) of documents, float32."""
    number = {word: place for place, word in enumerate(vocabulary, FIRST)}
    found = np.full((len(documents), length), PADDING, np.float32)
    for row, document in enumerate(documents):
        numbers = [number.get(word, UNKNOWN) for word in islice(words_of(document), length)]
        found[row, : len(numbers)] = numbers
    return found / np.float32(NUMBERS)
