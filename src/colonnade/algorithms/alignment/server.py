"""The server of an alignment: begins it, compares the sets that all have raised, takes part if it has ids itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from colonnade.algorithms.alignment.matching import match
from colonnade.algorithms.alignment.member import BULK, Member, pieces
from colonnade.algorithms.alignment.messages import (
    Aligned,
    Begin,
    Declare,
    Done,
    Match,
    Matched,
    Places,
    Points,
    Raised,
    Trouble,
)
from colonnade.algorithms.alignment.ring import Ring
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    Effect,
    Emit,
    Event,
    Finish,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    Started,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import SERVER, RoleSummary

if TYPE_CHECKING:
    from colonnade.data import Ids  # at run time: what reads files, which no role does

__all__ = ["AligningServer"]

MATCHING = 0  # the token of that job; the member's count from 1


@dataclass(slots=True)
class Progress:
    """Points that all members together have raised."""

    k: int = 0


class AligningServer:
    """The role."""

    name = SERVER

    def __init__(self, parties: tuple[str, ...], ids: "Ids | None", chunk: int, min_parties: int = 0) -> None:
        self.parties, self._chunk = parties, chunk
        self._min_parties = min_parties or len(parties)
        self.member = None if ids is None else Member(SERVER, ids.texts, ids.rows, chunk)
        self.members = parties if ids is None else (*parties, SERVER)
        self.ring: Ring | None = None
        self.counts: dict[str, int] = {} if ids is None else {SERVER: len(ids.texts)}
        self.sets: dict[str, list[Array]] = {name: [] for name in self.members}
        self.raised = dict.fromkeys(parties, 0)
        self.matched: Matched | None = None
        self.digests: dict[str, str] = {}
        self.refusal = ""
        self.progress = Progress()

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Whoever breaks the rules ends the alignment; all are told who it was."""
        try:
            return self._own_mail(self._handle(event))
        except RemoteProtocolError as error:
            return self._refused(f"{error.peer} {error.cause}")

    def _refused(self, cause: str) -> list[Effect]:
        self.refusal = self.refusal or cause
        return [Finish("refused")]

    def _own_mail(self, effects: list[Effect]) -> list[Effect]:
        """What a member that is the server sends to the server needs no network."""
        out: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Send) and effect.to == SERVER:
                waiting = [*self._received(SERVER, effect.message), *waiting]
            elif isinstance(effect, Emit) and isinstance(effect.record, Aligned):
                out += self._aligned(effect.record)
            else:
                out.append(effect)
        return out

    def _handle(self, event: Event) -> list[Effect]:
        match event:
            case Started(entropy=entropy) | Resumed(entropy=entropy):
                if self.member is not None:
                    self.member.renew(entropy)
                return []
            case Received(sender=sender, message=message):
                return self._received(sender, message)
            case WorkDone(token=token, result=Matched() as matched) if token == MATCHING:
                return self._compared(matched)
            case WorkDone(result=result):
                return self._member().work_done(result)
            case PeerJoined(peer=peer, anew=True):
                return self._anew(peer)
            case PeerJoined() | PeerLost():
                return []
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def _member(self) -> Member:
        if self.member is None:
            raise LocalProtocolError("the server has no ids in this alignment")
        return self.member

    def _anew(self, peer: str) -> list[Effect]:
        """A party that started again before all were here declares again; later, its secrets are gone."""
        if self.ring is not None:
            raise RemoteProtocolError(peer, "began anew in the middle")
        self.counts.pop(peer, None)
        return []

    def _received(self, sender: str, message: Message) -> list[Effect]:
        match message:
            case Declare(count=count):
                return self._declared(sender, count)
            case Trouble(member=member, cause=cause):
                return self._refused(f"{member} {cause}, says {sender}"[:300])
        if self.ring is None:
            raise RemoteProtocolError(sender, f"sends {type(message).__name__} before all are here")
        match message:
            case Raised(points=points):
                return self._note(sender, points)
            case Points(hops=hops) if hops == len(self.members):
                return self._take_set(sender, message, self.ring)
            case Done(sha256=sha256):
                self.digests[sender] = sha256
                return self._end()
        if self.member is None:
            raise RemoteProtocolError(sender, f"sends {type(message).__name__} to a server without ids")
        return self.member.take(sender, message)

    def _declared(self, sender: str, count: int) -> list[Effect]:
        if self.ring is not None or sender in self.counts or count < 1:
            raise RemoteProtocolError(sender, f"declares {count} ids, which it cannot")
        self.counts[sender] = count
        if len(self.counts) < len(self.members):
            return []
        counts = tuple(self.counts[name] for name in self.members)
        self.ring = Ring(self.members, counts)
        effects: list[Effect] = [Send(party, Begin(self.members, counts)) for party in self.parties]
        return effects if self.member is None else [*effects, *self.member.begin(self.ring)]

    def _note(self, sender: str, points: int) -> list[Effect]:
        self.raised[sender] = points
        self.progress.k = sum(self.raised.values())
        return []

    # Comparing

    def _take_set(self, sender: str, message: Points, ring: Ring) -> list[Effect]:
        held = self.sets.get(message.owner, [])
        wrong = ring.wrong_points(sender, SERVER, message, sum(map(len, held)))
        if wrong:
            raise RemoteProtocolError(sender, wrong)
        held.append(message.points)
        whole = all(sum(map(len, self.sets[name])) == ring.count(name) for name in self.members)
        return [Work(MATCHING, "match", 1.0, Match(), aside=True)] if whole else []

    def compute(self, job: Payload) -> Payload:
        """Compare the sets, or raise points as a member."""
        if isinstance(job, Match):
            sets = [np.concatenate(self.sets[name]) for name in self.members]
            labelled = [] if self.member is None else [len(self.parties)]  # a row without a label is of no use
            return match(self.members, sets, self._min_parties + len(labelled), labelled)
        return self._member().compute(job)

    def _compared(self, matched: Matched) -> list[Effect]:
        """Tell every member where its points stand; of the server's own, through the parties that mixed them."""
        self.matched = msgspec.structs.replace(matched, places=[])
        self.sets = {name: [] for name in self.members}
        if matched.repeats:
            return self._refused(matched.repeats)
        if not matched.size:
            sizes = ", ".join(f"{name} {self.counts[name]}" for name in self.members)
            where = "all tables"
            if self._min_parties < len(self.parties):
                where = f"the server's table and those of {self._min_parties} parties"
            return self._refused(f"no id is in {where}; ids: {sizes}. Are they the same kind of id? See [align]")
        effects: list[Effect] = []
        assert self.ring is not None
        for name, places in zip(self.members, matched.places, strict=True):
            to = name if name != SERVER else self.ring.path(SERVER)[-2]
            effects += [
                Send(to, Places(name, matched.size, start, last, places[start:stop]))
                for start, stop, last in pieces(len(places), BULK * self._chunk)
            ]
        return effects

    def _aligned(self, own: Aligned) -> list[Effect]:
        """The server's own order is there."""
        assert self.matched is not None
        self.digests[SERVER] = own.sha256
        presence = np.empty_like(self.matched.presence)
        presence[self._member().final(np.arange(len(presence)))] = self.matched.presence
        return [Emit(msgspec.structs.replace(own, presence=presence)), *self._end()]

    def _end(self) -> list[Effect]:
        if len(self.digests) < len(self.members):
            return []
        if len(set(self.digests.values())) > 1:
            return self._refused("the members came to different orders: start it again")
        return [Finish("finished")]

    # For people and folders

    def waits_for(self) -> list[str]:
        """Who has not come, or has most left to do."""
        if self.ring is None:
            return [name for name in self.parties if name not in self.counts]
        return [name for name in self.parties if name not in self.digests]

    @property
    def done(self) -> tuple[int, int]:
        """Points raised by all, and how many there are."""
        own = self.member.raised if self.member is not None else 0
        return self.progress.k + own, self.ring.work * len(self.members) if self.ring is not None else 0

    def save(self) -> dict[str, Any]:
        """The whole state."""
        return {
            "member": None if self.member is None else self.member.save(),
            "ring": self.ring is not None,
            "counts": self.counts,
            "sets": self.sets,
            "raised": self.raised,
            "matched": None if self.matched is None else (self.matched.size, self.matched.presence),
            "digests": self.digests,
            "refusal": self.refusal,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in ("counts", "sets", "raised", "digests", "refusal"):
            setattr(self, name, saved[name])
        if self.member is not None:
            self.member.load(saved["member"])
        counts = tuple(self.counts[name] for name in self.members) if saved["ring"] else ()
        self.ring = Ring(self.members, counts) if saved["ring"] else None
        size, presence = saved["matched"] or (0, None)
        self.matched = None if presence is None else Matched(size, [], presence)
        self.progress.k = sum(self.raised.values())

    def validate(self) -> None:
        """No set is longer than was declared."""
        for name, held in self.sets.items():
            if sum(map(len, held)) > self.counts.get(name, 0):
                raise LocalProtocolError(f"server: the set of {name} is too long")

    def summary(self) -> RoleSummary:
        """Sizes, and nothing else."""
        ids = {name: self.counts[name] for name in self.members if name in self.counts}
        found: RoleSummary = {"weights": next(iter(self.digests.values()), ""), "ids": ids}
        if self.matched is not None:
            have = self.matched.presence.sum(axis=0).tolist()
            found |= {"common": self.matched.size, "have": dict(zip(self.members, have, strict=True))}
        return found
