"""An evaluation judges every method on the embeddings that an upload would carry.

Test rows are the training rows here, and networks have no random layers: at the same weights, the answer to an
evaluation and an upload of the same row must be the same bytes.
"""

import dataclasses
import sys
import types

import msgspec
import numpy as np
import pytest

from colonnade.algorithms import METHODS
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.fedvs.coding import average
from colonnade.algorithms.fedvs.messages import Decode, DecodedTest
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Gradient
from colonnade.algorithms.vafl.party import Party, PipelinedParty
from colonnade.algorithms.zeroth.messages import Losses
from colonnade.data import from_arrays, split
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Received, Send, Started, Work, WorkDone
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest

ROWS, BATCH, WIDTH = 60, 20, 3
AVERAGED = ("wait", "ignore", "wait-dp")
# Methods that send no embedding: one model over all columns, or sums of margins behind masks; `fedvs` is below.
WITHOUT = {"centralised", "fedvs"} | {name for name, method in METHODS.items() if method.capabilities.party_labels}
NAMES = [name for name in METHODS if name not in WITHOUT]
PARTIES = {"vafl": Party, "t-sync": Party, "swift": PipelinedParty}  # made by a function, which chooses the class
TINY_NOISE = {"epsilon": 1e10, "clip": 0.05}  # so that only clipping has a visible effect


class Coarse(Encoding):
    """A method that rounds uploads to quarters and sends half of the bytes."""

    def encode(self, values):
        return (np.rint(values * 4) / 4).astype(np.float16)

    def decode(self, values):
        return values.astype(np.float32)


class Careful(Coarse):
    exact_tests = True


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    x = generator.random((ROWS, 9), dtype=np.float32)
    y = generator.integers(0, 3, ROWS)
    return split(from_arrays(x, y, x_test=x, y_test=y), parties=3, scale="none", validation_fraction=0)


@pytest.fixture
def make(resolve, data, monkeypatch):
    """A federation of a method, or of the method with an encoding of its own."""

    def federation(name, encoding=None, **protocol):
        method, path = METHODS[name], name
        if encoding is not None:
            made = {"server": method.server, "party": PARTIES.get(name, method.party)}
            roles = {role: type(role, (encoding, kind), {}) for role, kind in made.items()}
            module = types.ModuleType("encoded_method_of_a_test")
            module.METHOD = dataclasses.replace(method, name=f"{name}-encoded", **roles)
            monkeypatch.setitem(sys.modules, module.__name__, module)
            path = "encoded_method_of_a_test:METHOD"
        averaged = name in (*AVERAGED, "fedvs")
        tables = {
            "protocol": {"name": path, **(TINY_NOISE if name == "wait-dp" else {}), **protocol},
            "model": {"party": "polynomial:1" if averaged else "linear", "embedding": WIDTH, "server": "linear",
                      **({"aggregate": "mean"} if averaged else {})},
            "train": {"batch_size": BATCH, "updates": 4, "learning_rate": 0.1, "eval_every": 1},
        }  # fmt: skip
        return resolve(tables, data=data)

    return federation


def rows_of(party, message):
    """The rows of an upload."""
    if hasattr(message, "rows"):
        return message.rows
    return party.walk.batch(0) if hasattr(party.walk, "batch") else party.walk.rows(0)


def sent(party, event):
    """A party's messages after an event and its job."""
    (work,) = [effect for effect in party.handle(event, 0) if isinstance(effect, Work)]
    effects = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    return next(effect.message for effect in effects if isinstance(effect, Send))


