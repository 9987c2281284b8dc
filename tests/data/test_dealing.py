"""Columns by importance or correlation: VertiBench's numbers, equal splits for equal seeds, and refused settings."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data import dealing, from_arrays, from_views, load, split
from colonnade.data.dealing import _correlations, deal, icor, is_dealt
from colonnade.data.sources import load as load_source
from colonnade.protocol.errors import ConfigError


@pytest.fixture
def few_swaps(monkeypatch):
    monkeypatch.setattr(dealing, "SWAPS", 200)


def rows_of(data):
    return np.arange(len(data.x))


# CorrelationEvaluator.overall_corr_score of vertibench 0.1.2 on all rows, four runs of neighbouring columns.
@pytest.mark.parametrize(
    ("source", "theirs"),
    [("wine", -0.05019675675481346), ("breast-cancer", -0.07441473650706831), ("digits", -0.12094736648391888)],
)
def test_icor_is_vertibenchs(source, theirs):
    data = load(source)
    runs = [part.tolist() for part in np.array_split(np.arange(len(data.columns)), 4)]
    assert icor(_correlations(data, rows_of(data)), runs) == pytest.approx(theirs, abs=1e-9)


def test_icor_by_hand():
    """Two pairs of equal columns: the singular values are 2 and 0 in a party's own block, 0 and 0 between parties."""
    x = np.repeat(np.array([[1.0, 2, 3, 4], [1, -1, -1, 1]]).T, 2, axis=1)  # ranks without correlation
    correlations = _correlations(from_arrays(x, [0, 1, 0, 1]), np.arange(4))
    assert np.allclose(correlations, np.kron(np.eye(2), np.ones((2, 2))), atol=1e-12)
    own = np.std([2, 0], ddof=1) / np.sqrt(2)  # 1
    assert icor(correlations, [[0, 1], [2, 3]]) == pytest.approx(0 - own)
    assert icor(correlations, [[0, 2], [1, 3]]) == pytest.approx(0)  # all blocks are the unit matrix


