"""A VAFL party: Alg. 1 lines 3–7, with the † options."""

from typing import Generic, TypeVar

from colonnade.algorithms.batches import Draws, Rows, Walk, walk_of
from colonnade.algorithms.chassis import on
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.in_flight import InFlight, InFlightState
from colonnade.algorithms.vafl.messages import Embeddings, Pace, Query
from colonnade.algorithms.vafl.pacing import Stride, sizes
from colonnade.algorithms.vafl.table_walker import TableWalker, TableWalkerState
from colonnade.algorithms.vafl.walker import FirstOrder
from colonnade.models.held import Held
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER, Role

__all__ = ["Party", "PipelinedParty", "party_of"]


S = TypeVar("S", bound=TableWalkerState)


class _Walking(TableWalker[S], Generic[S]):
    """What both kinds of party share: the walk and the further rows."""

    def __init__(self, setup: PartySetup[VaflOptions], state: S) -> None:
        options, training = setup.options, setup.training
        walk = walk_of(training, None if options.batches == "shared" else setup.index)
        options.check_sampling(training.sampling)
        super().__init__(setup, state, walk, pause_s=options.pause_of(setup.index))
        self.extra = round(options.extra_rows * training.batch_size)
        self.shared, self.paced = options.batches == "shared", options.smaller_batches
        self.stride = Stride(training.batch_size, training.batch_size)

    def rows_of_step(self) -> Rows:
        """Return the batch of the walk's current step, with as many rows as the server asks for."""
        if not self.paced:
            return super().rows_of_step()
        if isinstance(self.walk, Draws):
            return self.walk.batch(self.state.step)[: self.stride.size]
        return self.walk.rows_from(self.stride.walked, self.stride.size)

    @on(Pace, SERVER)
    def pace(self, sender: str, message: Pace) -> None:
        """Use batches of this many rows from the next one on; raise RemoteProtocolError for a size that cannot be."""
        whole = self.training.batch_size
        if not self.paced:
            raise self.unexpected(sender, message)
        if message.rows not in sizes(whole):
            raise RemoteProtocolError(sender, f"asks for batches of {message.rows} rows, not {sizes(whole)}")
        self.stride.following = message.rows

    def further_rows(self) -> Rows | None:
        """†: the next rows of other parties on the same walk, or rows as far as possible from the party's own batch."""
        if not self.extra:
            return None
        assert isinstance(self.walk, Walk)  # by `check_sampling`
        ahead = self.walk.following if self.shared else self.walk.opposite
        return ahead(self.state.step, self.extra)


class Party(_Walking[TableWalkerState], FirstOrder[TableWalkerState]):
    """Holds θ_m and its own columns; one batch is in flight."""

    def __init__(self, setup: PartySetup[VaflOptions]) -> None:
        super().__init__(setup, TableWalkerState.of(setup, warm=setup.options.table == "warm"))
        self.query_first = setup.options.order == "query-first"

    def activated(self) -> None:
        """In the order † the party first queries the gradient of its last batch."""
        if self.state.uploaded:
            self.send(SERVER, Query(self.state.step))
        else:
            self.select()

    def learned(self) -> None:
        """Wait for the next activation. In the order †, lines 4–5 belong to this activation."""
        self.stride.move_on(len(self.state.rows))
        if self.query_first:
            self.select()
        else:
            self.pause()

    def upload(self, values: Array) -> None:
        """Alg. 1 l. 5: send the batch."""
        s = self.state
        self.send(SERVER, Embeddings(s.step, len(s.rows), s.sent, values, reply=not self.query_first))
        if self.query_first:
            self.pause()


class PipelinedParty(_Walking[InFlightState], InFlight[InFlightState]):
    """A party with `in_flight` batches in flight."""

    def __init__(self, setup: PartySetup[VaflOptions]) -> None:
        super().__init__(setup, InFlightState.of(setup, warm=setup.options.table == "warm"))
        self.in_flight = setup.options.in_flight
        self.held = Held(self.network, self.in_flight)

    def activated(self) -> None:
        self.go_on()

    def walked(self) -> None:
        """Move on: the next batch begins where this one ends."""
        self.stride.move_on(len(self.state.rows))

    def pace(self, sender: str, message: Pace) -> None:
        """Change the size at once, since each batch in flight has its own rows."""
        super().pace(sender, message)
        self.stride.size = message.rows


def party_of(setup: PartySetup[VaflOptions]) -> Role:
    """Return the kind of party that `in_flight` needs."""
    return Party(setup) if setup.options.in_flight == 1 else PipelinedParty(setup)
