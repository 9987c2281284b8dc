"""Flex-VFL's local steps against pencil and paper: Alg. 1 l. 10–15, Eq. (6)–(8); without a driver.

Two rows, y = (1, −1); two parties of one column and one weight, h_m = w_m·x_m; output a·(h_1 + h_2), ℓ = mean (… − y)².
With x_1 = (1, −1), x_2 = (2, 1), w = (2, 1), a = ½ the snapshot is h_1 = (2, −2), h_2 = (2, 1), and against it

    ∂ℓ/∂w_1 = w_1/2 − ¾     ∂ℓ/∂w_2 = 5w_2/4     ∂ℓ/∂a = 17a − 5       (¼, 5/4 and 7/2 at the start)

All numbers of the first round are binary fractions: float32 has them exactly.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from colonnade.algorithms.flex.config import AdaptiveOptions, FlexOptions
from colonnade.algorithms.flex.local import BELL, LocalPhase, Report, local_rule
from colonnade.algorithms.flex.messages import BeginWithGradient, BeginWithSnapshot, Late, LocalStepped, Ready
from colonnade.algorithms.flex.pacing import BOLDEST, Pacing
from colonnade.algorithms.flex.party import Party
from colonnade.algorithms.flex.server import Server
from colonnade.algorithms.method import Top
from colonnade.algorithms.vafl.messages import Skip
from colonnade.models import OptimiserSpec
from colonnade.models.optimiser import Parameters
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelWork,
    PeerLost,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Work,
)
from colonnade.protocol.role import EVALUATION

X, Y, W, A = [[1.0, -1.0], [2.0, 1.0]], np.array([1.0, -1.0]), [2.0, 1.0], 0.5
ETA, ETA_0, TIMEOUT = 1 / 4, 1 / 16, 10
PLAIN = OptimiserSpec()
BOTH = pytest.mark.parametrize("labels", ["server", "shared"])


def weight(role):
    return float(role.network.theta[0])


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


@pytest.fixture
def flex(tiny, regression):
    """Roles and a clock that only the test moves; a round ends when the test rings its bells."""

    class Rounds(tiny):
        def __init__(self, options, optimisers=(PLAIN, PLAIN), server_optimiser=PLAIN):
            self.now, self.steps = 0, [0, 0, 0]

            def training(setup):
                return replace(setup.training, party_optimisers=optimisers, server_optimiser=server_optimiser)

            def make_server(setup):
                self.top = Top(setup.model, setup.aggregate, setup.widths)
                return Server(replace(setup, training=training(setup)))

            self.server_type = make_server
            self.party_type = lambda setup: Party(replace(setup, training=training(setup), top=self.top))
            super().__init__(options, X, Y, W, A, regression, rates=(ETA_0, ETA))
            self.server.state.due = ""  # no evaluation first

        def told(self, role, event):
            effects = role.handle(event, self.now)
            role.validate()
            return [
                effect
                for effect in effects
                if not (isinstance(effect, Work) and effect.kind == EVALUATION)
                and not (isinstance(effect, Send) and effect.evaluation)
            ]

        def at(self, second):
            self.now = round(second * NANOSECONDS)
            return self

        def uploads(self):
            """Start both parties; return their uploads."""
            return [of(self.start(m), Send)[0].message for m in (0, 1)]

        def open(self, uploads):
            """Give the server all uploads and do its pass; return its effects."""
            for name, upload in zip(self.names, uploads, strict=True):
                effects = self.told(self.server, Received(name, upload))
            return self.work(self.server, effects)[1]

        def step(self, role, effects, steps, began):
            """Take this many steps of one second each; return the effects after the last."""
            for t in range(steps):
                self.at(began + t + 1)
                effects = self.work(role, of(effects, Work))[1]
            return effects

        def ring(self, role, due):
            return self.told(role, TimerFired(BELL, round(due * NANOSECONDS)))

        def round(self, uploads, steps, began=0):
            """One round of party 1, party 2 and the server with these numbers of steps; return the next uploads."""
            opened = self.at(began).open(uploads)
            begins = {effect.to: effect.message for effect in of(opened, Send)}
            self.begins, follow = [begins[name] for name in self.names], []
            for party, begin, taken in zip(self.parties, self.begins, steps, strict=False):
                effects = self.at(began).told(party, Received("server", begin))
                self.step(party, effects, taken, began)
                effects = self.at(began + TIMEOUT).ring(party, began + TIMEOUT)
                follow.append(of(self.work(party, effects)[1], Send)[0].message)
            self.step(self.server, opened, steps[2], began)
            self.at(began + TIMEOUT).ring(self.server, began + TIMEOUT)
            return follow

    return Rounds


def options(labels, kind=FlexOptions, **fields):
    return kind(labels=labels, timeout_s=float(TIMEOUT), **({"server_steps": "fit"} | fields))


# Two steps of every local optimiser. Labels at the server: both steps take ∂ℓ/∂h of the round's start, so the second
# gradient of w_1 is the first, ¼. Labels shared: it is that of w_1 = 31/16, 7/32. The server's own second one is that
# of a = 9/32, −7/32.
TWO_STEPS = {
    # ¼ = η, so −¼·(¼ + ¼) and −¼·(¼ + 7/32); −(7/2 − 7/32)/16
    "sgd": ({}, PLAIN, 2 - 1 / 8, 2 - 1 / 16 - 7 / 128, A - 7 / 32 + 7 / 512),
    # ρ = ½: u = ¼, then ⅛ + ¼ (⅛ + 7/32); the server's 7/4 − 7/32
    "momentum": ({"momentum": 0.5}, PLAIN, 2 - 1 / 16 - 3 / 32, 2 - 1 / 16 - 11 / 128, A - 7 / 32 - 49 / 512),
    # μ = 2: the second step takes 2·(−1/16) = −⅛ (the server's −7/16) on top
    "prox": ({"prox": 2.0}, PLAIN, 2 - 1 / 16 - 1 / 32, 2 - 1 / 16 - 3 / 128, A - 7 / 32 + 21 / 512),
    # the second rate is half the first
    "decay": ({"decay": 0.5}, PLAIN, 2 - 1 / 16 - 1 / 32, 2 - 1 / 16 - 7 / 256, A - 7 / 32 + 7 / 1024),
    # the same by the roles' own choice
    "own momentum": ({}, OptimiserSpec("momentum", {"momentum": 0.5}),
                     2 - 1 / 16 - 3 / 32, 2 - 1 / 16 - 11 / 128, A - 7 / 32 - 49 / 512),
    "own momentum of SGD": ({}, OptimiserSpec("SGD", {"momentum": 0.5}),
                            2 - 1 / 16 - 3 / 32, 2 - 1 / 16 - 11 / 128, A - 7 / 32 - 49 / 512),
    "own prox": ({}, OptimiserSpec(prox=2.0), 2 - 1 / 16 - 1 / 32, 2 - 1 / 16 - 3 / 128, A - 7 / 32 + 21 / 512),
    "own decay": ({}, OptimiserSpec(decay=0.5), 2 - 1 / 16 - 1 / 32, 2 - 1 / 16 - 7 / 256, A - 7 / 32 + 7 / 1024),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", TWO_STEPS)
def test_two_steps(name, labels, flex):
    """Both `labels` modes: party 1 and the server take two steps, party 2 one, of each local optimiser."""
    fields, own, with_server, with_shared, theta_0 = TWO_STEPS[name]
    run = flex(options(labels, **fields), (own, own), own)
    uploads = run.uploads()
    follow = run.round(uploads, (2, 1, 2))
    assert isinstance(run.begins[0], BeginWithGradient if labels == "server" else BeginWithSnapshot)
    assert weight(run.parties[0]) == (with_server if labels == "server" else with_shared)
    assert weight(run.parties[1]) == 1 - ETA * 5 / 4, "the first step is the same with all optimisers"
    assert weight(run.server) == theta_0, "the server recomputes its gradient in both modes"
    w_bar = 3 / 2 if "momentum" in name else 1.0  # (1 − ρ²)/(1 − ρ)
    assert [(up.phase, up.steps, up.weight) for up in follow] == [(1, 2, w_bar), (1, 1, 1.0)]
    assert [up.round for up in follow] == [1, 1] and run.server.k == 1
    assert [up.step_s for up in follow] == [1.0, 1.0], "seconds of a step, not of the phase"


def test_what_the_server_sends_with_its_labels_kept(flex):
    """labels = "server": ∂ℓ/∂h = a·2(a·s − y)/2 = (½, ¼) for either party, and nothing else."""
    run = flex(options("server"))
    uploads = run.uploads()
    order = run.server.walk.batch(0)
    assert [up.round for up in uploads] == [0, 0] and uploads[0].phase == 0
    np.testing.assert_array_equal(uploads[0].values[:, 0], np.array([2.0, -2.0])[order])
    for effect in of(run.open(uploads), Send):
        np.testing.assert_array_equal(effect.message.values[:, 0], np.array([0.5, 0.25])[order])
        assert not hasattr(effect.message, "snapshot")


def test_what_the_server_sends_with_its_labels_shared(flex):
    """labels = "shared": all embeddings, θ_0 and the labels."""
    run = flex(options("shared"))
    order = run.server.walk.batch(0)
    for effect in of(run.open(run.uploads()), Send):
        snapshot = effect.message.snapshot
        np.testing.assert_array_equal(snapshot.h, np.array([[2.0, 2.0], [-2.0, 1.0]])[order])
        np.testing.assert_array_equal(snapshot.targets, Y[order])
        assert snapshot.theta_0.tolist() == [A]


def reference(w, gradient, steps, rate, rho=0.0, mu=0.0, decay=1.0, u=0.0):
    """The rules as a loop: (w, u) after so many local steps."""
    start = w
    for t in range(steps):
        u = rho * u + gradient(w) + mu * (w - start)
        w -= rate * decay**t * u
    return w, u


def gradients(w, a, labels):
    """∂ℓ/∂w_1, ∂ℓ/∂w_2 and ∂ℓ/∂a as functions of the own parameter, against the snapshot of this (w, a)."""
    x, h = np.array(X), np.array(X) * np.array(w)[:, None]

    def of_party(m):
        def gradient(own):
            moved = x[m] * (own if labels == "shared" else w[m])
            return float(a * (a * (h[1 - m] + moved) - Y) @ x[m])

        return gradient

    return [of_party(0), of_party(1), lambda own: float((own * h.sum(0) - Y) @ h.sum(0))]


@BOTH
@pytest.mark.parametrize(
    "rule",
    [{"rho": 0.75}, {"mu": 1.5}, {"decay": 0.7}, {"rho": 0.5, "mu": 0.5, "decay": 0.9}],
    ids="-".join,
)
def test_two_rounds_against_the_loop(rule, labels, flex):
    """Both `labels` modes: 3, 2 and 4 steps, then 1, 3 and 2 from the new snapshot; momentum and θ^{r,0} are reset."""
    names = {"rho": "momentum", "mu": "prox", "decay": "decay"}
    run = flex(options(labels, **{names[key]: value for key, value in rule.items()}))
    w, a, uploads = list(W), A, run.uploads()
    for r, steps in enumerate(((3, 2, 4), (1, 3, 2))):
        uploads = run.round(uploads, steps, began=20 * r)
        *own, top = gradients(w, a, labels)
        w = [reference(w[m], own[m], steps[m], ETA, **rule)[0] for m in (0, 1)]
        a = reference(a, top, steps[2], ETA_0, **rule)[0]
        assert [weight(party) for party in run.parties] == pytest.approx(w, rel=1e-5), f"round {r}"
        assert weight(run.server) == pytest.approx(a, rel=1e-5)
        assert [up.steps for up in uploads] == [*steps[:2]]


@BOTH
def test_momentum_is_forgotten_after_the_round(labels, flex):
    """Both `labels` modes: one step of the second round is −η·g; a kept buffer would give another weight."""
    run = flex(options(labels, momentum=0.5))
    uploads = run.round(run.uploads(), (2, 1, 1))
    w, a = [weight(party) for party in run.parties], weight(run.server)
    own, _, top = gradients(w, a, labels)
    _, u = reference(W[0], gradients(W, A, labels)[0], 2, ETA, 0.5)
    run.round(uploads, (1, 1, 1), began=20)
    forgotten, remembered = (reference(w[0], own, 1, ETA, 0.5, u=before)[0] for before in (0.0, u))
    assert abs(forgotten - remembered) > 0.02, "the case must be able to tell them apart"
    assert weight(run.parties[0]) == pytest.approx(forgotten, rel=1e-6)
    assert weight(run.server) == pytest.approx(a - ETA_0 * top(a), rel=1e-6)


def test_the_server_and_a_list_of_momenta(flex):
    """labels = "server": a list has one ρ for each party; the server has none."""
    run = flex(options("server", momentum=[0.5, 0.0], prox=[0.0, 2.0], decay=[1.0, 1.0]))
    follow = run.round(run.uploads(), (2, 2, 2))
    assert weight(run.parties[0]) == 2 - 1 / 16 - 3 / 32
    assert weight(run.parties[1]) == 1 - 5 / 16 - 5 / 32, "proximal: 5/4 and 5/4 − 2·5/16"
    assert weight(run.server) == A - 7 / 32 + 7 / 512, "plain"
    assert [up.weight for up in follow] == [1.5, 1.0]


def test_a_list_of_momenta_leaves_out_a_party_whose_optimiser_has_none(flex):
    """labels = "server": party 2 asks for Adagrad and gets no ρ and no w̄ of `protocol.momentum`."""
    run = flex(options("server", momentum=[0.5, 0.0]), (PLAIN, OptimiserSpec("Adagrad")))
    follow = run.round(run.uploads(), (2, 2, 2))
    assert weight(run.parties[0]) == 2 - 1 / 16 - 3 / 32
    # g/√(g²) = 1, then g/√(2g²)
    assert weight(run.parties[1]) == pytest.approx(1 - ETA * (1 + 1 / np.sqrt(2)), rel=1e-6)
    assert [up.weight for up in follow] == [1.5, 1.0]


# ρ of protocol.momentum, what the role asks for itself, and the ρ that it steps with.
OF_SGD = {
    "weight decay": ({"weight_decay": 0.5}, 0.5),
    "no momentum of its own": ({"momentum": 0.0}, 0.0),
    "another one": ({"momentum": 0.25, "weight_decay": 0.5}, 0.25),
}


@pytest.mark.parametrize("name", ["sgd", "SGD", "momentum"])
@pytest.mark.parametrize("own", OF_SGD)
def test_protocol_momentum_holds_for_every_kind_of_sgd(own, name, flex):
    """labels = "server", two rounds: the same as torch's steps with that ρ and a momentum that is reset in between."""
    fields, rho = OF_SGD[own]
    spec = OptimiserSpec(name, fields)
    run = flex(options("server", momentum=0.5), (spec, PLAIN), spec)
    uploads = run.uploads()
    for r, steps in enumerate((3, 2)):
        own_gradient = gradients([weight(party) for party in run.parties], weight(run.server), "server")[0]
        theta = torch.nn.Parameter(torch.tensor([weight(run.parties[0])], dtype=torch.float64))
        optimiser = torch.optim.SGD([theta], lr=ETA, **(fields | {"momentum": rho}))
        for _ in range(steps):
            theta.grad = torch.tensor([own_gradient(theta.item())], dtype=torch.float64)
            optimiser.step()
        uploads = run.round(uploads, (steps, 1, 2), began=20 * r)
        assert weight(run.parties[0]) == pytest.approx(theta.item(), rel=1e-6), f"round {r}"
        assert uploads[0].weight == pytest.approx((1 - rho**steps) / (1 - rho))
    assert run.server.local.report().weight == pytest.approx((1 - rho**2) / (1 - rho)), "the server's too"


