"""A party's node that no message of the server ends: it drops what it cannot use and stays."""

from collections.abc import Callable
from typing import ClassVar

from colonnade.drivers.processes.node_without_journal import NodeWithoutJournal
from colonnade.drivers.processes.peer import Peer
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["AnsweringNode"]


class AnsweringNode(NodeWithoutJournal):
    """Its owner sets `on_refused`, which hears of every dropped message."""

    forgiving: ClassVar[bool] = True
    on_refused: Callable[[RemoteProtocolError], None]

    def received(self, peer: Peer, sequence: int, body: memoryview, evaluation: bool = False) -> None:
        """Drop a message of the server that cannot be decoded or used. The conversation goes on after it."""
        gap = sequence > peer.conversation.received + 1  # not the content: the conversation itself is broken
        try:
            super().received(peer, sequence, body, evaluation)
        except RemoteProtocolError as error:
            if peer.far or gap:
                raise
            peer.conversation.received = sequence
            self.on_refused(error)