@pytest.mark.parametrize("encoding", [None, Coarse], ids=["as it is", "encoded"])
@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_carries_what_an_upload_does(name, encoding, make):
    server, *parties = make(name, encoding).roles()
    for party in parties:
        upload = sent(party, Started(b"key"))
        reply = sent(party, Received("server", EvaluationRequest(1, 0, ROWS)))
        rows = rows_of(party, upload)
        assert len(rows) >= BATCH and reply.values.dtype == upload.values.dtype
        assert upload.values.dtype == (np.float32 if encoding is None else np.float16)
        close = {"atol": 1e-4} if name == "wait-dp" else {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(reply.values[rows], upload.values, **close)
        uploaded, judged = (server.decoded(party.name, message).values for message in (upload, reply))
        assert uploaded.dtype == judged.dtype == np.float32 and uploaded.shape == (len(rows), WIDTH)
        np.testing.assert_allclose(judged[rows], uploaded, **close)
        if encoding is not None:
            np.testing.assert_array_equal(judged * 4, np.rint(judged * 4))
        elif name == "wait-dp":
            assert np.linalg.norm(judged, axis=1).max() == pytest.approx(0.05, abs=1e-4), "clipped"


def test_fedvs_decodes_test_rows_as_it_decodes_training_rows(make, by_hand, monkeypatch):
    run = by_hand(make("fedvs", l_w=12))
    server, compute, seen = run.server, type(run.server).compute, {}

    def spy(role, job):
        result = compute(role, job)
        if isinstance(job, Decode):
            summed = server.walk.cut.samples(server.code.decode(job.answers, job.who), job.batch)
            seen.setdefault("train", average(summed, job.count, server.options.l_x + server.options.l_w))
        if isinstance(result, DecodedTest):
            seen.setdefault("test", result.values)
        return result

    monkeypatch.setattr(type(server), "compute", spy)
    run.pump(lambda: "train" in seen)
    tested = seen["test"].reshape(-1, WIDTH)[server.walk.rows(0)]
    # Weights are rounded at random for each exchange: by less than 2^-12 each, of four terms and x ≤ 1.
    np.testing.assert_allclose(seen["train"], tested, atol=4 * 2.0**-12)
    grid = seen["train"] * 3 * 2.0 ** (server.options.l_x + 12)
    np.testing.assert_allclose(grid, np.rint(grid), atol=0.1)


@pytest.mark.parametrize("name", ["vafl", "cascaded"])
def test_everything_that_enters_the_table_is_encoded(name, make, by_hand):
    """Warm-up, further rows with a batch, ĉ, fresh rows."""
    setting = make(name, Coarse, max_delay=1, **({"extra_rows": 0.5} if name == "vafl" else {}))
    # The answer to its batch does not arrive, so party-1 keeps its weights while the others make its rows too old.
    run = by_hand(setting, lambda sender, to, message: to == "party-1" and isinstance(message, Gradient | Losses))
    server, party = run.server, run.parties[0]
    run.pump(lambda: server.state.taken)
    assert server.state.taken[0].party == 0
    if name == "cascaded":
        assert server.state.taken[0].perturbed.dtype == np.float32
    run.pump(lambda: "party-1" in server.state.asked)
    asked = run.heard(FreshRequest, "party-1")[0]
    server.table.values[asked.rows, :WIDTH] = 99
    run.pump(lambda: "party-1" not in server.state.asked)
    messages = [m for sender, _, m in run.counted if sender == "party-1"]
    assert [len(m.rows) for m in messages] == [ROWS, 30 if name == "vafl" else BATCH, len(asked.rows)]
    assert [(m.batch, m.request) for m in messages] == [(0, 0), (BATCH, 0), (0, asked.request)]
    assert all(m.values.dtype == np.float16 for m in messages)
    if name == "cascaded":
        assert messages[1].perturbed.dtype == np.float16
    held = server.table.values[:, :WIDTH]
    np.testing.assert_array_equal(held, np.rint(party.network.read(party.x) * 4) / 4)


def test_a_method_may_ask_to_be_judged_on_exact_embeddings(make):
    server, party, *_ = make("vafl", Careful).roles()
    assert sent(party, Started(b"key")).values.dtype == np.float16
    reply = sent(party, Received("server", EvaluationRequest(1, 0, ROWS)))
    np.testing.assert_array_equal(server.decoded("party-1", reply).values, party.network.read(party.x))


@pytest.mark.parametrize("name", ["vafl", "flex", "wait"])
def test_a_prediction_is_made_from_what_an_evaluation_would_get(name, make):
    server, party, *_ = make(name, Coarse).roles()
    sent(party, Started(b"key"))
    reply = sent(party, Received("server", EvaluationRequest(1, 0, ROWS)))
    np.testing.assert_array_equal(party.embed(party.x, np.arange(7), 1), server.decoded("party-1", reply).values[:7])


def test_what_cannot_be_decoded_is_its_senders_fault_and_changes_nothing(make):
    class Strict(Coarse):
        def decode(self, values):
            if values.dtype != np.float16:
                raise ValueError("not of sixteen bits")
            return super().decode(values)

    server, party, *_ = make("vafl", Strict).roles()
    server.handle(Started(b"key"), 0)
    (work,) = party.handle(Started(b"key"), 0)
    good, *_ = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    before = state.pack(server.save())
    bad = msgspec.structs.replace(good.message, values=good.message.values.astype(np.float32))
    for message in (bad, EvaluationReply(1, 0, 0, bad.values)):
        with pytest.raises(RemoteProtocolError, match="^party-1: .* cannot be decoded: not of sixteen bits"):
            server.handle(Received("party-1", message), 0)
    assert isinstance(bad, Embeddings) and state.pack(server.save()) == before
