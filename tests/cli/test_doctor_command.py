"""`colonnade doctor`, the commit of a release, and what a missing extra says."""

import ast
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from colonnade import doctor, extras, release
from colonnade.cli.main import main
from colonnade.doctor import examine
from colonnade.privacy import compiled
from colonnade.protocol.errors import MissingExtra


@pytest.fixture
def colonnade(monkeypatch, capsys, tmp_path):
    """`colonnade ARGS` in a folder of its own: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["colonnade", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_the_shell_completes_options():
    script = "import sys; sys.argv[0] = 'colonnade'; from colonnade.cli.main import main; main()"
    typed = {"_COLONNADE_COMPLETE": "complete_bash", "COMP_WORDS": "colonnade run --s", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | typed, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--set", "--seed"]


def test_doctor_says_what_is_there(colonnade):
    code, out, _ = colonnade("doctor", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (0, True)
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    names = {check["name"] for check in found["checks"]}
    assert names == {
        "python",
        "colonnade",
        "packages",
        "extras",
        "cores",
        "gpu",
        "alignment",
        "simulator",
        "disk",
        "files",
        "clock",
    }
    code, out, _ = colonnade("doctor")
    assert code == 0 and len(out.splitlines()) <= 24, "one screen"
    assert all(name in out for name in names)


def test_doctor_fails_if_a_required_package_is_missing_or_too_old(colonnade, monkeypatch):
    asked = ["numpy>=1", "no-such-package>=2.0", "rich>=999; python_version>'3'", "no-such-other; extra=='onnx'"]
    requirements = [Requirement(text) for text in asked]
    monkeypatch.setattr(doctor, "own_requirements", lambda: requirements)
    code, out, _ = colonnade("doctor", "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert found["packages"]["no-such-package"] is None
    faults = [check["text"] for check in found["checks"] if check["status"] == "fault"]
    assert len(faults) == 2
    assert "no-such-package is missing: pip install 'no-such-package>=2.0'" in faults
    assert f"rich {importlib.metadata.version('rich')} is not >=999" in faults[1]
    notes = [check["text"] for check in found["checks"] if (check["name"], check["status"]) == ("extras", "note")]
    assert any(text.startswith("pip install 'colonnade[onnx]' would enable colonnade export") for text in notes)


def test_doctor_of_a_copy_that_is_not_installed(tmp_path):
    faults = [check for check in examine(tmp_path / "runs" / "new", []) if check.status == "fault"]
    assert [check.name for check in faults] == ["packages"] and "pip install -e ." in faults[0].text
    assert not (tmp_path / "runs").exists()


def test_doctor_compares_the_clock_with_the_file_system(tmp_path, monkeypatch):
    real = doctor.time.time
    for seconds, word in ((-7200.0, "files are dated +7200 s"), (7200.0, "files are dated -7200 s")):
        monkeypatch.setattr(doctor.time, "time", lambda seconds=seconds: real() + seconds)
        check = examine(tmp_path, [])[-1]
        assert (check.name, check.status) == ("clock", "note") and word in check.text


def test_the_commit_is_of_this_checkout_or_of_the_file_that_the_build_wrote(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-C", str(tmp_path)]
    package = tmp_path / "src" / "colonnade"
    package.mkdir(parents=True)
    monkeypatch.setattr(release, "__file__", str(package / "release.py"))
    assert release.commit() is None  # without a checkout and without a file, no commit is made up
    (tmp_path / "a").write_text("one")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    assert release.commit() == head
    (tmp_path / "a").write_text("two")
    assert release.commit() == f"{head}-dirty"
    (package / "commit.txt").write_text("0123456789ab\n")
    assert release.commit() == "0123456789ab"


def test_the_commands_of_the_install_page(colonnade, monkeypatch, tmp_path):
    """install.md: what can be typed without the internet prints what the page shows."""
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")
    typed = re.findall(r"^    (?:\$ |\.venv/bin/)?colonnade ((?:\w+|--)\S*(?: --driver ray)?)", page, re.MULTILINE)
    typed = [words for words in typed if not words[0].isdigit() and words != "ok"]
    assert typed == [
        "run --driver ray", "run", "run", "--version", "--install-completion", "--show-completion", "doctor",
    ]  # fmt: skip
    (refusal,) = re.findall(r"^    Error: (Ray needs .*)$", page, re.MULTILINE)
    with monkeypatch.context() as without:
        hide(without, "ray")
        assert colonnade("run", "--driver", "ray") == (2, "", f"Error: {refusal}\n")
    code, out, _ = colonnade("run", "--set", "train.updates=2")
    assert code == 0 and "Folder: runs/" in out
    code, out, _ = colonnade("--version")
    assert code == 0 and re.fullmatch(r"colonnade \d+\.\d+\.\d+( \(commit [0-9a-f]{12}(-dirty)?\))?\n", out)
    shown = re.findall(r"^    (\w+) +(?:ok|note) ", page, re.MULTILINE)
    code, out, _ = colonnade("doctor")
    assert code == 0 and set(shown) <= set(re.findall(r"^(\w+) +(?:ok|note) ", out, re.MULTILINE))
    monkeypatch.setenv("HOME", str(tmp_path))  # the script is installed there
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # it looks for one that started us
    for option in ("--install-completion", "--show-completion"):
        code, out, err = colonnade(option, "bash")
        assert code == 0, err


def test_without_the_extra_serve_metrics_name_it(monkeypatch):
    from colonnade.drivers.processes.metrics import serve_metrics

    hide(monkeypatch, "prometheus_client")
    with pytest.raises(MissingExtra, match=r"pip install 'colonnade\[serve\]'"):
        serve_metrics(0, dict)


def hide(monkeypatch, name: str) -> None:
    monkeypatch.setattr(
        extras, "find_spec", lambda module: None if module == name else importlib.util.find_spec(module)
    )


def test_only_what_an_extra_is_for_imports_its_packages():
    """Every other module can be imported without these: modules that reach one through imports at their top."""
    optional = {
        "h11",
        "prometheus_client",
        "ray",
        "mlflow",
        "wandb",
        "uvloop",
    }
    graph = {module_name(path): top_imports(path) for path in SOURCES.rglob("*.py")}
    reached = set(optional)
    while further := {name for name, needs in graph.items() if name not in reached and needs & reached}:
        reached |= further
    others = {name for name in reached - optional if not name.startswith("colonnade.drivers.ray")}
    assert others == {"colonnade.deployment.on_ray"}


SOURCES = Path(release.__file__).parent


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__")


def top_imports(path: Path) -> set[str]:
    """What a module imports at its top, with the packages around it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {part for name in found for part in itertools.accumulate(name.split("."), "{}.{}".format)}


