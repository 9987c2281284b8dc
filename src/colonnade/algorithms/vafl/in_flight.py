"""Parties with several batches in flight: a party computes the next batch while the last one travels.

The party's lane still runs one job at a time. A gradient that arrives while a batch is embedded waits for the lane.
The party applies gradients in the order of their steps, each taken at the θ_m of its own forward pass
(`models.held`). By then θ_m has moved by at most `in_flight − 1` other steps.

The steps in flight are always consecutive numbers: at most `in_flight` of them, the newest being the last of the walk.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from colonnade.algorithms.batches import Rows
from colonnade.algorithms.vafl.messages import Embedded, Gradient, Refined
from colonnade.algorithms.vafl.table_walker import TableWalkerState
from colonnade.algorithms.vafl.walker import FirstOrder
from colonnade.models import Network
from colonnade.models.held import Held
from colonnade.models.on_device import gathered
from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.events import Promised, once_made
from colonnade.protocol.messages import Array
from colonnade.protocol.role import RoleSummary

__all__ = ["Flight", "InFlight", "InFlightState"]


@dataclass(slots=True)
class Flight:
    """A batch that the party has uploaded, or must upload again."""

    step: int
    rows: Rows
    draw: int  # number of its noise draw
    update: int = 0  # k of the server's answer
    values: Array | None = None  # the server's answer, ∂ℓ/∂h; None until it arrives


@dataclass(slots=True, kw_only=True)
class InFlightState(TableWalkerState):
    """State of a party with several batches; `step`, `rows` and `sent` belong to the batch embedded last."""

    following: int = 0  # the step of the walk's next batch
    flights: list[Flight] = field(default_factory=list)  # uploaded batches, by step
    again: list[Flight] = field(default_factory=list)  # batches to embed and upload again, by step


S = TypeVar("S", bound=InFlightState)


class InFlight(FirstOrder[S], Generic[S]):
    """Holds θ_m and copies of it for the batches in flight. A subclass's constructor sets `in_flight` and `held`."""

    in_flight: int
    held: Held

    def network_for(self, step: int) -> Network:
        """Return a copy at the current θ_m."""
        return self.held.fresh(step)

    def network_of(self, step: int) -> Network:
        """Return the copy at the θ_m of that step's forward pass."""
        return self.held.at(step)

    def go_on(self) -> None:
        """If the lane is free, learn from the oldest batch in flight, or embed another one."""
        s = self.state
        if s.busy:
            return
        oldest = s.flights[0] if s.flights else None
        in_turn = oldest is not None and not (s.again and s.again[0].step < oldest.step)
        if oldest is not None and in_turn and oldest.values is not None:
            self.descend(
                oldest.update, oldest.step, oldest.rows, gathered(self.x, oldest.rows), oldest.values, oldest.draw
            )  # fmt: skip
        elif s.again or len(s.flights) < self.in_flight:
            self.select()

    def choose(self) -> None:
        """Take a batch that the server may have lost, or the walk's next batch."""
        s = self.state
        s.busy = True
        if s.again:
            lost = s.again.pop(0)
            s.step, s.rows = lost.step, lost.rows
        else:
            s.step, s.following = s.following, s.following + 1
            s.rows = self.rows_of_step()
            self.walked()
        s.sent, s.x = s.rows, gathered(self.x, s.rows)

    def walked(self) -> None:
        """React to a batch taken from the walk. The default does nothing."""

    def batch_embedded(self, result: Embedded) -> None:
        """Alg. 1 l. 5: upload. θ_m is still that of the forward pass, since no other job ran on the lane."""
        self.check_own(result.values)
        s = self.state
        s.busy = False
        self.held.hold(s.step)
        # BatchNorm's averages take batches in the order of their forward passes, without waiting for gradients.
        self.network.commit(result.buffers)
        s.flights.append(Flight(s.step, s.rows, s.draw_of_batch))
        s.flights.sort(key=lambda flight: flight.step)
        self.upload(result.values)
        self.go_on()

    def gradient(self, sender: str, message: Gradient) -> None:
        """Alg. 1 l. 6–7: keep the answer to a batch in flight; drop any other answer."""
        s = self.state
        flight = next((flight for flight in s.flights if flight.step == message.step), None)
        if flight is None or flight.values is not None:
            s.dropped += 1
            return
        self.check_gradient(sender, message, len(flight.rows))
        flight.values, flight.update = message.values, message.update
        self.go_on()

    def refined(self, token: int, result: Refined | Promised) -> None:
        """Eq. (4a), with the gradient at the θ_m of the batch's own forward pass."""
        # DEVIATION: in the paper a party has one batch in flight, so its gradient is always at the current θ_m.
        s, training = self.state, self.training
        rate = training.rule.rate(self.rate, s.k)
        once_made(result, lambda made: self.learn(made.gradient, rate, []))
        s.busy = False
        self.held.release(s.flights.pop(0).step)
        self.go_on()

    def conversation_reset(self) -> None:
        """Upload all unanswered batches again."""
        s = self.state
        lost = [flight for flight in s.flights if flight.values is None]
        for flight in lost:
            self.held.release(flight.step)
        s.flights = [flight for flight in s.flights if flight.values is not None]
        s.again = sorted([*s.again, *lost], key=lambda flight: flight.step)
        self.go_on()

    def validate(self) -> None:
        """Raise LocalProtocolError unless the batches in flight are the last ones of the walk."""
        super().validate()
        s = self.state
        steps = [flight.step for flight in (*s.flights, *s.again)]
        if len(set(steps)) != len(steps) or len(steps) > self.in_flight:
            raise LocalProtocolError(f"{self.name}: steps {steps} are under way, of at most {self.in_flight}")
        if any(not s.following - self.in_flight <= step < s.following for step in steps):
            raise LocalProtocolError(f"{self.name}: steps {steps} are under way before step {s.following}")

    def told(self) -> RoleSummary:
        """Report the steps taken, not the steps begun."""
        return super().told() | {"steps": self.network.steps}
