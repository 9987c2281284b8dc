"""Warm-up, further rows, pauses, lost parties: what the options of [protocol] do."""

import numpy as np
import pytest

from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest
from colonnade.algorithms.vafl.walker import FORWARD_SHARE
from colonnade.protocol.events import PeerLost, Received, Send, Started, TimerFired, Work


def tables(name="vafl", train=(), clock=(), **protocol):
    return {
        "protocol": {"name": name, **protocol},
        "model": {"party": "linear", "embedding": 4, "server": "linear"},
        "clock": {"compute": {"mean_s": 0.01}, "network": {"latency_s": 0.001}, "lost_after_s": 0.05, **dict(clock)},
        "train": {"updates": 60, "batch_size": 64, "learning_rate": 0.1, "eval_every": 20, **dict(train)},
    }


def uploads(run, sender=None):
    """Embeddings as they reached the server."""
    return [event.message for _, role, event in run.events
            if role == "server" and isinstance(event, Received) and isinstance(event.message, Embeddings)
            and sender in (None, event.sender)]  # fmt: skip


# --- the table's start


def test_warm_up_sends_every_row_exactly_once_before_the_first_step(simulate, monkeypatch):
    monkeypatch.setattr("colonnade.algorithms.vafl.table_walker.rows_per_message", lambda width: 500)  # several pieces
    run = simulate(tables())
    for name in ("party-1", "party-4"):
        messages = uploads(run, name)
        first_batch = next(place for place, message in enumerate(messages) if message.batch)
        warm = messages[:first_batch]
        assert [len(message.rows) for message in warm] == [500, 500, 438]
        assert np.concatenate([message.rows for message in warm]).tolist() == list(range(1438))
        assert all(message.batch for message in messages[first_batch:])


def test_warm_up_is_charged_as_forward_passes(resolve):
    party = resolve(tables()).roles()[1]
    (work,) = party.handle(Started(b""), 0)
    assert work.amount == pytest.approx(FORWARD_SHARE * 1438 / 64)


def test_zeros_send_nothing_but_batches(simulate):
    assert all(message.batch == len(message.rows) for message in uploads(simulate(tables(table="zeros"))))


# --- batches


def test_own_batches_differ_and_shared_ones_do_not(resolve):
    def first_rows(**protocol):
        roles = resolve(tables(table="zeros", **protocol)).roles()[1:]
        for role in roles:
            role.handle(Started(b""), 0)
        return [role.state.rows.tolist() for role in roles]

    own, shared = first_rows(), first_rows(batches="shared")
    assert own[0] != own[1] and shared[0] == shared[1] == shared[3]


# --- further rows (Alg. 1 †)


@pytest.mark.parametrize("batches", ["own", "shared"])
def test_extra_rows_which_and_at_what_price(batches, resolve):
    party = resolve(tables(table="zeros", batches=batches, extra_rows=1.5)).roles()[1]
    (work,) = party.handle(Started(b""), 0)
    (sent,) = party.handle(_done(party, work), 0)
    message = sent.message
    extra = message.rows[message.batch :]
    assert message.batch == 64 and len(extra) == len(set(extra.tolist())) == 96
    assert len(message.values) == 160
    assert work.amount == pytest.approx(1 + FORWARD_SHARE * 96 / 64), "a forward pass is half of a step"
    np.testing.assert_allclose(message.values, party.network.read(party.x[message.rows]), rtol=1e-5, atol=1e-6)
    if batches == "shared":  # the batches that the others use next
        np.testing.assert_array_equal(extra, np.concatenate([party.walk.batch(1), party.walk.batch(2)[:32]]))


def test_own_extra_rows_come_to_all_rows_in_a_pass(simulate):
    run = simulate(tables(table="zeros", extra_rows=1.0, train={"updates": 120}))
    messages = uploads(run, "party-1")[:23]  # 1438 rows in batches of 64
    further = np.concatenate([message.rows[message.batch :] for message in messages])
    assert set(further.tolist()) == set(range(1438))


def _done(role, work):
    from colonnade.protocol.events import WorkDone

    return WorkDone(work.token, role.compute(work.job))


def test_extra_rows_cost_bytes_and_reduce_staleness(simulate):
    plain, ahead = simulate(tables(table="zeros")), simulate(tables(table="zeros", extra_rows=2))
    up_plain, up_ahead = plain.simulator.traffic.bytes_up, ahead.simulator.traffic.bytes_up
    per_upload = 2 * 64 * (4 * 4 + 4)  # two batches of four float32 and an int32
    count = ahead.simulator.traffic.by_kind["Embeddings"][0]
    assert plain.simulator.traffic.by_kind["Embeddings"][0] == pytest.approx(count, abs=4)
    assert up_ahead - up_plain == pytest.approx(per_upload * count, rel=0.1)
    assert ahead.server.staleness.summary()["mean"] < plain.server.staleness.summary()["mean"]


def test_extra_rows_are_not_counted_as_processed(simulate):
    run = simulate(tables(table="zeros", extra_rows=2))
    assert run.server.progress.rows == sum(message.batch for message in uploads(run)[:60])


# --- pauses


