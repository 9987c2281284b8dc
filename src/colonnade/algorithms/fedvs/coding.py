"""The arithmetic of FedVS on whole jobs: into the field, into shares, through the code and back; and its costs.

**What a simulator charges.** The unit is an average party's local step on one batch: a forward and a backward product
of batch × terms × width multiply-adds. A multiply-add in the field counts as `LIMBS` of them: the products that it
takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.models.polynomial import powers
from colonnade.privacy import field
from colonnade.privacy.sharing import LagrangeCode, Segmentation
from colonnade.protocol.errors import DataError
from colonnade.protocol.messages import Array

__all__ = ["LIMBS", "Costs", "average", "average_in_plain", "blinding_of", "coded_data", "coded_sum", "coded_terms",
           "share_data", "share_model"]  # fmt: skip

LIMBS = 2  # float64 products per product in the field


def coded_data(x: Array, degree: int, options: FedvsOptions, who: str) -> Array:
    """Alg. 1 l. 3–4: all powers as field elements; raises for data outside ±X_max."""
    largest = float(np.abs(x).max(initial=0.0))
    if not largest <= options.x_max * (1 + 1e-6):  # tolerates the rounding of a scaler; also true for NaN
        column = int(np.abs(x).max(0).argmax()) if np.isfinite(largest) else int(np.isnan(x).any(0).argmax())
        raise DataError(
            f"{who}: column {column} reaches {largest:g}, outside ±{options.x_max:g}: "
            "use data.scale = 'minmax', or raise protocol.x_max"
        )
    return field.quantise(powers(x, degree), options.l_x)


def share_data(x: Array, code: LagrangeCode, seed: bytes) -> Array:
    """Alg. 1 l. 5–7, Eq. (2): coded data (rows, terms) to shares (N, places, terms)."""
    cut = Segmentation(len(x), code.segments).cut(x)
    return code.encode_data(cut, field.uniform(seed, (code.colluders, *cut.shape[1:])))


def share_model(
    weights: Array, places: int, code: LagrangeCode, l_w: int, rounding: bytes, masks: bytes, blinding: bytes
) -> tuple[Array, Array]:
    """Alg. 1 l. 15–17, Eq. (3), (4), and the blinding: (N, terms, h) and (N, places, h)."""
    quantised = field.quantise_stochastic(weights, l_w, rounding)
    models = code.encode_model(quantised, field.uniform(masks, (code.colluders, *weights.shape)))
    return models, blinding_of(places, weights.shape[1], code, blinding)


def blinding_of(places: int, width: int, code: LagrangeCode, seed: bytes) -> Array:
    """A fresh polynomial of ψ's degree that is 0 at β_1 … β_K, at each party's point: (N, places, h)."""
    terms = field.uniform(seed, (code.blinding_terms, places, width))
    if not len(terms):  # R = K: ψ has no values besides those that are decoded
        return np.zeros((code.parties, places, width), np.uint32)
    return code.blinding(terms)


def coded_terms(x: Array, w: Array, ends: Sequence[int]) -> Array:
    """Products of shares whose columns lie side by side: (products, places, h)."""
    starts = [0, *ends[:-1]]
    return np.stack([field.matmul(x[:, start:end], w[start:end]) for start, end in zip(starts, ends, strict=True)])


def coded_sum(x: Array, w: Array, blinding: Array) -> Array:
    """Eq. (5) over S, blinded."""
    product = field.matmul(x, w)
    return field.add(product, blinding) if len(blinding) else product


def average(decoded: Array, count: int, bits: int) -> Array:
    """Eq. (7), with |S| for N (footnote 2)."""
    mean: Array = (field.dequantise(decoded, bits) / count).astype(np.float32)
    return mean


def average_in_plain(parts: Sequence[tuple[Array, Array, bytes]], l_x: int, l_w: int) -> Array:
    """The average that the shares of these coded data, weights and rounding seeds decode to, bit for bit."""
    terms = [field.matmul(x, field.quantise_stochastic(weights, l_w, rounding)) for x, weights, rounding in parts]
    return average(field.total(terms), len(parts), l_x + l_w)


@dataclass(frozen=True, slots=True)
class Costs:
    """Amounts of work, as the simulator charges them."""

    code: LagrangeCode
    batch: int  # rows of a plaintext step
    width: int
    delays: bool  # as in the paper's experiments (Sec. 6.2): only a delay is drawn, not computing time
    encoding: tuple[float, float, float] = (
        LIMBS,
        LIMBS,
        LIMBS,
    )  # products per multiply-add: for data, models, blinding

    def share_data(self, terms: int, places: int) -> float:
        """N·(K+T) multiply-adds for each number of a share, in units of the party's own step."""
        if self.delays:
            return 0.0
        encode = self.code.parties * (self.code.segments + self.code.colluders) * places * terms
        return self.encoding[0] * encode / self._step(terms)

    def share_model(self, terms: int, places: int, blinding: bool) -> float:
        """N·(1+T) multiply-adds for each number of the model, N·(R−K) for each of the blinding."""
        if self.delays:
            # DEVIATION: the paper gives no base for its log²N, nor says whether |B| counts places: here e, and yes.
            return log(self.code.parties) ** 2 / max(places, 1)
        model = self.encoding[1] * (1 + self.code.colluders) * terms
        encode = model + blinding * LIMBS * self.code.blinding_terms * places
        return self.code.parties * encode * self.width / self._step(terms)

    def blind(self, terms: int, rows: int) -> float:
        """R−K multiply-adds for each number of the blinding, for N−K−T+1 parties: the others' shares are terms."""
        if self.delays:
            return 0.0  # the paper's pattern has no blinding
        code = self.code
        shares = code.parties - (code.segments + code.colluders - 1)
        return self.encoding[2] * shares * code.blinding_terms * rows * self.width / self._step(terms)

    def coded_sum(self, places: int, terms: int) -> float:
        """|B|·Σ terms·h multiply-adds, in units of an average party's step: the same for all parties (Sec. 5.3)."""
        return 1.0 if self.delays else LIMBS * places * terms * self.width / self._step(terms / self.code.parties)

    def coded_terms(self, places: int, terms: int, of_all: int) -> float:
        """The part of a coded sum's work for `terms` of all `of_all` terms."""
        return self.coded_sum(places, of_all) * terms / of_all

    def step(self, rows: int) -> float:
        """The backward product; the paper's pattern delays embeddings only."""
        return 0.0 if self.delays else 0.5 * rows / self.batch

    def decode(self, places: int, parameters: int, answers: int) -> float:
        """K·R for each number of an answer, in units of the server's own step: 3 products with all its parameters.

        If there are more answers than R, checking them takes one product for each number of each answer.
        """
        checked = answers if answers > self.code.needed else 0
        products = (self.code.segments * self.code.needed + checked) * places * self.width
        return LIMBS * products / (3.0 * self.batch * max(parameters, self.width))

    def _step(self, terms: float) -> float:
        return 2.0 * self.batch * terms * self.width
