"""A party's own secrets as shares: its columns, once, and its model in every exchange (Alg. 1 l. 2–8, 14–18)."""

import numpy as np

from colonnade.algorithms.fedvs.coding import blinding_of, coded_data, share_data, share_model
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.held_out import HeldOut
from colonnade.algorithms.fedvs.messages import (
    Blind,
    Blinded,
    DataShare,
    DataShared,
    ModelShared,
    ShareData,
    ShareModel,
)
from colonnade.algorithms.method import PartySetup
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array

__all__ = ["Sharer", "in_chunks"]

CHUNK_BYTES = 8 * 2**20  # coded data in one message


def in_chunks(to: str, version: int, share: Array, *, testing: bool = False) -> list[Effect]:
    """A share of data, in messages of bounded size."""
    step = max(1, CHUNK_BYTES // share[:1].nbytes)
    return [
        Send(to, DataShare(version, start, share[start : start + step], testing=testing), testing)
        for start in range(0, len(share), step)
    ]


class Sharer:
    """Holds the coded columns, and the key that all masks come from."""

    def __init__(self, setup: PartySetup[FedvsOptions], degree: int, key: SecretKey) -> None:
        options: FedvsOptions = setup.options
        self._options, self._code, self._key, self._width = options, options.code(setup.parties), key, setup.width
        train, test = np.asarray(setup.train), np.asarray(setup.test)  # all rows: they may lie in a file
        self._train = coded_data(train, degree, options, setup.name)
        clipped = np.clip(test, -options.x_max, options.x_max)
        self.test_clipped = int((clipped != test).sum())  # test rows may lie outside the range of training rows
        held_out = HeldOut(len(test), setup.training.validation, self._code.segments)
        self._test = held_out.arranged(coded_data(clipped, degree, options, setup.name))

    def share_data(self, job: ShareData) -> DataShared:
        """Draw masks the first time; a party that lost its shares gets the same ones again."""
        drawn = job.train_seed, job.test_seed
        seeds = drawn if job.train_seed else (self._key.seed("data"), self._key.seed("test data"))
        train, test = (
            share_data(x, self._code, seed) for x, seed in zip((self._train, self._test), seeds, strict=True)
        )
        return DataShared(job.to, train, test, *seeds, self._fingerprint("data version"))

    def share_model(self, job: ShareModel) -> ModelShared:
        """Masks and blinding are fresh in every attempt; the rounding is that of the round, or of the weights."""
        kind, round, attempt = "test " if job.testing else "", job.round, job.attempt
        if job.rounding and not job.testing:
            kind = "lasting "  # `attempt` is then a number that no other share has
        shares = share_model(
            job.weights, job.places, self._code, self._options.l_w,
            job.rounding or self._key.seed(f"{kind}rounding", round),
            self._key.seed(f"{kind}masks", round, attempt),
            self._key.seed(f"{kind}blinding", round, attempt),
        )  # fmt: skip
        version = self._fingerprint(f"{kind}version", round, attempt)
        return ModelShared(round, attempt, job.testing, version, *shares, job.trained)

    def blind(self, job: Blind) -> Blinded:
        """A new polynomial in every attempt."""
        path = job.round, job.attempt
        values = blinding_of(job.rows, self._width, self._code, self._key.seed("lasting blinding", *path, job.rows))
        mark = self._fingerprint("lasting mark", *path, job.rows)
        return Blinded(*path, job.awaited, job.places, mark, values)

    def _fingerprint(self, *path: str | int) -> int:
        """A name for masks that does not reveal them: a party that lost its memory and its key gets other names."""
        return int.from_bytes(self._key.seed(*path)[:6], "little")
