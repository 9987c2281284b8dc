"""Two batches under way, by hand: which θ a gradient belongs to, what waits for the lane, what a restart sends again.

One column and one weight per party, h = w·x, the output is h itself, ℓ = mean (h − y)²: ∂ℓ/∂h = 2(h − y)/n.
"""

import numpy as np
import pytest

from colonnade.algorithms.vafl.config import TSyncOptions, VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, Gradient
from colonnade.algorithms.vafl.request_queue import QueuedRequest, RequestQueue
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import PeerJoined, Received, Send, Started, Work, WorkDone

X = np.arange(1, 9) / 4
ETA = 0.2


@pytest.fixture
def make(tiny, regression):
    def build(options=None, parties=1):
        options = options or VaflOptions(table="zeros", in_flight=2)
        return tiny(options, [X] * parties, np.ones(8), [1.0] * parties, None, regression)

    return build


def uploads(effects):
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Embeddings)]


def works(effects):
    return [effect for effect in effects if isinstance(effect, Work)]


def gradient(step, values):
    return Received("server", Gradient(step, step, np.array(values, np.float32).reshape(-1, 1)))


def test_a_pipeline_by_hand(make):
    run = make()
    party = run.parties[0]
    effects = run.start(0)
    (first,), (embedding,) = uploads(effects), works(effects)
    assert (first.step, embedding.kind, embedding.amount) == (0, "step", 1.0), "the next batch, while this one travels"
    _, effects = run.work(party, effects)
    (second,) = uploads(effects)
    assert second.step == 1 and not works(effects), "two are under way"
    np.testing.assert_allclose(second.values[:, 0], X[second.rows], rtol=1e-6)

    effects = run.told(party, gradient(0, [1.0, 2.0]))
    assert works(effects)[0].kind == "refine"
    _, effects = run.work(party, effects)
    w_1 = 1.0 - ETA * float(X[first.rows] @ [1.0, 2.0])
    assert float(party.network.theta[0]) == pytest.approx(w_1, rel=1e-6)
    (third_job,) = works(effects)

    assert run.told(party, gradient(1, [3.0, -1.0])) == [], "the gradient waits for the lane"
    _, effects = run.work(party, [third_job])
    (third,) = uploads(effects)
    assert third.step == 2
    np.testing.assert_allclose(third.values[:, 0], w_1 * X[third.rows], rtol=1e-6)
    _, effects = run.work(party, effects)
    w_2 = w_1 - ETA * float(X[second.rows] @ [3.0, -1.0])
    assert float(party.network.theta[0]) == pytest.approx(w_2, rel=1e-5)
    assert works(effects)[0].kind == "step" and party.summary()["steps"] == 2


def test_a_gradient_is_taken_at_the_theta_of_its_forward_pass(resolve):
    """With a hidden layer the gradient depends on θ; a party saved in between computes the same bits."""
    tables = {
        "protocol": {"name": "swift", "smaller_batches": False},
        "model": {"party": "mlp:8", "embedding": 3},
        "train": {"batch_size": 16, "learning_rate": 0.5, "optimiser": "sgd"},
    }
    setting = resolve(tables)
    party, other = (setting.roles()[1] for _ in range(2))
    random = np.random.default_rng(0)
    values = [random.standard_normal((16, 3)).astype(np.float32) for _ in range(2)]

    def do(effects):
        (work,) = works(effects)
        return work, party.handle(WorkDone(work.token, party.compute(work.job)), 0)

    _, effects = do(party.handle(Started(b""), 0))
    _, effects = do(effects)
    first, second = party.network.copy(), party.network.copy()
    rows = [flight.rows for flight in party.state.flights]
    _, effects = do(party.handle(Received("server", Gradient(0, 0, values[0])), 0))
    first.apply(first.backward(party.x[rows[0]], 0, 0, values[0]), 0.5)
    assert party.network.vector().tobytes() == first.vector().tobytes()
    _, effects = do(effects)  # embeds step 2
    (refine,) = works(party.handle(Received("server", Gradient(1, 1, values[1])), 0))
    expected = second.backward(party.x[rows[1]], 1, 0, values[1])  # at the θ before the first step
    other.load(party.save())
    assert party.compute(refine.job).gradient.tobytes() == expected.tobytes()
    assert other.compute(refine.job).gradient.tobytes() == expected.tobytes(), "from the saved copy"
    assert first.backward(party.x[rows[1]], 1, 0, values[1]).tobytes() != expected.tobytes()


