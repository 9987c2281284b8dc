"""Compute times: each model's distribution, the CPU load by hand, and everything that is refused."""

from collections.abc import Callable
from math import exp, inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.drivers.simulator.clock import ClockConfig, Compute, Fault, Link, Pace, ServerClock
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS

DRAWS = 20_000


def pace(seed: int = 0, **fields: Any) -> Pace:
    return Pace(Compute(**fields), np.random.Generator(np.random.PCG64(seed)))


def draw(amount: float = 1.0, **fields: Any) -> np.ndarray:
    """Many durations in seconds."""
    drawn = pace(**fields)
    return np.array([drawn.duration(amount, 0) for _ in range(DRAWS)]) / NANOSECONDS


def assert_moments(values: np.ndarray, mean: float, variance: float) -> None:
    """Within about five standard errors."""
    assert values.mean() == pytest.approx(mean, abs=5 * (variance / len(values)) ** 0.5 + 1e-9)
    assert values.var() == pytest.approx(variance, rel=0.15, abs=1e-12)


def test_fixed_is_fixed_and_draws_nothing() -> None:
    fixed = pace(kind="fixed", mean_s=0.25)
    assert [fixed.duration(amount, 7) for amount in (1, 2, 0.5)] == [250_000_000, 500_000_000, 125_000_000]
    assert fixed.generator.random() == np.random.default_rng(0).random()


def test_exponential() -> None:
    values = draw(kind="exponential", mean_s=0.2)
    assert_moments(values, 0.2, 0.2**2)
    assert np.median(values) == pytest.approx(0.2 * np.log(2), rel=0.05)


@pytest.mark.parametrize(("m", "parties"), [(1, 4), (4, 4), (3, 8)])
def test_poisson_of_vafl(m: int, parties: int) -> None:
    """Sec. 4: party m computes for Poisson(2m)/2M seconds."""
    unit = 1 / (2 * parties)
    values = draw(kind="poisson", mean_s=m / parties, unit_s=unit)
    assert_moments(values, m / parties, 2 * m * unit**2)
    counts = values / unit
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-6)
    assert np.mean(counts == 0) == pytest.approx(exp(-2 * m), abs=0.015)


DRAWN_ALONE: dict[str, Callable[[np.random.Generator], float]] = {
    "exponential": lambda generator: generator.exponential(0.2),
    "poisson": lambda generator: generator.poisson(0.2 / 0.05) * 0.05,
    "lognormal": lambda generator: 0.2 * float(np.exp(0.5 * generator.standard_normal() - 0.5**2 / 2)),
}


@pytest.mark.parametrize("kind", DRAWN_ALONE)
@pytest.mark.parametrize("looks_every", [1, 7, 64, 1000])
def test_draws_in_advance_are_those_drawn_one_by_one(kind: str, looks_every: int) -> None:
    """Also the generator of a checkpoint: it is in the state after the draws that were used."""
    ahead = pace(seed=3, kind=kind, mean_s=0.2, unit_s=0.05)
    alone = np.random.Generator(np.random.PCG64(3))
    for number in range(1, 300):
        assert ahead.duration(1.5, 0) == round(DRAWN_ALONE[kind](alone) * 1.5 * NANOSECONDS)
        if number % looks_every == 0:
            assert ahead.generator.bit_generator.state == alone.bit_generator.state
    again = pace(seed=4, kind=kind, mean_s=0.2, unit_s=0.05)
    again.duration(1.0, 0)
    again.generator = ahead.generator
    assert again.duration(1.0, 0) == round(DRAWN_ALONE[kind](alone) * NANOSECONDS)


def test_lognormal_keeps_its_mean() -> None:
    values = draw(kind="lognormal", mean_s=0.1, sigma=0.5)
    assert_moments(values, 0.1, 0.1**2 * (exp(0.25) - 1))
    assert np.log(values).std() == pytest.approx(0.5, rel=0.03)


def test_lognormal_without_spread_is_fixed() -> None:
    np.testing.assert_array_equal(draw(kind="lognormal", mean_s=0.1, sigma=0.0), np.full(DRAWS, 0.1))


@pytest.mark.parametrize("kind", ["fixed", "exponential", "poisson", "lognormal"])
def test_the_amount_scales_one_draw(kind: str) -> None:
    fields = {"kind": kind, "mean_s": 0.5, "unit_s": 0.125}
    whole, half = pace(**fields), pace(**fields)
    for _ in range(20):
        assert half.duration(0.5, 0) == pytest.approx(whole.duration(1.0, 0) / 2, abs=1)


