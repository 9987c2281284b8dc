"""Figures against settings, over rounds, and of speeds: made from numbers that can be checked by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments.compare import entries_of, race
from colonnade.experiments.sweep import grid_contestants, parse_grid
from colonnade.protocol.errors import ConfigError
from colonnade.report.page import write_report
from colonnade.report.records import Record, by_label, load_records
from colonnade.report.rounds import has_rounds, has_speeds, rates, speeds, steps, uneven_speeds
from colonnade.report.sections import sections
from colonnade.report.settings import metric_against, time_against, varied


def record(label: str, settings: str, value: float | None, time: float | None = None, **more: Any) -> Record:
    summary: Any = {
        "protocol": label.partition(" ")[0], "status": "finished" if value is not None else "diverged", "value": value,
        "time_to_target_s": time, "metric": "accuracy", "target": 0.9, "seed": 0, "warnings": [],
        "utilisation": {"server": 0.1, "a": 0.5, "b": 1.0},
    }  # fmt: skip
    return Record(label, summary, config=settings, **{"rows": [], **more})


def rate(value: float, noise: str = "") -> str:
    return f"[train]\nlearning_rate = {value}\nseed = {int(value * 100)}\nmomentum = true\n{noise}"


def test_what_differs_between_runs_of_one_method_is_a_setting() -> None:
    runs = [record("sync 1", rate(0.1), 0.8), record("sync 2", rate(0.3), 0.9), record("vafl", rate(0.5), 0.7)]
    (found,) = varied(by_label(runs))  # the seed is not one, and neither is a word or a truth value
    assert (found.key, found.lines) == ("train.learning_rate", {"sync": [(0.1, "sync 1"), (0.3, "sync 2")]})
    assert varied(by_label(runs[1:])) == []
    assert varied(by_label([record("sync", "not = [toml", 0.8), record("sync 2", rate(0.3), 0.9)])) == []


def test_other_settings_are_other_lines() -> None:
    runs = [
        record(f"flex {timeout} {latency}", f"[a]\ntimeout = {timeout}\n[b.c]\nlatency = {latency}\n", 0.5)
        for timeout in (1, 2)
        for latency in (0.1, 0.2)
    ]
    by_timeout, by_latency = varied(by_label(runs))
    assert [by_timeout.key, by_latency.key] == ["a.timeout", "b.c.latency"]
    assert list(by_timeout.lines) == ["flex, latency 0.1", "flex, latency 0.2"]
    assert by_latency.lines["flex, timeout 2"] == [(0.1, "flex 2 0.1"), (0.2, "flex 2 0.2")]


def test_the_metric_and_the_time_against_a_rate() -> None:
    runs = [record("sync 1", rate(0.01), 0.4), record("sync 1", rate(0.01), 0.6)]
    runs += [record("sync 2", rate(0.1), 0.9, 2.0), record("sync 2", rate(0.1), 0.7), record("sync 3", rate(1), None)]
    groups = by_label(runs)
    (setting,) = varied(groups)
    metric, time = metric_against(groups, setting), time_against(groups, setting)
    (line,) = metric.data
    assert (list(line.x), list(line.y)) == ([0.01, 0.1], [pytest.approx(0.5), pytest.approx(0.8)])
    assert line.error_y.array[0] == pytest.approx(np.std([0.4, 0.6], ddof=1))
    assert metric.layout.xaxis.type == "log" and metric.layout.xaxis.ticktext == ("0.01", "0.1", "1")
    low, high = metric.layout.xaxis.range
    assert low < -2 and high > 0  # the value without a result is on the axis, too
    (line,) = time.data
    assert (list(line.x), list(line.y), list(line.marker.symbol)) == ([0.1], [2.0], ["circle-open"])
    assert "1 of 2 seeds" in line.text[0]
    assert time.layout.yaxis.title.text == "clock to accuracy 0.9 (s)"


def test_a_point_with_a_warning_is_a_cross() -> None:
    bad = record("sync 1", rate(0.1), 0.4)
    bad.summary["warnings"] = ["the loss is worse than before training"]
    groups = by_label([bad, record("sync 2", rate(0.2), 0.5)])
    (line,) = metric_against(groups, varied(groups)[0]).data
    assert list(line.marker.symbol) == ["x", "circle"]


def test_steps_and_rates_are_drawn_by_round() -> None:
    rows = [
        {"round": [], "tau": [], "eta": []},
        {
            "round": [0, 1],
            "round_clock_s": [0.1, 0.2],
            "tau": [[1, 6, 3], [6, 6, None]],
            "eta": [[1, 1, 2], [1, 1, None]],
        },
    ]
    run = record("flex", "", 0.9, rows=rows)
    assert has_rounds(run) and not has_rounds(record("flex", "", 0.9, rows=[{}]))
    figure = steps(run)
    assert [(one.name, list(one.x), list(one.y)) for one in figure.data] == [
        ("server", [0, 1], [1, 6]), ("a", [0, 1], [6, 6]), ("b", [0], [3]),
    ]  # fmt: skip
    assert list(rates(run).data[2].y) == [2]
    with pytest.raises(ConfigError, match="recorded no rounds: only flex and its relatives do"):
        steps(record("sync", "", 0.9))


def test_speeds_are_work_by_time_in_wider_bins() -> None:
    bins = 120  # two of them make one bin of the figure
    batches = [[9.0] * bins, [1.0] * bins, [1.0, 0.0] * 30 + [0.0] * 60]
    seconds = [[1.0] * bins, [0.1] * bins, [0.5, 0.5] * 30 + [0.0] * 60]
    timeline = {"roles": ["server", "a", "b"], "speed": {"bin_s": 0.5, "batches": batches, "seconds": seconds}}
    run = record("vafl", "", 0.9, timeline=timeline)
    assert has_speeds(run) and not has_speeds(record("vafl", "", 0.9, timeline={"roles": ["server"]}))
    one, other = speeds(run).data
    assert (one.name, list(one.y), list(one.x[:2])) == ("a", [pytest.approx(10.0)] * 60, [0.5, 1.5])
    assert uneven_speeds(run)
    timeline["speed"]["batches"][2], timeline["speed"]["seconds"][2] = batches[1], seconds[1]
    assert not uneven_speeds(run) and not uneven_speeds(record("vafl", "", 0.9))
    assert (other.name, list(other.y)) == ("b", [pytest.approx(1.0)] * 30)
    with pytest.raises(ConfigError, match="has no speeds"):
        speeds(record("vafl", "", 0.9))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {
        "data": {"source": "digits", "parties": 2},
        "model": {"party": "linear", "embedding": 2},
        "clock": {"compute": [{"mean_s": 0.01}, {"mean_s": 0.03}]},
        "protocol": {"name": "flex"},
        "train": {"updates": 4, "eval_every": 2, "target": 0.1},
        "diagnose": {"training": True, "gradient": True},
    }
    out = tmp_path_factory.mktemp("reports") / "sweep"
    from_dict(tables)
    race(entries_of(grid_contestants(tables, ["flex"], parse_grid(["protocol.timeout_s=0.03,0.06"])), 1), out)
    return out


def test_the_page_of_a_real_sweep_has_all_of_them(sweep: Path) -> None:
    drawn = {chart.name: chart for section in sections(load_records(sweep)) for chart in section.charts}
    assert list(drawn["against-protocol.timeout_s"].figure.data[0].x) == [0.03, 0.06]
    assert "time-against-protocol.timeout_s" in drawn
    assert {"tau-0", "eta-1", "speed", "training_value-clock_s", "gradient_norm2-update"} <= set(drawn)
    assert max(drawn["tau-1"].figure.data[1].y) == 6  # 60 ms hold six steps of 10 ms
    np.testing.assert_allclose(drawn["speed"].figure.data[0].y, 100, rtol=0.01)
    assert drawn["gradient_norm2-update"].figure.layout.yaxis.type == "log"
    page = write_report(sweep).read_text()
    assert "accuracy against protocol.timeout_s" in page and "Speed of the parties" in page
