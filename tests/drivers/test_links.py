"""Arrivals by hand: queueing on both sides, latency, order, outages, losses."""

from math import inf
from typing import Any

import numpy as np
import pytest

from colonnade.drivers.simulator.clock import Fault, Link
from colonnade.drivers.simulator.links import NEVER, RETRANSMIT_NS, Links, Outages
from colonnade.protocol.events import NANOSECONDS

MS = NANOSECONDS // 1000
# 8 Mbit/s are 1000 ns per byte: 1000 bytes take a millisecond.
A = Link(latency_s=0.010, bandwidth_mbps=8.0)
B = Link(latency_s=0.005, bandwidth_mbps=4.0)
QUICK = Link(latency_s=0.0, bandwidth_mbps=inf)


class Draws:
    """A generator that returns the given numbers."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)


def make(*links: Link, faults: dict[int, list[Fault]] | None = None, draws: Any = None) -> Links:
    own = [(faults or {}).get(index, []) for index in range(len(links))]
    return Links(list(links), own, draws or np.random.default_rng(0))


def outage(at_s: float, until_s: float = inf, kind: str = "offline") -> Fault:
    return Fault("x", kind, at_s, until_s)  # type: ignore[arg-type]


def test_sending_takes_the_senders_bandwidth_and_both_latencies() -> None:
    assert make(A, B).send(0, 1, 1000, 3 * MS) == (3 * MS + 1 * MS + 15 * MS, 1)


def test_messages_queue_at_the_sender() -> None:
    links = make(A, B, B)
    assert links.send(0, 1, 1000, 0)[0] == 16 * MS
    assert links.send(0, 2, 2000, 0)[0] == 18 * MS  # waits until 1 ms, though its receiver is another one
    assert links.send(0, 1, 1000, 10 * MS)[0] == 26 * MS  # the port is free again


def test_messages_queue_at_the_receiver() -> None:
    """Two senders reach the port together; reading 1000 bytes takes 2 ms at 4 Mbit/s."""
    links = make(A, B, A)
    arrivals = [links.send(sender, 1, 1000, 0)[0] for sender in (0, 2)]
    assert arrivals == [16 * MS, 16 * MS]
    assert [links.receive(1, 1000, arrival) for arrival in arrivals] == [18 * MS, 20 * MS]
    assert links.receive(1, 500, 30 * MS) == 31 * MS


def test_unlimited_bandwidth_takes_no_time() -> None:
    links = make(QUICK, QUICK)
    assert links.send(0, 1, 10**9, 5) == (5, 1)
    assert links.receive(1, 10**9, 5) == 5


def test_first_sent_first_arrived_even_when_the_first_is_held_up() -> None:
    """The first message is lost once and arrives late; the second, never lost, may not overtake it."""
    links = make(A, B, faults={0: [Fault("x", "loss", 0.0, inf, 0.5)]}, draws=Draws(0.1, 0.9, 0.9))
    first, second = links.send(0, 1, 1000, 0), links.send(0, 1, 1000, 0)
    assert first == (16 * MS + (16 * MS + 15 * MS + RETRANSMIT_NS), 2)
    assert second == (first[0], 1)


def test_other_senders_may_overtake() -> None:
    links = make(A, B, A, faults={0: [outage(0.0, 1.0)]})
    assert links.send(0, 1, 1000, 0)[0] == 1016 * MS
    assert links.send(2, 1, 1000, 0)[0] == 16 * MS


@pytest.mark.parametrize("who", [0, 1])
def test_what_an_outage_cuts_is_sent_again_after_it(who: int) -> None:
    faults = {who: [outage(0.010, 0.500)]}
    assert make(A, B, faults=faults).send(0, 1, 1000, 0)[0] == 516 * MS  # it would have arrived at 16 ms
    assert make(A, B, faults=faults).send(0, 1, 1000, 100 * MS)[0] == 516 * MS  # sent in the middle of it
    assert make(A, B, faults=faults).send(0, 1, 1000, 500 * MS)[0] == 516 * MS  # sent when it is over
    early = {who: [outage(0.0161, 0.500)]}
    assert make(A, B, faults=early).send(0, 1, 1000, 0)[0] == 16 * MS  # it arrives just before the outage


def test_one_outage_after_another() -> None:
    """Sent again at 0.1 s, the message meets the receiver's outage, then the sender's second."""
    faults = {0: [outage(0.0, 0.1), outage(0.205, 0.3)], 1: [outage(0.11, 0.2)]}
    assert make(A, B, faults=faults).send(0, 1, 1000, 0)[0] == 316 * MS


def test_losses_repeat_and_are_counted() -> None:
    """Three losses: each costs the transit, the way back and the timeout."""
    links = make(A, B, faults={1: [Fault("x", "loss", 0.0, inf, 0.5)]}, draws=Draws(0.0, 0.2, 0.4, 0.5))
    lost = 16 * MS + 15 * MS + RETRANSMIT_NS
    assert links.send(0, 1, 1000, 0) == (3 * lost + 16 * MS, 4)


def test_both_ends_can_lose_a_message() -> None:
    loss = [Fault("x", "loss", 0.0, inf, 0.5)]
    links = make(A, B, faults={0: loss, 1: loss}, draws=Draws(0.9, 0.1, 0.9, 0.9))
    assert links.send(0, 1, 1000, 0)[1] == 2


def test_losses_happen_only_in_their_time() -> None:
    fault = Fault("x", "loss", 0.1, 0.2, 0.999999)
    links = make(A, B, faults={0: [fault]}, draws=Draws(0.0))
    assert links.send(0, 1, 1000, 0) == (16 * MS, 1)
    assert links.send(0, 1, 1000, 150 * MS)[1] == 2
    assert links.send(0, 1, 1000, 200 * MS)[1] == 1


def test_the_rate_of_losses_is_the_configured_one() -> None:
    links = make(QUICK, QUICK, faults={0: [Fault("x", "loss", 0.0, inf, 0.3)]})
    repeats = [links.send(0, 1, 10, 0)[1] - 1 for _ in range(5000)]
    assert np.mean(repeats) == pytest.approx(0.3 / 0.7, rel=0.1)  # geometric


def test_a_role_gone_for_good_is_never_reached() -> None:
    for who in (0, 1):
        links = make(A, B, faults={who: [outage(1.0, kind="crash")]})
        assert links.send(0, 1, 1000, 0)[0] == 16 * MS
        assert links.send(0, 1, 1000, 990 * MS)[0] >= NEVER  # cut by the crash
        assert links.send(0, 1, 1000, 2000 * MS)[0] >= NEVER


def test_duplicates_by_either_end_in_their_time() -> None:
    fault = Fault("x", "duplicate", 0.1, 0.2, 0.5)
    links = make(A, B, A, faults={1: [fault]}, draws=Draws(0.4, 0.6, 0.4))
    assert links.duplicated(0, 1, 150 * MS)
    assert not links.duplicated(0, 1, 150 * MS)
    assert links.duplicated(1, 0, 150 * MS)
    assert not links.duplicated(0, 1, 250 * MS)
    assert not links.duplicated(0, 2, 150 * MS)


def test_outages_that_touch_or_overlap_are_one() -> None:
    outages = Outages([outage(5, 6), outage(1, 3), outage(2, 4, "crash"), outage(4, 4.5), outage(2, 2.5)])
    assert outages.spans == [(1 * NANOSECONDS, 4_500_000_000), (5 * NANOSECONDS, 6 * NANOSECONDS)]
    assert outages.reachable_from(1_500_000_000) == 4_500_000_000
    assert outages.reachable_from(4_500_000_000) == 4_500_000_000
    assert outages.reachable_from(0) == 0
    assert outages.reachable_from(7 * NANOSECONDS) == 7 * NANOSECONDS


def test_a_late_role_is_out_from_the_beginning() -> None:
    outages = Outages([Fault("x", "late", 2.0), outage(1.0, 3.0)])
    assert outages.reachable_from(0) == 3 * NANOSECONDS


def test_losses_and_duplicates_are_no_outages() -> None:
    assert Outages([Fault("x", "loss", 0.0, inf, 0.5), Fault("x", "duplicate", 0.0, inf, 0.5)]).spans == []


def test_the_edges_of_an_outage() -> None:
    outages = Outages([outage(1.0, 2.0)])
    assert outages.interrupts(0, NANOSECONDS - 1) is None
    assert outages.interrupts(0, NANOSECONDS) == 2 * NANOSECONDS  # arriving at the moment it begins
    assert outages.interrupts(2 * NANOSECONDS - 1, 3 * NANOSECONDS) == 2 * NANOSECONDS
    assert outages.interrupts(2 * NANOSECONDS, 3 * NANOSECONDS) is None
