"""What a process runs: a training, an alignment or predictions.

A host (`ServerHost`, `PartyHost`) does what all three have in common: it listens or dials, watches, and closes. An
application says what is its own. Here is all that a host asks of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from colonnade.deployment.own_side import OwnSide
from colonnade.deployment.terms import Terms
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import Peer
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import Bye, End, Hello, Position
from colonnade.protocol.errors import TrainingDiverged

__all__ = ["Pace", "PartyApplication", "ServerApplication", "Stalled", "end_of", "parties_now"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run moves on, as the host sees it."""

    per_s: float = 0.0  # updates, between the last two
    waited_s: float = 0.0  # since the last one


class ServerApplication(Protocol):
    """What is a server's own. Its node keeps what the application wants kept (see `Keeper`)."""

    @property
    def side(self) -> OwnSide:
        """Its config, folder, log and certificate."""

    @property
    def node(self) -> Node:
        """Runs its role."""

    @property
    def shared(self) -> dict[str, Any]:
        """What all members must have alike."""

    @property
    def terms(self) -> Terms:
        """What a party's hello must say."""

    @property
    def run_id(self) -> str:
        """Tells this run from every other."""

    @property
    def relay(self) -> bool:
        """Whether the parties talk to each other."""

    @property
    def admit_late(self) -> bool:
        """Whether a party may come when the others have begun."""

    @property
    def metrics_port(self) -> int | None:
        """Where Prometheus may ask."""

    def attach(self, service: Service) -> None:
        """The host has made its service: it knows which party was connected when, and the parties' goodbyes."""

    def update(self) -> int | None:
        """Grows while the run moves on; None: there is nothing to wait for."""

    def waits_for(self) -> list[str]:
        """The parties that the next step needs."""

    def status(self, pace: Pace) -> dict[str, Any]:
        """Its part of the live table."""

    def opened(self) -> None:
        """The node is open, and no party is admitted yet: the last moment to refuse."""

    def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AbstractAsyncContextManager[None]:
        """What is open while parties are admitted."""

    def ended(self) -> End:
        """How the run ended; "stopped": the parties are to wait until this server is back. Raises what went wrong."""

    def summary(self, end: End) -> Mapping[str, Any]:
        """With "status" and "note"."""

    def write(self, summary: Mapping[str, Any]) -> None:
        """Keep the summary of a run that was not stopped."""

    def say_end(self, summary: Mapping[str, Any]) -> None:
        """The last lines of the log."""


class PartyApplication(Protocol):
    """What is a party's own."""

    @property
    def side(self) -> OwnSide:
        """Its config, folder, log and certificate."""

    @property
    def node(self) -> Node:
        """Runs its role."""

    @property
    def peers(self) -> bool:
        """Whether the parties talk to each other."""

    def update(self) -> int | None:
        """The last update that the role heard of, for the log."""

    def told_before(self) -> End | None:
        """The end that an earlier start of this process heard of."""

    def prepare(self) -> None:
        """Before the node opens: refuse what does not fit."""

    def say_start(self, server: str) -> None:
        """The dialler begins to call the server at this address."""

    def hello(self, instance: int, position: Position) -> Hello:
        """What it says first."""

    def meet(self, run: str) -> None:
        """The server is there with this run; raise if it is another one than before."""

    def farewell(self, end: End, relay_refused: int | None) -> Bye:
        """The server says that it is over; what to answer."""

    def closed(self, met: bool) -> None:
        """The node is closed; whether the server was ever met."""

    def ended(self, end: End, relay_refused: int | None) -> None:
        """Write the summary, and say so. `relay_refused`: frames of others; None: there is no relay."""


class Stalled(Exception):
    """No party that could move the run on has come back in time."""


def end_of(node: Node) -> End:
    """How a node's run ended, in a word and a note; raises an error that is no end of a run."""
    error = node.error
    if isinstance(error, TrainingDiverged):
        return End("diverged", str(error))
    if isinstance(error, Stalled):
        return End("stalled", str(error))
    if error is not None:
        raise error
    return End("finished" if node.finished else "stopped")


def parties_now(node: Node, staleness: Sequence[float] = ()) -> list[dict[str, Any]]:
    """The rows of the live table."""
    return [
        {
            "name": peer.name,
            "state": _state_of(peer),
            "steps_per_s": round(peer.rate(), 2),
            "staleness": round(staleness[index], 2) if index < len(staleness) else None,
            "bytes_up": peer.bytes_in,
            "bytes_down": peer.bytes_out,
            "bytes_eval": peer.bytes_evaluation,
            "last_seen_s": round(peer.silent_s(), 1) if peer.met else None,
        }
        for index, peer in enumerate(node.peers.values())
    ]


def _state_of(peer: Peer) -> str:
    if peer.stream is not None:
        return "connected"
    if not peer.met and not peer.present:
        return "not here yet"
    return "away" if peer.present else "lost"
