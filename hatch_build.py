"""Write the commit into what is built, for `colonnade --version` where there is no checkout, and compile the C files.

The compiled files are optional: without a C compiler or Python's headers, or on other processors, alignment and the
simulator compute the same with Python and OpenSSL, more slowly. COLONNADE_PURE=1 makes a wheel without them, for all
platforms.
"""

import os
import platform
import runpy
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "colonnade/commit.txt", "sdist": "src/colonnade/commit.txt"}
COMPILED = (  # each from a file .c
    "colonnade/drivers/simulator/_bins",
    "colonnade/privacy/_curve25519",
    "colonnade/protocol/_trace",
)
FLAGS = ["-O3", "-shared", "-fPIC", "-fvisibility=hidden"]


class ColonnadeHook(BuildHookInterface[Any]):
    """An editable install runs in its checkout: it has the compiled file there, and takes the commit from git."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each build."""
        self.folder = tempfile.TemporaryDirectory(prefix="colonnade-build-")
        if version != "editable":
            self._write_commit(build_data)
        if self.target_name == "wheel":
            self._compile(version, build_data)

    def _write_commit(self, build_data: dict[str, Any]) -> None:
        commit_of = runpy.run_path(str(Path(self.root, "src/colonnade/release.py")))["commit_of"]
        commit = commit_of(Path(self.root))
        if commit is None:  # an unpacked sdist has the file of its own build
            return
        file = Path(self.folder.name) / "commit.txt"
        file.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(file)] = PLACES[self.target_name]

    def _compile(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("COLONNADE_PURE") or (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return
        editable = version == "editable"
        for name in COMPILED:
            place = f"{name}.abi3.so"
            file = Path(self.root, "src", place) if editable else Path(self.folder.name, Path(place).name)
            if self._compile_one(f"src/{name}.c", file) and not editable:
                build_data["force_include"][str(file)] = place
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _compile_one(self, source: str, file: Path) -> bool:
        """Whether the C compiler made this file."""
        file.unlink(missing_ok=True)  # an older one must not stay if this compiler fails
        compiler = os.environ.get("CC") or "cc"
        command = [*compiler.split(), *FLAGS, "-I", sysconfig.get_path("include"), source, "-o", str(file)]
        try:
            subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
            self.app.display_warning(f"{source} was not compiled, so what it does is slower: {said[0]}")
            return False
        return True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after each build."""
        self.folder.cleanup()
