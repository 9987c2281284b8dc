"""docs/python.md: its program runs as printed, and it names everything that is public."""

import re
from pathlib import Path

import colonnade

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


def test_the_program_of_the_page_runs(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {"__name__": "program_of_the_page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    accuracy, data, winners = capsys.readouterr().out.splitlines()
    assert float(accuracy) > 0.5 and data.startswith("Partition(frame: bank (2 columns), shop (1 columns); ")
    assert winners.startswith("Fastest to accuracy 0.8: ")
    assert names["model"].score([names["x"][:, :3], names["x"][:, 3:]], names["y"]) > 0.8
    assert len(names["sweep"].best) == 1


def test_the_page_names_everything_that_is_public():
    page = PAGE.read_text(encoding="utf-8")
    missing = [name for name in dir(colonnade) if f"`{name}" not in page and name != "__version__"]
    assert not missing
