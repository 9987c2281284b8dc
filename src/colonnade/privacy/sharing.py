"""Lagrange coded computing (FedVS, fedvs.txt Sec. 4, Alg. 1; Yu et al. 2019): shares that parties can compute with.

Data in K segments and T uniform masks are the values of one polynomial F at β_1 … β_{K+T}; party n holds F(α_n). The
model is the value of G at every β_1 … β_K, with T masks of its own. Each party multiplies the shares it holds. ψ = Σ
F·G has degree 2(K+T−1), so any R = 2(K+T−1) + 1 answers give ψ(β_k) = Σ X_k·W, exactly, whichever parties straggle (Thm
5.1). Any T parties learn nothing (Thm 5.2); T + 1 would find the model, K + T the data.

R answers also give the server the rest of ψ, which it should not learn. The data's masks are the same in every round,
so for one column the common divisor of two rounds' ψ is F. `blinding`, which the paper does not have, prevents this.
Every party makes a fresh random polynomial of ψ's degree that vanishes at β_1 … β_K. Each party adds the values that it
received to its answer. The ψ(β_k) stay the same, and all the rest becomes uniform.

    K         segments        pieces that the rows are cut into
    T         colluders       parties that may put their shares together
    N         parties
    R         needed          answers that decode
    β, α      _beta, _alpha   1 … K+T and K+T+1 … K+T+N, so that none is in both

Parties are numbered from 0. Arrays are field elements (uint32). Masks and blinding terms must come from `field.uniform`
with a seed that was never used before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from colonnade.privacy.field import MAX_INNER, Limbs, P, matmul, multiply, split, total, uniform
from colonnade.privacy.reed_solomon import wrong_places
from colonnade.protocol.errors import ConfigError, DataError, LocalProtocolError
from colonnade.protocol.messages import Array

__all__ = ["LagrangeCode", "Segmentation", "feasible"]

Encoder = tuple[Limbs, ...]  # a matrix, in groups of consecutive lines


@dataclass(frozen=True, slots=True)
class LagrangeCode:
    """The code (K, T, N)."""

    segments: int
    colluders: int
    parties: int

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ConfigError("segments", self.segments, "the rows must be cut into 1 or more segments")
        if not 0 <= self.colluders < max(self.parties, 1):
            advice = f"0 to {self.parties - 1} of the {self.parties} parties can be colluders"
            raise ConfigError("colluders", self.colluders, advice)
        if self.needed > min(self.parties, MAX_INNER):
            advice = (
                f"K = {self.segments} segments and T = {self.colluders} colluders need 2(K+T−1)+1 = {self.needed} "
                f"answers, but there are {self.parties} parties: K + T can be at most {(self.parties + 1) // 2}"
            )
            raise ConfigError("segments", self.segments, advice)

    @property
    def needed(self) -> int:
        """R, Thm 5.1: one more than the degree of ψ."""
        return 2 * (self.segments + self.colluders - 1) + 1

    @property
    def stragglers(self) -> int:
        """How many answers may be missing."""
        return self.parties - self.needed

    @property
    def blinding_terms(self) -> int:
        """The number of free values of a polynomial of ψ's degree that vanishes at β_1 … β_K."""
        return self.needed - self.segments

    def encode_data(self, segments: Array, masks: Array) -> Array:
        """Eq. (2), Alg. 1 l. 7: segments (K, rows, d) and masks (T, rows, d) to shares (N, rows, d)."""
        _check_count("segments", segments, self.segments)
        _check_masks(segments.shape[1:], masks, self.colluders)
        values = np.concatenate([segments, masks]) if len(masks) else segments
        return _apply(_data_encoder(self.segments, self.colluders, self.parties), values)

    def encode_model(self, model: Array, masks: Array) -> Array:
        """Eq. (4), Alg. 1 l. 17: model (any shape), masks (T, *shape) to shares (N, *shape); all equal if T = 0."""
        _check_masks(model.shape, masks, self.colluders)
        values = np.concatenate([model[None], masks]) if len(masks) else model[None]
        return _apply(_model_encoder(self.segments, self.colluders, self.parties), values)

    def blinding(self, terms: Array) -> Array:
        """Random terms (blinding_terms, *shape) to the blinding polynomial's values (N, *shape), one for each party."""
        # DEVIATION: not in the paper. Its Thm 5.3 is about one answer, but the server has R of them.
        _check_count("blinding terms", terms, self.blinding_terms)
        given = terms[self.colluders :]  # values at the points that are the α of the first parties
        return np.concatenate([given, _apply(_blinder(self.segments, self.colluders, self.parties), terms)])

    def limbs(self) -> tuple[float, float, float]:
        """Float64 products per multiply-add to encode data, a model and blinding: each from 1 to 2."""
        code = self.segments, self.colluders, self.parties
        blinder = _blinder(*code) if self.blinding_terms else ()
        data, model, blinding = (
            _products(encoder) for encoder in (_data_encoder(*code), _model_encoder(*code), blinder)
        )
        return data, model, blinding

    def decode(self, answers: Sequence[Array] | Array, who: Sequence[int]) -> Array:
        """Alg. 1 l. 28–29: answers (≥ R, *shape) of the parties `who` to (K, *shape) = ψ(β_1) … ψ(β_K).

        Of more than R answers, those of the R lowest party numbers are used.
        """
        self._check_answers(len(answers), who)
        order = sorted(range(len(who)), key=who.__getitem__)[: self.needed]
        used = tuple(int(who[i]) for i in order)
        return _apply(_decoder(self.segments, self.colluders, used), np.stack([answers[i] for i in order]))

    def wrong(self, answers: Array, who: Sequence[int], seed: bytes) -> list[int] | None:
        """The parties among `who` with wrong answers; None if there are some, and too few answers to locate them.

        n > R answers (n, places, h) are values of one polynomial for each coordinate. The check looks at one random
        combination of all coordinates: Σ u_i v_j answer_ij, with u and v from the seed. The parties must not know the
        seed while they can still answer. It overlooks a wrong answer with a probability of at most 2/p. Up to n − R
        wrong answers are noticed, and up to (n − R)/2 are located.
        """
        self._check_answers(len(answers), who)
        count, places, width = answers.shape
        drawn = uniform(seed, (places + width,))
        lines = matmul(answers.reshape(count * places, width), drawn[places:, None]).reshape(count, places)
        values = [int(value) for value in total(multiply(lines.T, drawn[:places, None]))]
        checks = _checks(self.segments + self.colluders, self.needed, tuple(who))
        expected = [sum(a * b for a, b in zip(row, values, strict=False)) % P for row in checks]
        if expected == values[self.needed :]:
            return []
        places_of = wrong_places(_alpha(self.segments + self.colluders, who), values, self.needed)
        return None if places_of is None else [who[i] for i in places_of]

    def _check_answers(self, count: int, who: Sequence[int]) -> None:
        if count != len(who) or len(set(who)) < len(who) or not all(0 <= n < self.parties for n in who):
            raise LocalProtocolError(f"{count} answers do not match the parties {list(who)} of {self.parties}")
        if count < self.needed:
            raise LocalProtocolError(f"{count} answers cannot be decoded: {self.needed} are needed")


