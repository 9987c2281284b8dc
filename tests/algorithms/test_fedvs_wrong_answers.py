"""FedVS with parties whose answers are wrong: noticed with R + 1 answers, located and left out with R + 2."""

import msgspec
import numpy as np
import pytest

from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.messages import Answer, Gradient, ModelShare, Sum
from colonnade.algorithms.remarks import Remark
from colonnade.privacy.field import P
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import PeerLost, Send

MODEL = {"party": "polynomial:1", "embedding": 4, "server": "linear", "aggregate": "mean"}
ROUNDS = 4


def tables(clock=None, **protocol):
    protocol = {"name": "fedvs", "K": 1, "T": 1, **protocol}  # R = 3
    train = {"batch_size": 64, "learning_rate": 0.5, "eval_every": 4, "updates": ROUNDS}
    return {"protocol": protocol, "model": MODEL, "clock": clock or {"compute": {"mean_s": 0.01}}, "train": train}


def replaced(role, change):
    """Pass every message that the role sends through `change`; None: it is not sent."""
    handle = role.handle

    def changed(event, now):
        effects = []
        for effect in handle(event, now):
            if isinstance(effect, Send):
                message = change(effect.to, effect.message)
                effects += [] if message is None else [Send(effect.to, message, effect.evaluation)]
            else:
                effects.append(effect)
        return effects

    role.handle = changed


def lying(*names, testing=True):
    """Parties that add noise to every answer."""
    draw = np.random.default_rng(0)

    def lie(to, message):
        if type(message) is not Answer or (message.testing and not testing):
            return message
        noise = draw.integers(1, 50, message.values.shape, np.uint32)
        return msgspec.structs.replace(message, values=(message.values + noise) % np.uint32(P))

    return lambda role: replaced(role, lie) if role.name in names else None


def silent(*names):
    """Parties whose answers never come."""
    drop = lambda to, message: None if type(message) is Answer else message  # noqa: E731
    return lambda role: replaced(role, drop) if role.name in names else None


def weights(run):
    return [role.summary()["weights"] for role in run.roles.values()]


@pytest.fixture(scope="module")
def calm(simulate):
    """The weights of a run without liars and checks, each made once; the answers of `missing` never come."""
    made = {}

    def get(stale="allow", missing=()):
        if (stale, missing) not in made:
            made[stale, missing] = weights(simulate(tables(stale=stale), parties=5, changed=silent(*missing)))
        return made[stale, missing]

    return get


def told(run):
    return run.server.summary()["method"]


@pytest.mark.parametrize("stale, liar", [("allow", "party-1"), ("refuse", "party-4")])
def test_a_located_wrong_answer_is_left_out_and_the_party_named(simulate, calm, stale, liar):
    """N = R + 2: the weights are those of a run in which the answers of this party never came."""
    run = simulate(tables(spare=2, stale=stale), parties=5, changed=lying(liar))
    assert run.status == "finished" and run.server.k == ROUNDS
    assert weights(run) == calm(stale, (liar,))
    method = told(run)
    assert method["wrong_answers"] == {liar: 3} and method["not_asked_any_more"] == [liar]
    assert method["rounds_in_dispute"] == method["unchecked_rounds"] == 0
    remarks = [(one.party, one.text) for one in run.records if isinstance(one, Remark)]
    assert [party for party, _ in remarks] == [liar] * 4
    assert remarks[0][1] == "wrong answer (1 of 3), left out" and remarks[-1][1] == "is not asked for answers any more"
    (warning,) = run.server.summary()["warnings"]
    assert warning.startswith(f"wrong answers were left out: {liar} (3)")
    assert all(record.loss == record.loss for record in run.records if not isinstance(record, Remark))
    asked = {role for _, role, event in run.events if type(getattr(event, "message", None)) is Sum}
    summed = {tuple(e.message.summed) for _, _, e in run.events if type(getattr(e, "message", None)) is Gradient}
    assert liar in asked and summed == {(0, 1, 2, 3, 4)}, "its own share is still summed"


def test_without_the_check_the_same_lie_ends_in_the_weights(simulate, calm):
    """The control: the server decodes what it gets."""
    run = simulate(tables(), parties=5, changed=lying("party-1", testing=False))
    assert told(run)["wrong_answers"] == {} and weights(run) != calm()


@pytest.mark.parametrize("stale", ["allow", "refuse"])
def test_without_a_liar_the_check_changes_nothing(simulate, calm, stale):
    checked = simulate(tables(stale=stale, spare=2), parties=5)
    assert weights(checked) == calm(stale)
    assert told(checked)["wrong_answers"] == {} and checked.server.summary()["warnings"] == []


def test_one_spare_answer_shows_a_lie_and_the_run_ends_with_the_suspects(simulate):
    """N = R + 1: no fourth answer fits, and none of the four can be told from the others."""
    run = simulate(tables(spare=1), parties=4, changed=lying("party-3"))
    assert run.status == "finished" and run.server.k == 0
    (reason, *_) = run.server.summary()["warnings"]
    assert run.server.progress.ending == reason
    assert reason == (
        "wrong answers in round 0: 4 answers do not fit together, so at least one of party-1, party-2, party-3, "
        "party-4 is wrong; R + 2 = 5 answers locate one wrong answer, which takes 5 parties "
        "(here: 4 parties, K = 1, T = 1)"
    )
    assert told(run)["rounds_in_dispute"] == 3
    assert all(np.isnan(record.loss) for record in run.records), "test rows cannot be decoded either"


