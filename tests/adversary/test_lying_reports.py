"""What a party reports about itself cannot spoil or end the run of the others, and every end can be mended.

The roles are real ones. The test plays the driver and the lying member.
"""

import asyncio
from io import StringIO
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade
from colonnade.algorithms import METHODS
from colonnade.algorithms.alignment.messages import Declare, Done, Raised
from colonnade.algorithms.alignment.server import AligningServer
from colonnade.algorithms.asysqn.messages import Declined, Differs, Diverged, Hello, Judged
from colonnade.algorithms.flex.messages import Ready
from colonnade.algorithms.flex.pacing import LONGEST_ROUND_TRIP_S, MOST_COMMON
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.deployment.application import end_of
from colonnade.drivers.processes.conversation import GIVEN_UP
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import DataError, PartyDiverged, TrainingDiverged
from colonnade.protocol.events import Received, Started, TimerFired, WorkDone
from colonnade.protocol.messages import Message

from .test_lying_rows import BATCH, TRAIN, WIDTH, data, refused, roles, works
from .test_lying_steps import trainers

GOOD = np.ones((BATCH, WIDTH), np.float32)


def opened(name: str, **options: Any) -> Any:
    """A server whose first phase has begun."""
    server, parties = roles(name, **options)
    for party in parties:
        effects = server.handle(Received(party.name, Ready(0, GOOD)), 0)
    (work,) = works(effects)
    server.handle(WorkDone(work.token, server.compute(work.job)), 0)
    assert server.state.phase == 1
    return server


@pytest.mark.parametrize(
    ("steps", "weight", "step_s", "held_s", "cause"),
    [
        (5, 1.0, 0.1, 1.0, "party-1: reports τ = 5 local steps; .* at most 4"),
        (2, 1e-9, 0.1, 1.0, "party-1: reports w̄ = 1e-09; it must be from 1 to τ = 2"),
        (2, 1e5, 0.1, 1.0, "party-1: reports w̄ = 100000"),
        (2, 1.5, 1.0, 1.0, "party-1: reports steps of 1.0 s, 2 of them, 1.0 s in all"),
    ],
)
def test_a_report_of_more_than_the_phase_allowed(
    steps: int, weight: float, step_s: float, held_s: float, cause: str
) -> None:
    server = opened("adaptive-flex", timeout_s=1.0, max_steps=4, momentum=0.5)
    report = (1, steps, weight, step_s, held_s)
    refused(server, "party-1", Ready(server.state.following, GOOD, *report), cause)
    honest = Ready(server.state.following, GOOD, 1, 2, 1.5, 0.1, 1.0)
    server.handle(Received("party-1", honest), 0)
    assert server.pacing.step_s["party-1"] == 0.1


def test_a_party_that_claims_a_nanosecond_sets_no_endless_phase() -> None:
    server = opened("sync-max", timeout_s=10.0)
    for name, step_s in (("party-1", 1e-9), ("party-2", 0.1), ("party-3", 0.1)):
        server.handle(Received(name, Ready(server.state.following, GOOD, 1, 4, 1.0, step_s, 1.0)), 0)
    assert server.pacing.plan(("party-1", "party-2", "party-3"), "server").limit == MOST_COMMON


def test_a_party_that_is_always_slow_does_not_make_the_server_wait_longer_and_longer() -> None:
    server = opened("flex", timeout_s=1.0)
    for seconds in (1e3, 1e6, 1e9):
        server.pacing.note_round_trip("party-1", seconds)
    assert server.pacing.longest_round_trip_s(["party-1"]) == LONGEST_ROUND_TRIP_S


# AsySQN: one party's word about the model.


def federation_of(parties: int, lies: dict[int, list[tuple[str, Message]]], protocol: str = "asysqn-sgd") -> Any:
    """Run a federation in which the coordinator receives these messages after so many events."""
    draws = np.random.default_rng(0)
    x = draws.standard_normal((120, 2 * parties))
    made = colonnade.from_arrays(x, (x @ draws.standard_normal(2 * parties) > 0).astype(np.int64))
    prepared = colonnade.prepare(
        colonnade.split(made, parties=parties), {"name": protocol}, batch_size=20, learning_rate=0.05, epochs=4
    )
    simulator = prepared.simulator
    for events, messages in lies.items():
        simulator.advance(events)
        for sender, message in messages:
            node = simulator.nodes[0]
            simulator._perform(node, node.role.handle(Received(sender, message), simulator.now))
    return prepared


@pytest.mark.parametrize("protocol", ["asysqn-sgd", "asysqn-svrg", "synsqn-sgd"])
def test_a_party_that_cries_wolf_leaves_and_the_others_go_on(protocol: str) -> None:
    made = federation_of(5, {200: [("party-2", Diverged("the end is near", False))]}, protocol)
    summary = made.execute()
    assert summary["status"] == "finished" and summary["value"] > 0.7
    assert "the run continued without party-2: the end is near" in summary["note"]


def test_the_run_ends_with_a_reason_that_names_the_party_if_it_needs_that_party() -> None:
    made = federation_of(3, {200: [("party-2", Diverged("the end is near", False))]})
    summary = made.execute()
    assert summary["status"] == "diverged" and summary["note"].startswith("party-2: the end is near")


def test_two_parties_are_believed() -> None:
    server, _ = trainers()
    server.handle(Received("party-1", Diverged("too large", False)), 0)
    server.handle(Received("party-1", Diverged("too large", False)), 0)  # the same party again says nothing new
    with pytest.raises(TrainingDiverged, match="party-1, party-3: too large"):
        server.handle(Received("party-3", Diverged("too large", False)), 0)


