"""What the figures show, from numbers that can be checked by hand."""

from typing import Any

import numpy as np
import pytest

import colonnade
from colonnade.protocol.errors import ConfigError
from colonnade.report.bars import bytes_by_kind, time_to_target, utilisation
from colonnade.report.figures import PALETTE, curve
from colonnade.report.lanes import staleness_histogram, staleness_map, timeline
from colonnade.report.records import Record
from colonnade.report.sections import sections


def rows(*values: float | None) -> list[dict[str, Any]]:
    return [
        {"clock_s": float(place), "update": place, "value": value, "bytes_up": 10**6 * place, "bytes_down": 0}
        for place, value in enumerate(values)
    ]


def record(label: str = "vafl", **fields: Any) -> Record:
    given = {name: fields.pop(name) for name in ("rows", "timeline", "staleness") if name in fields}
    summary = {
        "status": "finished", "utilisation": {"server": 0.1, "a": 0.5, "b": 1.0}, "time_to_target_s": 2.0,
        "bytes_by_kind": {},
    }  # fmt: skip
    return Record(label, summary | fields, **{"rows": [], **given})


def test_a_curve_of_one_run_is_its_rows() -> None:
    figure = curve({"vafl": [rows(0.1, None, 0.4)]}, "accuracy")
    (line,) = figure.data
    assert (line.name, list(line.x), list(line.y)) == ("vafl", [0.0, 2.0], [0.1, 0.4])
    assert figure.layout.xaxis.title.text == "clock (s)"
    assert figure.layout.yaxis.title.text == "accuracy"
    assert list(curve({"vafl": [rows(0.1, 0.4)]}, "accuracy", "megabytes").data[0].x) == [0, 1]


def test_several_seeds_are_a_mean_and_a_band() -> None:
    figure = curve(
        {"sync": [rows(0.0, 1.0)], "vafl": [rows(0.0, 0.4), rows(0.2, 0.8)]}, "accuracy", "update", target=0.5
    )
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["sync", "vafl"]
    band, mean = figure.data[1], figure.data[2]
    assert (mean.y[0], mean.y[-1]) == (pytest.approx(0.1), pytest.approx(0.6))
    half = len(band.y) // 2
    np.testing.assert_allclose(band.y[:half] - np.array(mean.y), np.array(mean.y) - band.y[half:][::-1])
    assert band.y[0] - mean.y[0] == pytest.approx(0.1)
    assert [figure.data[0].line.color, mean.line.color] == list(PALETTE[:2])
    assert figure.layout.annotations[0].text == "target 0.5"


def test_a_run_without_any_value_still_draws() -> None:
    assert len(curve({"vafl": [[]]}, "accuracy").data) == 1


def test_a_long_run_is_thinned_and_keeps_its_ends() -> None:
    (line,) = curve({"vafl": [rows(*np.linspace(0, 1, 5000).tolist())]}, "accuracy").data
    assert len(line.x) == 400
    assert (line.x[0], line.x[-1]) == (0, 4999)


def test_a_timeline_fills_each_row_from_below() -> None:
    content = {"roles": ["server", "a"], "bin_s": 2.0, "end_s": 4.0}
    content |= {"busy": [[0.3, 0], [0, 1]], "transit": [[0.2, 0], [0, 0]], "offline": [[0, 1], [0, 0]]}
    figure = timeline(record(timeline=content))
    cells = np.array(figure.data[0].z, float).reshape(2, 11, 2)
    assert np.isnan(cells[:, 10]).all(), "a gap under each row"
    waiting, offline, transit, busy = 3, 2, 1, 0
    assert cells[0, :10, 0].tolist() == [waiting] * 5 + [transit] * 2 + [busy] * 3, "from the top to the bottom"
    assert set(cells[0, :10, 1]) == {offline}
    assert [set(cells[1, :10, bin]) for bin in (0, 1)] == [{waiting}, {busy}]
    assert list(figure.data[0].x) == [1, 3]
    assert figure.data[1].customdata[0].tolist() == [[30, 20, 0, 50], [0, 0, 100, 0]]
    assert figure.layout.yaxis.ticktext == ("server", "a")


def test_a_timeline_of_processes_has_no_transit_and_leaves_blank_what_is_not_known() -> None:
    content = {"roles": ["server", "a"], "bin_s": 2.0, "end_s": 4.0, "transit": None}
    content |= {"busy": [[0.3, 0], [0, 1]], "offline": [[0, 1], [0.2, 0]], "unknown": [[0, 0], [0.5, 0]]}
    figure = timeline(record(timeline=content))
    cells = np.array(figure.data[0].z, float).reshape(2, 11, 2)[:, :10]
    waiting, offline, busy = 2, 1, 0
    assert cells[0, :, 0].tolist() == [waiting] * 7 + [busy] * 3
    assert np.isnan(cells[1, :5, 0]).all() and cells[1, 5:, 0].tolist() == [waiting] * 3 + [offline] * 2
    assert figure.data[2].customdata[0].tolist() == [[0, 20, 30, 50], [100, 0, 0, 0]]
    legend = ["busy", "offline", "waiting or in transit", "not known"]
    assert [trace.name for trace in figure.data if trace.type == "scatter"] == legend
    assert len(figure.data[0].colorscale) == 2 * 3 and figure.data[0].zmax == 2


