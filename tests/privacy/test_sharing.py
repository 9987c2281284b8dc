"""Lagrange coding: which sets of answers decode, exhaustively; what shares reveal, by χ² and by working attacks."""

import hashlib
from itertools import combinations, dropwhile, zip_longest
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.privacy import sharing
from colonnade.privacy.field import P, add, matmul, multiply, quantise, uniform
from colonnade.privacy.sharing import LagrangeCode, Segmentation, feasible
from colonnade.protocol.errors import ConfigError, DataError, LocalProtocolError

DRAWS = 40_000


def seed(*name):
    return hashlib.sha256(repr(name).encode()).digest()


def beta(code):
    return list(range(1, code.segments + code.colluders + 1))


def alpha(code, who=None):
    first = code.segments + code.colluders + 1
    return [first + n for n in (range(code.parties) if who is None else who)]


def lagrange(nodes, points):
    """The weights of an interpolation, in Python's integers."""
    weights = [
        [
            prod(x - m for m in nodes if m != own) * pow(prod(own - m for m in nodes if m != own), -1, P) % P
            for own in nodes
        ]
        for x in points
    ]
    return np.array(weights, np.uint32).reshape(len(points), len(nodes))


def interpolate(nodes, values, points):
    """The polynomial through `values` at `nodes`, at `points`."""
    flat = np.asarray(values).reshape(len(nodes), -1)
    return matmul(lagrange(nodes, points), flat).reshape(len(points), *np.shape(values)[1:])


def total(arrays):
    """A sum in the field."""
    summed, *rest = arrays
    for array in rest:
        summed = add(summed, array)
    return summed


class Federation:
    """Everything in a round of N polynomial networks of depth D, without roles."""

    def __init__(self, code, depth=1, columns=2, length=3, width=2, blinded=True, name=0):
        k, t, n = code.segments, code.colluders, code.parties
        powers = range(depth)
        draw = lambda what, *shape: [[uniform(seed(name, what, m, i), shape) for i in powers] for m in range(n)]  # noqa: E731
        self.code = code
        self.data, self.models = draw("x", k, length, columns), draw("w", columns, width)
        data_masks, model_masks = draw("z", t, length, columns), draw("v", t, columns, width)
        each = [(m, i) for m in range(n) for i in powers]
        x = [code.encode_data(self.data[m][i], data_masks[m][i]) for m, i in each]
        w = [code.encode_model(self.models[m][i], model_masks[m][i]) for m, i in each]
        self.answers = [total(matmul(x_n[j], w_n[j]) for x_n, w_n in zip(x, w, strict=True)) for j in range(n)]
        if blinded:
            noise = total(draw("r", code.blinding_terms, length, width)[m][0] for m in range(n))
            self.answers = list(add(np.array(self.answers), code.blinding(noise)))

    @property
    def embeddings(self):
        """Σ_n Σ_i X̄_{n,k}^i W̄_n^i, in the clear: (K, length, width)."""
        pairs = [(x, w) for xs, ws in zip(self.data, self.models, strict=True) for x, w in zip(xs, ws, strict=True)]
        return np.array([total(matmul(x[k], w) for x, w in pairs) for k in range(self.code.segments)])


# --- decoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "segments", "colluders", "depth"),
    [(8, 2, 1, 1), (8, 2, 1, 3), (12, 3, 2, 2), (7, 3, 0, 2), (4, 1, 0, 1)],
)
@pytest.mark.parametrize("blinded", [True, False])
def test_every_set_of_r_decodes(parties, segments, colluders, depth, blinded):
    """Thm 5.1; R does not depend on the depth."""
    code = LagrangeCode(segments, colluders, parties)
    round_ = Federation(code, depth, blinded=blinded)
    for who in combinations(range(parties), code.needed):
        decoded = code.decode([round_.answers[n] for n in who], who)
        np.testing.assert_array_equal(decoded, round_.embeddings)


