"""A VAFL party: Alg. 1 lines 3–7, with the † options."""

from colonnade.algorithms.batches import Rows, Walk
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, Query
from colonnade.algorithms.vafl.table_walker import TableWalker, TableWalkerState
from colonnade.algorithms.vafl.walker import FirstOrder
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER

__all__ = ["Party"]


class Party(TableWalker[TableWalkerState], FirstOrder[TableWalkerState]):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[VaflOptions]) -> None:
        options, training = setup.options, setup.training
        path = ("batches",) if options.batches == "shared" else ("batches", setup.index)
        walk = Walk(len(setup.train), training.batch_size, training.seed, *path)
        state = TableWalkerState.of(setup, warm=options.table == "warm")
        super().__init__(setup, state, walk, pause_s=options.pause_of(setup.index))
        self.extra = round(options.extra_rows * training.batch_size)
        self.shared, self.query_first = options.batches == "shared", options.order == "query-first"

    def activated(self) -> None:
        """In the order † the gradient of the last batch is queried first."""
        if self.state.uploaded:
            self.send(SERVER, Query(self.state.step))
        else:
            self.select()

    def learned(self) -> None:
        """The next activation; in the order † lines 4–5 belong to this one."""
        if self.query_first:
            self.select()
        else:
            self.pause()

    def upload(self, values: Array) -> None:
        """Alg. 1 l. 5."""
        s = self.state
        self.send(SERVER, Embeddings(s.step, len(s.rows), s.sent, values, reply=not self.query_first))
        if self.query_first:
            self.pause()

    def further_rows(self) -> Rows | None:
        """†: where others on the same walk come to next, or as far from the own batch as can be."""
        if not self.extra:
            return None
        ahead = self.walk.following if self.shared else self.walk.opposite
        return ahead(self.state.step, self.extra)
