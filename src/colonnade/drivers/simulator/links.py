"""When a message arrives: queueing at the sender, latency, outages, loss with repetition, duplication.

Delivery is reliable and in order, as over the real network. A message that an outage cuts off is sent after the outage.
A lost message is sent again, and its bytes count again. A duplicate reaches the driver twice and the role once.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np

from colonnade.drivers.simulator.clock import Fault, Link
from colonnade.protocol.events import NANOSECONDS

__all__ = ["Links", "Outages"]

NEVER = 2**62
RETRANSMIT_NS = NANOSECONDS // 5  # TCP's smallest time-out, added to the round trip


class Outages:
    """When a role cannot be reached: merged, sorted intervals [start, end) in ns."""

    def __init__(self, faults: list[Fault]) -> None:
        spans = sorted(_span(fault) for fault in faults if fault.kind in ("crash", "offline", "late"))
        self.spans: list[tuple[int, int]] = []
        for start, end in spans:
            if self.spans and start <= self.spans[-1][1]:
                self.spans[-1] = (self.spans[-1][0], max(end, self.spans[-1][1]))
            else:
                self.spans.append((start, end))

    def reachable_from(self, time: int) -> int:
        """The first moment at or after `time` at which the role can be reached."""
        for start, end in self.spans:
            if start <= time < end:
                return end
        return time

    def interrupts(self, start: int, end: int) -> int | None:
        """The end of the first outage that cuts into (start, end], if any."""
        for begin, over in self.spans:
            if begin <= end and over > start:
                return over
        return None


def _span(fault: Fault) -> tuple[int, int]:
    if fault.kind == "late":
        return -1, round(fault.at_s * NANOSECONDS)
    return round(fault.at_s * NANOSECONDS), NEVER if fault.until_s == inf else round(fault.until_s * NANOSECONDS)


@dataclass(slots=True)
class Port:
    """One role's end of its link. Times are in ns."""

    link: Link
    outages: Outages
    losses: list[Fault]
    duplicates: list[Fault]
    latency: int = 0
    ns_per_byte: float = 0.0
    busy_until: int = 0  # sending
    receiving_until: int = 0
    last_arrival: dict[int, int] = field(default_factory=dict)  # by sender

    def __post_init__(self) -> None:
        self.latency = round(self.link.latency_s * NANOSECONDS)
        self.ns_per_byte = 8000 / self.link.bandwidth_mbps

    @property
    def calm(self) -> bool:
        """Whether this port has no faults at all."""
        return not (self.outages.spans or self.losses or self.duplicates)


class Links:
    """All ports; computes arrival times."""

    def __init__(self, links: list[Link], faults: list[list[Fault]], generator: np.random.Generator) -> None:
        self.ports = [
            Port(
                link,
                Outages(own),
                [fault for fault in own if fault.kind == "loss"],
                [fault for fault in own if fault.kind == "duplicate"],
            )
            for link, own in zip(links, faults, strict=True)
        ]
        self.generator = generator
        self.calm = all(port.calm for port in self.ports)

    def send(self, sender: int, receiver: int, size: int, now: int) -> tuple[int, int]:
        """(arrival at the receiver's port, transmissions); NEVER if the receiver is gone for good."""
        source, target = self.ports[sender], self.ports[receiver]
        start = now if now > source.busy_until else source.busy_until
        source.busy_until = end = start + round(size * source.ns_per_byte) if source.ns_per_byte else start
        arrival = end + source.latency + target.latency
        if self.calm:
            return arrival, 1  # in order, because the latency is always the same
        arrival, transmissions = self._through_faults(source, target, start, arrival)
        arrival = max(arrival, target.last_arrival.get(sender, 0))
        target.last_arrival[sender] = arrival
        return arrival, transmissions

    def receive(self, receiver: int, size: int, now: int) -> int:
        """The time at which a message that reached the port at `now` has been read in."""
        port = self.ports[receiver]
        start = now if now > port.receiving_until else port.receiving_until
        port.receiving_until = end = start + round(size * port.ns_per_byte)
        return end

    def duplicated(self, sender: int, receiver: int, now: int) -> bool:
        """Whether this message arrives twice; draws at random for each active fault."""
        return any(self._strikes(fault, now) for port in (sender, receiver) for fault in self.ports[port].duplicates)

    def _through_faults(self, source: Port, target: Port, start: int, arrival: int) -> tuple[int, int]:
        """Repeat the transmission until no outage interrupts it and it is not lost."""
        travel, transmissions = arrival - start, 1
        losses = source.losses + target.losses
        while start < NEVER:
            over = source.outages.interrupts(start, start + travel) or target.outages.interrupts(start, start + travel)
            if over is not None:
                start = over
            elif any(self._strikes(fault, start) for fault in losses):
                start += travel + source.latency + target.latency + RETRANSMIT_NS
                transmissions += 1
            else:
                return start + travel, transmissions
        return NEVER, transmissions

    def _strikes(self, fault: Fault, now: int) -> bool:
        inside = fault.at_s * NANOSECONDS <= now < fault.until_s * NANOSECONDS
        return inside and self.generator.random() < fault.rate
