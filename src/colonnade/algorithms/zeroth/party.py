"""Zeroth-order parties: VFL-Cascaded Alg. 1 lines 2–7, on the walks, tables and rounds of VAFL.

The party embeds its batch twice, at w_m and at w_m + μu, uploads both, and learns from two losses. It never
differentiates its network, so the network may be any function (`models.blackbox`).
"""

from typing import Any, Generic, TypeVar

import numpy as np

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.chassis import done, job, on
from colonnade.algorithms.lockstep.party import LockStepWalker, LockStepWalkerState
from colonnade.algorithms.method import Options, PartySetup
from colonnade.algorithms.sane import is_step
from colonnade.algorithms.vafl.messages import Refined
from colonnade.algorithms.vafl.table_walker import TableWalker, TableWalkerState
from colonnade.algorithms.vafl.walker import FORWARD_SHARE, Walker, WalkerState
from colonnade.algorithms.zeroth.config import SynZooOptions, TableOptions, ZerothOptions
from colonnade.algorithms.zeroth.directions import check_smoothing, differences, directions, estimate, signed
from colonnade.algorithms.zeroth.messages import Estimate, Losses, Perturb, Perturbed, Probe
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.models.blackbox import BlackBoxNetwork
from colonnade.models.probed import ProbedNetwork, probed_network
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER

__all__ = ["LockStepParty", "TableParty"]

W = TypeVar("W", bound=WalkerState)


class Drawn:
    """The directions that a party has drawn."""

    def __init__(self) -> None:
        self.count = 0  # number of draws
        self.seed = b""  # of the directions of the current batch
        self.cache: tuple[bytes, Array] | None = None  # not saved; the seed reproduces it after a restart

    def save(self) -> dict[str, Any]:
        """Return all but the cache."""
        return {"count": self.count, "seed": self.seed}

    def load(self, saved: dict[str, Any]) -> None:
        self.count, self.seed = saved["count"], saved["seed"]


class Estimating(Walker[W], Generic[W]):
    """Holds w_m, its own columns and the directions that it has drawn."""

    network: ProbedNetwork | BlackBoxNetwork

    def begin_estimating(self, options: ZerothOptions) -> None:
        """Finish the constructor; raise ConfigError for what cannot be estimated."""
        self.options, self.secret, self.drawn = options, SecretKey(), Drawn()
        self.mu = options.mu_of(self.index)
        options.check_batch(self.training.batch_size)
        if options.directions:
            check_smoothing(self.mu, self.network.theta.numel(), options.distribution, self.name)

    def make_network(
        self, setup: PartySetup[Options], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> ProbedNetwork | BlackBoxNetwork:
        """Return a network that is evaluated and never differentiated."""
        return probed_network(
            setup.model, setup.shape, setup.width, seed, setup.name, optimiser, regulariser, setup.device, self.guard
        )

    def started(self, entropy: bytes) -> None:
        """Take the key and begin."""
        self.secret.renew(entropy)
        super().started(entropy)

    def resumed(self, entropy: bytes) -> None:
        """Take the new key."""
        self.secret.renew(entropy)

    def select(self) -> None:
        """Alg. 1 l. 3–4: choose the next batch."""
        self.choose()
        s, copies = self.state, 1 + self.options.probes
        self.drawn.count += 1
        release = self.guard.plan("batch", s.rows, copies=copies)
        job = Perturb(self.drawn.count, self.layer_seed(), s.x, release=release)
        self.work("step", copies * FORWARD_SHARE * len(s.rows) / self.training.batch_size, job)

    @job(Perturb, released=True)
    def perturb(self, job: Perturb) -> Perturbed:
        """Alg. 1 l. 4: c at w_m, ĉ at w_m + μu, and at w_m − μu if differences are central.

        Random layers draw the same in all; privacy noise never does.
        """
        secret, seed, batch = self.secret.seed("directions", job.draw), job.seed, job.batch
        values = self.encode(self.network.embed(batch, seed))
        buffers = self.network.buffers_after_forward()
        w_m, mu = self.network.vector(), np.float32(self.mu)
        moves = signed(self._directions(secret), self.options.difference == "central")
        perturbed = [self.encode(self.network.embed_at(w_m + mu * u, batch, seed)) for u in moves]
        if len(perturbed) == 1:
            return Perturbed(values, perturbed[0][None], secret, buffers)
        stacked = np.stack(perturbed) if perturbed else np.zeros((0, len(batch), self.width), np.float32)
        return Perturbed(values, stacked, secret, buffers)

    def _directions(self, seed: bytes) -> Array:
        drawn, options = self.drawn, self.options
        if drawn.cache is None or drawn.cache[0] != seed:
            u = directions(seed, options.directions, self.network.theta.numel(), options.distribution)
            drawn.cache = (seed, u)
        return drawn.cache[1]

    @done(Perturbed)
    def perturbed(self, token: int, result: Perturbed) -> None:
        """Alg. 1 l. 4: upload both."""
        self.check_own(result.values)
        for perturbed in result.perturbed:
            self.check_own(perturbed)
        s = self.state
        s.busy, s.uploaded, s.buffers = False, True, result.buffers
        self.drawn.seed = result.directions
        self.send(SERVER, Probe(s.step, len(s.rows), s.rows, result.values, perturbed=result.perturbed))

    @on(Losses, SERVER)
    def losses(self, sender: str, message: Losses) -> None:
        """Alg. 1 l. 5–6: start the estimate from h and ĥ. A frozen party only continues with its next batch."""
        if not self.is_answer(message.step):
            return
        expected, values = (1 + self.options.probes,), message.values
        if values.shape != expected or values.dtype != np.float64 or not np.isfinite(values).all():
            raise RemoteProtocolError(sender, f"losses of shape {values.shape}, expected {expected} finite float64")
        if not is_step(message.update):
            raise RemoteProtocolError(sender, f"losses of update {message.update}")
        self.state.busy, self.state.k = True, message.update
        job = Estimate(self.drawn.seed, differences(values, self.options.directions))
        self.work("refine", 0.0, job, repeatable=True)

    @job(Estimate)
    def estimated(self, job: Estimate) -> Refined:
        """Compute Eq. (3) and drop the directions."""
        u, self.drawn.cache = self._directions(job.directions), None
        return Refined(estimate(job.differences, u, self.mu, self.options.distribution))

    def learn(self, gradient: Array, rate: float, buffers: list[Array]) -> None:
        """Alg. 1 l. 7. A frozen party keeps its initial weights; only BatchNorm's averages change."""
        super().learn(gradient if self.options.directions else gradient[:0], rate, buffers)


class TableParty(Estimating[TableWalkerState], TableWalker[TableWalkerState]):
    """The party of `cascaded`, `zoo` and `frozen`."""

    def __init__(self, setup: PartySetup[TableOptions]) -> None:
        options = setup.options
        walk = walk_of(setup.training, None if options.batches == "shared" else setup.index, options.min_batch)
        state = TableWalkerState.of(setup, warm=options.table == "warm")
        super().__init__(setup, state, walk, pause_s=options.pause_of(setup.index))
        self.begin_estimating(options)


class LockStepParty(Estimating[LockStepWalkerState], LockStepWalker[LockStepWalkerState]):
    """The party of `syn-zoo`."""

    def __init__(self, setup: PartySetup[SynZooOptions]) -> None:
        super().__init__(setup, LockStepWalkerState(), walk_of(setup.training, None, setup.options.min_batch))
        self.begin_estimating(setup.options)
