"""What every process has of its own: a config, a folder, a log, a certificate; and what it does with them."""

import asyncio
import signal
import sys
import threading
from pathlib import Path

from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import Plan
from colonnade.config.schema import Config
from colonnade.data import Alignment, load_alignment
from colonnade.drivers.processes.certificates import Identity, read_members
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.protocol.errors import ConfigError

__all__ = [
    "SHARE",
    "OwnSide",
    "alignment_of",
    "limits_of",
    "load_identity",
    "members_of",
    "refuse_joint",
    "stop_on_signals",
]

SHARE = ".safetensors"  # the suffix of a share that was made on this machine


class OwnSide:
    """One member of a federation, and the fingerprints of all."""

    def __init__(self, config: Config, out: Path, log: Log) -> None:
        self.config, self.out, self.log = config, out, log
        self.identity, self.pins = load_identity(config), members_of(config)


def alignment_of(path: str | None, name: str, section: str) -> Alignment | None:
    """The order that `colonnade align` wrote for this side; None: its rows are in order as they stand."""
    if path is None:
        return None
    if not Path(path).expanduser().is_file():
        raise ConfigError(f"{section}.aligned", path, "there is no such file: colonnade align CONFIG.toml writes it")
    found = load_alignment(path)
    if found.name != name:
        raise ConfigError(f"{section}.aligned", path, f"is the order of {found.name}'s rows, not of {name}'s")
    return found


def limits_of(config: Config) -> Limits:
    """The node's part of `[network]`."""
    network = config.network
    return Limits(**{name: getattr(network, name) for name in Limits.__dataclass_fields__})


def load_identity(config: Config) -> Identity:
    """This side's certificate, checked before anything is dialled."""
    network = config.network
    for key in ("certificate", "key", "authority"):
        if getattr(network, key) is None:
            raise ConfigError(f"network.{key}", None, "name the file; `colonnade certs --help` says how to make it")
    return Identity.load(Path(str(network.certificate)), Path(str(network.key)), Path(str(network.authority)))


def members_of(config: Config) -> dict[str, str]:
    """The pinned fingerprints of all members."""
    if config.network.members is None:
        raise ConfigError("network.members", None, "name the list of members that `colonnade certs sign` keeps")
    members = read_members(Path(config.network.members))
    missing = [name for name in (*config.network.parties, SERVER) if name not in members]
    if missing:
        raise ConfigError("network.members", config.network.members, f"has no fingerprint of {', '.join(missing)}")
    return {name: members[name] for name in (*config.network.parties, SERVER)}


def refuse_joint(plan: Plan) -> None:
    """An oracle over everybody's data has no sides."""
    if plan.method.joint is not None:
        advice = "needs all columns in one place: it runs in the simulator only"
        raise ConfigError("protocol.name", plan.method.name, advice)


def stop_on_signals(node: Node) -> None:
    """SIGINT and SIGTERM stop the node cleanly."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals belong to the main thread
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":  # its loops take no signals
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(node.stop))
        else:
            loop.add_signal_handler(number, node.stop)
