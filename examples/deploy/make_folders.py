"""Three organisations, three folders, each with its own data and config: python examples/deploy/make_folders.py DIR

Breast-cancer data of scikit-learn: a clinic and a laboratory have half of the columns each, the server the diagnosis.
The patient numbers are made up; all files have them in the same order.

With --apart the tables are realistic input for colonnade align: each organisation knows only some patients, in an
order of its own. The clinic writes ids in lower case and has a few patients twice. There are no configs yet.
"""

import csv
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sklearn.datasets import load_breast_cancer

KNOWN = {"server": 540, "clinic": 500, "lab": 450}  # patients of 569


def write(path: Path, columns: list[str], rows: list[list[object]]) -> None:
    """Write one CSV file, with numbers as Python prints them, so that reading them back loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    print(f"{path}: {len(rows)} patients; {', '.join(columns[:4])}{', ...' if columns[4:] else ''}")


def tables() -> Iterator[tuple[str, str, list[str], list[list[object]]]]:
    """For each organisation: its folder, its file, the columns, the rows."""
    data = load_breast_cancer()
    patients = [f"P{number:04}" for number in range(1, len(data.target) + 1)]
    names, half = [str(name) for name in data.feature_names], len(data.feature_names) // 2
    labels = [[patient, str(data.target_names[y])] for patient, y in zip(patients, data.target, strict=True)]
    yield "server", "labels.csv", ["patient", "diagnosis"], labels
    for party, part in (("clinic", slice(half)), ("lab", slice(half, None))):
        rows = [[patient, *x[part]] for patient, x in zip(patients, data.data.tolist(), strict=True)]
        yield party, f"{party}.csv", ["patient", *names[part]], rows


def main(target: Path) -> None:
    """Write server/labels.csv, clinic/clinic.csv and lab/lab.csv, and each one's config beside its data."""
    for name, file, columns, rows in tables():
        write(target / name / file, columns, rows)
        shutil.copyfile(Path(__file__).with_name(f"{name}.toml"), target / name / f"{name}.toml")


def main_apart(target: Path) -> None:
    """Write the same tables to data/, each with its own patients in its own order."""
    for name, file, columns, rows in tables():
        random.Random(name).shuffle(rows)
        rows = rows[: KNOWN[name]]
        if name == "clinic":
            rows = [[f" {str(row[0]).lower()}", *row[1:]] for row in (*rows, *rows[:3])]
        write(target / name / "data" / file, columns, rows)


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--apart"]
    if len(arguments) != 1:
        sys.exit("usage: python examples/deploy/make_folders.py DIR [--apart]")
    (main_apart if "--apart" in sys.argv else main)(Path(arguments[0]))
