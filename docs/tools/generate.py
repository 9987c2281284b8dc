"""Write the generated part of the reference into docs/reference/ (`make docs` runs this; git ignores the folder).

    python docs/tools/generate.py [FOLDER]

Keys, types, defaults and choices come from the config's structs and the methods' options, commands from the typer
app, and the list of Python names from `colonnade.__all__`. What a key means is written once: in the table `| key | … |`
of the section's guide, or, if the guide has no such row, in the comment behind the field.
"""

import inspect
import posixpath
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import typer

import colonnade
from colonnade import linear
from colonnade.algorithms import METHODS
from colonnade.algorithms.method import Method
from colonnade.cli.main import app
from colonnade.config.schema import Config

DOCS = Path(__file__).parents[1]
FOLDER = "reference"
# The page whose tables explain a section, if it is not config.md.
GUIDES = {"privacy": "privacy.md", "network": "network.md", "align": "align.md", "predict": "predict.md"}
# Further pages that explain a method's options, if its own page leaves them out.
SHARED = {"swift.md": ("vafl.md",), "zeroth.md": ("vafl.md",)}
_FIELD = re.compile(r"^    (?P<name>\w+): .*?  # (?P<comment>.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_CELL = re.compile(r"(?<!\\)\|")
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", Any: "any value"}


def pages() -> dict[str, str]:
    """The generated pages: the name of the file → its text."""
    return {"config.md": config_page(), "methods.md": methods_page(), "cli.md": cli_page(), "api.md": api_page()}


# --- config keys -----------------------------------------------------------------------------------------------------


def config_page() -> str:
    """Every section of the config."""
    parts = [
        "# All config keys",
        "This page is generated from the code. A dash means that a key has no default. "
        "[Config keys](../config.md) is the guide: how keys work together, and one config for several methods.",
    ]
    for section in msgspec.structs.fields(Config):
        struct = section.type if _is_struct(section.type) else None
        if struct is None:
            parts += [f"## `[{section.name}]`", _FREE[section.name]]
            continue
        parts += [f"## `[{section.name}]`", _first(struct)]
        meanings = guide(GUIDES.get(section.name, "config.md"), section.name)
        parts.append(key_table(struct, meanings))
        for inner in _inner_structs(struct):
            parts += [f"### {section.name}: `{inner.__name__}`", _first(inner), key_table(inner, {})]
    return "\n\n".join(parts) + "\n"


# The sections without a struct of their own.
_FREE = {
    "protocol": "`name`: the method (a string, `swift` by default). The other keys are the options of that method: "
    "see [the methods' options](methods.md).",
    "methods": "`[methods.NAME]`: dotted keys that hold for one method of `compare` and `sweep`, "
    "[explained in the guide](../config.md#methodsname).",
}


def key_table(struct: type[msgspec.Struct], meanings: dict[str, tuple[str, str]]) -> str:
    """The fields of a struct as a Markdown table; raises KeyError for a field that no guide and no comment explains."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        default, meaning = meanings.get(field.name, ("–", ""))
        meaning = meaning or comment(struct, field.name)
        if not meaning:
            where = f"{struct.__module__}.{struct.__name__}.{field.name}"
            raise KeyError(f"no guide explains {where}: add a row to its table of keys, or a comment behind the field")
        if (own := default_of(field)) != "–":
            default = own  # a guide says what happens if a key without a default is left out
        rows.append(f"| `{field.name}` | {toml_type(field.type)} | {default} | {meaning} |")
    return "\n".join(rows) if len(rows) > 2 else "It has no keys of its own."


def guide(page: str, section: str | None = None) -> dict[str, tuple[str, str]]:
    """Key → default and meaning, from the tables of a page whose first column is called `key`.

    `section`: only tables below the heading that names `[section]`, if the page has one.
    """
    found: dict[str, tuple[str, str]] = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    if section is not None:
        below = re.search(rf"^## `\[{section}\]`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        text = below[1] if below else text
    in_table = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]] if line.startswith("|") else []
        if not cells:
            in_table = False
        elif cells[0] == "key":
            in_table = True
        elif in_table and cells[-1]:
            for key in re.findall(r"`(\w+)`", cells[0]):
                found.setdefault(key, (_move_links(cells[1], page), _move_links(cells[-1], page)))
    return found


def comment(struct: type, name: str) -> str:
    """The comment behind a field, in its class or the nearest base class that has one."""
    for base in struct.__mro__:
        if _is_struct(base) and base is not msgspec.Struct:
            comments = {match["name"]: match["comment"] for match in _FIELD.finditer(inspect.getsource(base))}
            if name in comments:
                return _escape(comments[name])
    return ""


def _move_links(text: str, page: str) -> str:
    """Relative links of a page, as they are from docs/reference/."""

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match["path"])) if match["path"] else page
        return f"]({posixpath.relpath(target, FOLDER)}{match['anchor'] or ''})"

    return _LINK.sub(moved, text)


def toml_type(annotation: object) -> str:
    """An annotation in the words of TOML; None is left out, because a key without a value is left out."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{_toml(value)}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(toml_type(part) for part in inside if part is not type(None))
    if origin is list:
        return f"list of {toml_type(inside[0])}"
    if origin is dict:
        return f"table of {toml_type(inside[1])}"
    if _is_struct(annotation):
        return f"table `{annotation.__name__}`"
    return _WORDS[annotation]


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """A field's default, as TOML would say it."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return "–" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        value = {
            field.name: given
            for field in msgspec.structs.fields(value)
            if (given := getattr(value, field.name)) != field.default
        }
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _is_struct(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _inner_structs(struct: type) -> list[type]:
    """The structs inside a struct's fields, each once, in the order of their first use."""
    found: dict[type, None] = {}

    def visit(annotation: object) -> None:
        if _is_struct(annotation) and annotation not in found:
            found[annotation] = None
            for field in msgspec.structs.fields(annotation):
                visit(field.type)
        for part in get_args(annotation):
            visit(part)

    for field in msgspec.structs.fields(struct):
        visit(field.type)
    return list(found)


def _first(documented: object) -> str:
    """The first paragraph of a docstring."""
    return _escape((inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " "))


def _escape(text: str) -> str:
    """For a cell of a table."""
    return text.replace("|", "\\|")


# --- methods ---------------------------------------------------------------------------------------------------------


def methods_page() -> str:
    """Every method: what it reveals, its options and its defaults."""
    parts = [
        "# The methods' options",
        "This page is generated from the code. [Which method when](../which-method.md) helps to choose one.",
    ]
    for method in METHODS.values():
        parts += [
            f"## `{method.name}`",
            f"{method.summary[0].upper()}{method.summary[1:]}. From: {method.paper}. "
            f"[Its page](../methods/{method.page}).",
            f"**Reveals:** {method.reveals}.",
            _abilities(method),
            _defaults(method),
            "Options in `[protocol]`:",
            key_table(method.options, _option_meanings(method)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _option_meanings(method: Method[Any]) -> dict[str, tuple[str, str]]:
    known: dict[str, tuple[str, str]] = {}
    for page in (method.page, *SHARED.get(method.page, ())):
        known = guide(f"methods/{page}") | known
    return known


def _abilities(method: Method[Any]) -> str:
    can = method.capabilities
    facts = [
        "The labels are at every party." if can.party_labels else "",
        "Parties talk to each other." if can.peers else "",
        "It takes sparse data." if can.sparse else "",
        "It can train with `train.party_dropout`." if can.party_dropout else "",
        "It can train on rows that some parties lack." if can.lacking else "",
        f"`[privacy]` works, with `local_updates` {_choices(can.local_updates)}." if can.local_updates else "",
        f"Only `model.party` of the kind {_choices(can.party_models)}." if can.party_models else "",
        f"Only `model.aggregate` {_choices(can.aggregates)}." if can.aggregates else "",
        "It cannot make predictions." if method.predictor is None else "",
    ]
    return "\n".join(f"- {fact}" for fact in facts if fact)


def _choices(values: tuple[str, ...]) -> str:
    return " or ".join(f'`"{value}"`' for value in values)


def _defaults(method: Method[Any]) -> str:
    values = {name: getattr(method.defaults, name) for name in method.defaults.__slots__}
    if values["party"] is None:  # a linear method has no networks
        for name in ("party", "embedding", "server", "aggregate"):
            del values[name]
    if isinstance(values["learning_rate"], tuple):
        server, party = values["learning_rate"]
        values["learning_rate"] = {"server": server, "party": party}
    shown = ", ".join(f"`{name} = {_toml(value)}`" for name, value in values.items() if value is not None)
    return f"Defaults: {shown}."


# --- commands --------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command."""
    parts = ["# Commands", "This page is generated from the code. `colonnade COMMAND --help` prints the same."]
    for path, command in _commands("colonnade", typer.main.get_command(app)):
        parts += [f"## `{path}`", *_help(inspect.cleandoc(command.help or ""))]
        if hasattr(command, "commands"):
            parts.append("Commands: " + ", ".join(f"`{path} {name}`" for name in command.commands) + ".")
        rows = [_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            parts.append("\n".join(["| argument or option | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", inner)


def _help(text: str) -> list[str]:
    """A command's help; its indented lines (examples) as a block of code."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text.replace("\b", "")):
        lines = block.splitlines()
        code = [line for line in lines if line.startswith("  ")]
        if prose := " ".join(line.strip() for line in lines if not line.startswith("  ")):
            parts.append(re.sub(r"\[/?\w*\]", "", prose) if "[/" in prose else prose)
        if code:
            parts.append("```console\n" + inspect.cleandoc("\n".join(code)) + "\n```")
    return parts


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or parameter.name.upper()}"
        name = ", ".join(f"`{option}{value}`" for option in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if parameter.required:
        shown = "required"
    else:
        shown = "–" if default is None or default is False or callable(default) else f"`{default}`"
    help_text = " ".join((getattr(parameter, "help", None) or "").split()).replace("\\[", "[")  # rich's escape
    if parameter.name == "version" and not help_text:
        help_text = "Print the version and exit."
    return f"| {name} | {shown} | {_escape(help_text)} |"


# --- Python ----------------------------------------------------------------------------------------------------------


def api_page() -> str:
    """The public Python names; mkdocstrings fills in signatures and docstrings."""
    parts = [
        "# Python API",
        "The names of `import colonnade`, from their docstrings.",
        *(_directive(getattr(colonnade, name)) for name in colonnade.__all__ if name != "__version__"),
        "## `colonnade.linear`",
        _first(linear),
        *(_directive(getattr(linear, name)) for name in linear.__all__),
    ]
    return "\n\n".join(parts) + "\n"


def _directive(documented: Any) -> str:
    return f"::: {documented.__module__}.{documented.__qualname__}"


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
