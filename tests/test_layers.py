"""Imports point downward, and roles do no I/O.

The first is import-linter's work (contracts in pyproject.toml). The second is a scan of the syntax trees of
`protocol`, `algorithms` and the privacy guard. It also sees what no import shows: printing, global generators, set
order.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "src/colonnade/protocol", ROOT / "src/colonnade/algorithms"]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
MODULES += [
    ROOT / "src/colonnade/privacy" / name for name in ("guard.py", "ledger.py")
]  # what a party's jobs go through

IMPORTS = {"asyncio", "grpc", "multiprocessing", "socket", "subprocess", "threading"}  # lanes, networks
IMPORTS |= {"fcntl", "glob", "io", "os", "pathlib", "shutil", "tempfile"}  # files
IMPORTS |= {"datetime", "random", "secrets", "time"}  # chance, clocks
CALLS = {"open", "print", "input"}
NUMPY_RANDOM = {"BitGenerator", "Generator", "PCG64", "Philox", "SeedSequence"}
TORCH_SEEDS = {f"torch.{prefix}{name}" for prefix in ("", "random.") for name in ("manual_seed", "seed")}


def scan(source: str) -> list[str]:
    """Everything in a module that a role may not do, as 'line N: what'."""
    tree = ast.parse(source)
    full_names = _imported_names(tree)
    seeded = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args + node.keywords}
    faults = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                faults += [_fault(node, f"imports {a.name}") for a in names if a.name.split(".")[0] in IMPORTS]
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in IMPORTS:
                faults.append(_fault(node, f"imports {module}"))
            case ast.Call(func=ast.Name(id=name)) if name in CALLS and name not in full_names:
                faults.append(_fault(node, f"calls {name}"))
            case ast.For(iter=over) | ast.comprehension(iter=over) if _is_set(over):
                faults.append(_fault(over, "iterates over a set: use sorted(...)"))
            case ast.Attribute() | ast.Name():
                name = _dotted(node, full_names)
                if name in TORCH_SEEDS or _is_unseeded_numpy(name, id(node) in seeded):
                    faults.append(_fault(node, f"uses {name}: take a generator instead"))
    return faults


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Each name that an import binds, with what it stands for: np → numpy."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _dotted(node: ast.AST, full_names: dict[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return full_names.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value, full_names)}.{attr}"
    return ""


def _is_unseeded_numpy(name: str, seeded: bool) -> bool:
    match name.split("."):
        case ["numpy", "random", "default_rng"]:
            return not seeded
        case ["numpy", "random", used]:
            return used not in NUMPY_RANDOM
    return False


def _is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
    return False


def _fault(node: ast.stmt | ast.expr, what: str) -> str:
    return f"line {node.lineno}: {what}"


def test_imports_point_downward() -> None:
    command = "from importlinter.cli import lint_imports_command as lint; lint()"
    arguments = ["--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")]
    result = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"run `lint-imports` to see this again:\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_there_is_something_to_scan(package: Path) -> None:
    assert any(path.is_relative_to(package) for path in MODULES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_roles_do_no_io(path: Path) -> None:
    assert scan(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as p",
        "from tempfile import mkstemp",
        "from asyncio import sleep",
        "def f():\n    from datetime import datetime",
        "open('x')",
        "print(1)",
        "input()",
        "import numpy as np\nnp.random.normal(size=3)",
        "import numpy as np\nx = np.random.RandomState(0)",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy as np\nfield(default_factory=np.random.default_rng)",
        "from numpy import random as r\nr.shuffle(x)",
        "from numpy.random import rand\nrand(3)",
        "import torch\ntorch.manual_seed(0)",
        "from torch import seed\nseed()",
        "for x in set(y): pass",
        "for x in {1, 2}: pass",
        "z = [x for x in frozenset(y)]",
    ],
)
def test_scan_finds(source: str) -> None:
    assert len(scan(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.random.default_rng(7).normal()",
        "import numpy as np\nnp.random.Generator(np.random.PCG64(seed))",
        "from numpy.random import Philox, SeedSequence\nPhilox(SeedSequence(key))",
        "import torch\ntorch.Generator().manual_seed(1)",
        "from .time import ticks",
        "from colonnade.protocol import random_access",
        "door.open()",
        "for x in sorted(set(y)): pass",
        "rng.random(3)",
    ],
)
def test_scan_lets_pass(source: str) -> None:
    assert scan(source) == []
