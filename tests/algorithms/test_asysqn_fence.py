"""No combination of sums tells one party's margins: the same rows at the same weights have one set of parties.

The invariant is asserted from records of what parties contributed and obtained, not from the fence's own state.
"""

import itertools
import random
from collections import defaultdict, deque

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.asysqn.aggregation import Aggregations, place_of
from colonnade.algorithms.asysqn.messages import (
    Ask,
    Declined,
    Hello,
    Judge,
    Judged,
    Margins,
    MarginsMade,
    Masked,
    Masks,
    Members,
    Step,
    Stepped,
)
from colonnade.algorithms.asysqn.party import Batch, Party
from colonnade.algorithms.evaluation import Scores
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import (
    CancelTimer,
    CancelWork,
    Emit,
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

METHODS = ["asysqn-sgd", "asysqn-svrg", "asysqn-saga", "afsgd", "afsvrg", "afsaga",
           "synsqn-sgd", "synsqn-svrg", "synsqn-saga"]  # fmt: skip
PARTIES = 5
DRAWN = np.random.default_rng(0)
X = DRAWN.standard_normal((48, PARTIES * 2)).astype(np.float32)
Y = (X.sum(1) + 0.3 * DRAWN.standard_normal(48) > 0).astype(np.int64)


def setting_of(protocol, parties=PARTIES, **tables):
    data = colonnade.split(colonnade.from_arrays(X, Y), parties=parties)
    train = {"batch_size": 9, "updates": 40, "eval_every": 5, "learning_rate": 0.05} | tables.pop("train", {})
    return federation(from_dict({"protocol": protocol, "train": train, **tables}), data)


class Records:
    """What every party contributed to every sum, and which party obtained its total."""

    def __init__(self, monkeypatch):
        self.asked, self.terms, self.totals = {}, defaultdict(dict), {}
        weights, records = {}, self
        margins, contributed = Party.handlers.jobs[Margins][0], Party.handlers.results[MarginsMade][0]
        opened, taken = Aggregations.open, Aggregations.take_total

        def record_margins(party, job):
            made = margins(party, job)
            weights[party.name, made.nonce] = party.estimator.w.tobytes() if party.estimator.w.any() else None
            return made

        def record_contributed(party, token, made):
            initiator, nonce, opens = party.state.asides[token]
            if opens is None or opens.what != "snapshot":  # only its name
                own = weights[party.name, made.nonce]
                records.terms[initiator, nonce if opens is None else made.nonce][party.index] = own
            return contributed(party, token, made)

        def record_open(sums, initiator, ask, *rest):
            tests = ask.tests
            rows = {"tests"} if tests else range(999) if ask.whole else ask.rows.tolist()
            records.asked[initiator, ask.nonce] = tests, frozenset(rows), tuple(ask.members)
            return opened(sums, initiator, ask, *rest)

        def record_total(sums, nonce):
            total = taken(sums, nonce)
            if total is not None:
                records.totals[sums._index, nonce] = total.theta
            return total

        monkeypatch.setitem(Party.handlers.jobs, Margins, (record_margins, False))
        monkeypatch.setitem(Party.handlers.results, MarginsMade, (record_contributed, None))
        monkeypatch.setattr(Aggregations, "open", record_open)
        monkeypatch.setattr(Aggregations, "take_total", record_total)

    def check(self):
        """Totals over different parties with a common row: each party in both had different weights, or none at all."""
        over = defaultdict(list)
        for key in self.totals:
            tests, rows, members = self.asked[key]
            over[tests, members].append((rows, self.terms[key]))
        pairs = 0
        for (tests, one), (others, two) in itertools.combinations(over, 2):
            if tests != others:
                continue
            for (rows, terms), (more, later) in itertools.product(over[tests, one], over[others, two]):
                if rows & more:
                    pairs += 1
                    for party in set(one) & set(two):
                        assert terms[party] is None or terms[party] != later[party], (one, two, party, tests)
        self.totals.clear()
        return pairs


@pytest.fixture
def records(monkeypatch):
    return Records(monkeypatch)


class World:
    """A coordinator and parties that join and leave, with messages in any order that their conversations allow."""

    def __init__(self, setting, seed):
        self.draw, self.codec = random.Random(seed), Codec(setting.method.payloads)
        server, *parties = setting.roles()
        self.names = [party.name for party in parties]
        self.roles = {role.name: role for role in (server, *parties)}
        self.queues = {(a, b): deque() for a in self.roles for b in self.roles if a != b}
        self.jobs, self.timers = {}, {}
        self.away, self.now, self.finished, self.records = set(), 0, "", []
        for name in self.roles:
            self.tell(name, Started(name.encode()))
        for name in self.names:
            self.tell("server", PeerJoined(name))

    def tell(self, name, event):
        self.now += 1
        effects = self.roles[name].handle(event, self.now)
        self.roles[name].validate()
        for effect in effects:
            match effect:
                case Send(to=to, message=message):
                    self.queues[name, to].append(self.codec.decode(bytes(self.codec.encode(message))))
                case Work(token=token):
                    self.jobs[name, token] = effect
                case CancelWork(token=token):
                    self.jobs.pop((name, token), None)
                case SetTimer(name=timer, at=at):
                    self.timers[name, timer] = at
                case CancelTimer(name=timer):
                    self.timers.pop((name, timer), None)
                case Emit(record=record):
                    self.records.append(record)
                case Finish(reason=reason):
                    self.finished = reason

    def step(self):
        here = [pair for pair, queue in self.queues.items() if queue and not self.away & set(pair)]
        jobs = [key for key in self.jobs if key[0] not in self.away]
        chosen = self.draw.choice(here + jobs) if here or jobs else None
        if chosen in self.jobs:
            work = self.jobs.pop(chosen)
            self.tell(chosen[0], WorkDone(work.token, self.roles[chosen[0]].compute(work.job)))
        elif chosen is not None:
            self.tell(chosen[1], Received(chosen[0], self.queues[chosen].popleft()))
        elif self.away:  # the parties wait for it
            self.come_back(self.draw.choice(sorted(self.away)))
        else:
            key = min(self.timers, key=self.timers.get)
            self.now = max(self.now, self.timers.pop(key))
            self.tell(key[0], TimerFired(key[1], self.now))

    def come_or_go(self):
        name = self.draw.choice(self.names)
        if name in self.away:
            self.come_back(name)
        elif len(self.away) < len(self.names) - 3:
            self.away.add(name)
            self.tell("server", PeerLost(name))

    def come_back(self, name):
        """The role keeps its state; its process may have been killed and have read its checkpoint and journal again."""
        self.away.discard(name)
        if self.draw.random() < 0.5:
            role = self.roles[name]
            role.load(state.unpack(state.pack(role.save())))
            role.handle(Resumed(name.encode()), self.now)
        self.tell("server", PeerJoined(name))

    def run(self, changes, every=1, most=60_000):
        for events in range(most):
            if self.finished:
                return self
            if events % every == every - 1 and events < changes * every:
                self.come_or_go()
            elif events == changes * every:
                for name in list(self.away):
                    self.come_back(name)
            else:
                self.step()
        raise AssertionError("no end")


@pytest.mark.parametrize("method", METHODS)
def test_parties_come_and_go_and_no_two_sums_tell_one_apart(method, records):
    ahead = {} if method.startswith("syn") else {"ahead": 2}
    often = {"snapshot_every": 0.3} if method.endswith("svrg") else {}
    pairs = moves = 0
    for seed, batch in enumerate((9, 99)):  # the second: every batch is all rows
        world = World(setting_of({"name": method, **ahead, **often}, train={"batch_size": batch}), seed).run(30, 60)
        assert world.finished == "done" and world.roles["server"].k >= 40
        assert sum(np.isfinite(record.loss) for record in world.records) >= 2
        pairs += records.check()
        moves += sum(world.roles[name].state.moves for name in world.names)
    assert pairs > 10 and moves, "else it would show nothing"


@pytest.mark.parametrize("method", METHODS)
def test_the_same_in_a_simulation_with_losses(method, records, simulate):
    draw = random.Random(method)
    faults = []
    for party in range(2, PARTIES + 1):
        for at_s in sorted(draw.uniform(0.05, 0.8) for _ in range(2)):
            kind, until_s = draw.choice(["crash", "offline"]), at_s + draw.uniform(0.05, 0.15)
            if not any(f["party"] == f"party-{party}" and f["until_s"] >= at_s for f in faults):
                faults.append({"party": f"party-{party}", "kind": kind, "at_s": at_s, "until_s": until_s})
    clock = {"compute": {"kind": "exponential", "mean_s": 0.005}, "faults": faults, "lost_after_s": 0.004}
    often = {"snapshot_every": 0.3} if method.endswith("svrg") else {}
    data = colonnade.split(colonnade.from_arrays(X, Y), parties=PARTIES)
    train = {"batch_size": 20, "updates": 60, "eval_every": 3, "learning_rate": 0.05}
    run = simulate({"protocol": {"name": method, **often}, "train": train, "clock": clock}, data=data)
    assert run.status == "finished" and np.isfinite(run.records[-1].loss)
    assert records.check() > 10, "else it would show nothing"


def test_a_snapshot_that_a_loss_interrupts_does_not_tell_the_lost_party(records):
    """party-4 is lost when the first totals are there: the next totals are of the others' changed weights."""
    world = World(setting_of({"name": "asysqn-svrg", "snapshot_every": 0.3}, parties=4), 0)
    whole = lambda: [key for key in records.totals if len(records.asked[key][1]) > 100]  # noqa: E731
    while not whole():
        world.step()
    lost = world.roles["party-4"]
    margins = lost._block.margins(lost.estimator.w)
    world.away.add("party-4")
    world.tell("server", PeerLost("party-4"))
    while len(whole()) < 2:
        world.step()
    first, second = (records.totals[key] for key in whole())
    assert [records.asked[key][2] for key in whole()] == [(0, 1, 2, 3), (0, 1, 2)]
    assert np.abs(first - second - margins).max() > 1e-3 < np.abs(margins).max(), "it was exact to 1e-9"
    world.run(0)


# What contributors refuse


class Asked:
    """Three honest parties of four; their messages to each other and to the first party."""

    def __init__(self, **options):
        _, self.first, *self.others = setting_of({"name": "afsgd", "ahead": 0, **options}, parties=4).roles()
        for role in self.others:
            role.handle(Started(role.name.encode()), 0)
            role.handle(Received("server", Members([0, 1, 2, 3])), 0)
            role.estimator.state.w = np.ones(role._block.columns)

    def ask(self, role, ask, sender="party-1"):
        """Every message that follows from a question and from the jobs it starts."""
        sent, effects = [], list(role.handle(Received(sender, ask), 0))
        for effect in effects:
            match effect:
                case Work(token=token, job=job):
                    effects += role.handle(WorkDone(token, role.compute(job)), 0)
                case Send(to=to, message=message):
                    sent.append((to, message))
        role.validate()
        return sent


ROWS = np.arange(3, dtype=np.int32)


def test_an_initiator_does_not_choose_the_members():
    world = Asked()
    for nonce, members in enumerate(([0, 1, 2], [0, 2, 3], [0, 1, 3])):
        for index in members[1:]:
            role = world.others[index - 1]
            assert world.ask(role, Ask(nonce, members, False, ROWS)) == []
            assert world.ask(role, Ask(9 + nonce, members, False, ROWS[:0], tests=True)) == [], "it is not the judge"
    assert all(role.state.held_back == 4 for role in world.others)
    sent = [message for role in world.others for message in world.ask(role, Ask(7, [0, 1, 2, 3], False, ROWS))]
    assert len(sent) >= 3, "those that the coordinator named are answered"


def test_a_question_over_members_that_are_news_is_answered_when_the_news_come():
    world = Asked()
    role = world.others[0]
    assert world.ask(role, Ask(1, [0, 1, 2], False, ROWS)) == []
    effects = role.handle(Received("server", Members([0, 1, 2])), 0)
    assert [type(effect) for effect in effects] == [Work] and not role.state.held


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("tree", "kind"), [(0, Masked), (1, Masks)])
def test_an_initiator_does_not_ask_parties_for_different_rows(tree, kind, early):
    """If one party had different rows in two sums, their difference would be that party's own value."""
    world, everyone = Asked(), (0, 1, 2, 3)
    places = {member: place_of(member, 0, everyone, True, 2)[tree] for member in everyone}
    child = next(m for m in everyone if places[m].parent and not places[m].children)
    parent = world.others[places[child].parent - 1]
    sent = world.ask(world.others[child - 1], Ask(1, [*everyone], False, ROWS + 1))
    part = Received(f"party-{child + 1}", next(message for _, message in sent if type(message) is kind))
    if early:  # before the question
        parent.handle(part, 0)
    world.ask(parent, Ask(1, [*everyone], False, ROWS))
    if not early:  # not refused: the initiator may be the liar, not the child
        assert parent.handle(part, 0) == []
    entry = parent.sums.sums[0, 1]
    assert list(entry.masks if tree else entry.masked) == [parent.index]


