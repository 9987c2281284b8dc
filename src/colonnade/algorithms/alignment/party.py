"""A party that aligns its ids: declares how many it has, raises all members' points, and derives its order."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colonnade.algorithms.alignment.member import Member
from colonnade.algorithms.alignment.messages import (
    Aligned,
    BeginAlignment,
    Declare,
    Done,
    Invalid,
    Mail,
    Own,
    Points,
    Raised,
    Trouble,
)
from colonnade.algorithms.alignment.ring import Ring
from colonnade.algorithms.chassis import ANYONE, Chassis, RoleState, done, job, on
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import Effect, Emit, Event, Send
from colonnade.protocol.messages import Message
from colonnade.protocol.role import SERVER, RoleSummary

if TYPE_CHECKING:
    from colonnade.data import Ids  # only for types: `data` reads files, which no role does

__all__ = ["AligningParty"]

MOST_EARLY = 256  # messages of one member: minutes of its work


@dataclass(slots=True, kw_only=True)
class State(RoleState):
    """The party's state, apart from that of its `Member`."""

    early: list[tuple[str, Mail]] = field(default_factory=list)  # from members that heard of the beginning earlier


class AligningParty(Chassis[State]):
    def __init__(self, name: str, ids: "Ids", chunk: int) -> None:
        super().__init__(name, {SERVER: SERVER}, State())
        self._count = len(ids.texts)
        self.member = Member(name, ids.texts, ids.rows, chunk)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Handle an event. If a member broke the rules, tell the server, which ends the alignment for all."""
        try:
            return super().handle(event, now)
        except RemoteProtocolError as error:
            return [Send(SERVER, Trouble(error.peer, error.cause))]

    # Start, resume and join.

    def started(self, entropy: bytes) -> None:
        """Make the secrets, and declare the number of ids."""
        self.member.renew(entropy)
        self.send(SERVER, Declare(self._count))

    def resumed(self, entropy: bytes) -> None:
        """Take new entropy, from which new secrets derive."""
        self.member.renew(entropy)

    def joined(self, peer: str, reset: bool) -> None:
        """`reset`: everything under way with this peer is gone."""
        if not reset:
            return
        if self.member.ring is not None:
            raise RemoteProtocolError(
                peer, "restarted in the middle of the alignment; run colonnade align again on every member"
            )
        if peer == SERVER:
            self.send(SERVER, Declare(self._count))

    # Messages; the ring defines which member may send what.

    @on(BeginAlignment, ANYONE)
    def begin(self, sender: str, message: BeginAlignment) -> None:
        """Start to raise points: all members are here."""
        ring = Ring(message.members, message.counts)
        fits = ring.is_possible() and self.name in ring.members
        if sender != SERVER or self.member.ring is not None or not fits or ring.count(self.name) != self._count:
            raise RemoteProtocolError(sender, "starts an alignment that does not fit this party")
        self.do(self.member.begin(ring))
        early, self.state.early = self.state.early, []
        for other, earlier in early:
            self._take(other, earlier)

    @on(Message, ANYONE)
    def mail(self, sender: str, message: Message) -> None:
        """A message from one member to another."""
        if not isinstance(message, Mail):
            raise RemoteProtocolError(sender, f"sends {type(message).__name__} to a member")
        if self.member.ring is None:
            if sum(other == sender for other, _ in self.state.early) >= MOST_EARLY:
                raise RemoteProtocolError(sender, f"sends more than {MOST_EARLY} messages before the beginning")
            self.state.early.append((sender, message))
        else:
            self._take(sender, message)

    def _take(self, sender: str, message: Mail) -> None:
        effects = self.member.take(sender, message)
        self.do(effects)
        for effect in effects:
            if isinstance(effect, Emit) and isinstance(effect.record, Aligned):
                self.send(SERVER, Done(effect.record.sha256))

    # Jobs.

    @job(Own)
    def hash_own(self, job: Own) -> Points:
        return self.member.hashed(job)

    @job(Points)
    def raise_points(self, job: Points) -> Points | Invalid:
        return self.member.raise_points(job)

    @done(Points)
    def are_raised(self, token: int, result: Points) -> None:
        """Pass the points on, and tell the server how many are raised so far."""
        self.do(self.member.are_raised(result))
        self.send(SERVER, Raised(self.member.raised))

    @done(Invalid)
    def are_none(self, token: int, result: Invalid) -> None:
        """A member sent invalid points; raises RemoteProtocolError against it."""
        self.member.are_none(result)

    # Progress, checks and summary.

    @property
    def done(self) -> tuple[int, int]:
        """Points raised so far, and the number to raise."""
        return self.member.raised, self.member.ring.work if self.member.ring is not None else 0

    def validate(self) -> None:
        """Raise if the member has raised more points than expected."""
        raised, whole = self.done
        if raised > whole:
            raise LocalProtocolError(f"{self.name}: raised {raised} points of {whole}")

    def summary(self) -> RoleSummary:
        """The number of ids, and the digest of the order."""
        aligned = self.member.aligned
        if aligned is None:
            return {"weights": "", "ids": self._count}
        return {"weights": aligned.sha256, "ids": self._count, "common": len(aligned.rows)}
