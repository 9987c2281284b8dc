"""The commit of this release: from git in a checkout, from the file that hatch_build.py writes into a wheel."""

import os
import subprocess
from pathlib import Path

__all__ = ["commit", "commit_of"]


def commit() -> str | None:
    """Return the commit of this code; None if neither a file nor a checkout gives it."""
    written = Path(__file__).with_name("commit.txt")
    if written.is_file():
        return written.read_text(encoding="ascii").strip()
    return commit_of(Path(__file__).resolve().parents[2])


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, 12 digits, followed by "-dirty" if tracked files differ from it."""
    if not (root / ".git").exists():
        return None  # git would find the checkout of another project around it
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