def test_the_same_rows_are_contributed_over_other_parties_only_after_a_step():
    world = Asked()
    role = world.others[0]
    assert world.ask(role, Ask(1, [0, 1, 2, 3], False, ROWS)) != []
    role.handle(Received("server", Members([0, 1, 2])), 0)
    assert world.ask(role, Ask(2, [0, 1, 2], False, ROWS[2:])) == []
    assert world.ask(role, Ask(3, [0, 1, 2], False, ROWS + 3)) != [], "other rows"
    saved = state.unpack(state.pack(role.save()))
    role.load(saved)
    assert world.ask(role, Ask(4, [0, 1, 2], True, ROWS[:0])) == [] and len(role.state.held) == 2
    role.fence.moved()
    role.estimator.state.w = role.estimator.w / 2
    effects = role.handle(Received("server", Members([0, 1, 2])), 0)
    assert len([effect for effect in effects if isinstance(effect, Work)]) == 2 and not role.state.held


def test_a_party_does_not_move_in_vain_while_a_term_is_made():
    """The term may be of the weights before or after a move, so its rows stay in the way until its job is done."""
    role = Asked().others[0]
    role.state.begun, role.state.newest = True, Batch(0, np.zeros(9))
    (term,) = role.handle(Received("party-1", Ask(1, [0, 1, 2, 3], False, ROWS)), 0)
    role.handle(Received("server", Members([0, 1, 2])), 0)
    role.handle(Received("party-1", Ask(2, [0, 1, 2], False, ROWS)), 0)
    assert role.state.held and not role.state.moves
    role.handle(WorkDone(term.token, role.compute(term.job)), 0)
    assert role.state.moves == 1
    role.handle(WorkDone(role.state.lane, role.compute(Step(np.arange(9), np.zeros(9)))), 0)
    assert not role.state.held and role.state.moves == 1
    role.validate()


