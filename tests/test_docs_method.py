"""docs/write-a-method.md: its code is that of the examples, is short, and runs."""

import re
import sys
from pathlib import Path

import numpy as np

import colonnade
from colonnade.protocol.role import Role

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "write-a-method.md").read_text(encoding="utf-8")
EXAMPLES = [(ROOT / "examples" / name).read_text(encoding="utf-8") for name in ("vafl_sign.py", "vafl_byte.py")]


def test_the_page_shows_the_examples_in_at_most_sixty_lines():
    assert re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) == EXAMPLES
    assert all(len(example.splitlines()) <= 60 for example in EXAMPLES)


def test_the_page_says_how_many_functions_a_role_has():
    functions = [name for name, value in vars(Role).items() if callable(value) and not name.startswith("_")]
    assert f"the same {['no', 'one', 'two', 'three', 'four', 'five', 'six', 'seven'][len(functions)]} functions" in PAGE


def test_the_method_trains_saves_bytes_and_is_deterministic(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])
    data = colonnade.split(colonnade.load("digits"), parties=4)
    settings = {"optimiser": "adam", "learning_rate": 0.01, "epochs": 6}
    plain = colonnade.train(data, "vafl", **settings).summary
    signs, again = (colonnade.train(data, "vafl_sign:METHOD", **settings).summary for _ in range(2))
    assert signs["protocol"] == "vafl-sign"
    assert signs["accuracy"] > 0.8
    assert signs["bytes_down"] < plain["bytes_down"] / 5
    assert signs["weights_sha256"] == again["weights_sha256"] != plain["weights_sha256"]


def test_a_method_that_sends_bytes_is_judged_on_them_and_its_evaluation_is_smaller(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])
    data = colonnade.split(colonnade.load("digits"), parties=4)
    settings = {"optimiser": "adam", "learning_rate": 0.01, "epochs": 2}
    run = colonnade.prepare(data, "vafl_byte:METHOD", **settings)
    plain, packed = colonnade.train(data, "vafl", **settings).summary, run.execute()
    for direction in ("bytes_up", "bytes_eval"):
        assert packed[direction] < 0.35 * plain[direction], direction
    assert packed["accuracy"] > 0.8
    server, party, *_ = (node.role for node in run.simulator.nodes)
    judged, exact = server.evaluation.table.values[:, : party.width], party.network.read(party.x_test)
    np.testing.assert_allclose(judged, party.decode(party.encode(exact)), atol=1e-6)
    assert 0 < np.abs(judged - exact).max() <= np.abs(exact).max() / 254 * 1.01