@pytest.mark.parametrize("kind", ["fixed", "exponential", "poisson", "lognormal", "trace"])
def test_no_work_takes_no_time_and_no_draw(kind: str) -> None:
    idle = pace(kind=kind, mean_s=0.5, unit_s=0.125, cpu=[50.0])
    assert idle.duration(0.0, 3) == 0
    assert idle.generator.random() == np.random.default_rng(0).random()


def seconds(duration: int) -> float:
    return duration / NANOSECONDS


def test_cpu_load_within_one_interval() -> None:
    """At half speed 2 s of work take 4 s."""
    loaded = pace(kind="trace", mean_s=2.0, cpu=[50.0, 0.0], interval_s=10.0)
    assert seconds(loaded.duration(1.0, 0)) == 4.0
    assert seconds(loaded.duration(2.0, 0)) == 8.0


def test_cpu_load_over_intervals_by_hand() -> None:
    """From t = 8: 2 s at 0.5 do 1 s of work, 10 s at 0.2 do 2 s, the last 1.5 s run at full speed."""
    loaded = pace(kind="trace", mean_s=4.5, cpu=[50.0, 80.0, 0.0], interval_s=10.0)
    assert seconds(loaded.duration(1.0, 8 * NANOSECONDS)) == pytest.approx(2 + 10 + 1.5)


def test_cpu_load_wraps_around() -> None:
    """From t = 28: 2 s at full speed do 2 s, then the load repeats at 0.5: 1 s more takes 2 s."""
    loaded = pace(kind="trace", mean_s=3.0, cpu=[50.0, 80.0, 0.0], interval_s=10.0)
    assert seconds(loaded.duration(1.0, 28 * NANOSECONDS)) == pytest.approx(2 + 2)
    assert loaded.load_s == 30.0
    later = pace(kind="trace", mean_s=3.0, cpu=[50.0, 80.0, 0.0], interval_s=10.0)
    assert seconds(later.duration(1.0, 58 * NANOSECONDS)) == pytest.approx(4)


def test_a_fully_loaded_machine_still_moves() -> None:
    assert seconds(pace(kind="trace", mean_s=1.0, cpu=[100.0], interval_s=1e6).duration(1.0, 0)) == pytest.approx(100)


@pytest.mark.parametrize("interval", [0.1, 0.3, 1 / 3, 0.7, 1e-3])
def test_cpu_load_whose_interval_is_no_binary_fraction_ends(interval: float) -> None:
    """10·0.1 // 0.1 is 9 in floating point; the sum over intervals must not stand still there."""
    loaded = pace(kind="trace", mean_s=1.0, cpu=[0.0, 50.0], interval_s=interval)
    for start in range(20):
        taken = seconds(loaded.duration(3.0, round(start * interval * NANOSECONDS)))
        assert 3.0 / 0.75 - interval <= taken <= 3.0 / 0.75 + interval


def test_cpu_load_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text("# time, utilisation\n0,50\n10,80\n20,0\n")
    compute = Compute(kind="trace", mean_s=4.5, file=str(file), interval_s=10.0)
    ClockConfig(compute=compute).check(("a",))
    loaded = Pace(compute, np.random.default_rng(0))
    assert seconds(loaded.duration(1.0, 8 * NANOSECONDS)) == pytest.approx(13.5)


def test_one_for_all_or_a_list() -> None:
    slow, fast = Compute(mean_s=2.0), Compute(mean_s=1.0)
    near, far = Link(latency_s=0.0), Link(latency_s=1.0)
    listed = ClockConfig(compute=[slow, fast], network=[near, far])
    listed.check(("a", "b"))
    assert [listed.compute_of(1), listed.link_of(1)] == [fast, far]
    shared = ClockConfig(compute=slow, network=far)
    assert [shared.compute_of(1), shared.link_of(0)] == [slow, far]


def with_compute(**fields: Any) -> ClockConfig:
    return ClockConfig(compute=Compute(**fields))


def with_fault(**fields: Any) -> ClockConfig:
    ordinary = {"party": "a", "kind": "crash", "at_s": 1.0}
    return ClockConfig(faults=[Fault("b", "offline", 0.0, 1.0), Fault(**{**ordinary, **fields})])