@pytest.mark.parametrize(("parties", "segments", "colluders", "depth"), [(8, 2, 1, 1), (8, 2, 1, 3), (12, 3, 2, 2)])
@pytest.mark.parametrize("blinded", [True, False])
def test_no_set_of_fewer_does(parties, segments, colluders, depth, blinded):
    """Decoding is refused. Interpolating with a lower degree is wrong in every number."""
    code = LagrangeCode(segments, colluders, parties)
    round_ = Federation(code, depth, blinded=blinded)
    truth = round_.embeddings
    for who in combinations(range(parties), code.needed - 1):
        answers = [round_.answers[n] for n in who]
        with pytest.raises(LocalProtocolError, match=f"{code.needed} are needed"):
            code.decode(answers, who)
        assert (interpolate(alpha(code, who), answers, beta(code)[:segments]) != truth).all(), who


def test_fewer_answers_fit_any_embedding():
    """For any other value at β_1 there is another ψ with the same R − 1 answers."""
    code = LagrangeCode(2, 1, 8)
    round_ = Federation(code)
    for who in combinations(range(8), code.needed - 1):
        nodes, values = (
            [1, *alpha(code, who)],
            np.array([np.zeros_like(round_.answers[0]), *(round_.answers[n] for n in who)]),
        )
        missing = next(n for n in range(8) if n not in who)
        forged = interpolate(nodes, values, alpha(code, [missing]))[0]
        assert (code.decode([*values[1:], forged], [*who, missing])[0] == 0).all()


def test_a_known_case_by_hand():
    """K = T = 1: F(x) = 5 + (x−1)(7−5), G(x) = 3 + (x−1)(11−3), at x = 3, 4, 5; ψ(1) = 15."""
    code = LagrangeCode(1, 1, 3)
    x = code.encode_data(np.array([[[5]]], np.uint32), np.array([[[7]]], np.uint32)).ravel()
    w = code.encode_model(np.array([[3]], np.uint32), np.array([[[11]]], np.uint32)).ravel()
    blind = code.blinding(np.array([[[1]], [[0]]], np.uint32)).ravel()  # 0, 1, 0 at 1, 2, 3: −(x−1)(x−3)
    assert (x.tolist(), w.tolist(), blind.tolist()) == ([9, 11, 13], [19, 27, 35], [0, P - 3, P - 8])
    assert code.needed == 3
    assert code.decode(add(multiply(x, w), blind)[:, None], [0, 1, 2]).tolist() == [[15]]


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=25)
def test_shares_are_the_polynomials_of_the_paper(data):
    """Eq. (2), Eq. (4) and the blinding, in Python's integers."""
    segments, colluders = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    needed = 2 * (segments + colluders) - 1
    code = LagrangeCode(segments, colluders, needed + data.draw(st.integers(0, 4)))
    draw = lambda *shape: uniform(seed("paper", data.draw(st.integers(0, 2**32))), shape)  # noqa: E731
    x, z, w, v = draw(segments, 2, 3), draw(colluders, 2, 3), draw(3, 2), draw(colluders, 3, 2)
    np.testing.assert_array_equal(code.encode_data(x, z), interpolate(beta(code), np.concatenate([x, z]), alpha(code)))
    model = np.concatenate([np.repeat(w[None], segments, 0), v])
    np.testing.assert_array_equal(code.encode_model(w, v), interpolate(beta(code), model, alpha(code)))
    blind = code.blinding(draw(code.blinding_terms, 2, 2))
    used, rest = alpha(code)[:needed], alpha(code)[needed:]
    assert (interpolate(used, blind[:needed], beta(code)[:segments]) == 0).all()
    np.testing.assert_array_equal(interpolate(used, blind[:needed], rest), blind[needed:], "of no higher degree")


def test_without_colluders_the_model_is_shared_as_it_is():
    code = LagrangeCode(3, 0, 6)
    model = uniform(seed("plain"), (4, 2))
    shares = code.encode_model(model, np.empty((0, 4, 2), np.uint32))
    assert (shares == model).all()
    assert LagrangeCode(1, 0, 2).blinding(np.empty((0, 3, 2), np.uint32)).tolist() == np.zeros((2, 3, 2)).tolist()


