"""VAFL whose server answers with one bit per number: the gradient's signs and one scale per row.

cd examples; colonnade compare sign.toml --protocols sync,vafl,vafl-sign
"""

from dataclasses import replace

import numpy as np

from colonnade.algorithms import METHODS
from colonnade.algorithms.chassis import on
from colonnade.algorithms.vafl.messages import Gradient
from colonnade.algorithms.vafl.party import Party
from colonnade.algorithms.vafl.request_queue import QueuedRequest
from colonnade.algorithms.vafl.server import Server
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.role import SERVER


class Signs(Message, frozen=True):
    """Server → party: ∂ℓ/∂h as signs, eight to a byte, and the mean magnitude of each row."""

    step: int
    update: int
    width: int
    scale: Array  # (rows,) float32
    bits: Array  # packed


class SignServer(Server):
    def answer(self, request: QueuedRequest, k: int, values: Array) -> Message:
        return Signs(request.step, k, values.shape[1], np.abs(values).mean(1), np.packbits(values > 0, axis=1))


class SignParty(Party):
    @on(Signs, SERVER)
    def signs(self, sender: str, m: Signs) -> None:
        signs = np.unpackbits(m.bits, axis=1, count=m.width).astype(np.float32) * 2 - 1
        self.gradient(sender, Gradient(m.step, m.update, signs * m.scale[:, None]))


METHOD = replace(
    METHODS["vafl"],
    name="vafl-sign",
    paper="an example",
    summary="VAFL with one-bit gradients",
    reveals="as vafl, but a party sees only the signs of its gradients and their size",
    payloads=(*METHODS["vafl"].payloads, Signs),
    server=SignServer,
    party=SignParty,
)
