"""The items of the book: their files, their checks and their verdicts."""

import importlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from colonnade.config.schema import from_dict
from colonnade.experiments.compare import Entry, contestants, entries_of
from colonnade.experiments.sweep import grid_contestants
from colonnade.protocol.errors import ConfigError
from colonnade.reproduce import conduct
from colonnade.reproduce.conduct import Job
from colonnade.reproduce.item import find_items, items, parse_item
from colonnade.reproduce.judge import HOLDS, IN_PART, NOT, UNTESTED, findings, verdict_of
from colonnade.reproduce.measures import MEASURES
from colonnade.reproduce.result import Cell, Result

ITEM = """
title = "t"
paper = "VAFL"
where = "Fig. 9"
claim = "c"
rows = [{name = "a", set = {"protocol.name" = "vafl"}}, {name = "b", set = {"protocol.name" = "sync"}}]
columns = [{name = "x", x = 1}, {name = "y", x = 2}]
measure = {what = "value", name = "accuracy"}
checks = [CHECK]
"""


def item(check='{says = "s", row = "a", against = "b", holds = "< 1"}', more=""):
    return parse_item(ITEM.replace("CHECK", check) + more, "mine")


def result(a, b, untested=()):
    cells = [
        Cell(row=row, column=column, values=list(values))
        for row, own in (("a", a), ("b", b))
        for column, values in own.items()
    ]
    return Result(
        item="mine", digest="", size="quick", release="0", commit="", machine="", seconds=0, seeds=1, cells=cells,
        untested=dict(untested),
    )  # fmt: skip


# Verdicts


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"x": [1.0], "y": [2.0]}, {"x": [2.0], "y": [3.0]}, HOLDS),
        ({"x": [1.0], "y": [4.0]}, {"x": [2.0], "y": [3.0]}, IN_PART),
        ({"x": [3.0], "y": [4.0]}, {"x": [2.0], "y": [3.0]}, NOT),
        ({"x": [1.0], "y": [2.0]}, {"x": [None], "y": [None]}, HOLDS),  # the other one never got there
        ({"x": [1.0, None], "y": [2.0]}, {"x": [2.0], "y": [3.0]}, IN_PART),  # one seed of two did not
        ({"x": [None], "y": [None]}, {"x": [None], "y": [None]}, UNTESTED),
        ({"x": [], "y": []}, {"x": [2.0], "y": [3.0]}, UNTESTED),  # its runs have a fault
        ({}, {}, UNTESTED),
    ],
)
def test_verdict_over_the_columns(a, b, verdict):
    assert verdict_of(findings(item(), result(a, b))) == verdict


def test_a_control_has_its_own_verdict_and_does_not_count():
    checked = item('{says = "s", row = "a", holds = "> 0"}, {says = "n", row = "a", holds = "< 0", control = true}')
    found = findings(checked, result({"x": [1.0], "y": [1.0]}, {}))
    assert [one.verdict for one in found] == [HOLDS, NOT] and verdict_of(found) == HOLDS


def test_other_comparisons():
    numbers = result({"x": [1.0], "y": [4.0]}, {"x": [3.0], "y": [5.0]})
    for check, expected in [
        ('{says = "s", row = "a", against = "b", compare = "difference", holds = "< 0"}', {"x": -2.0, "y": -1.0}),
        ('{says = "s", row = "a", in_column = "x", holds = "> 3"}', {"y": 4.0}),
        ('{says = "s", row = "a", against = "b", compare = "range", holds = "< 2"}', {"range": 1.5}),
        ('{says = "s", row = "a", holds = "> 0", columns = ["y"]}', {"y": 4.0}),
    ]:
        (found,) = findings(item(check), numbers)
        assert found.numbers == expected and found.verdict == HOLDS


def test_what_was_not_tested_says_why():
    (found,) = findings(item(), result({"x": [1.0]}, {"x": [2.0]}, {"y": "needs a GPU"}))
    assert found.verdict == HOLDS and found.why == "y: needs a GPU"


