"""The prime field F_p, p = 2³¹ − 1, on numpy arrays: FedVS (fedvs.txt Sec. 4) quantises into it and computes in it.

Elements are stored as uint32 in 0 … p − 1: four bytes in memory and on the wire. A sum or difference of two elements
wraps at 2³², not at p, so one `minimum` brings it back. A negative number x is stored as p − |x| (φ in Sec. 4).

The matrix product is exact and runs in float64 BLAS. One factor stays whole, centred into |a| < 2³⁰. The other is split
in two limbs, b = b₁·BASE + b₀ with |b₁|, |b₀| ≤ BASE/2 ≈ 2^14.5. A sum of 362 products then stays below 2⁵³, where
float64 is exact. The code walks the inner dimension in blocks of 362 and adds the block sums in int64. This takes two
limb products. Limbs on both sides would take four (three after Karatsuba), and one limb cannot hold 62 bits.

    p                 P                     2³¹ ≡ 1 (mod p): x ≡ (x mod 2³¹) + ⌊x / 2³¹⌋
    φ, Round          quantise              Sec. 4.2
    Round_stoc        quantise_stochastic   Eq. (3)
    φ⁻¹               dequantise            Eq. (7), without its 1/N
    l_x, l_w          bits                  a number x is stored as 2^l·x, rounded
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

import numpy as np

from colonnade.privacy.secret import words
from colonnade.protocol.errors import DataError, LocalProtocolError
from colonnade.protocol.messages import Array

__all__ = [
    "MAX_INNER",
    "Limbs",
    "P",
    "add",
    "bound",
    "centre",
    "dequantise",
    "inverse",
    "largest_fit",
    "matmul",
    "multiply",
    "quantise",
    "quantise_stochastic",
    "split",
    "subtract",
    "total",
    "uniform",
]

P = 2**31 - 1
_P32, _P64 = np.uint32(P), np.uint64(P)
_HALF = (P - 1) // 2  # the largest |x| after centring
_BASE = 46341  # ≈ 2^15.5: makes both limbs equally large, and the blocks as long as possible
_BLOCK = 2**53 // (_HALF * (_BASE // 2 + 1))
MAX_INNER = 128 * _BLOCK  # the int64 sum of this many blocks stays below 2⁶⁰
_OFFSET = P << 30  # a multiple of p that makes such a sum positive
_TILE = 2**17  # numbers in a scratch array, so that it stays in the cache


# --- element by element --------------------------------------------------------------------------------------------


def add(a: Array, b: Array) -> Array:
    return _once_less(np.add(a, b, dtype=np.uint32))


def total(arrays: Sequence[Array] | Array) -> Array:
    """The sum of the arrays, element by element; of one array, along its first axis."""
    return _folded(np.add.reduce(arrays, axis=0, dtype=np.uint64))


def subtract(a: Array, b: Array) -> Array:
    with np.errstate(over="ignore"):  # numpy warns of overflow for single numbers only
        difference = np.subtract(a, b, dtype=np.uint32)
        return np.minimum(difference, difference + _P32)  # a negative difference has wrapped to the larger of the two


def multiply(a: Array, b: Array) -> Array:
    """a·b, element by element: products are below 2⁶², and below 2p once folded."""
    return _folded(np.multiply(a, b, dtype=np.uint64))


def inverse(a: Array | int) -> Array:
    """1/a of one element or of each, by Fermat: a^(p−2)."""
    base = np.asarray(a, np.uint32)
    if not base.all():
        raise LocalProtocolError("0 has no inverse in the field")
    result = np.ones_like(base)
    for bit in f"{P - 2:b}":
        result = multiply(result, result)
        if bit == "1":
            result = multiply(result, base)
    return result


def _folded(values: Array) -> Array:
    """Values below 2⁶² reduced modulo p; overwrites `values` (uint64)."""
    folded = values & _P64
    values >>= np.uint64(31)
    folded += values
    return _once_less(folded.astype(np.uint32))


def _once_less(values: Array) -> Array:
    """Values in 0 … 2p − 1 (uint32) reduced modulo p. The larger of x and x − p has wrapped or was too large."""
    with np.errstate(over="ignore"):
        return np.minimum(values, values - _P32)


# --- the matrix product --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limbs:
    """A factor that is split once and used in many products."""

    parts: Array  # (inner, limbs · outer) float64: [high | low], or low alone if every high limb is 0
    outer: int  # columns of a right factor, rows of a left one
    side: Literal["left", "right"]


def centre(values: Array) -> Array:
    """The same elements as float64 in −(p−1)/2 … (p−1)/2; `matmul` accepts them."""
    signed = values.view(np.int32)
    wrapped = signed >> 30  # 1 from 2³⁰ on
    wrapped *= np.int32(P)
    centred: Array = np.empty_like(signed, np.float64)
    np.subtract(signed, wrapped, dtype=np.int32, out=centred)
    return centred


def split(matrix: Array, side: Literal["left", "right"] = "right") -> Limbs:
    """The limbs of a matrix (elements, or centred elements) that will be the factor on `side`."""
    whole = _centred(matrix if side == "right" else matrix.T)
    high = whole * (1 / _BASE)
    np.rint(high, out=high)
    low = high * -_BASE
    low += whole
    parts = np.concatenate([high, low], axis=1) if high.any() else low  # small numbers need one product, not two
    return Limbs(parts, whole.shape[1], side)


def matmul(left: Array | Limbs, right: Array | Limbs) -> Array:
    """left @ right. Each may be elements (uint32) or centred elements (float64); one of them may be limbs."""
    if isinstance(left, Limbs):
        if isinstance(right, Limbs):
            raise LocalProtocolError("only one factor of a product may be split: both were")
        return _product(right.T, left, "F").T  # (A B)ᵀ = Bᵀ Aᵀ
    if isinstance(right, Limbs):
        return _product(left, right, "C")
    if left.size < right.size:
        return matmul(split(left, "left"), right)
    return matmul(left, split(right, "right"))


def _product(whole: Array, limbs: Limbs, order: Literal["C", "F"]) -> Array:
    """whole @ limbs, one tile of rows at a time; `order` is the memory order of the result."""
    rows, inner = whole.shape
    if inner != len(limbs.parts) or inner > MAX_INNER or limbs.side != ("right" if order == "C" else "left"):
        raise LocalProtocolError(
            f"a factor of shape {whole.shape} does not fit limbs for the {limbs.side} of inner dimension "
            f"{len(limbs.parts)} (at most {MAX_INNER})"
        )
    result = np.empty((rows, limbs.outer), np.uint32, order)
    tile = max(1, _TILE // max(1, limbs.parts.shape[1]))
    short = inner < _BLOCK and limbs.parts.shape[1] == limbs.outer
    for start in range(0, rows, tile):
        piece, into = whole[start : start + tile], result[start : start + tile]
        if short:
            _reduce_short(np.matmul(_centred(piece), limbs.parts, out=np.empty(into.shape, order=order)), into)
        else:
            _reduce(_block_sums(piece, limbs.parts, order), limbs.outer, into)
    return result


def _reduce_short(product: Array, result: Array) -> None:
    """Write one limb's product of one block, mod p, to `result`. It is more than p below 2⁵³, so all of it is exact."""
    quotient = product * (1 / P)
    np.rint(quotient, out=quotient)
    quotient *= -P
    product += quotient  # |product| ≤ p/2 + 1
    signed = result.view(np.int32)
    np.copyto(signed, product, casting="unsafe")
    signed += (signed >> 31) & np.int32(P)