def test_what_was_not_answered_is_sent_again_in_order(make):
    run = make()
    party = run.parties[0]
    run.work(party, run.start(0))
    refining = run.told(party, gradient(0, [1.0, 2.0]))
    assert run.told(party, PeerJoined("server", reset=True)) == [], "the lane is busy"
    assert [flight.step for flight in party.state.again] == [1]
    for step in (1, 2):
        _, refining = run.work(party, refining)
        (work,) = works(refining)
        assert (work.kind, work.job.step) == ("step", step)


def test_both_are_sent_again_and_answers_of_before_are_dropped(make):
    run = make()
    party = run.parties[0]
    run.work(party, run.start(0))
    effects = run.told(party, PeerJoined("server", reset=True))
    run.told(party, gradient(1, [1.0, 1.0]))
    assert party.state.dropped == 1
    steps = []
    for _ in range(2):
        _, effects = run.work(party, effects)
        steps += [upload.step for upload in uploads(effects)]
    assert steps == [0, 1] and not works(effects)


def test_answers_out_of_turn_wait_and_strange_ones_are_refused(make):
    run = make()
    party = run.parties[0]
    run.work(party, run.start(0))
    assert run.told(party, gradient(1, [1.0, 1.0])) == []
    assert run.told(party, gradient(1, [1.0, 1.0])) == [] and party.state.dropped == 1, "a second time"
    assert run.told(party, gradient(7, [1.0, 1.0])) == [] and party.state.dropped == 2
    with pytest.raises(RemoteProtocolError, match="gradient of shape"):
        run.told(party, gradient(0, [1.0]))
    _, effects = run.work(party, run.told(party, gradient(0, [1.0, 1.0])))
    assert works(effects)[0].kind == "refine", "now it is the other's turn"


def test_a_party_cannot_fill_the_queue():
    queue = RequestQueue(2)
    for step in range(5):
        queue.add(QueuedRequest(0, step, np.zeros(0, np.int32), None, learn=True, reply=True))
        queue.add(QueuedRequest(0, step, np.zeros(0, np.int32), None, learn=False, reply=True))
    assert [(request.step, request.learn) for request in queue] == [(3, True), (3, False), (4, True), (4, False)]
    assert not queue.has(2), "of one party"
    queue.drop(0)
    assert len(queue) == 0


def test_ages_of_the_own_rows_count_from_their_arrival(make):
    run = make(VaflOptions(table="zeros", in_flight=2), parties=2)
    sent = [run.start(m) for m in (0, 1)]
    (own,), (other,) = uploads(sent[0]), uploads(sent[1])
    stepping = run.told(run.server, Received("party-1", own))
    run.told(run.server, Received("party-2", other))  # queued at k = 0
    _, effects = run.work(run.server, stepping)
    run.work(run.server, effects)
    assert run.server.k == 2
    assert run.server.table.ages_of(1, other.rows, 2).tolist() == [2, 2]
    assert run.server.staleness.counts.min() >= 0


def test_an_update_takes_a_party_once(make):
    run = make(TSyncOptions(table="zeros", in_flight=2, t=2), parties=2)
    effects = run.start(0)
    for _ in range(2):
        (upload,) = uploads(effects)
        assert run.told(run.server, Received("party-1", upload)) == []
        if upload.step == 0:
            _, effects = run.work(run.parties[0], effects)
    (other,) = uploads(run.start(1))
    assert works(run.told(run.server, Received("party-2", other)))
    assert sorted((request.party, request.step) for request in run.server.state.taken) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"in_flight": 0}, "must be between 1 and 8"),
        ({"in_flight": 9}, "must be between 1 and 8"),
        ({"in_flight": 2, "order": "query-first"}, "upload-first"),
        ({"in_flight": 2, "pause_s": 0.1}, "set protocol.pause_s = 0"),
    ],
)
def test_refuses(options, cause):
    with pytest.raises(ConfigError, match=cause):
        VaflOptions(**options).check(2)