def test_correlation_puts_alike_columns_together_or_apart(few_swaps):
    draw = np.random.default_rng(0)
    base = draw.normal(size=(200, 3))
    x = np.repeat(base, 3, axis=1) + 0.05 * draw.normal(size=(200, 9))  # columns 0-2, 3-5, 6-8 are alike
    data = from_arrays(x, draw.integers(0, 2, 200))
    together, note = deal(data, 3, {"correlation": 0.0}, rows_of(data), 0)
    assert {tuple(group) for group in together} == {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
    apart, _ = deal(data, 3, {"correlation": 1.0}, rows_of(data), 0)
    assert all({column // 3 for column in group} == {0, 1, 2} for group in apart)
    assert note.startswith("data.split: correlation = 0 gave Icor -0.9")


def test_beta_is_the_way_from_the_smallest_to_the_largest(few_swaps):
    data = load("breast-cancer")
    for beta in (0.25, 0.75):
        groups, note = deal(data, 4, {"correlation": beta}, rows_of(data), 1)
        reached, wanted, low, high = map(float, re.findall(r"-?\d\.\d{4}", note))
        assert wanted == pytest.approx((1 - beta) * low + beta * high, abs=2e-4)
        assert abs(reached - wanted) < 0.02 * (high - low)
        assert icor(_correlations(data, rows_of(data)), [g.tolist() for g in groups]) == pytest.approx(
            reached, abs=1e-4
        )
        assert [len(group) for group in groups] == [8, 8, 7, 7]


def test_importance_is_a_dirichlet_draw():
    """Over many seeds, the largest share is near 1 for a small α, and near 1/M for a large one."""
    data = from_arrays(np.zeros((3, 400)) + np.arange(3)[:, None], [0, 1, 0])
    largest = {}
    for alpha in (0.01, 1.0, 1000.0):
        sizes = [max(map(len, deal(data, 4, {"importance": alpha}, rows_of(data), seed)[0])) for seed in range(40)]
        largest[alpha] = np.mean(sizes) / 400
    assert largest[0.01] > 0.93
    assert largest[1.0] == pytest.approx(
        (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, abs=0.05
    )  # the mean of a uniform draw's largest
    assert largest[1000.0] < 0.31


@pytest.mark.parametrize("how", [{"importance": 0.01}, {"importance": 10}, {"correlation": 0.5}])
def test_every_column_has_one_owner_and_a_seed_repeats(how, few_swaps):
    data = load("wine")
    first, again = (split(data, parties=5, how=how, split_seed=3) for _ in range(2))
    assert [column for own in first.columns for column in own] == [column for own in again.columns for column in own]
    assert sorted(np.concatenate(first.indices).tolist()) == list(range(13)) and all(map(len, first.columns))
    assert first.parties == tuple(f"party-{i}" for i in range(1, 6))
    assert any("data.split:" in note for note in first.notes)
    other = split(data, parties=5, how=how, split_seed=4)
    assert [own.tolist() for own in first.indices] != [own.tolist() for own in other.indices]


def test_only_training_rows_count(few_swaps):
    data = load("wine")
    plain = split(data, how={"correlation": 0.3})
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(data.x))
    data.x[order[:30]] = 1e6 * np.random.default_rng(1).random((30, 13))  # 30 of the 36 test rows
    changed = split(data, how={"correlation": 0.3})
    assert [own.tolist() for own in plain.indices] == [own.tolist() for own in changed.indices]


def test_tables_with_categories_and_gaps(tmp_path, few_swaps):
    rows = [f"{i},{'ab'[i % 2]},{i % 3 or ''},{-i},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,r,s,y", *rows]))
    data = split(
        load_source(str(tmp_path / "t.csv"), label="y"),
        parties=2,
        how={"correlation": 0.0},
        missing="mean",
        release=True,
    )
    assert sorted(column for own in data.columns for column in own) == ["p", "q", "r", "s"]
    assert {"p", "s"} in [set(own) for own in data.columns]


def test_a_party_may_have_the_name_of_a_rule():
    data = split(load("wine"), how={"importance": ["alcohol"], "correlation": ["hue"]})
    assert data.parties == ("importance", "correlation")
    assert not is_dealt({"importance": ["alcohol"]}) and is_dealt({"importance": 0.1}) and not is_dealt("even")


@pytest.mark.parametrize(
    ("how", "parties", "why"),
    [
        ({"importance": 0}, 4, "data.split.importance = 0: must be above 0"),
        ({"importance": float("nan")}, 4, "must be above 0"),
        ({"importance": float("inf")}, 4, "must be above 0"),
        ({"importance": True}, 4, "must be a number"),
        ({"correlation": 1.5}, 4, "must be from 0 (correlated columns together) to 1"),
        ({"correlation": -0.1}, 4, "must be from 0"),
        ({"importance": 1.0, "correlation": 0.5}, 4, "give one rule alone"),
        ({"importance": 1.0, "bank": ["hue"]}, 4, "give one rule alone"),
        ({"importance": 1.0}, 1, "data.parties = 1: must be from 2 to 13"),
        ({"correlation": 1.0}, 14, "data.parties = 14: must be from 2 to 13"),
        ({"importance": 1.0}, 0, "data.parties = 0: must be a whole number from 1"),
        ({"bank": 3.0}, None, "bank needs a list of column names"),
    ],
)
def test_refused(how, parties, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        split(load("wine"), parties=parties, how=how)


def test_too_many_columns_and_series_are_refused():
    wide = from_arrays(np.random.default_rng(0).random((5, 300)), [0, 1, 0, 1, 0])
    with pytest.raises(ConfigError, match="has 300 columns, and the search takes at most 256; use importance"):
        split(wide, how={"correlation": 0.5})
    series = from_views({"a": np.ones((4, 6)), "b": np.ones((4, 6))}, np.array([0, 1, 0, 1]))
    object.__setattr__(series.views[0], "shape", (3, 2))
    with pytest.raises(ConfigError, match="time series, which stay whole"):
        split(series, how={"importance": 0.5})


def test_the_command_line_takes_a_rule(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--set", "data.source=wine", "--set", "data.split={importance = 0.1}", "--set", "train.updates=3"]
    made = CliRunner().invoke(app, [*words, "--out", "run"])
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["parties"] == 4
    assert "importance = 0.1" in (tmp_path / "run" / "config.toml").read_text()
    wrong = CliRunner().invoke(app, ["run", "--set", "data.split={importance = -1}"])
    assert isinstance(wrong.exception, ConfigError) and wrong.exception.key == "data.split.importance"
