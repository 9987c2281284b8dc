"""Does every package of the core have a wheel for every platform and Python? Asks the package index through pip.

    python benchmarks/wheels.py                          # all platforms and Pythons: minutes, and gigabytes
    python benchmarks/wheels.py --python 3.14 --platform Windows

The packages are those that an install of the core gets: from the metadata of the environment that runs this, with the
markers of the other platform, in the versions of constraints.txt. Run it where the core is installed. pip evaluates
markers for its own platform only, so each package is asked for by itself, without its dependencies.
"""

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = (5, 12, 17, 24, 26, 27, 28)


def linux(machine: str) -> tuple[list[str], dict[str, str]]:
    """Wheels for glibc 2.28 and older: Debian 10, Ubuntu 18.10, RHEL 8 and newer."""
    old = [f"{name}_{machine}" for name in ("manylinux1", "manylinux2010", "manylinux2014")]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + old
    return tags, {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": machine}


MAC = {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"}
WINDOWS = {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"}
PLATFORMS = {
    "Linux x86-64": linux("x86_64"),
    "Linux aarch64": linux("aarch64"),
    "macOS 14 arm64": (["macosx_14_0_arm64"], MAC),
    "Windows x86-64": (["win_amd64"], WINDOWS),
}


def packages(environment: dict[str, str]) -> set[str]:
    """The core and all its dependencies, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, seen = [Requirement(text) for text in project["dependencies"]], set()
    names: set[str] = set()
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen or (one.marker and not one.marker.evaluate(environment)):
            continue
        seen.add(key)
        names.add(key[0])
        try:
            asked = [Requirement(text) for text in importlib.metadata.requires(one.name) or []]
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on the other platform only
        for extra in ("", *one.extras):
            waiting += [
                child for child in asked if not child.marker or child.marker.evaluate(environment | {"extra": extra})
            ]
    return names


def offered(wanted: list[str], tags: list[str], python: str) -> bool:
    """Whether pip finds a wheel of each of these packages for another platform."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
        command += ["--only-binary=:all:", "--target", folder, "--implementation", "cp", "--python-version", python]
        command += [word for tag in tags for word in ("--platform", tag)]
        return subprocess.run([*command, *wanted], capture_output=True, check=False).returncode == 0


def main() -> None:
    """Print one line for each platform and Python; exit code 1 if a wheel is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--platform", action="append", help="part of a platform's name, such as Windows")
    options = parser.parse_args()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in lines if "==" in line and not line.startswith("#")}
    complete = True
    for name, (tags, environment) in PLATFORMS.items():
        if options.platform and not any(part.lower() in name.lower() for part in options.platform):
            continue
        for python in options.python or PYTHONS:
            versions = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
            wanted = sorted(pins[package] for package in packages(environment | versions))
            missing = (
                [] if offered(wanted, tags, python) else [one for one in wanted if not offered([one], tags, python)]
            )
            complete &= not missing
            text = f"{len(wanted) - len(missing)} of {len(wanted)} packages have a wheel"
            print(f"{name:16} Python {python:5} {text}{': not ' if missing else ''}{', '.join(missing)}", flush=True)
    sys.exit(not complete)


if __name__ == "__main__":
    main()
