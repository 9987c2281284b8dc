"""A party that sends other rows than the agreed ones is refused, and no honest party is.

The roles are real ones. The test plays the driver and the lying member.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Effect, PeerJoined, Received, Send, Started, Work, WorkDone
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest, Message

ROWS, BATCH, WIDTH = 32, 8, 2
TRAIN = {"batch_size": BATCH, "epochs": 9, "optimiser": "sgd", "learning_rate": 0.05}
MODEL = {"party": "linear", "embedding": WIDTH, "server": "linear"}


@cache
def data() -> Partition:
    draws = np.random.default_rng(0)
    x = draws.standard_normal((ROWS + 8, 3)).astype(np.float32)
    made = colonnade.from_arrays(x, (x.sum(1) > 0).astype(np.int64))
    return colonnade.split(made, parties=3, test_fraction=0.2, validation_fraction=0)


def roles(name: str, **options: Any) -> tuple[Any, list[Any]]:
    """The server and three parties; all have joined, and the server has nothing to judge yet."""
    tables = {"protocol": {"name": name, **options}, "model": MODEL, "train": TRAIN}
    server, *parties = federation(from_dict(tables), data()).roles()
    server.handle(Started(b""), 0)
    server.state.due = ""
    for party in parties:
        server.handle(PeerJoined(party.name), 0)
    return server, parties


def refused(role: Any, sender: str, message: Message, cause: str) -> None:
    """The role names the sender, and has not changed."""
    before = state.pack(role.save())
    with pytest.raises(RemoteProtocolError, match=cause) as caught:
        role.handle(Received(sender, message), 0)
    assert caught.value.peer == sender
    assert state.pack(role.save()) == before


def upload(rows: Any, step: int = 0, batch: int | None = None, **fields: Any) -> Embeddings:
    rows = np.asarray(rows, np.int32)
    return Embeddings(
        step, len(rows) if batch is None else batch, rows, np.ones((len(rows), WIDTH), np.float32), **fields
    )


def works(effects: list[Effect]) -> list[Work]:
    return [effect for effect in effects if isinstance(effect, Work)]


def test_wrong_rows_that_come_first_make_no_honest_party_the_liar() -> None:
    server, parties = roles("sync")
    good = parties[0].walk.batch(0)
    refused(server, "party-1", upload((good + 1) % ROWS), "party-1: sent rows for step 0 that differ")
    for name in ("party-2", "party-3"):
        server.handle(Received(name, upload(good)), 0)
    assert works(server.handle(Received("party-1", upload(good)), 0)), "the liar may try again, and all go on"


@pytest.mark.parametrize("name", ["vafl", "t-sync", "swift", "cascaded", "frozen", "sync"])
def test_a_batch_of_a_million_rows(name: str) -> None:
    server, _ = roles(name)
    refused(server, "party-1", upload(np.zeros(1_000_000)), "party-1: sent ")


@pytest.mark.parametrize("name", ["vafl", "t-sync", "swift"])
def test_a_row_twice(name: str) -> None:
    server, _ = roles(name, table="zeros")
    refused(server, "party-2", upload([1, 2, 3, 4, 5, 6, 7, 7]), "party-2: sent (rows .* differ|a row twice)")


@pytest.mark.parametrize("batches", ["own", "shared"])
def test_rows_that_a_party_likes_better(batches: str) -> None:
    server, parties = roles("vafl", table="zeros", batches=batches, extra_rows=0.5)
    party = parties[1]
    good, further = party.walk.batch(0), party.further_rows()
    refused(server, party.name, upload(party.walk.batch(1)), "differ from the agreed walk")
    refused(server, party.name, upload(good[::-1]), "differ from the agreed walk")
    refused(server, party.name, upload([*good, *further[::-1]], batch=BATCH), "further rows with step 0 that differ")
    assert works(server.handle(Received(party.name, upload([*good, *further], batch=BATCH)), 0))


def test_batches_of_two_sizes_follow_the_walk() -> None:
    server, parties = roles("swift")
    walk, half = parties[0].walk, BATCH // 2
    refused(server, "party-1", upload(np.arange(BATCH + 1)), f"{BATCH + 1} rows; {BATCH} is the most")
    refused(server, "party-1", upload(np.arange(BATCH)), "differ from the agreed walk")
    refused(server, "party-1", upload(walk.rows_from(0, half + 1)), "differ from the agreed walk")
    assert works(server.handle(Received("party-1", upload(walk.rows_from(0, half))), 0))
    refused(server, "party-1", upload(walk.rows_from(BATCH, half), 1), "differ from the agreed walk")
    server.handle(Received("party-1", upload(walk.rows_from(half, BATCH), 1)), 0)
    server.handle(PeerJoined("party-1", reset=True), 0)
    refused(server, "party-1", upload(walk.rows_from(5 * ROWS, half), 1), "differ from the agreed walk")
    server.handle(Received("party-1", upload(walk.rows_from(half, BATCH), 1)), 0)
    server.validate()


def test_zeroth_order_batches_follow_the_walk() -> None:
    server, _ = roles("cascaded", min_batch=4)
    refused(server, "party-1", upload(np.arange(BATCH + 4)), f"{BATCH + 4} rows; {BATCH + 3} is the most")


def test_a_warm_up_has_every_row_once_and_comes_first() -> None:
    server, parties = roles("vafl", table="warm")
    refused(server, "party-1", upload(np.arange(8, 16), batch=0), "warm-up that do not follow the first 0")
    server.handle(Received("party-1", upload(np.arange(8), batch=0)), 0)
    refused(server, "party-1", upload(np.arange(8), batch=0), "warm-up that do not follow the first 8")
    refused(server, "party-1", upload([], batch=0), "0 rows without a batch")
    server.handle(Received("party-1", upload(parties[0].walk.batch(0))), 0)
    refused(server, "party-1", upload(np.arange(8, 16), batch=0), "although no warm-up is due")
    refused(roles("vafl", table="zeros")[0], "party-1", upload(np.arange(8), batch=0), "although no warm-up is due")


def asked_for_rows() -> tuple[Any, FreshRequest]:
    """A server that waits for rows of party-2."""
    server, parties = roles("vafl", table="zeros", max_delay=1, batches="shared")
    for step in range(5):
        effects = server.handle(Received("party-1", upload(parties[0].walk.batch(step), step)), 0)
        for effect in effects:
            if isinstance(effect, Send) and effect.to == "party-2" and isinstance(effect.message, FreshRequest):
                return server, effect.message
        (work,) = works(effects)
        server.handle(WorkDone(work.token, server.compute(work.job)), 0)
    raise AssertionError


def test_an_answer_has_the_rows_that_were_asked_for() -> None:
    server, asked = asked_for_rows()
    number, rows = asked.request, asked.rows
    others = (rows + 1) % ROWS
    refused(server, "party-2", upload(others, batch=0, request=number), f"differ from those of request {number}")
    refused(server, "party-2", upload(rows, batch=0, request=number + 9), "which it was not asked or has answered")
    refused(server, "party-2", upload(rows, batch=0, request=-1), "which it was not asked or has answered")
    refused(server, "party-2", upload(rows, request=number), "which it was not asked or has answered")
    server.handle(Received("party-2", upload(rows, batch=0, request=number)), 0)
    refused(server, "party-2", upload(rows, batch=0, request=number), "which it was not asked or has answered")


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that has asked for the held-out rows, in chunks of three."""
    monkeypatch.setattr("colonnade.algorithms.evaluation.rows_per_message", lambda width: 3)
    server, _ = roles("vafl", table="zeros")
    server.evaluate()
    assert server.evaluation.running
    return server


