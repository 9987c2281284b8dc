"""Alg. 2 and the steps of Alg. 3–5, computed by hand; and aggregations that cannot be completed.

Three parties or more without a coordinator: messages are delivered at once, and recorded.
"""

from collections import deque

import msgspec
import numpy as np
import pytest
from scipy import sparse

from colonnade.algorithms.asysqn.aggregation import place_of
from colonnade.algorithms.asysqn.config import (
    AfOptions,
    AfSagaOptions,
    AfSvrgOptions,
    AsyOptions,
    AsySvrgOptions,
    SynOptions,
)
from colonnade.algorithms.asysqn.coordinator import LinearCoordinator
from colonnade.algorithms.asysqn.messages import (
    Abandon,
    Ask,
    BeginTraining,
    Differs,
    Held,
    Hello,
    Hold,
    Judged,
    Masked,
    Masks,
    Members,
    Missing,
    Round,
    Stepped,
    Take,
    Taken,
    Totals,
)
from colonnade.algorithms.asysqn.party import Party
from colonnade.algorithms.method import PartySetup, ServerSetup
from colonnade.algorithms.training import Every, StepRule, Training
from colonnade.data import Task
from colonnade.models import OptimiserSpec, Regulariser
from colonnade.privacy.masking import decode
from colonnade.protocol.errors import ConfigError, DataError, RemoteProtocolError
from colonnade.protocol.events import (
    CancelTimer,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)

BINARY = Task("binary", ("no", "yes"))


def setups(options, x, y, batch=2, rate=0.5, task=BINARY, labels=None, metric=None, intercept=False):
    """The data that parties are built from; `labels` may give some parties different labels."""
    options = msgspec.structs.replace(options, intercept=intercept)
    q, y = len(x), np.asarray(y)
    names = tuple(f"party-{m + 1}" for m in range(q))
    plain, none, metric = (
        OptimiserSpec(),
        Regulariser(),
        metric or ("loss" if task.kind == "regression" else "accuracy"),
    )
    training = Training(
        seed=0, rows=len(y), batch_size=batch, server_rate=rate, party_rates=(rate,) * q, server_optimiser=plain,
        party_optimisers=(plain,) * q, regularisers=(none,) * q, rule=StepRule(), limit=Every("updates", 100),
        eval_every=Every("updates", 100), metric=metric,
    )  # fmt: skip
    made = []
    for m, name in enumerate(names):
        own = x[m] if hasattr(x[m], "tocsr") else np.asarray(x[m], np.float64).reshape(len(y), -1)
        held = np.asarray((labels or {}).get(m, y))
        setup = (options, training, name, m, q, 1, "none", own, own[:1], own.shape[1:], "cpu", None, names)
        made.append(PartySetup(*setup, task, held, held[:1]))
    return made


class Parties:
    """Roles, a queue of events, and every message sent."""

    def __init__(self, *args, **settings):
        self.roles = {setup.name: Party(setup) for setup in setups(*args, **settings)}
        self.names, self.queue, self.sent, self.told, self.timers = list(self.roles), deque(), [], [], {}
        self.lost = lambda sender, to, message: False  # messages that never arrive
        for name in self.names:
            self.tell(name, Started(name.encode()))

    def tell(self, name, event, now=0):
        role = self.roles[name]
        effects = role.handle(event, now)
        role.validate()
        for effect in effects:
            match effect:
                case Send(to="server", message=message):
                    self.told.append((name, message))
                case Send(to=to, message=message):
                    self.sent.append((name, to, message))
                    if not self.lost(name, to, message):
                        self.queue.append((to, Received(name, message)))
                case Work(token=token, job=job):
                    self.queue.append((name, WorkDone(token, role.compute(job))))
                case SetTimer(name=timer, at=at):
                    self.timers[name, timer] = at
                case CancelTimer(name=timer):
                    self.timers.pop((name, timer), None)

    def settle(self, events=10_000):
        while self.queue and events:
            self.tell(*self.queue.popleft())
            events -= 1

    def begin(self, *trainers):
        """The named parties train; the others only answer."""
        everyone = list(range(len(self.names)))
        for m, name in enumerate(self.names):
            start = BeginTraining(2.0, everyone) if m in trainers else Members(everyone)
            self.queue.append((name, Received("server", start)))

    def steps_of(self, m, count):
        """Deliver until a party has taken this many steps."""
        role = self.roles[self.names[m]]
        while role.estimator.steps < count:
            self.tell(*self.queue.popleft())
        return role.estimator

    def of(self, *kinds):
        return [entry for entry in self.sent if type(entry[2]) in kinds]


