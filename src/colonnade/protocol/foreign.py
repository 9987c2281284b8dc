"""Make text that another member chose harmless, before a person sees it.

A terminal obeys escape sequences, a bidi override reorders a line, and a newline starts a log line that no role wrote.
Text of another member enters in three places, and each calls `harmless`: the fields of a control body (`read_control`),
the fields of a role's message (`Codec.decode`), and the cause of an error that blames a peer (`RemoteProtocolError`).
"""

from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

__all__ = ["LONGEST", "clean_struct", "clean_tree", "harmless", "text_fields"]

LONGEST = 500  # characters of a text that another member chose


def harmless(text: str, longest: int = LONGEST) -> str:
    """The text on one line, with every unprintable character as a Python escape, cut to `longest` characters.

    Printable text of that length stays as it is, so a second call changes nothing.
    """
    if len(text) <= longest and text.isprintable():
        return text
    cut = text[: longest + 1]  # first: an escape is longer than its character
    shown = "".join(letter if letter.isprintable() else _escape(letter) for letter in cut)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


@cache
def text_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that hold a text, such as a cause or a digest, or a tuple of names.

    A list of texts is data, such as ids: a role looks them up, never shows them, and must get them unchanged.
    """
    return tuple(field.name for field in msgspec.structs.fields(kind) if _is_text(field.type))


def _is_text(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_text(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(_is_text(part) for part in get_args(annotation))
    return annotation is str or annotation == tuple[str, ...]


def clean_struct(content: msgspec.Struct, names: tuple[str, ...]) -> None:
    """Make these texts of a struct harmless. Only for a struct that was just decoded: it changes in place."""
    for name in names:
        text: str | tuple[str, ...] | None = getattr(content, name)
        clean = tuple(map(harmless, text)) if isinstance(text, tuple) else text and harmless(text)
        if clean != text:
            msgspec.structs.force_setattr(content, name, clean)


def clean_tree(value: Any) -> Any:
    """A copy of decoded JSON with harmless texts, in keys too."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {clean_tree(key): clean_tree(item) for key, item in value.items()}
    return [clean_tree(item) for item in value] if isinstance(value, list) else value
