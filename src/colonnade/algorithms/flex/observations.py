"""What an attacker sees of `flex` and its family: embeddings of a round go up, ∂ℓ/∂h_k of the round's start comes down.

No message names its rows. They follow from the config, on a walk that all parties share.
"""

from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.messages import BeginWithGradient, Late, Ready
from colonnade.algorithms.observations import GRADIENTS, Answer, Batches, Observations, Pen, Upload
from colonnade.algorithms.vafl.messages import Skip
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Message

__all__ = ["OBSERVATIONS"]


class ReadyPen(Pen):
    """Uploads as `Ready`, with a report of one local step in the newest phase, the least possible."""

    def __init__(self) -> None:
        self._phase, self._began = 0, 0

    def upload(self, upload: Upload, now: int) -> Message:
        """Return the round's embeddings and the report."""
        took_s = (now - self._began) / NANOSECONDS
        return Ready(upload.step, upload.values, self._phase, int(self._phase > 0), 1.0, took_s, took_s)

    def note(self, message: Message, now: int) -> None:
        """Note the start of a phase."""
        if isinstance(message, BeginWithGradient):
            self._phase, self._began = message.phase, now


def read_upload(message: Message, walk: Batches) -> Upload | None:
    """Read the embeddings of a round's batch."""
    if not isinstance(message, Ready):
        return None
    return Upload(message.round, walk.batch(message.round), message.values)


def read_answer(message: Message) -> Answer | None:
    """Read ∂ℓ/∂h of the round's start, or the round to continue with."""
    match message:
        case BeginWithGradient(round=step, following=following, values=values):
            return Answer(step, values, following)
        case Skip(step=step):
            return Answer(step - 1, None, step)
    return None


def _check(options: RoundOptions) -> None:
    if options.labels == "shared":
        advice = "the server sends the labels themselves to every party: there is nothing to infer; 'server' keeps them"
        raise ConfigError("protocol.labels", "shared", advice)


OBSERVATIONS = Observations[RoundOptions](
    answers=GRADIENTS,
    answer=read_answer,
    silent=(Ready, Late),
    upload=read_upload,
    pen=ReadyPen,
    check=_check,
)
