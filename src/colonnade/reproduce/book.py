"""The book: results as Markdown tables and SVG figures, and the same as one HTML page. Nothing in it is typed."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from math import isinf
from pathlib import Path

from colonnade.reproduce.chart import Line, Panel, draw
from colonnade.reproduce.item import PAPERS, Check, Item
from colonnade.reproduce.judge import UNTESTED, Finding, findings, verdict_of
from colonnade.reproduce.result import FILE, Cell, Result, read_result

__all__ = [
    "book_html",
    "book_markdown",
    "checks_of",
    "duration_of",
    "figure_of",
    "markdown_table",
    "origin_of",
    "read_results",
    "state_of",
    "table_of",
    "write_book",
]

Results = Mapping[str, Result]


def read_results(folder: Path) -> dict[str, Result]:
    """The results in the folders of the items below this one."""
    found = [read_result(path) for path in sorted(folder.glob(f"*/{FILE}"))]
    return {one.item: one for one in found}


def state_of(item: Item, result: Result | None) -> str:
    """The verdict of an item in a few words; "" if it has not run."""
    if result is None:
        return ""
    if result.digest != item.digests.get(result.size):
        return "made with another version of this item: run it again"
    return verdict_of(findings(item, result))


def table_of(item: Item, result: Result) -> list[list[str]]:
    """Row by row: what was measured, with the paper's number in brackets."""
    columns = [one for one in item.columns if one.name not in result.untested]
    table = [["", *(one.name for one in columns)]]
    for row in item.rows:
        cells = []
        for column in columns:
            paper = row.paper.get(column.name)
            text = _cell(item, result.cell(row.name, column.name))
            cells.append(text + (f" ({paper:g})" if paper is not None and text else ""))
        if any(cells):
            table.append([row.name, *cells])
    return table


