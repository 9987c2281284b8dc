"""What Flex-VFL refuses: settings that cannot work, and bad messages of a peer; errors name the peer and the rule."""

import msgspec
import numpy as np
import pytest

from colonnade.algorithms.flex.messages import BeginWithGradient, BeginWithSnapshot, Late, Ready, Snapshot
from colonnade.algorithms.vafl.messages import Embeddings, Skip
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import PeerJoined, Received, Started, Work, WorkDone
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest, Message

BOTH = pytest.mark.parametrize("labels", ["server", "shared"])
NAN, INF = float("nan"), float("inf")
LOCAL = ("flex", "adaptive-flex", "sync-min", "sync-max")


# Settings; none of them depends on `labels`, which is "server" here.


def refused_setting(resolve, protocol, key, advice="", train=None):
    with pytest.raises(ConfigError, match=advice or None) as caught:
        resolve({"protocol": protocol, "train": train or {}}, parties=3).roles()
    assert caught.value.key == key


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("timeout_s", [0, 0.0, -1.0, NAN, INF, -INF, "soon", "AUTO", None, [1.0]])
def test_a_timeout_is_above_zero_or_auto(name, timeout_s, resolve):
    refused_setting(resolve, {"name": name, "timeout_s": timeout_s}, "protocol.timeout_s")


def test_p_bcd_has_nothing_of_local_steps(resolve):
    for key in ("timeout_s", "momentum", "prox", "decay", "max_steps", "useful_steps", "server_steps", "A", "on_lost"):
        refused_setting(resolve, {"name": "p-bcd", key: 1}, f"protocol.{key}", "p-bcd: unknown key")


@pytest.mark.parametrize("useful", [0, -1.0, NAN, INF])
def test_useful_steps_are_above_zero(useful, resolve):
    setting = {"name": "flex", "useful_steps": useful}
    refused_setting(resolve, setting, "protocol.useful_steps", "must be above 0 local steps")


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("rho", [-0.1, 1, 1.5, NAN, INF, [0.5, 1.0, 0.0], [0.0, -0.5, 0.0]])
def test_momentum_is_at_least_0_and_below_1(name, rho, resolve):
    refused_setting(resolve, {"name": name, "momentum": rho}, "protocol.momentum", "ρ must be at least 0 and below 1")


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("other", ["adam", "RMSprop", {"name": "Adagrad", "lr_decay": 0.1}])
def test_momentum_is_of_sgd(name, other, resolve):
    """Momentum is refused for roles whose optimiser has none; a list with one value per party gives 0 for them."""
    for rho in (0.5, [0.0, 0.5, 0.0]):
        given = {"server": "sgd", "party": ["sgd", other, "sgd"]}
        cause = (
            r"protocol\.momentum = .*: party 2 steps by '\w+', .*: use 'sgd', set 0, or a list with 0\.0 for this party"
        )
        refused_setting(resolve, {"name": name, "momentum": rho}, "protocol.momentum", cause, {"optimiser": given})
    given = {"server": other, "party": "sgd"}
    cause = "the server steps by .* a list with one value for each party, without the server"
    refused_setting(resolve, {"name": name, "momentum": 0.5}, "protocol.momentum", cause, {"optimiser": given})
    fine = {"protocol": {"name": name, "momentum": [0.5, 0.0, 0.5]}}
    for given in ({"server": other, "party": "sgd"}, {"server": "sgd", "party": ["sgd", other, "sgd"]}):
        assert resolve(fine | {"train": {"optimiser": given}}, parties=3).roles()


@pytest.mark.parametrize("rho", [1.0, 1.5, NAN, INF])
@pytest.mark.parametrize("name", ["sgd", "momentum", "SGD"])
@pytest.mark.parametrize("where", ["all", "server", "party"])
def test_the_momentum_of_an_optimiser_is_refused_too(where, name, rho, resolve):
    own = {"name": name, "momentum": rho}
    given = {"server": "sgd", "party": ["sgd", own, "sgd"]} if where == "party" else {"server": own, "party": "sgd"}
    train = {"optimiser": own if where == "all" else given}
    refused_setting(resolve, {"name": "flex"}, "train.optimiser", "ρ must be at least 0 and below 1", train)


