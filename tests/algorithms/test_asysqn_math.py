"""AsySQN's arithmetic: Alg. 1 against dense BFGS updates, losses and curvature against differences and scikit-learn."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from colonnade.algorithms.asysqn.losses import LOSSES, huber, penalty, probability
from colonnade.algorithms.asysqn.padding import padded
from colonnade.algorithms.asysqn.quasi_newton import Memory, curvature
from colonnade.protocol.state import pack, unpack


def damped(s, y, delta):
    """Eq. (12), (13) as printed, with the same γ_k in both: γ, ŷ and whether damping was needed."""
    gamma = max(y @ y / (s @ y), delta) if s @ y > 0 else delta
    sigma = gamma * s @ s
    theta = 0.7 * sigma / (sigma - s @ y) if s @ y < 0.3 * sigma else 1.0
    return gamma, theta * y + (1 - theta) * gamma * s, theta < 1


def dense(pairs, delta, dimension):
    """H_k by the textbook's update (I − ρsŷᵀ) H (I − ρŷsᵀ) + ρssᵀ from γ_k⁻¹ I, oldest pair first."""
    gamma = damped(*pairs[-1], delta)[0]
    h = np.eye(dimension) / gamma
    for s, y in pairs:
        y_hat = damped(s, y, delta)[1]
        rho = 1 / (s @ y_hat)
        left = np.eye(dimension) - rho * np.outer(s, y_hat)
        h = left @ h @ left.T + rho * np.outer(s, s)
    return h


def matrix(memory, dimension):
    """H_k, column by column."""
    return np.column_stack([memory.direction(unit) for unit in np.eye(dimension)])


def convex_pairs(count, dimension, seed):
    draw = np.random.default_rng(seed)
    root = draw.standard_normal((dimension, dimension))
    hessian = root @ root.T / dimension + 0.5 * np.eye(dimension)
    steps = draw.standard_normal((count, dimension))
    return [(s, hessian @ s) for s in steps]


def stale_pairs(count, dimension, seed):
    """A ȳ that is nearly unrelated to s."""
    draw = np.random.default_rng(seed)
    return [tuple(draw.standard_normal((2, dimension))) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9, 13])
@pytest.mark.parametrize("pairs_of", [convex_pairs, stale_pairs])
def test_two_loops_are_the_dense_updates(pairs_of, count):
    m, dimension, delta = 4, 7, 0.1
    pairs = pairs_of(count, dimension, count)
    memory = Memory(m, delta)
    for s, y in pairs:
        assert memory.add(s, y)
    assert len(memory) == min(m, count)
    expected = dense(pairs[-m:], delta, dimension)
    np.testing.assert_allclose(matrix(memory, dimension), expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())


def test_the_pairs_above_are_damped_and_undamped():
    assert any(damped(s, y, 0.1)[2] for s, y in stale_pairs(13, 7, 13))
    assert any(not damped(s, y, 0.1)[2] for s, y in convex_pairs(13, 7, 13))


def test_hubers_loss_by_hand():
    """δ = 1, residuals ½, −3 and 1: squares up to δ, straight lines beyond."""
    loss, theta, y = huber(1.0), np.array([1.5, -2.0, 3.0]), np.array([1.0, 1.0, 2.0])
    np.testing.assert_allclose(loss.value(theta, y), [0.125, 2.5, 0.5])
    np.testing.assert_allclose(loss.derivative(theta, y), [0.5, -1.0, 1.0])
    np.testing.assert_allclose(loss.second_derivative(theta, y), [1.0, 0.0, 1.0])
    assert loss.constant(np.array([0.0, 1.0, 100.0])) == pytest.approx(1.0)  # slopes 1, 0 and −1
    assert huber(1e6).constant(np.array([0.0, 1.0, 100.0])) == pytest.approx(101 / 3), "all squares: the mean"


