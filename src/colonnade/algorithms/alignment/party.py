"""A party that aligns its ids with the others': declares how many, raises everybody's, and makes its order."""

from typing import TYPE_CHECKING, Any

from colonnade.algorithms.alignment.member import Member, plain, unplain
from colonnade.algorithms.alignment.messages import Aligned, Begin, Declare, Done, Raised, Trouble
from colonnade.algorithms.alignment.ring import Ring
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    Effect,
    Emit,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    Started,
    WorkDone,
)
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import SERVER, RoleSummary

if TYPE_CHECKING:
    from colonnade.data import Ids  # at run time: what reads files, which no role does

__all__ = ["AligningParty"]


class AligningParty:
    """The role."""

    def __init__(self, name: str, ids: "Ids", chunk: int) -> None:
        self.name, self._count = name, len(ids.texts)
        self.member = Member(name, ids.texts, ids.rows, chunk)
        self.early: list[tuple[str, Message]] = []  # from members who have heard of the beginning before us

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Whoever breaks the rules is told to the server, which ends it for all."""
        try:
            return self._handle(event)
        except RemoteProtocolError as error:
            return [Send(SERVER, Trouble(error.peer, error.cause))]

    def _handle(self, event: Event) -> list[Effect]:
        match event:
            case Started(entropy=entropy):
                self.member.renew(entropy)
                return [Send(SERVER, Declare(self._count))]
            case Resumed(entropy=entropy):
                self.member.renew(entropy)
                return []
            case Received(sender=sender, message=message):
                return self._received(sender, message)
            case WorkDone(result=result):
                effects = self.member.work_done(result)
                return [*effects, Send(SERVER, Raised(self.member.raised))]
            case PeerJoined(peer=peer, anew=True):
                return self._anew(peer)
            case PeerJoined() | PeerLost():
                return []
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def _anew(self, peer: str) -> list[Effect]:
        """What was under way with this peer is gone."""
        if self.member.ring is None:
            return [Send(SERVER, Declare(self._count))] if peer == SERVER else []
        raise RemoteProtocolError(peer, "began anew in the middle")

    def _received(self, sender: str, message: Message) -> list[Effect]:
        if isinstance(message, Begin):
            return self._begin(sender, message)
        if self.member.ring is None:
            self.early.append((sender, message))
            return []
        return self._taken(sender, message)

    def _taken(self, sender: str, message: Message) -> list[Effect]:
        effects = self.member.take(sender, message)
        done = [Send(SERVER, Done(e.record.sha256)) for e in effects if _is_order(e)]  # type: ignore[union-attr]
        return [*effects, *done]

    def _begin(self, sender: str, message: Begin) -> list[Effect]:
        ring = Ring(message.members, message.counts)
        fits = len(ring.members) == len(ring.counts) == len(set(ring.members)) and self.name in ring.members
        if sender != SERVER or self.member.ring is not None or not fits or ring.count(self.name) != self._count:
            raise RemoteProtocolError(sender, "begins what cannot be begun")
        effects = self.member.begin(ring)
        early, self.early = self.early, []
        for other, earlier in early:
            effects += self._taken(other, earlier)
        return effects

    def compute(self, job: Payload) -> Payload:
        """Raise points."""
        return self.member.compute(job)

    @property
    def done(self) -> tuple[int, int]:
        """Points raised, and how many there are."""
        return self.member.raised, self.member.ring.work if self.member.ring is not None else 0

    def save(self) -> dict[str, Any]:
        """The whole state, without secrets of the key's making."""
        return {"member": self.member.save(), "early": [(sender, plain(message)) for sender, message in self.early]}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.member.load(saved["member"])
        self.early = [(sender, unplain(message)) for sender, message in saved["early"]]  # type: ignore[misc]

    def validate(self) -> None:
        """What has been raised is what is expected, at most."""
        raised, whole = self.done
        if raised > whole:
            raise LocalProtocolError(f"{self.name}: raised {raised} points of {whole}")

    def summary(self) -> RoleSummary:
        """For the folder."""
        aligned = self.member.aligned
        if aligned is None:
            return {"weights": "", "ids": self._count}
        return {"weights": aligned.sha256, "ids": self._count, "common": len(aligned.rows)}


def _is_order(effect: Effect) -> bool:
    return isinstance(effect, Emit) and isinstance(effect.record, Aligned)
