"""The compiled arithmetic gives the bytes of OpenSSL and of Python's integers, for the numbers that carry most, too."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.privacy import compiled
from colonnade.privacy.blinding import Blinder
from colonnade.privacy.hash_to_curve import _mapped
from colonnade.privacy.squares import P
from colonnade.privacy.x25519 import _one_by_one

needs_it = pytest.mark.skipif(not compiled.AVAILABLE, reason="not compiled here, or no AVX-512 IFMA")

SMALL_ORDERS = (0, 1, P - 1)
EXTREMES = (0, 1, 2, 2**51 - 1, 2**51, 2**52 - 1, 2**63, 2**64 - 2, 2**64 - 1)
EXPONENTS = (bytes(32), b"\xff" * 32, b"\x55" * 32, b"\xaa" * 32, bytes(31) + b"\x40", b"\x07" + bytes(31))


def test_a_compiled_file_passes_its_own_check():
    """Otherwise all other tests would be skipped where the compiler made a file that computes other points."""
    file = pytest.importorskip("colonnade.privacy._curve25519", reason="not compiled here")
    assert file.supported() == compiled.AVAILABLE


def little(numbers, size=32) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in numbers)


def usable(numbers):
    """Without points of small order: of 0, 1, −1 and the two of order 8, whose double is 1."""
    return [u for u in numbers if u not in SMALL_ORDERS and ((u * u - 1) ** 2 - 4 * u * (u * u + 486662 * u + 1)) % P]


def differences(exponent, numbers):
    ours, theirs = (f(exponent, little(numbers)) for f in (compiled.raise_points, _one_by_one))
    return [one for place, one in enumerate(numbers) if ours[32 * place :][:32] != theirs[32 * place :][:32]]


@needs_it
@pytest.mark.parametrize("count", [*range(18), 255, 256, 257, 300])
def test_any_number_of_points(count):
    points = np.random.default_rng(count).integers(0, 256, (count, 32), np.uint8)
    points[:, 31] &= 0x7F
    exponent = np.random.default_rng(count + 1000).bytes(32)
    assert compiled.raise_points(exponent, points.tobytes()) == _one_by_one(exponent, points.tobytes())


@needs_it
def test_numbers_near_p():
    assert not differences(EXPONENTS[1], usable(range(P - 4000, P)))


@needs_it
def test_numbers_of_extreme_words():
    numbers = [
        sum(word << (64 * place) for place, word in enumerate(words)) % 2**255
        for words in itertools.product(EXTREMES, repeat=4)
    ]
    numbers = sorted({number for number in usable(numbers) if number < P})
    assert len(numbers) > 4000 and not differences(EXPONENTS[3], numbers)


@needs_it
def test_numbers_of_extreme_limbs():
    limbs = (0, 1, 2**51 - 19, 2**51 - 1)
    numbers = [sum(limb << (51 * i) for i, limb in enumerate(five)) for five in itertools.product(limbs, repeat=5)]
    numbers = usable(number for number in numbers if number < P)
    assert len(numbers) > 900 and not differences(EXPONENTS[2], numbers)


@needs_it
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_exponents(exponent):
    assert not differences(exponent, usable([9, *(1 << bit for bit in range(255)), *range(P - 20, P)]))


@needs_it
@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(2, P - 2), min_size=1, max_size=20))
def test_any_exponent_and_points(exponent, numbers):
    assert not differences(exponent, usable(numbers))


@needs_it
def test_a_thousand_times():
    """RFC 7748, section 5.2."""
    k = u = little([9])
    for _ in range(1000):
        k, u = compiled.raise_points(k, u), k
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@needs_it
@pytest.mark.parametrize("place", [0, 3, 7, 8, 14])
@pytest.mark.parametrize("number", SMALL_ORDERS)
def test_a_small_order_anywhere_is_refused(number, place):
    points = [9] * 15
    points[place] = number
    with pytest.raises(ValueError, match="small order"):
        compiled.raise_points(EXPONENTS[2], little(points))


@needs_it
def test_hashes_of_extreme_numbers():
    numbers = [
        0,
        1,
        2,
        2**384 - 1,
        2**255,
        2**256 - 1,
        2**256,
        2**383,
        *(k * P + d for k in (1, 2, 3) for d in (-1, 0, 1)),
    ]
    numbers += [
        sum(EXTREMES[-1 - place % 3] << (64 * place) for place in places) for places in ([0, 5], [3], [4], [1, 4])
    ]
    mapped = compiled.map_to_curve(b"".join(number.to_bytes(48, "big") for number in numbers))
    assert mapped == _mapped(numbers).tobytes()


@needs_it
@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**384 - 1), min_size=1, max_size=20))
def test_any_hashes(numbers):
    mapped = compiled.map_to_curve(b"".join(number.to_bytes(48, "big") for number in numbers))
    assert mapped == _mapped(numbers).tobytes()


@needs_it
@pytest.mark.parametrize(
    ("call", "arguments"), [("raise_points", (b"", b"")), ("raise_points", (bytes(32), bytes(31)))]
)
@needs_it
def test_other_sizes_are_refused(call, arguments):
    with pytest.raises(ValueError, match="32 bytes"):
        getattr(compiled, call)(*arguments)
    with pytest.raises(ValueError, match="48 bytes"):
        compiled.map_to_curve(bytes(47))


@needs_it
def test_members_with_and_without_it_agree(monkeypatch):
    texts = [f"id-{number}" for number in range(300)]
    here, there = Blinder(b"a" * 32), Blinder(b"b" * 32)
    with_it = here.raised(there.hashed(texts))
    monkeypatch.setattr(compiled, "AVAILABLE", False)
    assert np.array_equal(here.raised(there.hashed(texts)), with_it)


def test_without_the_file_nothing_is_missing():
    program = """
import sys
sys.modules["colonnade.privacy._curve25519"] = None
from colonnade.privacy import blinding, compiled
print(compiled.AVAILABLE, blinding.Blinder(b"a" * 32).hashed(["7"]).shape)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "False (1, 32)\n"