def _block_sums(whole: Array, parts: Array, order: Literal["C", "F"]) -> Array:
    """The exact int64 products of a tile with the limbs."""
    (rows, inner), width = whole.shape, parts.shape[1]
    product = np.empty((rows, width), np.float64, order)
    sums, block_sum = np.zeros((rows, width), np.int64, order), np.empty((rows, width), np.int64, order)
    step = max(1, ceil(inner / max(1, ceil(inner / _BLOCK))))  # blocks of equal length
    for start in range(0, inner, step):
        block = slice(start, start + step)
        np.matmul(_centred(whole[:, block]), parts[block], out=product)
        if start:
            np.copyto(block_sum, product, casting="unsafe")
            sums += block_sum
        else:
            np.copyto(sums, product, casting="unsafe")
    return sums


def _reduce(sums: Array, outer: int, result: Array) -> None:
    """Write high·BASE + low mod p to `result`; overwrites `sums`."""
    low = sums[:, -outer:]
    if sums.shape[1] > outer:
        high = sums[:, :outer]
        folded = high & P
        high >>= 31
        folded += high  # |folded| < 2³², still ≡ high
        folded *= _BASE
        low += folded
    low += _OFFSET
    folded = low & P
    low >>= 31
    folded += low  # 0 … 2p − 1
    np.copyto(result, folded, casting="unsafe")
    np.minimum(result, result - _P32, out=result)