def test_torch_refuses_a_negative_one_itself(resolve):
    train = {"optimiser": {"name": "momentum", "momentum": -0.5}}
    refused_setting(resolve, {"name": "flex"}, "train.optimiser", "momentum does not accept these options", train)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("prox", -1.0, "μ must be 0 or more"),
        ("prox", NAN, "μ must be 0 or more"),
        ("prox", [0.0, INF, 0.0], "μ must be 0 or more"),
        ("decay", 0.0, "must be above 0 and at most 1"),
        ("decay", 1.1, "must be above 0 and at most 1"),
        ("decay", [1.0, 1.0, NAN], "must be above 0 and at most 1"),
        ("momentum", [0.5], "a list needs one value for each of 3 parties"),
        ("prox", [0.1] * 4, "a list needs one value for each of 3 parties"),
        ("decay", [], "a list needs one value for each of 3 parties"),
        ("max_steps", 0, "must be 1 or more local steps a round"),
        ("max_steps", -3, "must be 1 or more local steps a round"),
        ("max_steps", 1.5, "expected `int"),
        ("labels", "nobody", "use one of 'server', 'shared'"),
        ("on_lost", "shrug", "use one of 'continue', 'wait'"),
        ("server_steps", "many", "use one of 'quickest', 'fit'"),
        ("server_steps", 64, "use one of 'quickest', 'fit'"),
        ("rate_follows_timeout", True, "flex: unknown key"),
    ],
)
def test_other_settings(key, value, advice, resolve):
    refused_setting(resolve, {"name": "flex", key: value}, f"protocol.{key}", advice)


@pytest.mark.parametrize(
    "own", [{"prox": -1.0}, {"prox": NAN}, {"prox": INF}, {"decay": 0.0}, {"decay": 2.0}, {"decay": NAN}, {"prox": "x"}]
)
def test_prox_and_decay_of_a_partys_own(own, resolve):
    train = {"optimiser": {"server": "sgd", "party": ["sgd", {"name": "sgd"} | own, "sgd"]}}
    refused_setting(resolve, {"name": "flex"}, "train.optimiser", "", train)


@pytest.mark.parametrize(
    "a",
    [0, 0.0, -0.1, NAN, INF, {"server": 0.0, "party": 0.1}, {"server": 0.1, "party": -1.0},
     {"server": 0.1, "party": [0.1, 0.0, 0.1]}, {"server": NAN, "party": [0.1, 0.1, 0.1]}],
)  # fmt: skip
def test_a_is_above_0(a, resolve):
    refused_setting(resolve, {"name": "adaptive-flex", "A": a}, "protocol.A", "A_k must be above 0")


def test_a_list_of_a_has_one_for_each_party(resolve):
    protocol = {"name": "adaptive-flex", "A": {"server": 0.1, "party": [0.1, 0.1]}}
    refused_setting(resolve, protocol, "protocol.A", "a list needs one value for each of 3 parties")
    for a in ([0.1, 0.1, 0.1], {"party": 0.1}, "all"):
        with pytest.raises(ConfigError, match=r"protocol\.A"):
            resolve({"protocol": {"name": "adaptive-flex", "A": a}}, parties=3)
    refused_setting(resolve, {"name": "flex", "A": 0.1}, "protocol.A", "flex: unknown key")


@pytest.mark.parametrize("own", [{"prox": 0.1}, {"decay": 0.5}])
@pytest.mark.parametrize("method", ["vafl", "sync", "cascaded"])
def test_prox_and_decay_are_for_local_steps(method, own, resolve):
    train = {"optimiser": {"name": "sgd"} | own}
    refused_setting(resolve, {"name": method}, "train.optimiser", "for methods with local steps, such as 'flex'", train)
    assert resolve({"protocol": {"name": "flex"}, "train": train}, parties=3).roles()


