"""A member that names a step, a round or an update far ahead moves nobody but itself.

The roles are real ones. The test plays the driver and the lying member.
"""

from typing import Any

import numpy as np
import pytest

from colonnade.algorithms.asysqn.messages import Ask, BeginTraining, Hold, Judge, Masked, Round, Stepped, Totals
from colonnade.algorithms.flex.messages import BeginWithGradient, Ready
from colonnade.algorithms.vafl.messages import Gradient, Skip
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.protocol.events import PeerJoined, Received, Send, Started, WorkDone

from .test_lying_rows import BATCH, ROWS, WIDTH, refused, roles, upload, works

FAR = 2**40 - 1  # the last step that a role takes for one
BEYOND = [-1, 2**40, 2**62]


def sent(role: Any, sender: str, message: Any) -> list[tuple[str, Any]]:
    effects = role.handle(Received(sender, message), 0)
    role.validate()
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


def uploaded(party: Any) -> Any:
    """The party's first upload."""
    (work,) = party.handle(Started(b""), 0)
    effects = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    return next(effect.message for effect in effects if isinstance(effect, Send))


@pytest.mark.parametrize("name", ["sync", "syn-zoo"])
def test_a_step_far_ahead_moves_no_honest_party(name: str) -> None:
    server, parties = roles(name, **({"min_batch": 4} if name == "syn-zoo" else {}))
    first, second, third = [uploaded(party) for party in parties]
    assert sent(server, "party-2", second) == sent(server, "party-3", third) == []
    size = parties[0].walk.size(FAR)
    lie = upload(np.arange(size), FAR)
    if name == "syn-zoo":
        perturbed = np.ones((1, size, WIDTH), np.float32)
        lie = Probe(FAR, size, lie.rows, lie.values, perturbed=perturbed)
    assert sent(server, "party-1", lie) == [("party-1", Skip(0))], "only the liar hears of it"
    assert server.state.round == 0
    assert works(server.handle(Received("party-1", first), 0)), "the round takes place"


@pytest.mark.parametrize("name", ["flex", "adaptive-flex", "sync-max", "p-bcd"])
def test_a_round_far_ahead_moves_no_honest_party(name: str) -> None:
    server, parties = roles(name)
    ready = [uploaded(party) for party in parties]
    assert sent(server, "party-2", ready[1]) == []
    lie = Ready(FAR, np.ones((parties[0].walk.size(FAR), WIDTH), np.float32))
    assert sent(server, "party-1", lie) == [("party-1", Skip(0))]
    assert server.state.following == 0 and list(server.state.line) == ["party-2"]
    assert sent(server, "party-3", ready[2]) == []
    assert works(server.handle(Received("party-1", ready[0]), 0)), "the round opens"


@pytest.mark.parametrize("name", ["sync", "flex"])
def test_a_party_that_was_led_astray_finds_back(name: str) -> None:
    _, (party, *_) = roles(name)
    uploaded(party)
    for wrong in BEYOND:
        refused(party, "server", Skip(wrong), f"server: sends a Skip to (step|round) {wrong}")
    for step in (FAR, 0):
        (work,) = works(party.handle(Received("server", Skip(step)), 0))
        effects = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
        party.validate()
        (message,) = [effect.message for effect in effects if isinstance(effect, Send)]
        assert (message.step if name == "sync" else message.round) == step


def test_batches_are_consecutive_steps() -> None:
    server, parties = roles("vafl", table="zeros", in_flight=2)
    batch = parties[0].walk.batch

    def of(step: int) -> Any:
        return upload(batch(step), step)

    server.handle(Received("party-1", of(4)), 0)  # after a restart of the server, for example
    for step in (4, 3, 7, FAR):
        refused(server, "party-1", of(step), f"party-1: sent the batch of step {step} after that of step 4")
    server.handle(Received("party-1", of(5)), 0)
    server.handle(PeerJoined("party-1", reset=True), 0)
    server.handle(Received("party-1", of(0)), 0)  # it lost its state
    server.validate()


