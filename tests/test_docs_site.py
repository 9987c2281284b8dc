"""The docs site without mkdocs: every page is in the nav, every link resolves, the generated reference is complete."""

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from colonnade.algorithms import METHODS
from colonnade.config.schema import Config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, hooks = _load("generate"), _load("hooks")
GENERATED = {f"docs/reference/{name}": text for name, text in generate.pages().items()}
WRITTEN = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if not path.is_relative_to(DOCS / "reference")
}
PAGES = WRITTEN | GENERATED


def _prose(text: str) -> str:
    """A page without its code blocks, where brackets are no links."""
    text = re.sub(r"^( *)(```+).*?^ *\2`*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?:(?: {4,}.*)?\n)+", lambda code: "" if not _LISTED.search(code[0]) else code[0], text)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "code", text, flags=re.DOTALL)


_LISTED = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and pymdownx make them, and those that it sets itself."""
    text_without_code = re.sub(r"^( *)(```+).*?^ *\2`*$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text_without_code, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return found


def test_every_page_is_in_the_nav_once():
    listed = re.findall(r"(?:- |: )(\S+\.md)$", NAV, re.MULTILINE)
    pages = [name.removeprefix("docs/") for name in PAGES if name != "README.md"]
    assert {"not in the nav": set(pages) - set(listed), "no such page": set(listed) - set(pages)} == {
        "not in the nav": set(),
        "no such page": set(),
    }
    assert len(listed) == len(set(listed))


def test_every_link_and_anchor_resolves():
    dead = []
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(text)):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            found = target in PAGES or (ROOT / target).exists()
            if not found or (anchor and anchor not in _anchors(PAGES[target])):
                dead.append(f"{page}: {link}")
    assert dead == []


def test_the_reference_has_every_key_and_command():
    config, cli = GENERATED["docs/reference/config.md"], GENERATED["docs/reference/cli.md"]
    for section in msgspec.structs.fields(Config):
        body = re.search(rf"^## `\[{section.name}\]`\n(.*?)(?=^## |\Z)", config, re.MULTILINE | re.DOTALL)[1]
        for field in msgspec.structs.fields(section.type) if generate._is_struct(section.type) else ():
            assert f"\n| `{field.name}` |" in body, f"{section.name}.{field.name}"
    assert "## `colonnade compare`" in cli
    assert "| `--seeds SEEDS` | `1` |" in cli
    methods = GENERATED["docs/reference/methods.md"]
    assert re.findall(r"^## `(.+)`$", methods, re.MULTILINE) == list(METHODS)


class Riddle(msgspec.Struct):
    known: int = 1  # a meaning
    unknown: int = 2


def test_a_key_that_nothing_explains_is_refused():
    with pytest.raises(KeyError, match="Riddle.unknown"):
        generate.key_table(Riddle, {})
    table = generate.key_table(Riddle, {"unknown": ("–", "told")})
    assert "| `known` | integer | `1` | a meaning |\n| `unknown` | integer | `2` | told |" in table


def test_the_guides_name_no_key_that_is_gone():
    """Tables of keys in the guides of single sections and methods."""
    known = {field.name for method in METHODS.values() for field in msgspec.structs.fields(method.options)}
    known |= {field.name for section in generate.GUIDES for field in msgspec.structs.fields(_section(section))}
    known |= {"epsilon", "mu", "claim_of_own_rows"}  # docs/methods/fedvs.md: keys of a summary
    for page in WRITTEN:
        if page not in ("README.md", "docs/config.md"):
            assert set(generate.guide(page.removeprefix("docs/"))) <= known, page


def _section(name: str) -> type[msgspec.Struct]:
    return next(field.type for field in msgspec.structs.fields(Config) if field.name == name)


def test_which_method_when_agrees_with_the_methods():
    """The table "What each method can do" says what Capabilities and Defaults say."""
    table = WRITTEN["docs/which-method.md"].partition("## What each")[2]
    rows = re.findall(r"^\| (`[^|]+) \|(.*)\|$", table, re.MULTILINE)
    seen = set()
    for names, rest in rows:
        labels, peers, models, privacy, lacking, dropout = (cell.strip() for cell in rest.split("|"))
        for name in re.findall(r"`([\w-]+)`", names):
            seen.add(name)
            method, can = METHODS[name], METHODS[name].capabilities
            assert labels.startswith("every party" if can.party_labels else "the server"), name
            assert ("shared" in labels) == hasattr(method.options, "labels"), name
            assert (peers, lacking, dropout) == tuple(map(_word, (can.peers, can.lacking, can.party_dropout))), name
            assert tuple(re.findall(r"`([\w-]+)`", models)) == can.party_models, name
            assert (models == "linear") == (method.defaults.party is None), name
            assert tuple(re.findall(r"`([\w-]+)`", privacy)) == can.local_updates, name
    assert seen == set(METHODS) - {"centralised"}


def _word(value: bool) -> str:
    return "yes" if value else "no"


def test_every_diagram_follows_light_and_dark():
    diagrams = sorted((DOCS / "diagrams").glob("*.svg"))
    text = "".join(PAGES.values())
    assert len(diagrams) > 5
    for diagram in diagrams:
        assert "prefers-color-scheme: dark" in diagram.read_text(encoding="utf-8"), diagram.name
        assert f"diagrams/{diagram.name}" in text, f"no page shows {diagram.name}"


def test_lists_are_indented_for_python_markdown():
    written = (
        "Text:\n1. one\n   more\n\n   - inner\n     lazy\n"
        "2. two\n\n   ```\n   code\n     deep\n   ```\n\nEnd\n\n    - code\n"
    )
    read = (
        "Text:\n\n1. one\n    more\n\n    - inner\n        lazy\n"
        "2. two\n\n    ```\n    code\n      deep\n    ```\n\nEnd\n\n    - code\n"
    )
    assert hooks.for_python_markdown(written) == read


def test_links_to_examples_are_found():
    assert hooks.links_outside("[a](../examples/a.toml) [b](b.md) [c](../../examples/d/c.py)") == [
        "examples/a.toml",
        "examples/d/c.py",
    ]
