"""What an attacker sees of `median`: no message names its rows, but all parties walk through the same batches."""

from colonnade.algorithms.observations import GRADIENTS, Answer, Batches, Observations, Pen, Summing, Upload
from colonnade.protocol.messages import Message
from colonnade_median.config import MedianOptions
from colonnade_median.messages import GoOn, Gradient
from colonnade_median.messages import Upload as UploadMessage

__all__ = ["OBSERVATIONS"]


class MedianPen(Pen):
    """Writes uploads."""

    def upload(self, upload: Upload, now: int) -> Message:
        """The embeddings of a round."""
        return UploadMessage(upload.step, upload.values)


def read_upload(message: Message, walk: Batches) -> Upload | None:
    """The rows follow from the walk."""
    if not isinstance(message, UploadMessage):
        return None
    return Upload(message.round, walk.batch(message.round), message.values)


def read_answer(message: Message) -> Answer | None:
    """∂ℓ/∂h_m, or that the round is over."""
    if isinstance(message, GoOn):
        return Answer(message.round - 1, None, message.round)
    return Answer(message.round, message.values, message.round + 1) if isinstance(message, Gradient) else None


OBSERVATIONS = Observations[MedianOptions](
    answers=GRADIENTS, answer=read_answer, silent=(UploadMessage,), upload=read_upload, pen=MedianPen,
    summing=Summing("mean"),
)  # fmt: skip
