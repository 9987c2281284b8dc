"""Write the commit into a wheel and an sdist, for `colonnade --version` where there is no checkout."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "colonnade/commit.txt", "sdist": "src/colonnade/commit.txt"}


class CommitHook(BuildHookInterface[Any]):
    """An editable install needs no such file: it runs in its checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each build."""
        commit_of = runpy.run_path(str(Path(self.root, "src/colonnade/release.py")))["commit_of"]
        commit = commit_of(Path(self.root))
        if version == "editable" or commit is None:  # an unpacked sdist has the file of its own build
            return
        self.folder = tempfile.TemporaryDirectory(prefix="colonnade-build-")
        file = Path(self.folder.name) / "commit.txt"
        file.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(file)] = PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling after each build."""
        if hasattr(self, "folder"):
            self.folder.cleanup()
