"""The scikit-learn interface: what a user of scikit-learn expects, with a block for each party."""

import numpy as np
import polars
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

import colonnade
from colonnade.algorithms import DEFAULT_METHOD
from colonnade.protocol.errors import ColonnadeError, DataError

WINE = load_wine()
WORDS = np.array(["red", "rosé", "white"])[WINE.target]
BLOCKS = [WINE.data[:, :6], WINE.data[:, 6:]]
QUICK = {"party_model": "linear", "epochs": 4, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def fitted():
    return colonnade.VerticalClassifier(protocol="vafl", **QUICK).fit(BLOCKS, WORDS)


def test_a_classifier_tells_words_apart(fitted):
    assert fitted.classes_.tolist() == ["red", "rosé", "white"]
    assert fitted.score(BLOCKS, WORDS) > 0.9
    probabilities = fitted.predict_proba(BLOCKS)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(fitted.predict(BLOCKS), fitted.classes_[probabilities.argmax(1)])
    assert fitted.n_features_in_ == 13 and fitted.parties_ == ("party-1", "party-2")
    assert fitted.result_.summary["protocol"] == "vafl"


def test_a_clone_learns_the_same_and_parameters_can_be_set(fitted):
    again = clone(fitted)
    assert not hasattr(again, "result_") and again.get_params() == fitted.get_params()
    again.fit(BLOCKS, WORDS)
    assert again.result_.summary["weights_sha256"] == fitted.result_.summary["weights_sha256"]
    other = again.set_params(random_state=3, settings={"embedding": 5}).fit(BLOCKS, WORDS)
    assert other.result_.summary["weights_sha256"] != fitted.result_.summary["weights_sha256"]
    assert colonnade.VerticalClassifier().protocol == DEFAULT_METHOD


def test_blocks_have_the_names_of_the_parties():
    frame = polars.DataFrame(BLOCKS[0], schema=WINE.feature_names[:6])
    red = WORDS == "red"
    model = colonnade.VerticalClassifier("sync", **QUICK).fit({"lab": frame, "shop": BLOCKS[1]}, red)
    assert model.classes_.dtype == bool and model.score({"shop": BLOCKS[1], "lab": frame}, red) > 0.8
    with pytest.raises(DataError, match=r"blocks are of \['lab', 'store'\], but fit had \['lab', 'shop'\]"):
        model.predict({"lab": frame, "store": BLOCKS[1]})


def test_a_regressor_comes_near_to_the_best_linear_one():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    oracle = LinearRegression().fit(x, y).score(x, y)
    model = colonnade.VerticalRegressor("sync", "linear", epochs=12).fit([x[:, :5], x[:, 5:]], y)
    assert oracle - 0.15 < model.score([x[:, :5], x[:, 5:]], y)


def test_what_is_refused(fitted):
    with pytest.raises(NotFittedError):
        clone(fitted).predict(BLOCKS)
    with pytest.raises(ColonnadeError, match="1 blocks for 2 parties"):
        fitted.predict(BLOCKS[:1])
    with pytest.raises(DataError, match="party-2: 100 rows, but there are 178 labels"):
        clone(fitted).fit([BLOCKS[0], BLOCKS[1][:100]], WORDS)
    with pytest.raises(DataError, match="y holds NaN"):
        colonnade.VerticalRegressor().fit(BLOCKS, np.full(178, np.nan))
    with pytest.raises(ColonnadeError, match="validation_fraction"):
        clone(fitted).set_params(validation_fraction=0).fit(BLOCKS, WORDS)
