"""Every field of every message at its extremes, at several moments of an honest run. The role is put back each time.

`adversary` shows where a lie leads. The sweep shows that no single field was forgotten.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from random import Random

from colonnade.config.resolve import Federation
from colonnade.drivers.simulator import Simulator
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Effect, Received, Resumed, Send, Work, WorkDone
from colonnade.protocol.messages import Message
from colonnade.protocol.role import SERVER, Role
from colonnade.testing.adversary import LONGEST_RUN, Calm, absurd, make_simulator
from colonnade.testing.liar import brief
from colonnade.testing.lies import Forge
from colonnade.testing.watched import accounts, line_of

__all__ = ["Finding", "Swept", "sweep"]

MOMENTS = (0.0, 0.2, 0.5, 0.8, 1.0)  # of the honest run; 0: all roles have started
INVENTED = 4  # messages of each type that the role never gets in an honest run


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that a role must refuse or survive, and what it did instead."""

    fault: str  # crash, changed, blame or absurd
    role: str
    field: str  # Message.field
    what: str
    message: str


@dataclass(slots=True)
class Swept:
    """The result of a sweep."""

    messages: int
    refused: int
    findings: list[Finding]


def sweep(setting: Federation, calm: Calm, seed: int = 0, share: float = 1.0) -> Swept:
    """Try a share of all messages on the server and on one party."""
    swept, forge = Swept(0, 0, []), Forge(setting.method.payloads, Random(seed))
    simulator = make_simulator(setting, setting.roles())
    for moment in MOMENTS:
        while not _reached(simulator, moment * calm.events) and simulator.advance(1):
            pass
        for node in simulator.nodes[:2]:
            target = _Target(node.role, simulator.now, calm, simulator.codec)
            for sender, field, message in _messages(node.role, calm, forge, share):
                target.hear(swept, sender, field, message)
    return swept


def _reached(simulator: Simulator, events: float) -> bool:
    return simulator.number >= events and all(node.started_at >= 0 for node in simulator.nodes)


def _messages(role: Role, calm: Calm, forge: Forge, share: float) -> Iterator[tuple[str, str, Message]]:
    """All forgeries of one honest message of each type and sender, and of invented ones."""
    heard: dict[tuple[str, type], Message] = {}
    for letter in calm.letters:
        if letter.to == role.name:
            heard.setdefault((letter.sender, type(letter.message)), letter.message)
    for (sender, _), message in heard.items():
        for field, forged in forge.all_of(message, share):
            yield sender, field, forged
    senders = sorted({sender for sender, _ in heard}) or [SERVER]
    for kind in [kind for kind in forge.kinds if kind not in {known for _, known in heard}]:
        for _ in range(ceil(INVENTED * share)):
            if (invented := forge.of_kind(kind)) is not None:
                yield senders[0], kind.__name__, invented


class _Target:
    """A role at one moment of the honest run."""

    def __init__(self, role: Role, now: int, calm: Calm, codec: Codec) -> None:
        self.role, self.now, self.calm, self.codec = role, now, calm, codec
        self.before = state.pack(role.save())

    def hear(self, swept: Swept, sender: str, field: str, message: Message) -> None:
        """Give the role a message and do the jobs that it asks for; then put it back."""
        swept.messages += 1
        if accounts(self.role):
            self.before = state.pack(self.role.save())  # its ledger is not put back
        found = ""
        try:
            found = self._survived(Received(sender, message))
        except RemoteProtocolError as error:
            swept.refused += 1
            if error.peer != sender:
                found = f"blame: refuses {error.peer}"
            elif state.pack(self.role.save()) != self.before:
                found = f"changed: {error}"
        except Exception as error:
            if not isinstance(error, TrainingDiverged) or not (sender == SERVER or sender in str(error)):
                found = f"crash: {line_of(error)}"
        if found:
            fault, _, what = found.partition(": ")
            swept.findings.append(Finding(fault, self.role.name, field, what, brief(message)))
        self.role.load(state.unpack(self.before))
        self.role.handle(Resumed(b"\0" * 8), self.now)  # a state holds no keys

    def _survived(self, event: Received) -> str:
        for effect in self.role.handle(event, self.now):
            if isinstance(effect, Work):
                result = WorkDone(effect.token, self.role.compute(effect.job))
                self._sent(self.role.handle(result, self.now))
            else:
                self._sent([effect])
        self.role.validate()
        what = absurd(self.role.save(), self.calm.random, LONGEST_RUN)
        return f"absurd: remembers {what}" if what else ""

    def _sent(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.codec.encode(effect.message)