X = [[1.0, 2.0], [3.0, -1.0], [-2.0, 1.0]]  # a column for each of three parties
Y = [1, 0]
SIGNS = np.array([1.0, -1.0])


def make(options=None, **settings):
    return Parties(options or AfOptions(ahead=0, l2=0.1), X, Y, **settings)


def test_the_first_party_holds_the_intercept_which_has_no_penalty():
    """θ_1 = w_1·x_1 + b; b's slope is the mean over the batch, without λb. Only this party holds b."""
    parties = make(intercept=True)
    assert [role._block.columns for role in parties.roles.values()] == [3, 2, 2], "padded, and a column of ones"
    parties.roles["party-1"].estimator.state.w = np.array([0.5, 0.0, 0.3])
    np.testing.assert_allclose(parties.roles["party-1"].margins(np.array([[1.0], [2.0]])), [0.8, 1.3])
    parties.begin(0)
    w = parties.steps_of(0, 1).w
    slopes = -SIGNS / (1 + np.exp(SIGNS * np.array([0.8, 1.3])))
    assert w[2] == pytest.approx(0.3 - 0.5 * slopes.mean(), rel=1e-8)
    assert w[0] == pytest.approx(0.5 - 0.5 * (slopes @ [1.0, 2.0] / 2 + 0.1 * 0.5), rel=1e-8)


def with_weights(parties, weights):
    for name, weight in zip(parties.names, weights, strict=True):
        parties.roles[name].estimator.state.w = np.array([weight, 0.0])  # the second column is padding
    return parties


def test_a_sum_is_the_margins_of_the_whole_model():
    parties = with_weights(make(), (0.5, -0.25, 2.0))
    parties.begin(0)
    role = parties.roles["party-1"]
    while not role.state.ready and not role.state.lane:
        parties.tell(*parties.queue.popleft())
    theta = role._walk.batch(0)
    expected = {0: 0.5 * 1 - 0.25 * 3 + 2.0 * -2, 1: 0.5 * 2 - 0.25 * -1 + 2.0 * 1}  # by row
    (work,) = [event for name, event in parties.queue if name == "party-1"]
    slopes = work.result.slopes
    by_hand = [-SIGNS[row] / (1 + np.exp(SIGNS[row] * expected[row])) for row in theta]
    np.testing.assert_allclose(slopes, by_hand, rtol=1e-8)


def test_no_message_tells_a_term_and_no_mask_serves_twice():
    parties = with_weights(make(), (0.5, -0.25, 2.0))
    parties.begin(0)
    parties.steps_of(0, 40)
    masked, masks = parties.of(Masked), parties.of(Masks)
    assert len(masked) >= 80 and len(masks) >= 80, "two edges on each tree"
    seen = np.concatenate([message.values for _, _, message in masked + masks])
    assert len(np.unique(seen)) == len(seen)
    own = {decode(np.rint(np.ldexp(np.array(x) * w, 32)).astype(np.int64).view(np.uint64), 32).tobytes()
           for x, w in zip(X, (0.5, -0.25, 2.0), strict=True)}  # fmt: skip
    assert not any(decode(message.values, 32).tobytes() in own for _, _, message in masked)
    assert abs(np.mean(seen >= 2**63) - 0.5) < 0.2, "uniform"


