"""Which numbers are squares modulo p = 2²⁵⁵ − 19, for thousands of numbers at once.

A power (Euler: x^((p−1)/2) is 1 for squares) takes Python 100 µs, the Jacobi symbol of a number among many 5 µs. It
comes from the division steps of Bernstein and Yang (TCHES 2019, safegcd), with additions in place of subtractions, so
that all numbers stay positive, as in libsecp256k1 (`secp256k1_jacobi64_maybe_var`). STEPS steps need only the lowest 32
bits of f and g. They give a matrix, which takes the whole numbers f and g the same way:

    2^STEPS · (f', g') = ((u, v), (q, r)) · (f, g)      f odd; (g | f) is known up to a sign, which is counted

Each step is a few vector operations without branches. So the time does not depend on the numbers, except for the number
of matrices, which is that of the slowest number of an array.
"""

import numpy as np

from colonnade.protocol.messages import Array

__all__ = ["P", "are_squares"]

P = 2**255 - 19
STEPS = 29  # of one matrix: the sign of a step depends on three bits of f, and 29 + 3 = 32
LIMBS = 9  # of STEPS bits
MASK = np.uint64(2**STEPS - 1)
SHIFT = np.uint64(STEPS)
WORD = np.uint32
FEW = 128  # for fewer numbers, powers are faster than vectors


def are_squares(numbers: Array) -> Array:
    """For numbers from 1 to p − 1, uint8 (numbers, 32) in little-endian order: whether each is a square, bool."""
    if len(numbers) >= FEW:
        return _have_symbol_1(numbers)
    powers = [pow(int.from_bytes(number.tobytes(), "little"), (P - 1) // 2, P) for number in numbers]
    euler: Array = np.array(powers, np.object_) == 1
    return euler


def _have_symbol_1(numbers: Array) -> Array:
    """Whether the Jacobi symbol (number | p) is 1."""
    g = _limbs(numbers)
    f = np.repeat(_limbs(np.frombuffer(P.to_bytes(32, "little"), np.uint8)[None]), len(numbers), axis=1)
    eta, sign = np.full(len(numbers), -1, np.int32), np.zeros(len(numbers), WORD)  # bit 1 counts the changes of sign
    places, signs = np.arange(len(numbers)), sign.copy()
    while len(places):
        low_f, low_g = ((x[0] | x[1] << SHIFT).astype(WORD) for x in (f, g))
        v, r = _steps(low_f.copy(), low_g.copy(), eta, sign)
        ratio = low_g * _inverses(low_f)
        f, g = (_taken(_first(row, ratio), row.astype(np.uint64), f, g) for row in (v, r))
        if len(f) > 2 and not (f[-1].any() or g[-1].any()):
            f, g = f[:-1], g[:-1]
        busy = (f[0] != 1) | f[1:].any(axis=0)  # once f and g are 1 they stay, and (1 | 1) = 1
        if 2 * np.count_nonzero(busy) < len(places):
            signs[places] = sign
            places, f, g, eta, sign = places[busy], f[:, busy], g[:, busy], eta[busy], sign[busy]
    square: Array = signs & 2 == 0
    return square


def _limbs(numbers: Array) -> Array:
    """uint64 (LIMBS, numbers)."""
    padded = np.zeros((len(numbers), 40), np.uint8)
    padded[:, :32] = numbers
    found = np.empty((LIMBS, len(numbers)), np.uint64)
    for place in range(LIMBS):
        byte, bit = divmod(STEPS * place, 8)
        words = np.ascontiguousarray(padded[:, byte : byte + 8]).view("<u8")[:, 0]
        found[place] = words >> np.uint64(bit) & MASK
    return found


def _steps(f: Array, g: Array, eta: Array, sign: Array) -> tuple[Array, Array]:
    """Take STEPS division steps; changes `eta` and `sign`, and returns the matrix's second column, v and r.

    One step, with δ = −eta: if g is odd and δ > 0, (δ, f, g) becomes (1 − δ, g, (g + f) / 2); if g is odd and δ ≤ 0,
    (1 + δ, f, (g + f) / 2); else (1 + δ, f, g / 2).
    """
    size = len(f)
    top, bottom = np.stack([f, np.zeros(size, WORD)]), np.stack([g, np.ones(size, WORD)])
    mixed, sums = np.empty((2, 2, size), WORD)
    f, v, g = top[0], top[1], bottom[0]
    odd, swap, both, halved = (np.zeros(size, WORD) for _ in range(4))
    signed = swap.view(np.int32)
    for _ in range(STEPS):
        np.negative(np.bitwise_and(g, 1, out=odd), out=odd)
        np.bitwise_and(np.right_shift(eta, 31, out=signed), odd.view(np.int32), out=signed)
        eta ^= signed
        eta -= signed
        eta -= 1
        np.bitwise_and(np.bitwise_and(f, g, out=both), swap, out=both)
        sign ^= both  # reciprocity: (g | f) = −(f | g) if both are 3 modulo 4
        np.bitwise_and(np.bitwise_xor(top, bottom, out=mixed), swap, out=mixed)
        np.add(bottom, np.bitwise_and(top, odd, out=sums), out=bottom)  # the sum is the same before and after a swap
        top ^= mixed
        g >>= 1
        v <<= 1
        halved ^= f  # (2 | f) = −1 if f is 3 or 5 modulo 8: bit 1 of f ^ f >> 1
    sign ^= halved ^ halved >> 1
    return top[1], bottom[1]


def _inverses(odd: Array) -> Array:
    """Of odd numbers, modulo 2³², by Newton's method: 3x ^ 2 has 5 correct bits, and each step doubles them."""
    found = odd * WORD(3) ^ WORD(2)
    for _ in range(3):
        found *= WORD(2) - odd * found
    return found


def _first(second: Array, ratio: Array) -> Array:
    """The matrix's first column: u·f + v·g is 0 modulo 2^STEPS, so u = −v·g/f. It is 2^STEPS where v is 0."""
    found = (WORD(0) - second * ratio).astype(np.uint64) & MASK
    return np.where(second == 0, MASK + np.uint64(1), found)


def _taken(first: Array, second: Array, f: Array, g: Array) -> Array:
    """(u·f + v·g) / 2^STEPS, limb by limb. A sum is below 2^(2·STEPS), as u + v ≤ 2^STEPS."""
    found, carry = np.empty_like(f), np.zeros_like(first)
    part, whole = np.empty_like(first), np.empty_like(first)
    for place, (one, other) in enumerate(zip(f, g, strict=True)):
        np.multiply(first, one, out=whole)
        whole += np.multiply(second, other, out=part)
        whole += carry
        np.right_shift(whole, SHIFT, out=carry)
        if place:
            np.bitwise_and(whole, MASK, out=found[place - 1])
    found[-1] = carry
    return found
