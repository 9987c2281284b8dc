"""Rounds of Flex-VFL and related methods in the simulator: their cost, the parties they wait for, and which are equal.

Four parties at 5, 10, 15 and 20 steps in a timeout of 20 s, the server at 20; half of t_comm on each way of a party's
link and nothing at the server's, so that a round trip is t_comm (the digest's time model).
"""

import itertools

import numpy as np
import pytest

from colonnade.algorithms.flex.local import LocalPhase, LocalRule
from colonnade.algorithms.flex.messages import BeginPhase, Late, LocalStepped, Ready
from colonnade.algorithms.flex.pacing import steps_within
from colonnade.algorithms.flex.server import PATIENCE_S
from colonnade.algorithms.vafl.messages import Skip
from colonnade.models import Network
from colonnade.protocol.events import NANOSECONDS, Received, WorkDone

TIMEOUT = 20.0
STEP_S = [4.0, 2.0, 4 / 3, 1.0]
NAMES = [f"party-{m}" for m in (1, 2, 3, 4)]
BOTH = pytest.mark.parametrize("labels", ["server", "shared"])


def tables(name, t_comm=1.0, step_s=STEP_S, server_s=1.0, updates=4, compute=None, clock=None, train=None, **protocol):
    link = {"bandwidth_mbps": float("inf")}
    computes = [{"mean_s": mean_s} for mean_s in step_s] if compute is None else compute
    whole = {"A": 0.01} if name == "adaptive-flex" else {}
    return {
        "protocol": {"name": name} | ({} if name == "p-bcd" else {"timeout_s": TIMEOUT}) | whole | protocol,
        "model": {"party": "linear", "embedding": 3, "server": "linear"},
        "clock": {
            "compute": computes,
            "network": link | {"latency_s": t_comm / 2},
            "server": {"compute": {"mean_s": server_s}, "network": link | {"latency_s": 0.0}},
        } | (clock or {}),
        "train": {"updates": updates, "learning_rate": 0.01, "eval_every": 1000} | (train or {}),
    }  # fmt: skip


def heard(run, role, kind):
    """(seconds, message) of what a role received."""
    return [
        (time / NANOSECONDS, event.message)
        for time, name, event in run.events
        if name == role and isinstance(event, Received) and isinstance(event.message, kind)
    ]


def uploads(run, name):
    """(seconds, message) of a party's uploads, as the server got them."""
    return [
        (time / NANOSECONDS, event.message)
        for time, role, event in run.events
        if role == "server" and isinstance(event, Received) and isinstance(event.message, Ready)
        and event.sender == name
    ]  # fmt: skip


def weights(run):
    return {name: role.summary()["weights"] for name, role in run.roles.items()}


def begun(run, name):
    """The rounds in which a party took part (measuring ones left out), and when they began there."""
    return {begin.round: seconds for seconds, begin in heard(run, name, BeginPhase) if begin.scale}


# What a round costs


@BOTH
@pytest.mark.parametrize("t_comm", [1.0, 10.0, 50.0])
@pytest.mark.parametrize(
    ("name", "local_s", "tau"),
    [
        ("flex", TIMEOUT, [5, 10, 15, 20]),
        ("sync-min", TIMEOUT, [5, 5, 5, 5]),
        ("sync-max", TIMEOUT * 4.0 / 1.0, [20, 20, 20, 20]),
        ("p-bcd", 4.0, [1, 1, 1, 1]),
        ("adaptive-flex", TIMEOUT, [5, 10, 15, 20]),
    ],
)
def test_a_round_costs_what_the_time_model_says(name, local_s, tau, t_comm, labels, simulate):
    """Both `labels` modes: t_comm + timeout, + timeout·(fastest/slowest) or + slowest step; and the exact τ."""
    fields = {"server_steps": "fit"} if "flex" in name else {}
    run = simulate(tables(name, t_comm, labels=labels, **fields))
    assert run.status == "finished"
    for party, steps in zip(NAMES, tau, strict=True):
        times = list(begun(run, party).values())
        assert len(times) == 4
        assert np.diff(times) == pytest.approx(t_comm + local_s, abs=1e-6)
        taken = [message.steps for _, message in uploads(run, party) if message.phase][-4:]
        assert taken == [steps] * 4
        assert run.roles[party].network.steps == 4 * steps, "the role applied as many steps as it reported"
        assert run.roles[party].state.late == run.roles[party].state.dropped == run.roles[party].state.skipped == 0
    assert run.server.network.steps == 4 * max(tau)