REFUSED: list[tuple[str, Callable[[], ClockConfig]]] = [
    ("clock.compute.mean_s", lambda: with_compute(mean_s=-1.0)),
    ("clock.compute.mean_s", lambda: with_compute(mean_s=inf)),
    ("clock.compute.mean_s", lambda: with_compute(mean_s=nan)),
    ("clock.compute.sigma", lambda: with_compute(kind="lognormal", sigma=-0.1)),
    ("clock.compute.sigma", lambda: with_compute(kind="lognormal", sigma=nan)),
    ("clock.compute.unit_s", lambda: with_compute(kind="poisson")),
    ("clock.compute.unit_s", lambda: with_compute(kind="poisson", unit_s=0.0)),
    ("clock.compute.unit_s", lambda: with_compute(kind="poisson", unit_s=inf)),
    ("clock.compute.cpu", lambda: with_compute(kind="trace")),
    ("clock.compute.cpu", lambda: with_compute(kind="trace", cpu=[1.0], file="cpu.csv")),
    ("clock.compute.cpu", lambda: with_compute(kind="trace", cpu=[-1.0])),
    ("clock.compute.cpu", lambda: with_compute(kind="trace", cpu=[50.0, 101.0])),
    ("clock.compute.cpu", lambda: with_compute(kind="trace", cpu=[nan])),
    ("clock.compute.cpu", lambda: with_compute(kind="trace", cpu=[])),
    ("clock.compute.interval_s", lambda: with_compute(kind="trace", cpu=[1.0], interval_s=0.0)),
    ("clock.compute.interval_s", lambda: with_compute(kind="trace", cpu=[1.0], interval_s=inf)),
    ("clock.compute.file", lambda: with_compute(kind="trace", file="/nowhere/cpu.csv")),
    ("clock.compute", lambda: ClockConfig(compute=[Compute()])),
    ("clock.compute[1].mean_s", lambda: ClockConfig(compute=[Compute(), Compute(mean_s=-1.0)])),
    ("clock.network", lambda: ClockConfig(network=[Link()] * 3)),
    ("clock.network.latency_s", lambda: ClockConfig(network=Link(latency_s=-0.1))),
    ("clock.network.latency_s", lambda: ClockConfig(network=Link(latency_s=inf))),
    ("clock.network[0].bandwidth_mbps", lambda: ClockConfig(network=[Link(bandwidth_mbps=0.0), Link()])),
    ("clock.network.bandwidth_mbps", lambda: ClockConfig(network=Link(bandwidth_mbps=nan))),
    ("clock.server.compute.mean_s", lambda: ClockConfig(server=ServerClock(compute=Compute(mean_s=-1.0)))),
    ("clock.server.network.latency_s", lambda: ClockConfig(server=ServerClock(network=Link(latency_s=-1.0)))),
    ("clock.faults[1].party", lambda: with_fault(party="c")),
    ("clock.faults[1].at_s", lambda: with_fault(at_s=-1.0)),
    ("clock.faults[1].at_s", lambda: with_fault(at_s=inf)),
    ("clock.faults[1].at_s", lambda: with_fault(at_s=2.0, until_s=2.0)),
    ("clock.faults[1].at_s", lambda: with_fault(until_s=nan)),
    ("clock.faults[1].rate", lambda: with_fault(kind="loss")),
    ("clock.faults[1].rate", lambda: with_fault(kind="loss", rate=1.0)),
    ("clock.faults[1].rate", lambda: with_fault(kind="duplicate", rate=-0.5)),
    ("clock.lost_after_s", lambda: ClockConfig(lost_after_s=-1.0)),
    ("clock.lost_after_s", lambda: ClockConfig(lost_after_s=inf)),
]


@pytest.mark.parametrize(("key", "make"), REFUSED, ids=[f"{index}-{key}" for index, (key, _) in enumerate(REFUSED)])
def test_what_cannot_be_is_refused_by_its_key(key: str, make: Callable[[], ClockConfig]) -> None:
    with pytest.raises(ConfigError) as caught:
        make().check(("a", "b"))
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key} = ")


@pytest.mark.parametrize("content", ["0,50\n10\n", "0,fifty\n", "0,fifty\n10,50\n"])
def test_files_that_are_no_cpu_loads_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        with_compute(kind="trace", file=str(file)).check(("a",))
    assert caught.value.key == "clock.compute.file"


def test_an_empty_cpu_load_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cpu.csv"
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError) as caught:
        with_compute(kind="trace", file=str(file)).check(("a",))
    assert caught.value.key.startswith("clock.compute.")


def test_the_ordinary_is_accepted() -> None:
    every = ("crash", "offline", "loss", "duplicate", "late")
    faults = [Fault(party, kind, 1.0, 2.0, 0.5) for party in ("a", "server") for kind in every]
    ClockConfig(faults=faults, network=Link(latency_s=0.0, bandwidth_mbps=inf)).check(("a", "b"))