def test_one_step_by_hand():
    """s = (1, 0), ȳ = (2, 0): γ = 2, σ = 2, no damping, ρ = ½, H = diag(½, ½)."""
    memory = Memory(3, 1e-3)
    memory.add(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    assert memory.gamma == 2
    np.testing.assert_allclose(memory.direction(np.array([4.0, 6.0])), [2.0, 3.0])


def test_damping_by_hand():
    """s = (1, 0), ȳ = (−1, 0), δ = 1: γ = δ = 1, σ = 1, θ = 0.35, ŷ = (0.3, 0): H = diag(1/0.3, 1)."""
    memory = Memory(3, 1.0)
    memory.add(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    np.testing.assert_allclose(memory.direction(np.array([3.0, 5.0])), [10.0, 5.0])
    np.testing.assert_allclose(memory.save()["y"][0], [0.3, 0.0], atol=1e-15)


def test_the_newest_undamped_pair_holds_exactly():
    """The secant equation: H ȳ = s."""
    memory, found = Memory(5, 1e-6), 0
    for s, y in convex_pairs(20, 6, 3):
        memory.add(s, y)
        if not damped(s, y, 1e-6)[2]:
            found += 1
            np.testing.assert_allclose(memory.direction(y), s, rtol=1e-8, atol=1e-10)
    assert found > 5


@pytest.mark.parametrize("memory", [Memory(0, 1.0), Memory(5, 1.0)], ids=["m=0", "before the first pair"])
def test_without_pairs_the_direction_is_the_gradient(memory):
    v = np.arange(4.0)
    direction = memory.direction(v)
    np.testing.assert_array_equal(direction, v)
    direction += 1
    assert v[0] == 0, "a new array"


def test_memory_of_nothing_takes_no_pairs_and_no_step_is_no_pair():
    assert not Memory(0, 1.0).add(np.ones(3), np.ones(3))
    memory = Memory(2, 1.0)
    assert not memory.add(np.zeros(3), np.ones(3)) and len(memory) == 0
    for s, y in ((np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf), (1e-160, 1.0)):
        assert not memory.add(np.full(3, s), np.full(3, y)) and len(memory) == 0


def test_state_returns_and_goes_on_alike():
    memory, again = Memory(3, 0.1), Memory(3, 0.1)
    pairs = stale_pairs(6, 5, 0)
    for s, y in pairs[:4]:
        memory.add(s, y)
    again.load(unpack(pack(memory.save())))
    for s, y in pairs[4:]:
        memory.add(s, y)
        again.add(s, y)
    np.testing.assert_array_equal(matrix(memory, 5), matrix(again, 5))


def test_an_empty_state_returns():
    again = Memory(3, 0.1)
    again.load(unpack(pack(Memory(3, 0.1).save())))
    again.add(np.ones(4), np.ones(4))
    assert len(again) == 1


def test_pairs_are_kept_and_not_shared():
    memory = Memory(2, 0.1)
    s, y = np.ones(3), np.arange(1.0, 4.0)
    memory.add(s, y)
    before = memory.direction(np.ones(3))
    s[:], y[:] = 0, 0
    np.testing.assert_array_equal(memory.direction(np.ones(3)), before)


def test_a_million_columns_take_two_rows_per_pair_and_no_more():
    memory = Memory(3, 0.1)
    draw = np.random.default_rng(0)
    for _ in range(5):
        s = draw.standard_normal(1_000_000)
        memory.add(s, 2.0 * s)
    saved = memory.save()
    assert saved["s"].nbytes + saved["y"].nbytes == 2 * 3 * 8 * 1_000_000
    np.testing.assert_allclose(memory.direction(s), 0.5 * s, rtol=1e-9)


components = st.floats(-3, 3, allow_subnormal=False)
pair = st.tuples(arrays(float, 4, elements=components), arrays(float, 4, elements=components))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(pair, min_size=1, max_size=8), st.sampled_from([1e-3, 0.1, 10.0]))
def test_every_pair_has_positive_curvature_whatever_comes(pairs, delta):
    """These make H positive definite, exactly: γ > 0 and sᵀŷ ≥ 0.3 γ sᵀs > 0."""
    memory = Memory(3, delta)
    for s, y in pairs:
        if not memory.add(s, y):
            continue
        assert np.isfinite(memory.gamma) and memory.gamma >= delta
        saved = memory.save()
        assert (saved["rho"][: len(memory)] > 0).all() and np.isfinite(saved["rho"]).all()
        newest = (saved["added"] - 1) % 3
        product = saved["s"][newest] @ saved["y"][newest]
        assert product >= (0.3 - 1e-9) * memory.gamma * (s @ s) - 1e-12 * np.abs(s) @ np.abs(saved["y"][newest])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(pair, min_size=1, max_size=6), st.sampled_from([1e-3, 0.1, 10.0]))
