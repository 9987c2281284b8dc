"""Wrong values of a polynomial: by hand, against all polynomials that could be meant, and as answers of a round."""

import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.privacy import field
from colonnade.privacy.field import P
from colonnade.privacy.reed_solomon import wrong_places
from colonnade.privacy.sharing import LagrangeCode, _lagrange


def test_by_hand():
    """f = 1 + x at 1 … 4; R = 2. One wrong value of four is located, one of three is only noticed."""
    assert wrong_places([1, 2, 3, 4], [2, 3, 4, 5], 2) == []
    assert wrong_places([1, 2, 3, 4], [2, 3, 9, 5], 2) == [2]
    assert wrong_places([1, 2, 3, 4], [0, 3, 4, 5], 2) == [0]
    assert wrong_places([1, 2, 3], [2, 3, 9], 2) is None
    assert wrong_places([1, 2, 3], [2, 3, 4], 2) == []
    assert wrong_places([1, 2, 3, 4], [2, 8, 9, 5], 2) is None, "no line passes through three of them"


def test_more_wrong_values_than_can_be_located_may_look_like_others():
    """f = 1 + x with two wrong values of four: 7 − x fits three of them, and the right value 2 looks wrong."""
    assert wrong_places([1, 2, 3, 4], [2, 5, 4, 3], 2) == [0]


def nearest(points, values, needed):
    """All polynomials through `needed` of the values: the places where the one with few enough differences differs."""
    for chosen in combinations(range(len(points)), needed):
        rows = _lagrange([points[i] for i in chosen], points)
        fitted = [sum(a * values[i] for a, i in zip(row, chosen, strict=True)) % P for row in rows]
        wrong = [i for i, value in enumerate(values) if fitted[i] != value]
        if 2 * len(wrong) <= len(points) - needed:
            return wrong
    return None


ELEMENTS = st.one_of(st.integers(0, 3), st.integers(0, P - 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_it_finds_what_trying_all_polynomials_finds(data):
    needed = data.draw(st.integers(1, 4))
    points = data.draw(st.lists(st.integers(1, 20), min_size=needed, max_size=8, unique=True))
    f = data.draw(st.lists(ELEMENTS, min_size=needed, max_size=needed))
    values = [sum(a * x**i for i, a in enumerate(f)) % P for x in points]
    for place in data.draw(st.lists(st.integers(0, len(points) - 1), max_size=4)):
        values[place] = data.draw(ELEMENTS)
    assert wrong_places(points, values, needed) == nearest(points, values, needed)


def seed(*name):
    return hashlib.sha256(repr(name).encode()).digest()


def answers_of(code, places=5, width=3):
    """Values of a random polynomial of ψ's degree for each coordinate."""
    given = field.uniform(seed("coefficients"), (code.needed, places * width))
    start = code.segments + code.colluders
    rows = np.array(_lagrange(range(1, code.needed + 1), range(start + 1, start + 1 + code.parties)), np.uint32)
    return field.matmul(rows, given).reshape(code.parties, places, width)


@pytest.mark.parametrize("segments, colluders, parties", [(1, 1, 5), (2, 1, 7), (2, 1, 9), (2, 2, 9)])
def test_wrong_answers_are_located_and_the_others_decode(segments, colluders, parties):
    code = LagrangeCode(segments, colluders, parties)
    right = answers_of(code)
    decoded, who = code.decode(right, range(parties)), list(range(parties))
    assert code.wrong(right, who, seed("check")) == []
    most = (parties - code.needed) // 2
    assert most >= 1
    for wrong in combinations(who, most):
        told = right.copy()
        told[list(wrong), 2, 1] = (told[list(wrong), 2, 1] + 1) % P  # one number of the whole answer
        assert code.wrong(told, who, seed("check", wrong)) == list(wrong)
        kept = [n for n in who if n not in wrong]
        assert np.array_equal(code.decode(told[kept], kept), decoded)
        unchecked = code.decode(told, who)
        assert np.array_equal(unchecked, decoded) is (min(wrong) >= code.needed), "it takes the lowest R as they are"


def test_one_answer_more_than_needed_shows_that_one_is_wrong_but_not_which():
    code = LagrangeCode(2, 1, 6)
    told, who = answers_of(code)[[0, 1, 2, 3, 5, 4]], [0, 1, 2, 3, 5, 4]  # in the order of coming
    assert code.wrong(told, who, seed("check")) == []
    told[4] = 0
    assert code.wrong(told, who, seed("check")) is None
    assert code.wrong(told[[0, 1, 2, 3, 5]], [0, 1, 2, 3, 4], seed("check")) == [], "R answers always fit together"


def test_a_wrong_answer_that_knows_the_seed_is_overlooked():
    """Why the server draws the seed from its own key: u and v tell which errors cancel out."""
    code, places, width = LagrangeCode(1, 1, 4), 2, 2
    told = answers_of(code, places, width)
    drawn = [int(value) for value in field.uniform(seed("check"), (places + width,))]
    u, v = drawn[:places], drawn[places:]
    error = v[1] * u[0], -v[0] * u[0]  # u_0·(e_0·v_0 + e_1·v_1) = 0
    told[3, 0] = [(int(value) + e) % P for value, e in zip(told[3, 0], error, strict=True)]
    assert code.wrong(told, range(4), seed("check")) == []
    assert code.wrong(told, range(4), seed("another")) is None