def test_in_the_clear_terms_are_what_is_sent():
    parties = with_weights(make(AfOptions(ahead=0, masking="off")), (0.5, -0.25, 2.0))
    parties.begin(0)
    parties.steps_of(0, 1)
    assert not parties.of(Masks)
    (_, _, message), *_ = parties.of(Masked)
    assert np.sort(decode(message.values, 32)).tolist() == [-0.75, 0.25], "party-2's"


@pytest.mark.parametrize("parties", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("masked", [True, False])
def test_places_are_two_trees(parties, masked):
    if masked and parties < 3:
        pytest.skip("refused")
    members = tuple(range(5, 5 + parties))
    for initiator in members:
        for tree in (0, 1) if masked else (0,):
            places = {party: place_of(party, initiator, members, masked, 2)[tree] for party in members}
            assert places[initiator].parent is None
            children = [child for place in places.values() for child in place.children]
            assert sorted(children) == [m for m in members if m != initiator]
            assert all(places[child].parent == party for party, place in places.items() for child in place.children)


def test_a_first_order_step():
    parties = make(rate=0.5)
    parties.begin(0)
    w = parties.steps_of(0, 1).w
    v = np.mean(-SIGNS / 2 * np.array(X[0]))  # θ = 0 and w = 0
    np.testing.assert_allclose(w, [-0.5 * v, 0.0])
    assert parties.told[-1] == ("party-1", Stepped(0, 2, 1, 0, [0, 1, 2]))


def test_a_quasi_newton_step_divides_by_the_curvature():
    parties = make(AsyOptions(ahead=0, l2=0.1, delta=1e-6), rate=0.5)
    parties.begin(0)
    x = np.array(X[0])
    w = parties.steps_of(0, 1).w[0]
    h = np.mean(0.25 * x**2) + 0.1  # where the step began: σ′(0) = 1/4
    v = np.mean(-SIGNS / (1 + np.exp(SIGNS * w * x)) * x) + 0.1 * w
    second = parties.steps_of(0, 2).w[0]
    assert second == pytest.approx(w - 0.5 * v / h, rel=1e-8)


def test_saga_keeps_a_scalar_for_every_row():
    parties = make(AfSagaOptions(ahead=0, l2=0.1), batch=1, rate=0.5)
    parties.begin(0)
    estimator, x = parties.steps_of(0, 1), np.array(X[0])
    w = -0.5 * np.mean(-SIGNS / 2 * x)  # the batch's slope is its reference
    assert estimator.w[0] == pytest.approx(w)
    row = parties.roles["party-1"]._walk.batch(1)[0]
    slope = -SIGNS[row] / (1 + np.exp(SIGNS[row] * w * x[row]))
    mean = np.mean(-SIGNS / 2 * x)
    v = (slope - -SIGNS[row] / 2) * x[row] + mean + 0.1 * w
    estimator = parties.steps_of(0, 2)
    assert estimator.w[0] == pytest.approx(w - 0.5 * v, rel=1e-8)
    assert estimator.state.reference[row] == pytest.approx(slope, rel=1e-8)
    assert estimator.state.mean[0] == pytest.approx(np.mean(estimator.state.reference * x), rel=1e-8)


def test_svrg_rests_for_its_snapshot_and_aggregates_it_once():
    parties = make(AfSvrgOptions(l2=0.1), batch=1, rate=0.5)
    parties.begin(0, 1, 2)
    parties.steps_of(0, 3)
    for name in parties.names:
        parties.queue.append((name, Received("server", Hold(1))))
    parties.settle()
    assert sorted(name for name, message in parties.told if message == Held(1)) == parties.names
    resting = [parties.roles[name].estimator.w for name in parties.names]
    before = len(parties.sent)
    parties.tell("party-2", Received("server", Take(1)))
    parties.settle(60)
    sent = [message for _, _, message in parties.sent[before:]]
    assert sum(isinstance(message, Ask) and message.whole for message in sent) == 2, "one aggregation"
    assert sum(isinstance(message, Totals) for message in sent) == 2
    assert {name for name, message in parties.told if message == Taken(1)} == set(parties.names)
    theta = sum(np.array(x) * w[0] for x, w in zip(X, resting, strict=True))
    slopes = -SIGNS / (1 + np.exp(SIGNS * theta))
    for name, x in zip(parties.names, X, strict=True):
        estimator = parties.roles[name].estimator
        np.testing.assert_allclose(estimator.state.reference, slopes, rtol=1e-7)
        np.testing.assert_allclose(estimator.state.mean[0], np.mean(slopes * np.array(x)), rtol=1e-7)


def test_a_snapshot_has_the_patience_of_as_many_batches_as_it_has():
    parties = make(AfSvrgOptions(patience_s=3.0), batch=1)
    parties.begin(0, 1, 2)
    parties.steps_of(0, 1)
    for name in parties.names:
        parties.queue.append((name, Received("server", Hold(1))))
    parties.settle()
    parties.timers = {}
    parties.lost = lambda sender, to, message: True
    parties.tell("party-2", Received("server", Take(1)))
    parties.settle()
    (((name, timer), due),) = parties.timers.items()
    assert due == 3_000_000_000
    parties.tell(name, TimerFired(timer, due), due)
    assert [message.given_up for _, message in parties.told if isinstance(message, Missing)] == [False]
    assert not parties.roles[name].state.abandoned
    assert list(parties.timers.values()) == [2 * 3_000_000_000], "of two rows"
    parties.tell(name, TimerFired(timer, 2 * due), 2 * due)
    assert [message.given_up for _, message in parties.told if isinstance(message, Missing)] == [False, True]
    assert parties.roles[name].state.abandoned == 1


def test_what_cannot_be_completed_is_abandoned_and_the_rows_are_others():
    parties = make(batch=1)
    parties.lost = lambda sender, to, message: sender == "party-3" and isinstance(message, Masks)
    parties.begin(0)
    parties.settle()
    role = parties.roles["party-1"]
    assert role.estimator.steps == 0 and len(role.state.own) == 1
    (first, *_), before = parties.of(Ask), role.estimator.w
    (_, timer), *_ = parties.timers
    parties.tell("party-1", TimerFired(timer, 0))
    assert role.state.abandoned == 1 and parties.of(Abandon)
    parties.lost = lambda sender, to, message: False
    parties.steps_of(0, 1)
    later = parties.of(Ask)[-1]
    assert later[2].nonce != first[2].nonce and later[2].rows.tolist() != first[2].rows.tolist()
    assert role.estimator.steps == 1 and (role.estimator.w != before).any()
    parties.settle(50)
    assert all(len(other.sums.sums) <= 2 for other in parties.roles.values()), "the other parties forget it, too"


def test_a_lost_party_ends_what_it_had_a_share_in():
    parties = Parties(AfOptions(ahead=0), [*X, [1.0, 1.0]], Y, batch=1)
    parties.lost = lambda sender, to, message: "party-4" in (sender, to)
    parties.begin(0)
    parties.settle()
    role = parties.roles["party-1"]
    assert role.estimator.steps == 0
    for name in parties.names[:3]:
        parties.queue.append((name, Received("server", Members([0, 1, 2]))))
    parties.steps_of(0, 2)
    first, *_, last = parties.of(Ask)
    assert first[2].members == [0, 1, 2, 3] and last[2].members == [0, 1, 2]
    assert role.state.abandoned == 1


def test_a_round_is_not_repeated_without_the_lost_party():
    parties = Parties(SynOptions(), [*X, [1.0, 1.0]], Y, batch=1)
    parties.begin(0, 1, 2, 3)
    parties.settle()
    parties.lost = lambda sender, to, message: "party-4" in (sender, to)
    for number, members in ((2, [0, 1, 2, 3]), (3, [0, 1, 2])):
        for name in parties.names[:3]:
            parties.tell(name, Received("server", Members(members)))
            parties.tell(name, Received("server", Round(number, 0)))
        parties.settle()
    first, *_, last = (message.rows.tolist() for _, _, message in parties.of(Ask))
    assert len(parties.of(Ask)) == 5 and first != last
    assert [role.estimator.steps for role in parties.roles.values()] == [1, 1, 1, 0]


def test_with_two_left_no_party_asks():
    parties = make(batch=1)
    parties.begin(0)
    parties.steps_of(0, 1)
    parties.tell("party-1", Received("server", Members([0, 1])))
    parties.settle()
    asked = len(parties.of(Ask))
    steps = parties.roles["party-1"].estimator.steps
    assert not parties.roles["party-1"].state.own
    parties.tell("party-1", Received("server", Members([0, 1, 2])))
    parties.steps_of(0, steps + 1)
    assert len(parties.of(Ask)) > asked


def test_a_restarted_party_drops_everything_and_says_hello():
    parties = make(batch=1)
    parties.begin(0, 1)
    parties.steps_of(0, 2)
    w = parties.roles["party-1"].estimator.w
    parties.tell("party-1", PeerJoined("server", reset=True))
    role = parties.roles["party-1"]
    assert (
        not role.state.own
        and not role.state.ready
        and not role.state.lane
        and not role.state.begun
        and not role.sums.sums
    )
    assert (role.estimator.w == w).all() and type(parties.told[-1][1]).__name__ == "Hello"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (Ask(7, [0, 1], False, np.zeros(1, np.int32)), "terms of single parties"),
        (Ask(7, [1, 2], False, np.zeros(1, np.int32)), "a sum over parties"),
        (Ask(7, [0, 1, 9], False, np.zeros(1, np.int32)), "terms of single parties"),
        (Ask(7, [0, 1, 2], False, np.array([5], np.int32)), "rows that do not exist"),
        (Masked(1, 7, b"", 0, np.zeros(1)), "an impossible sum"),
        (Masked(9, 7, b"", 0, np.zeros(1, np.uint64)), "an impossible sum"),
        (Totals(0, 1, np.zeros(2)), "margins"),
        (Hold(1), "does not expect a Hold"),
    ],
)
def test_what_a_party_may_not_say_changes_nothing(message, cause):
    parties = make()
    role = parties.roles["party-1"]
    before = repr(role.save())
    with pytest.raises(RemoteProtocolError, match=f"party-2: .*{cause}"):
        role.handle(Received("party-2", message), 0)
    assert repr(role.save()) == before