@pytest.mark.parametrize("name", ["flex", "sync-min", "sync-max", "p-bcd"])
def test_a_run_costs_its_rounds(name, simulate):
    """labels = "server": between the start of the first round and the end there are only rounds."""
    run = simulate(tables(name, t_comm=10.0, updates=6))
    each = 10.0 + {"flex": TIMEOUT, "sync-min": TIMEOUT, "sync-max": 4 * TIMEOUT, "p-bcd": 4.0}[name]
    first = min(begun(run, "party-1").values()) - 5.0  # as it left the server
    assert run.simulator.now / NANOSECONDS - first == pytest.approx(6 * each, abs=1e-6)


@pytest.fixture
def phases(monkeypatch):
    """Every role's phases when they begin: its LocalPhase → [(scale, steps and w̄ of the previous phase)]."""
    found, alive, begin = {}, [], LocalPhase.begin

    def record(phase, now, number, timeout_s, limit, scale):
        alive.append(phase)  # otherwise a phase of a later run may have the same id
        before = (phase.steps, phase.report().weight)
        found.setdefault(id(phase), []).append((scale, *before))
        return begin(phase, now, number, timeout_s, limit, scale)

    monkeypatch.setattr(LocalPhase, "begin", record)
    return found


def test_the_server_takes_no_more_steps_than_the_quickest_party(simulate, phases):
    """labels = "server": a server ten times as quick takes 20 of its 200 steps; one, before a party has reported. With
    server_steps = "fit" it takes all of them, from the first round on."""

    def by_round(**fields):
        run = simulate(tables("flex", server_s=0.1, updates=4, **fields))
        return [steps for _, steps, _ in phases[id(run.server.local)][1:]] + [run.server.local.steps]

    assert by_round() == [1, 20, 20, 20]
    assert by_round(max_steps=7) == [1, 7, 7, 7]
    assert by_round(server_steps="fit") == [200] * 4
    assert by_round(server_steps="fit", max_steps=70) == [70] * 4
    auto = {"timeout_s": "auto", "step_s": [1.0] * 4}
    assert by_round(**auto) == [4, 5, 5, 5, 5] and by_round(server_steps="fit", **auto) == [4, 50, 50, 50, 50]


def test_the_servers_first_adaptive_rate_is_not_that_of_one_step(simulate, phases):
    """labels = "server": the dummy round learns nothing, so the server takes all steps that fit; its rate is A_0/20."""
    run = simulate(tables("adaptive-flex", updates=2))
    (scale, *_), *learning = phases[id(run.server.local)]
    assert scale == 0.0 and [(scale, steps) for scale, steps, _ in learning] == [(1 / 20, 20)] * 2


@pytest.mark.parametrize(
    ("timeout_s", "tau", "most", "round_s"), [(20.0, [5, 10, 15], 20, 81.0), (10.0, [2, 4, 6, 8], 10, 51.0)]
)
def test_sync_max_waits_for_as_many_steps_as_the_server_could_take(timeout_s, tau, most, round_s, simulate):
    """labels = "server", MOSEI and ImageNet100 of the paper's Sec. VII-C, t_comm = 1: the server is the fastest role.
    Table III's times are multiples of these rounds: 26.41/29.34/42.38 = 81/90/130, 520.05/611.82 = 51/60."""
    clock = {"timeout_s": timeout_s, "step_s": [timeout_s / steps for steps in tau]}
    run = simulate(tables("sync-max", **clock), parties=len(tau))
    assert np.diff(list(begun(run, "party-1").values())) == pytest.approx([round_s] * 3, abs=1e-6)
    assert run.server.summary()["method"]["local_steps"] == dict.fromkeys(run.roles, float(most))
    least = simulate(tables("sync-min", **clock), parties=len(tau))
    assert least.server.summary()["method"]["local_steps"] == dict.fromkeys(run.roles, float(min(tau)))
    slow_server = simulate(tables("sync-min", server_s=timeout_s, **clock), parties=len(tau))
    assert slow_server.server.summary()["method"]["local_steps"] == dict.fromkeys(run.roles, 1.0), (
        "the server's own speed counts, too"
    )


