"""Hooks of mkdocs: the Markdown of docs/ is written for GitHub, and mkdocs reads two things differently.

Python-Markdown wants the inside of a list item indented by four spaces, and a blank line before a list. Files outside
docs/ (examples/) are no pages: a page's links to them are turned to copies inside the site.
"""

import re
from pathlib import Path

__all__ = ["for_python_markdown", "links_outside"]

_ITEM = re.compile(r"(?P<marker>[-*]|\d+\.)(?P<gap> +)\S")
_FENCE = re.compile(r" *(```+|~~~+)")
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)(examples/[^)#\s]+)\)")


def for_python_markdown(text: str) -> str:
    """The same lists, as Python-Markdown reads them."""
    lines: list[str] = []
    inside: list[int] = []  # the column where the text of each open list item starts
    fence = ""
    after_blank = True
    for line in text.splitlines():
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        if fence:
            lines.append(_moved(line, inside))
            if body.startswith(fence) and not body.strip("`~ "):
                fence = ""
            continue
        if not body:
            lines.append("")
            after_blank = True
            continue
        item = _ITEM.match(body)
        if item or after_blank:  # other lines continue the paragraph above
            while inside and indent < inside[-1]:
                inside.pop()
        if item and indent - (inside[-1] if inside else 0) < 4:
            if not after_blank and not _in_list(lines):
                lines.append("")
            lines.append(" " * 4 * len(inside) + item["marker"] + " " + body[item.end() - 1 :])
            inside.append(indent + item.end() - 1)
        else:
            lines.append(_moved(line, inside))
            opened = _FENCE.match(line)
            fence = opened[1] if opened else ""
        after_blank = False
    return "\n".join(lines) + "\n"


def _moved(line: str, inside: list[int]) -> str:
    """A line inside list items, four spaces for each."""
    if not inside or not line.strip():
        return line
    deeper = max(len(line) - len(line.lstrip(" ")) - inside[-1], 0)
    return " " * (4 * len(inside) + deeper) + line.lstrip(" ")


def _in_list(lines: list[str]) -> bool:
    """Whether the paragraph that the last line belongs to is an item of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line.lstrip(" ")):
            return True
    return False


def links_outside(text: str) -> list[str]:
    """The files of examples/ that a page links to, from the root of the repository."""
    return [target for _, target in _OUTSIDE.findall(text)]


def on_files(files, config):
    """Copy linked examples into the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests load this file without mkdocs

    docs = Path(config.docs_dir)
    linked = {target for page in files.documentation_pages() for target in links_outside(page.content_string)}
    for target in sorted(linked):
        files.append(File.generated(config, target, abs_src_path=str(docs.parent / target)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links to examples to the copies, then indent lists as Python-Markdown wants it."""
    markdown = _OUTSIDE.sub(lambda link: f"]({link[1][3:]}{link[2]})", markdown)
    return for_python_markdown(markdown)
