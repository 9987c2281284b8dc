"""The server of zeroth-order parties: VFL-Cascaded Alg. 1 lines 8–11 and App. B Alg. 2, on VAFL's table.

All losses of a step, and the gradient of w_0, are taken at the SAME w_0: the replies hold losses from before the
server's own step. The table keeps c only, never ĉ. One pair of scalars per batch goes down, and the server answers
only questions that an honest walk would ask: otherwise a curious party asks row by row and reads the labels off. The
rules slow down a party that makes up its embeddings; they do not stop it (docs/attacks.md).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.encoding import arrived
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.vafl.line import Request
from colonnade.algorithms.vafl.messages import Batch, Embeddings, Query
from colonnade.algorithms.vafl.party import FORWARD_SHARE
from colonnade.algorithms.vafl.server import Server as VaflServer
from colonnade.algorithms.vafl.server import mean_over_uploads, seed_of
from colonnade.algorithms.zeroth.directions import check_smoothing, directions, estimate
from colonnade.algorithms.zeroth.messages import Losses, Probe, ProbedBlock, ProbedStep, ProbedStepped
from colonnade.models.probed import ProbedServerNetwork
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import ConfigError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Effect, Event, Resumed, Send, Started, Work, WorkDone
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Elsewhere, Message, Payload

__all__ = ["Server"]


class Server(VaflServer):
    """Holds w_0, the labels, the table, and how often each party asked about each row."""

    network: ProbedServerNetwork
    network_type = ProbedServerNetwork
    rules = True  # whether questions are checked; experiments on attacks switch it off
    per_sample = False  # whether losses are told row by row; ditto

    def __init__(self, setup: ServerSetup[Any]) -> None:
        super().__init__(setup)
        self._secret = SecretKey()
        self.draw = 0
        self.queries = np.zeros((len(setup.parties), self._rows), np.uint32)
        options, size = self._options, self.network.theta.numel()
        options.check_batch(setup.training.batch_size)
        if options.server_zeroth:
            if not size:
                advice = "the server model has no parameters to estimate; use 'cascaded', or another model.server"
                raise ConfigError("protocol.name", options.server_zeroth, advice)
            check_smoothing(options.smoothing, size, options.distribution, SERVER)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Started(entropy=entropy) | Resumed(entropy=entropy):
                self._secret.renew(entropy)
            case WorkDone(result=ProbedStepped() as result):
                return self.stepped(result)
        return super().handle(event, now)

    def received(self, sender: str, message: Message) -> list[Effect]:
        """No gradient is given for the asking."""
        if isinstance(message, Query):
            raise RemoteProtocolError(sender, "server does not expect a Query")
        return super().received(sender, message)

    def decoded(self, sender: str, message: Any) -> Any:
        """With ĉ, which travels as c does, a direction at a time."""
        message = super().decoded(sender, message)
        if not isinstance(message, Probe) or not len(message.perturbed):
            return message
        parts = [(one, arrived(sender, one, self.decode)) for one in message.perturbed]
        if all(one is values for one, values in parts):
            return message
        return msgspec.structs.replace(message, perturbed=np.stack([values for _, values in parts]))

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """A batch comes with its probes, and keeps the rules that keep labels from whoever asks cleverly."""
        super().check_upload(sender, message)
        if not isinstance(message, Probe):
            if message.batch:
                raise RemoteProtocolError(sender, "a batch without its perturbed embeddings")
            return
        expected = (self._options.directions, message.batch, self._widths[self._index[sender]])
        perturbed = message.perturbed
        if perturbed.shape != expected or perturbed.dtype != np.float32:
            raise RemoteProtocolError(sender, f"perturbed embeddings of {perturbed.shape}, expected {expected} float32")
        # However large, a finite ĉ spoils its sender's answer alone: the table and the step of w_0 know c only.
        if not isinstance(perturbed, Elsewhere) and not all_finite(perturbed):
            raise RemoteProtocolError(sender, "perturbed embeddings that are not finite")
        if self.rules:
            self._check_question(sender, message)

    def _check_question(self, sender: str, message: Probe) -> None:
        options, party = self._options, self._index[sender]
        rows = message.rows[: message.batch]
        if len(rows) < options.min_batch:
            cause = f"asks about {len(rows)} rows at once; the rule protocol.min_batch wants {options.min_batch}"
            raise RemoteProtocolError(sender, cause)
        if len(np.unique(rows)) < len(rows):
            raise RemoteProtocolError(sender, "asks about a row twice in one batch; every row once is the rule")
        asked = self.queries[party]
        allowed = int(asked.sum() // len(asked)) + 1 + options.extra_queries
        most = int(asked[rows].max(initial=0)) + 1
        if most > allowed:
            cause = f"asks about a row {most} times; the rule protocol.extra_queries allows {allowed} by now"
            raise RemoteProtocolError(sender, cause)

    def request_of(self, party: int, message: Embeddings) -> Request:
        """With ĉ, which goes no further than to this step; the question is counted."""
        request = super().request_of(party, message)
        assert isinstance(message, Probe)
        self.queries[party, request.rows] += 1
        return Request(
            request.party, request.step, request.rows, request.values, True, True, perturbed=message.perturbed
        )  # fmt: skip

    def step_work(self, seed: int, batches: list[Batch], groups: list[list[Request]]) -> Work:
        """Line 9 to 11 in one job, at one w_0."""
        self.draw += 1
        probes = [[self._probed(request) for request in group] for group in groups]
        rows = sum(
            len(batch.h) * (FORWARD_SHARE * (1 + len(found) * self._options.directions) + self._own_share)
            for batch, found in zip(batches, probes, strict=True)
        )
        return Work(self.k, "step", rows / self._training.batch_size, ProbedStep(seed, self.draw, batches, probes))

    @property
    def _own_share(self) -> float:
        """What w_0's own step costs beside the losses, in whole steps.

        By backpropagation that is one step. By Eq. (3) it is a forward pass for each direction, and one more where
        BatchNorm's averages are kept; the pass at w_0 itself is that of the loss h.
        """
        if not self._options.server_zeroth:
            return 1.0
        passes: int = self._options.directions + self.network.averages
        return FORWARD_SHARE * passes

    def _probed(self, request: Request) -> ProbedBlock:
        block = self.table.blocks[request.party]
        assert request.perturbed is not None
        return ProbedBlock(block.start, block.stop, request.perturbed)

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        if not isinstance(job, ProbedStep):
            return super().compute(job)
        told, steps = [], []
        for place, (batch, probes) in enumerate(zip(job.batches, job.probes, strict=True)):
            told.append(self._told(batch, probes, seed_of(job.seed, place)))
            steps.append(self._gradient(told[-1][0], batch, job, place))
        bases = [base for base, _ in told]
        theta_0 = mean_over_uploads(steps, [batch.uploads for batch in job.batches])
        buffers = self.network.buffers_after_forward()
        return ProbedStepped(bases, theta_0, [replies for _, replies in told], buffers)

    def _told(self, batch: Batch, probes: list[ProbedBlock], seed: int) -> tuple[float, list[Array]]:
        """Line 9: h of a batch, and h, ĥ … as each of its uploaders is told them."""
        base, *others = self.network.losses_at(None, self._inputs(batch, probes), batch.targets, seed)
        replies = []
        for probe in probes:
            count = len(probe.perturbed)
            losses, others = [base, *others[:count]], others[count:]
            replies.append(np.stack(losses) if self.per_sample else np.array([rows.mean() for rows in losses]))
        return float(base.mean()), replies

    def _inputs(self, batch: Batch, probes: list[ProbedBlock]) -> Iterator[Array]:
        """The embeddings as they are, then with one party's block replaced."""
        yield batch.h
        for probe in probes:
            for perturbed in probe.perturbed:
                h = batch.h.copy()
                h[:, probe.start : probe.stop] = perturbed
                yield h

    def _gradient(self, base: float, batch: Batch, job: ProbedStep, place: int) -> Array:
        """Line 10 by backpropagation, or App. B l. 9 by Eq. (3), with a direction u_{0,i} of each batch i its own.

        One direction for all batches of a step would leave their mean as noisy as one of them.
        """
        # DEVIATION: line 9 of App. B mixes ĉ into the first term; unperturbed c stand in both here, or the
        # estimate would be of another function.
        options, seed = self._options, seed_of(job.seed, place)
        if not options.server_zeroth:
            return self.network.gradient(batch.h, batch.targets, seed, onward=place > 0)
        self.network.observe(batch.h, seed, onward=place > 0)
        w_0, mu = self.network.vector(), np.float32(options.smoothing)
        name = ("server", job.draw, place) if place else ("server", job.draw)
        u = directions(self._secret.seed(*name), options.directions, len(w_0), options.distribution)
        probed = [self.network.losses_at(w_0 + mu * one, [batch.h], batch.targets, seed)[0].mean() for one in u]
        return estimate(np.array(probed) - base, u, options.smoothing, options.distribution)

    def stepped(self, result: Any) -> list[Effect]:
        """No party is told a loss that it could not learn from."""
        if not all(np.isfinite(values).all() for found in result.replies for values in found):
            raise TrainingDiverged(self.divergence())
        return super().stepped(result)

    def replies(self, result: ProbedStepped, groups: list[list[Request]], k: int) -> list[Effect]:
        """Line 9: the losses, and nothing else, go down."""
        pairs = zip(groups, result.replies, strict=True)
        return [
            Send(self._parties[request.party], Losses(request.step, k, values))
            for group, found in pairs
            for request, values in zip(group, found, strict=True)
        ]

    def save(self) -> dict[str, Any]:
        """All but the labels and the key."""
        return super().save() | {"draw": self.draw, "queries": self.queries}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        super().load(state)
        self.draw, self.queries = state["draw"], state["queries"].copy()