@pytest.mark.parametrize(("timeout_s", "given", "most"), [(20.0, "quickest", 20), (20.0, "fit", 40), ("auto", None, 0)])
def test_sync_max_without_a_quick_server(timeout_s, given, most, simulate):
    """labels = "server": the server is twice as quick as the quickest party; automatic timeouts are the parties'."""
    fields = {} if given is None else {"server_steps": given}
    run = simulate(tables("sync-max", server_s=0.5, updates=2, timeout_s=timeout_s, **fields))
    steps = run.server.summary()["method"]["local_steps"]
    assert set(steps.values()) == {most or round(run.server.pacing.timeout_s / 1.0)}


FITTING = [*range(1, 51), 1000]


@pytest.mark.parametrize("step_s", [1.0, 10 / 6, 1 / 3, 0.1, 0.7, 1e-3 / 3, 12.345678901, 1 / 7000])
def test_steps_that_fill_the_timeout_exactly_all_fit(step_s):
    """No labels involved. timeout = n·step makes n steps, in whole nanoseconds of a clock that rounds each of them:
    planned, taken one by one, and taken before a bell that waits for the last. timeout < n·step makes n − 1."""
    took = round(step_s * NANOSECONDS)
    for n in FITTING:
        for timeout_s in (n * step_s, sum([step_s] * n), round(n * step_s, 9)):
            assert steps_within(timeout_s, step_s) == steps_within(timeout_s, took / NANOSECONDS) == n
            assert steps_in(timeout_s, took) == n
        if n > 1:
            short_s = (n - 0.1) * step_s
            assert steps_within(short_s, step_s) == steps_in(short_s, took) == n - 1


def steps_in(timeout_s, took):
    """The steps of a phase, each of so many nanoseconds; its bell rings when it was last set to."""
    phase = LocalPhase(None, LocalRule(0.0, 0.0, 1.0))
    (bell,), now = phase.begin(5, 1, timeout_s, 0, 0.0), 5
    while True:
        now += took
        if now > bell.at:
            return phase.steps
        phase.learn(None, 0.0, now)
        if not phase.goes_on(now):
            return phase.steps
        bell = next(iter(phase.wait_for_next(now)), bell)


@pytest.mark.parametrize("n", [6, 7, 11, 48])
def test_a_run_takes_the_steps_that_fill_its_timeout(n, simulate):
    """labels = "server", timeout 10, steps of 10/n: n of them, in the parties and the server, and rounds of 11 s."""
    clock = {"step_s": [10 / n, 10 / 6, 5.0, 2.5], "server_s": 10 / n, "timeout_s": 10.0, "server_steps": "fit"}
    run = simulate(tables("flex", updates=3, **clock))
    expected = dict(zip(["server", *NAMES], map(float, (n, n, 6, 2, 4)), strict=True))
    assert run.server.summary()["method"]["local_steps"] == expected
    assert np.diff(list(begun(run, "party-1").values())) == pytest.approx([11.0] * 2, abs=1e-6)


@BOTH
def test_a_step_that_runs_at_the_bell_leaves_no_trace(labels, simulate):
    """Both `labels` modes, steps of random length: a role reports the steps it applied, and some were dropped."""
    compute = {"kind": "exponential", "mean_s": 3.0}
    run = simulate(tables("flex", compute=compute, labels=labels, updates=8))
    done = dict.fromkeys(NAMES, 0)
    for _, role, event in run.events:
        if isinstance(event, WorkDone) and isinstance(event.result, LocalStepped) and role != "server":
            done[role] += 1
    dropped = 0
    for name in NAMES:
        reported = sum(message.steps for _, message in uploads(run, name))
        assert run.roles[name].network.steps == done[name] == reported
        begun_jobs = run.roles[name].state.jobs - run.roles[name].state.uploads  # without the uploads' passes
        dropped += begun_jobs - done[name]
    assert dropped > 8, "of 32 phases, many end within a step"


# Which methods are equal


@BOTH
@pytest.mark.parametrize("fields", [{}, {"momentum": 0.9, "prox": 0.5, "decay": 0.3}], ids=["plain", "rules"])
def test_p_bcd_is_flex_with_one_step(labels, fields, simulate):
    """Both `labels` modes, bit for bit; with τ = 1 no momentum, anchor or decay has anything to say."""
    one = simulate(tables("p-bcd", labels=labels, updates=30))
    flex = simulate(tables("flex", labels=labels, updates=30, max_steps=1, **fields))
    assert weights(one) == weights(flex)
    more = simulate(tables("flex", labels=labels, updates=30, max_steps=2, **fields))
    assert all(weights(more)[name] != digest for name, digest in weights(flex).items())


