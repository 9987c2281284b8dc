"""Messages between AsySQN's parties and to the coordinator, and the jobs of the roles.

An initiator and a `nonce` name an aggregation (Alg. 2). Every attempt draws a new nonce, so a party that lost its
memory cannot give two aggregations the same name. All messages of an aggregation over test rows are sent for
evaluation.

Sums carry a digest of the question they answer (`asked`). An initiator that asks some parties for other rows, or names
other members to them, gets no sum: a parent on either tree refuses a child whose digest differs.
"""

import hashlib
from typing import ClassVar

import msgspec

from colonnade.algorithms.evaluation import Scores
from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "ASYSQN_PAYLOADS",
    "Abandon",
    "Ask",
    "BeginTraining",
    "Declined",
    "Differs",
    "Diverged",
    "Extrapolated",
    "FullPass",
    "FullPassed",
    "Held",
    "Hello",
    "Hold",
    "Judge",
    "JudgeTests",
    "Judged",
    "Late",
    "Margins",
    "MarginsMade",
    "Masked",
    "Masks",
    "Members",
    "Missing",
    "Release",
    "Round",
    "Step",
    "StepMade",
    "Stepped",
    "Summed",
    "Take",
    "Taken",
    "Totals",
    "digest_of",
]  # fmt: skip

# Between the coordinator and a party.


class Hello(Message, frozen=True):
    """Party → coordinator: I am here, with these labels."""

    plainly: ClassVar[str] = "a digest of the labels, and how many rows and filled cells the party has"

    labels_sha256: str
    rows: int
    tests: int
    nonzeros: int  # nonzeros of the training block; the mean over all parties is the unit in which work is charged


class Differs(Message, frozen=True):
    """Coordinator → party: the labels with this digest differ from those of the others."""

    labels_sha256: str
    cause: str


class BeginTraining(Message, frozen=True):
    """Coordinator → party: train."""

    unit: float  # nonzeros in a row of a mean party
    members: list[int]


class Members(Message, frozen=True):
    """Coordinator → party: the parties that take part from now on."""

    members: list[int]


class Hold(Message, frozen=True):
    """Coordinator → party: end your step, then rest; a snapshot is due (Alg. 4 l. 3)."""

    barrier: int


class Held(Message, frozen=True):
    """Party → coordinator: w_ℓ rests."""

    plainly: ClassVar[str] = "a notice that the party pauses for a snapshot; no data"

    barrier: int


class Take(Message, frozen=True):
    """Coordinator → one party: aggregate θ(w^s) of all training rows, for all parties."""

    barrier: int


class Release(Message, frozen=True):
    """Coordinator → party: there is no snapshot this time; continue with the previous one."""

    barrier: int


class Taken(Message, frozen=True):
    """Party → coordinator: I have the full gradient, and continue."""

    plainly: ClassVar[str] = "a notice that the party has the snapshot; no data"

    barrier: int


class Round(Message, frozen=True):
    """Coordinator → party, in rounds and with shared sums: the next sum, and the party that aggregates it for all."""

    number: int
    initiator: int


class Stepped(Message, frozen=True):
    """Party → coordinator: w_ℓ was updated."""

    plainly: ClassVar[str] = "a notice that the party has made a step, with the number of rows; no data"

    round: int  # 0: a batch of the party's own
    rows: int
    steps: int  # steps of this party so far
    clock: int  # Σ of the others' steps when they contributed
    members: list[int]  # the parties that contributed


class Summed(Message, frozen=True):
    """Party → coordinator: I have the totals of this shared sum, and have sent them to all."""

    plainly: ClassVar[str] = "a notice that a sum is complete; no data"

    round: int


class Judge(Message, frozen=True, omit_defaults=True):
    """Coordinator → every member: party `judge` asks these members for margins of held-out rows, and judges them."""

    number: int
    judge: int
    members: list[int]
    last: bool = False  # all held-out rows; if false, the validation rows, if there are any


class Declined(Message, frozen=True):
    """Party → coordinator: no term over these members: my weights are those of an evaluation over others."""

    plainly: ClassVar[str] = "a notice that the party takes no part in an evaluation; no data"

    number: int


class Judged(Message, frozen=True, omit_defaults=True):
    """Party → coordinator: the scores of an evaluation, as in `Evaluated`."""

    plainly: ClassVar[str] = "how good the model is on the held-out rows"

    number: int
    loss: float
    values: dict[str, float]
    tested: Scores | None = None


class Diverged(Message, frozen=True):
    """Party → coordinator: my computation diverged; also a job's result."""

    plainly: ClassVar[str] = "a notice that the training diverges"

    cause: str
    own: bool  # this party's own numbers are out of range; if false, the loss of the whole model is


class Missing(Message, frozen=True, omit_defaults=True):
    """Party → coordinator: these children on the trees owe me their part of a sum that is late.

    Or, with the initiator alone: its sum for all parties may have been lost, because our conversation started again.
    """

    plainly: ClassVar[str] = "which parties have not sent their part of a sum in time; no data"

    initiator: int
    nonce: int
    parties: list[int]
    given_up: bool = False  # this attempt is over


# Between parties: Alg. 2.


