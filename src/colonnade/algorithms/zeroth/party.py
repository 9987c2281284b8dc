"""A zeroth-order party: VFL-Cascaded Alg. 1 lines 2–7, on VAFL's machinery for walks, tables and recovery.

The party embeds its batch twice, at w_m and at w_m + μu, uploads both, and learns from two losses. Its network is
never differentiated, so it may be any function (`models.blackbox`).
"""

from typing import Any

import numpy as np

from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.vafl.messages import Gradient, Refined
from colonnade.algorithms.vafl.party import EMBED, FORWARD_SHARE, REFINE
from colonnade.algorithms.vafl.party import Party as VaflParty
from colonnade.algorithms.zeroth.directions import check_smoothing, directions, estimate
from colonnade.algorithms.zeroth.messages import Estimate, Losses, Perturb, Perturbed, Probe
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.models.blackbox import BlackBoxNetwork
from colonnade.models.probed import ProbedNetwork, probed_network
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Effect, Event, Resumed, Send, Started, Work, WorkDone
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["Party"]


class Party(VaflParty):
    """Holds w_m, its own columns, and the directions it has drawn."""

    network: ProbedNetwork | BlackBoxNetwork  # type: ignore[assignment]

    def __init__(self, setup: PartySetup[Any]) -> None:
        super().__init__(setup)
        self._secret = SecretKey()
        self.draw = 0  # how often directions were drawn
        self.directions = b""  # the seed of those of the batch in work
        self._drawn: tuple[bytes, Array] | None = None  # a cache: the seed makes them again after a restart
        self._options.check_batch(setup.training.batch_size)
        if self._options.directions:
            check_smoothing(self._options.smoothing, self.network.theta.numel(), self._options.distribution, self.name)

    def make_network(  # type: ignore[override]
        self, setup: PartySetup[Any], seed: int, optimiser: OptimiserSpec, regulariser: Regulariser
    ) -> ProbedNetwork | BlackBoxNetwork:
        """A network that is only ever evaluated."""
        return probed_network(
            setup.model, setup.shape, setup.width, seed, setup.name, optimiser, regulariser, setup.device, self.guard
        )

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        if self.guard.on and (done := self.guarded(event)) is not None:
            return done
        match event:
            case Started(entropy=entropy) | Resumed(entropy=entropy):
                self._secret.renew(entropy)
            case WorkDone(result=Perturbed() as result):
                return self._perturbed(result, now)
        return super().handle(event, now)

    def received(self, sender: str, message: Message) -> list[Effect]:
        """Losses take the place of gradients."""
        match message:
            case Losses() if sender == SERVER:
                return self._losses(message)
            case Gradient():
                raise RemoteProtocolError(sender, f"{self.name} does not expect a Gradient")
        return super().received(sender, message)

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Perturb():
                return self.guard.released(job.release, self._perturb, job)
            case Estimate(directions=seed, differences=differences):
                options = self._options
                u, self._drawn = self._directions(seed), None
                return Refined(estimate(differences, u, options.smoothing, options.distribution))
        return super().compute(job)

    def _directions(self, seed: bytes) -> Array:
        if self._drawn is None or self._drawn[0] != seed:
            options = self._options
            u = directions(seed, options.directions, self.network.theta.numel(), options.distribution)
            self._drawn = (seed, u)
        return self._drawn[1]

    def _perturb(self, job: Perturb) -> Perturbed:
        """Alg. 1 l. 4: c at w_m, ĉ at w_m + μu; random layers draw alike in both, noise for privacy never does."""
        secret, seed, batch = self._secret.seed("directions", job.draw), job.seed, job.batch
        values = self.encode(self.network.embed(batch, seed))
        buffers = self.network.buffers_after_forward()
        w_m, mu = self.network.vector(), np.float32(self._options.smoothing)
        perturbed = [self.encode(self.network.embed_at(w_m + mu * u, batch, seed)) for u in self._directions(secret)]
        if len(perturbed) == 1:
            return Perturbed(values, perturbed[0][None], secret, buffers)
        stacked = np.stack(perturbed) if perturbed else np.zeros((0, len(batch), self._width), np.float32)
        return Perturbed(values, stacked, secret, buffers)

    def select(self) -> list[Effect]:
        """Alg. 1 l. 3–4: choose the next batch."""
        self.busy = True
        self.draw += 1
        self.rows = self.sent = self._walk.batch(self.step)
        self._batch = self._x[self.rows]
        amount = (1 + self._options.directions) * FORWARD_SHARE * len(self.rows) / self._training.batch_size
        release = self.guard.plan("batch", self.rows, copies=1 + self._options.directions)
        job = Perturb(self.draw, self._layer_seed(), self._batch, release)
        return [Work(4 * self.step + EMBED, "step", amount, job)]

    def _perturbed(self, result: Perturbed, now: int) -> list[Effect]:
        """Alg. 1 l. 4: upload both."""
        self.check_own(result.values)
        for perturbed in result.perturbed:
            self.check_own(perturbed)
        self.busy, self.uploaded = False, True
        self.buffers, self.directions = result.buffers, result.directions
        rows = self.rows
        return [Send(SERVER, Probe(self.step, len(rows), rows, result.values, perturbed=result.perturbed))]

    def _losses(self, message: Losses) -> list[Effect]:
        """Alg. 1 l. 5–6: h and ĥ arrive; frozen parties only go on."""
        if not self.uploaded or self.busy or message.step != self.step:
            self.dropped += 1
            return []
        expected = (1 + self._options.directions,)
        values = message.values
        if values.shape != expected or values.dtype != np.float64 or not np.isfinite(values).all():
            raise RemoteProtocolError(SERVER, f"losses of shape {values.shape}, expected {expected} finite float64")
        if message.update < 0:
            raise RemoteProtocolError(SERVER, f"losses of update {message.update}")
        self.busy, self.k = True, message.update
        job = Estimate(self.directions, values[1:] - values[0])
        return [Work(4 * self.step + REFINE, "refine", 0.0, job)]

    def learn(self, gradient: Array, rate: float) -> None:
        """Alg. 1 l. 7; a frozen party keeps what it was born with, but for what BatchNorm has seen."""
        super().learn(gradient if self._options.directions else gradient[:0], rate)

    def save(self) -> dict[str, Any]:
        """All but the columns and the key."""
        return super().save() | {"draw": self.draw, "directions": self.directions}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        super().load(state)
        self.draw, self.directions = state["draw"], state["directions"]
