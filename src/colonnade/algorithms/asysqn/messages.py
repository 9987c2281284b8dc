"""What AsySQN's parties say to each other and to the coordinator, and the jobs they give themselves.

An aggregation (Alg. 2) is named by its initiator and a `nonce`, drawn anew for every attempt: a party that lost its
memory cannot give two of them the same name. All messages of one over test rows are sent for evaluation.

Sums carry a digest of the question they answer (`asked`): an initiator that asks some parties for other rows than the
rest, or names other members to them, gets no sum, because a parent on either tree refuses a child's other digest.
"""

import hashlib
from typing import ClassVar

from colonnade.algorithms.evaluation import Scores
from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "ASYSQN_PAYLOADS",
    "Abandon",
    "Ask",
    "Begin",
    "Declined",
    "Differs",
    "Diverged",
    "FullPass",
    "FullPassed",
    "Held",
    "Hello",
    "Hold",
    "Judge",
    "JudgeTests",
    "Judged",
    "Margins",
    "MarginsMade",
    "Masked",
    "Masks",
    "Members",
    "Release",
    "Round",
    "Step",
    "StepMade",
    "Stepped",
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
    nonzeros: int  # of the training block: the unit in which work is charged is everybody's mean


class Differs(Message, frozen=True):
    """Coordinator → party: the labels with this digest are not those of the others."""

    labels_sha256: str
    cause: str


class Begin(Message, frozen=True):
    """Coordinator → party: train."""

    unit: float  # nonzeros of a mean party's row
    members: list[int]


class Members(Message, frozen=True):
    """Coordinator → party: who takes part from now on."""

    members: list[int]


class Hold(Message, frozen=True):
    """Coordinator → party: end your step, then rest; a snapshot is due (Alg. 4 l. 3)."""

    barrier: int


class Held(Message, frozen=True):
    """Party → coordinator: w_ℓ rests."""

    plainly: ClassVar[str] = "that the party rests for a snapshot; no data"

    barrier: int


class Take(Message, frozen=True):
    """Coordinator → one party: aggregate θ(w^s) of all training rows, for everybody."""

    barrier: int


class Release(Message, frozen=True):
    """Coordinator → party: there is no snapshot this time; go on with the one before."""

    barrier: int


class Taken(Message, frozen=True):
    """Party → coordinator: I have the full gradient, and go on."""

    plainly: ClassVar[str] = "that the party has the snapshot; no data"

    barrier: int


class Round(Message, frozen=True):
    """Coordinator → party, synchronous twins: the next round, and who aggregates for all."""

    number: int
    initiator: int


class Stepped(Message, frozen=True):
    """Party → coordinator: w_ℓ was updated."""

    plainly: ClassVar[str] = "that the party has made a step, with its size in rows; no data"

    round: int  # 0: asynchronous
    rows: int
    steps: int  # of this party, in all
    clock: int  # Σ of the others' steps when they contributed
    members: list[int]  # who contributed


class Judge(Message, frozen=True, omit_defaults=True):
    """Coordinator → every member: the party `judge` asks these for the margins of held-out rows, and judges them."""

    number: int
    judge: int
    members: list[int]
    last: bool = False  # of all these rows; else of the validation rows, if there are any


class Declined(Message, frozen=True):
    """Party → coordinator: not over these members: my weights are those of an evaluation over others."""

    plainly: ClassVar[str] = "that the party does not take part in a judgement; no data"

    number: int


class Judged(Message, frozen=True, omit_defaults=True):
    """Party → coordinator: so good, as in `Evaluated`."""

    plainly: ClassVar[str] = "how good the model is on the rows held out"

    number: int
    loss: float
    values: dict[str, float]
    tested: Scores | None = None


class Diverged(Message, frozen=True):
    """Party → coordinator: what I compute leads nowhere; also a job's result."""

    plainly: ClassVar[str] = "that the training leads nowhere"

    cause: str
    own: bool  # this party's own numbers are out of range; else the loss of the whole model is


# Between parties: Alg. 2.


class Ask(Message, frozen=True, omit_defaults=True):
    """Initiator → every other: contribute to the margins of these rows, or of all (`whole`).

    Of `tests`, the rows held out, these are the validation rows, unless all are meant or there are none.
    """

    plainly: ClassVar[str] = "which rows the party works on next"

    nonce: int
    members: list[int]
    whole: bool
    rows: Array  # (b,) int32
    tests: bool = False


def digest_of(ask: Ask) -> bytes:
    """What a question asks for, and of which parties."""
    kind = f"{'AskTests' if ask.tests else 'Ask'} {ask.whole} {ask.members} {len(ask.rows)}"
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
    """Initiator → every other: forget this aggregation."""

    plainly: ClassVar[str] = "that a question is withdrawn; no data"

    nonce: int


class Totals(Message, frozen=True):
    """Initiator → every other: θ of all rows at a barrier, or of a synchronous round's batch."""

    plainly: ClassVar[str] = "for each row, the score that all parties together give it"

    barrier: int
    round: int
    values: Array  # (rows,) float64


# Jobs.


class Margins(Payload, frozen=True):
    """θ^ℓ of the rows that an `Ask` with these fields means, in fixed point, masked."""

    draw: int  # names the mask
    tests: bool
    whole: bool
    rows: Array


class MarginsMade(Payload, frozen=True):
    """Its result."""

    nonce: int
    steps: int
    masked: Array  # θ^ℓ + δ_ℓ
    masks: Array  # δ_ℓ; empty without masking


class Step(Payload, frozen=True):
    """One step on a batch whose margins are known."""

    rows: Array
    theta: Array


class StepMade(Payload, frozen=True):
    """Its result: s, ȳ, v, ∂L/∂θ of the batch, and Xᵀ(∂L/∂θ − reference)/b."""

    s: Array
    y: Array
    v: Array
    slopes: Array
    difference: Array
    loss: float  # of the batch, and λ/2·‖w_ℓ‖²
    start: float  # what w = 0 costs, on this batch or on all rows: the larger


class FullPass(Payload, frozen=True):
    """The full gradient's data part at margins of all rows (Alg. 4 l. 3, Alg. 5 l. 2); none: at w = 0."""

    theta: Array


class FullPassed(Payload, frozen=True):
    """Its result: ∂L/∂θ of all rows, and Xᵀ of it over n."""

    slopes: Array
    mean: Array


class JudgeTests(Payload, frozen=True):
    """Judge the margins of the rows held out: the validation rows, or all."""

    number: int
    theta: Array


ASYSQN_PAYLOADS = (
    *(Hello, Differs, Begin, Members, Hold, Held, Take, Release, Taken, Round, Stepped),
    *(Judge, Judged, Declined, Diverged),
    *(Ask, Masked, Masks, Abandon, Totals),
    *(Margins, MarginsMade, Step, StepMade, FullPass, FullPassed, JudgeTests),
)