def test_pauses_are_exponential_with_the_given_mean(simulate):
    run = simulate(tables(pause_s=[0.0, 0.0, 0.0, 0.5], train={"updates": 400}))
    fired = [time for time, role, event in run.events if isinstance(event, TimerFired)]
    assert fired and {role for _, role, event in run.events if isinstance(event, TimerFired)} == {"party-4"}
    steps = [party.state.step for party in run.parties]
    assert steps[3] < min(steps[:3]) / 4


def test_pause_is_drawn_from_the_partys_own_stream(resolve):
    def pauses(seed):
        party = resolve(tables(table="zeros", pause_s=2.0, train={"seed": seed})).roles()[1]
        for _ in range(400):
            party.pause()
        return [timer.at for timer in party._turn.effects]

    one = pauses(0)
    assert one == pauses(0) and one != pauses(1)
    assert np.mean(one) / 1e9 == pytest.approx(2.0, rel=0.15)
    assert np.std(one) / 1e9 == pytest.approx(2.0, rel=0.25)


# --- lost parties


GONE = {"faults": [{"party": "party-2", "kind": "crash", "at_s": 0.2}]}
AWAY = {"faults": [{"party": "party-2", "kind": "offline", "at_s": 0.2, "until_s": 1.2}]}


def steps_at(run, since_s, until_s):
    work = [time for time, role, event in run.events if role == "server" and type(event).__name__ == "WorkDone"]
    return sum(since_s * 1e9 < time < until_s * 1e9 for time in work)


@pytest.mark.parametrize("name", ["vafl", "t-sync"])
def test_continue_goes_on_without_a_lost_party(name, simulate):
    run = simulate(tables(name, clock=GONE, train={"updates": 200}))
    assert run.status == "finished" and run.server.k == 200
    assert run.records[-1].missing == ["party-2"] and run.records[0].missing == []
    assert any(isinstance(event, PeerLost) and event.peer == "party-2" for _, _, event in run.events)


@pytest.mark.parametrize(("name", "protocol"), [("sync", {}), ("t-sync", {"t": 4, "on_lost": "wait"})])
def test_wait_stands_still_until_the_party_is_back(name, protocol, simulate):
    run = simulate(tables(name, clock=AWAY, train={"updates": 100}, **protocol))
    assert run.status == "finished" and run.server.k == 100
    assert steps_at(run, 0.3, 1.2) == 0 < steps_at(run, 1.2, 2.0)


@pytest.mark.parametrize(("name", "protocol"), [("sync", {}), ("t-sync", {"t": 4, "on_lost": "wait"})])
def test_waiting_without_end_names_the_missing_parties(name, protocol, simulate):
    run = simulate(tables(name, clock=GONE, train={"updates": 100}, **protocol))
    assert run.status == "stalled"
    assert run.server.summary()["waits_for"] == ["party-2"]


def test_t_larger_than_those_alive_takes_all_of_them(simulate):
    faults = [{"party": f"party-{m}", "kind": "crash", "at_s": 0.2} for m in (2, 3)]
    run = simulate(tables("t-sync", t=3, clock={"faults": faults}, train={"updates": 150}))
    assert run.status == "finished" and run.server.k == 150
    last = [party.state.step for party in run.parties]
    assert last[0] > 3 * last[1] and abs(last[0] - last[3]) <= 1


def test_a_party_that_comes_late_is_not_awaited_and_then_takes_part(simulate):
    faults = [{"party": "party-3", "kind": "late", "at_s": 0.5}]
    run = simulate(tables(clock={"faults": faults}, train={"updates": 300}))
    assert run.records[0].missing == ["party-3"] and run.records[-1].missing == []
    assert run.parties[2].state.step > 0


def test_an_answer_that_comes_after_its_sender_was_given_up_starts_nothing(resolve):
    """The party is lost after a request for rows; its answer arrives long after the step."""
    setting = resolve(tables("vafl", table="zeros", max_delay=1))
    server, *parties = setting.roles()
    _meet(server, parties)
    for round_ in range(4):  # until party-2's rows of the batch are too old
        effects = _upload(server, parties[0], round_)
        asked = {e.to: e.message for e in effects if isinstance(e, Send) and isinstance(e.message, FreshRequest)}
        if asked:
            break
        _step(server, effects)
    assert set(asked) == {"party-2", "party-3", "party-4"}
    effects = [effect for name in asked for effect in server.handle(PeerLost(name), 0)]
    _step(server, effects)
    late = asked["party-2"]
    values = np.zeros((len(late.rows), 4), np.float32)
    answer = Embeddings(0, 0, late.rows, values, request=late.request)
    assert server.handle(Received("party-2", answer), 0) == []
    server.validate()
    assert not server.state.working


def _meet(server, parties):
    from colonnade.protocol.events import PeerJoined

    server.handle(Started(b""), 0)
    for party in parties:
        server.handle(PeerJoined(party.name), 0)


def _upload(server, party, step):
    rows = party.walk.batch(step)
    message = Embeddings(step, len(rows), rows, np.zeros((len(rows), 4), np.float32))
    return server.handle(Received(party.name, message), 0)


def _step(server, effects):
    (work,) = [effect for effect in effects if isinstance(effect, Work) and effect.kind == "step"]
    return server.handle(_done(server, work), 0)
