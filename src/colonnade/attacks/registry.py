"""Attacks by name; your own is an `Attack`, named by its dotted path `package.module:ATTACK`."""

import importlib

from colonnade.attacks import ATTACKS
from colonnade.attacks.attack import Attack
from colonnade.data.suggest import did_you_mean
from colonnade.protocol.errors import ConfigError

__all__ = ["find_attack"]


def find_attack(name: str) -> Attack:
    """Return the attack of this name or dotted path; raises ConfigError if there is none."""
    path = ATTACKS[name].path if name in ATTACKS else name
    module, colon, attribute = path.partition(":")
    if not colon:
        hint = did_you_mean(name, ATTACKS)
        raise ConfigError("attack", name, f"unknown attack{hint}; there are: {', '.join(ATTACKS)}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("attack", path, f"cannot be imported: {error}") from None
    if not isinstance(found, Attack):
        raise ConfigError("attack", path, f"is a {type(found).__name__}, not a colonnade Attack")
    return found
