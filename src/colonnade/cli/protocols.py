"""`colonnade protocols`: every method in a line, or all about one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.printing import say

if TYPE_CHECKING:
    from colonnade.algorithms.method import Defaults, Method

__all__ = ["protocols"]

WIDTH = 100  # characters of a line of the list
# A heading for methods without a short form of what they reveal.
OTHER = "From other packages (`colonnade protocols NAME` says what they reveal)"


def protocols(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A method. Default: list all.")] = None,
) -> None:
    """List the methods, grouped by what they reveal; with NAME: one method's options, defaults, paper and page.

    Examples:
      colonnade protocols
      colonnade protocols fedvs
    """
    from colonnade.algorithms import find_method

    if name is not None:
        _show(find_method(name))
    else:
        _list()


def _list() -> None:
    """Print one screen: a heading for each group, a line for each method."""
    from colonnade.algorithms import DEFAULT_METHOD, METHODS
    from colonnade.algorithms.registry import installed

    others = installed()
    groups: dict[str, list[Method[Any]]] = {}
    for method in (*METHODS.values(), *others.methods.values()):
        groups.setdefault(method.exposes or OTHER, []).append(method)
    names = max(len(method.name) for group in groups.values() for method in group)
    for words, group in groups.items():
        say(f"{words}:")
        for method in group:
            say(_shortened(f"  {method.name:{names}}  {method.summary}"))
    for broken, why in others.faults.items():
        say(f"Cannot be used: {broken}: {why}")
    say(f"A config that names no method gets {DEFAULT_METHOD}. More about one: colonnade protocols NAME")


def _shortened(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _show(method: "Method[Any]") -> None:
    import msgspec

    say(f"{method.name}: {method.summary}")
    say(f"\nPaper: {method.paper}")
    if method.page:
        say(f"Page: {method.page if '/' in method.page else f'docs/methods/{method.page}'}")
    say(f"\nReveals: {method.reveals}")
    say("\nDefaults of other sections, if the config leaves them out:")
    for key, value in _defaults(method.defaults).items():
        say(f"  {key} = {value}")
    fields = msgspec.structs.fields(method.options)
    say("\nOptions of [protocol], with their defaults:" if fields else "\nIt has no options of its own.")
    for option in fields:
        say(f"  {option.name} = {_toml(option.default)}")
    say(f"\nTo run it: colonnade run --set protocol.name={method.name}")


def _defaults(defaults: "Defaults") -> dict[str, str]:
    """Return the defaults by the config's keys; a method without networks has no model."""
    rate = defaults.learning_rate
    rates = {"server": rate[0], "party": rate[1]} if isinstance(rate, tuple) else rate
    model = {
        "model.party": defaults.party, "model.embedding": defaults.embedding, "model.server": defaults.server,
        "model.aggregate": defaults.aggregate,
    }  # fmt: skip
    train = {
        "train.optimiser": defaults.optimiser, "train.learning_rate": rates, "train.batch_size": defaults.batch_size,
        "train.epochs": defaults.epochs, "train.patience": defaults.patience,
    }  # fmt: skip
    scale = {} if defaults.scale is None else {"data.scale": defaults.scale}
    return {key: _toml(value) for key, value in (scale | (model if defaults.party else {}) | train).items()}


def _toml(value: object) -> str:
    """Write a value as in a config; a key without a default is chosen by the method, or not used."""
    if value is None:
        return "(left out)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
