"""Write a first config: commented, complete, and ready for `certs`, `align` and `join`.

The upper part is the same at all members. It comes from the operator's settings, or from the federation's invitation.
The lower part belongs to this member.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms import DEFAULT_METHOD, find_method
from colonnade.algorithms.method import SERVER, Defaults
from colonnade.config.resolve import make_plan, parties_of
from colonnade.config.schema import Config, apply_overrides, from_dict
from colonnade.config.shared import is_shared
from colonnade.data import IdRules
from colonnade.data.columns import check_name
from colonnade.data.formats import TABLES, format_of
from colonnade.protocol.errors import ConfigError

__all__ = ["IGNORED", "Answers", "first_config", "write_first_config"]

_UPPER = ("align", "model", "protocol", "train", "data", "privacy")
_LOWER = ("party", "server", "predict")
_BARE = re.compile(r"[A-Za-z0-9_-]+")

_COMMENTS = {
    "align": "when two ids are the same; colonnade align",
    "align.unicode": 'or "NFKC" (also ligatures, full-width letters, ...), "keep"',
    "align.trim": "white space at both ends",
    "align.case": '"keep", or "fold": A is a',
    "align.leading_zeros": '"keep", or "drop": 007 is 7',
    "align.duplicates": '"refuse", or "drop": the first row of an id stays',
    "align.empty": '"refuse", or "drop": rows without an id',
    "align.min_parties": "0: only rows that all members have; 2: rows that the server and any two parties have, ...",
    "model.embedding": "numbers that a party sends for a row",
    "protocol.name": "colonnade protocols lists the methods and what each reveals",
    "network.parties": "in this order",
    "network.certificate": "colonnade accept and colonnade certs make these four",
    "party.data": "CSV or Parquet",
    "party.id": "the column with the ids",
    "party.label": "the column to predict",
    "party.columns": "the features; a..b is a range",
    "party.categorical": "columns whose numbers are codes",
    "party.predict_data": "further rows, for predictions alone",
    "party.aligned": "align writes the common order here, training reads it",
    "predict.stay": "answer predictions after the training",
    "predict.away": "what replaces a party that does not answer, in this order",
}
_COMMENTS |= {f"server.{key}": _COMMENTS[f"party.{key}"] for key in ("data", "id", "label", "aligned")}
_CHOICES = "a party's network: linear, dense, mlp:64,32, package.module:Class"
_OPEN_TRAIN = ("batch_size", "optimiser", "learning_rate")

IGNORED = """\
# private: keys, data, orders of rows, runs
*.key
*.safetensors
data/
federation/
runs/
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the operator must say; everything else has a default that can be changed in the file."""

    name: str  # "server", or the party's name
    parties: tuple[str, ...]
    data: str
    id: str
    label: str | None = None
    address: str = "127.0.0.1:7450"
    method: str = DEFAULT_METHOD
    more: Mapping[str, Any] = field(default_factory=dict)  # further settings, by their dotted keys
    shared: Mapping[str, Any] | None = None  # the tables of an invitation, instead of `parties` and `method`


def write_first_config(folder: Path, answers: Answers) -> list[Path]:
    """Make the folder with NAME.toml, data/ and a .gitignore that excludes keys; changes nothing that exists."""
    text = first_config(answers)
    path = folder / f"{answers.name}.toml"
    if path.exists():
        raise ConfigError(
            "--dir",
            str(folder),
            f"{path.name} exists already, and was not changed; choose another folder or remove the file",
        )
    (folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text, encoding="utf-8")
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text(IGNORED, encoding="utf-8")
    return [path, folder / "data", ignored]


def first_config(answers: Answers) -> str:
    """The text of the config; raises ConfigError for what the commands would refuse later."""
    text = _text(answers, apply_overrides(_tables(answers), answers.more))
    _check(answers, from_dict(tomllib.loads(text)))
    return text


def _check(answers: Answers, config: Config) -> None:
    """Refuse what the commands would refuse later."""
    parties = parties_of(config)
    if answers.name not in (*parties, SERVER):
        raise ConfigError("NAME", answers.name, f"is neither 'server' nor one of the parties: {', '.join(parties)}")
    for party in parties:
        check_name(party, "--parties")
    method = find_method(str(config.protocol.get("name", DEFAULT_METHOD)))
    if method.joint is not None:
        raise ConfigError("--method", method.name, "needs all columns in one place: it runs in the simulator only")
    needs_label = answers.name == SERVER or method.capabilities.party_labels
    if needs_label and answers.label is None:
        raise ConfigError("--label", None, f"name the column of {answers.data} to predict")
    if not needs_label and answers.label is not None:
        raise ConfigError("--label", answers.label, f"with {method.name} only the server holds the labels")
    make_plan(config, parties, rows=1000, task=None)


def _tables(answers: Answers) -> dict[str, Any]:
    shared = _first_shared(answers) if answers.shared is None else answers.shared
    network = shared.get("network", {}) | _network(answers)
    return {**shared, "network": network, SERVER if answers.name == SERVER else "party": _own(answers)}


def _first_shared(answers: Answers) -> dict[str, Any]:
    """The shared part for operators that change nothing: every key that a federation is likely to change."""
    preferred = find_method(answers.method).defaults
    names = ("party", "embedding", "aggregate", "server")
    model = {} if preferred.party is None else {"model": {name: getattr(preferred, name) for name in names}}
    limited = any(f"train.{unit}" in answers.more for unit in ("updates", "seconds"))
    return {
        "align": msgspec.to_builtins(IdRules()),
        **model,
        "protocol": {"name": answers.method},
        "train": ({} if limited else {"epochs": 20}) | {"seed": 0},
        "network": {"parties": list(answers.parties)},
    }


def _network(answers: Answers) -> dict[str, Any]:
    home = "federation/" if answers.name == SERVER else ""
    return {
        "address": answers.address,
        "certificate": f"{home}{answers.name}.pem",
        "key": f"{home}{answers.name}.key",
        "authority": f"{home}ca.pem",
        "members": f"{home}members.toml",
    }


def _own(answers: Answers) -> dict[str, Any]:
    section = SERVER if answers.name == SERVER else "party"
    known = format_of(answers.data, None, (*TABLES, "npz", "npy"), section) is not None
    return {
        "data": answers.data,
        **({} if known else {"format": "csv"}),
        "id": answers.id,
        **({} if answers.label is None else {"label": answers.label}),
        "aligned": f"{answers.name}-order.safetensors",
    }


def _text(answers: Answers, tables: dict[str, Any]) -> str:
    server, name = answers.name == SERVER, answers.name
    verb = "serve server.toml" if server else f"join {name}.toml --party {name}"
    network = tables["network"]
    shared = {key: value for key, value in network.items() if is_shared("network", key)}
    own = {key: value for key, value in network.items() if key not in shared}
    rest = [section for section in tables if section not in (*_UPPER, *_LOWER, "network")]
    parts = [
        f"# {'The server' if server else f'The party {name}'}:  colonnade align {name}.toml, then  colonnade {verb}\n",
        "# --- shared: the same in every member's file; the handshake compares it ---\n",
        *(_section(section, tables[section]) for section in _UPPER if section in tables),
        _section("network", shared),
        f"# --- {name}'s own; paths start at the folder where the command is typed ---\n",
        "\n".join(_lines("network", own, server)) + "\n",
        *(_section(section, tables[section], server) for section in (*_LOWER, *rest) if section in tables),
    ]
    return "\n".join(parts)


def _section(name: str, table: Any, server: bool = False) -> str:
    if not isinstance(table, Mapping):
        raise ConfigError(name, table, "is a section of the config, not a value")
    comment = _COMMENTS.get(name, "")
    if name == "train" and not any(key in table for key in _OPEN_TRAIN):
        comment = f"{', '.join(_OPEN_TRAIN[:2])} and {_OPEN_TRAIN[2]} are left to the method"
    return "\n".join([f"[{_key(name)}]{_remark(comment)}", *_lines(name, table, server)]) + "\n"


def _lines(section: str, table: Mapping[str, Any], server: bool = False) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_key(key)} = {_toml(value)}{_remark(_comment(section, key, value, server))}"


def _comment(section: str, key: str, value: Any, server: bool) -> str:
    dotted = f"{section}.{key}"
    if dotted == "model.party" and value == Defaults().party:
        return _CHOICES
    if dotted == "network.address":
        return 'where it listens; "0.0.0.0:7450" for parties on other machines' if server else "of the server"
    if key == "format" and section in ("party", SERVER):
        return 'or "parquet": the file name does not show it'
    if section in _UPPER and not is_shared(section, key):
        return "this member's own"
    return _COMMENTS.get(dotted, "")


def _remark(comment: str) -> str:
    return f" # {comment}" if comment else ""


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    """Write a value of a config as TOML on one line."""
    match value:
        case str():  # JSON strings are valid TOML, except for one character
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{_key(key)} = {_toml(item)}' for key, item in value.items())}}}"
    raise ConfigError("--set", value, "must be a text, a number, true, false, a list or a table")
