"""What a process runs: a training, an alignment or predictions.

A host (`ServerHost`, `PartyHost`) does what all three have in common: it listens or connects, watches, and closes. The
protocols here are everything that a host needs from an application.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from colonnade.deployment.own_side import OwnSide
from colonnade.deployment.terms import Terms
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import Peer
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import Bye, End, Hello, Position
from colonnade.protocol.errors import PartyDiverged, TrainingDiverged

__all__ = ["Pace", "PartyApplication", "ServerApplication", "Stalled", "end_of", "parties_now"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The progress of a run, as the host sees it."""

    per_s: float = 0.0  # updates per second, between the last two
    waited_s: float = 0.0  # since the last update


class ServerApplication(Protocol):
    """What differs between servers. The node saves what the application wants to keep (see `Keeper`)."""

    @property
    def side(self) -> OwnSide:
        """Its config, folder, log and certificate."""

    @property
    def node(self) -> Node:
        """The node that runs its role."""

    @property
    def aim(self) -> str:
        """Training, alignment or predictions."""

    @property
    def shared(self) -> dict[str, Any]:
        """What must be the same for all members."""

    @property
    def terms(self) -> Terms:
        """What a party's HELLO must contain."""

    @property
    def run_id(self) -> str:
        """An id that is unique to this run."""

    @property
    def relay(self) -> bool:
        """Whether the parties talk to each other."""

    @property
    def admit_late(self) -> bool:
        """Whether a party may join after the others have started."""

    def attach(self, service: Service) -> None:
        """Take the host's service, which has the parties' attendance and BYEs."""

    def update(self) -> int | None:
        """A number that grows while the run progresses; None if there is nothing to wait for."""

    def owes(self) -> dict[str, str]:
        """The parties that the run waits for, and what each of them owes, in words. Other words are another debt."""

    def status(self, pace: Pace) -> dict[str, Any]:
        """Its part of the live table."""

    def measures(self) -> dict[str, Any]:
        """What the metrics show beside the status; other members do not see it."""

    def opened(self) -> None:
        """Check the open node before any party is admitted: the last moment to raise."""

    def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AbstractAsyncContextManager[None]:
        """What is open while parties are admitted."""

    def ended(self) -> End:
        """How the run ended; "stopped": the parties wait until this server is back. Raises what went wrong."""

    def summary(self, end: End) -> Mapping[str, Any]:
        """The summary, with "status" and "note"."""

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of a run that was not stopped."""

    def say_end(self, summary: Mapping[str, Any]) -> None:
        """Log the last lines."""


class PartyApplication(Protocol):
    """What differs between parties."""

    @property
    def side(self) -> OwnSide:
        """Its config, folder, log and certificate."""

    @property
    def node(self) -> Node:
        """The node that runs its role."""

    @property
    def aim(self) -> str:
        """Training, alignment or predictions."""

    @property
    def peers(self) -> bool:
        """Whether the parties talk to each other."""

    def update(self) -> int | None:
        """The last update that the role knows of, for the log."""

    def told_before(self) -> End | None:
        """The end that this process received before a restart; None if there was none."""

    def prepare(self) -> None:
        """Check everything before the node opens; raises what does not fit."""

    def say_start(self, server: str) -> None:
        """Log that the party starts to connect to the server at this address."""

    def hello(self, instance: int, position: Position) -> Hello:
        """The party's HELLO."""

    def meet(self, run: str) -> None:
        """Take the server's run id; raises if it differs from the earlier one."""

    def farewell(self, end: End, relay_refused: int | None) -> Bye:
        """The answer to the server's END."""

    def closed(self, met: bool) -> None:
        """Clean up after the node is closed. `met`: whether the party ever met the server."""

    def ended(self, end: End, relay_refused: int | None) -> None:
        """Write the summary and log the end. `relay_refused`: bad frames from the relay; None without a relay."""


class Stalled(Exception):
    """The parties that the run needs did not give what they owe within `give_up_s`, or were given up."""


def end_of(node: Node) -> End:
    """How a node's run ended, as status and note; raises an error that is no end of a run."""
    error = node.error
    if isinstance(error, PartyDiverged):
        return End("stalled", str(error))  # one party's word: the run may be started again
    if isinstance(error, TrainingDiverged):
        return End("diverged", str(error))
    if isinstance(error, Stalled):
        return End("stalled", str(error))
    if error is not None:
        raise error
    return End("finished" if node.finished else "stopped")


def parties_now(
    node: Node, staleness: Sequence[float] = (), remarks: Mapping[str, int] = MappingProxyType({})
) -> list[dict[str, Any]]:
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
            "queued_bytes": peer.conversation.waiting_bytes,
            "last_seen_s": round(peer.silent_s(), 1) if peer.met else None,
            "refused": peer.standing.refused,
            "remarks": remarks.get(peer.name, 0),
        }
        for index, peer in enumerate(node.peers.values())
    ]


def _state_of(peer: Peer) -> str:
    if peer.standing.given_up:
        return "given up"
    if peer.stream is not None:
        return "connected"
    if not peer.met and not peer.present:
        return "not here yet"
    return "away" if peer.present else "lost"
