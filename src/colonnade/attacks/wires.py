"""What goes over a party's wire, by family of methods: the rows of a step, an upload, and the server's answer to it.

family           rows of a step        upload               answer
vafl, zeroth     the party's walk      Embeddings, Probe    Gradient (∂ℓ/∂h_m), Losses
flex             a walk that all share Ready                BeginWithGradient (∂ℓ/∂h_m of the round's start)
wait, ignore, …  the same              Upload               Gradient (∇_H), or Begin: left out of this round
fedvs            the same              coded: none here     Gradient (∇_H), read by a party that follows the protocol
"""

from typing import NamedTuple

from colonnade.algorithms.batches import Rows, Walk
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import FedvsOptions, PlainOptions
from colonnade.algorithms.fedvs.messages import EXCHANGE, FetchData, Prepared
from colonnade.algorithms.fedvs.messages import Gradient as AverageGradient
from colonnade.algorithms.fedvs.plain_messages import Begin as NextRound
from colonnade.algorithms.fedvs.plain_messages import Upload
from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.messages import BeginWithGradient, Late, Ready
from colonnade.algorithms.method import Method
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient, Query, Skip
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.config.resolve import Federation
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Array, Message

__all__ = ["CODED", "GRADIENTS", "LOSSES", "Answer", "Pen", "answers_of", "read_answer", "unreadable", "walk_of"]

LOSSES, GRADIENTS, CODED = "losses", "gradients", "gradients of coded sums"  # what a method answers with
# Of what no attacker here has any use: the other direction, and a secret sharing's own affairs.
_NO_ANSWER = (Embeddings, Query, FreshRequest, Ready, Late, Upload, FetchData, Prepared, *EXCHANGE)


class Answer(NamedTuple):
    """What the server said about a step."""

    step: int
    values: Array | None  # a gradient (rows, width), or losses; None: nothing, go on
    following: int  # the step to go on with


class RowsOf:
    """The rows of every step of a walk over segments, as `Walk` gives them."""

    def __init__(self, walk: SegmentWalk) -> None:
        self.per_epoch, self.batch = walk.per_epoch, walk.rows


def answers_of(method: Method) -> str:
    """What the method tells a party: its payloads say it."""
    if method.party is None:
        raise ConfigError("--protocols", method.name, "has no parties and no messages: there is nothing to attack")
    if method.capabilities.party_labels:
        raise ConfigError("--protocols", method.name, "every party holds the labels: there is nothing to infer")
    if Losses in method.payloads:
        return LOSSES
    if any(kind in method.payloads for kind in (Gradient, BeginWithGradient, Upload)):
        return GRADIENTS
    if AverageGradient in method.payloads:
        return CODED
    advice = "answers with messages that no attacker here can read; docs/attacks.md says how to add one"
    raise ConfigError("--protocols", method.name, advice)


def walk_of(setting: Federation, index: int) -> Walk | RowsOf:
    """The rows of a party's steps, which follow from what all members agree upon."""
    training, options = setting.training, setting.options
    if isinstance(options, FedvsOptions | PlainOptions):
        return RowsOf(SegmentWalk(training.rows, training, options.K))
    shared = isinstance(options, RoundOptions) or options.batches == "shared"  # type: ignore[attr-defined]
    path = ("batches",) if shared else ("batches", index)
    smallest = getattr(options, "min_batch", 1)
    return Walk(training.rows, training.batch_size, training.seed, *path, smallest=smallest)


def read_answer(message: Message) -> Answer | None:
    """The answer in a message; None: it is no answer. What is not understood must not pass for telling nothing."""
    match message:
        case Gradient(step=step, values=values) | Losses(step=step, values=values):
            return Answer(step, values, step + 1)
        case BeginWithGradient(round=step, following=following, values=values):
            return Answer(step, values, following)
        case AverageGradient(position=step, values=values):
            return Answer(step, values, step + 1)
        case Skip(step=step) | NextRound(round=step):
            return Answer(step - 1, None, step)
    if isinstance(message, _NO_ANSWER):
        return None
    raise unreadable(message)


def unreadable(message: Message) -> ConfigError:
    """An answer that is not understood must not pass for one that tells nothing."""
    advice = "no attacker here can read this; docs/attacks.md says how to add one that can"
    return ConfigError("--protocols", f"answers with {type(message).__name__}", advice)


class Pen:
    """Writes uploads in the family's own messages."""

    def __init__(self, setting: Federation) -> None:
        self._rounds = isinstance(setting.options, RoundOptions)
        self._plain = isinstance(setting.options, PlainOptions)
        self._phase, self._began = 0, 0  # of flex: the newest phase, of which the next upload reports

    def note(self, message: Message, now: int) -> None:
        """A phase begins."""
        if isinstance(message, BeginWithGradient):
            self._phase, self._began = message.phase, now

    def upload(self, step: int, rows: Rows, values: Array, perturbed: Array | None, now: int) -> Message:
        """Of a batch; a flex party reports one local step, the least that there is."""
        if self._rounds:
            took_s = (now - self._began) / NANOSECONDS
            return Ready(step, values, self._phase, int(self._phase > 0), 1.0, took_s, took_s)
        if self._plain:
            return Upload(step, values)
        if perturbed is None:
            return Embeddings(step, len(rows), rows, values)
        return Probe(step, len(rows), rows, values, perturbed=perturbed)
