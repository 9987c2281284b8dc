"""An item run from the command line: results, resumption, book and figures."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.protocol.errors import DataError
from colonnade.reproduce import book, item
from colonnade.reproduce.chart import Line, Panel, draw
from colonnade.reproduce.conduct import Job
from colonnade.reproduce.result import read_result

DOCS = Path(__file__).parents[2] / "docs"
TINY = """
title = "A tiny race"
paper = "VAFL"
where = "Fig. 9"
claim = "c | d"
stand_in = "digits"

[base.data]
source = "digits"
parties = 2

[base.model]
party = "linear"
embedding = 10
server = "none"
aggregate = "sum"

[base.train]
batch_size = 256
optimiser = "sgd"
updates = 40
eval_every = 10
target = 0.5
until_target = true

[full]
seeds = 2

[[columns]]
name = "digits"
x = 1

[[columns]]
name = "MNIST"
data = "mnist"
x = 2
set = {"data.source" = "mnist", "data.dir" = "{data}"}

[[columns]]
name = "with a GPU"
gpu = true

[[rows]]
name = "vafl"
set = {"protocol.name" = "vafl"}
paper = {"digits" = 12, "MNIST" = 3}

[[rows]]
name = "sync"
set = {"protocol.name" = "sync"}
tune = false

[tune]
grid = {"train.learning_rate" = [0.001, 0.3]}
by = "metric"

[measure]
what = "updates_to_target"
name = "updates"
digits = 0

[figure]
kind = "curves"
x = "update"

