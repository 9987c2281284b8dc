"""AsySQN against scikit-learn on the joined data, sparse tables, and the scikit-learn interface."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss

import colonnade
from colonnade.algorithms.asysqn.losses import LOSSES, huber, penalty
from colonnade.linear import AsySQNClassifier, AsySQNRegressor
from colonnade.protocol.errors import ConfigError, DataError

L2 = 1e-2


@pytest.fixture(scope="module")
def table():
    rows = np.random.default_rng(0)
    x = rows.standard_normal((600, 9))
    x[:, 4] += x[:, 0]  # parties whose columns are correlated
    margins = x @ rows.standard_normal(9) + 1.5  # more rows of one class: the intercept matters
    return x, np.where(margins + rows.standard_normal(600) > 0, 1, -1), margins + rows.standard_normal(600)


def parts_of(x, parties=3):
    return np.array_split(x, parties, axis=1)


def objective(loss, x, y, w, b):
    return float(np.mean(LOSSES[loss].value(x @ w + b, y))) + penalty(w, L2)


SETTINGS = {"l2": L2, "learning_rate": 0.3, "batch_size": 100}


VARIANCE_REDUCED = ["asysqn-svrg", "asysqn-saga", "afsvrg", "afsaga", "synsqn-svrg", "synsqn-saga"]


@pytest.mark.parametrize(
    ("method", "intercept"), [*((name, True) for name in VARIANCE_REDUCED), ("asysqn-svrg", False)]
)
def test_logistic_regression(method, intercept, table):
    x, y, _ = table
    slower = {"epochs": 60, "learning_rate": 1.0} if method.startswith("af") else {"epochs": 30}
    model = AsySQNClassifier(method, fit_intercept=intercept, **SETTINGS | slower).fit(parts_of(x), y)
    best = LogisticRegression(C=1 / (len(y) * L2), fit_intercept=intercept, tol=1e-12, solver="newton-cholesky")
    best.fit(x, y)
    optimum = objective("logistic", x, y, best.coef_[0], best.intercept_)
    assert objective("logistic", x, y, np.concatenate(model.coef_), model.intercept_) <= optimum * (1 + 1e-6)
    assert model.intercept_ == pytest.approx(float(np.ravel(best.intercept_)[0]), abs=1e-2)
    assert bool(model.intercept_) == intercept
    assert model.score(parts_of(x), y) == pytest.approx(best.score(x, y), abs=0.001)
    np.testing.assert_allclose(model.predict_proba(parts_of(x)), best.predict_proba(x), atol=1e-3)


def test_ridge(table):
    x, _, y = table
    model = AsySQNRegressor("asysqn-saga", epochs=60, **SETTINGS).fit(parts_of(x, 4), y)
    best = Ridge(alpha=len(y) * L2).fit(x, y)
    np.testing.assert_allclose(np.concatenate(model.coef_), best.coef_, atol=1e-4)
    assert model.intercept_ == pytest.approx(best.intercept_, abs=1e-4)
    assert model.score(parts_of(x, 4), y) == pytest.approx(best.score(x, y), abs=1e-6)


@pytest.mark.parametrize("name", ["asysqn-saga", "synsqn-svrg", "afsvrg"])
def test_huber(name, table, simulate):
    x, _, y = table
    y = y.copy()
    y[::17] += 40.0  # outliers, which Huber's loss resists
    data = colonnade.split(colonnade.from_arrays(x, y), parties=3, scale="none", validation_fraction=0)
    protocol = {"name": name, "loss": "huber", "huber_delta": 0.2, "l2": L2}
    train = {"epochs": 40, "batch_size": 100, "eval_every": "20 epochs"}
    run = simulate({"protocol": protocol, "train": train}, data=data)
    rows, labels = np.hstack(data.train), np.asarray(data.y_train, np.float64)
    loss = huber(0.2 * labels.std())

    def cost(point):
        return float(loss.value(rows @ point[:-1] + point[-1], labels).mean()) + penalty(point[:-1], L2)

    best = minimize(cost, np.zeros(10), method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-14})
    weights = np.concatenate([party.trained()[party.name]["weight"] for party in run.parties])
    found = cost(np.append(weights, run.parties[0].trained()["party-1"]["bias"][0]))
    assert found <= best.fun * (1 + 1e-4)
    ridge = Ridge(alpha=len(labels) * L2).fit(rows, labels)
    assert cost(np.append(ridge.coef_, ridge.intercept_)) > best.fun * 1.05, "another loss has another optimum"


def test_least_squares_svm_is_ridge_on_the_signs(table):
    x, y, _ = table
    model = AsySQNClassifier("asysqn-svrg", loss="ls-svm", epochs=30, **SETTINGS).fit(parts_of(x), y)
    best = Ridge(alpha=len(y) * L2).fit(x, y)
    np.testing.assert_allclose(
        [*np.concatenate(model.coef_), model.intercept_], [*best.coef_, best.intercept_], atol=1e-5
    )
    with pytest.raises(AttributeError, match="no probabilities"):
        model.predict_proba(parts_of(x))


def test_masks_change_nothing(table):
    x, y, _ = table
    settings = {"learning_rate": 0.1, "batch_size": 256, "epochs": 2}
    fitted = [AsySQNClassifier(masking=masking, **settings).fit(parts_of(x), y) for masking in ("on", "off")]
    first, second = (np.concatenate(model.coef_) for model in fitted)
    np.testing.assert_allclose(first, second, atol=0.05)  # other messages, another order of steps
    assert fitted[0].summary_["bytes_by_kind"].keys() - fitted[1].summary_["bytes_by_kind"].keys() == {"Masks"}


# The scikit-learn interface


def test_parts_may_be_sparse_and_labels_words(table):
    x, y, _ = table
    words = np.where(y > 0, "yes", "no")
    dense = AsySQNClassifier(epochs=3).fit(parts_of(x), words)
    mixed = [sparse.csr_matrix(part) if place else part for place, part in enumerate(parts_of(x))]
    model = AsySQNClassifier(epochs=3).fit(mixed, words)
    np.testing.assert_allclose(np.concatenate(model.coef_), np.concatenate(dense.coef_), rtol=1e-6)
    assert model.classes_.tolist() == ["no", "yes"] and set(model.predict(mixed)) == {"no", "yes"}
    assert [len(w) for w in model.coef_] == [3, 3, 3] and model.n_features_in_ == 9
    np.testing.assert_allclose(model.predict_proba(mixed).sum(1), 1.0)


def test_scikit_learns_manners(table):
    x, y, _ = table
    model = AsySQNClassifier(l2=0.5, memory=3)
    copy = clone(model).set_params(epochs=1)
    assert copy.get_params()["l2"] == 0.5 and model.get_params()["epochs"] == 30.0
    with pytest.raises(NotFittedError):
        copy.predict(parts_of(x))
    assert copy.fit(parts_of(x), y) is copy
    again = clone(copy).fit(parts_of(x), y)
    assert all((a == b).all() for a, b in zip(copy.coef_, again.coef_, strict=True)), "the same seed, the same bits"


def test_a_single_column_is_padded_and_comes_back_single(table):
    x, y, _ = table
    model = AsySQNClassifier(epochs=1).fit([x[:, :1], x[:, 1:5], x[:, 5:]], y)
    assert [len(w) for w in model.coef_] == [1, 4, 4]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda parts, y: (parts[0], y), "a list with one array"),
        (lambda parts, y: ([parts[0][:5], *parts[1:]], y), "inconsistent numbers of samples"),
        (lambda parts, y: (parts, np.arange(len(y)) % 3), "two classes, not 3"),
        (lambda parts, y: ([parts[0] * np.nan, *parts[1:]], y), "NaN"),
    ],
)
def test_parts_that_cannot_be(change, complaint, table):
    parts, y = change(parts_of(table[0]), table[1])
    with pytest.raises(ValueError, match=complaint):
        AsySQNClassifier(epochs=1).fit(parts, y)


def test_other_columns_than_those_of_fit(table):
    x, y, _ = table
    model = AsySQNClassifier(epochs=1).fit(parts_of(x), y)
    with pytest.raises(ValueError, match=r"the parts have \[5, 4\] columns, but those of fit had \[3, 3, 3\]"):
        model.predict(parts_of(x, 2))
    with pytest.raises(DataError, match="party-1: all its columns are zero"):
        AsySQNClassifier(epochs=1).fit([x[:, :3] * 0, x[:, 3:6], x[:, 6:]], y)
    with pytest.raises(ConfigError, match="masked sums need at least 3 parties"):
        AsySQNClassifier(epochs=1).fit(parts_of(x, 2), y)


# Sparse tables


def test_few_positives_in_a_sparse_table():
    """No columns add up to a constant, so only the intercept can say how rare they are."""
    draw = np.random.default_rng(0)
    x = sparse.random(
        2000, 60, density=0.03, format="csr", random_state=1, data_rvs=lambda n: draw.uniform(0.5, 1.5, n)
    )
    y = draw.random(2000) < 1 / (1 + np.exp(6 - 1.5 * (x @ draw.standard_normal(60))))
    assert 0.02 < y.mean() < 0.04
    best, losses = LogisticRegression(C=1 / (2000 * 1e-4), tol=1e-8, max_iter=1000).fit(x, y), {}
    parts = [x[:, :20], x[:, 20:40], x[:, 40:]]
    for kind, settings in (("default", {}), ("without", {"fit_intercept": False})):
        model = AsySQNClassifier(learning_rate=0.1, epochs=20, **settings).fit(parts, y)
        losses[kind] = log_loss(y, model.predict_proba(parts))
    assert losses["default"] == pytest.approx(log_loss(y, best.predict_proba(x)), rel=0.02)
    assert losses["without"] > 3 * losses["default"]


@pytest.fixture(scope="module")
def wide():
    rows = np.random.default_rng(1)
    x = sparse.random(300, 4000, density=0.005, format="csr", random_state=2, dtype=np.float32)
    return x, (x @ rows.standard_normal(4000) > 0).astype(np.int64)


def test_a_sparse_table_is_split_and_trained_on_without_becoming_dense(wide, monkeypatch):
    x, y = wide
    for kind in (sparse.csr_matrix, sparse.csr_array):
        monkeypatch.setattr(kind, "toarray", lambda *_: pytest.fail("became dense"))
    data = colonnade.split(colonnade.from_arrays(x, y), parties=4)
    assert all(sparse.issparse(block) for block in (*data.train, *data.test))
    run = colonnade.prepare(data, "asysqn-saga", epochs=6, learning_rate=0.1, batch_size=60)
    assert run.execute()["status"] == "finished"
    parties = [node.role for node in run.simulator.nodes[1:]]
    theta = sum(party.margins(block) for party, block in zip(parties, data.train, strict=True))
    assert np.mean((theta > 0) == data.y_train) > 0.9


def test_a_party_with_fewer_nonzeros_is_quicker(wide):
    x, y = wide
    names = [f"x{i}" for i in range(4000)]
    how = {"small": names[:400], "middle": names[400:1600], "large": names[1600:]}
    data = colonnade.split(colonnade.from_arrays(x, y, columns=names), how=how)
    calm = {"compute": {"mean_s": 1.0}, "network": {"latency_s": 0.0}}
    for share, times in ((False, 2), (True, 1)):  # a sum that is shared gives the middle party more to step on
        method = {"name": "afsgd", "ahead": 3, "share": share}
        run = colonnade.prepare(data, method, updates=60, batch_size=60, clock=calm)
        steps = run.execute()["method"]["steps"]
        assert steps["small"] > times * steps["middle"] > times * steps["large"]


def test_sparse_tables_want_a_linear_method_and_no_scaling(wide):
    dataset = colonnade.from_arrays(*wide)
    with pytest.raises(ConfigError, match="data.scale = 'standard': this scale would make a sparse table dense"):
        colonnade.split(dataset, parties=3, scale="standard")
    with pytest.raises(ConfigError, match="protocol.name = 'vafl': needs a dense table"):
        colonnade.prepare(colonnade.split(dataset, parties=3), "vafl")


def test_libsvm_text_may_stay_sparse(tmp_path):
    (tmp_path / "rows.libsvm").write_text("+1 1:0.5 90000:2\n-1 3:1\n+1 2:1 7:3\n-1 1:1\n+1 5:1\n-1 4:2 6:1\n")
    dataset = colonnade.load(str(tmp_path / "rows.libsvm"), sparse=True)
    assert sparse.issparse(dataset.x) and dataset.x.shape == (6, 90000) and dataset.scale == "none"
    dense = colonnade.load(str(tmp_path / "rows.libsvm"))
    assert (dense.x == dataset.x.toarray()).all() and dense.scale == "none"
    with pytest.raises(ConfigError, match="data.sparse = True: only LIBSVM data are sparse, not digits"):
        colonnade.load("digits", sparse=True)