def _centred(values: Array) -> Array:
    return values if values.dtype == np.float64 else centre(values)


# --- into the field and back ---------------------------------------------------------------------------------------


def quantise(x: Array, bits: int) -> Array:
    """φ(Round(2^bits·x)), Sec. 4.2."""
    # DEVIATION: halves go to the even neighbour, not up. That has no bias, and the error is still at most ½.
    return _into_field(x, bits, np.rint)


def quantise_stochastic(x: Array, bits: int, draw: np.random.Generator | bytes) -> Array:
    """φ(Round_stoc(2^bits·x)), Eq. (3): rounds up with the fraction as probability; `draw` is a generator or seed."""

    def round_up_or_down(scaled: Array) -> Array:
        floor = np.floor(scaled)
        floor += _unit(draw, scaled.shape) < scaled - floor  # not floor(x + u), because that sum is itself rounded
        return floor

    return _into_field(x, bits, round_up_or_down)


def dequantise(values: Array, bits: int) -> Array:
    """Eq. (7) without its 1/N, which the caller applies; `bits` is l_x + l_w for a product."""
    # DEVIATION: (p−1)/2 counts as positive, so that both signs have the same range; the bound keeps sums away from it.
    numbers = centre(np.asarray(values, np.uint32))
    numbers *= 2.0**-bits
    return numbers


def uniform(seed: bytes, shape: tuple[int, ...]) -> Array:
    """Independent uniform elements: 31 bits of the seed's ChaCha20 stream each; the value p is skipped."""
    count = prod(shape)
    spare = 0
    while True:
        drawn = words(seed, count + spare) & _P32
        if drawn.size and drawn.max() == P:
            drawn = drawn[drawn < P]
        if drawn.size >= count:
            return drawn[:count].reshape(shape)
        spare = 2 * spare + 16


def _into_field(x: Array, bits: int, rounding: Callable[[Array], Array]) -> Array:
    scaled = np.multiply(x, 2.0**bits, dtype=np.float64)
    largest = np.abs(scaled).max(initial=0.0)
    if not largest < _HALF:  # also true for NaN
        raise DataError(
            f"2^{bits} times {largest * 2.0**-bits:g} does not fit into the field (at most {_HALF} in size)"
        )
    whole = rounding(scaled).astype(np.int32)
    whole += np.int32(P) * (whole < 0)
    return whole.view(np.uint32)


def _unit(draw: np.random.Generator | bytes, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in [0, 1)."""
    if isinstance(draw, bytes):
        return words(draw, prod(shape)).reshape(shape) * 2.0**-32
    return draw.random(shape)


# --- does a sum of products fit? -----------------------------------------------------------------------------------


def bound(l_x: int, l_w: int, x_max: float, w_max: float, terms: int) -> float:
    """The value that p must exceed: 2(2^{l_x}·X_max + ½)(2^{l_w}·W_max + 1)·Σ_n D_n(d_n+1).

    If p is smaller, sums wrap around silently. `x_max` covers all powers of the data, and `terms` is Σ_n D_n(d_n+1).
    The 1 appended for the bias counts as data.
    """
    return 2 * (2.0**l_x * max(x_max, 1.0) + 0.5) * (2.0**l_w * w_max + 1) * terms


def largest_fit(l_x: int, l_w: int, x_max: float, w_max: float, terms: int) -> tuple[int | None, int | None]:
    """The largest l_x that fits beside this l_w, and the largest l_w beside this l_x; None if not even 0 fits."""
    fitting_l_x = (l for l in range(31, -1, -1) if bound(l, l_w, x_max, w_max, terms) < P)
    fitting_l_w = (l for l in range(31, -1, -1) if bound(l_x, l, x_max, w_max, terms) < P)
    return next(fitting_l_x, None), next(fitting_l_w, None)