@BOTH
@pytest.mark.parametrize(("name", "fields"), [("RMSprop", {"alpha": 0.5}), ("Adagrad", {}), ("adam", {})])
def test_any_optimiser_of_torch_by_name(name, fields, labels, flex):
    """Both `labels` modes, two rounds: the same as torch's steps, whose state lasts longer than a round."""
    run = flex(options(labels), (OptimiserSpec(name, fields), PLAIN))
    theta = torch.nn.Parameter(torch.tensor([W[0]], dtype=torch.float64))
    kind = {"RMSprop": torch.optim.RMSprop, "Adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]
    optimiser, uploads = kind([theta], lr=ETA, **fields), run.uploads()
    for r, steps in enumerate((2, 3)):
        own = gradients([weight(party) for party in run.parties], weight(run.server), labels)[0]
        for _ in range(steps):
            theta.grad = torch.tensor([own(theta.item())], dtype=torch.float64)
            optimiser.step()
        uploads = run.round(uploads, (steps, 1, 1), began=20 * r)
        assert weight(run.parties[0]) == pytest.approx(theta.item(), rel=1e-4), f"round {r}"
        assert uploads[0].weight == 1.0


# Eq. (8): θ^{r,τ} − θ^{r,0} = −η Σ_t w_t·g_t, whatever the gradients are.
WEIGHTS = {
    "sgd": ({}, lambda t, tau: 1.0),
    "momentum": ({"momentum": 0.9}, lambda t, tau: (1 - 0.9 ** (tau - t)) / (1 - 0.9)),
    "prox": ({"prox": 2.0}, lambda t, tau: (1 - 0.1 * 2.0) ** (tau - 1 - t)),
    "decay": ({"decay": 0.8}, lambda t, tau: 0.8**t),
}


@pytest.mark.parametrize("tau", [1, 2, 7])
@pytest.mark.parametrize("name", WEIGHTS)
def test_cumulative_weights(name, tau):
    """Eq. (8), no labels involved: given gradients, by the code, by a loop, and by the weights, in two phases each."""
    fields, w = WEIGHTS[name]
    rng, eta = np.random.default_rng(3), 0.1
    spec, rule = local_rule(PLAIN, FlexOptions(**fields), 0)
    network = Parameters(torch.tensor(rng.standard_normal(5), dtype=torch.float32), spec)
    phase = LocalPhase(network, rule)
    for number in (1, 2):  # the second phase: nothing of the first is left
        g = rng.standard_normal((tau, 5)).astype(np.float32)
        start = network.vector().astype(np.float64)
        loop, u = start.copy(), np.zeros(5)
        phase.begin(0, number, 0.0, tau, 1.0)
        for t in range(tau):
            u = rule.momentum * u + g[t] + rule.prox * (loop - start)
            loop -= eta * rule.decay**t * u
            phase.learn(LocalStepped(g[t], []), eta, t + 1)
        by_weights = -eta * sum(w(t, tau) * g[t].astype(np.float64) for t in range(tau))
        np.testing.assert_allclose(loop - start, by_weights, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(network.vector() - start, by_weights, rtol=1e-4, atol=1e-6)
        report = phase.report()
        assert (report.phase, report.steps) == (number, tau)
        assert report.weight == pytest.approx(max(w(t, tau) for t in range(tau)), rel=1e-12)
        assert name == "momentum" or report.weight == 1.0


@BOTH
def test_alg_2_measures_first_and_then_divides(labels, flex):
    """Both `labels` modes. A round that only measures changes nothing; then η_k = A_k/(τ_k·w̄_k) of the round before."""
    rates = {"server": 0.125, "party": [0.5, 0.25]}
    run = flex(options(labels, AdaptiveOptions, A=rates_of(rates), momentum=0.5))
    uploads = run.round(run.uploads(), (2, 3, 4))
    assert [weight(role) for role in (*run.parties, run.server)] == [*W, A]
    assert [begin.scale for begin in run.begins] == [0.0, 0.0]
    assert run.server.k == 0 and [up.round for up in uploads] == [0, 0], "the same batch again"
    assert [(up.steps, up.weight) for up in uploads] == [(2, 1.5), (3, 1.75)]

    w, a, before = list(W), A, [(2, 1.5), (3, 1.75), (4, 1.875)]
    for r, steps in enumerate(((3, 1, 2), (1, 2, 1))):
        uploads = run.round(uploads, steps, began=20 * (r + 1))
        assert [begin.scale for begin in run.begins] == [1 / (tau * w_bar) for tau, w_bar in before[:2]]
        assert [begin.round for begin in run.begins] == [r, r]
        eta = [A_k / (tau * w_bar) for A_k, (tau, w_bar) in zip((0.5, 0.25, 0.125), before, strict=True)]
        *own, top = gradients(w, a, labels)
        w = [reference(w[m], own[m], steps[m], eta[m], 0.5)[0] for m in (0, 1)]
        a = reference(a, top, steps[2], eta[2], 0.5)[0]
        assert [weight(party) for party in run.parties] == pytest.approx(w, rel=1e-5)
        assert weight(run.server) == pytest.approx(a, rel=1e-5)
        before = [(tau, (1 - 0.5**tau) / (1 - 0.5)) for tau in steps]
        assert [(up.steps, up.weight) for up in uploads] == before[:2]
    assert run.server.k == 2


@pytest.mark.parametrize(("follows", "factor"), [(True, 1 / 2), (False, 1.0)])
def test_alg_2_has_no_factor_for_another_timeout(follows, factor):
    """τ = 5 in 10 s; for 20 s the default expects τ = 10 and halves the rate, Alg. 2 l. 17 takes 1/(τ·w̄) as it is."""
    pacing = Pacing(AdaptiveOptions(rate_follows_timeout=follows, A=0.5), 12.0)
    pacing.note("server", Report(1, 5, 1.5, 2.0), 10.0)
    pacing.note("party-1", Report(1, 5, 1.5, 2.0), 10.0)
    pacing.note("slow", Report(1, 1, 1.0, 40.0), 10.0)
    pacing.note_round_trip("party-1", 10.0)
    pacing.timeout_s = 20.0  # which the rule keeps, since no other is much better
    plan = pacing.plan(["party-1", "slow", "new"], "server")
    assert plan.timeout_s == 20.0
    assert plan.scales["party-1"] == plan.scales["server"] == pytest.approx(factor / (5 * 1.5))
    assert plan.scales["slow"] == 1.0, "its one step took 40 s, so in 20 s it takes one again"
    assert plan.scales["new"] == plan.scales["party-1"], "the most careful of the others"


def test_without_a_the_quickest_party_has_the_rate_of_flex():
    """By hand: τ = 8, 5 and 2 in 8 s, so A is 8 rates: η, 8/5·η and 2η, the most; the server's steps do not count."""
    pacing = Pacing(AdaptiveOptions(timeout_s=8.0, server_steps="fit"), 12.0)
    names = ["quick", "middle", "slow"]
    for name, steps in zip(names, (8, 5, 2), strict=True):
        pacing.note(name, Report(1, steps, 1.0, 8.0 / steps), 8.0)
    pacing.note("server", Report(1, 800, 1.0, 0.01), 8.0)
    scales = pacing.plan([*names, "new"], "server").scales
    assert scales == {"quick": 1.0, "middle": 8 / 5, "slow": BOLDEST, "server": 0.01, "new": 1.0}
    pacing.note("middle", Report(2, 5, 2.0, 1.6), 8.0)  # τ·w̄ = 10: the mean is 5 + 0.2·(10 − 5) = 6
    scales = pacing.plan(names, "server").scales
    assert scales["middle"] == pytest.approx(8 / 6) and scales["quick"] == 1.0
    assert pacing.plan(["middle", "slow"], "server").scales["middle"] == 1.0, "the quickest of those that take part"


def test_a_server_that_is_capped_has_at_least_the_rate_of_flex():
    """By hand: with the quick party the server took 8 steps; it takes 2 beside a party of 2, at the rate of `flex`."""
    pacing = Pacing(AdaptiveOptions(timeout_s=8.0), 12.0)
    for name, steps in {"quick": 8, "slow": 2, "server": 8}.items():
        pacing.note(name, Report(1, steps, 1.0, 8.0 / steps), 8.0)
    plan = pacing.plan(["slow"], "server")
    assert plan.server_limit == 2 and plan.scales == {"slow": 1.0, "server": 1.0}
    assert pacing.plan(["slow", "quick"], "server").scales == {"quick": 1.0, "slow": BOLDEST, "server": 1.0}
    pacing.note("server", Report(2, 1, 1.0, 8.0), 8.0)  # τ is 8 + 0.2·(1 − 8) = 6.6
    slower = pacing.plan(["slow", "quick"], "server").scales["server"]
    assert slower == pytest.approx(8 / 6.6), "a server that cannot keep up has more"


@pytest.mark.parametrize(
    ("fields", "measures"), [({}, False), ({"A": 1.0}, True), ({"server_steps": "fit"}, True)], ids=str
)
def test_only_rates_that_need_tau_cost_a_round(fields, measures):
    """Alg. 2 l. 2; without an A the first rates, and the first round, are those of `flex`."""
    pacing = Pacing(AdaptiveOptions(timeout_s=8.0, **fields), 12.0)
    assert pacing.measures(["party"]) == measures
    assert set(pacing.plan(["party"], "server").scales.values()) == {0.0 if measures else 1.0}


def test_without_a_a_step_has_at_most_the_rate_of_a_round():
    """One step fits, and a late party's step takes 40 s: as in `flex`, each takes one step of its learning rate."""
    pacing = Pacing(AdaptiveOptions(timeout_s=8.0), 12.0)
    pacing.note("quick", Report(1, 1, 1.0, 8.0), 8.0)
    pacing.note("late", Report(1, 1, 1.0, 40.0), 8.0)
    assert pacing.plan(["quick", "late"], "server").scales == {"quick": 1.0, "late": 1.0, "server": 1.0}


@BOTH
def test_a_late_report_changes_the_adaptive_rate(labels, flex):
    """Both `labels` modes: party 2 took 3 steps in the dummy round, then a step of 12 s: τ = 1, so η = A_2."""
    run = flex(options(labels, AdaptiveOptions, A=0.5))
    server, (quick, slow) = run.server, run.parties
    uploads = run.round(run.uploads(), (2, 3, 1))
    opened = run.at(20).open(uploads)
    begins = {effect.to: effect.message for effect in of(opened, Send)}
    assert begins["party-2"].scale == 1 / 3
    running = of(run.told(slow, Received("server", begins["party-2"])), Work)
    run.step(quick, run.at(20).told(quick, Received("server", begins["party-1"])), 2, 20)
    run.step(server, opened, 1, 20)
    upload = of(run.work(quick, run.at(30).ring(quick, 30))[1], Send)[0].message
    run.ring(server, 30)
    run.told(server, Received("party-1", upload))
    opened = run.work(server, run.told(server, Received("party-2", of(run.ring(slow, 30), Send)[0].message)))[1]
    assert [effect.to for effect in of(opened, Send)] == ["party-1"], "the round goes on without it"

    _, effects = run.at(32).work(slow, running)
    (skip,) = run.told(server, Received("party-2", of(run.work(slow, effects)[1], Send)[0].message))
    _, effects = run.work(slow, run.told(slow, Received("server", skip.message)))
    run.told(server, Received("party-2", of(effects, Send)[0].message))
    run.step(server, opened, 1, 30)
    run.at(40).ring(server, 40)
    upload = Ready(2, upload.values, 3, 2, 1.0, 1.0, 10.0)
    opened = run.work(server, run.told(server, Received("party-1", upload)))[1]
    assert {effect.to: effect.message.scale for effect in of(opened, Send)} == {"party-1": 1 / 2, "party-2": 1.0}


@BOTH
def test_a_step_that_ends_with_the_bell_counts_and_one_that_runs_is_dropped(labels, flex):
    """Both `labels` modes: steps of 5 s fill 10 s; one of 4 s after another of 4 s is dropped, half done."""
    run = flex(options(labels))
    begins = {effect.to: effect.message for effect in of(run.open(run.uploads()), Send)}
    first, second = run.parties
    effects = run.told(first, Received("server", begins["party-1"]))
    for end in (5, 10):
        effects = run.at(end).work(first, of(effects, Work))[1]
    assert effects == [], "it waits for the bell"
    (embed,) = run.ring(first, 10)
    assert embed.kind == "embed"
    assert weight(first) == (2 - 1 / 8 if labels == "server" else 2 - 1 / 16 - 7 / 128), "two steps"

    effects = run.at(0).told(second, Received("server", begins["party-2"]))
    for end in (4, 8):
        effects = run.at(end).work(second, of(effects, Work))[1]
        assert [work.kind for work in effects] == (["step"] if end == 4 else []), "a third one would not end in time"
    after_two = weight(second)
    assert of(run.at(10).ring(second, 10), CancelWork) == [] and weight(second) == after_two


@BOTH
def test_a_step_that_runs_at_the_bell_changes_nothing(labels, flex):
    """Both `labels` modes: a first step of 3 s, a second one that takes longer than the 7 s that are left."""
    run = flex(options(labels))
    opened = run.open(run.uploads())
    begin = of(opened, Send)[0].message
    party, server = run.parties[0], run.server
    effects = run.told(party, Received("server", begin))
    (running,) = of(run.at(3).work(party, of(effects, Work))[1], Work)
    (of_server,) = of(run.work(server, of(opened, Work))[1], Work)
    assert (weight(party), weight(server)) == (2 - 1 / 16, A - 7 / 32)
    cancelled, embed = run.at(10).ring(party, 10)
    assert cancelled == CancelWork(running.token) and embed.kind == "embed"
    assert of(run.ring(server, 10), CancelWork) == [CancelWork(of_server.token)]
    assert (weight(party), weight(server)) == (2 - 1 / 16, A - 7 / 32)
    upload = of(run.work(party, [embed])[1], Send)[0].message
    assert (upload.steps, upload.step_s, upload.held_s) == (1, 3.0, 10.0)
    assert run.ring(party, 10) == [] == run.ring(server, 10), "a bell of a phase that is over"


@BOTH
def test_a_party_without_a_finished_step_says_so_ends_it_and_skips_to_the_newest_round(labels, flex):
    """Both `labels` modes: party 2 needs 12 s; round 1 begins without it, and it joins round 2."""
    run = flex(options(labels))
    server, (_, slow) = run.server, run.parties
    opened = run.open(run.uploads())
    begins = {effect.to: effect.message for effect in of(opened, Send)}
    running = of(run.told(slow, Received("server", begins["party-2"])), Work)
    quick = run.told(run.parties[0], Received("server", begins["party-1"]))
    run.step(run.parties[0], quick, 1, 0)
    run.step(server, opened, 1, 0)
    upload = of(run.work(run.parties[0], run.at(10).ring(run.parties[0], 10))[1], Send)[0].message
    run.ring(server, 10)

    assert run.ring(slow, 10) == [Send("server", Late(1))] and weight(slow) == 1.0
    assert run.told(server, Received("party-1", upload)) == [], "the server waits for it until it says that it is late"
    opened = run.work(server, run.told(server, Received("party-2", Late(1))))[1]
    assert [effect.to for effect in of(opened, Send)] == ["party-1"], "round 1 without it"

    _, effects = run.at(12).work(slow, running)
    assert weight(slow) == 1 - ETA * 5 / 4, "its step is not lost"
    late = of(run.work(slow, effects)[1], Send)[0].message
    assert (late.round, late.phase, late.steps, late.step_s) == (1, 1, 1, 12.0)
    assert run.told(server, Received("party-2", late)) == [Send("party-2", Skip(2))]
    _, effects = run.work(slow, run.told(slow, Received("server", Skip(2))))
    again = of(effects, Send)[0].message
    assert (again.round, again.phase) == (2, 0), "it reports each step once"
    run.told(server, Received("party-2", again))
    run.step(server, opened, 1, 10)
    run.at(20).ring(server, 20)
    upload = Ready(2, upload.values, 2, 1, 1.0, 1.0, 10.0)
    opened = run.work(server, run.told(server, Received("party-1", upload)))[1]
    begun = {effect.to: effect.message for effect in of(opened, Send)}
    assert set(begun) == {"party-1", "party-2"} and {begin.round for begin in begun.values()} == {2}
    assert run.told(slow, Received("server", begun["party-2"])), "it takes part again"


def test_patience_with_a_late_one_while_all_others_are_lost(flex):
    """labels = "server": party 1 has uploaded and is lost, party 2 is late; a second timeout changes nothing."""
    run = flex(options("server"))
    server, uploads = run.server, run.round(run.uploads(), (1, 1, 1))
    opened = run.at(20).open(uploads)
    run.step(server, opened, 1, 20)
    (timer,) = of(run.at(30).ring(server, 30), SetTimer)
    assert timer.name == "patience" and timer.at > run.now
    run.told(server, Received("party-1", Ready(2, uploads[0].values, 2, 1, 1.0, 1.0, 10.0)))
    run.told(server, PeerLost("party-1"))
    run.told(server, Received("party-2", Late(2)))
    for _ in range(2):
        assert run.told(server, TimerFired("patience", timer.at)) == [], "no party is present to continue with"
    assert server.waits_for() == ["party-2"] and list(server.state.absent) == ["party-2"]


def rates_of(table):
    """`protocol.A` of a config."""
    return msgspec.convert({"A": table}, AdaptiveOptions).A
