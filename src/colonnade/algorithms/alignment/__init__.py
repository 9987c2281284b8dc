"""Alignment: which rows of several organisations' tables belong to the same people, without showing the others.

Private set intersection by Diffie and Hellman (Meadows 1986; Huberman, Franklin and Hogg 1999), around a ring of any
number of members. No method of training, but roles like theirs: the same code in the simulator and over the network.

    ring        who sends what to whom
    member      what a holder of ids does
    matching    what the server does with the sets, and all that it sees
"""

from colonnade.algorithms.alignment.member import BULK, CHUNK
from colonnade.algorithms.alignment.messages import PAYLOADS, Aligned
from colonnade.algorithms.alignment.party import AligningParty
from colonnade.algorithms.alignment.server import AligningServer
from colonnade.privacy.blinding import POINT_BYTES

__all__ = ["BULK", "CHUNK", "PAYLOADS", "POINT_BYTES", "Aligned", "AligningParty", "AligningServer"]
