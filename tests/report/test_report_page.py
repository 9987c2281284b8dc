"""report.html: one self-contained file with the curves of a run or of a comparison."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from colonnade.experiments.compare import compare
from colonnade.experiments.config import from_dict
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import ConfigError
from colonnade.report.figures import PALETTE, curve
from colonnade.report.page import write_report

TABLES = {
    "data": {"source": "digits", "parties": 2},
    "model": {"party": "linear", "embedding": 4},
    "train": {"updates": 8, "eval_every": 2, "target": 0.3},
    "methods": {"ahead<1>": {"protocol.name": "vafl", "protocol.extra_rows": 1}},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("reports")
    prepare(from_dict({key: value for key, value in TABLES.items() if key != "methods"}), out=path / "run").execute()
    compare(TABLES, ["sync", "ahead<1>"], 2, path / "race")
    return path


class Links(HTMLParser):
    """Whatever a browser would fetch; the inside of scripts is text to it."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "data", "srcset", "action")]

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize(("folder", "labels"), [("run", ["vafl"]), ("race", ["sync", "ahead<1>"])])
def test_one_self_contained_file(folder, labels, folders):
    before = set((folders / folder).rglob("*"))
    path = write_report(folders / folder)
    assert set((folders / folder).rglob("*")) - before <= {path} == {folders / folder / "report.html"}
    page = path.read_text(encoding="utf-8")
    links = Links()
    links.feed(page)
    assert links.fetched == [], "nothing is loaded from anywhere"
    assert "link" not in links.tags and "iframe" not in links.tags
    assert not re.search(r"<(script|link|img)[^>]*(src|href)\s*=", page)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", page.partition("<script")[0])
    assert page.count("Plotly.newPlot(") >= 2 and len(page) > 10**6, "plotly.js is inside"
    figures = page[page.rindex("Plotly.newPlot(") :]
    for label in labels:
        assert label.replace("<", "\\u003c").replace(">", "\\u003e") in figures or f'"name":"{label}"' in figures
    text = " ".join(links.text)
    assert all(label in text for label in labels)
    assert "accuracy against the clock" in text and "accuracy against bytes uploaded" in text
    assert "target 0.3" in page


def test_a_report_can_be_written_again(folders):
    assert write_report(folders / "run") == write_report(folders / "run")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"DIR = '.*': holds neither a finished run nor a comparison"):
        write_report(tmp_path)


def rows(*values):
    return [{"clock_s": float(place), "update": place, "value": value} for place, value in enumerate(values)]


def test_a_curve_of_one_run_is_its_rows():
    figure = curve({"vafl": [rows(0.1, None, 0.4)]}, "accuracy")
    (line,) = figure.data
    assert (line.name, list(line.x), list(line.y)) == ("vafl", [0.0, 2.0], [0.1, 0.4])
    assert figure.layout.xaxis.title.text == "clock (s)" and figure.layout.yaxis.title.text == "accuracy"


def test_several_seeds_are_a_mean_and_a_band():
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


def test_a_run_without_any_value_still_draws():
    assert len(curve({"vafl": [[]]}, "accuracy").data) == 1
