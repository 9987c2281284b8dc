"""How a word is written as a feature, for the code that writes it (texts.py) and for the networks that read it."""

__all__ = ["FIRST", "NUMBERS", "PADDING", "UNKNOWN"]

NUMBERS = 1 << 16  # a feature is a word's number divided by this: exact in 32-bit floats
PADDING, UNKNOWN, FIRST = 0, 1, 2  # no word, a word that the vocabulary lacks, its first word
