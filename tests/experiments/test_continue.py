"""Runs that start from the trained networks of an earlier run."""

import json

import numpy as np
import polars
import pytest

import colonnade
from colonnade.algorithms import METHODS
from colonnade.config.schema import from_dict
from colonnade.data import from_blocks
from colonnade.experiments.run import prepare, reopen
from colonnade.protocol.errors import CheckpointError, ColonnadeError, ConfigError, DataError, ModelError
from colonnade.results.trained import MODEL, find_run

ROWS = 120


def table(rows=ROWS, seed=0, shift=0.0, columns=(3, 2, 2)):
    """Three parties with a few columns each, and a label that all of them are needed for."""
    draw = np.random.default_rng(seed)
    x = draw.normal(shift, 1.5, (rows, sum(columns)))
    y = (x.sum(1) - shift * sum(columns) + draw.normal(0, 0.3, rows) > 0).astype(int)
    ends = np.cumsum([0, *columns])
    return {f"party-{i + 1}": x[:, a:b] for i, (a, b) in enumerate(zip(ends, ends[1:], strict=False))}, y


def held(before=None, scale=None, **settings):
    blocks, y = table(**settings)
    return from_blocks(blocks, y, scale=scale, before={} if before is None else before.fitted())


def settings_of(name):
    method = METHODS[name]
    privacy = {"epsilon": 50.0, "delta": 1e-3, "clip": 1.0} if name == "wait-dp" else {}
    options = {"name": name} | privacy
    model = {} if method.defaults.party is None else {"embedding": 4}
    return from_dict({"protocol": options, "model": model, "train": {"updates": 6, "eval_every": 3}})


def run(folder, config=None, data=None, before=None):
    config = config or settings_of("sync")
    scale = METHODS[config.protocol["name"]].defaults.scale
    made = prepare(config, held(before, scale) if data is None else data, folder, before=before)
    return made.execute()


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_first_evaluation_is_the_last_of_the_earlier_run(name, tmp_path):
    config = settings_of(name)
    run(tmp_path / "may", config)
    before = find_run(tmp_path / "may")
    run(tmp_path / "june", config, before=before)
    run(tmp_path / "control", config)
    last, first, control = (rows_of(tmp_path / folder)[at] for folder, at in (("may", -1), ("june", 0), ("control", 0)))
    assert first["update"] == 0
    noisy = name in ("wait-dp",)
    assert first["loss"] == pytest.approx(last["loss"], rel=0.5 if noisy else 2e-3)
    if not noisy and name not in ("frozen",):
        assert abs(control["loss"] - last["loss"]) > 2e-3 * last["loss"]
    summary = json.loads((tmp_path / "june" / "summary.json").read_text())
    assert summary["continued_from"] == {"folder": "may", "run": before.run}
    assert "continued_from" not in json.loads((tmp_path / "may" / "summary.json").read_text())
