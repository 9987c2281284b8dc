"""Write a first config: commented, complete, and ready for `certs`, `align` and `join`.

The upper part is the same at all members that give the same parties and method. The lower part belongs to this member.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from colonnade.algorithms import DEFAULT_METHOD, find_method
from colonnade.algorithms.method import SERVER, Defaults
from colonnade.config.resolve import make_plan, parties_of
from colonnade.config.schema import Config, from_dict
from colonnade.data.columns import check_name
from colonnade.data.formats import TABLES, format_of
from colonnade.protocol.errors import ConfigError

__all__ = ["Answers", "write_first_config"]

_CHOICES = " # a party's network: linear, dense, mlp:64,32, package.module:Class"

_SHARED = """\
# --- shared: the same in every member's file; the handshake compares it ---

[align] # when two ids are the same; colonnade align
unicode = "NFC" # or "NFKC" (also ligatures, full-width letters, ...), "keep"
trim = true # white space at both ends
case = "keep" # or "fold": A is a
leading_zeros = "keep" # or "drop": 007 is 7
duplicates = "refuse" # or "drop": the first row of an id stays
empty = "refuse" # or "drop": rows without an id
min_parties = 0 # 0: only rows that all members have; 2: rows that the server and any two parties have, ...

{model}
[protocol]
name = {method} # colonnade protocols lists the methods and what each reveals

[train] # batch_size, optimiser and learning_rate are left to the method
epochs = 20
seed = 0

[network]
parties = {parties} # in this order

# --- {name}'s own; paths start at the folder where the command is typed ---

"""

_MODEL = """\
[model]
party = {party}
embedding = {embedding} # numbers that a party sends for a row
aggregate = {aggregate}
server = {server}
"""

_IGNORED = """\
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


def write_first_config(folder: Path, answers: Answers) -> list[Path]:
    """Make the folder with NAME.toml, data/ and a .gitignore that excludes keys; changes nothing that exists."""
    text = _text(answers)
    _check(answers, from_dict(tomllib.loads(text)))
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
        ignored.write_text(_IGNORED, encoding="utf-8")
    return [path, folder / "data", ignored]


def _check(answers: Answers, config: Config) -> None:
    """Refuse what the commands would refuse later."""
    parties = parties_of(config)
    if answers.name not in (*parties, SERVER):
        raise ConfigError("NAME", answers.name, f"is neither 'server' nor one of the parties: {', '.join(parties)}")
    for party in parties:
        check_name(party, "--parties")
    method = find_method(answers.method)
    if method.joint is not None:
        raise ConfigError("--method", answers.method, "needs all columns in one place: it runs in the simulator only")
    needs_label = answers.name == SERVER or method.capabilities.party_labels
    if needs_label and answers.label is None:
        raise ConfigError("--label", None, f"name the column of {answers.data} to predict")
    if not needs_label and answers.label is not None:
        raise ConfigError("--label", answers.label, f"with {answers.method} only the server holds the labels")
    make_plan(config, parties, rows=1000, task=None)


def _text(answers: Answers) -> str:
    server, name = answers.name == SERVER, answers.name
    verb = "serve server.toml" if server else f"join {name}.toml --party {name}"
    shared = _SHARED.format(
        model=_model(answers.method), method=_toml(answers.method), parties=_toml(list(answers.parties)), name=name
    )
    return (
        f"# {'The server' if server else f'The party {name}'}:  colonnade align {name}.toml, then  colonnade {verb}\n\n"
        f"{shared}{_network(answers)}\n{_own(answers)}"
    )


def _model(method: str) -> str:
    preferred = find_method(method).defaults
    if preferred.party is None:
        return ""
    party = _toml(preferred.party) + (_CHOICES if preferred.party == Defaults().party else "")
    return _MODEL.format(
        party=party,
        embedding=preferred.embedding,
        aggregate=_toml(preferred.aggregate),
        server=_toml(preferred.server),
    )


def _network(answers: Answers) -> str:
    if answers.name == SERVER:
        where, home = '# where it listens; "0.0.0.0:7450" for parties on other machines', "federation/"
    else:
        where, home = "# of the server", ""
    return (
        f"address = {_toml(answers.address)} {where}\n"
        f'certificate = "{home}{answers.name}.pem" # colonnade certs makes these four\n'
        f'key = "{home}{answers.name}.key"\n'
        f'authority = "{home}ca.pem"\n'
        f'members = "{home}members.toml"\n'
    )


def _own(answers: Answers) -> str:
    label = "" if answers.label is None else f"label = {_toml(answers.label)} # the column to predict\n"
    return (
        f"[{'server' if answers.name == SERVER else 'party'}]\n"
        f"data = {_toml(answers.data)} # CSV or Parquet\n{_format(answers)}"
        f"id = {_toml(answers.id)} # the column with the ids\n{label}"
        f'aligned = "{answers.name}-order.safetensors" # align writes the common order here, training reads it\n'
    )


def _format(answers: Answers) -> str:
    """Return the `format` line, only if the file's name does not tell the format."""
    section = "server" if answers.name == SERVER else "party"
    if format_of(answers.data, None, (*TABLES, "npz", "npy"), section) is not None:
        return ""
    return 'format = "csv" # or "parquet": the file name does not show it\n'


def _toml(value: str | list[str]) -> str:
    """Write a string or a list of strings as TOML; JSON strings are valid TOML."""
    return msgspec.json.encode(value).decode()
