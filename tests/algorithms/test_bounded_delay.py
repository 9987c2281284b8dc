"""Sec. 2.3: no update uses a row of a present party that is older than D, judged from the delivered events alone.

The test keeps its own copy, independent of the server's table: it watches uploads and updates, and learns from the
gradients which batches an update used.
"""

import numpy as np
import pytest

from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Stepped
from colonnade.protocol.events import PeerJoined, PeerLost, Received, WorkDone

UPDATES = 250
FAULTS = [
    {"party": "party-1", "kind": "crash", "at_s": 0.15, "until_s": 0.22},
    {"party": "party-2", "kind": "offline", "at_s": 0.20, "until_s": 0.45},
    {"party": "party-2", "kind": "offline", "at_s": 0.60, "until_s": 0.72},
    {"party": "party-3", "kind": "crash", "at_s": 0.65, "until_s": 0.90},
    {"party": "party-4", "kind": "late", "at_s": 0.10},
    {"party": "party-1", "kind": "loss", "rate": 0.05},
]


def tables(method, max_delay, **protocol):
    fields = {"name": method, "table": "zeros", **protocol}
    if max_delay is not None:
        fields["max_delay"] = max_delay
    return {
        "protocol": fields,
        "model": {"party": "linear", "embedding": 4, "server": "linear"},
        "clock": {
            "compute": [{"kind": "exponential", "mean_s": s} for s in (0.005, 0.01, 0.01, 0.04)],
            "network": {"latency_s": 0.001},
            "faults": FAULTS,
            "lost_after_s": 0.05,
        },
        "train": {"updates": UPDATES, "batch_size": 48, "learning_rate": 0.05, "eval_every": 100},
    }


def ages_used(events, parties, rows):
    """The age of every (row, party) that an update used, for parties that were present since the previous update."""
    uploads, about = {}, {}
    for _, role, event in events:
        match event:
            case Received(sender=sender, message=Embeddings(batch=batch) as message) if batch and role == "server":
                uploads[sender, message.step] = message.rows[:batch]
            case Received(message=Gradient(update=k, step=step)):
                about.setdefault(k, []).append((role, step))
    index = {name: place for place, name in enumerate(parties)}
    renewed, k = np.zeros((rows, len(parties)), int), 0
    present, blinked, used = set(), set(parties), []
    for _, role, event in events:
        if role != "server":
            continue
        match event:
            case PeerJoined(peer=peer):
                present.add(peer)
                blinked.add(peer)
            case PeerLost(peer=peer):
                present.discard(peer)
                blinked.add(peer)
            case Received(sender=sender, message=Embeddings(rows=sent)):
                renewed[sent, index[sender]] = k
            case WorkDone(result=Stepped()):
                batches = [(name, uploads[name, step]) for name, step in about.get(k, [])]
                for name, batch in batches:  # an uploader's model waits for this very update
                    renewed[batch, index[name]] = k
                there = [index[name] for name in present - blinked]
                used += [k - renewed[np.ix_(batch, there)] for _, batch in batches]
                k += 1
                blinked = set(parties) - present
    known = sum(k in about for k in range(UPDATES))
    assert known > 0.9 * UPDATES, "the events must show which batches most updates used"
    return np.concatenate([part.ravel() for part in used])


@pytest.mark.parametrize("max_delay", [1, 3, 10, 50])
@pytest.mark.parametrize("method", ["vafl", "t-sync"])
def test_nothing_older_than_the_bound_is_used(method, max_delay, simulate, partition):
    data = partition("digits", 4)
    run = simulate(tables(method, max_delay))
    assert run.status == "finished" and run.server.k == UPDATES
    assert any(isinstance(event, PeerLost) for _, _, event in run.events)
    ages = ages_used(run.events, data.parties, len(data.y_train))
    assert ages.max() <= max_delay
    asked = [event.message for _, _, event in run.events if isinstance(getattr(event, "message", None), FreshRequest)]
    assert asked and run.server.state.fresh_rows >= sum(len(message.rows) for message in asked) > 0
    assert run.simulator.traffic.by_kind["FreshRequest"][0] >= len(asked)


@pytest.mark.parametrize("method", ["vafl", "t-sync"])
def test_without_the_bound_older_rows_are_used(method, simulate, partition):
    data = partition("digits", 4)
    run = simulate(tables(method, None))
    assert ages_used(run.events, data.parties, len(data.y_train)).max() > 50
    assert run.server.state.fresh_rows == 0 and "FreshRequest" not in run.simulator.traffic.by_kind


def test_only_what_is_too_old_is_asked_for(simulate):
    few, many = (simulate(tables("vafl", bound)).server.state.fresh_rows for bound in (50, 3))
    assert 0 < few < many


def test_a_server_that_waits_also_waits_for_lost_parties_rows(simulate):
    """on_lost = "wait": the bound holds for all parties, lost ones included."""
    run = simulate(tables("vafl", 3, on_lost="wait"))
    assert run.status == "finished"
    assert run.server.staleness.summary()["max"] <= 3


def test_continue_excepts_the_lost_and_reports_their_staleness(simulate):
    run = simulate(tables("vafl", 3))
    assert run.server.staleness.summary()["max"] > 3