@BOTH
@pytest.mark.parametrize("name", ["flex", "adaptive-flex"])
def test_a_timeout_shorter_than_anybodys_step(name, labels, simulate):
    """Both `labels` modes: reported after ten rounds, with the duration of the quickest party's step."""
    compute = [{"mean_s": mean_s} for mean_s in (0.5, 0.04, 0.3, 0.2)]
    tables = {"protocol": {"name": name, "timeout_s": 0.03, "labels": labels}, "clock": {"compute": compute}}
    cause = r"timeout_s = 0.03: no party finished a step in this time: the fastest took 0.04 s; raise it, or use 'auto'"
    with pytest.raises(ConfigError, match=cause):
        simulate(tables)


@BOTH
def test_a_timeout_that_one_party_can_keep_is_no_error(labels, simulate):
    """Both `labels` modes: the quickest party is in time, so the run continues."""
    compute = [{"mean_s": mean_s} for mean_s in (0.5, 0.03, 0.3, 0.2)]
    protocol = {"name": "flex", "timeout_s": 0.03, "labels": labels}
    run = simulate({"protocol": protocol, "clock": {"compute": compute}, "train": {"updates": 30}})
    assert run.status == "finished" and run.server.k == 30


# What a party may not send

ROWS = 4
GOOD = np.ones((ROWS, 6), np.float32)


@pytest.fixture
def roles(resolve):
    def make(labels="server", method="flex", **protocol):
        fields = {} if method == "p-bcd" else {"timeout_s": 1.0}
        tables = {
            "protocol": {"name": method, "labels": labels} | fields | protocol,
            "model": {"party": "linear", "embedding": [5, 6, 7], "server": "linear"},
            "train": {"batch_size": ROWS},
        }
        server, *parties = resolve(tables, parties=3).roles()
        server.handle(Started(b""), 0)
        server.state.due = ""  # no evaluation first
        for party in parties:
            server.handle(PeerJoined(party.name), 0)
        return server, parties

    return make


def refused(role, event, cause):
    """Expect the error and an unchanged role: the driver drops the sender and continues."""
    before = state.pack(role.save())
    with pytest.raises(RemoteProtocolError, match=cause) as caught:
        role.handle(event, 0)
    assert caught.value.peer == event.sender
    role.validate()
    assert state.pack(role.save()) == before


def one_work(effects):
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    return work


def opened(server):
    """A server whose first phase has begun, with valid uploads of all three parties; return its effects."""
    for m, width in enumerate((5, 6, 7)):
        effects = server.handle(Received(f"party-{m + 1}", Ready(0, np.ones((ROWS, width), np.float32))), 0)
    work = one_work(effects)
    return server.handle(WorkDone(work.token, server.compute(work.job)), 0)


@BOTH
@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (np.ones((ROWS, 5), np.float32), r"party-2: embeddings of shape \(4, 5\), expected \(4, 6\) float32"),
        (np.ones((3, 6), np.float32), r"party-2: embeddings of shape \(3, 6\)"),
        (np.ones(24, np.float32), r"party-2: embeddings of shape \(24,\)"),
        (np.ones((ROWS, 6)), "party-2: .*float32"),
        (np.ones((ROWS, 6), np.int32), "party-2: .*float32"),
        (np.where(GOOD > 0, np.float32(NAN), GOOD), "party-2: embeddings that are not finite"),
        (np.full((ROWS, 6), np.inf, np.float32), "party-2: embeddings that are not finite"),
        (np.full((ROWS, 6), -2e6, np.float32), r"party-2: embeddings .* beyond ±1e\+06"),
    ],
)
def test_bad_embeddings(values, cause, labels, roles):
    """Both `labels` modes, before and during a phase."""
    server, _ = roles(labels)
    refused(server, Received("party-2", Ready(0, values)), cause)
    opened(server)
    refused(server, Received("party-2", Ready(1, values, 1, 2, 1.0, 0.1, 0.2)), cause)
    server.handle(Received("party-2", Ready(1, GOOD, 1, 2, 1.0, 0.1, 0.2)), 0)
    assert list(server.state.line) == ["party-2"], "the right ones are taken"


