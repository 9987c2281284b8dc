"""The servers of zeroth-order parties: VFL-Cascaded Alg. 1 lines 8–11 on VAFL's table, and App. B Alg. 2 in lock-step.

All losses of a step, and the gradient of w_0, are taken at the SAME w_0: replies hold losses from before the server's
own step. The table keeps c only, never ĉ. The server sends one pair of scalars per batch, and answers only questions
that an honest walk would ask. Otherwise a curious party could ask row by row and read the labels. The rules slow down a
party that makes up its embeddings; they do not stop it (docs/attacks.md).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, log, sqrt
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from colonnade.algorithms.batches import are_same, walk_of, walks_of
from colonnade.algorithms.chassis import done, job
from colonnade.algorithms.encoding import arrived
from colonnade.algorithms.lockstep.server import LockStepServer, RoundState
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.vafl.messages import Batch, Embeddings, Query
from colonnade.algorithms.vafl.request_queue import QueuedRequest
from colonnade.algorithms.vafl.server import TableServer, TableState
from colonnade.algorithms.vafl.stepping import Stepping, SteppingState, mean_over_uploads, seed_of
from colonnade.algorithms.vafl.walker import FORWARD_SHARE
from colonnade.algorithms.zeroth.config import SynZooOptions, TableOptions, ZerothOptions
from colonnade.algorithms.zeroth.directions import check_smoothing, differences, directions, estimate, signed
from colonnade.algorithms.zeroth.messages import Losses, Probe, ProbedBlock, ProbedStep, ProbedStepped
from colonnade.models.probed import ProbedServerNetwork
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import ConfigError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["LockStepProbing", "Probing", "TableProbing"]


M = TypeVar("M", bound=Any)  # a message with `values`
T = TypeVar("T", bound=SteppingState)


# ln 10¹²: a row is drawn so much more often than the mean with a chance of 10⁻¹² at most.
RARE = 12 * log(10)


def by_chance(mean: float) -> int:
    """Return how much more often than the mean independent draws may hit one row, by Bernstein's inequality.

    P(X ≥ λ + t) ≤ exp(−t²/(2λ + 2t/3)) for a count X of mean λ; t solves t² = RARE·(2λ + 2t/3).
    """
    return ceil(RARE / 3 + sqrt((RARE / 3) ** 2 + 2 * RARE * mean))


class Questions:
    """The questions of the parties so far, and the number of direction draws of the server."""

    def __init__(self, parties: int, rows: int) -> None:
        self.counts = np.zeros((parties, rows), np.uint32)  # how many times each party asked about each row
        self.draw = 0

    def save(self) -> dict[str, Any]:
        return {"counts": self.counts, "draw": self.draw}

    def load(self, saved: dict[str, Any]) -> None:
        self.counts[...] = saved["counts"]
        self.draw = saved["draw"]


class Probing(Stepping[T], Generic[T]):
    """Holds w_0, the labels, and how many times each party asked about each row."""

    network: ProbedServerNetwork
    network_type = ProbedServerNetwork
    rules = True  # check questions; experiments on attacks switch it off
    per_sample = False  # send losses row by row; experiments on attacks switch it on

    def begin_probing(self, options: ZerothOptions) -> None:
        """Finish the constructor; raise ConfigError for what cannot be estimated."""
        self.options, self.secret, self.questions = options, SecretKey(), Questions(len(self.names), self.rows)
        options.check_batch(self.training.batch_size)
        if options.server_zeroth:
            size = self.network.theta.numel()
            if not size:
                advice = "the server model has no parameters to estimate; use 'cascaded', or another model.server"
                raise ConfigError("protocol.name", options.server_zeroth, advice)
            key = "smoothing" if options.server_smoothing is None else "server_smoothing"
            check_smoothing(options.mu_of(None), size, options.distribution, SERVER, f"protocol.{key}")

    def started(self, entropy: bytes) -> None:
        """Take the key and begin."""
        self.secret.renew(entropy)
        super().started(entropy)

    def resumed(self, entropy: bytes) -> None:
        """Take the new key."""
        self.secret.renew(entropy)

    def decoded(self, sender: str, message: M) -> M:
        """Also decode ĉ, which a party encodes as it does c, one direction at a time."""
        message = super().decoded(sender, message)
        if not isinstance(message, Probe) or not message.perturbed.ndim or not len(message.perturbed):
            return message
        parts = [(one, arrived(sender, one, self.decode)) for one in message.perturbed]
        if all(one is values for one, values in parts):
            return message
        return msgspec.structs.replace(message, perturbed=np.stack([values for _, values in parts]))

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Check a batch and its probes. The rules keep labels from a party that chooses its questions to find them."""
        super().check_upload(sender, message)
        if not isinstance(message, Probe):
            if message.batch:
                raise RemoteProtocolError(sender, "a batch without its perturbed embeddings")
            return
        expected = (self.options.probes, message.batch, self.widths[self.index[sender]])
        perturbed = message.perturbed
        if perturbed.shape != expected or perturbed.dtype != np.float32:
            raise RemoteProtocolError(sender, f"perturbed embeddings of {perturbed.shape}, expected {expected} float32")
        # However large, a finite ĉ spoils only its sender's answer: the table and the step of w_0 use c alone.
        if not isinstance(perturbed, Elsewhere) and not all_finite(perturbed):
            raise RemoteProtocolError(sender, "perturbed embeddings that are not finite")
        if self.rules:
            self.check_question(sender, message)

    def check_question(self, sender: str, message: Probe) -> None:
        """Raise RemoteProtocolError for a question that no honest party asks."""
        options, party = self.options, self.index[sender]
        rows = message.rows[: message.batch]
        if len(rows) < options.min_batch:
            cause = f"asks about {len(rows)} rows at once; protocol.min_batch = {options.min_batch}"
            raise RemoteProtocolError(sender, cause)
        if len(np.unique(rows)) < len(rows):
            raise RemoteProtocolError(sender, "asks about a row twice in one batch; each row may occur once")
        asked = self.questions.counts[party]
        allowed = int(asked.sum() // len(asked)) + 1 + options.extra_queries
        if self.training.sampling == "iid":
            allowed += by_chance(asked.sum() / len(asked))
        most = int(asked[rows].max(initial=0)) + 1
        if most > allowed:
            cause = f"asks about a row {most} times; protocol.extra_queries allows {allowed} so far"
            raise RemoteProtocolError(sender, cause)

    def request_of(self, party: int, message: Embeddings) -> QueuedRequest:
        """Return a request with ĉ, which is used in this step only, and count the question."""
        request = super().request_of(party, message)
        assert isinstance(message, Probe)
        self.questions.counts[party, request.rows] += 1
        return replace(request, reply=True, perturbed=message.perturbed)

    def run_pass(self, batches: list[Batch]) -> None:
        """Lines 9 to 11 in one job, at one w_0."""
        self.state.working = True
        self.questions.draw += 1
        probes = [[self._probed(request) for request in group] for group in self.groups()]
        rows = sum(
            len(batch.h) * (FORWARD_SHARE * (1 + len(found) * self.options.probes) + self._own_share())
            for batch, found in zip(batches, probes, strict=True)
        )
        job = ProbedStep(self.layer_seed(), self.questions.draw, batches, probes)
        self.work("step", rows / self.training.batch_size, job, repeatable=not self.options.server_zeroth)

    def _own_share(self) -> float:
        """Return the cost of w_0's own step beyond the losses, in whole steps.

        By backpropagation that is one step. By Eq. (3) it is one forward pass for each direction, or two if
        differences are central, and one more to keep BatchNorm's averages. The pass at w_0 itself is that of h.
        """
        if not self.options.server_zeroth:
            return 1.0
        passes = self.options.server_directions * (2 if self.options.difference == "central" else 1)
        return FORWARD_SHARE * (passes + self.network.averages)

    def _probed(self, request: QueuedRequest) -> ProbedBlock:
        block = self.blocks[request.party]
        assert request.perturbed is not None
        return ProbedBlock(block.start, block.stop, request.perturbed)

    @job(ProbedStep)
    def losses_and_gradient(self, job: ProbedStep) -> ProbedStepped:
        """Lines 9 and 10: compute the losses and the gradient of w_0."""
        told, steps = [], []
        for place, (batch, probes) in enumerate(zip(job.batches, job.probes, strict=True)):
            told.append(self._told(batch, probes, seed_of(job.seed, place)))
            steps.append(self._gradient(told[-1][0], batch, job, place))
        bases = [base for base, _ in told]
        theta_0 = mean_over_uploads(steps, [batch.uploads for batch in job.batches])
        buffers = self.network.buffers_after_forward()
        return ProbedStepped(bases, theta_0, [replies for _, replies in told], buffers)

    def _told(self, batch: Batch, probes: list[ProbedBlock], seed: int) -> tuple[float, list[Array]]:
        """Line 9: return h of a batch, and for each of its uploaders h, ĥ … as the server sends them."""
        base, *others = self.network.losses_at(None, self._inputs(batch, probes), batch.targets, seed)
        replies = []
        for probe in probes:
            count = len(probe.perturbed)
            losses, others = [base, *others[:count]], others[count:]
            replies.append(np.stack(losses) if self.per_sample else np.array([rows.mean() for rows in losses]))
        return float(base.mean()), replies

    def _inputs(self, batch: Batch, probes: list[ProbedBlock]) -> Iterator[Array]:
        """Yield the embeddings unchanged, then with one party's block replaced."""
        yield batch.h
        for probe in probes:
            for perturbed in probe.perturbed:
                h = batch.h.copy()
                h[:, probe.start : probe.stop] = perturbed
                yield h

    def _gradient(self, base: float, batch: Batch, job: ProbedStep, place: int) -> Array:
        """Line 10 by backpropagation, or App. B l. 9 by Eq. (3), with a separate direction u_{0,i} for each batch i.

        With one direction for all batches of a step, their mean would be as noisy as one of them.
        """
        # DEVIATION: line 9 of App. B mixes ĉ into the first term. Both terms use unperturbed c here; otherwise the
        # estimate would be of another function.
        options, seed = self.options, seed_of(job.seed, place)
        if not options.server_zeroth:
            return self.network.gradient(batch.h, batch.targets, seed, onward=place > 0)
        self.network.observe(batch.h, seed, onward=place > 0)
        w_0, mu = self.network.vector(), np.float32(options.mu_of(None))
        name = ("server", job.draw, place) if place else ("server", job.draw)
        u = directions(self.secret.seed(*name), options.server_directions, len(w_0), options.distribution)
        moves = signed(u, options.difference == "central")
        probed = [self.network.losses_at(w_0 + mu * one, [batch.h], batch.targets, seed)[0].mean() for one in moves]
        found = differences(np.array([base, *probed]), len(u))
        return estimate(found, u, options.mu_of(None), options.distribution)

    @done(ProbedStepped)
    def probed(self, token: int, result: ProbedStepped) -> None:
        """Lines 9 and 11: send the losses, and nothing else; raise TrainingDiverged if one is not finite."""
        if not all(np.isfinite(values).all() for found in result.replies for values in found):
            raise TrainingDiverged(self.divergence())
        answers = [
            (request, Losses(request.step, self.k, values))
            for group, found in zip(self.groups(), result.replies, strict=True)
            for request, values in zip(group, found, strict=True)
        ]
        self.conclude(result.losses, result.theta_0, result.buffers, answers)


class TableProbing(Probing[TableState], TableServer[TableState]):
    """The server of `cascaded`, `zoo` and `frozen`. It refuses queries for gradients."""

    refuses = (Query,)

    def __init__(self, setup: ServerSetup[TableOptions]) -> None:
        options, state = setup.options, TableState()
        t, everyone = options.threshold(len(setup.parties)), options.on_lost == "wait"
        warm = options.table == "warm"
        super().__init__(setup, state, t=t, max_delay=options.max_delay, everyone=everyone, warm=warm)
        self.walks = walks_of(setup.training, len(setup.parties), options.batches == "shared", options.min_batch)
        self.begin_probing(options)

    def check_batch(self, sender: str, message: Embeddings) -> None:
        """Raise RemoteProtocolError for further rows, or more rows than a batch has; `check_question` does the rest."""
        rows, most = len(message.rows), self.most_rows
        if message.batch != rows or (self.rules and rows > most):
            raise RemoteProtocolError(sender, f"sent a batch of {message.batch} among {rows} rows; {most} is the most")

    def check_question(self, sender: str, message: Probe) -> None:
        """Also compare the rows with those of the walk."""
        super().check_question(sender, message)
        if not are_same(message.rows, self.walks[self.index[sender]].batch(message.step)):
            raise RemoteProtocolError(sender, f"sent rows for step {message.step} that differ from the agreed walk")

    @property
    def most_rows(self) -> int:
        """The largest batch: a remainder that is too small joins the last one of an epoch."""
        return self.training.batch_size + self.options.min_batch - 1


class LockStepProbing(Probing[RoundState], LockStepServer[RoundState]):
    """The server of `syn-zoo`."""

    def __init__(self, setup: ServerSetup[SynZooOptions]) -> None:
        super().__init__(setup, RoundState(), walk_of(setup.training, None, setup.options.min_batch))
        self.begin_probing(setup.options)
