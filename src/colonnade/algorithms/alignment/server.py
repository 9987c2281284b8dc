"""The server of an alignment: begins it, compares the sets that all members have raised, takes part if it has ids."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from colonnade.algorithms.alignment.matching import match
from colonnade.algorithms.alignment.member import BULK, Member, pieces
from colonnade.algorithms.alignment.messages import (
    Aligned,
    BeginAlignment,
    Declare,
    Done,
    Invalid,
    Mail,
    Match,
    Matched,
    Own,
    Places,
    Points,
    Raised,
    Trouble,
)
from colonnade.algorithms.alignment.ring import MOST_IDS, Ring
from colonnade.algorithms.chassis import PARTY, Chassis, RoleState, done, job, on
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import Effect, Emit, Event, Finish, Send, Work
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.role import SERVER, RoleSummary

if TYPE_CHECKING:
    from colonnade.data import Ids  # only for types: `data` reads files, which no role does

__all__ = ["AligningServer"]

MATCHING = 0  # the token of that job; the member's tokens count from 1
DIGEST = 64  # characters of a sha256


@dataclass(slots=True, kw_only=True)
class State(RoleState):
    """Sizes, and sets of points until they are compared."""

    counts: dict[str, int]  # ids of each member that has declared
    sets: dict[str, list[Array]]
    raised: dict[str, int]  # points that each party has raised
    ring: Ring | None = None
    matched: Matched | None = None
    digests: dict[str, str] = field(default_factory=dict)  # of the orders
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class AlignmentProgress:
    """Points that all parties together have raised; an alignment has no epochs."""

    k: int
    rows: int = 0
    epochs: float = 0.0


class AligningServer(Chassis[State]):
    def __init__(self, parties: tuple[str, ...], ids: "Ids | None", chunk: int, min_parties: int = 0) -> None:
        members = parties if ids is None else (*parties, SERVER)
        counts = {} if ids is None else {SERVER: len(ids.texts)}
        state = State(counts=counts, sets={name: [] for name in members}, raised=dict.fromkeys(parties, 0))
        super().__init__(SERVER, dict.fromkeys(parties, PARTY), state)
        self.parties, self.members, self._chunk = parties, members, chunk
        self._min_parties = min_parties or len(parties)
        self.member = None if ids is None else Member(SERVER, ids.texts, ids.rows, chunk)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Handle an event. A party that breaks the rules ends the alignment; `refusal` names it."""
        try:
            return super().handle(event, now)
        except RemoteProtocolError as error:
            return self._refused(f"{error.peer} {error.cause}")

    def _refused(self, cause: str) -> list[Effect]:
        self.state.refusal = self.state.refusal or cause
        return [Finish("refused")]

    # Start, resume and join.

    def started(self, entropy: bytes) -> None:
        """Make the secrets, if the server has ids."""
        if self.member is not None:
            self.member.renew(entropy)

    def resumed(self, entropy: bytes) -> None:
        """Take new entropy, if the server has ids."""
        self.started(entropy)

    def joined(self, peer: str, reset: bool) -> None:
        """A party that restarts before all were here declares again. After the beginning its secrets are lost."""
        if not reset:
            return
        if self.state.ring is not None:
            raise RemoteProtocolError(
                peer, "restarted in the middle of the alignment; run colonnade align again on every member"
            )
        self.state.counts.pop(peer, None)

    @on(Declare, PARTY)
    def declare(self, sender: str, message: Declare) -> None:
        """Begin when the last party has declared."""
        state = self.state
        if state.ring is not None or sender in state.counts or not 1 <= message.count <= MOST_IDS:
            raise RemoteProtocolError(sender, f"declares {message.count} ids; each party declares 1 or more ids, once")
        state.counts[sender] = message.count
        if len(state.counts) < len(self.members):
            return
        counts = tuple(state.counts[name] for name in self.members)
        state.ring = Ring(self.members, counts)
        for party in self.parties:
            self.send(party, BeginAlignment(self.members, counts))
        if self.member is not None:
            self._act(self.member.begin(state.ring))

    @on(Trouble, PARTY)
    def trouble(self, sender: str, message: Trouble) -> None:
        """A party reports that another member broke the rules."""
        self.do(self._refused(f"{sender} reports: {message.member} {message.cause}"[:300]))

    # Messages of an alignment that has begun.

    def _begun(self, sender: str, message: Message) -> Ring:
        if self.state.ring is None:
            raise RemoteProtocolError(sender, f"sends {type(message).__name__} before all members are connected")
        return self.state.ring

    @on(Raised, PARTY)
    def note(self, sender: str, message: Raised) -> None:
        """Note the progress of a party."""
        work = self._begun(sender, message).work
        if not 0 <= message.points <= work:
            raise RemoteProtocolError(sender, f"reports {message.points} raised points of {work}")
        self.state.raised[sender] = message.points

    @on(Done, PARTY)
    def has_order(self, sender: str, message: Done) -> None:
        """A party has written its order."""
        self._begun(sender, message)
        if self.state.matched is None or sender in self.state.digests or len(message.sha256) != DIGEST:
            raise RemoteProtocolError(sender, "reports an order too early, twice or without a digest")
        self.state.digests[sender] = message.sha256
        self._end()

    @on(Points, PARTY)
    def points(self, sender: str, message: Points) -> None:
        """Points of a set that all members have raised, or of one that the server has to raise as a member."""
        ring = self._begun(sender, message)
        if message.hops == len(self.members):
            self._take_set(sender, message, ring)
        else:
            self.mail(sender, message)

    # The server as a member.

    @on(Message, PARTY)
    def mail(self, sender: str, message: Message) -> None:
        """A message for the server as a member."""
        self._begun(sender, message)
        kind = type(message).__name__
        if self.member is None:
            raise RemoteProtocolError(sender, f"sends {kind} to a server without ids")
        if not isinstance(message, Mail):
            raise RemoteProtocolError(sender, f"sends {kind} to a member")
        self._act(self.member.take(sender, message))

    def _act(self, effects: list[Effect]) -> None:
        """Do what the member asks for. A set that the member sends to the server needs no network."""
        for effect in effects:
            match effect:
                case Send(to=to, message=Points() as points) if to == SERVER:
                    self.points(SERVER, points)
                case Emit(record=Aligned() as own):
                    self._aligned(own)
                case _:
                    self.do([effect])

    def _own_member(self) -> Member:
        if self.member is None:
            raise LocalProtocolError("the server has no ids in this alignment")
        return self.member

    @job(Own)
    def hash_own(self, job: Own) -> Points:
        return self._own_member().hashed(job)

    @job(Points)
    def raise_points(self, job: Points) -> Points | Invalid:
        return self._own_member().raise_points(job)

    @done(Points)
    def are_raised(self, token: int, result: Points) -> None:
        """Pass the points on."""
        self._act(self._own_member().are_raised(result))

    @done(Invalid)
    def are_none(self, token: int, result: Invalid) -> None:
        """A party sent invalid points; raises RemoteProtocolError against it."""
        self._own_member().are_none(result)

    def _aligned(self, own: Aligned) -> None:
        """The server's own order is ready."""
        matched = self.state.matched
        assert matched is not None
        self.state.digests[SERVER] = own.sha256
        presence = np.empty_like(matched.presence)
        presence[self._own_member().final(np.arange(len(presence)))] = matched.presence
        self.do([Emit(msgspec.structs.replace(own, presence=presence))])
        self._end()

    # Compare the sets.

    def _take_set(self, sender: str, message: Points, ring: Ring) -> None:
        sets = self.state.sets
        held = sets.get(message.owner, [])
        wrong = ring.wrong_points(sender, SERVER, message, sum(map(len, held)))
        if wrong:
            raise RemoteProtocolError(sender, wrong)
        held.append(message.points)
        if all(sum(map(len, sets[name])) == ring.count(name) for name in self.members):
            self.do([Work(MATCHING, "match", 1.0, Match(), aside=True)])

    @job(Match)
    def compare(self, job: Match) -> Matched:
        sets = [np.concatenate(self.state.sets[name]) for name in self.members]
        labelled = [] if self.member is None else [len(self.parties)]  # a row without a label is useless
        return match(self.members, sets, self._min_parties + len(labelled), labelled)

    @done(Matched)
    def compared(self, token: int, matched: Matched) -> None:
        """Tell every member the places of its points; the server's own go through the parties that mixed them."""
        state = self.state
        state.matched = msgspec.structs.replace(matched, places=[])
        state.sets = {name: [] for name in self.members}
        refusal = matched.repeats or ("" if matched.size else self._nothing_in_common())
        if refusal:
            self.do(self._refused(refusal))
            return
        assert state.ring is not None
        for name, places in zip(self.members, matched.places, strict=True):
            to = name if name != SERVER else state.ring.path(SERVER)[-2]
            for start, stop, last in pieces(len(places), BULK * self._chunk):
                self.send(to, Places(name, matched.size, start, last, places[start:stop]))

    def _nothing_in_common(self) -> str:
        sizes = ", ".join(f"{name} {self.state.counts[name]}" for name in self.members)
        where = "all tables"
        if self._min_parties < len(self.parties):
            where = f"the server's table and those of {self._min_parties} parties"
        return (
            f"no id is in {where}; ids: {sizes}. Check that all tables have the same kind of id, and how [align] "
            "compares them"
        )

    def _end(self) -> None:
        digests = self.state.digests
        if len(digests) < len(self.members):
            return
        if len(counts := Counter(digests.values())) > 1:
            most, count = counts.most_common(1)[0]
            odd = [name for name in self.members if digests[name] != most or 2 * count <= len(self.members)]
            self.do(
                self._refused(
                    f"the members computed different row orders ({', '.join(odd)}); run colonnade align again"
                )
            )
        else:
            self.do([Finish("finished")])

    # Progress, checks and summary.

    @property
    def ring(self) -> Ring | None:
        """The ring of members; None while some have not declared."""
        return self.state.ring

    @property
    def raised(self) -> dict[str, int]:
        return self.state.raised

    @property
    def refusal(self) -> str:
        """Why the alignment ended without an order; "" if it did not."""
        return self.state.refusal

    @property
    def progress(self) -> AlignmentProgress:
        """The progress of the parties."""
        return AlignmentProgress(sum(self.state.raised.values()))

    @property
    def done(self) -> tuple[int, int]:
        """Points raised by all members, and the number to raise."""
        own = self.member.raised if self.member is not None else 0
        return self.progress.k + own, self.ring.work * len(self.members) if self.ring is not None else 0

    def waits_for(self) -> list[str]:
        """The parties that have not declared; later, those without an order."""
        has = self.state.counts if self.ring is None else self.state.digests
        return [name for name in self.parties if name not in has]

    def owes(self) -> dict[str, str]:
        """What these parties owe. A party may wait for another's points: every raised point is progress for all."""
        what = (
            "the number of its ids"
            if self.ring is None
            else f"its part of the alignment after {self.progress.k} points"
        )
        return dict.fromkeys(self.waits_for(), what)

    def validate(self) -> None:
        """Raise if a set is longer than its owner declared."""
        for name, held in self.state.sets.items():
            if sum(map(len, held)) > self.state.counts.get(name, 0):
                raise LocalProtocolError(f"server: received more points of {name} than declared")

    def summary(self) -> RoleSummary:
        """Sizes, and nothing else."""
        state = self.state
        ids = {name: state.counts[name] for name in self.members if name in state.counts}
        found: RoleSummary = {"weights": next(iter(state.digests.values()), ""), "ids": ids}
        if state.matched is not None:
            have = state.matched.presence.sum(axis=0).tolist()
            found |= {"common": state.matched.size, "have": dict(zip(self.members, have, strict=True))}
        return found
