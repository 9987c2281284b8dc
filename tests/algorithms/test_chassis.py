"""The chassis alone, with small roles: dispatch, refusals, the outbox, and what a checkpoint holds."""

import copy
import sys
from dataclasses import dataclass, field

import pytest

from colonnade.algorithms.chassis import ANYONE, PARTY, Chassis, RoleState, done, done_blind, job, on, timer
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    CancelTimer,
    CancelWork,
    PeerJoined,
    PeerLost,
    Promised,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Message, Payload
from colonnade.protocol.role import SERVER


class Number(Message, frozen=True):
    value: int


class Larger(Number, frozen=True):
    pass


class Stop(Message, frozen=True):
    pass


class Square(Payload, frozen=True):
    value: int


class Squared(Payload, frozen=True):
    value: int


@dataclass(slots=True, kw_only=True)
class State(RoleState):
    total: int = 0
    seen: list[str] = field(default_factory=list)


class Counter:
    """A component that saves itself."""

    def __init__(self):
        self.count = 0

    def save(self):
        return {"count": self.count}

    def load(self, saved):
        self.count = saved["count"]


class Adder(Chassis[State]):
    """Adds the squares of the numbers that parties send."""

    def __init__(self, **more):
        super().__init__("server", {"ann": PARTY, "boss": SERVER}, State())
        self.counter = Counter()
        for name, value in more.items():
            setattr(self, name, value)

    def started(self, entropy):
        self.wake("tick", self.now + 5)

    def joined(self, peer, reset):
        self.state.seen.append(f"{peer} {reset}")

    def peer_lost(self, peer):
        self.state.seen.remove(f"{peer} False")

    @on(Number, PARTY)
    def number(self, sender, message):
        token = self.work("square", 1.0, Square(message.value))
        self.send(sender, Number(token))
        if message.value < 0:
            raise RemoteProtocolError(sender, "a negative number")
        self.counter.count += 1

    @on(Stop, SERVER)
    def stop(self, sender, message):
        self.cancel(self.state.jobs)
        self.forget_timer("tick")

    @job(Square)
    def square(self, job):
        return Squared(job.value**2)

    @done(Squared)
    def squared(self, token, result):
        self.state.total += result.value

    @timer("tick")
    def tick(self, due):
        self.wake("tick", due + 5)


def started(role=None):
    made = role or Adder()
    assert made.handle(Started(b""), 1) == [SetTimer("tick", 6)]
    return made


def test_events_reach_their_handlers_and_effects_leave_in_order():
    role = started()
    assert role.handle(Received("ann", Number(3)), 2) == [Work(1, "square", 1.0, Square(3)), Send("ann", Number(1))]
    assert role.compute(Square(3)) == Squared(9)
    assert role.handle(WorkDone(1, Squared(9)), 3) == [] and role.state.total == 9
    assert role.handle(TimerFired("tick", 6), 7) == [SetTimer("tick", 11)]
    assert role.handle(Received("boss", Stop()), 8) == [CancelWork(1), CancelTimer("tick")]
    role.handle(PeerJoined("ann"), 9)
    assert role.state.seen == ["ann False"]
    role.handle(PeerLost("ann"), 9)
    assert role.state.seen == [] and role.now == 9


def test_a_derived_message_reaches_the_handler_of_its_base():
    assert len(started().handle(Received("ann", Larger(2)), 2)) == 2


@pytest.mark.parametrize(
    ("sender", "message"), [("boss", Number(1)), ("ann", Stop()), ("eve", Number(1)), ("ann", Message())]
)
def test_the_chassis_refuses_what_a_sender_may_not_send(sender, message):
    role = started()
    before = state.pack(role.save())
    with pytest.raises(RemoteProtocolError, match=f"server does not expect a {type(message).__name__}"):
        role.handle(Received(sender, message), 2)
    assert state.pack(role.save()) == before


def test_a_handler_may_refuse_senders_itself():
    class Open(Adder):
        @on(Stop, ANYONE)
        def stop(self, sender, message):
            self.state.seen.append(sender)

    role = started(Open())
    for sender in ("ann", "boss", "eve"):
        role.handle(Received(sender, Stop()), 2)
    assert role.state.seen == ["ann", "boss", "eve"]


def test_a_refusal_forgets_what_was_asked_for_before_it():
    role = started()
    with pytest.raises(RemoteProtocolError, match="a negative number"):
        role.handle(Received("ann", Number(-1)), 2)
    assert role.handle(PeerJoined("ann"), 3) == []


@pytest.mark.parametrize("event", [WorkDone(1, Square(1)), TimerFired("tock", 1), "no event"])
def test_an_event_without_a_handler_is_a_mistake_on_this_side(event):
    with pytest.raises(LocalProtocolError, match="^server: no "):
        started().handle(event, 2)
    with pytest.raises(LocalProtocolError, match="no job Squared"):
        started().compute(Squared(1))