def reply(number: int = 1, start: int = 0, step: int = 0, value: float = 1.0) -> EvaluationReply:
    return EvaluationReply(number, start, step, np.full((3, WIDTH), value, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_held_out_rows_are_sane(value: float, judging: Any) -> None:
    refused(judging, "party-1", reply(value=value), "evaluation rows that are not finite, or beyond")


@pytest.mark.parametrize(("number", "step"), [(2, 0), (0, 0), (-1, 0), (2**62, 0), (1, -1), (1, 2**62)])
def test_an_evaluation_that_no_role_asked_for(number: int, step: int, judging: Any) -> None:
    refused(judging, "party-1", reply(number, step=step), f"party-1: evaluation {number} at step {step}")


def test_a_chunk_twice_is_no_other_chunk(judging: Any) -> None:
    judging.handle(Received("party-1", reply()), 0)
    refused(judging, "party-1", reply(), "party-1: evaluation rows from 0")
    refused(judging, "party-1", reply(start=1), "party-1: evaluation rows from 1")


def test_an_honest_party_notices_what_the_server_would_refuse() -> None:
    _, (party, *_) = roles("vafl", table="zeros")
    party.handle(Started(b""), 0)
    party.network.theta.fill_(1e9)
    (work,) = party.handle(Received("server", EvaluationRequest(1, 0, 3)), 0)
    with pytest.raises(TrainingDiverged, match="party-1: its held-out embeddings have left"):
        party.handle(WorkDone(work.token, party.compute(work.job)), 0)


def test_a_server_that_asks_for_impossible_rows() -> None:
    _, (party, *_) = roles("vafl", table="zeros")
    party.handle(Started(b""), 0)
    rows = np.arange(3, dtype=np.int32)
    for request, wanted in ((1, rows[:0]), (1, rows * 0), (0, rows), (-1, rows)):
        refused(party, "server", FreshRequest(request, wanted), f"request {request} for {len(wanted)} rows")
    for request in range(1, 65):
        assert party.handle(Received("server", FreshRequest(request, rows)), 0)
    refused(party, "server", FreshRequest(65, rows), "with 64 unanswered")
    for number, best in ((2**62, 0), (-1, 0), (1, -1), (1, 2**62)):
        refused(party, "server", EvaluationRequest(number, 0, 3, best), "asks for held-out rows")
