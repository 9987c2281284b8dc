"""Ask the operator for an option that was not typed."""

import sys

import typer

__all__ = ["ask", "at_a_terminal"]


def at_a_terminal() -> bool:
    return sys.stdin.isatty()


def ask(given: str | None, flag: str, question: str, default: str | None = None) -> str:
    """Return the flag's value; else the operator's answer at a terminal; else the default."""
    from colonnade.protocol.errors import ConfigError

    if given is not None:
        return given
    if at_a_terminal():
        return str(typer.prompt(question, default=default))
    if default is None:
        raise ConfigError(
            flag, None, f"add the flag, or run the command in a terminal, where it asks: {question.lower()}"
        )
    return default