def test_an_evaluation_over_other_parties_with_the_same_weights_is_declined():
    world = Asked()
    role, none = world.others[0], ROWS[:0]
    role.handle(Received("server", Judge(1, 0, [0, 1, 2, 3])), 0)
    assert world.ask(role, Ask(1, [0, 1, 2, 3], False, none, tests=True)) != []
    role.handle(Received("server", Judge(2, 0, [0, 1, 2])), 0)
    assert world.ask(role, Ask(2, [0, 1, 2], False, none, tests=True)) == [("server", Declined(2))]
    declined = [Send("server", Declined(3), evaluation=True)]
    assert role.handle(Received("server", Judge(3, 1, [0, 1, 2])), 0) == declined, "as the judge"
    other = world.ask(role, Ask(4, [0, 1, 2, 3], False, none, tests=True), "party-3")
    assert other == [], "another initiator gets no answer over the former set"


def coordinator(**options):
    """Three parties, at the end of the first evaluation."""
    made, *_ = setting_of({"name": "afsgd", "masking": "off", **options}, parties=3).roles()
    made.handle(Started(b""), 0)
    for name in ("party-1", "party-2", "party-3"):
        made.handle(PeerJoined(name), 0)
        made.handle(Received(name, Hello("a" * 64, made.training.rows, 1, 4)), 0)
    made.handle(Received(made.state.judge, Judged(1, 0.5, {"accuracy": 0.5})), 0)
    return made


