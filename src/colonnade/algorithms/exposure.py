"""What the members see of each other, in a few words. `colonnade protocols` and the report group methods by them.

`Method.reveals` says the same exactly and at length.
"""

__all__ = [
    "EVERYTHING",
    "LABELS_TO_PARTIES",
    "LOSSES",
    "MARGINS",
    "NOISY_EMBEDDINGS",
    "PLAIN_EMBEDDINGS",
    "PLAIN_MARGINS",
    "SUMS",
    "UNMASKED",
]

EVERYTHING = "All columns and labels are in one place"
PLAIN_EMBEDDINGS = "The server sees every party's embeddings; parties get gradients"
LABELS_TO_PARTIES = "The server sees every party's embeddings; parties get them too, and the labels"
LOSSES = "The server sees every party's embeddings; parties get losses, no gradients"
NOISY_EMBEDDINGS = "The server sees every party's embeddings with noise; parties get gradients"
SUMS = "The server sees sums of embeddings, no single party's; parties get gradients"
UNMASKED = "Parties see each other's columns and weights; the server sees sums of embeddings"
MARGINS = "Every party has the labels and sees sums of all parties' scores; the server sees neither"
PLAIN_MARGINS = "Every party has the labels; parties see each other's scores; the server sees neither"
