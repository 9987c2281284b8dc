"""FedVS asks R parties and a few more for an answer: as exact as asking all, and not slower when parties are slow."""

import itertools
from collections import Counter

import msgspec
import numpy as np
import pytest

from colonnade.algorithms.fedvs.blinders import rows_to_blind
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.messages import Answer, CodedTerms, CodedTermsMade, Gradient, ShareModels, Sum
from colonnade.algorithms.fedvs.pace import STREAK, Pace
from colonnade.privacy.field import P, matmul, uniform
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import PeerLost, Received

PARTIES, ROUNDS = 8, 10
FIRST = STREAK + 1  # rounds until fewer are asked
MODEL = {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"}


def tables(compute=None, **protocol):
    """K = 1, T = 1, so R = 3: four of eight parties are asked first."""
    train = {"batch_size": 64, "learning_rate": 0.5, "eval_every": 100, "updates": ROUNDS}
    clock = {"compute": compute or {"mean_s": 0.01}}
    return {"protocol": {"name": "fedvs", "K": 1, **protocol}, "model": MODEL, "clock": clock, "train": train}


def weights(run):
    return [role.summary()["weights"] for role in run.roles.values()]


def asked(run):
    """How many parties were asked in each round."""
    orders = [event.message for _, _, event in run.events if isinstance(getattr(event, "message", None), Sum)]
    return [count for _, count in sorted(Counter(one.round for one in orders if not one.testing).items())]


def test_four_of_eight_answer_and_the_weights_are_the_same(simulate, monkeypatch):
    few = simulate(tables(), parties=PARTIES)
    assert asked(few) == [PARTIES] * FIRST + [4] * (ROUNDS - FIRST)
    monkeypatch.setattr(FedvsOptions, "asked", lambda self, parties: parties)
    everyone = simulate(tables(), parties=PARTIES)
    assert asked(everyone) == [PARTIES] * ROUNDS and weights(few) == weights(everyone)


def test_all_are_asked_in_turn(simulate):
    run = simulate(tables(), parties=PARTIES)
    later = Counter(
        role
        for _, role, event in run.events
        if isinstance(getattr(event, "message", None), Sum) and not event.message.testing
        if event.message.round >= FIRST
    )
    assert len(later) == PARTIES and max(later.values()) - min(later.values()) <= 1


@pytest.mark.parametrize("protocol", [{"stale": "refuse"}, {"work": "delays"}, {"K": 3}])
def test_the_papers_round_and_a_code_that_needs_most_answers_ask_all(simulate, protocol):
    run = simulate(tables(**protocol), parties=PARTIES)
    assert asked(run) == [PARTIES] * ROUNDS


def test_with_uneven_speeds_all_are_asked(simulate):
    run = simulate(tables({"kind": "exponential", "mean_s": 0.05}), parties=PARTIES)
    assert asked(run).count(4) <= 2


def test_a_slow_party_is_not_asked_first(simulate):
    run = simulate(tables([{"mean_s": 0.2}, *[{"mean_s": 0.01}] * 7]), parties=PARTIES)
    orders = [
        event.message for _, role, event in run.events if isinstance(getattr(event, "message", None), ShareModels)
    ]
    first = {tuple(order.evaluators) for order in orders if order.evaluators}
    assert first and not any(0 in own for own in first)


@pytest.fixture
def world(resolve, by_hand):
    """A round in which four of the eight parties are asked, and none has answered."""
    made = by_hand(resolve(tables(spare=1), parties=PARTIES), lambda sender, to, message: False)
    made.pump(until=lambda: made.server.agreement.first and made.server.agreement.chosen)
    assert len(made.server.agreement.chosen) == 5 and made.server.state.doing == "answering"
    return made


def test_late_parties_are_helped_out_by_the_rest(world):
    server, agreement = world.server, world.server.agreement
    chosen, round = list(agreement.chosen), server.state.round
    world.lost = lambda sender, to, message: isinstance(message, Answer) and server.index[sender] in chosen[:3]
    world.pump()
    assert server.state.round == round and len(agreement.answers) == 2
    world.fire("ask the rest").pump(until=lambda: server.state.round > round)
    assert server.state.round == round + 1
    assert not server.agreement.first, "the times were uneven, so all are asked in the next round"


def test_lost_parties_are_replaced_as_soon_as_too_few_are_left(world):
    agreement, names = world.server.agreement, world.server.names
    one, other, *_ = agreement.chosen
    world.tell("server", PeerLost(names[one]))
    assert len(agreement.chosen) == 5, "four are left: R, and the spare one"
    world.tell("server", PeerLost(names[other]))
    assert agreement.chosen == list(range(PARTIES)) and not agreement.unasked()


def test_wrong_answers_are_located_with_those_of_the_rest(world):
    """One spare answer shows a lie. The rest is asked at once, and locates it."""
    server, round = world.server, world.server.state.round
    change = world.over_the_wire

    def lying(message):
        if isinstance(message, Answer) and not told and not message.testing:
            told.append(message)
            return msgspec.structs.replace(message, values=(message.values + np.uint32(1)) % np.uint32(P))
        return change(message)

    told = []
    world.over_the_wire = lying
    world.pump(until=lambda: server.state.round > round)
    assert sum(server.suspicion.wrong.values()) == 1
    assert len(world.heard(Gradient)) == PARTIES * (round + 1)


def test_an_answer_that_was_not_asked_for(world):
    server, agreement = world.server, world.server.agreement
    n = agreement.unasked()[0]
    answer = Answer(*agreement.key, agreement.summed, np.zeros((agreement.places, 4), np.uint32))
    with pytest.raises(RemoteProtocolError, match=f"{server.names[n]}: sends an answer"):
        server.handle(Received(server.names[n], answer), 0)


def test_impossible_evaluators(world):
    party, (round, attempt) = world.parties[0], world.server.agreement.key
    everyone = list(range(PARTIES))
    for evaluators in ([1, 0], [3, 3], [PARTIES], [-1]):
        order = ShareModels(round, attempt + 1, everyone, 64, everyone, 0, evaluators)
        with pytest.raises(RemoteProtocolError, match="an impossible exchange"):
            party.handle(Received("server", order), 0)


def test_a_restarted_server_still_knows_the_pace(world):
    saved = state.unpack(state.pack(world.server.save()))
    before = world.server.pace.save()
    world.server.pace.load(Pace(3, 4).save())
    world.server.load(saved)
    assert world.server.pace.save() == before


def test_a_state_of_a_release_that_asked_all(world):
    saved = world.server.agreement.save()
    for name in ("first", "chosen"):
        del saved[name]
    world.server.agreement.load(saved)
    agreement = world.server.agreement
    assert agreement.asked_for_answers == list(range(PARTIES)) and not agreement.unasked()
    assert len(agreement.outstanding()) == PARTIES


def test_which_parties_are_asked():
    pace, everyone, exchange = Pace(2, 4), range(5), itertools.count()

    def round_of(asked, times, few):
        key = next(exchange), 1
        pace.ask(key, asked, few, 1000)
        for n, took in times.items():
            pace.answered(key, n, 1000 + took)

    assert pace.evaluators(everyone, 3, 0) == []
    for _ in range(STREAK):
        round_of(everyone, {0: 100, 1: 80, 2: 120, 3: 130}, few=False)
    assert pace.evaluators(everyone, 3, 0) == [], "the answers of the last round do not count yet"
    round_of([0, 1, 2], {0: 100, 1: 120, 2: 120}, few=True)
    assert pace.usual == 100 and pace.longest == 200
    assert pace.evaluators(everyone, 3, 0) == [0, 1, 2], "5/4 of the second fastest's 100 are 125; 4 never answered"
    assert pace.evaluators(everyone, 2, 1) == [0, 2] and pace.evaluators([0, 1, 3, 4], 3, 0) == []
    round_of([0, 1, 2], {0: 124, 1: 126, 2: 130}, few=True)
    assert pace.evaluators(everyone, 3, 0) == [0, 1, 2]
    round_of(everyone, {}, few=False)
    assert pace.evaluators(everyone, 2, 0) == [], "126 for two answers is more than 5/4 of the usual 100"
    pace.forget(0)
    assert 0 not in pace.even


# --- products of several parties


def test_a_product_of_several_parties_is_used_as_a_whole_or_not_at_all(resolve):
    party = resolve(tables(), parties=4).roles()[1]
    lasting = party.lasting
    values = uniform(bytes(32), (3, 5, 4))
    lasting.multiplied(CodedTermsMade(7, [0, 1, 2, 3], [10, 11, 12, 13], values[:2], [3, 1]))
    assert lasting._lacking(7, {0: 10, 1: 11, 2: 12, 3: 13}) == {}
    assert lasting._lacking(7, {0: 10, 1: 11, 2: 99, 3: 13}) == {0: 10, 1: 11, 2: 99}, "one of the three is newer"
    assert lasting._lacking(7, {0: 10, 1: 11, 3: 13}) == {0: 10, 1: 11}, "one of the three is not in S"
    assert lasting._lacking(8, {3: 13}) == {3: 13}
    assert np.array_equal(lasting.answer(Sum(0, 1, 7, [0, 1, 2, 3], [0] * 4)).values, added(values[:2]))
    lasting.multiplied(CodedTermsMade(7, [2], [99], values[2:]))
    assert lasting._lacking(7, {0: 10, 1: 11, 2: 99, 3: 13}) == {0: 10, 1: 11}, "the product had the older model"
    assert set(lasting.terms) == {2, 3} and not lasting.together


def added(values):
    return (values.astype(np.uint64).sum(0) % P).astype(np.uint32)


def test_one_product_is_the_sum_of_the_terms(resolve):
    party = resolve(tables(), parties=4).roles()[1]
    x, w = uniform(bytes(32), (6, 9)), uniform(bytes([1]) * 32, (9, 4))
    made = party.compute(CodedTerms(0, [0, 1, 2], [5, 6, 7], x, w, [7, 9], [2, 1]))
    terms = [matmul(x[:, part], w[part]) for part in (slice(0, 3), slice(3, 7), slice(7, 9))]
    assert np.array_equal(made.values[0], added(np.stack(terms[:2]))) and np.array_equal(made.values[1], terms[2])
    assert made.sizes == [2, 1]


# --- what the server and T colluders see, exactly, over a small field

SMALL = 7  # β = 1, 2 and α = 3, 4, 5 are different: K = 1, T = 1, N = R = 3


def at(points, nodes, values):
    """The polynomial through the values at the nodes, at other points, over the small field."""
    found = np.zeros((*np.shape(values[0]), len(points)), np.int64)
    for node, value in zip(nodes, values, strict=True):
        others = [other for other in nodes if other != node]
        for i, x in enumerate(points):
            top, bottom = (int(np.prod([y - other for other in others])) for y in (x, node))
            found[..., i] += value * (top * pow(bottom, -1, SMALL) % SMALL)
    return found % SMALL


def views(secrets, blinders, colluder):
    """How often each view of the server and the colluder occurs, over all masks and blinding, for x·w of one party."""
    x, w = secrets
    alpha = [3, 4, 5]
    masks = np.meshgrid(*[np.arange(SMALL)] * (2 + 2 * len(blinders)), indexing="ij")
    data, model, *free = [mask.ravel() for mask in masks]
    shares_x = at(alpha, [1, 2], [np.full_like(data, x), data])
    shares_w = at(alpha, [1, 2], [np.full_like(model, w), model])
    zero = np.zeros_like(data)
    blinding = [at(alpha, [1, 2, 3], [zero, *free[2 * i : 2 * i + 2]]) for i in range(len(blinders))]
    answers = (shares_x * shares_w + sum(blinding)) % SMALL
    own = [values for n, values in zip(blinders, blinding, strict=True) if n == colluder]  # it knows all of its own
    seen = [
        shares_x[:, [colluder]],
        shares_w[:, [colluder]],
        answers,
        *own,
        *(part[:, [colluder]] for part in blinding),
    ]
    return Counter(map(tuple, np.concatenate(seen, axis=1).tolist()))


@pytest.mark.parametrize("colluder", [0, 1, 2])
def test_exactly_the_sum_is_seen_if_one_more_than_collude_blind(colluder):
    """Two secrets with the same sum give the same views, with the same frequencies; two blind each place."""
    blinders = sorted(n for n in range(3) if 0 in rows_to_blind([0, 1, 2], n, 3, 1))
    assert len(blinders) == 2
    one, other = (views(secrets, blinders, colluder) for secrets in ((2, 3), (4, 5)))  # 6 both times
    assert one == other
    assert one != views((2, 4), blinders, colluder), "another sum is seen"


def test_blinding_by_the_colluder_alone_hides_nothing():
    """The control: with T blinding parties, the same two secrets are told apart."""
    assert views((2, 3), [0], 0) != views((4, 5), [0], 0)
    assert views((2, 3), [1], 0) == views((4, 5), [1], 0), "an honest party's blinding is enough"
