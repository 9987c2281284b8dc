"""Find the wrong values among those of one polynomial (S. Gao: *A new algorithm for decoding Reed–Solomon codes*).

n values of a polynomial of degree below R, at known points, are a word of a Reed–Solomon code. Two such polynomials
share at most R − 1 values. So up to n − R wrong values can be noticed, and up to (n − R)/2 can be located.

Gao's algorithm: g_0 = Π (x − point), and g_1 passes through all n values. Euclid's algorithm for g_0 and g_1 stops at
the first remainder g = u·g_0 + v·g_1 whose degree is below (n + R)/2. If at most (n − R)/2 values are wrong, g = v·f,
where f is the polynomial and v is 0 at the points of wrong values.

Polynomials are lists of integers below p, the constant first and no zero last. There is one value for each party, so
Python integers are fast enough.
"""

from collections.abc import Sequence

from colonnade.privacy.field import P

__all__ = ["wrong_places"]

Polynomial = list[int]


def wrong_places(points: Sequence[int], values: Sequence[int], needed: int) -> list[int] | None:
    """The places of the wrong values; None if more than (n − R)/2 are wrong. `needed` is R, one more than the degree.

    If more than (n − R)/2 values are wrong, other places may be found: those of the nearest polynomial.
    """
    count = len(points)
    before, rest = _product(points), _interpolated(points, values)
    v_before, v = Polynomial(), [1]
    while 2 * (len(rest) - 1) >= count + needed:
        quotient, remainder = _divided(before, rest)
        before, rest = rest, remainder
        v_before, v = v, _trimmed(_minus(v_before, _times(quotient, v)))
    f, remainder = _divided(rest, v)
    if remainder or len(f) > needed:
        return None
    return [i for i, (point, value) in enumerate(zip(points, values, strict=True)) if _at(f, point) != value]


def _product(points: Sequence[int]) -> Polynomial:
    """Π (x − point)."""
    product = [1]
    for point in points:
        product = _times(product, [-point % P, 1])
    return product


def _interpolated(points: Sequence[int], values: Sequence[int]) -> Polynomial:
    """The polynomial through all values, by Lagrange."""
    product, total = _product(points), [0] * len(points)
    for point, value in zip(points, values, strict=True):
        others, _ = _divided(product, [-point % P, 1])
        scale = value * pow(_at(others, point), -1, P)
        total = [(a + scale * b) % P for a, b in zip(total, others, strict=True)]
    return _trimmed(total)


def _at(f: Polynomial, x: int) -> int:
    value = 0
    for coefficient in reversed(f):
        value = (value * x + coefficient) % P
    return value


def _times(f: Polynomial, g: Polynomial) -> Polynomial:
    product = [0] * (len(f) + len(g) - 1)
    for i, a in enumerate(f):
        for j, b in enumerate(g):
            product[i + j] = (product[i + j] + a * b) % P
    return product


def _minus(f: Polynomial, g: Polynomial) -> Polynomial:
    longest = max(len(f), len(g))
    one, other = (own + [0] * (longest - len(own)) for own in (f, g))
    return [(a - b) % P for a, b in zip(one, other, strict=True)]


def _divided(f: Polynomial, g: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder of f/g; g is not 0."""
    rest, scale = list(f), pow(g[-1], -1, P)
    quotient = [0] * max(len(f) - len(g) + 1, 0)
    for i in reversed(range(len(quotient))):
        quotient[i] = factor = rest[i + len(g) - 1] * scale % P
        for j, b in enumerate(g):
            rest[i + j] = (rest[i + j] - factor * b) % P
    return quotient, _trimmed(rest[: len(g) - 1])


def _trimmed(f: Polynomial) -> Polynomial:
    while f and not f[-1]:
        f.pop()
    return f