def test_a_sparse_block_steps_like_a_dense_one():
    rows = np.random.default_rng(0)
    x = [rows.standard_normal((20, 5)) * (rows.random((20, 5)) < 0.4) for _ in range(3)]
    y = rows.integers(0, 2, 20)
    found = []
    for blocks in (x, [sparse.csr_matrix(block) for block in x]):
        parties = Parties(AsyOptions(ahead=0), blocks, y, batch=5)
        parties.begin(0)
        found.append(parties.steps_of(0, 6).w)
        assert sparse.issparse(parties.roles["party-1"]._block.x) == (blocks is not x)
    np.testing.assert_allclose(*found, rtol=1e-9)


# The coordinator.


def coordinator(options=None, labels=("a", "a", "a")):
    """A coordinator that has heard hello from every party, and its effects then."""
    (setup, *_) = setups(options or AfOptions(ahead=0), X, Y)
    empty = np.zeros(0)
    made = LinearCoordinator(
        ServerSetup(setup.options, setup.training, setup.names, (1,) * 3, "none", "sum", BINARY, empty, empty)
    )
    made.handle(Started(b""), 0)
    effects = []
    for name, digest in zip(setup.names, labels, strict=True):
        made.handle(PeerJoined(name), 0)
        effects = made.handle(Received(name, Hello(digest * 64, 2, 1, 4)), 0)
    return made, effects


