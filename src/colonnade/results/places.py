"""The folders under runs/ that a command uses if it is given none."""

from pathlib import Path

__all__ = ["align_folder", "fresh_folder", "nodes_of", "own_folder", "usual_folder"]

RUNS = Path("runs")


def fresh_folder(name: str) -> Path:
    """Return the first of runs/NAME-1, runs/NAME-2, … that does not exist."""
    number = 1
    while (path := RUNS / f"{name}-{number}").exists():
        number += 1
    return path


def own_folder(config: Path, role: str) -> Path:
    """Return the folder of one role: the same at every start, so that the role continues."""
    return RUNS / (role if config.stem == role else f"{config.stem}-{role}")


def align_folder(config: Path, role: str) -> Path:
    """Return the folder of one member of an alignment, beside its training folder."""
    training = own_folder(config, role)
    return training.with_name(f"{training.name}-align")


def usual_folder(config: Path) -> Path:
    """Return the config's own folder if it is a run's, else where `serve` writes, else the newest that `up` made."""
    if config.name == "config.toml" and nodes_of(config.parent).is_dir():
        return config.parent
    served = own_folder(config, "server")
    made = [path for path in RUNS.glob(f"{config.stem}-*") if path.name.rpartition("-")[2].isdecimal()]
    made = [path for path in made if nodes_of(path).is_dir()]
    newest = max(made, key=lambda path: int(path.name.rpartition("-")[2]), default=served)
    return served if served.is_dir() else newest


def nodes_of(folder: Path) -> Path:
    """Return where `up` keeps the folders of all roles; a run without it has its roles elsewhere, or none."""
    return folder / "nodes"
