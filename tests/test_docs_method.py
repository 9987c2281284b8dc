"""docs/write-a-method.md: its code is the example's, short, and runs."""

import re
import sys
from pathlib import Path

import colonnade

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "write-a-method.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "vafl_sign.py").read_text(encoding="utf-8")


def test_the_page_shows_the_example_in_at_most_sixty_lines():
    assert re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1] == EXAMPLE
    assert len(EXAMPLE.splitlines()) <= 60


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