def feasible(parties: int, stragglers: int, colluders: int) -> list[LagrangeCode]:
    """The codes that tolerate at least this many stragglers and colluders (Thm 5.1, 5.2); the most segments first."""
    largest = (parties - stragglers - 1) // 2 + 1  # of K + T, from R ≤ N − stragglers
    return [LagrangeCode(k, t, parties) for k in range(largest, 0, -1) for t in range(colluders, largest - k + 1)]


@dataclass(frozen=True, slots=True)
class Segmentation:
    """M rows in K segments of equal length, the last ones padded: place b of segment k is row k·length + b."""

    rows: int
    segments: int

    @property
    def length(self) -> int:
        """Rows in a segment; a batch draws its places from them."""
        return -(-self.rows // self.segments)

    @property
    def padding(self) -> int:
        return self.length * self.segments - self.rows

    def cut(self, values: Array) -> Array:
        """Alg. 1 l. 5: (M, d) to (K, length, d), padded with zeros."""
        if len(values) != self.rows:
            raise DataError(f"{len(values)} rows were given, {self.rows} are to be cut")
        padded = np.zeros((self.length * self.segments, *values.shape[1:]), values.dtype)
        padded[: self.rows] = values
        return padded.reshape(self.segments, self.length, *values.shape[1:])

    def row_numbers(self, batch: Array) -> Array:
        """The rows of a batch of places, up to K·|B|, in the order of `samples`; without padding."""
        places = self._places(batch)
        real: Array = places[places < self.rows]
        return real

    def samples(self, decoded: Array, batch: Array) -> Array:
        """Decoded (K, |B|, h) to (K·|B| less padding, h): one line for each of `row_numbers`."""
        stacked: Array = decoded.reshape(self.segments * len(batch), *decoded.shape[2:])
        return stacked[self._places(batch) < self.rows] if self.padding else stacked

    def _places(self, batch: Array) -> Array:
        if len(batch) and not 0 <= batch.min() <= batch.max() < self.length:
            raise LocalProtocolError(f"a batch has places outside 0 … {self.length - 1}")
        return np.add.outer(self.length * np.arange(self.segments), batch).ravel()


# --- the matrices: few and small, so in Python integers ------------------------------------------------------------


@lru_cache(maxsize=64)
def _data_encoder(k: int, t: int, n: int) -> Encoder:
    """From values at β_1 … β_{K+T} to values at α_1 … α_N: binomials, mostly small enough for one limb."""
    return _limbs(_lagrange(_beta(k + t), _alpha(k + t, range(n))))


@lru_cache(maxsize=64)
def _model_encoder(k: int, t: int, n: int) -> Encoder:
    """The data encoder for equal values at β_1 … β_K: their columns are added up."""
    rows = _lagrange(_beta(k + t), _alpha(k + t, range(n)))
    return _limbs([[sum(row[:k]) % P, *row[k:]] for row in rows])


@lru_cache(maxsize=64)
def _blinder(k: int, t: int, n: int) -> Encoder:
    """The values of the polynomial of degree R − 1 that is 0 at β_1 … β_K and given at K+1 … R.

    Of α_1 … α_N, the first K+T−1 are among the given points, so the matrix leaves out their values.
    """
    rows = _lagrange(_beta(2 * (k + t) - 1), _alpha(k + t, range(k + t - 1, n)))
    return _limbs([row[k:] for row in rows])


@lru_cache(maxsize=1024)
def _decoder(k: int, t: int, who: tuple[int, ...]) -> Encoder:
    """From the values of ψ at the α of R parties, in ascending order, to ψ at β_1 … β_K."""
    return _limbs(_lagrange(_alpha(k + t, who), _beta(k)))


@lru_cache(maxsize=1024)
def _checks(betas: int, needed: int, who: tuple[int, ...]) -> list[list[int]]:
    """From the values of ψ at the α of the first R parties to those at the α of the others."""
    points = _alpha(betas, who)
    return _lagrange(points[:needed], points[needed:])


def _beta(count: int) -> list[int]:
    return list(range(1, count + 1))


def _alpha(betas: int, who: Iterable[int]) -> list[int]:
    return [betas + 1 + n for n in who]


def _lagrange(nodes: Sequence[int], points: Sequence[int]) -> list[list[int]]:
    """L_k(x) = Π_{ℓ≠k} (x − node_ℓ)/(node_k − node_ℓ) mod p: a row for each point x, a column for each node k."""
    others = [[node for node in nodes if node != own] for own in nodes]
    scales = [pow(_differences(own, rest), -1, P) for own, rest in zip(nodes, others, strict=True)]
    return [[_differences(x, rest) * scale % P for rest, scale in zip(others, scales, strict=True)] for x in points]


def _differences(x: int, nodes: Iterable[int]) -> int:
    """Π (x − node)."""
    return prod(x - node for node in nodes)


def _limbs(rows: list[list[int]]) -> Encoder:
    """The first lines have small numbers, which take one limb. From the first larger line on, all take two."""
    matrix = np.array(rows, np.uint32)
    large = [split(matrix[i : i + 1], "left").parts.shape[1] > 1 for i in range(len(matrix))]
    first = large.index(True) if True in large else len(matrix)
    return tuple(split(part, "left") for part in (matrix[:first], matrix[first:]) if len(part))


def _products(encoder: Encoder) -> float:
    """The average number of float64 products per line."""
    lines = sum(part.outer for part in encoder)
    products: int = sum(part.parts.shape[1] for part in encoder)
    return products / max(lines, 1)


def _apply(encoder: Encoder, values: Array) -> Array:
    """Each output is a linear combination of `values` along the first axis."""
    shape = values.shape[1:]
    flat = values.reshape(len(values), prod(shape))
    made = [matmul(part, flat) for part in encoder]
    return (made[0] if len(made) == 1 else np.concatenate(made)).reshape(sum(part.outer for part in encoder), *shape)


def _check_count(name: str, values: Array, count: int) -> None:
    if len(values) != count:
        raise LocalProtocolError(f"{len(values)} {name} were given, the code has {count}")


def _check_masks(shape: tuple[int, ...], masks: Array, count: int) -> None:
    if masks.shape != (count, *shape):
        raise LocalProtocolError(f"masks of shape {masks.shape} were given, the code needs {(count, *shape)}")
