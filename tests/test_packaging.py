"""What an install gets: pins for every package, a complete sdist and wheel, and a quick start."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from colonnade.extras import EXTRAS
from colonnade.release import commit, commit_of

ROOT = Path(__file__).parents[1]
COMPILED = {
    "colonnade/drivers/simulator/_bins.abi3.so",
    "colonnade/privacy/_curve25519.abi3.so",
    "colonnade/protocol/_trace.abi3.so",
}
KEPT = (".gitignore", ".dockerignore")  # of the names with a dot
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASKED = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
REQUIREMENTS = [one for one in map(Requirement, ASKED) if one.name != "colonnade"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([a-z0-9-]+)==(\S+)", line) for line in lines if not line.startswith("#")]
    assert all(found), "every line pins one package by its normalised name"
    return {str(canonicalize_name(match[1])): match[2] for match in found if match}


def installed() -> dict[str, list[Requirement]]:
    """The installed packages that are required, directly or not, with their requirements."""
    reached: dict[str, list[Requirement]] = {}
    waiting = [(one.name, tuple(one.extras)) for one in REQUIREMENTS]
    while waiting:
        name, extras = waiting.pop()
        try:
            asked = map(Requirement, importlib.metadata.requires(name) or [])
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here, or of another platform
        needed = [
            one for one in asked if not one.marker or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
        ]
        if reached.get(canonicalize_name(name)) != needed:
            reached[canonicalize_name(name)] = needed
            waiting += [(one.name, tuple(one.extras)) for one in needed]
    return reached


def test_constraints_pin_every_package_of_an_install():
    found = installed()
    assert {"torch", "numpy", "typing-extensions"} <= set(found)
    named = {canonicalize_name(one.name) for needed in found.values() for one in needed}
    missing = sorted((named | {canonicalize_name(one.name) for one in REQUIREMENTS}) - set(pins()))
    assert not missing, f"constraints.txt does not pin {missing}"


def test_pins_are_in_the_ranges():
    found = pins()
    assert [str(one) for one in REQUIREMENTS if not one.specifier.contains(found[canonicalize_name(one.name)])] == []


def test_every_extra_says_what_it_enables():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"])
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| .*[a-z].* \|$", page.partition("## Extras")[2].partition("##")[0], re.M) == [
        *EXTRAS
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_sdist_and_wheel_hold_all_that_belongs_there(built):
    sdist, wheel = built
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/colonnade").rglob("*")}
    sources = {name for name in sources if (ROOT / "src" / name).is_file() and not name.endswith((".pyc", ".so"))}
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        wheeled = {name for name in archive.namelist() if ".dist-info/" not in name}
    commits = {"colonnade/commit.txt"} if commit_of(ROOT) else set()
    compiled = set() if wheel.name.endswith("-py3-none-any.whl") else COMPILED
    assert wheeled == sources | commits | compiled
    assert {f"src/{name}" for name in sources | commits} <= inside
    assert {"README.md", "LICENSE", "constraints.txt", "tests/test_packaging.py"} <= inside
    assert {"Dockerfile", "compose.yaml", "deploy/systemd/colonnade-server.service"} <= inside
    assert not [name for name in inside if name.startswith((".", "runs/", "dist/")) and name not in KEPT]


@pytest.mark.parametrize("setting", [{"COLONNADE_PURE": "1"}, {"CC": "/no/compiler"}, {"CC": "false"}])
def test_without_a_compiler_the_wheel_is_for_all_platforms(built, tmp_path, setting):
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | setting)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not COMPILED & set(archive.namelist())


def test_metadata(built):
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        metadata = Parser().parsestr(archive.read(name).decode())
        assert b"Apache License" in archive.read(licence)
        if (stated := commit()) is not None:
            assert archive.read("colonnade/commit.txt").decode().strip() == stated
    assert (metadata["Name"], metadata["License-Expression"]) == ("colonnade", "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown" and "# Colonnade" in metadata.get_payload()
    assert set(metadata.get_all("Provides-Extra")) == set(EXTRAS)
    pythons = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert pythons <= set(metadata.get_all("Classifier"))
    core = [one for one in map(Requirement, metadata.get_all("Requires-Dist")) if "extra" not in str(one.marker)]
    assert not {"h11", "ray"} & {one.name for one in core}
    assert not any(one.name == "uvloop" and one.marker.evaluate({"sys_platform": "win32"}) for one in core)


@pytest.mark.parametrize("arguments", [["-c", "import colonnade"], ["-m", "colonnade", "--help"]])
def test_starting_loads_nothing_heavy(arguments):
    """`import colonnade` and `colonnade --help` import none of the slow modules."""
    command = [sys.executable, "-X", "importtime", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "colonnade" in loaded
    assert not {"torch", "polars", "numpy", "scipy", "sklearn", "plotly", "grpc", "ray"} & loaded


def test_the_public_names_are_listed_and_imported_when_asked_for():
    import colonnade

    assert dir(colonnade) == sorted(colonnade.__all__)
    assert all(getattr(colonnade, name) is not None for name in colonnade.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = colonnade.no_such_name