def test_a_lie_that_one_spare_answer_shows_is_located_when_another_answer_comes(simulate):
    """N = R + 2, and the round waits for R + 1 at first. The fifth answer is late, not wrong."""
    slow = {"compute": [{"mean_s": 0.01}] * 4 + [{"mean_s": 0.012}]}
    run = simulate(tables(slow, spare=1, stale="refuse"), parties=5, changed=lying("party-2"))
    honest = simulate(tables(slow, stale="refuse"), parties=5, changed=silent("party-2"))
    assert run.status == "finished" and weights(run) == weights(honest)
    assert told(run)["wrong_answers"] == {"party-2": 3} and told(run)["rounds_in_dispute"] == 0


def test_a_party_that_lies_at_times_is_left_out_at_these_times(simulate, calm):
    """Only when it answers for training rows. Twenty wrong answers are allowed here, so the server goes on asking."""
    run = simulate(tables(spare=2, most_wrong=20), parties=5, changed=lying("party-5", testing=False))
    assert told(run)["wrong_answers"] == {"party-5": ROUNDS} and told(run)["not_asked_any_more"] == []
    assert weights(run) == calm()


def test_the_last_answers_that_can_be_checked_stay(simulate):
    """N = R + 2 with most_wrong = 1: one party may be left out, a second one may not, since R + 1 must be left."""
    run = simulate(tables(spare=2, most_wrong=1), parties=5, changed=lying("party-1"))
    assert told(run)["not_asked_any_more"] == ["party-1"] and told(run)["unchecked_rounds"] == 0
    again = simulate(tables(spare=2, most_wrong=1), parties=5, changed=lying("party-1", "party-2"))
    assert again.server.progress.ending.startswith("wrong answers in round 0: 5 answers do not fit")


@pytest.mark.parametrize("stale, slowest_s", [("allow", 0.5), ("refuse", 0.1)])
def test_honest_stragglers_never_look_like_liars(simulate, stale, slowest_s):
    """Speeds differ and change, answers come late, and old shares of one slow party are summed."""
    speeds = [{"kind": "exponential", "mean_s": mean_s} for mean_s in (slowest_s, *[0.01] * 5)]
    uneven = {"compute": speeds, "network": {"latency_s": 0.05}}
    run = simulate(tables(uneven, spare=2, stale=stale), parties=6)
    assert told(run)["wrong_answers"] == {} and told(run)["rounds_in_dispute"] == 0
    assert told(run)["late_answers"] > 0
    assert told(run)["old_shares_summed"] > 0 or stale == "refuse"


def test_spare_answers_that_do_not_come_are_not_waited_for_in_every_round(simulate, calm):
    """One deadline passes for test rows and one for training rows. Then no round waits for the two parties."""
    run = simulate(tables(spare=2, deadline_s=1.0), parties=5, changed=silent("party-1", "party-2"))
    assert 2e9 < run.simulator.now < 3e9
    assert weights(run) == calm() and told(run)["unchecked_rounds"] == ROUNDS
    assert any("rounds could not be checked" in text for text in run.server.summary()["warnings"])


def test_a_lost_party_is_no_spare_one(resolve, by_hand):
    """Two answers are missing, and then one of the two parties is gone: R + 1 answers are all that can come."""
    missing = ("party-4", "party-5")
    world = by_hand(
        resolve(tables(spare=2), parties=5),
        lambda sender, to, message: sender in missing and type(message) is Answer and not message.testing,
    )
    world.pump()
    assert world.server.state.doing == "answering" and world.server.waits_for() == list(missing)
    world.tell("server", PeerLost("party-4"))
    assert world.server.state.doing == "answering"
    world.tell("server", PeerLost("party-5"))
    assert world.server.state.doing == "decoding"


def test_wrong_shares_make_the_answers_of_their_receiver_wrong(simulate, calm):
    """party-1 sends wrong shares to party-2 alone. The sums stay right, but the server takes party-2 for the liar."""

    def wrong_share(to, message):
        if type(message) is not ModelShare or to != "party-2" or not len(message.model):
            return message
        return msgspec.structs.replace(message, model=(message.model + np.uint32(1)) % np.uint32(P))

    change = lambda role: replaced(role, wrong_share) if role.name == "party-1" else None  # noqa: E731
    run = simulate(tables(spare=2), parties=5, changed=change)
    assert told(run)["wrong_answers"] == {"party-2": 3}
    assert weights(run) == calm()


def test_counts_outlast_a_restart(resolve, by_hand):
    setting = resolve(tables(spare=2), parties=5)
    world = by_hand(setting)
    world.server.suspicion.blame([3, 3, 3])
    loaded = setting.roles()[0]
    loaded.load(state.unpack(state.pack(world.server.save())))
    assert loaded.suspicion.wrong == {"party-4": 3} and loaded.suspicion.ignored == [3]


@pytest.mark.parametrize(
    "options, key, words",
    [
        ({"spare": 3}, "spare", "must be 0 to 2: 5 parties give 5 answers, and K = 1, T = 1 need 3 of them"),
        ({"spare": -1}, "spare", "must be 0 to 2"),
        ({"most_wrong": 0}, "most_wrong", "1 or more answers"),
    ],
)
def test_settings(resolve, options, key, words):
    with pytest.raises(ConfigError, match=f"protocol.{key} = .*{words}"):
        resolve(tables(**options), parties=5)


def test_left_out_k_leaves_room_for_spare_answers():
    """N = 14, T = 1: one answer may be late, and `spare` more must be there beside R."""
    codes = [FedvsOptions(spare=spare).code(14) for spare in (0, 1, 2, 4)]
    assert [(code.segments, code.needed) for code in codes] == [(6, 13), (5, 11), (5, 11), (4, 9)]
