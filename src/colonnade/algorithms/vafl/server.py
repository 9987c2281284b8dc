"""The VAFL server: Alg. 1 lines 8–13 and Alg. 2, with the bounded delay of Sec. 2.3.

Uploads wait in a queue. When t distinct parties have one in it (t = 1 for `vafl`), the server takes their batches and
asks again for rows older than D. One pass over the table's rows gives both gradients.

The staleness of the uploader's own rows depends on `in_flight`:

1       θ_m waits for this very step, so the rows are as new as possible: `renew` sets their age to 0
2, …    earlier batches may have stepped θ_m since the rows arrived. Their age counts from their arrival, as for all
        rows. The gradient is that of the embeddings as uploaded: D does not hold for them, since the party takes the
        gradient at the θ_m that made them

The server checks what it knows of an upload: a batch follows the party's last one and has the rows of the agreed walk,
the warm-up sends all rows once and in order, and fresh rows are those that the server asked for.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.batches import Rows, Walk, are_distinct, are_same, walks_of
from colonnade.algorithms.chassis import PARTY, on
from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.table_file import TablesInFiles
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Batch, Embeddings, FreshRequest, Pace, Query
from colonnade.algorithms.vafl.pacing import Paces, Trail, sizes
from colonnade.algorithms.vafl.request_queue import QueuedRequest, RequestQueue
from colonnade.algorithms.vafl.stepping import Stepping, SteppingState
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.role import RoleSummary

__all__ = ["Server", "TableServer", "TableState"]

MOST_OWED = 8  # requests for fresh rows that a party may answer late: it was lost when the step went on without it


@dataclass(slots=True, kw_only=True)
class TableState(SteppingState):
    """The state beside the queue: queries and fresh rows."""

    last: dict[int, QueuedRequest] = field(default_factory=dict)  # each party's last upload, for queries (†)
    asked: dict[str, int] = field(default_factory=dict)  # parties asked for fresh rows → request number
    owed: dict[str, dict[int, Rows]] = field(default_factory=dict)  # fresh rows that have not come, by request
    steps: dict[int, int] = field(default_factory=dict)  # of each party's newest batch in this conversation
    warmed: dict[int, int] = field(default_factory=dict)  # rows of each party's warm-up in this conversation
    requests: int = 0
    fresh_rows: int = 0  # rows asked for because of D


T = TypeVar("T", bound=TableState)


class TableServer(TablesInFiles, Stepping[T], Generic[T]):
    """Holds θ_0, the labels and the table."""

    def __init__(
        self, setup: ServerSetup[Options], state: T, *, t: int, max_delay: int | None, everyone: bool, warm: bool,
        fill: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(setup, state, everyone=everyone)
        self.t, self.max_delay, self.pipelined = t, max_delay, state.queue.most > 1
        self.warm = warm
        self.table = setup.tables.to_train(self.rows, setup.widths, fill)
        if setup.absent is not None:
            self.table.mark_absent(setup.absent[0])

    @on(Embeddings, PARTY)
    def embeddings(self, sender: str, message: Embeddings) -> None:
        """Alg. 1 l. 8: store the rows. A batch among them waits in the queue for its step."""
        s, party = self.state, self.index[sender]
        message = self.decoded(sender, message)
        self.check_upload(sender, message)
        self.table.write(party, message.rows, message.values, self.k)
        if message.request:
            return self._fresh(sender, message.request)
        if message.batch:
            s.steps[party] = message.step
            s.last[party] = request = self.request_of(party, message)
            s.queue.add(request)
        else:
            s.warmed[party] = s.warmed.get(party, 0) + len(message.rows)
        self.advance()

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Also raise RemoteProtocolError for rows that are not the party's next ones."""
        super().check_upload(sender, message)
        if message.request:
            self._check_fresh(sender, message)
        elif message.batch:
            self._check_step(sender, message.step)
            self.check_batch(sender, message)
        else:
            self._check_warm_up(sender, message.rows)

    def check_batch(self, sender: str, message: Embeddings) -> None:
        """Raise RemoteProtocolError for a batch whose rows are not the agreed ones.

        Here the rows are not known: a batch has at most the agreed number of rows, and none twice.
        """
        rows, most = message.rows, self.most_rows
        if message.batch != len(rows) or len(rows) > most:
            raise RemoteProtocolError(
                sender, f"sent a batch of {message.batch} among {len(rows)} rows; {most} is the most"
            )
        if not are_distinct(rows):
            raise RemoteProtocolError(sender, f"sent a row twice in the batch of step {message.step}")

    @property
    def most_rows(self) -> int:
        """The largest batch that a party may send."""
        return self.training.batch_size

    def _check_step(self, sender: str, step: int) -> None:
        """A party's batches are consecutive steps. After a reset, some of those in flight may have their answers."""
        last = self.state.steps.get(self.index[sender])
        if last is not None and not last < step <= last + self.state.queue.most:
            raise RemoteProtocolError(sender, f"sent the batch of step {step} after that of step {last}")

    def _check_fresh(self, sender: str, message: Embeddings) -> None:
        owed = self.state.owed.get(sender, {}).get(message.request)
        if message.batch or owed is None:
            raise RemoteProtocolError(
                sender, f"answers request {message.request}, which it was not asked or has answered"
            )
        if not are_same(message.rows, owed):
            raise RemoteProtocolError(sender, f"sent rows that differ from those of request {message.request}")

    def _check_warm_up(self, sender: str, rows: Rows) -> None:
        party = self.index[sender]
        begun, done = party in self.state.steps, self.state.warmed.get(party, 0)
        if not self.warm or begun or not len(rows):
            raise RemoteProtocolError(sender, f"sent {len(rows)} rows without a batch, although no warm-up is due")
        if not are_same(rows, np.arange(done, done + len(rows), dtype=np.int32)):
            raise RemoteProtocolError(sender, f"sent rows of the warm-up that do not follow the first {done}")

    @on(Query, PARTY)
    def query(self, sender: str, message: Query) -> None:
        """Alg. 1 l. 11–13 alone (†); raise RemoteProtocolError unless the party uploaded this step last."""
        last = self.state.last.get(self.index[sender])
        if last is None or last.step != message.step:
            raise RemoteProtocolError(sender, f"queries step {message.step}, which it has not uploaded")
        self.state.queue.add(QueuedRequest(last.party, last.step, last.rows, None, learn=False, reply=True))
        self.advance()

    def advance(self) -> None:
        """Alg. 2 l. 9: take the first t distinct parties' requests from the queue, if they are there."""
        s = self.state
        if s.working or s.taken or self.progress.ending:
            return
        needed = self._needed()
        if not s.queue.has(needed):
            return
        if s.due:
            self.settle()
            if self.progress.ending:
                return
        s.taken = s.queue.take(needed)
        if self.max_delay is not None:
            self._ask_for_fresh_rows(self.max_delay)
        if not s.asked:
            self._step()

    def _needed(self) -> int:
        """Return how many distinct parties a step takes now."""
        return self.t if self.everyone else max(1, min(self.t, len(self.state.present)))

    def _step(self) -> None:
        """Run the newest embeddings of the taken rows through θ_0."""
        self.run_pass([self._batch(group) for group in self.groups()])

    def _batch(self, group: list[QueuedRequest]) -> Batch:
        """Gather a batch from the table. The uploaders' own rows do not count as stale."""
        k, rows, uploaders = self.k, group[0].rows, [request.party for request in group]
        if not self.pipelined:
            for party in uploaders:
                self.table.renew([party], rows, k)
        if k % self.staleness.every(len(rows)) == 0:
            ages = self.table.ages(rows, k)
            if self.pipelined:
                ages[:, uploaders] = 0
            self.staleness.add_others(ages, uploaders)
        return Batch(self.table.gather(rows), self.targets[rows], len(group))

    def concluded(self, taken: list[QueuedRequest]) -> None:
        """Settle what is due at once, while training continues."""
        if self.state.due:
            self.settle()

    # Sec. 2.3: the server uses nothing older than D. An update waits for the answers.

    def _ask_for_fresh_rows(self, most: int) -> None:
        """Ask the parties whose blocks of the taken rows are too old."""
        rows = self._rows_taken()
        stale = np.any(self.table.ages(rows, self.k) > most, axis=0).tolist()
        for name in self.here():
            if stale[self.index[name]]:
                self._ask(name, rows, most)

    def _rows_taken(self) -> Rows:
        """Return all rows of the step, sorted."""
        return np.unique(np.concatenate([request.rows for request in self.state.taken]))

    def _ask(self, name: str, rows: Rows, most: int) -> None:
        """Ask one party for those of these rows that are too old."""
        s, party = self.state, self.index[name]
        stale = rows[self.table.ages_of(party, rows, self.k) > most]
        stale = np.setdiff1d(stale, self._as_uploaded(party))
        if len(stale):
            s.requests += 1
            s.asked[name] = s.requests
            owed = s.owed.setdefault(name, {})
            owed[s.requests] = stale
            if len(owed) > MOST_OWED:
                del owed[next(iter(owed))]
            s.fresh_rows += len(stale)
            self.send(name, FreshRequest(s.requests, stale))

    def _as_uploaded(self, party: int) -> Rows:
        """Return the party's own rows that are used as uploaded: its gradient is taken at the θ_m that made them.

        If θ_m waits for the step, they are current for all batches. If not, other batches of the step need them fresh.
        """
        taken = self.state.taken
        own = next((request.rows for request in taken if request.party == party), np.zeros(0, np.int32))
        if not self.pipelined:
            return own
        others = [request.rows for request in taken if request.party != party]
        return np.setdiff1d(own, np.concatenate([own[:0], *(rows for rows in others if not np.array_equal(rows, own))]))

    def _fresh(self, sender: str, request: int) -> None:
        """Handle requested rows. If the server has given the party up as lost, the step already went on without it."""
        del self.state.owed[sender][request]
        if self.state.asked.get(sender) == request:
            self._answered(sender)

    def _answered(self, name: str) -> None:
        """Stop waiting for one party; step if it was the last."""
        del self.state.asked[name]
        if not self.state.asked:
            self._step()

    # Coming and going.

    def lost(self, peer: str) -> None:
        """Continue without the party. Its rows stay as last seen, and D does not hold for them."""
        super().lost(peer)
        if not self.everyone and peer in self.state.asked:
            self._answered(peer)

    def forget(self, peer: str) -> None:
        """Drop the party's requests, since the conversation restarted. A step in progress uses what the party sent."""
        # DEVIATION: the paper's parties never forget. None is sent back: one that forgot continues from its own state.
        s, party = self.state, self.index[peer]
        s.queue.drop(party)
        for known in (s.last, s.steps, s.warmed):
            known.pop(party, None)
        s.owed.pop(peer, None)
        if s.asked.pop(peer, None) is not None:
            assert self.max_delay is not None
            self._ask(peer, self._rows_taken(), self.max_delay)
            if not s.asked:
                self._step()

    def waits_for(self) -> list[str]:
        """Name the parties that the next step still needs, for display."""
        return list(self.state.asked) or super().waits_for()

    def awaited(self) -> str:
        """Say what the next step needs."""
        return f"fresh rows for update {self.k + 1}" if self.state.asked else super().awaited()

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant between two events is broken."""
        super().validate()
        if self.state.asked and self.state.working:
            raise LocalProtocolError("server: a step is running although requested rows have not arrived")
        if self.k < self.table.newest():
            raise LocalProtocolError("server: a row was renewed in the future")

    def told(self) -> RoleSummary:
        return super().told() | {"fresh_rows": self.state.fresh_rows, "note": self.table.note()}


class Server(TableServer[TableState]):
    """The server of `vafl`, `t-sync` and `swift`."""

    def __init__(self, setup: ServerSetup[VaflOptions]) -> None:
        options = setup.options
        t, everyone = options.threshold(len(setup.parties)), options.on_lost == "wait"
        state, fill = TableState(queue=RequestQueue(options.in_flight)), options.table == "mean"
        warm = options.table == "warm"
        super().__init__(setup, state, t=t, max_delay=options.max_delay, everyone=everyone, warm=warm, fill=fill)
        self.paces = Paces(setup.parties) if options.smaller_batches else None
        self.shared, self.extra = options.batches == "shared", round(options.extra_rows * setup.training.batch_size)
        options.check_sampling(setup.training.sampling)
        self.walks = walks_of(setup.training, len(setup.parties), self.shared)
        self.sizes = tuple(sizes(setup.training.batch_size))
        self.trail = self._trail(options.in_flight) if options.smaller_batches else None

    def _trail(self, in_flight: int) -> Trail | None:
        """Return where the parties are in their walks; independent batches have no such place."""
        walks = tuple(walk for walk in self.walks if isinstance(walk, Walk))
        return Trail(walks, self.rows, list(self.sizes), in_flight) if walks else None

    def embeddings(self, sender: str, message: Embeddings) -> None:
        """Alg. 1 l. 8; with `smaller_batches`, also measure the party's pace."""
        first = self._is_first(sender)
        super().embeddings(sender, message)
        if self.paces is not None and message.batch:
            if self.trail is not None:
                self.trail.note(self.index[sender], message.step, message.rows, first)
            size = self.paces.measure(self.index[sender], message.batch, self.now, self.training.batch_size)
            if size is not None:
                self.send(sender, Pace(size))

    def check_batch(self, sender: str, message: Embeddings) -> None:
        """Compare the rows with those of the walk.

        With `smaller_batches` the step does not tell the place in the walk, because sizes have changed on the way.
        """
        if self.trail is not None:
            super().check_batch(sender, message)
            if not self.trail.allows(self.index[sender], message.step, message.rows, self._is_first(sender)):
                raise RemoteProtocolError(sender, f"sent rows for step {message.step} that differ from the agreed walk")
            return
        step, batch, walk = message.step, message.batch, self.walks[self.index[sender]]
        if not are_same(message.rows[:batch], self._agreed(walk.batch(step), batch)):
            raise RemoteProtocolError(sender, f"sent rows for step {step} that differ from the agreed walk")
        if len(message.rows) > batch:
            if not isinstance(walk, Walk):
                raise RemoteProtocolError(sender, f"sent further rows with step {step}, although there are none")
            ahead = walk.following if self.shared else walk.opposite
            if not self.extra or not are_same(message.rows[batch:], ahead(step, self.extra)):
                raise RemoteProtocolError(
                    sender, f"sent further rows with step {step} that differ from the agreed ones"
                )

    def _agreed(self, batch: Rows, count: int) -> Rows:
        """Return the rows that a party may send of a batch: all, or with `smaller_batches` the first ones of a draw."""
        return batch[:count] if self.paces is not None and count in self.sizes else batch

    def _is_first(self, sender: str) -> bool:
        """Whether the party has sent no batch yet in this conversation."""
        return self.index[sender] not in self.state.steps

    def lost(self, peer: str) -> None:
        """Exclude the party's absence from its pace."""
        super().lost(peer)
        if self.paces is not None:
            self.paces.interrupt(self.index[peer])

    def forget(self, peer: str) -> None:
        """Tell the party its batch size again, which it may have forgotten."""
        super().forget(peer)
        if self.paces is not None:
            self.paces.forget(self.index[peer])