class Ask(Message, frozen=True, omit_defaults=True):
    """Initiator → every other member: contribute your margins of these rows, or of all (`whole`).

    With `tests`, the rows are the held-out ones: the validation rows, unless all are meant or there are none.
    With `round`, the rows are those of this shared sum, which all parties know. `history` names the earlier snapshots
    that the initiator extrapolates from.
    """

    plainly: ClassVar[str] = "which rows the party works on next"

    nonce: int
    members: list[int]
    whole: bool
    rows: Array  # (b,) int32
    tests: bool = False
    round: int = 0
    history: list[int] = msgspec.field(default_factory=list)


def digest_of(ask: Ask) -> bytes:
    """A digest of a question's rows and members."""
    what = "AskTests" if ask.tests else f"AskRound {ask.round}" if ask.round else "Ask"
    history = f" {ask.history}" if ask.history else ""
    kind = f"{what} {ask.whole} {ask.members} {len(ask.rows)}{history}"
    return hashlib.blake2b(kind.encode() + ask.rows.tobytes(), digest_size=16).digest()


class Masked(Message, frozen=True):
    """Child → parent on T1: Σ(θ+δ) over the subtree, modulo 2⁶⁴."""

    plainly: ClassVar[str] = (
        "sums over parties of what their columns add to each row's score; hidden by random numbers if masking is on"
    )

    initiator: int
    nonce: int
    asked: bytes  # `digest_of` the question
    clock: int  # Σ of the subtree's steps
    values: Array  # (rows,) uint64


class Masks(Message, frozen=True):
    """Child → parent on T2: Σδ over the subtree, modulo 2⁶⁴."""

    plainly: ClassVar[str] = "sums over several parties of those random numbers"

    initiator: int
    nonce: int
    asked: bytes
    values: Array


class Abandon(Message, frozen=True):
    """Initiator → every other member: drop this aggregation."""

    plainly: ClassVar[str] = "a notice that a request is withdrawn; no data"

    nonce: int


class Late(Message, frozen=True):
    """Initiator → every other member: this sum is late; tell the coordinator whose part you miss."""

    plainly: ClassVar[str] = "a notice that a sum is late; no data"

    nonce: int


class Totals(Message, frozen=True, omit_defaults=True):
    """Initiator → every other member: θ of all rows at a barrier, or of the batch of a round or of a shared sum."""

    plainly: ClassVar[str] = "for each row, the score that all parties together give it"

    barrier: int
    round: int
    values: Array  # (rows,) float64; at a barrier, then the sums of `Snapshots.tail`
    clock: int = 0  # of a shared sum: Σ of all members' steps when they contributed


# Jobs.


class Margins(Payload, frozen=True, omit_defaults=True):
    """Job: θ^ℓ of the rows that an `Ask` with these fields means, in fixed point, masked."""

    draw: int  # names the mask
    tests: bool
    whole: bool
    rows: Array
    history: list[int] = msgspec.field(default_factory=list)


class MarginsMade(Payload, frozen=True):
    """Result of `Margins`."""

    nonce: int
    steps: int
    masked: Array  # θ^ℓ + δ_ℓ
    masks: Array  # δ_ℓ; empty without masking


class Step(Payload, frozen=True):
    """Job: one step on a batch whose margins are known."""

    rows: Array
    theta: Array


class StepMade(Payload, frozen=True):
    """Result of `Step`: s, ȳ, v, ∂L/∂θ of the batch, and Xᵀ(∂L/∂θ − reference)/b."""

    s: Array
    y: Array
    v: Array
    slopes: Array
    difference: Array
    loss: float  # of the batch, plus λ/2·‖w_ℓ‖²
    start: float  # loss at w = 0, on this batch or on all rows, whichever is larger


class FullPass(Payload, frozen=True, omit_defaults=True):
    """Job: the full gradient's data part at margins of all rows (Alg. 4 l. 3, Alg. 5 l. 2); none given: at w = 0."""

    theta: Array  # (rows,), then the sums of `Snapshots.tail`
    barrier: int = 0  # 0: no snapshot to extrapolate from
    parties: int = 0  # that contributed


class FullPassed(Payload, frozen=True):
    """Result of `FullPass`: ∂L/∂θ of all rows, and Xᵀ of it over n."""

    slopes: Array
    mean: Array


class Extrapolated(FullPassed, frozen=True):
    """`FullPassed` at an extrapolated point."""

    barrier: int
    theta: Array  # of the snapshot itself
    row: Array  # of G: see `extrapolation`; empty: the parties have different snapshots
    w: Array  # the new weights; empty: no point with a lower objective was found


class JudgeTests(Payload, frozen=True):
    """Job: judge the margins of the held-out rows: the validation rows, or all."""

    number: int
    theta: Array


ASYSQN_PAYLOADS = (
    *(Hello, Differs, BeginTraining, Members, Hold, Held, Take, Release, Taken, Round, Stepped, Summed),
    *(Judge, Judged, Declined, Diverged, Missing),
    *(Ask, Masked, Masks, Abandon, Late, Totals),
    *(Margins, MarginsMade, Step, StepMade, FullPass, FullPassed, Extrapolated, JudgeTests),
)