def test_answers_in_any_order_and_more_than_needed():
    code = LagrangeCode(2, 1, 8)
    round_ = Federation(code)
    for who in ([7, 1, 4, 0, 3], [7, 6, 5, 4, 3, 2, 1, 0], list(np.array([2, 5, 3, 1, 7]))):
        np.testing.assert_array_equal(code.decode([round_.answers[n] for n in who], who), round_.embeddings)


def test_the_weights_of_a_set_are_made_once_and_surplus_answers_are_those_of_the_highest_numbers():
    code = LagrangeCode(2, 1, 8)
    round_ = Federation(code)
    sharing._decoder.cache_clear()
    for who in ([1, 3, 4, 6, 7], [7, 6, 4, 3, 1], [6, 1, 7, 3, 4]):
        code.decode([round_.answers[n] for n in who], who)
    assert sharing._decoder.cache_info().misses == 1
    wrong = [*round_.answers[:5], np.zeros_like(round_.answers[0])]
    np.testing.assert_array_equal(code.decode(wrong[::-1], [5, 4, 3, 2, 1, 0]), round_.embeddings)


@pytest.mark.parametrize("who", [[0, 1, 2, 3, 3], [0, 1, 2, 3, 8], [-1, 0, 1, 2, 3], [0, 1, 2, 3]])
def test_answers_of_unknown_parties_or_of_one_party_twice_are_refused(who):
    code = LagrangeCode(2, 1, 8)
    with pytest.raises(LocalProtocolError, match="do not match the parties"):
        code.decode(uniform(seed("five"), (5, 2, 2)), who)


def test_wrong_counts_and_shapes_are_refused():
    code = LagrangeCode(2, 1, 8)
    x, z = uniform(seed("x"), (2, 3, 4)), uniform(seed("z"), (1, 3, 4))
    for segments, masks in ((x[:1], z), (x, z[:0]), (x, z[:, :2]), (x, z[:, :, :1])):
        with pytest.raises(LocalProtocolError, match="were given, the code"):
            code.encode_data(segments, masks)
    with pytest.raises(LocalProtocolError, match="masks of shape"):
        code.encode_model(x[0], x)
    with pytest.raises(LocalProtocolError, match="2 blinding terms were given, the code has 3"):
        code.blinding(x)


# --- privacy against T colluding parties (Thm 5.2) -----------------------------------------------------------------


