"""docs/attacks.md: its examples run."""

import re
from pathlib import Path
from typing import Any

import pytest

from colonnade.attacks.attack import Order, attack
from colonnade.attacks.label_inference import LABEL_INFERENCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
ADD, ATTACKABLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_runs() -> None:
    assert len(ADD.splitlines()) <= 25
    names: dict[str, Any] = {}
    exec(ADD, names)
    assert 0.3 < names["outcomes"][0].success < 0.9 and len(names["outcomes"][0].trials) == 2


def test_the_example_of_a_method_makes_it_attackable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attacked_sign.py").write_text(ATTACKABLE, encoding="utf-8")
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)
    found = attack(LABEL_INFERENCE, Order({}, ["attacked_sign:METHOD"], ["curious", "eavesdropper"], 1))
    assert [(one.attacker, one.success) for one in found] == [("curious client", 1.0), ("eavesdropper", 1.0)]