def test_a_run_without_a_timeline_says_why() -> None:
    with pytest.raises(ConfigError, match="the run has no timeline.json"):
        timeline(record())


def test_a_staleness_map_is_party_by_clock() -> None:
    ages = [(1, 5, [3.0, 0.5]), (2, 9, [4.0, 0.0]), (3, 9, [0.0, 0.0])]  # no update before the last one
    measured = [{"clock_s": float(at), "update": update, "staleness": age} for at, update, age in ages]
    (cells,) = staleness_map(record(rows=measured)).data
    assert (list(cells.x), list(cells.y)) == ([1.0, 2.0], ["a", "b"])
    assert np.array(cells.z).tolist() == [[3.0, 4.0], [0.5, 0.0]]


def test_histograms_of_seeds_are_added_in_the_wider_bins() -> None:
    fine, coarse = {"width": 1, "counts": [4, 2, 2]}, {"width": 2, "counts": [0, 8]}
    figure = staleness_histogram({"vafl": [record(staleness=fine), record(staleness=coarse)], "sync": [record("sync")]})
    (line,) = figure.data
    assert list(line.x) == [0, 2]
    assert list(line.y) == [6 / 16 / 2, 10 / 16 / 2]


def test_bars() -> None:
    groups = {"vafl": [record(), record(time_to_target_s=4.0)], "sync": [record("sync", time_to_target_s=None)]}
    figure = time_to_target(groups)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.x[0] for bar in bars] == [3.0, 0]
    assert bars[1].hovertext == ("not reached",)
    (partly,) = (
        bar for bar in time_to_target({"a": [record(), record(time_to_target_s=None)]}).data if bar.type == "bar"
    )
    assert partly.x[0] == 2.0 and partly.hovertext == ("2 s (1 of 2)",)
    assert [list(trace.y) for trace in utilisation(groups).data] == [[0.1, 0.5, 1.0]] * 2
    sent = {"vafl": [record(bytes_by_kind={"Up": 2 * 10**6, "Down": 10**6})], "sync": [record(bytes_by_kind={})]}
    assert {trace.name: list(trace.x) for trace in bytes_by_kind(sent).data} == {"Up": [2, 0], "Down": [1, 0]}


@pytest.fixture(scope="module")
def result() -> colonnade.Result:
    data = colonnade.split(colonnade.load("digits"), parties=2)
    return colonnade.train(data, "vafl", "linear", embedding=4, updates=20, eval_every=5)


@pytest.mark.parametrize(
    "what",
    ["clock_s", "update", "epochs", "megabytes", "loss", "timeline", "staleness", "ages", "utilisation", "bytes"],
)
def test_a_result_plots_the_same_figures(what: str, result: colonnade.Result) -> None:
    figure = result.plot(what)
    assert type(figure).__name__ == "Figure"
    assert len(figure.data) >= 1


def test_an_unknown_figure_is_refused(result: colonnade.Result) -> None:
    with pytest.raises(ConfigError, match="plot = 'timelin': choose one of clock_s, .*timeline"):
        result.plot("timelin")


def test_of_very_many_roles_the_first_are_shown_and_it_says_of_how_many() -> None:
    shares = {f"party-{index}": 0.5 for index in range(999)} | {"server": 1.0}
    lanes = np.zeros((1000, 2)).tolist()
    content = {"roles": list(shares), "bin_s": 1.0, "end_s": 2.0, "busy": lanes, "transit": lanes, "offline": lanes}
    fields = {"protocol": "vafl", "metric": "accuracy", "target": None, "value": 0.5, "loss": 1.0, "seed": 0}
    old = [{**rows(0.5)[0], "loss": 1.0, "update": 1, "staleness": [1.0] * 999}]
    one = record(
        rows=old, timeline=content, utilisation=shares, privacy=None, **fields,
        **{"staleness": {"width": 1, "counts": [1, 1]}},
    )  # fmt: skip
    one.summary["staleness"] = {"mean": 1.0, "p95": 1.0, "max": 1.0}
    found = list(sections([one]))
    said = [chart.title for section in found for chart in section.charts] + [section.text for section in found]
    assert "Busy share of the first 40 of 1,000 roles" in said
    assert sum("the first 60 of 1,000 roles" in text for text in said) == 1
    assert sum("the first 60 of 999 parties" in text for text in said) == 1
