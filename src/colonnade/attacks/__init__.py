"""Attacks on methods, with the methods' own messages: how often does a role learn what it should not?

registry          the attacks by name; a user's own attack by its dotted path
attack            the input and the result of an attack, with its statistics
label_inference   direct label inference (VFL-Cascaded Sec. VI-B): which attacker asks what, under which rules
feature_inversion  a curious server and a decoder: columns from embeddings, against noise
wires             the attacked method's `observations`: which rows, uploads and answers it has; refusals
clients           what attacking parties ask, and how they read the answers
eavesdropper      what it reads on the wire of one party
stage             the real roles in the simulator, one of them replaced by the attacker
"""

from dataclasses import dataclass

__all__ = ["ATTACKS", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of `colonnade attack --help`, and the path of its `Attack`."""

    summary: str
    path: str
    protocols: str  # the methods that are attacked by default


# Nothing is imported here, so that --help answers at once.
ATTACKS = {
    "label-inference": Entry(
        "Read labels off the server's answers, as a curious party or on the wire.",
        "colonnade.attacks.label_inference:LABEL_INFERENCE",
        "vafl,sync,t-sync,cascaded,zoo,syn-zoo",
    ),
    "feature-inversion": Entry(
        "Turn a party's embeddings back into its columns, as a curious server; at several levels of noise.",
        "colonnade.attacks.feature_inversion:FEATURE_INVERSION",
        "vafl,cascaded,fedvs",
    ),
}
