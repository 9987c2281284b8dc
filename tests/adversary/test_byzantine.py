"""One Byzantine member in small federations of every method: the honest members survive whatever the codec accepts.

benchmarks/adversary.py runs the same cases in far larger numbers. `--replay METHOD:SEED` shows a case.
"""

import pytest
import torch

from colonnade.testing.cases import METHODS_WITH_PARTIES, case, describe, sweep_case, variants_of

CASES = 8  # of each method
SHARE = 0.01  # of a sweep's messages


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", METHODS_WITH_PARTIES)
def test_honest_members_survive_a_liar(name):
    outcomes = []
    for seed in range(CASES):
        outcome = case(name, seed)
        assert not outcome.fault, f"{name}:{seed} ({describe(name, seed)}) {outcome.fault}: {outcome.what}"
        outcomes.append(outcome)
    assert {outcome.end for outcome in outcomes} <= {"finished", "ended", "waits"}
    assert any(outcome.refused for outcome in outcomes)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("afsaga", 37),  # its part of the last evaluation
        ("afsaga", 894),  # other members for each party: one moved again and again while it made a term
        ("afsgd", 198),  # a term over former members was an obstacle for ever
        ("afsvrg", 124),  # jobs that never end, by the server's word
        ("afsvrg", 1098),  # silence: it was given up, and the others got no time to go on
        ("asysqn-sgd", 1074),  # a party declines the last evaluation, and no sum is announced any more
        ("asysqn-svrg", 31),  # a second attempt at a late sum made the honest initiator a suspect
        ("synsqn-saga", 37),  # its part of a round's sum
        ("synsqn-saga", 63),  # false numbers
        ("synsqn-sgd", 38),  # a round's result, for one party
        ("synsqn-svrg", 179),
        ("synsqn-svrg", 519),  # a round's result twice, the second time at a barrier
        ("synsqn-svrg", 3460),  # false numbers, and no Hello since: the error did not name it
    ],
)
def test_honest_members_survive_a_liar_among_parties_that_sum(name, seed):
    survive(name, seed)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("fedvs", 70),  # a party shares its data again after a sum was ordered
        ("fedvs", 77),  # the server sends two parties different orders
        ("fedvs", 102),  # shares before any exchange
        ("fedvs", 295),  # a party spoils attempt after attempt, and the deadline doubles each time
        ("fedvs", 904),  # the server asks for a batch far ahead, and every later sum was compared with it for seconds
        ("fedvs", 940),  # a party has another one left out, and then keeps its shares to itself
        ("fedvs", 1758),  # the server lets a party lack its own model, so that it asked itself
        ("fedvs", 2405),  # a party promises an answer in every attempt, and sends none
        ("fedvs", 2631),  # a party names a blinding that the options do not have
        ("fedvs", 2712),  # a party shares two versions of its model, and does not answer
        ("fedvs", 3536),  # the server orders an exchange over an absurd batch
        ("fedvs", 3576),  # a party holds its blinding back, so that honest ones owe their reports
        ("ignore", 202),  # embeddings of a round far ahead
        ("t-sync", 281),  # an absurd number of a request
        ("wait", 128),  # a gradient of update -2^63: the rate of its step was divided by zero
        ("wait-dp", 336),  # the server evaluates before the parties have started
    ],
)
def test_honest_members_survive_this_lie(name, seed):
    survive(name, seed)


def survive(name, seed):
    outcome = case(name, seed)
    assert not outcome.fault, f"{name}:{seed} ({describe(name, seed)}) {outcome.fault}: {outcome.what}"


@pytest.mark.parametrize("name", METHODS_WITH_PARTIES)
def test_no_field_of_a_message_was_forgotten(name):
    swept = sweep_case(name, len(name) % len(variants_of(name)), share=SHARE)
    assert not swept.findings, f"{len(swept.findings)} findings, e.g. {swept.findings[0]}"
    assert 0 < swept.refused < swept.messages


def test_a_case_repeats_exactly():
    first, second = case("t-sync", 3), case("t-sync", 3)
    assert first == second
