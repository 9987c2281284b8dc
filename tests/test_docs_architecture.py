"""docs/architecture.md: every file that it names exists, and every package of methods is in its table."""

import re
from pathlib import Path

from colonnade.algorithms import METHODS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_path_is_there():
    paths = re.findall(r"`(src/[\w/.]+)`", PAGE)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_method_is_in_its_package():
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*`) \|$", PAGE, re.MULTILINE))
    packages = {
        name: method.options.__module__.split(".")[2] for name, method in METHODS.items()
    }  # fmt: skip
    listed = {name: package for package, names in rows.items() for name in re.findall(r"`([\w-]+)`", names)}
    assert listed == packages


def test_the_layers_are_those_that_are_checked():
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"layers = \[(.*?)\]", contracts, re.DOTALL)
    order = [name for name in re.findall(r"[a-z]+", layers[1]) if name != "dashboard"]
    diagram = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)[1]
    places = [re.search(rf"\b{name}\b", diagram) for name in order]
    assert all(places), [name for name, place in zip(order, places, strict=True) if place is None]