@pytest.mark.parametrize(
    ("file", "status", "text"),
    [
        (None, "note", "with a C compiler"),
        (SimpleNamespace(supported=lambda: False), "ok", "lacks AVX-512 IFMA"),
        (SimpleNamespace(supported=lambda: True), "note", "computes other points"),
    ],
)
def test_doctor_says_why_points_are_raised_one_by_one(monkeypatch, file, status, text):
    monkeypatch.setattr(compiled, "AVAILABLE", False)
    monkeypatch.setitem(sys.modules, "colonnade.privacy._curve25519", file)
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    check = doctor._alignment()
    assert check.status == status and text in check.text


@pytest.mark.parametrize(
    ("bins", "chain", "machine", "status", "text"),
    [
        (object, True, "x86_64", "ok", "the timeline and the hash chain"),
        (object, False, "x86_64", "ok", "lacks SHA instructions"),
        (None, False, "x86_64", "note", "with a C compiler"),
        (None, False, "arm64", "ok", "no compiled files for this platform"),
    ],
)
def test_doctor_says_what_is_compiled_of_the_simulator(monkeypatch, bins, chain, machine, status, text):
    monkeypatch.setattr("colonnade.drivers.simulator.timeline.Bins", bins)
    monkeypatch.setattr("colonnade.protocol.trace.COMPILED", chain)
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    check = doctor._simulator()
    assert check.status == status and text in check.text