@pytest.mark.parametrize("update", BEYOND[1:])
def test_an_update_that_no_run_reaches(update: int) -> None:
    values = np.ones((BATCH, WIDTH), np.float32)
    for name in ("vafl", "sync", "flex", "cascaded"):
        _, (party, *_) = roles(name, **({"table": "zeros"} if name in ("vafl", "cascaded") else {}))
        uploaded(party)
        message: Any = Gradient(0, update, values)
        if name == "flex":
            message = BeginWithGradient(1, 0, 1, update, 1.0, 0, 1.0, values)
        elif name == "cascaded":
            message = Losses(0, update, np.ones(2))
        refused(party, "server", message, "server: ")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite(value: float) -> None:
    values = np.full((BATCH, WIDTH), value, np.float32)
    for name, message in (
        ("vafl", Gradient(0, 0, values)),
        ("flex", BeginWithGradient(1, 0, 1, 0, 1.0, 0, 1.0, values)),
    ):
        _, (party, *_) = roles(name, **({"table": "zeros"} if name == "vafl" else {}))
        uploaded(party)
        refused(party, "server", message, "server: gradient that is not finite")


@pytest.mark.parametrize(("phase", "following", "limit"), [(2**62, 1, 0), (1, 2**62, 0), (1, 1, 2**62)])
def test_a_phase_that_no_run_has(phase: int, following: int, limit: int) -> None:
    _, (party, *_) = roles("flex")
    uploaded(party)
    message = BeginWithGradient(phase, 0, following, 0, 1.0, limit, 1.0, np.ones((BATCH, WIDTH), np.float32))
    refused(party, "server", message, "server: starts an impossible phase")


# AsySQN: the coordinator, and parties among each other.


def trainers(name: str = "asysqn-sgd") -> tuple[Any, list[Any]]:
    """A coordinator and three parties that train."""
    server, parties = roles(name)
    for party in parties:
        (hello,) = party.handle(Started(party.name.encode()), 0)
        server.handle(Received(party.name, hello.message), 0)
    server.state.begun, server.state.judge = True, ""
    for party in parties:
        party.handle(Received("server", BeginTraining(1.0, [0, 1, 2])), 0)
    return server, parties


@pytest.mark.parametrize(
    "step",
    [
        Stepped(0, ROWS, 1, 0, [0, 1, 2]),
        Stepped(0, BATCH, 2**62, 0, [0, 1, 2]),
        Stepped(0, BATCH, 1, 2**62, [0, 1, 2]),
        Stepped(7, BATCH, 1, 0, [0, 1, 2]),
        Stepped(-1, BATCH, 1, 0, [0, 1, 2]),
        Stepped(0, BATCH, 1, 0, [0] * 1000),
    ],
)
def test_a_step_that_counts_for_more(step: Stepped) -> None:
    server, _ = trainers()
    refused(server, "party-1", step, "party-1: reports an impossible step")
    server.handle(Received("party-1", Stepped(0, BATCH, 1, 0, [0, 1, 2])), 0)
    assert server.k == 1


@pytest.mark.parametrize("rows", [[0] * BATCH, range(BATCH + 1), []])
def test_a_question_about_no_batch(rows: Any) -> None:
    _, (party, *_) = trainers()
    ask = Ask(5, [0, 1, 2], False, np.array(rows, np.int32))
    refused(party, "party-2", ask, "party-2: asks for rows that are not a batch")


def test_sums_that_no_run_has() -> None:
    _, (party, *_) = trainers()
    for clock in BEYOND:
        refused(party, "party-2", Masked(1, 5, b"", clock, np.zeros(BATCH, np.uint64)), "sends an impossible sum")
    refused(party, "party-2", Masked(1, 5, b"", 0, np.zeros(ROWS + 1, np.uint64)), "sends an impossible sum")
    for number in BEYOND:
        refused(party, "party-2", Totals(0, number, np.zeros(BATCH)), f"margins of barrier 0, round {number}")


def test_numbers_of_the_coordinator_that_no_run_has() -> None:
    for number in (2**40, 2**62):
        _, (party, *_) = trainers("asysqn-svrg")
        refused(party, "server", Judge(number, 0, [0, 1, 2]), "asks for an impossible evaluation")
        refused(party, "server", Hold(number), f"barrier {number}")
        refused(party, "server", BeginTraining(float(number), [0, 1, 2]), "sends an invalid unit")
        _, (party, *_) = trainers("synsqn-sgd")
        refused(party, "server", Round(number, 0), "starts an impossible round")
