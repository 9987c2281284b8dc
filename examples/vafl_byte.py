"""VAFL whose parties send one byte per number: an embedding's row as whole numbers of ±127, and their scale.

cd examples; colonnade compare sign.toml --protocols vafl,vafl-byte
"""

from dataclasses import replace

import numpy as np

from colonnade.algorithms import METHODS
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.vafl.party import Party
from colonnade.algorithms.vafl.server import Server
from colonnade.protocol.messages import Array


class Bytes(Encoding):
    def encode(self, values: Array) -> Array:
        scale = np.abs(values).max(1, keepdims=True) / np.float32(127) + np.float32(1e-12)
        return np.hstack([scale.view(np.uint8), np.rint(values / scale).astype(np.int8).view(np.uint8)])

    def decode(self, values: Array) -> Array:
        scale = np.ascontiguousarray(values[:, :4]).view(np.float32)
        return np.ascontiguousarray(values[:, 4:]).view(np.int8) * scale


class ByteParty(Bytes, Party):
    pass


class ByteServer(Bytes, Server):
    pass


METHOD = replace(
    METHODS["vafl"],
    name="vafl-byte",
    paper="an example",
    summary="VAFL with one byte for each number of an embedding",
    reveals="as vafl, but the server sees embeddings that were rounded to one byte per number",
    server=ByteServer,
    party=ByteParty,
)