@BOTH
@pytest.mark.parametrize("round_", [-1, -(2**40), 2**40, 2**62])
def test_a_round_is_a_number_that_a_run_can_reach(round_, labels, roles):
    """Both `labels` modes."""
    server, _ = roles(labels)
    refused(server, Received("party-2", Ready(round_, GOOD)), f"party-2: embeddings of round {round_}")


@BOTH
@pytest.mark.parametrize(
    ("report", "cause"),
    [
        ((0, 1.0, 0.1, 0.2), "reports τ = 0 local steps; it must be 1 or more"),
        ((-3, 1.0, 0.1, 0.2), "reports τ = -3 local steps"),
        ((2**62, 1.0, 0.1, 0.2), f"reports τ = {2**62} local steps"),
        ((2, 0.0, 0.1, 0.2), "reports w̄ = 0.0"),
        ((2, -1.0, 0.1, 0.2), "reports w̄ = -1.0"),
        ((2, NAN, 0.1, 0.2), "reports w̄ = nan"),
        ((2, INF, 0.1, 0.2), "reports w̄ = inf"),
        ((2, 1e7, 0.1, 0.2), r"reports w̄ = 10000000\.0"),
        ((2, 1.0, -0.1, 0.2), "reports steps of -0.1 s"),
        ((2, 1.0, NAN, 0.2), "reports steps of nan s"),
        ((2, 1.0, 1e300, 0.2), "reports steps of 1e\\+300 s"),
        ((2, 1.0, 0.1, -0.2), "-0.2 s in all"),
        ((2, 1.0, 0.1, NAN), "nan s in all"),
        ((2, 1.0, 0.1, INF), "inf s in all"),
    ],
)
def test_a_report_that_cannot_be(report, cause, labels, roles):
    """Both `labels` modes, of `flex` and of `adaptive-flex`, where it matters most: a rate would be A/(τ·w̄)."""
    for method in ("flex", "adaptive-flex"):
        server, _ = roles(labels, method)
        opened(server)
        refused(server, Received("party-2", Ready(server.state.following, GOOD, 1, *report)), f"^party-2: .*{cause}")


@BOTH
def test_a_report_of_a_phase_that_never_was_is_not_counted(labels, roles):
    """Both `labels` modes: the embeddings are valid, but a number from before a restart says nothing about speeds."""
    server, _ = roles(labels)
    opened(server)
    server.handle(Received("party-2", Ready(1, GOOD, 99, 5, 1.0, 0.1, 0.6)), 0)
    assert list(server.state.line) == ["party-2"] and server.pacing.step_s == {} and "party-2" not in server.state.steps


@BOTH
def test_which_messages_the_server_accepts(labels, roles):
    """Both `labels` modes."""
    server, _ = roles(labels)
    opened(server)
    good = Ready(1, GOOD, 1, 2, 1.0, 0.1, 0.2)
    refused(server, Received("nobody", good), "nobody: server does not expect a Ready")
    refused(server, Received("nobody", Late(1)), "nobody: server does not expect a Late")
    upload = Embeddings(0, ROWS, np.arange(ROWS, dtype=np.int32), GOOD)
    for message in (Skip(3), upload, EvaluationRequest(1, 0, 5)):
        refused(server, Received("party-2", message), f"party-2: server does not expect a {type(message).__name__}")
    before = state.pack(server.save())
    for phase in (0, -1, 2, 2**62):
        assert server.handle(Received("party-2", Late(phase)), 0) == [], "of another phase: of no interest"
    refused(server, Received("party-2", EvaluationReply(7, 0, 0, GOOD)), "party-2: evaluation 7 at step 0")
    assert state.pack(server.save()) == before


@BOTH
def test_late_twice_or_after_the_upload_is_late_once(labels, roles):
    """Both `labels` modes."""
    server, _ = roles(labels)
    opened(server)
    for _ in range(2):
        server.handle(Received("party-2", Late(1)), 0)
    assert list(server.state.late) == ["party-2"] == list(server.state.absent)
    server.handle(Received("party-1", Ready(1, np.ones((ROWS, 5), np.float32), 1, 2, 1.0, 0.1, 0.2)), 0)
    server.handle(Received("party-1", Late(1)), 0)
    assert list(server.state.late) == ["party-2"]
    server.validate()


