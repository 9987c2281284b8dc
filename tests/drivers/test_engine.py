"""The event loop with tiny roles whose every reaction is scripted."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from colonnade.drivers.simulator import ClockConfig, Compute, Fault, Link, ServerClock, Simulator
from colonnade.drivers.simulator import checkpoint as simulator_checkpoint
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    CancelWork,
    Effect,
    Emit,
    Event,
    Finish,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import EVALUATION

S = NANOSECONDS


class Note(Message, frozen=True):
    text: str
    values: Array | None = None


class Ask(Message, frozen=True):
    text: str


class Task(Payload, frozen=True):
    text: str


class Answer(Payload, frozen=True):
    text: str


CODEC = Codec([Note, Ask, Task, Answer])
React = Callable[["Scripted", Event, int], Sequence[Effect] | None]


class Scripted:
    """A role that follows its script and records what happened, in words."""

    def __init__(self, name: str, react: React = lambda role, event, now: None) -> None:
        self.name, self._react = name, react
        self.log: list[tuple[float, str]] = []
        self.computed: list[str] = []
        self.calls: list[str] = []
        self.keys: list[bytes] = []  # of starts and restarts

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        if isinstance(event, Started | Resumed):
            self.keys.append(event.entropy)
        if isinstance(event, Resumed):
            self.calls.append("resumed")
            return []
        self.log.append((now / S, describe(event)))
        return self._react(self, event, now) or []

    def compute(self, job: Payload) -> Payload:
        assert isinstance(job, Task)
        self.computed.append(job.text)
        return Answer(job.text)

    def save(self) -> Any:
        self.calls.append("save")
        return {"log": list(self.log), "computed": list(self.computed)}

    def load(self, saved: Any) -> None:
        self.calls.append("load")
        self.log, self.computed = list(saved["log"]), list(saved["computed"])

    def validate(self) -> None:
        self.calls.append("validate")

    def summary(self) -> dict[str, Any]:
        return {}


def describe(event: Event) -> str:
    match event:
        case Started():
            return "started"
        case Received(sender=sender, message=Note(text=text) | Ask(text=text)):
            return f"{sender}: {text}"
        case WorkDone(result=Answer(text=text)):
            return f"done {text}"
        case TimerFired(name=name):
            return f"timer {name}"
        case PeerJoined(peer=peer):
            return f"joined {peer}"
        case PeerLost(peer=peer):
            return f"lost {peer}"
    raise AssertionError(event)


def at_start(*effects: Effect, then: dict[str, list[Effect]] | None = None) -> React:
    """Effects for the start, and for other events by their description."""

    def react(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        return effects if isinstance(event, Started) else (then or {}).get(describe(event), [])

    return react


def work(token: int, amount: float = 1.0, text: str = "", aside: bool = False) -> Work:
    return Work(token, "task", amount, Task(text or f"job {token}"), aside)


QUICK = Link(latency_s=0.0, bandwidth_mbps=inf)


def simulator(
    *roles: Scripted,
    network: Link = QUICK,
    faults: list[Fault] | None = None,
    lost_after_s: float = 2.0,
    **settings: Any,
) -> Simulator:
    """One second for an amount of 1, no latency, no limit."""
    clock = ClockConfig(
        compute=Compute(mean_s=1.0),
        network=network,
        server=ServerClock(Compute(mean_s=1.0), QUICK),
        faults=faults or [],
        lost_after_s=lost_after_s,
    )
    clock.check(tuple(role.name for role in roles if role.name != "server"))
    return Simulator(roles, CODEC, clock, 0, **settings)


def happenings(role: Scripted) -> list[tuple[float, str]]:
    """The record without starts and joins at the beginning."""
    return [entry for entry in role.log if entry[1] != "started" and not (entry[0] == 0 and "joined" in entry[1])]


def test_at_equal_times_work_then_messages_then_timers() -> None:
    server = Scripted("server", at_start(SetTimer("t", S), work(1)))
    party = Scripted("a", at_start(Send("server", Note("hello"))))
    simulator(server, party, network=Link(latency_s=1.0, bandwidth_mbps=inf)).run()
    assert happenings(server) == [(1, "done job 1"), (1, "a: hello"), (1, "timer t")]


def test_faults_and_joins_come_before_everything_at_their_time() -> None:
    server = Scripted("server", at_start(SetTimer("t", S), work(1)))
    simulator(server, Scripted("a"), faults=[Fault("a", "late", 1.0)]).run()
    assert happenings(server) == [(1, "joined a"), (1, "done job 1"), (1, "timer t")]


def test_within_a_kind_by_running_number() -> None:
    server = Scripted("server", at_start(SetTimer("z", S), SetTimer("a", S), work(2, aside=True), work(1, aside=True)))
    one = Scripted("a", at_start(Send("server", Note("1")), Send("server", Note("2"))))
    two = Scripted("b", at_start(Send("server", Note("3"))))
    simulator(server, one, two, network=Link(latency_s=1.0, bandwidth_mbps=inf)).run()
    assert [text for _, text in happenings(server)] == [
        "done job 2", "done job 1", "a: 1", "a: 2", "b: 3", "timer z", "timer a",
    ]  # fmt: skip


def test_the_server_starts_first_then_the_parties_in_order() -> None:
    order: list[str] = []
    roles = [Scripted(name, at_start()) for name in ("server", "b", "a")]
    simulator(*roles, on_event=lambda time, name, event: order.append(f"{name} {describe(event)}")).run()
    assert [text for text in order if "started" in text] == ["server started", "b started", "a started"]


def test_entropy_differs_by_role_and_follows_the_seed() -> None:
    def entropies(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        roles = [Scripted(name) for name in ("server", "a")]
        clock = ClockConfig()
        note = lambda time, name, event: isinstance(event, Started) and seen.append(event.entropy)  # noqa: E731
        Simulator(roles, CODEC, clock, seed, on_event=note).run()
        return seen

    assert entropies(1) == entropies(1)
    assert len({*entropies(1), *entropies(2)}) == 4


def test_a_replaced_timer_is_never_delivered() -> None:
    then = {"timer kick": [SetTimer("t", 5 * S)]}
    server = Scripted("server", at_start(SetTimer("t", 2 * S), SetTimer("kick", S), then=then))
    simulator(server).run()
    assert happenings(server) == [(1, "timer kick"), (5, "timer t")]


def test_a_timer_replaced_by_one_for_the_same_moment_fires_once() -> None:
    server = Scripted("server", at_start(SetTimer("t", S), SetTimer("t", S)))
    simulator(server).run()
    assert happenings(server) == [(1, "timer t")]


def test_a_cancelled_timer_is_never_delivered() -> None:
    then = {"timer kick": [CancelTimer("t"), CancelTimer("unknown")]}
    server = Scripted("server", at_start(SetTimer("t", 2 * S), SetTimer("kick", S), then=then))
    simulator(server).run()
    assert happenings(server) == [(1, "timer kick")]


def test_a_timer_for_the_past_fires_now_and_says_so() -> None:
    due: list[int] = []
    then = {"done job 1": [SetTimer("t", 0)]}
    server = Scripted("server", at_start(work(1), then=then))
    simulator(server, on_event=lambda _, __, e: due.append(e.due) if isinstance(e, TimerFired) else None).run()
    assert happenings(server) == [(1, "done job 1"), (1, "timer t")]
    assert due == [S]


def test_cancelled_work_is_dropped_and_the_lane_is_free_at_once() -> None:
    then = {"timer kick": [CancelWork(1), work(2)]}
    server = Scripted("server", at_start(work(1, 10.0), SetTimer("kick", S), then=then))
    run = simulator(server)
    run.run()
    assert happenings(server) == [(1, "timer kick"), (2, "done job 2")]
    assert run.nodes[0].busy_ns == 2 * S  # the second that job 1 ran, and job 2


def test_the_same_token_may_be_used_again_after_a_cancel() -> None:
    then = {"timer kick": [CancelWork(1), work(1, 3.0, "again")]}
    server = Scripted("server", at_start(work(1, 2.0, "old"), SetTimer("kick", S), then=then))
    simulator(server).run()
    assert happenings(server) == [(1, "timer kick"), (4, "done again")]


def test_cancelling_what_does_not_run_does_nothing() -> None:
    server = Scripted("server", at_start(CancelWork(9), work(1), then={"done job 1": [CancelWork(1)]}))
    simulator(server).run()
    assert happenings(server) == [(1, "done job 1")]


def test_one_job_at_a_time() -> None:
    server = Scripted("server", at_start(work(1), work(2)))
    with pytest.raises(LocalProtocolError, match="server: asks for 'task' while a job is running"):
        simulator(server).run()


def test_after_a_job_the_next_may_begin() -> None:
    server = Scripted("server", at_start(work(1), then={"done job 1": [work(2)]}))
    simulator(server).run()
    assert happenings(server) == [(1, "done job 1"), (2, "done job 2")]


def test_jobs_aside_run_beside_the_lane() -> None:
    server = Scripted("server", at_start(work(1, 2.0), work(2, 1.0, aside=True), work(3, 0.5, aside=True)))
    run = simulator(server)
    run.run()
    assert happenings(server) == [(0.5, "done job 3"), (1, "done job 2"), (2, "done job 1")]
    assert (run.nodes[0].busy_ns, run.nodes[0].aside_ns) == (2 * S, 3 * S // 2)


def test_messages_are_handled_while_a_job_runs() -> None:
    server = Scripted("server", at_start(work(1, 5.0)))
    party = Scripted("a", at_start(Send("server", Note("hello"))))
    simulator(server, party, network=Link(latency_s=1.0, bandwidth_mbps=inf)).run()
    assert happenings(server) == [(1, "a: hello"), (5, "done job 1")]


def test_utilisation_by_hand() -> None:
    """Busy 0-2 and 6-8, at 10 s: 0.4. Aside work does not count. A late role is measured from its start."""
    server = Scripted("server", at_start(SetTimer("end", 10 * S), then={"timer end": [Finish("")]}))
    then = {"done job 1": [SetTimer("t", 6 * S)], "timer t": [work(2, 2.0)]}
    busy = Scripted("a", at_start(work(1, 2.0), work(9, 7.0, aside=True), then=then))
    late = Scripted("b", at_start(work(1, 3.0)))
    unfinished = Scripted("c", at_start(work(1, 100.0)))
    run = simulator(server, busy, late, unfinished, faults=[Fault("b", "late", 4.0)])
    assert run.run() == "finished"
    assert [node.utilisation(run.now) for node in run.nodes] == [0.0, 0.4, 0.5, 1.0]


def test_utilisation_in_the_middle_of_a_job() -> None:
    server = Scripted("server", at_start(work(1, 2.0), SetTimer("t", 3 * S), then={"timer t": [work(2, 9.0)]}))
    party = Scripted("a", at_start(SetTimer("t", 4 * S)))
    run = simulator(server, party)
    while run.now < 4 * S:
        run.advance(1)
    assert run.nodes[0].utilisation(run.now) == 0.75  # 0-2 and 3-4 of 4 seconds


def test_duplicates_are_dropped_and_counted() -> None:
    notes = [Send("server", Note(str(index))) for index in range(200)]
    server, party = Scripted("server"), Scripted("a", at_start(*notes))
    run = simulator(server, party, faults=[Fault("a", "duplicate", 0.0, inf, 0.5)])
    run.run()
    assert [text for _, text in happenings(server)] == [f"a: {index}" for index in range(200)]
    assert 60 < run.traffic.duplicates_dropped < 140
    assert run.traffic.messages == 200 + run.traffic.duplicates_dropped


def test_duplicates_are_dropped_on_links_with_limits_too() -> None:
    server = Scripted("server", at_start(*[Send("a", Note(str(index), np.zeros(50))) for index in range(100)]))
    party = Scripted("a")
    faults = [Fault("a", "duplicate", 0.0, inf, 0.5), Fault("a", "loss", 0.0, inf, 0.2)]
    run = simulator(server, party, network=Link(0.01, 1.0), faults=faults)
    run.run()
    assert [text for _, text in happenings(party)] == [f"server: {index}" for index in range(100)]
    assert run.traffic.duplicates_dropped > 20


def test_bytes_are_counted_exactly() -> None:
    up = [Note("a" * size, np.zeros(size, np.float32)) for size in (0, 1, 100)]
    down = [Note("d", np.zeros((3, 3))), Note("e")]
    sideways = Note("f", np.zeros(9, np.uint8))
    server = Scripted("server", at_start(*[Send("a", note) for note in down]))
    party = Scripted("a", at_start(*[Send("server", note) for note in up], Send("b", sideways)))
    run = simulator(server, party, Scripted("b"))
    run.run()
    sizes = [[len(bytes(CODEC.encode(note))) for note in notes] for notes in (up, [*down, sideways])]
    assert [run.traffic.bytes_up, run.traffic.bytes_down] == [sum(part) for part in sizes]
    assert run.traffic.messages == 6
    assert run.traffic.by_kind == {"Note": [6, sum(map(sum, sizes))]}


def test_repeated_bytes_are_counted_again() -> None:
    note = Note("x", np.zeros(10))
    server, party = Scripted("server"), Scripted("a", at_start(*[Send("server", note)] * 100))
    run = simulator(server, party, faults=[Fault("a", "loss", 0.0, inf, 0.5)])
    run.run()
    assert len(happenings(server)) == 100
    assert run.traffic.repeated > 50
    assert run.traffic.bytes_up == (100 + run.traffic.repeated) * CODEC.encode(note).size


def test_bandwidth_counts_on_both_sides() -> None:
    """8 Mbit/s: 1000 ns per byte at the party, twice that at the other; nothing at the server."""
    note = Note("x", np.zeros(100))
    size = CODEC.encode(note).size
    server = Scripted("server", at_start(Send("a", note)))
    one = Scripted("a", at_start(then={"server: x": [Send("b", note)]}))
    two = Scripted("b")
    clock = ClockConfig(network=[Link(0.1, 8.0), Link(0.2, 4.0)], server=ServerClock(Compute(), Link(0.3, inf)))
    Simulator([server, one, two], CODEC, clock, 0).run()
    first = round(0.4 * S) + 1000 * size
    second = first + 1000 * size + round(0.3 * S) + 2000 * size
    assert happenings(one) == [(first / S, "server: x")]
    assert happenings(two) == [(second / S, "a: x")]


def test_sending_to_an_unknown_role_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="server: no role 'nobody' to send to"):
        simulator(Scripted("server", at_start(Send("nobody", Note(""))))).run()


def evaluating(with_evaluation: bool) -> tuple[Simulator, Scripted, Scripted]:
    asks: list[Effect] = [Send("a", Ask("please"), evaluation=True)] if with_evaluation else []
    server = Scripted("server", at_start(work(1), SetTimer("t", 3 * S), then={"done job 1": [*asks, work(2)]}))

    def answer(role: Scripted, event: Event, now: int) -> Sequence[Effect] | None:
        match event:
            case Started():
                return [work(1, 5.0), Send("server", Note("up"))]
            case Received(message=Ask()):
                return [Work(7, EVALUATION, 99.0, Task("read"), aside=True)]
            case WorkDone(token=7):
                return [Send("server", Ask("rows"), evaluation=True)]
        return None

    party = Scripted("a", answer)
    run = simulator(server, party, network=Link(0.5, 1.0))
    run.run()
    return run, server, party


def test_evaluation_is_delivered_at_once_and_leaves_no_mark() -> None:
    plain, plain_server, _ = evaluating(False)
    run, server, party = evaluating(True)
    assert (1, "a: rows") in server.log
    assert [entry for entry in party.log if entry[0] == 1] == [(1, "server: please"), (1, "done read")]
    assert [entry for entry in server.log if entry[1] != "a: rows"] == plain_server.log
    assert run.trace.hexdigest == plain.trace.hexdigest
    assert (run.traffic.bytes_up, run.traffic.messages) == (plain.traffic.bytes_up, plain.traffic.messages)
    assert run.traffic.evaluation_bytes == CODEC.encode(Ask("please")).size + CODEC.encode(Ask("rows")).size
    assert plain.traffic.evaluation_bytes == 0
    assert [node.utilisation(run.now) for node in run.nodes] == [node.utilisation(plain.now) for node in plain.nodes]
    assert run.nodes[1].aside_ns == 0


def test_evaluation_waits_for_an_outage_to_end_and_never_reaches_a_lost_party() -> None:
    asks = [Send("a", Ask("x"), evaluation=True), Send("b", Ask("y"), evaluation=True)]
    server = Scripted("server", at_start(SetTimer("t", S), then={"timer t": asks}))
    one, two = Scripted("a"), Scripted("b")
    simulator(server, one, two, faults=[Fault("a", "offline", 0.5, 3.0), Fault("b", "offline", 0.5)]).run()
    assert [entry for entry in happenings(one) if "server:" in entry[1]] == [(3, "server: x")]
    assert happenings(two) == []


def test_evaluation_waits_for_the_start_of_its_receiver() -> None:
    """`Started` is the first event of every role: it brings the key of secret draws."""
    server = Scripted("server", at_start(Send("a", Ask("x"), evaluation=True)))
    party = Scripted("a", at_start())
    simulator(server, party).run()
    words = [what for _, what in party.log]
    assert words.index("started") < words.index("server: x")


def test_evaluation_is_not_answered_by_a_crashed_role() -> None:
    """The server's own outage ends at 3 s, in the middle of the party's crash."""
    server = Scripted("server", at_start(SetTimer("t", S), then={"timer t": [Send("a", Ask("x"), evaluation=True)]}))
    party = Scripted("a")
    simulator(server, party, faults=[Fault("server", "offline", 0.5, 3.0), Fault("a", "crash", 2.0, 4.0)]).run()
    assert [entry for entry in happenings(party) if "server:" in entry[1]] == [(4, "server: x")]


def test_a_crash_runs_the_job_again_and_keeps_the_state() -> None:
    then = {"done job 1": [work(2, 4.0)]}
    party = Scripted("a", at_start(work(1, 1.0), then=then))
    run = simulator(Scripted("server"), party, faults=[Fault("a", "crash", 3.0, 10.0)])
    run.run()
    assert happenings(party) == [(1, "done job 1"), (14, "done job 2")]
    assert party.computed == ["job 1", "job 2", "job 2"]
    assert party.calls == ["save", "load", "resumed"]
    assert run.nodes[1].busy_ns == (1 + 2 + 4) * S  # two seconds of job 2 were lost


def test_a_restarted_role_is_given_the_same_key_and_no_trace_of_it_is_left() -> None:
    delivered: list[Event] = []
    party = Scripted("a", at_start(work(1, 4.0)))
    server = Scripted("server")
    note = lambda time, name, event: delivered.append(event)  # noqa: E731
    simulator(server, party, faults=[Fault("a", "crash", 2.0, 5.0)], on_event=note).run()
    assert len(party.keys) == 2 and len(set(party.keys)) == 1
    assert len(server.keys) == 1 and server.keys[0] != party.keys[0]
    assert not any(isinstance(event, Resumed) for event in delivered)


def test_a_role_with_effects_when_resumed_breaks_the_contract() -> None:
    class Eager(Scripted):
        def handle(self, event: Event, now: int) -> Sequence[Effect]:
            return [SetTimer("t", now)] if isinstance(event, Resumed) else super().handle(event, now)

    run = simulator(Scripted("server"), Eager("a"), faults=[Fault("a", "crash", 2.0, 5.0)])
    with pytest.raises(LocalProtocolError, match="a: effects of Resumed"):
        run.run()


def test_a_job_aside_runs_again_too() -> None:
    party = Scripted("a", at_start(work(1, 4.0), work(2, 3.0, aside=True)))
    simulator(Scripted("server"), party, faults=[Fault("a", "crash", 2.0, 5.0)]).run()
    assert happenings(party) == [(8, "done job 2"), (9, "done job 1")]


def test_two_crashes() -> None:
    party = Scripted("a", at_start(work(1, 4.0)))
    faults = [Fault("a", "crash", 2.0, 5.0), Fault("a", "crash", 6.0, 7.0)]
    simulator(Scripted("server"), party, faults=faults).run()
    assert happenings(party) == [(11, "done job 1")]


@pytest.mark.parametrize("first_until", [6.0, 3.0])
def test_crashes_that_overlap_are_one(first_until: float) -> None:
    party = Scripted("a", at_start(work(1, 2.0)))
    faults = [Fault("a", "crash", 1.0, first_until), Fault("a", "crash", 2.0, 9.0 - first_until)]
    simulator(Scripted("server"), party, faults=faults).run()
    assert happenings(party) == [(8, "done job 1")]


def test_timers_due_during_a_crash_fire_at_the_restart() -> None:
    party = Scripted("a", at_start(SetTimer("b", 3 * S), SetTimer("a", 2 * S), SetTimer("c", 9 * S)))
    simulator(Scripted("server"), party, faults=[Fault("a", "crash", 1.0, 5.0)]).run()
    assert happenings(party) == [(5, "timer a"), (5, "timer b"), (9, "timer c")]


def test_messages_to_a_crashed_role_arrive_after_its_restart() -> None:
    then = {"timer t": [Send("a", Note("1"))], "timer u": [Send("a", Note("2"))]}
    server = Scripted("server", at_start(SetTimer("t", 2 * S), SetTimer("u", 3 * S), then=then))
    party = Scripted("a")
    run = simulator(server, party, faults=[Fault("a", "crash", 1.0, 5.0)])
    run.run()
    assert [entry for entry in happenings(party) if "server:" in entry[1]] == [(5, "server: 1"), (5, "server: 2")]
    assert run.traffic.undeliverable == 0


def test_a_message_half_read_at_the_crash_is_read_after_it() -> None:
    """At 1 Mbit/s the two notes take 0.8 s each to read: the crash at 1 s cuts the second."""
    notes = [Send("a", Note(text, np.zeros(12_500))) for text in "xy"]
    party = Scripted("a")
    run = simulator(
        Scripted("server", at_start(*notes)), party, network=Link(0.0, 1.0), faults=[Fault("a", "crash", 1.0, 5.0)]
    )
    run.run()
    assert [text for _, text in happenings(party) if "server:" in text] == ["server: x", "server: y"]
    assert [time for time, text in happenings(party) if "server:" in text][1] >= 5


def test_a_crash_for_good_leaves_nothing_running() -> None:
    party = Scripted("a", at_start(work(1, 4.0), SetTimer("t", 2 * S)))
    server = Scripted("server", at_start(SetTimer("t", 3 * S), then={"timer t": [Send("a", Note("x"))]}))
    run = simulator(server, party, faults=[Fault("a", "crash", 1.0)])
    assert run.run() == "stalled"
    assert happenings(party) == []
    assert run.traffic.undeliverable == 1
    assert happenings(server) == [(3, "lost a"), (3, "timer t")]


def test_an_offline_role_goes_on_computing() -> None:
    then: dict[str, list[Effect]] = {"done job 1": [Send("server", Note("x"))]}
    server, party = Scripted("server"), Scripted("a", at_start(work(1, 2.0), then=then))
    simulator(server, party, faults=[Fault("a", "offline", 1.0, 4.0)], lost_after_s=10).run()
    assert happenings(party) == [(2, "done job 1")]
    assert happenings(server) == [(4, "a: x")]


def test_a_late_role_starts_and_is_announced_late() -> None:
    server = Scripted("server", at_start(Send("a", Note("x"))))
    party = Scripted("a", at_start(work(1)))
    simulator(server, party, faults=[Fault("a", "late", 3.0)]).run()
    assert party.log == [(3, "started"), (3, "joined server"), (3, "server: x"), (4, "done job 1")]
    assert happenings(server) == [(3, "joined a")]


def test_a_late_role_that_is_down_when_it_should_start_does_so_at_its_restart() -> None:
    party = Scripted("a", at_start(work(1)))
    simulator(Scripted("server"), party, faults=[Fault("a", "late", 3.0), Fault("a", "crash", 2.0, 5.0)]).run()
    assert party.log == [(5, "started"), (5, "joined server"), (6, "done job 1")]


def test_joined_at_the_beginning() -> None:
    roles = [Scripted(name) for name in ("server", "a", "b")]
    simulator(*roles).run()
    assert roles[0].log == [(0, "started"), (0, "joined a"), (0, "joined b")]
    assert roles[1].log == roles[2].log == [(0, "started"), (0, "joined server")]


def test_lost_after_a_while_and_joined_on_return() -> None:
    roles = [Scripted(name) for name in ("server", "a", "b")]
    simulator(*roles, faults=[Fault("a", "offline", 1.0, 8.0)], lost_after_s=3.0).run()
    assert happenings(roles[0]) == [(4, "lost a"), (8, "joined a")]
    assert happenings(roles[2]) == []  # parties watch only the server


def test_parties_notice_a_lost_server() -> None:
    roles = [Scripted(name) for name in ("server", "a", "b")]
    simulator(*roles, faults=[Fault("server", "crash", 1.0, 8.0)], lost_after_s=3.0).run()
    assert happenings(roles[1]) == happenings(roles[2]) == [(4, "lost server"), (8, "joined server")]


@pytest.mark.parametrize("kind", ["offline", "crash"])
def test_short_outages_are_nobodys_business(kind: Any) -> None:
    roles = [Scripted(name) for name in ("server", "a")]
    simulator(*roles, faults=[Fault("a", kind, 1.0, 4.0)], lost_after_s=3.0).run()
    assert happenings(roles[0]) == []


def test_outages_that_touch_count_as_one() -> None:
    roles = [Scripted(name) for name in ("server", "a")]
    faults = [Fault("a", "offline", 1.0, 3.0), Fault("a", "offline", 3.0, 5.0)]
    simulator(*roles, faults=faults, lost_after_s=3.0).run()
    assert happenings(roles[0]) == [(4, "lost a"), (5, "joined a")]


@pytest.mark.parametrize("back", [6.0, 7.0, 5.0])
def test_a_restarted_server_learns_which_party_was_lost_meanwhile(back: float) -> None:
    """It is down from 2 to 6 s; the party is lost at 4 s."""
    roles = [Scripted(name) for name in ("server", "a")]
    faults = [Fault("server", "crash", 2.0, 6.0), Fault("a", "offline", 1.0, back)]
    simulator(*roles, faults=faults, lost_after_s=3.0).run()
    assert happenings(roles[0]) == [(6, "lost a"), (max(back, 6), "joined a")]


def test_emitted_records_reach_the_listener_with_the_clock() -> None:
    seen: list[tuple[int, Payload]] = []
    server = Scripted("server", at_start(work(1), then={"done job 1": [Emit(Answer("row"))]}))
    simulator(server, on_emit=lambda record, run: seen.append((run.now, record))).run()
    assert seen == [(S, Answer("row"))]


def test_the_end_of_the_principal_is_the_end() -> None:
    server = Scripted("server", at_start(work(1), then={"done job 1": [Finish("enough")]}))
    party = Scripted("a", at_start(work(1, 5.0)))
    run = simulator(server, party)
    assert run.run() == "finished"
    assert (run.now, run.principal.finished) == (S, "enough")
    assert not run.advance()


def test_a_role_that_has_ended_hears_nothing_more() -> None:
    party = Scripted("a", at_start(SetTimer("t", 2 * S), work(1), then={"done job 1": [Finish("")]}))
    server = Scripted("server", at_start(SetTimer("t", 3 * S), then={"timer t": [Send("a", Note("x"))]}))
    run = simulator(server, party)
    assert run.run() == "stalled"
    assert happenings(party) == [(1, "done job 1")]


def test_stalled_when_nothing_can_happen_any_more() -> None:
    run = simulator(Scripted("server"), Scripted("a"))
    assert run.run() == "stalled"
    assert run.now == 0


def test_stalled_in_spite_of_a_timer_that_sets_itself_again() -> None:
    def again(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        return [SetTimer("tick", now + S)]

    run = simulator(Scripted("server", again), Scripted("a"))
    for _ in range(50):
        if not run.advance(100):
            break
    assert run.status == "stalled"


def test_many_timers_beside_a_long_job_are_no_stall() -> None:
    def again(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        match event:
            case Started():
                return [SetTimer("tick", now + S), work(1, 1000.0)]
            case WorkDone():
                return [Finish("done")]
        return [SetTimer("tick", now + S)]

    run = simulator(Scripted("server", again))
    assert run.run() == "finished"
    assert run.now == 1000 * S


def test_a_long_pause_beside_a_quick_timer_is_no_stall() -> None:
    """Only timers are pending: one ticks every second; the other, a party's, ends its pause after 1000."""

    def again(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        return [Finish("")] if "a: x" in describe(event) else [SetTimer("tick", now + S)]

    party = Scripted("a", at_start(SetTimer("pause", 1000 * S), then={"timer pause": [Send("server", Note("x"))]}))
    run = simulator(Scripted("server", again), party)
    assert run.run() == "finished"
    assert run.now == 1000 * S


def test_the_pause_of_a_role_gone_for_good_does_not_hide_a_stall() -> None:
    def again(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        return [SetTimer("tick", now + S)]

    party = Scripted("a", at_start(SetTimer("pause", 10 * S)))
    run = simulator(Scripted("server", again), party, faults=[Fault("a", "crash", 5.0)])
    for _ in range(50):
        if not run.advance(100):
            break
    assert run.status == "stalled"


def test_a_restart_to_come_is_no_stall() -> None:
    def again(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        return [Finish("")] if "a: x" in describe(event) else [SetTimer("tick", now + S)]

    party = Scripted("a", at_start(work(1), then={"done job 1": [Send("server", Note("x"))]}))
    run = simulator(Scripted("server", again), party, faults=[Fault("a", "crash", 0.5, 1000.0)])
    assert run.run() == "finished"
    assert run.now == 1001 * S


def test_every_role_is_checked_after_its_events_if_asked() -> None:
    server = Scripted("server", at_start(work(1)))
    simulator(server, check=True).run()
    assert server.calls == ["validate", "validate"]
    silent = Scripted("server", at_start(work(1)))
    simulator(silent).run()
    assert silent.calls == []


def busy_federation() -> tuple[Simulator, list[Scripted]]:
    """One of each is under way: jobs, aside jobs, timers, messages, duplicates, a crash."""

    def ping(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        match event:
            case Started():
                return [work(1, 0.7), SetTimer("t", now + S)]
            case WorkDone(token=1):
                return [Send("server", Note(role.name, np.arange(40.0))), work(1, 0.7), work(now, 0.3, aside=True)]
            case Received(message=Note()):
                return [SetTimer("t", now + 2 * S)]
        return []

    def pong(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
        match event:
            case Received(sender=sender):
                return [Send(sender, Note("back", np.arange(9)))]
            case TimerFired():
                return [Finish("done")]
        return [SetTimer("end", 30 * S)] if isinstance(event, Started) else []

    roles = [Scripted("server", pong), Scripted("a", ping), Scripted("b", ping)]
    clock = ClockConfig(
        compute=[Compute("exponential", 1.0), Compute("lognormal", 0.5)],
        network=Link(0.05, 0.02),
        faults=[
            Fault("a", "crash", 5.0, 12.0),
            Fault("b", "duplicate", 0.0, inf, 0.3),
            Fault("b", "loss", 0.0, inf, 0.2),
            Fault("b", "late", 1.0),
        ],
    )
    return Simulator(roles, CODEC, clock, 3), roles


def test_a_loaded_simulator_gives_keys_to_those_that_have_started() -> None:
    run, roles = busy_federation()
    run.advance(5)
    twin, twin_roles = busy_federation()
    simulator_checkpoint.load(twin, state.unpack(state.pack(simulator_checkpoint.save(run))))
    started = [node.started_at >= 0 for node in run.nodes]
    assert started == [True, True, False], "b comes late"
    assert [role.keys for role in twin_roles] == [role.keys for role in roles]
    assert [role.calls for role in twin_roles] == [["load", "resumed"], ["load", "resumed"], ["load"]]


def test_joins_that_restart_a_conversation_survive_a_save() -> None:
    run, _ = busy_federation()
    run._push(S, 0, 0, PeerJoined("a", reset=True))
    twin, _ = busy_federation()
    simulator_checkpoint.load(twin, state.unpack(state.pack(simulator_checkpoint.save(run))))
    assert sorted(map(repr, twin.heap)) == sorted(map(repr, run.heap))


@pytest.mark.parametrize("events", [1, 20, 40, 60, 80, 120])
def test_a_saved_simulator_goes_on_bit_for_bit(events: int) -> None:
    run, roles = busy_federation()
    assert run.advance(events)
    data = state.pack(simulator_checkpoint.save(run))
    twin, twin_roles = busy_federation()
    simulator_checkpoint.load(twin, state.unpack(data))
    assert run.run() == twin.run() == "finished"
    assert twin.trace.hexdigest == run.trace.hexdigest
    assert twin.trace.events == run.trace.events
    assert twin.traffic == run.traffic
    assert [role.log for role in twin_roles] == [role.log for role in roles]
    assert [node.save() for node in twin.nodes] == [node.save() for node in run.nodes]
    assert [node.utilisation(twin.now) for node in twin.nodes] == [node.utilisation(run.now) for node in run.nodes]


def refuses_lies(role: Scripted, event: Event, now: int) -> Sequence[Effect]:
    if isinstance(event, Received) and describe(event).endswith("lie"):
        raise RemoteProtocolError(event.sender, "lies")
    if isinstance(event, TimerFired):
        return [Send("a", Note("arrives after the lie"))]
    return [SetTimer("t", S // 2)] if isinstance(event, Started) else []


def test_a_refused_message_restarts_the_conversation_of_two_roles_only() -> None:
    server = Scripted("server", refuses_lies)
    liar = Scripted("a", at_start(Send("server", Note("lie")), Send("server", Note("in transit"))))
    other = Scripted("b", at_start(Send("server", Note("true"))))
    run = simulator(server, liar, other, network=Link(latency_s=1.0, bandwidth_mbps=inf))
    run.on_refusal = lambda node, error: run.restart_conversation(node.role.name, error.peer)
    run.run()
    assert happenings(server) == [(0.5, "timer t"), (1, "a: lie"), (1, "joined a"), (1, "b: true")]
    assert happenings(liar) == [(1, "joined server")]
    assert happenings(other) == []


def test_without_a_policy_a_refused_message_fails_the_run() -> None:
    liar = Scripted("a", at_start(Send("server", Note("lie"))))
    with pytest.raises(RemoteProtocolError, match="a: lies"):
        simulator(Scripted("server", refuses_lies), liar).run()