def messages(effects):
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


def begun(options=None):
    made, effects = coordinator(options)
    *_, (judge, question) = messages(effects)  # the coordinator tells all parties, the judge last
    answer = Judged(question.number, 0.5, {"accuracy": 0.5})
    return made, messages(made.handle(Received(judge, answer), 0))


def test_all_parties_begin_after_the_first_evaluation():
    _, told = begun()
    assert told == [(f"party-{m}", BeginTraining(2.0, [0, 1, 2])) for m in (1, 2, 3)]


@pytest.mark.parametrize(
    ("labels", "odd", "cause"),
    [
        (("a", "b", "a"), ["party-2"], "party-2 holds different labels from the rest"),
        (
            ("a", "b", "c"),
            ["party-1", "party-2", "party-3"],
            "party-1, party-2, party-3 hold different labels from each",
        ),
    ],
)
def test_parties_whose_labels_differ_are_told_and_waited_for(labels, odd, cause):
    made, effects = coordinator(labels=labels)
    told = messages(effects)
    assert [name for name, _ in told] == odd and all(message.cause.startswith(cause) for _, message in told)
    assert made.waits_for() == odd and made.summary()["note"].startswith(cause) and not made.state.begun


def test_labels_that_were_mended_are_welcome():
    made, _ = coordinator(labels=("a", "b", "a"))
    told = messages(made.handle(Received("party-2", Hello("a" * 64, 2, 1, 4)), 0))
    assert [type(message).__name__ for _, message in told] == ["Judge"] * 3
    assert made.waits_for() == [] and made.summary()["note"] == ""


