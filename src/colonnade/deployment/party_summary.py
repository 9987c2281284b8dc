"""What a party's process writes to its own summary.json at the end of a run, and what it sends to the server."""

from contextlib import suppress
from pathlib import Path

from colonnade.config.continuing import Continuation
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.wire import Bye, End, News
from colonnade.privacy.accountant import Spent
from colonnade.privacy.settings import Budget
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.strict_json import to_json
from colonnade.results.summary import traffic_fields

__all__ = ["bye_of", "news_of", "write_summary"]

LIVE_BINS = 200


def write_summary(
    out: Path, end: End, node: Node, relay_refused: int | None, before: Continuation | None = None
) -> None:
    """Write summary.json. `relay_refused` counts bad frames from the relay; None if there is no relay."""
    said = node.role.summary()
    summary = {
        "party": node.role.name,
        "status": end.status,
        "note": end.note,
        "clock_s": node.now / NANOSECONDS,
        **traffic_fields(node.traffic),
        "messages_given_up": sum(peer.conversation.lost for peer in node.peers.values()),
        **({"relay_refused": relay_refused} if relay_refused is not None else {}),
        "utilisation": node.utilisation(),
        **{key: value for key, value in said.items() if isinstance(value, int | float | str)},
        "privacy": said.get("privacy"),
        **({} if before is None else {"continued_from": before.origin}),
    }
    text = to_json(summary, indent=2, warn=False)  # an ε beyond all numbers is null, as in the server's summary
    replace_file(out / "summary.json", [text.encode() + b"\n"])


def bye_of(node: Node) -> Bye:
    """The party's BYE with its summary.

    A party with privacy accounting sends no digest. Its weights are not perturbed, so the server could check a guess
    about the data with the digest.
    """
    said = node.role.summary()
    spent = said.get("privacy")
    told = Spent(**spent) if spent else None
    return Bye("" if spent else said["weights"], node.utilisation(), told, node.jobs.lane.bins())


def news_of(node: Node, budget: Budget | None) -> News:
    """What the party tells while it trains. It tells the same in its BYE, except its budget."""
    spent = None
    with suppress(RuntimeError):  # a job's thread has just entered a release of a new kind: told the next time
        spent = node.guard.summary() if node.guard is not None else None
    told = Spent(**spent) if spent else None
    return News(node.jobs.lane.bins(LIVE_BINS), node.utilisation(), told, budget.epsilon if budget and told else None)
