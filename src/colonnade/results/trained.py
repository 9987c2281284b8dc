"""The files of trained networks: what a finished run leaves for later runs, and what a later run keeps of it.

    model.safetensors        the members whose networks this folder has: of a party, of the server, or of all
    continued.safetensors    in the folder of a run that continues another one: a copy of what it started from

The copy makes the new folder independent of the old one: the run can be resumed, and predict, without it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from colonnade import __version__
from colonnade.config.continuing import Continuation, TrainedMember
from colonnade.data.suggest import listing
from colonnade.drivers.files import replace_file
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.privacy.ledger import Earlier, audit, earlier_of
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError, DamagedFile
from colonnade.protocol.role import SERVER
from colonnade.protocol.saved import form_of
from colonnade.results.places import nodes_of

__all__ = ["CONTINUED", "MODEL", "find_models", "find_run", "keep_continuation", "kept_continuation", "write_models"]

MODEL, CONTINUED = "model.safetensors", "continued.safetensors"
FORMAT = 1
_KINDS = {MODEL: "trained networks", CONTINUED: "start of a continued run"}


def write_models(folder: Path, run: str, members: Sequence[TrainedMember]) -> None:
    """Write the networks of a finished run; only the owner may read them."""
    _write(folder / MODEL, {"run": run, "members": _plain(members)})


def find_models(folder: Path, key: str = "RUN") -> tuple[str, dict[str, TrainedMember]]:
    """Return the run's id and the members whose networks a run's folder has; `key` names the argument in errors."""
    if not folder.is_dir():
        raise ConfigError(key, str(folder), "there is no such folder: name the folder of a run that has ended")
    paths = _model_files(folder)
    if not paths:
        raise ConfigError(key, str(folder), _why_none(folder))
    found = [_read(path) for path in paths]
    runs = {content["run"] for content in found}
    if len(runs) > 1:
        raise ConfigError(key, str(folder), "its roles are of different runs: name the folder of one run")
    members = [member for content in found for member in content["members"]]
    return runs.pop(), {member.name: member for member in members}


def find_run(folder: Path) -> Continuation:
    """Return what a new run can take over from this folder; raises ConfigError or CheckpointError if there is none."""
    run, members = find_models(folder, "--continue")
    parties = [member for member in members.values() if member.name != SERVER and member.accounted]
    earlier = {member.name: _account(folder, member.name) for member in parties}
    return Continuation(folder.resolve().name, run, members, earlier)


def keep_continuation(folder: Path, before: Continuation | None) -> None:
    """Write what this run starts from into its own folder."""
    if before is None:
        return
    earlier = {name: form_of(Earlier).plain(one) for name, one in before.earlier.items()}
    content = {"run": before.run, "folder": before.folder, "earlier": earlier}
    _write(folder / CONTINUED, content | {"members": _plain(before.members.values())})


def kept_continuation(folder: Path) -> Continuation | None:
    """Return what the run in this folder started from; None if it continues no other run."""
    path = folder / CONTINUED
    if not path.is_file():
        return None
    found = _read(path)
    earlier = {name: form_of(Earlier).typed(one) for name, one in found["earlier"].items()}
    return Continuation(found["folder"], found["run"], {one.name: one for one in found["members"]}, earlier)


def _plain(members: Iterable[TrainedMember]) -> list[Any]:
    return [form_of(TrainedMember).plain(member) for member in members]


def _write(path: Path, content: dict[str, Any]) -> None:
    about = {"kind": _KINDS[path.name], "format": FORMAT, "release": __version__}
    try:
        replace_file(path, state.chunks(about | content), 0o600)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None


def _read(path: Path) -> dict[str, Any]:
    """Return a file's content with typed members; every error names the file."""
    try:
        found: dict[str, Any] = state.unpack(path.read_bytes())
        if not isinstance(found, dict) or found.get("kind") != _KINDS[path.name]:
            raise DamagedFile(f"this is not a file of {_KINDS[path.name]}")
        if found.get("format") != FORMAT:
            made = f"format {found.get('format')} of release {found.get('release')}"
            raise CheckpointError(f"{made}; release {__version__} reads format {FORMAT}: install the release that fits")
        return found | {"members": [form_of(TrainedMember).typed(one) for one in found["members"]]}
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedFile(f"{path}: damaged: {error!r}") from None


def _model_files(folder: Path) -> list[Path]:
    """Return the file of this folder; of a federation on one machine, the files of its roles."""
    own = folder / MODEL
    return [own] if own.is_file() else sorted(nodes_of(folder).glob(f"*/run/{MODEL}"))


def _why_none(folder: Path) -> str:
    path = folder / "summary.json"
    if path.is_file():
        status = json.loads(path.read_text(encoding="utf-8")).get("status")
        if status == "finished":
            return "has no trained networks: an earlier release, or a method that does not give its weights, made it"
        if status == "diverged":
            return "its training diverged, so there are no weights to use: name the folder of a run that finished"
    if (folder / "config.toml").is_file() or (folder / "state").is_dir():
        return "has not finished: finish it first, with --resume, or by starting its roles again in the same folder"
    there = listing(sorted(one.name for one in folder.iterdir())[:5])
    return f"holds no run ({there or 'it is empty'}): name the folder of a run that has ended"


def _account(folder: Path, name: str) -> Earlier:
    """Return what a party has spent. Its ledger is locked while it is read: no other process may add releases."""
    places = [
        folder / "ledger.jsonl",
        folder / "ledgers" / f"{name}.jsonl",
        nodes_of(folder) / name / "run/ledger.jsonl",
    ]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder}: the privacy ledger of {name} is missing, so its releases cannot be counted")
    file = LedgerFile(path)
    try:
        terms, lines, account = audit(file.open(), str(path))
    finally:
        file.close()
    if terms["party"] != name:
        raise CheckpointError(f"{path}: is the ledger of {terms['party']}, not of {name}")
    newest = lines[-1] if lines else terms
    return earlier_of(account, f"{newest['n']}:{newest['hash']}")
