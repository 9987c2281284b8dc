"""report.html: one self-contained file with the charts, the winners and the commands behind it."""

import base64
import gzip
import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from colonnade.algorithms import METHODS
from colonnade.algorithms.exposure import LOSSES
from colonnade.experiments.compare import compare, contestants, entries_of, race
from colonnade.protocol.errors import ConfigError
from colonnade.report.figures import curve
from colonnade.report.page import write_report

CURVES = ["value-clock_s", "target", "loss-clock_s"]
CURVES += [f"{value}-{against}" for against in ("update", "megabytes") for value in ("value", "loss")]
COSTS = ["utilisation", "bytes"]


class Page(HTMLParser):
    """Everything that a browser would fetch, the charts' places and the text; script contents count as text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str | None] = []
        self.tags: list[str] = []
        self.charts: list[str | None] = []
        self.buttons: list[str | None] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "data", "srcset", "action")]
        found = dict(attrs)
        if found.get("class") == "chart":
            self.charts.append(found["id"])
        if tag == "button" and "value" in found:
            self.buttons.append(found["value"])

    def handle_data(self, data: str) -> None:
        self.text += data

    def figures(self) -> dict[str, Any]:
        found = re.search(r'id="figures">(.*?)</script>', self.source, re.DOTALL)
        assert found is not None
        content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
        return content


@pytest.fixture(scope="session", name="race")
def race_page(folders: Path) -> Page:
    return Page(write_report(folders / "race"))


@pytest.mark.parametrize(("folder", "labels"), [("run", ["swift"]), ("race", ["sync", "ahead<1>"])])
def test_one_self_contained_file(folder: str, labels: list[str], folders: Path) -> None:
    before = set((folders / folder).rglob("*"))
    path = write_report(folders / folder)
    assert set((folders / folder).rglob("*")) - before <= {path} == {folders / folder / "report.html"}
    page = Page(path)
    assert page.fetched == [], "nothing is loaded from anywhere"
    assert not {"link", "iframe", "img", "object", "embed", "form", "a"} & set(page.tags)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page.source.replace("// ", "")), "no address anywhere"
    assert "default-src 'none'" in page.source, "and the browser would refuse"
    assert page.buttons == labels
    assert all(label in page.text for label in labels)


def test_a_race_has_all_charts(race: Page) -> None:
    lanes = ["timeline-0", "timeline-1", "staleness", "staleness-1"]
    assert race.charts == [*CURVES, *COSTS, *lanes]
    assert list(race.figures()) == race.charts
    named = {trace.get("name") for trace in race.figures()["value-clock_s"]["data"]}
    assert {"sync", "ahead<1>"} <= named
    assert "accuracy against the clock" in race.text
    assert "loss against data sent" in race.text
    assert "Never stale: sync." in race.text


def test_an_oracle_is_a_level(race: Page) -> None:
    texts = [annotation["text"] for annotation in race.figures()["value-clock_s"]["layout"]["annotations"]]
    assert texts == ["centralised", "target 0.3"]


def test_it_says_how_it_was_made(race: Page, folders: Path) -> None:
    assert "colonnade compare race.toml --protocols 'sync,ahead<1>' --seeds 2" in race.text
    assert (folders / "race" / "sync-seed0" / "config.toml").read_text() in race.text
    assert "Made from Python, without a command." in Page(write_report(folders / "run")).text


def test_winners_are_marked_and_named(race: Page) -> None:
    assert race.source.count('class="best"') >= 2
    assert re.search(r"[Bb]est accuracy: (sync|ahead<1>)( and ahead<1>)? \(0\.\d{4}\)", race.text)


def test_it_says_what_the_race_is_about(folders: Path, tmp_path: Path) -> None:
    tables = {
        "data": {"source": "digits", "parties": 3},
        "model": {"party": "linear", "embedding": 4},
        "clock": {"compute": [{"mean_s": 0.02}, {"mean_s": 0.2}, {"mean_s": 0.025}]},
        "train": {"updates": 2, "eval_every": 1, "target": 0.3},
    }
    race(entries_of(contestants(tables, ["sync", "cascaded", "vafl"]), 1), tmp_path / "race", about="A < question.")
    page = Page(write_report(tmp_path / "race"))
    assert "<p>A &lt; question.</p>" in page.source
    assert "A step of a party takes 0.02 s on average; 10 times as long for party-2." in page.text
    assert "The target is accuracy 0.3 on the validation rows. The clock is virtual: " in page.text
    assert "s to 0.3: seconds of the clock until the accuracy of the validation rows was first 0.3." in page.text
    assert "MB: megabytes sent, both ways." in page.text
    groups = page.source.partition("</table>")[0].split("<tr class='group'><th colspan='7'>")[1:]
    assert [re.findall(r"<tr><td>([\w-]+)<br>", group) for group in groups] == [["sync", "vafl"], ["cascaded"]]
    assert groups[0].startswith(escape(METHODS["sync"].exposes)) and groups[1].startswith(escape(LOSSES))
    assert all(METHODS[name].summary in page.text for name in ("sync", "cascaded", "vafl"))
    assert "A step of a party" in Page(write_report(folders / "run")).text, "of a run alone, too"


def test_the_first_view_is_where_most_methods_learn() -> None:
    seconds = range(101)
    fast = [{"clock_s": second, "value": min(0.9, 0.1 * second)} for second in seconds]
    slow = [{"clock_s": second, "value": 0.9 * second / 100} for second in seconds]
    drawn = curve({"a": [fast], "b": [fast], "c": [fast], "late": [slow]}, "accuracy", target=0.8)
    assert drawn.layout.xaxis.range == (0, pytest.approx(1.5 * 29.25)), "the quartile of 9, 9, 9 and 90 s, and room"
    low, high = drawn.layout.yaxis.range
    assert 0.2 < low < 0.8 < 0.9 < high < 1
    falling = [{"clock_s": row["clock_s"], "loss": 1 - row["value"]} for row in fast]
    low, high = curve({"a": [falling], "b": [falling]}, "loss", value="loss").layout.yaxis.range
    assert low < 0.1 < high < 0.9
    assert curve({"a": [fast]}, "accuracy").layout.xaxis.range is None, "one alone is shown whole"


def test_a_single_run_has_no_race(folders: Path) -> None:
    page = Page(write_report(folders / "run"))
    assert page.charts == [*CURVES, *COSTS, "timeline-0", "staleness", "staleness-0"]
    assert 'class="best"' not in page.source
    assert "fewest bytes" not in page.text


def test_a_large_race_is_under_five_megabytes(large_race: Path) -> None:
    heard: list[float] = []
    path = write_report(large_race, lambda text, done: heard.append(done))
    assert path.stat().st_size < 3_500_000
    assert len(Page(path).charts) == len(CURVES) + len(COSTS) + 8 + 1 + 8
    assert heard == sorted(heard)
    assert (heard[0], heard[-1]) == (0, 1)


def test_folders_without_pictures_of_their_own_are_read_too(large_race: Path, tmp_path: Path) -> None:
    source = large_race / "method-0-seed0"
    for name in ("config.toml", "metrics.jsonl", "summary.json"):
        (tmp_path / name).write_text((source / name).read_text())
    assert Page(write_report(tmp_path)).charts == [*CURVES, *COSTS, "staleness", "staleness-0"]


def test_a_report_can_be_written_again(folders: Path) -> None:
    first = write_report(folders / "run").read_bytes()
    assert write_report(folders / "run").read_bytes() == first


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DIR = '.*': holds no finished run, comparison or attack"):
        write_report(tmp_path)


def test_what_is_no_result_is_struck_out_explained_and_wins_nothing(tmp_path: Path) -> None:
    tables = {
        "data": {"source": "digits", "parties": 2},
        "model": {"party": "linear", "embedding": 4},
        "train": {"updates": 20, "eval_every": 2, "target": 0.05},
        "methods": {
            "wild": {"protocol.name": "vafl", "train.learning_rate": 300.0},
            "wild oracle": {"protocol.name": "centralised", "train.learning_rate": 1e20},
        },
    }
    compare(tables, ["wild", "wild oracle", "sync", "vafl"], 1, tmp_path / "race")
    page = Page(write_report(tmp_path / "race"))
    wild = re.search(r"<tr><td>wild <em>\(diverged\)</em><br>.*?</td>(.*?)</tr>", page.source)
    assert wild is not None and re.fullmatch(r"(<td><s>([\d.]+|–)</s></td>)+", wild[1]), (
        "every number is struck out, none is best"
    )
    assert re.search(
        r"wild, seed 0diverged at update \d+; its validation metric and loss are those of update \d+", page.text
    )
    assert "lower train.learning_rate" in page.text
    praise = re.search(r"<strong>(.*?)</strong>", page.source)
    assert praise is not None and "best accuracy" in praise[1].lower() and "wild" not in praise[1]
    assert re.search(r"<td>diverged</td><td><s>", page.source), "the table of all runs"
    figures = page.figures()
    assert any("(diverged)" in text for trace in figures["target"]["data"] for text in trace.get("text", []))
    levels = [note["text"] for note in figures["value-clock_s"]["layout"]["annotations"]]
    assert levels == ["target 0.05"], "an oracle that failed is no level to compare with"


def test_it_says_what_each_method_reveals_with_its_settings(tmp_path: Path) -> None:
    tables = {
        "data": {"source": "digits", "parties": 2},
        "model": {"party": "linear", "embedding": 4},
        "protocol": {"name": "flex", "timeout_s": 0.05},
        "train": {"updates": 2, "eval_every": 1, "learning_rate": 0.01},
        "methods": {"told": {"protocol.name": "flex", "protocol.labels": "shared"}},
    }
    compare(tables, ["flex", "told"], 1, tmp_path / "race")
    text = Page(write_report(tmp_path / "race")).text
    assert "What it reveals" in text
    flex, shared = text.partition("What it reveals")[2].split("told", 1)
    assert "gradient of its own block" in flex and "the labels themselves" not in flex
    assert "the labels themselves" in shared
