"""What an attacker sees of `fedvs` and of its plaintext baselines: every party gets ∇_H of the average.

No message names its rows: they follow from the config, on a walk that all parties share. Uploads of `fedvs` are secret
shares. The server sees nothing of a single party, only the sums that it decodes.
"""

from collections.abc import Callable

from colonnade.algorithms.batches import Rows
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import average
from colonnade.algorithms.fedvs.config import FedvsOptions, PlainOptions
from colonnade.algorithms.fedvs.messages import EXCHANGE, Decode, FetchData, Gradient, Prepared
from colonnade.algorithms.fedvs.plain_messages import BeginRound
from colonnade.algorithms.fedvs.plain_messages import Upload as PlainUpload
from colonnade.algorithms.observations import (
    CODED,
    GRADIENTS,
    Answer,
    Batches,
    Observations,
    Pen,
    Seen,
    Summing,
    Upload,
)
from colonnade.algorithms.training import Training
from colonnade.protocol.messages import Message, Payload

__all__ = ["OBSERVATIONS", "PLAIN"]


class _Rows:
    """A walk over places, as the rows that the places stand for."""

    def __init__(self, walk: SegmentWalk) -> None:
        self._walk, self.per_epoch = walk, walk.per_epoch

    def batch(self, position: int, /) -> Rows:
        """The rows of all K segments."""
        return self._walk.rows(position)


class PlainPen(Pen):
    """Writes uploads as the baselines' `Upload`."""

    def upload(self, upload: Upload, now: int) -> Message:
        """The embeddings of a round."""
        return PlainUpload(upload.step, upload.values)


def read_answer(message: Message) -> Answer | None:
    """∇_H of a batch."""
    if isinstance(message, Gradient):
        return Answer(message.position, message.values, message.position + 1)
    return None


def read_plain_answer(message: Message) -> Answer | None:
    """∇_H, or the start of the next round if this one left the party out."""
    if isinstance(message, BeginRound):
        return Answer(message.round - 1, None, message.round)
    return read_answer(message)


def _walk(training: Training, options: FedvsOptions | PlainOptions, index: int) -> Batches:
    return _Rows(SegmentWalk(training.rows, training, options.segments(len(training.party_rates))))


def _sums(training: Training, options: FedvsOptions, parties: int) -> Callable[[Payload], Seen | None]:
    """A reader of the average embedding of each batch that the server decodes."""
    code = options.code(parties)
    cut = SegmentWalk(training.rows, training, code.segments).cut

    def seen(job: Payload) -> Seen | None:
        if not isinstance(job, Decode):
            return None
        summed = cut.samples(code.decode(job.answers, job.who), job.batch)
        return Seen(cut.row_numbers(job.batch), average(summed, job.count, options.l_x + options.l_w))

    return seen


OBSERVATIONS = Observations[FedvsOptions](
    answers=CODED,
    answer=read_answer,
    silent=(FetchData, Prepared, *EXCHANGE),
    walk=_walk,
    summing=Summing("mean", "polynomial:1", 3),  # with T = 1, three parties are the fewest that it can code for
    sums=_sums,
)
# Without `upload`: label inference takes the rows from the walk, and feature inversion refuses these methods.
PLAIN = Observations[PlainOptions](
    answers=GRADIENTS,
    answer=read_plain_answer,
    silent=(PlainUpload,),
    pen=PlainPen,
    walk=_walk,
    summing=Summing("mean"),
)