def test_h_is_positive_definite_in_exact_arithmetic(pairs, delta):
    """Sylvester's determinants of H⁻¹ of the stored pairs, in fractions: no conditioning blurs the sign."""
    memory = Memory(3, delta)
    for s, y in pairs:
        memory.add(np.round(s, 2), np.round(y, 2))
    if not len(memory):
        return
    saved = memory.save()
    order = [(saved["added"] - len(memory) + i) % 3 for i in range(len(memory))]
    b = [[Fraction(memory.gamma) * (i == j) for j in range(4)] for i in range(4)]
    for place in order:
        s, y = ([Fraction(float(x)) for x in saved[name][place]] for name in ("s", "y"))
        b = inverse_update(b, s, y)
    assert all(determinant([row[:size] for row in b[:size]]) > 0 for size in range(1, 5))


def inverse_update(b, s, y):
    """BFGS for B = H⁻¹: B − Bs sᵀB/(sᵀBs) + yyᵀ/(sᵀy)."""
    bs = [sum(x * z for x, z in zip(row, s, strict=True)) for row in b]
    sbs = sum(x * z for x, z in zip(bs, s, strict=True))
    sy = sum(x * z for x, z in zip(s, y, strict=True))
    return [[b[i][j] - bs[i] * bs[j] / sbs + y[i] * y[j] / sy for j in range(4)] for i in range(4)]


def determinant(a):
    if len(a) == 1:
        return a[0][0]
    minors = ([row[:j] + row[j + 1 :] for row in a[1:]] for j in range(len(a)))
    return sum((-1) ** j * a[0][j] * determinant(minor) for j, minor in enumerate(minors))


def test_directions_of_stale_pairs_are_descents():
    for seed in range(50):
        memory = Memory(5, 0.1)
        for s, y in stale_pairs(12, 9, seed):
            memory.add(s, y)
        v = np.random.default_rng(1000 + seed).standard_normal(9)
        assert v @ memory.direction(v) > 0


# --- losses and curvature


MARGINS = np.array([-40.0, -3.0, -0.5, -1e-3, 0.0, 0.2, 1.0, 7.0, 35.0])
EVERY_LOSS = pytest.mark.parametrize("name", sorted(LOSSES))


def labels(name, rows, seed=0):
    draw = np.random.default_rng(seed)
    return draw.choice([-1.0, 1.0], rows) if LOSSES[name].signed else draw.standard_normal(rows)


