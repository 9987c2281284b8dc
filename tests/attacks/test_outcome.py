"""Intervals of an outcome, against numbers computed by hand."""

import pytest

from colonnade.attacks.attack import Outcome, Trial


def outcome(*right: int) -> Outcome:
    shares = [(0.5, 0.3, 0.2, *[0.0] * 7), (0.6, 0.3, 0.1, *[0.0] * 7), (0.1,) * 10]  # every seed has its own rows
    trials = [Trial(seed, 100, count, 10, 100, 2, 0, shares[seed], 10.0) for seed, count in enumerate(right)]
    return Outcome("vafl", "curious client", "gradients", 10, trials)


def test_mean_and_student_interval() -> None:
    found = outcome(10, 12, 14)  # sd 0.02, t(0.975, 2) = 4.302653, / √3
    assert found.success == pytest.approx(0.12)
    assert found.margin == pytest.approx(4.302653 * 0.02 / 3**0.5, rel=1e-6)


def test_wilson_interval() -> None:
    low, high = outcome(10).wilson  # 10 of 100: Newcombe (1998), method 3
    assert (low, high) == pytest.approx((0.05523, 0.17437), abs=1e-5)


def test_one_trial_has_no_spread() -> None:
    assert outcome(10).margin == 0.0


def test_summary_has_what_readers_need() -> None:
    said = outcome(100, 100).summary()
    assert said["success"] == 1.0 and said["margin"] == 0.0 and said["uniform"] == 0.1 and said["asked"] == 4
    assert said["trials"][1]["seed"] == 1
    assert said["chance"] == pytest.approx(0.55) and said["matched"] == pytest.approx((0.38 + 0.46) / 2)
    assert said["control_expected"] == pytest.approx(0.1)
