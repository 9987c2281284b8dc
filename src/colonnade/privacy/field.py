"""The prime field F_p, p = 2³¹ − 1, on numpy arrays: FedVS (fedvs.txt Sec. 4) quantises into it and computes in it.

Elements are stored as uint32 in 0 … p − 1: four bytes in memory and on the wire. A sum or difference of two elements
wraps at 2³², not at p, so one `minimum` brings it back. A negative number x is stored as p − |x| (φ in Sec. 4).

The matrix product is exact and runs in float64 BLAS. One factor stays whole, centred into |a| < 2³⁰. The other is split
in two limbs, b = b₁·2¹⁶ + b₀ with |b₁|, |b₀| ≤ 2¹⁵. A sum of 256 products then stays below 2⁵³, where float64 is exact.
The code walks the inner dimension in blocks of 256 and adds the block sums in int64. This takes two limb products.
Limbs on both sides would take four (three after Karatsuba), and one limb cannot hold 62 bits.

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
_BASE = 2**16  # the limbs of an int32 are then its two halves
_ROUND = np.int32(_BASE // 2)
_SMALL = 23170  # the largest |x| that is split into one limb
_BLOCK = 2**53 // (_HALF * (_BASE // 2))
MAX_INNER = 181 * _BLOCK  # the int64 sum of this many blocks stays below 2^60.6
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
    centred: Array = np.empty_like(values, np.float64)
    _centre(values, centred)
    return centred


def _centre(values: Array, out: Array) -> None:
    """Write the centred elements to `out`, float64 or int32. Numbers that are centred already stay as they are."""
    if values.dtype == np.float64:
        np.copyto(out, values, casting="unsafe")
        return
    signed = values.view(np.int32)
    wrapped = signed >> 30  # 1 from 2³⁰ on
    wrapped *= np.int32(P)
    np.subtract(signed, wrapped, dtype=np.int32, out=out)


def split(matrix: Array, side: Literal["left", "right"] = "right") -> Limbs:
    """The limbs of a matrix (elements, or centred elements) that will be the factor on `side`."""
    factor = matrix if side == "right" else matrix.T
    inner, outer = factor.shape
    parts = np.empty((inner, 2 * outer))
    for start in range(0, inner, _BLOCK):
        _split(factor[start : start + _BLOCK], parts[start : start + _BLOCK])
    low = parts[:, outer:]
    if not parts[:, :outer].any() and np.abs(low).max(initial=0.0) <= _SMALL:
        parts = np.ascontiguousarray(low)  # small numbers need one product, not two
    return Limbs(parts, outer, side)


def _split(block: Array, parts: Array) -> None:
    """Write [high | low] of a few lines to `parts`."""
    outer = block.shape[1]
    whole = np.empty(block.shape, "<i4")
    _centre(block, whole)
    halves = whole.view("<i2")
    parts[:, outer:] = halves[:, ::2]
    whole += _ROUND  # so that the high half is rounded: the low half is signed
    parts[:, :outer] = halves[:, 1::2]


def matmul(left: Array | Limbs, right: Array | Limbs) -> Array:
    """left @ right. Each may be elements (uint32) or centred elements (float64); one of them may be limbs."""
    if isinstance(left, Limbs):
        if isinstance(right, Limbs):
            raise LocalProtocolError("only one factor of a product may be split: both were")
        return _product(right.T, left, "F").T  # (A B)ᵀ = Bᵀ Aᵀ
    if isinstance(right, Limbs):
        return _product(left, right, "C")
    if left.size < right.size:
        return _product(right.T, left.T, "F").T
    return _product(left, right, "C")


def _product(whole: Array, other: Array | Limbs, order: Literal["C", "F"]) -> Array:
    """whole @ other, one tile of rows at a time; `order` is the memory order of the result."""
    rows, inner = whole.shape
    side: Literal["left", "right"] = "right" if order == "C" else "left"
    if isinstance(other, Limbs):
        fits, length, outer, width = other.side == side, len(other.parts), other.outer, other.parts.shape[1]
    else:
        fits, (length, outer), width = True, other.shape, 2 * other.shape[1]
    if not fits or inner != length or inner > MAX_INNER:
        raise LocalProtocolError(
            f"a factor of shape {whole.shape} does not fit a factor for the {side} of inner dimension {length} "
            f"(at most {MAX_INNER})"
        )
    result = np.empty((rows, outer), np.uint32, order)
    tile = max(1, _TILE // max(1, width))
    if not isinstance(other, Limbs) and rows > tile:
        other = split(other if order == "C" else other.T, side)
        width = other.parts.shape[1]
    short = inner < _BLOCK and width == outer
    for start in range(0, rows, tile):
        piece, into = whole[start : start + tile], result[start : start + tile]
        if short and isinstance(other, Limbs):
            _reduce_short(np.matmul(_centred(piece), other.parts, out=np.empty(into.shape, order=order)), into)
        else:
            _reduce(_block_sums(piece, other, width, order), outer, into)
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


def _block_sums(whole: Array, other: Array | Limbs, width: int, order: Literal["C", "F"]) -> Array:
    """The exact int64 products of a tile with the limbs, which are made block by block if they are not there."""
    rows, inner = whole.shape
    step = max(1, ceil(inner / max(1, ceil(inner / _BLOCK))))  # blocks of equal length
    parts_of = _parts_of(other, step, width)
    product, centred = np.empty((rows, width), np.float64, order), np.empty((rows, step), np.float64, order)
    sums, block_sum = np.zeros((rows, width), np.int64, order), np.empty((rows, width), np.int64, order)
    for start in range(0, inner, step):
        block = slice(start, min(start + step, inner))
        piece = centred[:, : block.stop - start]
        _centre(whole[:, block], piece)
        np.matmul(piece, parts_of(block), out=product)
        if start:
            np.copyto(block_sum, product, casting="unsafe")
            sums += block_sum
        else:
            np.copyto(sums, product, casting="unsafe")
    return sums


def _parts_of(other: Array | Limbs, step: int, width: int) -> Callable[[slice], Array]:
    """The limbs of a block of lines; the next call overwrites them."""
    if isinstance(other, Limbs):
        return other.parts.__getitem__
    made, factor = np.empty((step, width)), other

    def split_block(block: slice) -> Array:
        parts = made[: block.stop - block.start]
        _split(factor[block], parts)
        return parts

    return split_block


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