def test_a_party_that_comes_back_with_other_labels_is_refused_until_they_are_mended():
    made, _ = begun()
    made.handle(PeerJoined("party-2", reset=True), 0)
    ((name, message),) = messages(made.handle(Received("party-2", Hello("b" * 64, 2, 1, 4)), 0))
    assert name == "party-2" and message.cause.startswith("party-2 holds different labels from the rest")
    told = messages(made.handle(Received("party-2", Hello("a" * 64, 2, 1, 4)), 0))
    assert told[0] == ("party-2", BeginTraining(2.0, [0, 1, 2]))


def test_a_party_stops_over_its_labels_and_says_hello_once_they_are_others():
    role = make().roles["party-1"]
    with pytest.raises(DataError, match="party-1 holds different labels from the rest; then start this party again"):
        role.handle(Received("server", Differs(role._held.digest, "party-1 holds different labels from the rest")), 0)
    ((name, message),) = messages(role.handle(Received("server", Differs("0" * 64, "")), 0))
    assert name == "server" and message.labels_sha256 == role._held.digest


def test_a_loss_is_announced_and_a_return_too():
    made, _ = begun()
    told = messages(made.handle(PeerLost("party-3"), 0))
    assert told == [("party-1", Members([0, 1])), ("party-2", Members([0, 1]))]
    assert made.waits_for() == ["party-3"]
    told = messages(made.handle(PeerJoined("party-3"), 0))
    assert told[0] == ("party-3", BeginTraining(2.0, [0, 1, 2])) and told[1] == ("party-1", Members([0, 1, 2]))


def test_staleness_counts_what_the_others_did_since():
    made, _ = begun()
    for sender, steps, clock in (("party-2", 1, 0), ("party-3", 1, 0), ("party-3", 2, 1), ("party-1", 1, 1)):
        made.handle(Received(sender, Stepped(0, 2, steps, clock, [0, 1, 2])), 0)
    counts = made.summary()["staleness_counts"]["counts"]
    assert counts[:3] == [2, 1, 1], "party-1: three steps of others, of which it knew one"