def test_a_party_that_doubts_the_model_does_not_judge_it() -> None:
    server, _ = trainers()
    server.handle(Received("party-1", Diverged("too large", False)), 0)
    judges = {server.state.judge}
    for _ in range(6):
        server.begin_judging()
        judges.add(server.state.judge)
    assert judges == {"party-2", "party-3"}
    with pytest.raises(PartyDiverged, match="party-1: too large"):  # two are too few to go on
        server.handle(TimerFired("judge", 0), 0)


def test_an_evaluation_that_is_held_up_ends_some_day() -> None:
    server, _ = trainers()
    server.evaluate()
    records = [effect for _ in range(9) for effect in server.handle(TimerFired("judge", 0), 0)]
    assert not server.judging() and any(type(effect).__name__ == "Emit" for effect in records)
    assert "evaluations missing: 1 (no party got all sums" in server.summary()["note"]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (Hello("a" * 64, 32, 8, 9), "sends Hello twice"),
        (Hello("a" * 64, 32, 8, 2**62), "sends an impossible Hello"),
        (Hello("a" * 64, 32, -1, 9), "sends an impossible Hello"),
        (Hello("a" * 10_000, 32, 8, 9), "sends an impossible Hello"),
        (Judged(7, 0.1, {"accuracy": 1.0}), "answers evaluation 7"),
        (Judged(1, inf, {"accuracy": 1.0}), "sends an impossible evaluation"),
        (Judged(1, 0.1, {"accuracy": inf}), "sends an impossible evaluation"),
        (Judged(1, 0.1, {"accuracy": nan} | {str(n): 0.0 for n in range(99)}), "sends an impossible evaluation"),
        (Declined(7), "answers evaluation 7"),
    ],
)
def test_what_a_party_cannot_tell_the_coordinator(message: Message, cause: str) -> None:
    server, _ = trainers()
    server.evaluate()
    server.state.number, server.state.judge = 1, "party-1"
    refused(server, "party-1", message, f"party-1: {cause}")


# Starting again.


class Process:
    """A role in its folder, as a process runs it. The test is its peers."""

    def __init__(self, role: Any, folder: Path, peers: list[str]) -> None:
        self.node = Node(role, METHODS["asysqn-sgd"].payloads, folder, peers, Limits(), Log("test", stream=StringIO()))
        self.node.open()
        self.said = dict.fromkeys(peers, 0)

    def meet(self, peer: str, number: int, reset: bool = False) -> None:
        self.node.joined(self.node.peers[peer], number, reset)

    def hear(self, peer: str, message: Message) -> None:
        self.said[peer] += 1
        body = memoryview(bytes(Codec(METHODS["asysqn-sgd"].payloads).encode(message)))
        self.node.received(self.node.peers[peer], self.said[peer], body)

    def restarts(self, peer: str) -> bool:
        """Whether the conversation with this peer has to start again, and the node runs."""
        return self.node.error is None and self.node.peers[peer].conversation.number == GIVEN_UP


def test_a_party_that_stopped_over_the_labels_can_be_started_again(tmp_path: Path) -> None:
    """Its own labels were right: the other party's were mended."""

    async def story() -> None:
        party = roles("asysqn-sgd")[1][0]
        first = Process(party, tmp_path, ["server"])
        first.meet("server", 7)
        first.hear("server", Differs(party._held.digest, "party-1, party-2 hold different labels from each other"))
        assert isinstance(first.node.error, DataError)
        first.node.close()
        again = Process(roles("asysqn-sgd")[1][0], tmp_path, ["server"])
        assert again.restarts("server")
        again.meet("server", 8, reset=True)
        assert len(again.node.peers["server"].conversation.outbox) == 1, "it says hello again"
        again.node.close()

    asyncio.run(story())


def test_a_run_that_one_party_ended_can_be_started_again(tmp_path: Path) -> None:
    async def story() -> None:
        parties = roles("asysqn-sgd")[1]
        names = [party.name for party in parties]
        first = Process(roles_not_started(), tmp_path, names)
        for name, party in zip(names, parties, strict=True):
            first.meet(name, 7)
            (hello,) = party.handle(Started(b""), 0)
            first.hear(name, hello.message)
        first.hear("party-2", Diverged("the end is near", True))
        assert first.node.error is None, "another party may confirm it"
        first.node._timer_fired("judge")
        assert isinstance(first.node.error, PartyDiverged)
        end = end_of(first.node)
        assert end.status == "stalled" and end.note.startswith("party-2: the end is near"), "not over for good"
        first.node.close()
        again = Process(roles_not_started(), tmp_path, names)
        assert again.restarts("party-2")
        again.meet("party-2", 8, reset=True)
        again.said["party-2"] = 0
        again.hear("party-2", hello.message)
        assert again.node.error is None and len(again.node.role.members) == 3  # type: ignore[attr-defined]
        again.node.close()

    asyncio.run(story())


def roles_not_started() -> Any:
    tables = {"protocol": {"name": "asysqn-sgd"}, "train": TRAIN}
    return federation(from_dict(tables), data()).roles()[0]


# Alignment: it ends, and the end names the member.


@pytest.mark.parametrize(
    ("lies", "cause"),
    [
        ([Declare(2**40)], "shop declares 1099511627776 ids"),
        ([Declare(3), Raised(-1)], "shop reports -1 raised points of 5"),
        ([Declare(3), Raised(2**62)], "shop reports 4611686018427387904 raised points of 5"),
        ([Declare(3), Done("a" * 64)], "shop reports an order too early"),
    ],
)
def test_an_alignment_names_the_member_that_lies(lies: list[Message], cause: str) -> None:
    server = AligningServer(("bank", "shop"), None, 64)
    server.handle(Started(b""), 0)
    server.handle(Received("bank", Declare(2)), 0)
    for message in lies:
        server.handle(Received("shop", message), 0)
    assert server.refusal.startswith(cause)
