"""Advice on (K, T): what each choice tolerates, and what it costs in bytes, memory and arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from colonnade.algorithms.fedvs.coding import LIMBS
from colonnade.privacy.sharing import LagrangeCode, Segmentation, feasible

__all__ = ["Choice", "Shape", "choices", "recommend"]

ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The quantities besides the code that determine the costs."""

    rows: int
    test_rows: int
    terms: tuple[int, ...]  # D_n(d_n + 1) of every party
    width: int
    batch: int  # rows of a round


@dataclass(frozen=True, slots=True)
class Choice:
    """A code, and its costs for one party."""

    code: LagrangeCode
    start_bytes: int  # sent once: coded data, by the party with the most columns
    round_bytes: int  # sent in every round: coded model, blinding, answer
    memory_bytes: int  # for all parties' coded data
    work: float  # to evaluate, in plaintext forward passes of an average party


def choices(parties: int, stragglers: int, colluders: int, shape: Shape) -> list[Choice]:
    """All feasible codes; the most segments first."""
    return [_choice(code, shape) for code in feasible(parties, stragglers, colluders)]


def recommend(found: Sequence[Choice], colluders: int) -> Choice | None:
    """The code with exactly this many colluders and the most segments, so the least work; None if none is feasible."""
    return next((choice for choice in found if choice.code.colluders == colluders), None)


def _choice(code: LagrangeCode, shape: Shape) -> Choice:
    places = sum(Segmentation(rows, code.segments).length for rows in (shape.rows, shape.test_rows))
    batch = -(-shape.batch // code.segments)
    most, others = max(shape.terms), code.parties - 1
    numbers = others * (most + batch) + batch
    return Choice(
        code,
        start_bytes=ELEMENT_BYTES * others * places * most,
        round_bytes=ELEMENT_BYTES * shape.width * numbers,
        memory_bytes=ELEMENT_BYTES * places * sum(shape.terms),
        work=LIMBS * code.parties / code.segments,
    )
