"""The modules of the command line: their imports have no cycle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import colonnade.cli

FOLDER = Path(colonnade.cli.__file__).parent


def imported(path: Path) -> set[str]:
    """Modules of the command line that this one imports, at the top or inside a function."""
    found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {str(node.module).rpartition(".")[2] for node in found if str(node.module).startswith("colonnade.cli.")}


def test_no_module_needs_one_that_needs_it():
    modules = {path.stem: imported(path) for path in FOLDER.glob("*.py")}
    order = list(TopologicalSorter(modules).static_order())  # raises CycleError
    assert order[-1] == "main" and set(order) == set(modules)
