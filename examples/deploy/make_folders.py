"""Three organisations, three folders, each with its own data and config: python examples/deploy/make_folders.py DIR

Breast-cancer data of scikit-learn: a clinic and a laboratory have half of the columns each, the server the diagnosis.
The patient numbers are made up; all files have them in the same order.
"""

import csv
import shutil
import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer


def write(path: Path, columns: list[str], rows: list[list[object]]) -> None:
    """One CSV file; the numbers as Python prints them, so that reading them back loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    print(f"{path}: {len(rows)} patients; {', '.join(columns[:4])}{', ...' if columns[4:] else ''}")


def main(target: Path) -> None:
    """Write server/labels.csv, clinic/clinic.csv and lab/lab.csv, and each one's config beside its data."""
    data = load_breast_cancer()
    patients = [f"P{number:04}" for number in range(1, len(data.target) + 1)]
    names, half = [str(name) for name in data.feature_names], len(data.feature_names) // 2
    labels = [[patient, str(data.target_names[y])] for patient, y in zip(patients, data.target, strict=True)]
    write(target / "server" / "labels.csv", ["patient", "diagnosis"], labels)
    for party, part in (("clinic", slice(half)), ("lab", slice(half, None))):
        rows = [[patient, *x[part]] for patient, x in zip(patients, data.data.tolist(), strict=True)]
        write(target / party / f"{party}.csv", ["patient", *names[part]], rows)
    for name in ("server", "clinic", "lab"):
        shutil.copyfile(Path(__file__).with_name(f"{name}.toml"), target / name / f"{name}.toml")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/deploy/make_folders.py DIR")
    main(Path(sys.argv[1]))