def test_a_timer_whose_name_no_function_declares_reaches_its_hook():
    class Patient(Adder):
        def rang(self, timer, due):
            self.send("ann", Number(int(timer) + due))

    role = started(Patient())
    assert role.handle(TimerFired("40", 2), 3) == [Send("ann", Number(42))]
    assert role.handle(TimerFired("tick", 6), 7) == [SetTimer("tick", 11)]


def test_a_subclass_overrides_a_handler_and_refuses_a_message():
    class Doubler(Adder):
        refuses = (Stop,)

        def squared(self, token, result):
            self.state.total += 2 * result.value

    role = started(Doubler())
    role.handle(WorkDone(1, Squared(9)), 2)
    assert role.state.total == 18
    with pytest.raises(RemoteProtocolError, match="does not expect a Stop"):
        role.handle(Received("boss", Stop()), 2)
    role = started()
    role.handle(WorkDone(1, Squared(9)), 2)
    assert role.state.total == 9 and role.handle(Received("boss", Stop()), 2)


def test_two_handlers_of_one_thing_are_refused_when_the_class_is_made():
    with pytest.raises(LocalProtocolError, match="number and again both handle"):

        class Twice(Adder):
            @on(Number, PARTY)
            def again(self, sender, message):
                pass


def test_a_promise_reaches_the_handler_of_a_blind_job():
    class Blind(Chassis[RoleState]):
        @done_blind(Squared)
        def squared(self, token, result):
            self.send("ann", Number(token))

    role = Blind("server", {}, RoleState())
    for result in (Squared(1), Promised()):
        assert role.handle(WorkDone(7, result), 1) == [Send("ann", Number(7))]


def test_a_gate_sees_every_event_first():
    class Gated(Adder):
        gated = True

        def gate(self, event):
            return isinstance(event, Received)

    assert started(Gated()).handle(Received("eve", Number(1)), 2) == []


def test_a_checkpoint_holds_state_and_components():
    role = started()
    for value in (2, 3):
        role.handle(Received("ann", Number(value)), 2)
    role.handle(WorkDone(1, Squared(4)), 3)
    saved = state.unpack(state.pack(role.save()))
    other = Adder()
    other.load(saved)
    assert other.state == role.state and other.counter.count == 2
    assert other.handle(Resumed(b""), 4) == []
    assert other.handle(Received("ann", Number(5)), 5)[0] == Work(3, "square", 1.0, Square(5))
    with pytest.raises(CheckpointError, match="newer release"):
        Adder().load(saved | {"state": {"jobs": 1, "more": 2}})


def test_a_checkpoint_without_a_component_leaves_it_fresh_and_an_unknown_one_is_refused():
    saved = Adder().save()
    older = {name: part for name, part in saved.items() if name == "state"}
    role = Adder()
    role.load(older)
    assert role.save() == saved
    with pytest.raises(CheckpointError, match="newer release: it has later"):
        Adder().load(saved | {"later": {}})


def test_components_in_a_tuple_are_saved_one_by_one():
    role, other = Adder(several=(Counter(), 7, Counter())), Adder(several=(Counter(), 7, Counter()))
    for place in (0, 2):
        role.several[place].count = 5 + place
    assert set(role.save()) == {"state", "counter", "several.0", "several.2"}
    other.load(state.unpack(state.pack(role.save())))
    assert [other.several[place].count for place in (0, 2)] == [5, 7]


def test_a_copy_of_a_role_does_not_call_the_original():
    role = started()
    other = copy.copy(role)
    object.__setattr__(other, "state", State())
    other.handle(WorkDone(1, Squared(4)), 2)
    assert (role.state.total, other.state.total) == (0, 4)


@pytest.mark.parametrize("value", [[], {}, set(), bytearray()])
def test_what_may_change_outside_the_state_is_refused_at_the_start(value):
    with pytest.raises(LocalProtocolError, match="extra may change, but is not saved in checkpoints"):
        Adder(extra=value).handle(Started(b""), 1)
    with pytest.raises(LocalProtocolError, match="extra may change"):
        Adder(extra=value).load(Adder().save())


def test_a_started_role_takes_no_new_attribute():
    role = Adder(extra=(1, 2))
    role.total = 3  # not started
    started(role)
    with pytest.raises(LocalProtocolError, match="total is not a field of the state"):
        role.total = 4
    with pytest.raises(AttributeError):
        role.state.other = 1


def calls_of(act):
    """The Python functions called, in order, as a profiler would list them, without times."""
    names = []

    def note(frame, event, argument):
        if event == "call":
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return names[1:]  # without `act` itself


def test_an_event_costs_no_more_calls_than_it_must():
    """Every event of every run passes here: a runtime Protocol check or an attribute hook would show at once."""
    role = started()
    role.handle(Received("ann", Number(3)), 2)  # the first call looks at base classes
    role.handle(WorkDone(1, Squared(9)), 3)
    assert calls_of(lambda: role.handle(WorkDone(1, Squared(9)), 3)) == ["handle", "_work_done", "squared"]
    asked = calls_of(lambda: role.handle(Received("ann", Number(3)), 2))
    assert asked == ["handle", "_received", "number", "work", "send"]
    assert calls_of(lambda: role.compute(Square(3))) == ["compute", "square"]