@EVERY_LOSS
def test_derivatives_are_those_of_the_loss(name):
    loss, y, h = LOSSES[name], labels(name, len(MARGINS)), 1e-5
    slope = (loss.value(MARGINS + h, y) - loss.value(MARGINS - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(MARGINS, y), slope, rtol=1e-6, atol=1e-8)
    curve = (loss.derivative(MARGINS + h, y) - loss.derivative(MARGINS - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.second_derivative(MARGINS, y), curve, rtol=1e-6, atol=1e-8)


@EVERY_LOSS
def test_losses_and_derivatives_are_finite_far_out(name):
    loss, theta = LOSSES[name], np.array([-1e4, 1e4])
    for y in (np.array([1.0, 1.0]), np.array([-1.0, -1.0])):
        for function in (loss.value, loss.derivative, loss.second_derivative):
            assert np.isfinite(function(theta, y)).all()


def test_ls_svm_is_ridge_on_signs():
    y = labels("ls-svm", len(MARGINS))
    for function in ("value", "derivative", "second_derivative"):
        svm, ridge = (getattr(LOSSES[name], function)(MARGINS, y) for name in ("ls-svm", "ridge"))
        np.testing.assert_allclose(svm, ridge, atol=1e-12)


def test_predictions():
    theta = np.array([-2.0, 0.0, 3.0])
    assert LOSSES["logistic"].predict(theta).tolist() == LOSSES["ls-svm"].predict(theta).tolist() == [-1, 1, 1]
    assert LOSSES["ridge"].predict(theta).tolist() == theta.tolist()
    np.testing.assert_allclose(probability(theta), 1 / (1 + np.exp(-theta)))


def problem(name, rows=60, columns=5, seed=1):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((rows, columns))
    y = x @ draw.standard_normal(columns) + draw.standard_normal(rows)
    return x, np.where(y > 0, 1.0, -1.0) if LOSSES[name].signed else y


def objective(name, x, y, w, l2):
    return LOSSES[name].value(x @ w, y).mean() + penalty(w, l2)


@EVERY_LOSS
def test_scikit_learns_solution_is_where_the_gradient_vanishes(name):
    """The factors of loss and penalty must match ours: C = 1/(nλ), alpha = nλ."""
    x, y = problem(name)
    l2, n = 0.05, len(y)
    if name == "logistic":
        w = LogisticRegression(C=1 / (n * l2), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y).coef_[0]
    else:
        w = Ridge(alpha=n * l2, fit_intercept=False, solver="cholesky").fit(x, y).coef_
    gradient = x.T @ LOSSES[name].derivative(x @ w, y) / n + l2 * w
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@EVERY_LOSS
def test_quasi_newton_steps_find_scikit_learns_minimum(name):
    """The pieces together: full-batch steps d = H v with the curvature of the same batch."""
    x, y = problem(name)
    loss, l2, memory, w = LOSSES[name], 0.05, Memory(10, 1e-3), np.zeros(5)
    for _ in range(200):
        theta = x @ w
        v = x.T @ loss.derivative(theta, y) / len(y) + l2 * w
        step = -0.5 * memory.direction(v)
        memory.add(step, curvature(x, loss.second_derivative(theta, y), step, l2))
        w += step
    fitted = (
        LogisticRegression(C=1 / (len(y) * l2), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y).coef_[0]
        if name == "logistic"
        else Ridge(alpha=len(y) * l2, fit_intercept=False, solver="cholesky").fit(x, y).coef_
    )
    assert objective(name, x, y, w, l2) <= objective(name, x, y, fitted, l2) + 1e-10
    np.testing.assert_allclose(w, fitted, atol=1e-4)


@EVERY_LOSS
def test_curvature_is_the_change_of_the_blocks_gradient(name):
    """The gradient of this party's block, with all other margins fixed."""
    loss = LOSSES[name]
    x, y = problem(name)
    draw = np.random.default_rng(5)
    w, s, others, l2, h = draw.standard_normal(5), draw.standard_normal(5), draw.standard_normal(60), 0.3, 1e-5

    def gradient(at):
        return x.T @ loss.derivative(others + x @ at, y) / len(y) + l2 * at

    expected = (gradient(w + h * s) - gradient(w - h * s)) / (2 * h)
    found = curvature(x, loss.second_derivative(others + x @ w, y), s, l2)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csr_matrix])
def test_sparse_and_dense_agree(make):
    x = sparse.random_array((40, 30), density=0.1, rng=np.random.default_rng(3)).toarray()
    draw = np.random.default_rng(4)
    second, s = draw.random(40), draw.standard_normal(30)
    sparse_y = curvature(make(x), second, s, 0.1)
    assert isinstance(sparse_y, np.ndarray) and sparse_y.shape == (30,)
    np.testing.assert_allclose(sparse_y, curvature(x, second, s, 0.1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, sparse.csr_matrix])
def test_a_single_column_gets_company_that_changes_nothing(make):
    x = make(np.array([[1.0], [0.0], [-2.0]]))
    wide = padded(x)
    assert wide.shape == (3, 2) and type(wide) is type(x)
    np.testing.assert_array_equal(wide @ np.array([3.0, 5.0]), [3.0, 0.0, -6.0])
    assert padded(wide) is wide