def records_of(effects):
    return [effect.record for effect in effects if isinstance(effect, Emit)]


def test_a_declined_evaluation_is_a_row_that_names_the_party():
    made = coordinator()
    made.handle(TimerFired("evaluate", 0), 0)
    assert made.state.judge
    (row,) = records_of(made.handle(Received("party-2", Declined(2)), 0))
    assert np.isnan(row.loss) and row.missing == ["party-2"] and made.state.judge == ""
    assert made.summary()["note"].startswith("evaluations missing: 1")
    assert made.handle(Received("party-3", Declined(2)), 0) == [], "once is enough"


def test_the_last_evaluation_waits_for_a_step_of_the_party_that_declined():
    tested = Scores(0.5, {"accuracy": 0.5})
    made = coordinator()
    made.handle(TimerFired("end", 0), 0)
    assert records_of(made.handle(Received("party-2", Declined(2)), 0)) == [] and made.waits_for() == ["party-2"]
    assert made.handle(Received("party-1", Stepped(0, 9, 1, 0, [0, 1, 2])), 0) == []
    made.handle(Received("party-2", Stepped(0, 9, 1, 0, [0, 1, 2])), 0)
    effects = made.handle(Received(made.state.judge, Judged(3, 0.4, {"accuracy": 0.6}, tested)), 0)
    assert records_of(effects)[0].loss == 0.4 and isinstance(effects[-1], Finish)


@pytest.mark.parametrize("options", [{"on_lost": "wait"}, {"name": "synsqn-sgd"}])
def test_the_last_evaluation_is_missing_where_no_step_will_come(options):
    made = coordinator(**options)
    made.handle(PeerLost("party-3"), 0)
    made.handle(TimerFired("end", 0), 0)
    effects = made.handle(Received("party-2", Declined(made.state.number)), 0)
    (row,) = records_of(effects)
    assert np.isnan(row.loss) and row.missing == ["party-2", "party-3"] and isinstance(effects[-1], Finish)


def test_many_batches_ahead(simulate):
    """More than the 16 aggregations that a party keeps of an initiator."""
    data = colonnade.split(colonnade.from_arrays(X, Y), parties=4)
    train = {"batch_size": 2, "updates": 60, "learning_rate": 0.01}
    clock = {"faults": [{"party": "party-2", "kind": "offline", "at_s": 0.1, "until_s": 0.3}], "lost_after_s": 0.05}
    run = simulate({"protocol": {"name": "afsgd", "ahead": 40}, "train": train, "clock": clock}, data=data)
    assert run.status == "finished" and run.server.k >= 60
