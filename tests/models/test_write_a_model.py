"""docs/write-a-model.md: its program runs as printed."""

import re
from pathlib import Path

from colonnade.models import party_module

PAGE = Path(__file__).parents[2] / "docs" / "write-a-model.md"


def test_the_program_of_the_page_runs(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names = {"__name__": "program_of_the_page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    accuracies = [float(line) for line in capsys.readouterr().out.split()]
    assert len(accuracies) == 6 and min(accuracies) > 0.25
    assert names["bottom"][1].num_batches_tracked == 0, "the user's module is unchanged"


def test_every_name_of_the_page_can_be_built():
    table = PAGE.read_text(encoding="utf-8").partition("## A class")[0]
    rows = re.findall(r"^\| `(\S+)` \|.*\| (\w+) \|$", table, re.MULTILINE)
    assert {name for name, _ in rows} >= {"linear", "cnn", "lstm", "none"}
    for name, whose in rows:
        if whose != "server":
            assert party_module(name, (6, 5), 3, 0, "party-1").training