def test_a_barrier_waits_for_all_and_is_held_again_when_one_is_lost():
    made, _ = begun(AfSvrgOptions(masking="off", snapshot_every=0.3))
    told = messages(made.handle(Received("party-1", Stepped(0, 2, 1, 0, [0, 1, 2])), 0))
    assert told == [(f"party-{m}", Hold(1)) for m in (1, 2, 3)]
    assert not messages(made.handle(Received("party-1", Held(1)), 0))
    assert made.waits_for() == ["party-2", "party-3"]
    told = messages(made.handle(PeerLost("party-3"), 0))
    assert told[-2:] == [("party-1", Hold(2)), ("party-2", Hold(2))]
    made.handle(Received("party-1", Held(2)), 0)
    ((taker, take),) = messages(made.handle(Received("party-2", Held(2)), 0))
    assert take == Take(2) and taker in ("party-1", "party-2")
    for name in ("party-1", "party-2"):
        made.handle(Received(name, Taken(2)), 0)
    assert made.state.phase == "" and made.waits_for() == []


def test_the_coordinator_computes_nothing():
    made, _ = begun()
    assert made.summary()["weights"] == "" and not hasattr(made, "network")
    with pytest.raises(RemoteProtocolError, match="server does not expect a Totals"):
        made.handle(Received("party-1", Totals(0, 1, np.zeros(2))), 0)


# Bad input.


@pytest.mark.parametrize(
    ("options", "parties", "complaint"),
    [
        (AfOptions(), 2, "data.parties = 2: masked sums need at least 3 parties"),
        (AfOptions(l2=-1.0), 3, "protocol.l2 = -1.0: λ must be 0 or more"),
        (AsyOptions(memory=0), 3, "protocol.memory = 0: m must be 1 or more"),
        (AsyOptions(delta=0.0), 3, "protocol.delta"),
        (AfOptions(fan_out=1), 3, "protocol.fan_out"),
        (AfOptions(fraction_bits=63), 3, "protocol.fraction_bits"),
        (AfOptions(patience_s=0.0), 3, "protocol.patience_s"),
        (AfOptions(ahead=-1), 3, "protocol.ahead"),
        (SynOptions(memory=-2), 3, "protocol.memory"),
        (AsySvrgOptions(snapshot_every=0.0), 3, "protocol.snapshot_every"),
    ],
)
def test_options_that_cannot_work(options, parties, complaint):
    with pytest.raises(ConfigError, match=complaint):
        options.check(parties)


def test_in_the_clear_one_party_will_do():
    AfOptions(masking="off").check(1)
    parties = Parties(AfOptions(masking="off"), X[:1], Y)
    parties.begin(0)
    parties.steps_of(0, 3)
    assert not parties.sent


def test_columns_of_zeros_are_refused():
    with pytest.raises(DataError, match="party-2: all its columns are zero"):
        Parties(AfOptions(), [X[0], [0.0, 0.0], X[2]], Y)


def test_values_that_do_not_fit_are_refused_with_the_bound():
    with pytest.raises(ConfigError, match=r"protocol.fraction_bits = 60: values up to .* beyond 2\.67; use at most"):
        make(AfOptions(fraction_bits=60))


@pytest.mark.parametrize(("y", "found"), [([1, 2], "1.0, 2.0"), ([0, 5], "0.0, 5.0")])
def test_labels_of_no_two_classes(y, found):
    with pytest.raises(DataError, match=f"party-1: labels must be ±1 or 0–1 .*{found}"):
        Parties(AfOptions(), X, y)


def test_losses_want_their_task():
    with pytest.raises(ConfigError, match="protocol.loss = 'logistic': needs labels of two classes .* have 3 classes"):
        Parties(AfOptions(), X, Y, task=Task("multiclass", ("a", "b", "c")))
    with pytest.raises(ConfigError, match="protocol.loss = 'logistic': needs labels of two classes; .* 'ridge'"):
        Parties(AfOptions(loss="logistic"), X, Y, task=Task("regression", ()))
    with pytest.raises(ConfigError, match="protocol.loss = 'ridge': needs a number as the label"):
        Parties(AfOptions(loss="ridge"), X, Y)
