"""Alignment: find the rows of several organisations' tables that belong to the same people, and reveal no other ids.

Private set intersection by Diffie and Hellman (Meadows 1986; Huberman, Franklin and Hogg 1999), around a ring of any
number of members. Alignment is not a training method, but its roles work like a method's: the same code runs in the
simulator and over the network.

    ring        the path of each set, and which member may send what
    member      the work of a member that holds ids
    matching    the server's work on the sets, and all that it sees
"""

from colonnade.algorithms.alignment.member import BULK, CHUNK
from colonnade.algorithms.alignment.messages import PAYLOADS, Aligned
from colonnade.algorithms.alignment.party import AligningParty
from colonnade.algorithms.alignment.server import AligningServer
from colonnade.privacy.blinding import POINT_BYTES

__all__ = ["BULK", "CHUNK", "PAYLOADS", "POINT_BYTES", "Aligned", "AligningParty", "AligningServer"]
