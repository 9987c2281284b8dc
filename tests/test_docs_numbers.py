"""Every table of docs/ with measured numbers names the command that made it, or says that it was not kept.

The command stands in the section of the table, or between a heading above it and the first subsection. Blocks of
result files are compared with the files in tests/reproduce/test_book.py.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
PAGES = {
    name: text for name, text in PAGES.items() if not name.startswith("reference/")
}  # generated, and ignored by git
HEADING = re.compile(r"^(#+) (.*)$")
NUMBER = re.compile(r"[*~≈<>≤≥±+−–-]* ?\d[\d,.]*(?![\w.]*[a-z_]{3})")
COMMAND = re.compile(r"(?:^    |`|^\w*\$ )(?:[A-Z_]+=\S+ )*(?:colonnade|python3?|make) [\w\[-]", re.MULTILINE)
NOT_KEPT = re.compile(r"\bcommand\b[^.;]*\bwas\s+not\s+kept\b")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# (page, beginning of the table) → why its numbers were not measured, or where their command is.
EXCEPTIONS = {
    ("operate.md", "| command | saves | exit code |"): "exit codes",
    ("simulator.md", "| default | latency | bandwidth | computing |"): "defaults",
}


class Table(NamedTuple):
    lines: list[str]
    context: str  # its section, and the beginnings of the sections around it

    @property
    def measured(self) -> bool:
        """Whether at least half of the cells beside the first column are numbers."""
        cells = [cell.strip() for line in self.lines[2:] for cell in re.split(r"(?<!\\)\|", line)[2:-1]]
        filled = [cell for cell in cells if cell]
        return len(filled) > 1 and 2 * sum(bool(NUMBER.match(cell)) for cell in filled) >= len(filled)

    @property
    def explained(self) -> bool:
        return bool(COMMAND.search(self.context) or NOT_KEPT.search(self.context))


def tables_of(page: str) -> Iterator[Table]:
    sections: list[tuple[int, tuple[int, ...], list[str]]] = [
        (0, (), [])
    ]  # level, numbers of the sections above, lines
    indented = FENCE.sub(lambda block: re.sub("^", "    ", block[0], flags=re.MULTILINE), page)
    for line in indented.splitlines():
        if heading := HEADING.match(line):
            level = len(heading[1])
            above = next(path for other, path, _ in reversed(sections) if other < level)
            sections.append((level, (*above, len(sections)), []))
        else:
            sections[-1][2].append(line)
    for _, path, lines in sections:
        context = "\n".join("\n".join(sections[number][2]) for number in (0, *path))
        for table in re.findall(r"(?:^ *\|.*\n?){3,}", "\n".join(lines), re.MULTILINE):
            yield Table([line.strip() for line in table.splitlines()], context)


def unexplained(name: str, page: str) -> list[str]:
    """The heads of the tables without a command."""
    return [
        table.lines[0]
        for table in tables_of(page)
        if table.measured and not table.explained
        if not any(name == of and table.lines[0].startswith(begin) for of, begin in EXCEPTIONS)
    ]


def test_every_measured_table_has_its_command():
    found = {name: heads for name, page in PAGES.items() if (heads := unexplained(name, page))}
    assert not found, "name the command in the section, or say that it was not kept"
    assert sum(table.measured for page in PAGES.values() for table in tables_of(page)) > 120


def test_exceptions_are_needed():
    for (name, begin), why in EXCEPTIONS.items():
        heads = [table.lines[0] for table in tables_of(PAGES[name]) if table.measured and not table.explained]
        assert any(head.startswith(begin) for head in heads), f"{name}, {begin}: not needed any more ({why})"


def test_a_table_without_a_command_is_found():
    table = "| | a |\n|---|---|\n| x | 1.5 s |\n| y | 2 s |\n"
    for page, explained in [
        (f"# T\n\n## S\n\n{table}", False),
        (f"# T\n\n## Other\n\n    python benchmarks/race.py\n\n## S\n\n{table}", False),
        (f"# T\n\n## S\n\n    python benchmarks/race.py\n\n### Deeper\n\n{table}", True),
        (f"# T\n\n## S\n\nMade by `colonnade run race.toml`.\n\n{table}", True),
        (f"# T\n\n## S\n\n```sh\ncolonnade run race.toml\n```\n\n{table}", True),
        (f"# T\n\n## S\n\nIts command was not kept.\n\n{table}", True),
        ("# T\n\n| key | meaning |\n|---|---|\n| a | the number of rows |\n| b | the seed |\n", True),
    ]:
        assert (unexplained("page.md", page) == []) == explained