def p_value(shares, cells=16):
    """χ² of (parties, draws): all cells of the joint distribution, by the highest and by the lowest bits; the worse."""
    worst = 1.0
    for digits in (shares.astype(np.int64) * cells // P, shares.astype(np.int64) % cells):
        cell = np.ravel_multi_index(tuple(digits), (cells,) * len(shares))
        worst = min(worst, stats.chisquare(np.bincount(cell, minlength=cells ** len(shares))).pvalue)
    return worst


def same_p_value(one, other, cells=16):
    """χ² that two samples of (parties, draws) have one distribution."""
    counts = []
    for shares in (one, other):
        cell = np.ravel_multi_index(tuple(shares.astype(np.int64) * cells // P), (cells,) * len(shares))
        counts.append(np.bincount(cell, minlength=cells ** len(shares)))
    table = np.array(counts)
    return stats.chi2_contingency(table[:, table.any(0)]).pvalue


def shared(code, what, secret, name):
    """Shares (N, DRAWS) of the same small secret, with fresh masks each time."""
    masks = uniform(seed("masks", name, secret), (code.colluders, DRAWS, 1))
    value = quantise(np.full((DRAWS, 1), secret), 8)
    if what == "model":
        return code.encode_model(value, masks)[:, :, 0]
    return code.encode_data(np.repeat(value[None], code.segments, 0), masks)[:, :, 0]


@pytest.mark.parametrize("what", ["data", "model"])
@pytest.mark.parametrize("code", [LagrangeCode(2, 1, 8), LagrangeCode(3, 2, 12)], ids=str)
def test_shares_of_any_t_parties_are_uniform_and_independent_of_the_secret(what, code):
    one, other = (shared(code, what, secret, what) for secret in (0.0, -1e6))
    groups = [list(group) for group in combinations(range(code.parties), code.colluders)]
    limit = 1e-3 / len(groups)
    for group in groups:
        assert min(p_value(one[group]), p_value(other[group])) > limit / 4, group
        assert same_p_value(one[group], other[group]) > limit, group


@pytest.mark.parametrize("what", ["data", "model"])
def test_the_same_test_finds_a_group_that_is_too_large(what):
    """T + 1 parties hold a model (and, since K + T = 2, data) on a line of the plane that the secret moves."""
    code = LagrangeCode(1, 1, 3)
    one, other = (shared(code, what, secret, what) for secret in (0.0, -1e6))
    assert p_value(one[[0]]) > 1e-4 and p_value(one[[0, 1]]) < 1e-100
    assert p_value(other[[1, 2]]) < 1e-100 and same_p_value(one[[0, 1]], other[[0, 1]]) < 1e-100


def test_the_same_test_finds_masks_that_are_not_uniform():
    code = LagrangeCode(2, 1, 8)
    masks = uniform(seed("narrow"), (1, DRAWS, 1)) >> np.uint32(2)
    assert p_value(code.encode_model(np.zeros((DRAWS, 1), np.uint32), masks)[[0], :, 0]) < 1e-100


@pytest.mark.parametrize("code", [LagrangeCode(2, 1, 8), LagrangeCode(3, 2, 12), LagrangeCode(1, 2, 7)], ids=str)
def test_one_party_more_finds_the_model_and_k_plus_t_the_data(code, GF):
    k, t = code.segments, code.colluders
    x, w = uniform(seed("x"), (k, 4, 3)), uniform(seed("w"), (3, 2))
    data = code.encode_data(x, uniform(seed("z"), (t, 4, 3)))
    model = code.encode_model(w, uniform(seed("v"), (t, 3, 2)))
    for who in combinations(range(code.parties), k + t):
        found = interpolate(alpha(code, who), data[list(who)], beta(code)[:k])
        np.testing.assert_array_equal(found, x)
    for who in combinations(range(code.parties), t + 1):
        # G = W + Π_{k≤K}(x − β_k)·(c_0 + … + c_{T−1} x^{T−1}): T + 1 unknowns.
        points = GF(alpha(code, who))
        vanishing = np.multiply.reduce(points[:, None] - GF(beta(code)[:k]), axis=1)
        system = np.stack([GF.Ones(t + 1), *(vanishing * points**j for j in range(t))], axis=1)
        solution = np.linalg.solve(system.view(GF), GF(model[list(who)].reshape(t + 1, -1).astype(np.int64)))
        np.testing.assert_array_equal(np.asarray(solution)[0].reshape(w.shape), w)


# --- what the server learns of ψ besides ---------------------------------------------------------------------------


def one_column(code, x, z, name, blinded):
    """The answers (N) of a round on one party's one column: ψ = F·G, with the same data masks in every round."""
    model = code.encode_model(np.array([[1234]], np.uint32), uniform(seed("v", name), (code.colluders, 1, 1)))
    answers = multiply(code.encode_data(x, z), model).ravel()
    if blinded:
        answers = add(answers, code.blinding(uniform(seed("r", name), (code.blinding_terms,))))
    return answers


def common_divisor(one, other):
    """Euclid's, of two polynomials: coefficients in F_p, the highest first."""
    while other:
        while len(one) >= len(other):
            factor = one[0] * pow(other[0], -1, P)
            one = [(a - factor * b) % P for a, b in zip_longest(one, other, fillvalue=0)]
            one = list(dropwhile(lambda c: c == 0, one))
        one, other = other, one
    return one


def coefficients(GF, code, answers):
    """All of ψ, as the server has it from R answers."""
    powers = GF([[pow(x, j, P) for j in reversed(range(code.needed))] for x in alpha(code)[: code.needed]])
    return np.linalg.solve(powers, GF(answers[: code.needed].astype(np.int64))).tolist()


@pytest.mark.parametrize("code", [LagrangeCode(2, 1, 8), LagrangeCode(3, 2, 12)], ids=str)
def test_without_blinding_two_rounds_show_the_server_the_data_polynomial(code, GF):
    """Both are multiples of F, which does not change: F is known up to a factor, and exactly with one known row."""
    x, z = uniform(seed("x"), (code.segments, 1, 1)), uniform(seed("z"), (code.colluders, 1, 1))
    held = [int(share) for share in code.encode_data(x, z).ravel()]
    found = {}
    for blinded in (False, True):
        rounds = [coefficients(GF, code, one_column(code, x, z, (i, code), blinded)) for i in range(2)]
        found[blinded] = common_divisor(*rounds)
    values = [sum(c * x**j for j, c in enumerate(reversed(found[False]))) for x in alpha(code)]
    assert [v * held[0] % P for v in values] == [values[0] * share % P for share in held]
    assert len(found[True]) == 1, "nothing in common"


@pytest.mark.parametrize("code", [LagrangeCode(2, 1, 8), LagrangeCode(3, 2, 12)], ids=str)
def test_without_blinding_the_server_finds_psi_at_the_masks(code):
    round_ = Federation(code, blinded=False)
    others = interpolate(alpha(code)[: code.needed], round_.answers[: code.needed], beta(code))
    np.testing.assert_array_equal(others[: code.segments], round_.embeddings)
    masks = [
        [uniform(seed(0, kind, m, 0), (code.colluders, *shape)) for m in range(code.parties)]
        for kind, shape in (("z", (3, 2)), ("v", (2, 2)))
    ]
    for t in range(code.colluders):
        expected = total(matmul(z[t], v[t]) for z, v in zip(*masks, strict=True))
        np.testing.assert_array_equal(others[code.segments + t], expected)


@pytest.mark.parametrize("code", [LagrangeCode(2, 1, 8), LagrangeCode(3, 2, 12), LagrangeCode(2, 0, 5)], ids=str)
def test_with_blinding_everything_else_is_uniform(code):
    """The same ψ, blinded repeatedly: ψ(β_k) never changes, and any K + 2T − 1 other values are noise."""
    k = code.segments
    fixed = Federation(code, blinded=False, columns=1, length=1, width=1)
    psi = np.array(fixed.answers).reshape(code.parties, 1)
    blind = code.blinding(uniform(seed("again", code), (code.blinding_terms, DRAWS)))
    answers = add(np.repeat(psi, DRAWS, 1), blind)
    who = range(code.needed)
    decoded = code.decode(answers[: code.needed], who)
    assert (decoded == fixed.embeddings.reshape(k, 1)).all()
    points = [*beta(code)[k:], *alpha(code), 10**6]
    others = interpolate(alpha(code, who), answers[: code.needed], points)
    groups = [(i,) for i in range(len(points))]
    groups += list(combinations(range(len(points)), 2)) if code.blinding_terms > 1 else []
    for group in groups:
        assert p_value(others[list(group)]) > 1e-3 / len(groups) / 2, [points[i] for i in group]
    if code.blinding_terms == 3:  # as many values as are free: jointly
        assert p_value(others[:3], cells=8) > 1e-4
    assert p_value(decoded[[0]]) < 1e-100, "a value that does not vary would be found"


def test_one_honest_party_blinds_for_all():
    code = LagrangeCode(2, 1, 8)
    known = code.blinding(np.full((code.blinding_terms, DRAWS), 99, np.uint32))
    honest = code.blinding(uniform(seed("honest"), (code.blinding_terms, DRAWS)))
    for n in range(code.parties):
        assert p_value(add(known, honest)[[n]]) > 1e-4
        assert p_value(known[[n]]) < 1e-100


# --- which codes there are -----------------------------------------------------------------------------------------


def test_feasible_codes_are_all_that_hold_what_was_asked():
    for parties, stragglers, colluders in ((14, 5, 1), (8, 3, 1), (8, 8, 0), (5, 1, 2), (1, 0, 0), (12, 0, 0)):
        found = feasible(parties, stragglers, colluders)
        every = [
            (k, t) for k in range(1, 30) for t in range(colluders, 30) if 2 * (k + t - 1) + 1 <= parties - stragglers
        ]
        assert {(code.segments, code.colluders) for code in found} == set(every) and len(found) == len(every)
        assert all(code.needed + code.stragglers == parties and code.stragglers >= stragglers for code in found)
    table = [(code.segments, code.colluders, code.needed, code.stragglers) for code in feasible(8, 3, 1)]
    assert table == [(2, 1, 5, 3), (1, 1, 3, 5), (1, 2, 5, 3)]


@pytest.mark.parametrize(
    ("segments", "colluders", "parties", "text"),
    [
        (0, 1, 8, "1 or more segments"),
        (2, -1, 8, "0 to 7 of the 8 parties"),
        (1, 8, 8, "0 to 7 of the 8 parties"),
        (4, 1, 8, r"2\(K\+T−1\)\+1 = 9 answers, but there are 8 parties"),
        (1, 0, 0, "0 parties"),
    ],
)
def test_codes_that_cannot_be_are_refused(segments, colluders, parties, text):
    with pytest.raises(ConfigError, match=text):
        LagrangeCode(segments, colluders, parties)


# --- rows and segments ---------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 6), st.data())
@settings(deadline=None, derandomize=True)
def test_decoded_samples_go_back_to_their_rows(rows, segments, data):
    cut = Segmentation(rows, segments)
    values = np.arange(rows * 2, dtype=np.uint32).reshape(rows, 2)
    pieces = cut.cut(values)
    assert pieces.shape == (segments, cut.length, 2) and pieces.size == 2 * (rows + cut.padding)
    assert cut.padding < segments
    batch = np.array(data.draw(st.lists(st.integers(0, cut.length - 1), unique=True)), dtype=np.int64)
    numbers, samples = cut.row_numbers(batch), cut.samples(pieces[:, batch], batch)
    np.testing.assert_array_equal(samples, values[numbers])
    assert len(set(numbers.tolist())) == len(numbers) >= segments * len(batch) - cut.padding
    assert sorted(cut.row_numbers(np.arange(cut.length)).tolist()) == list(range(rows))


def test_rows_and_places_that_are_not_there():
    cut = Segmentation(5, 2)
    with pytest.raises(DataError, match="4 rows were given, 5 are to be cut"):
        cut.cut(np.zeros((4, 1)))
    for batch in ([3], [-1], [0, 7]):
        with pytest.raises(LocalProtocolError, match="outside 0 … 2"):
            cut.row_numbers(np.array(batch))


def test_a_batch_is_decoded_to_the_embeddings_of_its_rows():
    """Data in the clear to embeddings in the clear, with padding, quantised both ways."""
    code, cut, rng = LagrangeCode(2, 1, 6), Segmentation(7, 2), np.random.default_rng(0)
    x, w = rng.integers(-256, 257, (7, 3)) / 256, rng.integers(-4096, 4097, (3, 2)) / 4096
    data = code.encode_data(cut.cut(quantise(x, 8)), uniform(seed("z"), (1, 4, 3)))
    model = code.encode_model(quantise(w, 12), uniform(seed("v"), (1, 3, 2)))
    batch = np.array([3, 0])
    blind = code.blinding(uniform(seed("r"), (code.blinding_terms, 2, 2)))
    answers = [add(matmul(data[n][batch], model[n]), blind[n]) for n in range(6)]
    decoded = code.decode(answers[1:], range(1, 6))
    numbers = cut.row_numbers(batch)
    assert numbers.tolist() == [3, 0, 4]
    np.testing.assert_array_equal(cut.samples(decoded, batch), quantise(x[numbers] @ w, 20))
