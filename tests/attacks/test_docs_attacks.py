"""docs/attacks.md: its example runs."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None and len(found[1].splitlines()) <= 25
    names: dict[str, Any] = {}
    exec(found[1], names)
    assert 0.3 < names["outcomes"][0].success < 0.9 and len(names["outcomes"][0].trials) == 2