@BOTH
@pytest.mark.parametrize("fields", [{}, {"momentum": 0.5}, {"prox": 0.5, "decay": 0.9}], ids="-".join)
def test_sync_min_is_flex_where_all_are_equally_quick(labels, fields, simulate):
    """Both `labels` modes, bit for bit, with equal speeds and batches of one size; unequal speeds differ."""
    equal = {"step_s": [2.5] * 4, "server_s": 2.5, "labels": labels, "updates": 12} | fields
    least, flex = simulate(tables("sync-min", **equal)), simulate(tables("flex", server_steps="fit", **equal))
    assert weights(least) == weights(flex)
    assert flex.roles["party-1"].network.steps == 12 * 8
    unequal = equal | {"step_s": [2.5, 2.5, 2.5, 5.0]}
    least, flex = (weights(simulate(tables(name, **unequal))) for name in ("sync-min", "flex"))
    assert all(least[name] != flex[name] for name in least)


@BOTH
def test_adaptive_flex_with_one_step_is_p_bcd(labels, simulate):
    """Both `labels` modes, bit for bit: τ = w̄ = 1, so η = A; the round that measures is on top and changes nothing."""
    one = simulate(tables("p-bcd", labels=labels, updates=20))
    adaptive = simulate(tables("adaptive-flex", labels=labels, updates=20, max_steps=1, momentum=0.9))
    assert weights(one) == weights(adaptive)
    assert adaptive.server.state.phase == one.server.state.phase + 1 == 21
    by_a = simulate(tables("adaptive-flex", labels=labels, updates=20, max_steps=1, A=0.01, train={"learning_rate": 1}))
    assert weights(by_a) == weights(one), "the rate may be given as A or as the learning rate"


@BOTH
def test_the_round_that_measures_changes_no_weight(labels, simulate, resolve):
    """Both `labels` modes, of all that begin with one: weights up to the second BeginPhase are those of the start."""
    for name in ("adaptive-flex", "sync-min", "sync-max"):
        setting = tables(name, labels=labels, momentum=0.5, train={"optimiser": {"name": "sgd"}})
        events = simulate(setting, until=10**6).events
        begins = [
            number
            for number, (_, role, event) in enumerate(events)
            if role == "party-1" and isinstance(event, Received) and isinstance(event.message, BeginPhase)
        ]
        start = {role.name: role.summary()["weights"] for role in resolve(setting).roles()}
        stopped = simulate(setting, until=begins[1])
        assert stopped.server.state.phase >= 1 and stopped.server.k <= 1
        measured = [message for _, message in heard(stopped, "server", Ready) if message.phase]
        assert len(measured) == 4 and all(message.phase == 1 and message.steps >= 4 for message in measured)
        assert weights(stopped) == start
        after = weights(simulate(setting, until=10**6))
        assert all(after[role] != digest for role, digest in start.items())


# Rates that follow speeds


def follow_speeds(run, phases):
    """The scale of each role's every phase is exactly 1/(τ·w̄) of its previous phase; return those τ."""
    taken = {}
    for name, role in run.roles.items():
        (scale, *_), *rest = phases[id(role.local)]
        assert scale == 0.0, "the first one only measures"
        for scale, steps, weight in rest:
            assert scale == 1 / (steps * weight), name
        taken[name] = [steps for _, steps, _ in rest]
    return taken


@BOTH
def test_adaptive_rates_of_fixed_speeds(labels, simulate, phases):
    """Both `labels` modes: η_k = A_k/(τ_k·w̄_k), w̄ = (1 − ρ^τ)/(1 − ρ) with momentum, for all and the server."""
    momentum = [0.0, 0.9, 0.0, 0.5]
    run = simulate(tables("adaptive-flex", labels=labels, momentum=momentum))
    taken = follow_speeds(run, phases)
    assert taken == {"server": [20] * 4} | {name: [tau] * 4 for name, tau in zip(NAMES, (5, 10, 15, 20), strict=True)}
    w_bar = {name: (1 - rho**tau) / (1 - rho) for name, rho, tau in zip(NAMES, momentum, (5, 10, 15, 20), strict=True)}
    for name in NAMES:
        said = [(message.steps, message.weight) for _, message in uploads(run, name)[1:]]
        assert [weight for _, weight in said] == pytest.approx([w_bar[name]] * 5, rel=1e-12)
        scales = [begin.scale for _, begin in heard(run, name, BeginPhase)]
        assert scales[1:] == [1 / (steps * weight) for steps, weight in said[:-1]], "as the messages say"