[[checks]]
says = "few updates"
row = "vafl"
holds = "<= 40"
"""


@pytest.fixture
def tiny(monkeypatch):
    found = {"tiny": item.parse_item(TINY, "tiny")}
    monkeypatch.setattr(item, "items", lambda: found)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return found["tiny"]


def reproduce(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_from_the_command_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    listed = reproduce("--out", str(out))
    assert listed.exit_code == 0 and "not run" in listed.output
    done = reproduce("tiny", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert re.search(r"tiny: holds, in \d+ s \(\d+ s of processor time\)", done.output)
    assert "MNIST: not tested: needs the data mnist, and no folder is named with --data" in done.output
    assert "with a GPU: not tested: needs a GPU, and this machine has none" in done.output
    found = read_result(out / "tiny" / "result.json")
    cell = found.cell("vafl", "digits")
    assert cell.chosen == {"train.learning_rate": 0.3} and cell.edges == ["train.learning_rate"]
    assert len(cell.values) == 2 and all(0 < value <= 40 for value in cell.values)
    assert found.curves["digits"]["vafl"][0][0] == 0 and found.digest == tiny.digests["full"]
    runs = sorted(path.parent.name for path in out.rglob("summary.json"))
    assert runs == ["sync-seed1000", "sync-seed1001", "vafl learning_rate=0.001-seed0", "vafl learning_rate=0.3-seed0",
                    "vafl-seed1000", "vafl-seed1001"]  # fmt: skip
    summary = json.loads(next(out.rglob("report-digits/vafl-seed1000/summary.json")).read_text())
    assert summary["validation_rows"] == 0, "the curves of reported runs are of the test rows"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert reproduce("tiny", "--out", str(out)).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")} == before, "nothing ran again"
    assert "holds (full)" in reproduce("--out", str(out)).output
    page = (out / "book.html").read_text()
    assert "<svg" in page and "c | d" in page and "<script" not in page
    ElementTree.fromstring((out / "tiny.svg").read_text())


def test_the_list_shows_whole_names_in_a_narrow_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = reproduce("--out", str(tmp_path)).output
    assert all(re.search(rf"^ +{name} ", listed, re.MULTILINE) for name in item.items())


def test_bad_input(tiny, tmp_path):
    for words, said in [
        (["tinny"], "did you mean 'tiny'"),
        (["tiny", "--data", str(tmp_path / "nothing")], "is not a folder"),
        (["tiny", "--workers", "many"], "give a number"),
    ]:
        done = reproduce(*words, "--out", str(tmp_path / "out"))
        assert done.exit_code != 0 and said in f"{done.output}{done.exception}"


def test_data_that_are_not_there_are_named_with_the_way_to_get_them(tiny, tmp_path):
    job = Job(tiny, tmp_path, data=tmp_path)
    said = job.untested["MNIST"]
    assert said == (
        "needs the data mnist, and --data has no folder mnist. To get them: colonnade data get mnist --dir DIR; "
        "without files: digits"
    )
    (tmp_path / "mnist").mkdir()
    assert "MNIST" not in job.untested
    traces = item.parse_item(TINY.replace('"mnist"', '"google-cluster-2011"'), "tiny")
    assert "To get them: see docs/reproduction.md" in Job(traces, tmp_path, data=tmp_path).untested["MNIST"]


def test_an_item_that_needs_a_gpu_only_is_not_tested_and_says_why(tiny, tmp_path, monkeypatch):
    text = TINY.replace("[[columns]]\nname", "[[columns]]\ngpu = true\nname").replace("gpu = true\ngpu", "gpu")
    text = text.replace('name = "with a GPU"\ngpu = true', 'name = "with a GPU"')
    monkeypatch.setattr(item, "items", lambda: {"tiny": item.parse_item(text, "tiny")})
    done = reproduce("tiny", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "tiny: not tested" in done.output and "needs a GPU, and this machine has none" in done.output
    assert read_result(tmp_path / "out" / "tiny" / "result.json").cells == []


def test_results_of_another_version_are_marked_or_refused(tiny, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    cells = [{"row": "vafl", "column": "digits", "values": [10.0]}]
    text = {
        "format": 1, "item": "tiny", "digest": "old", "size": "full", "release": "0.1.0", "commit": "", "machine": "m",
        "seconds": 60, "seeds": 1, "cells": cells,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(text))
    results = book.read_results(tmp_path)
    assert "another version" in book.state_of(tiny, results["tiny"])
    assert "another version" in book.book_markdown({"tiny": tiny}, results)
    (folder / "result.json").write_text(json.dumps(text | {"size": "medium"}))
    assert "another version" in book.state_of(tiny, book.read_results(tmp_path)["tiny"])
    (folder / "result.json").write_text(json.dumps(text | {"format": 9}))
    with pytest.raises(DataError, match="run the item again"):
        book.read_results(tmp_path)
    (folder / "result.json").write_text('{"format": 1, "item": 3}')
    with pytest.raises(DataError, match="not a result"):
        book.read_results(tmp_path)


def test_a_chart_escapes_names_and_leaves_out_what_cannot_be_drawn():
    lines = [Line("<a>", [0, 1, 10, 100], [0.1, float("inf"), 1, 10]), Line("p", [1, 10], [1, 2], "<a>")]
    svg = draw([Panel("T & t", lines), Panel("empty", [])], "x", "y", log_x=True, log_y=True)
    root = ElementTree.fromstring(svg)
    shapes = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert [len(one.attrib["points"].split()) for one in shapes] == [2, 2]
    assert "stroke-dasharray" in shapes[1].attrib and "T &amp; t" in svg


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("reproduction", DOCS / "tools" / "reproduction.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_are_what_the_results_say(tool):
    assert tool.stale() == [], "type: python docs/tools/reproduction.py"
    assert {path.name for path in tool.with_blocks()} >= {"flex-tuned.md", "frozen.md", "own-delays.md"}


def test_a_typed_number_is_found_and_mended(tool, tmp_path, monkeypatch, capsys):
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy)
    monkeypatch.setattr(tool, "DOCS", copy)
    page, block = copy / "reproduction.md", copy / "results" / "own-delays.md"
    before = {path: path.read_text(encoding="utf-8") for path in (page, block)}
    for path, text in before.items():
        path.write_text(text.replace("| vafl | 7.5", "| vafl | 7.4"), encoding="utf-8")
    (copy / "reproduction" / "nothing.svg").write_text("<svg/>")
    assert tool.main("--check") == 1
    said = capsys.readouterr().out
    assert "docs/reproduction.md" in said and "docs/results/own-delays.md" in said and "nothing.svg" in said
    assert tool.main() == 0 and tool.main("--check") == 0
    assert {path: path.read_text(encoding="utf-8") for path in before} == before
