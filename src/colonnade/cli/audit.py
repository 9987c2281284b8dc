"""`colonnade audit`: check and read the audit logs of a member."""

from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.printing import say
from colonnade.protocol.errors import ConfigError

__all__ = ["audit_app"]

audit_app = typer.Typer(
    help="Check and read a member's audit log: who joined, left, was refused, or asked for predictions.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Place = Annotated[
    Path,
    typer.Argument(metavar="FILE_OR_FOLDER", help="An audit.jsonl, or a folder such as runs/server."),
]


@audit_app.command()
def verify(
    place: Place,
    receipt: Annotated[
        str,
        typer.Option(
            metavar="N:HASH", help="A receipt that an earlier check printed: the log must still hold this line."
        ),
    ] = "",
) -> None:
    """Check that no line was changed, added or removed; exit code 1 and the first wrong line if one was.

    The chain cannot show that lines were cut off at the end. Keep the receipt that this command prints, and check it
    the next time.

    Examples:
      colonnade audit verify runs/server
      colonnade audit verify runs/server --receipt 41:9f86d0…
    """
    from colonnade.drivers.chained_file import ChainBroken, generations, verify
    from colonnade.protocol.chain import parse_receipt

    if receipt and parse_receipt(receipt) is None:
        raise ConfigError("--receipt", receipt, "must be a number, a colon and 64 hexadecimal digits")
    whole, held = True, False
    for path in _files(place):
        try:
            found = verify(generations(path), receipt)
        except ChainBroken as error:
            say(f"Broken: {error}")
            whole = False
            continue
        for note in found.notes:
            say(f"Note: {note}")
        say(f"Whole: {path}: {found.lines} lines" + (f"; receipt {found.head}" if found.head else ""))
        held = held or found.holds
    if receipt and not held:
        say(f"Missing: no line is {receipt}: it was removed, or the log belongs to another member")
    if not whole or (receipt and not held):
        raise typer.Exit(1)


@audit_app.command()
def show(
    place: Place,
    since: Annotated[str, typer.Option(metavar="TIME", help="Only later lines, e.g. 2026-11-16 or 2d, 3h, 10m.")] = "",
    event: Annotated[
        list[str] | None, typer.Option(metavar="EVENT", help="Only these events, e.g. refused; repeatable.")
    ] = None,
    last: Annotated[int, typer.Option(help="How many of the newest lines; 0: all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON.")] = False,
) -> None:
    """Print the lines of an audit log, the oldest first. To check the chain, use verify.

    Examples:
      colonnade audit show runs/server
      colonnade audit show runs/server --event refused --since 2d --json
    """
    from collections import deque

    from colonnade.drivers.chained_file import generations, read_lines
    from colonnade.protocol.strict_json import to_json

    begin = _begin(since)
    files = [path for name in _files(place) for path in generations(name)]
    lines = (line for line in read_lines(files) if str(line.get("time", "")) >= begin)
    found = deque((line for line in lines if not event or line.get("event") in event), last or None)
    for line in found:
        print(to_json(line) if as_json else _words(line))
    if not found and not as_json:
        say("No such line.")


def _files(place: Path) -> list[Path]:
    """The newest file of every audit log here; raises ConfigError if there is none."""
    folders = [place, *sorted(place.glob("nodes/*/run"))]  # the latter in a folder that `up` made
    inside = [folder / name for folder in folders for name in ("audit.jsonl", "predict/audit.jsonl")]
    found = [path for path in ([place] if place.is_file() else inside) if path.is_file()]
    if not found:
        advice = "has no audit.jsonl; name the folder of a member, such as runs/server"
        raise ConfigError("FILE_OR_FOLDER", str(place), advice)
    return found


def _begin(since: str) -> str:
    """The least time of a line, as lines write it."""
    import re
    import time
    from datetime import UTC, datetime

    from colonnade.drivers.chained_file import utc

    ago = re.fullmatch(r"(\d{1,6})([dhms])", since)
    if ago is not None:
        return utc(max(0.0, time.time() - int(ago[1]) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[ago[2]]))
    try:
        found = datetime.fromisoformat(since) if since else None
    except ValueError:
        raise ConfigError("--since", since, "use a UTC time such as 2026-11-16T21:40, or 2d, 3h, 10m") from None
    if found is None:
        return ""
    return utc(found.replace(tzinfo=found.tzinfo or UTC).timestamp())


def _words(line: dict[str, Any]) -> str:
    from colonnade.protocol.foreign import harmless

    own = ("n", "time", "role", "event", "fields", "hash", "follows")
    fields = line.get("fields") if isinstance(line.get("fields"), dict) else {}
    rest = {**(fields or {}), **{key: value for key, value in line.items() if key not in own}}
    words = " ".join(f"{key}={_short(value)}" for key, value in rest.items())
    event = line.get("event", "question" if "who" in line else "")
    return harmless(f"{line.get('time', ''):<21} {line.get('role', '')!s:<10} {event}  {words}".rstrip(), 1000)


def _short(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text else text