@BOTH
def test_adaptive_rates_under_a_cpu_trace(labels, simulate, phases):
    """Both `labels` modes. A value of the trace lasts a round, 25 s: τ = ⌊20·(1 − cpu)⌋ in it, and η follows."""
    traces = [[0, 50, 75, 20, 60], [50, 0, 20, 75, 90], [20, 20, 20, 20, 20], [90, 60, 50, 0, 75]]
    compute = [{"kind": "trace", "mean_s": 1.0, "cpu": cpu, "interval_s": 25.0} for cpu in traces]
    run = simulate(tables("adaptive-flex", t_comm=5.0, compute=compute, updates=4, labels=labels, momentum=0.5))
    taken = follow_speeds(run, phases)
    for name, cpu in zip(NAMES, traces, strict=True):
        tau = [20 * (100 - percent) // 100 for percent in cpu]
        assert [message.steps for _, message in uploads(run, name)[1:]] == tau
        assert taken[name] == tau[:-1]
        assert run.server.summary()["method"]["local_steps"][name] == sum(tau[1:]) / 4, "not of the dummy round"


def test_what_is_applied_is_the_rate_that_was_said(simulate, monkeypatch):
    """labels = "server": η of each applied step, A_k·scale, from what reaches the network."""
    applied = {}
    apply = Network.apply

    def record(network, gradient, rate, buffers=None):
        applied.setdefault(id(network), []).append(rate)
        apply(network, gradient, rate, buffers)

    monkeypatch.setattr(Network, "apply", record)
    rates = {"server": 0.4, "party": [0.1, 0.2, 0.3, 0.6]}
    run = simulate(tables("adaptive-flex", A=rates, updates=2))
    for name, a, tau in zip(["server", *NAMES], [0.4, 0.1, 0.2, 0.3, 0.6], [20, 5, 10, 15, 20], strict=True):
        assert applied[id(run.roles[name].network)] == [pytest.approx(a / tau)] * 2 * tau


# Parties that miss the bell


@BOTH
def test_no_round_waits_for_a_party_that_misses_the_bell(labels, simulate):
    """Both `labels` modes: party 4 needs 30 s. It takes part in every second round, and no round waits for it."""
    run = simulate(tables("flex", t_comm=2.0, step_s=[4.0, 2.0, 1.0, 30.0], updates=9, labels=labels))
    assert run.status == "finished"
    for name in NAMES[:3]:
        assert list(begun(run, name)) == list(range(9))
        assert np.diff(list(begun(run, name).values())) == pytest.approx(22.0, abs=1e-6)
    assert list(begun(run, "party-4")) == [0, 2, 4, 6, 8]
    slow = run.roles["party-4"]
    assert len(heard(run, "server", Late)) == slow.state.late == 5
    assert slow.network.steps == 4, "a step that was late is not lost; the fifth was under way at the end"
    skips = [message.step for _, message in heard(run, "party-4", Skip)]
    assert skips == [2, 4, 6, 8] and run.server.state.late_uploads == slow.state.skipped == 4
    late = [message for _, message in uploads(run, "party-4") if message.phase]
    assert {(message.steps, message.step_s) for message in late} == {(1, 30.0)}
    summary = run.server.summary()
    assert summary["method"]["local_steps"] == {"party-1": 5.0, "party-2": 10.0, "party-3": 20.0, "party-4": 1.0} | {
        "server": round((1 + 8 * 20) / 9, 2)
    }, "of the rounds that each took part in"
    counts = np.array(summary["staleness_counts"]["counts"])
    assert counts.sum() == 4 * 64 and counts[0] == 0, "nothing of a party that has just uploaded"


@BOTH
def test_a_waiting_server_waits_for_the_slowest_step(labels, simulate):
    """Both `labels` modes, on_lost = "wait": the bell still rings, and a round lasts as long as its latest party."""
    run = simulate(tables("flex", 2.0, [4.0, 2.0, 1.0, 30.0], updates=5, labels=labels, on_lost="wait"))
    for name in NAMES:
        assert list(begun(run, name)) == list(range(5))
        assert np.diff(list(begun(run, name).values())) == pytest.approx(32.0, abs=1e-6)
    assert run.roles["party-4"].state.late == 5 and not heard(run, "party-4", Skip)
    assert run.roles["party-1"].network.steps == 5 * 5, "the others do not use the time"


def crash(at_s, until_s, lost_after_s):
    fault = {"party": "party-2", "kind": "crash", "at_s": at_s, "until_s": until_s}
    return {"faults": [fault], "lost_after_s": lost_after_s}


@BOTH
def test_silence_is_waited_for_as_long_as_patience_lasts(labels, simulate):
    """Both `labels` modes: party 2 crashes in round 1's phase without notice.

    The server's patience ends; from then on no round waits for it, and it returns in the newest round.
    """
    run = simulate(tables("flex", 2.0, updates=9, labels=labels, clock=crash(25.0, 100.0, 1000.0)))
    assert run.status == "finished"
    times = list(begun(run, "party-1").values())
    patience = PATIENCE_S + TIMEOUT + 2 * 2.0
    # The server's own bell rings a second before the parties', and half the round trip before their messages.
    assert np.diff(times) == pytest.approx([22.0, 20.0 + patience] + [22.0] * 6, abs=1e-6)
    assert list(begun(run, "party-1")) == list(range(9))
    back = begun(run, "party-2")
    assert list(back)[:2] == [0, 1] and list(back)[2] >= 4 and list(back)[-1] == 8
    assert all(b - a == 1 for a, b in itertools.pairwise(list(back)[2:])), "from then on in every round"
    assert min(seconds for round_, seconds in back.items() if round_ > 1) > 100.0
    assert heard(run, "party-2", Skip), "it was told where the others are"


@BOTH
def test_a_loss_is_not_waited_for_at_all(labels, simulate):
    """Both `labels` modes: the same, but after 2 s the server hears that party 2 is gone."""
    run = simulate(tables("flex", 2.0, updates=9, labels=labels, clock=crash(25.0, 100.0, 2.0)))
    assert np.diff(list(begun(run, "party-1").values())) == pytest.approx([22.0] * 8, abs=1e-6)
    back = list(begun(run, "party-2"))
    assert back[:2] == [0, 1] and 5 <= back[2] <= 7 and back[-1] == 8


@BOTH
def test_a_party_that_was_never_measured_gets_all_the_time_it_needs(labels, simulate):
    """Both `labels` modes: a crash in the first phase. The party's duration is unknown, so the server waits for it."""
    run = simulate(tables("flex", 2.0, updates=4, labels=labels, clock=crash(5.0, 300.0, 1000.0)))
    times = list(begun(run, "party-1").values())
    assert times[1] > 300.0 and np.diff(times)[1:] == pytest.approx([22.0] * 2, abs=1e-6)


@BOTH
@pytest.mark.parametrize("lost_after_s", [2.0, 1000.0])
@pytest.mark.parametrize(
    ("name", "fields"), [("flex", {"on_lost": "wait"}), ("p-bcd", {}), ("sync-min", {}), ("sync-max", {})]
)
def test_a_waiting_server_waits_for_lost_parties_too(name, fields, lost_after_s, labels, simulate):
    """Both `labels` modes: on_lost = "wait", and the three methods that always wait; with and without notice."""
    clock = crash(9.0 if name == "p-bcd" else 25.0, 500.0, lost_after_s)  # in a local phase
    run = simulate(tables(name, 2.0, updates=5, labels=labels, clock=clock, **fields))
    assert run.status == "finished"
    for party in NAMES:
        assert list(begun(run, party)) == list(range(5)), "no party misses a round"
    times = list(begun(run, "party-1").values())
    assert sum(gap > 300.0 for gap in np.diff([0.0, *times])) == 1, "one round, or the measuring before, took so long"


def test_a_party_that_comes_late_is_not_waited_for_and_then_is(simulate):
    """labels = "server": party 3 starts at 50 s."""
    fault = {"party": "party-3", "kind": "late", "at_s": 50.0}
    run = simulate(tables("flex", 2.0, updates=8, clock={"faults": [fault]}))
    rounds = list(begun(run, "party-3"))
    assert rounds[0] in (2, 3, 4) and rounds[1:] == list(range(rounds[0] + 1, 8))
    adaptive = simulate(tables("adaptive-flex", 2.0, updates=4, clock={"faults": [fault]}))
    without = 4 - len(begun(adaptive, "party-3"))
    assert without > 0 and sum(adaptive.server.summary()["staleness_counts"]["counts"]) == without * 64, (
        "no dummy round"
    )
    assert np.diff(list(begun(run, "party-1").values())) == pytest.approx([22.0] * 7, abs=1e-6)