def _cell(item: Item, cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.number is None:
        return "†"
    if isinf(cell.number):
        missed = sum(value is None for value in cell.values)
        return f"– ({missed} of {len(cell.values)} did not get there)"
    digits = item.measure.digits
    spread = f" ± {cell.spread:.{digits}f}" if cell.spread else ""
    return f"{cell.number:.{digits}f}{spread}" + ("*" if cell.edges else "")


def checks_of(found: Sequence[Finding]) -> list[list[str]]:
    """What was compared, and the verdict."""
    table = [["claim", "holds if", "here", "verdict"]]
    for one in found:
        check = one.check
        other = check.against or (check.row if check.in_column else "")
        where = f" in {check.in_column}" if check.in_column else ""
        between = f" {'−' if check.compare == 'difference' else '/'} {other}{where}" if other else ""
        here = ", ".join(f"{column} {_compared(check, number)}" for column, number in one.numbers.items())
        why = f"; {UNTESTED}: {one.why}" if one.why else ""
        says = check.says + (" (our control)" if check.control else "")
        verdict = one.verdict if one.held else UNTESTED
        table.append([says, f"{check.row}{between} {check.holds}", here + why if here else one.why, verdict])
    return table


def _compared(check: Check, number: float) -> str:
    """A number in words; a ratio is 0 or infinite if one of the two runs did not reach its target."""
    if check.compare == "ratio" and (check.against or check.in_column) and (isinf(number) or not number):
        return f"({check.row if number else check.against or check.in_column} did not get there)"
    return f"{number:.3g}"


def figure_of(item: Item, result: Result) -> str:
    """The figure as SVG; "" if the item has none."""
    if item.figure is None:
        return ""
    panels = _curves(item, result) if item.figure.kind == "curves" else _over_columns(item, result)
    if not any(panel.lines for panel in panels):
        return ""
    look = item.figure
    return draw(panels, look.x_title or look.x, look.y_title or item.measure.name, log_x=look.log_x, log_y=look.log_y)


def _curves(item: Item, result: Result) -> list[Panel]:
    times = item.measure.times if item.figure and item.figure.y == "value" else 1.0
    return [
        Panel(column, [Line(name, x, [times * value for value in y]) for name, (x, y) in lines.items()])
        for column, lines in result.curves.items()
    ]


def _over_columns(item: Item, result: Result) -> list[Panel]:
    places = {one.name: one.x for one in item.columns if one.x is not None and one.name not in result.untested}
    lines = []
    for row in item.rows:
        cells = {name: result.cell(row.name, name) for name in places}
        here = [(places[name], cell.number) for name, cell in cells.items() if cell and cell.number is not None]
        if here:
            lines.append(Line(row.name, [x or 0.0 for x, _ in here], [y for _, y in here]))
        said = [(x, row.paper[name]) for name, x in places.items() if name in row.paper and x is not None]
        if here and len(said) > 1 and item.figure and item.figure.paper:
            lines.append(Line(f"{row.name}, paper", [x for x, _ in said], [y for _, y in said], row.name))
    return [Panel("", lines)]


# Pages


def book_markdown(known: Mapping[str, Item], results: Results, figures: str = "") -> str:
    """The page of all results; the files of the figures are in the folder `figures`."""
    parts = [_overview(known, results)]
    for paper in PAPERS:
        shown = [item for item in known.values() if item.paper == paper and item.id in results]
        parts += [f"## {paper}"] if shown else []
        for item in shown:
            parts += _section(item, results[item.id], figures)
    return "\n\n".join(part for part in parts if part) + "\n"


def _overview(known: Mapping[str, Item], results: Results) -> str:
    table = [["item", "paper", "claim", "verdict"]]
    for item in known.values():
        state = state_of(item, results.get(item.id)) or f"{UNTESTED}: not run"
        name = f"[{item.id}](#{item.id})" if item.id in results else item.id
        table.append([name, f"{item.paper}, {item.where}", item.claim, state])
    return markdown_table(table)


def _section(item: Item, result: Result, figures: str) -> list[str]:
    found = findings(item, result)
    picture = f"![{item.title}]({figures}{item.id}.svg)" if figure_of(item, result) else ""
    unit = f" in {item.measure.unit}" if item.measure.unit else ""
    spread = f", mean ± standard deviation over {result.seeds} seeds" if result.seeds > 1 else ""
    brackets = "; the paper's in brackets" if any(row.paper for row in item.rows) else ""
    said_by = "Our control" if item.control else "The paper"
    text = [
        f"### {item.id}",
        f"**{item.title}** ({item.paper}, {item.where}). {said_by}: {item.claim}",
        f"**Stand-in:** {item.stand_in}" if item.stand_in else "",
        f"{item.measure.name}{unit}{spread}{brackets}:",
        markdown_table(table_of(item, result)),
        _footnotes(item, result),
        picture,
        markdown_table(checks_of(found)),
        item.note,
        item.about,
        origin_of(item, result),
    ]
    return [part for part in text if part]


def _footnotes(item: Item, result: Result) -> str:
    notes = [f"- {name}: {UNTESTED}: {why}" for name, why in result.untested.items()]
    notes += [f"- † {one.row}, {one.column}: {one.fault}" for one in result.cells if one.fault]
    if any(one.edges for one in result.cells):
        notes.append("- \\* the chosen value is the first or the last of its grid")
    remarks = dict.fromkeys(f"- {one.row}: {text}" for one in result.cells for text in one.remarks)
    return "\n".join([*notes, *remarks])


def origin_of(item: Item, result: Result) -> str:
    """The command that made a result, and where it ran."""
    quick = " --quick" if result.size == "quick" else ""
    old = "" if result.digest == item.digests.get(result.size) else " **Made with another version of this item.**"
    return (
        f"`colonnade reproduce {item.id}{quick} --data DIR`, {duration_of(result)} on {result.machine}, "
        f"release {result.release} ({result.commit}).{old}"
    )


def duration_of(result: Result) -> str:
    """How long an item took, and how much of the processors."""
    used = f" ({result.processor_s:.0f} s of processor time)" if result.processor_s else ""
    return f"{result.seconds:.0f} s{used}"


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


STYLE = """:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #8886}
svg{max-width:100%;height:auto}"""


def book_html(known: Mapping[str, Item], results: Results) -> str:
    """The same page for a browser, in one file."""
    parts = []
    for block in book_markdown(known, results).split("\n\n"):
        image = re.fullmatch(r"!\[.*\]\((.*)\.svg\)", block)
        if image:
            parts.append(figure_of(known[image[1]], results[image[1]]))
        elif block.startswith("|"):
            rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
            head, *body = [rows[0], *rows[2:]]
            cells = "".join(f"<tr>{''.join(f'<td>{_inline(one)}</td>' for one in row)}</tr>" for row in body)
            parts.append(f"<table><tr>{''.join(f'<th>{_inline(one)}</th>' for one in head)}</tr>{cells}</table>")
        elif block.startswith("#"):
            level, _, text = block.partition(" ")
            parts.append(f'<h{len(level)} id="{escape(text)}">{escape(text)}</h{len(level)}>')
        elif block.startswith("- "):
            lines = block.removeprefix("- ").split("\n- ")
            parts.append(f"<ul>{''.join(f'<li>{_inline(line)}</li>' for line in lines)}</ul>")
        else:
            parts.append(f"<p>{_inline(block)}</p>")
    text = "\n".join(parts)
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = "Reproduction book"
    return f"<!doctype html>{meta}<title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n{text}\n"


def _inline(text: str) -> str:
    safe = escape(text.strip().replace("\\|", "|").replace("\\*", "*"))
    safe = re.sub(r"\[([^\]]+)\]\((#[^)]+)\)", r'<a href="\2">\1</a>', safe)
    safe = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", safe)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", safe)


def write_book(folder: Path, known: Mapping[str, Item], results: Results) -> Path:
    """Write book.html, book.md and the figures; returns the path of the first."""
    for name, result in results.items():
        if name in known and (svg := figure_of(known[name], result)):
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    shown = {name: result for name, result in results.items() if name in known}
    (folder / "book.md").write_text(book_markdown(known, shown), encoding="utf-8")
    (folder / "book.html").write_text(book_html(known, shown), encoding="utf-8")
    return folder / "book.html"