# Files


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('{says = "s", row = "c", holds = "< 1"}', "unknown row: c"),
        ('{says = "s", row = "a", holds = "< 1", columns = ["z"]}', "unknown column: z"),
        ('{says = "s", row = "a", holds = "about 1"}', "an operator and a number"),
        ('{says = "s", row = "a", holds = "< 1", when = 3}', "when"),
        ("", "needs rows, columns and checks"),
        ('{says = "s", row = "a", holds = "< 1"}]\nof = ["nothing"', "Expected `str`"),
    ],
)
def test_a_mistake_in_a_file_is_named(wrong, said):
    with pytest.raises(ConfigError, match=said):
        item(wrong)


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two columns have the name x"):
        parse_item(ITEM.replace("CHECK", '{says = "s", row = "a", holds = "< 1"}').replace('"y"', '"x"'), "mine")


def test_an_item_may_measure_the_runs_of_another_one():
    lender = item()
    lender = replace(lender, rows=[replace(row, paper={"digits": 1.0}) for row in lender.rows])
    text = 'title = "t"\npaper = "VAFL"\nwhere = "w"\nclaim = "c"\nof = "mine"\nmeasure = {what = "best"}\n'
    text += 'checks = [{says = "s", row = "b", holds = "> 0"}]\n'
    other = parse_item(text, "other", {"mine": lender})
    assert (other.columns, other.runs) == (lender.columns, lender.runs)
    assert [row.name for row in other.rows] == [row.name for row in lender.rows]
    assert not any(row.paper for row in other.rows), "the paper's numbers are of another measure"
    assert other.digests != lender.digests
    column = lender.columns[0]
    assert Job(other, Path("o")).folder("tune", column) == Job(lender, Path("o")).folder("tune", column)
    with pytest.raises(ConfigError, match="of must name an item with runs of its own"):
        parse_item(text, "other")


def test_the_quick_version_may_change_without_a_new_full_run():
    one, other = item(), item(more="quick = {seeds = 2}\n")
    assert one.digests["full"] == other.digests["full"] and one.digests["quick"] != other.digests["quick"]
    assert item(more="full = {seeds = 2}\n").digests["full"] != one.digests["full"]


def test_an_unknown_item_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'flex-table3'"):
        find_items(["flex-tabel3"])


def test_all_papers_have_items():
    found = items()
    assert {one.paper for one in found.values()} == {"VAFL", "VFL-Cascaded", "Flex-VFL", "AsySQN", "FedVS"}
    assert find_items([]) == find_items(["all"]) == list(found.values())


@pytest.mark.parametrize("name", items())
def test_every_cell_is_a_config(name, tmp_path):
    """Without the data: keys, values, methods and options fit."""
    one = items()[name]
    if one.study:
        module, _, function = one.study.partition(":")
        assert callable(getattr(importlib.import_module(f"colonnade.reproduce.studies.{module}"), function))
        return
    assert one.measure.what in MEASURES and all(row.what in MEASURES for row in one.rows if row.what)
    for size in ("quick", "full"):
        job = Job(one, tmp_path, size, Path("data"))
        for column in one.columns:
            tables = job.tables(column)
            tables["methods"] = {row.name: row.set for row in job.rows()}
            racing = contestants(tables, [row.name for row in job.rows()])
            for row in job.rows():
                if one.tune and row.tune:
                    racing += grid_contestants(tables, [row.name], one.tune.of(row, size))
            entries = entries_of(racing, 1)
            assert not any(entry.adapted for entry in entries), "the item says which model each method has"
            for own in racing:
                from_dict(own.tables)


def test_a_diverged_run_has_no_number_unless_the_item_gives_it_one(tmp_path):
    summary = {"status": "diverged", "note": "", "value": 0.5, "warnings": []}
    for more, values, fault in [("", [], "it left the range"), ("diverged = 10.0, ", [10.0], "")]:
        text = ITEM.replace("CHECK", '{says = "s", row = "a", holds = "> 0"}').replace("{what", "{" + more + "what")
        one = parse_item(text, "mine")
        run = Entry("a", 0, None, summary, [], "it left the range")
        cell = conduct._cell(Job(one, tmp_path), one.columns[0], "a", [run], None)
        assert (cell.values, cell.fault) == (values, fault)