# What a server may not send


def ready(party):
    """The party after its upload."""
    work = one_work(party.handle(Started(b""), 0))
    party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    return party


def begin(labels, roles, **changes):
    """A waiting party, and a changed message of the server."""
    server, parties = roles(labels)
    sends = [effect for effect in opened(server) if getattr(effect, "to", "") == "party-2"]
    return ready(parties[1]), msgspec.structs.replace(sends[0].message, **changes)


@BOTH
@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_s": 0.0, "limit": 0}, {"timeout_s": -1.0}, {"timeout_s": NAN}, {"timeout_s": INF},
        {"timeout_s": 1e10}, {"limit": -1}, {"scale": -0.5}, {"scale": 1e7}, {"scale": NAN}, {"phase": 0},
        {"phase": -1}, {"update": -1}, {"following": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_phase_that_cannot_be(changes, labels, roles):
    """Both `labels` modes."""
    party, message = begin(labels, roles, **changes)
    refused(party, Received("server", message), "^server: starts an impossible phase")
    party, good = begin(labels, roles)
    assert one_work(party.handle(Received("server", good), 0)).kind == "step"


@pytest.mark.parametrize(
    "values",
    [np.ones((ROWS, 5), np.float32), np.ones((3, 6), np.float32), np.ones((ROWS, 6)), np.ones((ROWS, 6), np.int32),
     np.ones(6, np.float32), np.float32(1).reshape(())],
)  # fmt: skip
def test_a_gradient_that_does_not_fit(values, roles):
    """labels = "server"."""
    party, message = begin("server", roles, values=values)
    refused(party, Received("server", message), r"^server: gradient of shape .*, expected \(4, 6\) float32")


def snapshot(labels, roles):
    party, message = begin(labels, roles)
    return party, message, message.snapshot


CLASSES, WIDTH = 10, 18
BAD_SNAPSHOTS = {
    "narrow": {"h": np.ones((ROWS, 17), np.float32)},
    "short": {"h": np.ones((ROWS - 1, WIDTH), np.float32)},
    "flat": {"h": np.ones(ROWS * WIDTH, np.float32)},
    "float64": {"h": np.ones((ROWS, WIDTH))},
    "fewer labels": {"targets": np.zeros(ROWS - 1, np.int64)},
    "labels of two columns": {"targets": np.zeros((ROWS, 2), np.int64)},
    "labels without a length": {"targets": np.zeros((), np.int64)},
    "labels beyond the classes": {"targets": np.array([0, 1, 2, CLASSES])},
    "negative labels": {"targets": np.array([0, 1, -1, 2])},
    "labels that are no classes": {"targets": np.zeros(ROWS, np.float32)},
    "short θ_0": {"theta_0": np.zeros(5, np.float32)},
    "θ_0 of one number": {"theta_0": np.zeros(1, np.float32)},
    "no θ_0": {"theta_0": np.zeros(0, np.float32)},
    "a buffer": {"buffers": [np.zeros(3, np.float32)]},
    "fewer outputs": {"outputs": 3},
    "no outputs": {"outputs": 0},
    "negative outputs": {"outputs": -1},
    "another task": {"task": "regression", "outputs": 1},
}


@pytest.mark.parametrize("name", BAD_SNAPSHOTS)
def test_a_snapshot_that_does_not_fit(name, roles):
    """labels = "shared": a bad snapshot is refused, first or later, and the party accepts the next good one."""
    party, message, good = snapshot("shared", roles)
    bad = msgspec.structs.replace(message, snapshot=msgspec.structs.replace(good, **BAD_SNAPSHOTS[name]))
    refused(party, Received("server", bad), "^server: a snapshot")
    work = one_work(party.handle(Received("server", message), 0))
    assert np.isfinite(party.compute(work.job).gradient).all()

    party, message, _ = snapshot("shared", roles)
    party._check_snapshot(good)  # a valid one came before
    refused(party, Received("server", bad), "^server: a snapshot")


def test_the_other_mode_is_not_taken(roles):
    """labels = "server" and a snapshot, labels = "shared" and a gradient: the party has not agreed to either."""
    head = {"phase": 1, "round": 0, "following": 1, "update": 0, "timeout_s": 1.0, "limit": 0, "scale": 1.0}
    shown = Snapshot(GOOD, GOOD[0], [], np.zeros(ROWS, np.int64), "multiclass", CLASSES)
    gradient, with_snapshot = BeginWithGradient(**head, values=GOOD), BeginWithSnapshot(**head, snapshot=shown)
    for labels, message in (("server", with_snapshot), ("shared", gradient)):
        _, (_, party, _) = roles(labels)
        cause = f"^server: sends a {type(message).__name__}, although protocol.labels = '{labels}'"
        refused(ready(party), Received("server", message), cause)


@BOTH
def test_which_messages_a_party_accepts(labels, roles):
    """Both `labels` modes."""
    party, message = begin(labels, roles)
    for sender in ("party-1", "nobody"):
        cause = f"{sender}: party-2 does not expect a {type(message).__name__}"
        refused(party, Received(sender, message), cause)
        refused(party, Received(sender, Skip(3)), f"{sender}: party-2 does not expect a Skip")
    for other in (Ready(0, GOOD), Late(1)):
        refused(party, Received("server", other), f"server: party-2 does not expect a {type(other).__name__}")


@BOTH
def test_what_comes_at_the_wrong_moment_is_dropped_and_counted(labels, roles):
    """Both `labels` modes: a Begin of another round or in a phase, a Skip to the current round or in a phase."""
    party, message = begin(labels, roles)
    assert party.handle(Received("server", msgspec.structs.replace(message, round=7, following=8)), 0) == []
    assert party.handle(Received("server", Skip(0)), 0) == []
    party.handle(Received("server", message), 0)
    assert party.handle(Received("server", message), 0) == []
    assert party.handle(Received("server", Skip(5)), 0) == []
    assert party.summary()["dropped"] == 4 and party.summary()["skipped"] == 0


class Stranger(Message, frozen=True):
    """A message that no role knows."""


@BOTH
def test_strangers(labels, roles):
    """Both `labels` modes: an unknown message is the sender's fault; an unknown event or job is a local bug."""
    server, (party, *_) = roles(labels)
    for role in (server, party):
        refused(role, Received("server", Stranger()), f"server: {role.name} does not expect a Stranger")
        with pytest.raises(LocalProtocolError, match=f"{role.name}: no rule for Stranger"):
            role.handle(Stranger(), 0)
        with pytest.raises(LocalProtocolError, match=f"{role.name}: no job Stranger"):
            role.compute(Stranger())


@BOTH
@pytest.mark.parametrize("method", ["flex", "adaptive-flex", "p-bcd", "sync-min", "sync-max"])
def test_too_large_a_rate_diverges_and_says_so(method, labels, simulate):
    """Both `labels` modes."""
    tables = {
        "protocol": {"name": method, "labels": labels} | ({} if method == "p-bcd" else {"timeout_s": 0.05}),
        "train": {"learning_rate": 1e18, "updates": 200, "batch_size": 200},
    }
    with pytest.raises(TrainingDiverged, match="lower train.learning_rate"):
        simulate(tables)


def test_a_timeout_too_short_for_parties_of_any_speed_is_refused(simulate):
    """labels = "server": uploads arrive one by one, so the parties of a round are never all late together."""
    with pytest.raises(ConfigError, match="no party finished a step in this time: the fastest took 0.01 s"):
        simulate(
            {
                "protocol": {"name": "flex", "timeout_s": 0.001},
                "model": {"party": "linear", "embedding": 4},
                "clock": {"compute": [{"mean_s": mean_s} for mean_s in (0.04, 0.02, 0.0133, 0.01)]},
                "train": {"seconds": 2, "learning_rate": 0.01},
            }
        )
