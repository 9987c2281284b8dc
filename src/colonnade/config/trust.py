"""A config that names `package.module:NAME` is code: to read the name is to import the module.

In a simulation the user wrote the config. In a federation its shared part comes from other members, so each member says
on its own command line which modules it trusts. A key of the file could not say that: the sender may have set it, too.
An installed package that adds a method by an entry point needs no permission, because this side installed it.
"""

from collections.abc import Iterator, Sequence

from colonnade.config.schema import Config
from colonnade.models.build import is_dotted
from colonnade.protocol.errors import ConfigError

__all__ = ["modules_of", "refuse_untrusted"]


def modules_of(config: Config) -> list[str]:
    """The modules that this config imports, each once."""
    return list(dict.fromkeys(name.partition(":")[0] for _, name in _dotted(config)))


def refuse_untrusted(config: Config, trusted: Sequence[str]) -> None:
    """Raise ConfigError for a name in a module that is neither trusted nor inside a trusted package."""
    for key, name in _dotted(config):
        module = name.partition(":")[0]
        if not any(module == own or module.startswith(f"{own}.") for own in trusted):
            advice = (
                f"would run the code of the module {module!r}, and a federation's config may come from another member; "
                f"if you trust that module, add --trust {module}"
            )
            raise ConfigError(key, name, advice)


def _dotted(config: Config) -> Iterator[tuple[str, str]]:
    """Every key that names code, with the name."""
    method = config.protocol.get("name")
    if isinstance(method, str) and ":" in method:
        yield "protocol.name", method
    parties = config.model.party if isinstance(config.model.party, list) else [config.model.party]
    for key, names in (("model.party", parties), ("model.server", [config.model.server])):
        for name in names:
            if isinstance(name, str) and is_dotted(name):
                yield key, name
