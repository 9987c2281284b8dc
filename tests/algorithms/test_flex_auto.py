"""timeout_s = "auto": the rule by hand; a new pick when speeds change, and the same pick when they hardly do.

Of the multiples of the parties' steps, the T with the most Σ_k c·(1 − e^{−τ_k/c}) / (T + round trip).
"""

from math import ceil, exp, floor

import numpy as np
import pytest

from colonnade.algorithms.flex.messages import BeginPhase, Ready
from colonnade.algorithms.flex.pacing import USEFUL_NORMALISED, USEFUL_STEPS, best_timeout, steps_within
from colonnade.protocol.events import NANOSECONDS, Received

BOTH = pytest.mark.parametrize("labels", ["server", "shared"])


def test_one_party_by_hand():
    """c = 6 (labels = "server"), a step of 1 s, a round trip of 10 s: useful steps per second are
    6·(1 − e^{−7/6})/17 = 0.24303, 6·(1 − e^{−8/6})/18 = 0.24547 and 6·(1 − e^{−9/6})/19 = 0.24533: T = 8 s."""
    scores = [6 * (1 - exp(-n / 6)) / (n + 10) for n in (7, 8, 9)]
    assert scores == pytest.approx([0.24303, 0.24547, 0.24533], abs=5e-6)
    assert best_timeout([1.0], 10.0, 6.0) == 8.0


def test_the_shorter_the_round_trip_the_shorter_the_timeout():
    """No labels involved: without a round trip one step; the longer the round trip, the more steps, up to 64."""
    assert best_timeout([1.0], 0.0, 6.0) == 1.0
    found = [best_timeout([1.0], trip, 6.0) for trip in (0.0, 1.0, 10.0, 100.0, 1e6)]
    assert found == sorted(found) and len(set(found)) == 5 and found[-1] <= 64
    assert best_timeout([1.0], 10.0, 20.0) > best_timeout([1.0], 10.0, 6.0), "steps that stay useful longer"
    assert USEFUL_STEPS["shared"] > USEFUL_STEPS["server"]


def test_it_scales_with_the_clock():
    """No labels involved: the same in milliseconds."""
    assert best_timeout([0.001], 0.010, 6.0) == pytest.approx(0.008)
    assert best_timeout([0.001, 0.003], 0.010, 6.0) == pytest.approx(best_timeout([1.0, 3.0], 10.0, 6.0) / 1000)


def useful(timeout, steps, trip, worth):
    """The rule, party by party."""
    total = 0.0
    for step in steps:
        fitting = floor(timeout / step + 1e-6)
        # A party that needs longer than T and the round trip takes part in every second, third … round, with one step.
        every = 1 if fitting else ceil((step + trip) / (timeout + trip))
        total += worth * (1 - exp(-max(1, fitting) / worth)) / every
    return total / (timeout + trip)


