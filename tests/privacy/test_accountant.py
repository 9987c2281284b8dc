"""μ and ε against closed forms and against dp-accounting; an unknown event raises."""

from math import log, sqrt

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from colonnade.privacy.accountant import Account, UnknownMechanism, claim_of_theorem_6, composed, mu_of, spent
from colonnade.privacy.gaussian import delta_of, epsilon_of, mu_for


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 10.0, 40.0])
def test_one_gaussian_release_has_the_closed_form_and_dp_accountings_own_number(mu):
    event = composed({(2.0, 2.0 / mu): 1})
    assert mu_of(event) == pytest.approx(mu)
    found = spent(event, 1e-5)
    assert delta_of(mu, found["epsilon"]) == pytest.approx(1e-5, rel=1e-6)
    assert found["epsilon"] == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, 1e-5), rel=1e-5)
    assert mu_for(found["epsilon"], 1e-5) == pytest.approx(mu)


@pytest.mark.parametrize("count", [1, 7, 400])
def test_k_of_them_have_mu_root_k_and_the_epsilon_of_dp_accountings_pld(count):
    event = composed({(1.0, 20.0): count, (3.0, 30.0): 2})
    mu = sqrt(count * 0.05**2 + 2 * 0.1**2)
    assert mu_of(event) == pytest.approx(mu)
    accountant = PLDAccountant()
    accountant.compose(event)
    pld = accountant.get_epsilon(1e-5)
    ours = spent(event, 1e-5)["epsilon"]
    assert ours <= pld * (1 + 1e-9) and ours == pytest.approx(pld, rel=2e-3), "it rounds up, we do not"


def test_an_account_is_its_event():
    account = Account(False, 100, 20)
    for rows in (64, 64, 36, 20):
        account.add("gaussian", 2 * sqrt(rows), 50.0, "train", None)
    assert account.mu == pytest.approx(2 / 50 * sqrt(184)) == mu_of(account.event())


def test_an_empty_message_costs_nothing_and_breaks_nothing():
    account = Account(False, 100, 20)
    account.add("gaussian", 0.0, 50.0, "train", None)
    assert mu_of(account.event()) == account.mu == 0.0


def test_by_record_only_its_own_row_counts_and_the_worst_record_is_told():
    account = Account(True, 10, 4)
    account.add("gaussian", 2.0, 4.0, "train", np.array([0, 1, 2]))
    account.add("gaussian", 2.0, 4.0, "train", np.array([2, 3, 2]))  # twice in one message
    account.add("gaussian", 6.0, 3.0, "train", np.array([2]))  # a step
    account.add("gaussian", 2.0, 4.0, "test", np.array([0, 1, 2, 3]))
    assert account.mu == pytest.approx(sqrt(3 * 0.25 + 4)) == mu_of(account.event())
    with_test = account.square_with("gaussian", 20.0, 4.0, "test", np.array([3]))
    assert with_test == pytest.approx(25.25), "another record may become the worst"
    account.add("gaussian", 2.0, 4.0, "any", None)
    assert account.mu == pytest.approx(sqrt(4 * 0.25 + 4)) == mu_of(account.event()), "may be any record"


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.GaussianDpEvent(0.0),
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1.0), 3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_not_known_raises_and_is_never_zero(event):
    with pytest.raises(UnknownMechanism, match="not accounted for, which does not mean ε = 0"):
        mu_of(dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.0), event]))


def test_an_unknown_mechanism_or_no_noise_raises():
    account = Account(False, 10, 10)
    with pytest.raises(UnknownMechanism, match="unknown mechanism 'laplace'"):
        account.add("laplace", 1.0, 1.0, "train", None)
    with pytest.raises(UnknownMechanism, match="has no bound"):
        account.square_with("gaussian", 1.0, 0.0, "train", None)
    assert account.mu == 0.0


def test_theorem_6_by_hand():
    assert claim_of_theorem_6(400, 600, 60_000, 2.0, 0.1) == pytest.approx(0.01 * 20 * 20)


def test_epsilons_that_are_astronomical_are_numbers():
    assert epsilon_of(1000.0, 1e-5) == pytest.approx(1000**2 / 2 + 1000 * 4.26, rel=0.01)
    assert epsilon_of(5e6, 1e-5) == pytest.approx(5e6**2 / 2, rel=0.01)
    assert log(epsilon_of(1e-3, 1e-5) + 1) >= 0
