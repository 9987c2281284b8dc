"""What every member has in its own process: a config, a folder, a log and a certificate."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from colonnade.algorithms.method import SERVER
from colonnade.config.continuing import Continuation
from colonnade.config.resolve import Plan
from colonnade.config.schema import Config
from colonnade.data import Alignment, load_alignment
from colonnade.drivers.processes.certificates import Identity, Members, read_members
from colonnade.drivers.processes.identity import key_digest
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.protocol.errors import ConfigError
from colonnade.results.trained import find_models, find_run, kept_continuation

__all__ = [
    "SHARE",
    "OwnSide",
    "alignment_of",
    "continuation_of",
    "limits_of",
    "load_identity",
    "members_of",
    "refuse_joint",
    "stop_on_signals",
]

SHARE = ".safetensors"  # the suffix of a share that was made on this machine


class OwnSide:
    """One member of a federation, with the fingerprints of all members."""

    before: Continuation | None = None  # the run that this one continues

    def __init__(self, config: Config, out: Path, log: Log) -> None:
        config.diagnose.refuse_apart()
        self.config, self.out, self.log = config, out, log
        self.identity, self.pins = load_identity(config), members_of(config)
        self.authority = key_digest(self.identity.authority)
        self.on_renewed: list[Callable[[], None]] = []  # called when the files below have changed

    def reload(self) -> None:
        """Read certificate, key, authority and list again; raises ConfigError, and then nothing has changed."""
        identity, pins = load_identity(self.config), members_of(self.config)
        if identity.name != self.identity.name:
            advice = f"is the certificate of {identity.name}, not of {self.identity.name}"
            raise ConfigError("network.certificate", self.config.network.certificate, advice)
        if key_digest(identity.authority) != self.authority:
            advice = "is another authority: a federation keeps the key of its authority; put the old file back"
            raise ConfigError("network.authority", self.config.network.authority, advice)
        self.identity, self.pins = identity, pins


def continuation_of(out: Path, given: Path | None, name: str) -> Continuation | None:
    """The run that this member continues: as kept in its own folder, or as given for a new folder."""
    kept = kept_continuation(out)
    if given is None:
        return kept
    if kept is None:
        if (out / "state").is_dir() or (out / "config.toml").is_file():
            advice = f"the run in {out} starts from untrained networks: choose another --out"
            raise ConfigError("--continue", str(given), advice)
        found = find_run(given)
        found.require([name])
        return found.only(name)
    if given.is_dir() and find_models(given, "--continue")[0] != kept.run:
        raise ConfigError("--continue", str(given), f"the run in {out} continues {kept.folder}: choose another --out")
    return kept  # the same command, typed again: the earlier folder may be gone by now


def alignment_of(path: str | None, name: str, section: str) -> Alignment | None:
    """The row order that `colonnade align` wrote for this member; None if its rows are in order already."""
    if path is None:
        return None
    if not Path(path).expanduser().is_file():
        raise ConfigError(
            f"{section}.aligned", path, "there is no such file: run colonnade align CONFIG.toml, which writes it"
        )
    found = load_alignment(path)
    if found.name != name:
        raise ConfigError(f"{section}.aligned", path, f"is the order of {found.name}'s rows, not of {name}'s")
    return found


def limits_of(config: Config) -> Limits:
    """The node's part of `[network]`."""
    network = config.network
    return Limits(**{name: getattr(network, name) for name in Limits.__dataclass_fields__})


def load_identity(config: Config) -> Identity:
    """This member's certificate, checked before any connection; raises ConfigError."""
    network = config.network
    for key in ("certificate", "key", "authority"):
        if getattr(network, key) is None:
            raise ConfigError(f"network.{key}", None, "name the file; to make it, see `colonnade certs --help`")
    return Identity.load(Path(str(network.certificate)), Path(str(network.key)), Path(str(network.authority)))


def members_of(config: Config) -> Members:
    """The pinned fingerprints of all members; raises ConfigError if one is missing that was not revoked."""
    if config.network.members is None:
        raise ConfigError(
            "network.members", None, "name the list of members (members.toml) that `colonnade certs sign` writes"
        )
    members = read_members(Path(config.network.members))
    if missing := members.missing(config.network.parties):
        raise ConfigError("network.members", config.network.members, f"has no fingerprint of {', '.join(missing)}")
    return members.only((*config.network.parties, SERVER))


def refuse_joint(plan: Plan) -> None:
    """Raise ConfigError for a joint method, which needs all columns in one place."""
    if plan.method.joint is not None:
        advice = "needs all columns in one place: it runs in the simulator only"
        raise ConfigError("protocol.name", plan.method.name, advice)


def stop_on_signals(node: Node) -> None:
    """Make SIGINT and SIGTERM stop the node cleanly."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals belong to the main thread
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":  # asyncio cannot handle signals there
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(node.stop))
        else:
            loop.add_signal_handler(number, node.stop)