@pytest.mark.parametrize("trip", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("steps", [[1.0, 2.0, 4.0], [1.0, 1.0, 7.0], [4.0, 2.0, 4 / 3, 1.0], [1.0, 1.1, 1.2, 40.0]])
@pytest.mark.parametrize("labels", ["server", "shared"])
def test_the_best_of_all_multiples(labels, steps, trip):
    """Both `labels` modes (c is 6 or 20): no multiple of any party's step is much better than the picked timeout."""
    worth = USEFUL_STEPS[labels]
    candidates = [step * n for step in steps for n in range(1, 65)]
    best = max(useful(timeout, steps, trip, worth) for timeout in candidates)
    picked = best_timeout(steps, trip, worth)
    assert any(picked == pytest.approx(timeout) for timeout in candidates)
    assert useful(picked, steps, trip, worth) > 0.97 * best


@BOTH
def test_one_that_is_500_times_slower_does_not_dictate(labels):
    """Both `labels` modes: three parties of 1 s and one of 500 s get the timeout of the three."""
    worth = USEFUL_STEPS[labels]
    alone = best_timeout([1.0] * 3, 10.0, worth)
    assert alone <= best_timeout([1.0, 1.0, 1.0, 500.0], 10.0, worth) <= 1.5 * alone < 64


def test_the_current_one_stays_unless_another_is_a_tenth_better():
    """c = 6 (labels = "server"): T = 8 s is the best, 7 s and 12 s nearly as good; 1 s (0.084) and 40 s are not."""
    for current in (5.0, 7.0, 12.0):
        assert best_timeout([1.0], 10.0, 6.0, current) == current
    for current in (1.0, 40.0):
        assert best_timeout([1.0], 10.0, 6.0, current) == 8.0


def test_steps_that_fit():
    """No labels involved: rounding does not cost a step, and one is the least."""
    assert [steps_within(20.0, step) for step in (4.0, 2.0, 20 / 15, 1.0, 20.0)] == [5, 10, 15, 20, 1]
    assert steps_within(0.3, 0.1) == 3 and steps_within(1.0, 3.0) == 1 and steps_within(5.0, 0.0) == 1


# In the simulator


def tables(labels, compute, updates=20, latency_s=0.05, name="flex"):
    link = {"latency_s": latency_s, "bandwidth_mbps": float("inf")}
    return {
        "protocol": {"name": name, "labels": labels},
        "model": {"party": "linear", "embedding": 3, "server": "linear"},
        "clock": {
            "compute": compute,
            "network": link,
            "server": {"compute": {"mean_s": 0.01}, "network": link | {"latency_s": 0.0}},
        },
        "train": {"updates": updates, "learning_rate": 0.01, "eval_every": 1000, "batch_size": 48},
    }


def timeouts(run, party="party-1"):
    """The server's messages to a party: (seconds, timeout_s, limit, scale)."""
    return [
        (time / NANOSECONDS, event.message.timeout_s, event.message.limit, event.message.scale)
        for time, role, event in run.events
        if role == party and isinstance(event, Received) and isinstance(event.message, BeginPhase)
    ]


@BOTH
@pytest.mark.parametrize("name", ["flex", "adaptive-flex", "sync-min", "sync-max"])
def test_speeds_are_measured_first(name, labels, simulate):
    """Both `labels` modes: first a phase of four steps, no bell and no learning; then the rule's timeout for them."""
    steps = [0.01, 0.02, 0.03, 0.04]
    run = simulate(tables(labels, [{"mean_s": step} for step in steps], 6, name=name))
    (_, first, limit, scale), *rest = timeouts(run)
    assert (first, limit, scale) == (0.0, 4, 0.0)
    picked = best_timeout(steps, 0.1, USEFUL_STEPS[labels])
    if name == "sync-max":
        assert {(timeout, limit) for _, timeout, limit, _ in rest} == {(0.0, round(picked / 0.01))}
    else:
        assert [timeout for _, timeout, _, _ in rest] == pytest.approx([picked] * len(rest))
    assert run.server.summary()["method"]["timeout_s"] == pytest.approx(picked)
    measured = [event.message for _, role, event in run.events
                if role == "server" and isinstance(event, Received) and isinstance(event.message, Ready)
                and event.message.phase == 1]  # fmt: skip
    assert [(message.steps, round(message.step_s, 9)) for message in measured] == [(4, step) for step in steps]
    assert run.server.k == 6


@BOTH
def test_steps_of_adam_are_useful_once(labels, simulate):
    """Both `labels` modes: three of 10 ms, one of 100 ms; Adam's T is near the quick parties' step, a set key wins."""
    compute = [{"mean_s": 0.01}] * 3 + [{"mean_s": 0.1}]

    def picked(**more):
        made = tables(labels, compute, 3, latency_s=0.005)
        made["protocol"] |= more.pop("protocol", {})
        made["train"] |= more
        return simulate(made).server.summary()["method"]["timeout_s"]

    assert picked(optimiser="adam") == pytest.approx(0.01) == best_timeout([0.01] * 3, 0.01, USEFUL_NORMALISED[labels])
    plain = picked()
    assert plain == pytest.approx(best_timeout([0.01] * 3 + [0.1], 0.01, USEFUL_STEPS[labels])) and plain > 0.03
    of_one = {"server": "sgd", "party": ["sgd", "sgd", "adam", "sgd"]}
    assert picked(optimiser=of_one) == pytest.approx(0.01), "one party's steps are enough"
    assert picked(optimiser="adam", protocol={"useful_steps": USEFUL_STEPS[labels]}) == plain


@BOTH
def test_picked_again_when_all_parties_slow_down(labels, simulate):
    """Both `labels` modes: after 10 s all parties slow down tenfold, and the timeout ends near the new best."""
    trace = {"kind": "trace", "mean_s": 0.02, "cpu": [0] + [90] * 500, "interval_s": 10.0}
    run = simulate(tables(labels, trace, 60))
    worth = USEFUL_STEPS[labels]
    before, after = (best_timeout([step] * 4, 0.1, worth) for step in (0.02, 0.2))
    assert after > 1.5 * before, "the case is about two different ones"
    said = [timeout for seconds, timeout, _, scale in timeouts(run) if scale and seconds < 10]
    assert len(said) > 10 and said == pytest.approx([before] * len(said)), "not before there is a reason"
    last = timeouts(run)[-1][1]
    assert timeouts(run)[-1][0] > 15.0
    assert last > 1.5 * before
    assert last == pytest.approx(0.2 * round(last / 0.2), rel=0.01), "a multiple of the new step, as far as measured"
    assert useful(last * 1.01, [0.2] * 4, 0.1, worth) > 0.9 * useful(after, [0.2] * 4, 0.1, worth)


@BOTH
def test_kept_when_speeds_hardly_change(labels, simulate):
    """Both `labels` modes: machines of different speeds that alternate between idle and 4 % busy."""
    trace = {"kind": "trace", "cpu": [0, 4], "interval_s": 0.5}
    run = simulate(tables(labels, [trace | {"mean_s": mean_s} for mean_s in (0.02, 0.023, 0.027, 0.031)], 60))
    said = {timeout for _, timeout, _, scale in timeouts(run) if scale}
    assert len(said) == 1
    taken = {event.message.step_s for _, role, event in run.events
             if role == "server" and isinstance(event, Received) and isinstance(event.message, Ready)}  # fmt: skip
    assert len(taken) > 5, "their speeds did change"


@BOTH
def test_a_party_500_times_slower_takes_part_when_it_can(labels, simulate):
    """Both `labels` modes: 10 ms and 5 s; the timeout suits the quick parties, which do not wait."""
    run = simulate(tables(labels, [{"mean_s": 0.01}] * 3 + [{"mean_s": 5.0}], 100))
    assert run.status == "finished"
    said = [timeout for _, timeout, _, scale in timeouts(run) if scale]
    assert len(said) == 100 and max(said) < 1.0, "below a fifth of the slow one's step"
    assert max(said) <= 1.5 * best_timeout([0.01] * 3, 0.1, USEFUL_STEPS[labels]) + 1e-9
    slow, quick = run.roles["party-4"], run.roles["party-1"]
    assert slow.state.late > 0 and slow.network.steps < 20 < quick.network.steps
    times = [seconds for seconds, _, _, scale in timeouts(run) if scale]
    assert np.diff(times)[1:] == pytest.approx([said[1] + 0.1] * 98, abs=1e-6), "no round waits for it"
