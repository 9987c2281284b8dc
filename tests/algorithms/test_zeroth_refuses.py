"""Settings of the zeroth-order methods that cannot work: refused before a run, with the key and a value that works."""

import re

import msgspec
import numpy as np
import pytest

from colonnade.algorithms.zeroth.directions import SMALLEST_STEP, check_smoothing
from colonnade.algorithms.zeroth.messages import Losses
from colonnade.protocol import state
from colonnade.protocol.errors import ConfigError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Received, Started, WorkDone

LEARNERS = ("cascaded", "zoo", "syn-zoo")
ALL = (*LEARNERS, "frozen")


@pytest.fixture
def roles(resolve):
    def make(method="cascaded", model=None, train=None, **options):
        tables = {
            "protocol": {"name": method, **options},
            "model": {"party": "linear", "embedding": 4, "server": "linear"} | (model or {}),
            "train": train or {},
        }
        return resolve(tables, parties=3).roles()

    return make


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("smoothing", [0.0, -1e-3, float("inf"), float("nan")])
def test_smoothing_is_above_zero(method, smoothing, roles):
    with pytest.raises(ConfigError, match=r"protocol\.smoothing = .*must be above 0; the paper uses 0\.001"):
        roles(method, smoothing=smoothing)


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": [0.1]}, r"protocol\.smoothing = \[0\.1\]: a list needs one value for each of \d parties"),
        ({"smoothing": [0.1, 0.1, 0.0]}, r"protocol\.smoothing = \[0\.1, 0\.1, 0\.0\]: must be above 0"),
        ({"smoothing": [1, 1e-9, 1]}, r"protocol\.smoothing = 1e-09: too small for the \d+ parameters of party-2"),
        ({"difference": "backward"}, r"protocol\.difference = 'backward': use one of 'forward', 'central'"),
        ({"difference": "central", "directions": 33}, r"protocol\.directions = 33: must be between 1 and 32"),
    ],
)
def test_differences_and_a_mu_for_each_party_that_cannot_be(method, options, message, roles):
    with pytest.raises(ConfigError, match=message):
        roles(method, **options)


def test_the_servers_own_mu_is_above_zero(roles):
    with pytest.raises(ConfigError, match=r"protocol\.server_smoothing = 0\.0: must be above 0"):
        roles("zoo", server_smoothing=0.0)
    with pytest.raises(
        ConfigError, match=r"protocol\.server_smoothing = 1e-09: too small for the \d+ parameters of se"
    ):
        roles("zoo", server_smoothing=1e-9)
    with pytest.raises(ConfigError, match=r"protocol\.server_smoothing = .*cascaded: unknown key"):
        roles("cascaded", server_smoothing=0.1)


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("distribution", ["gaussian", "sphere"])
def test_smoothing_that_rounding_swallows_says_which_would_do(method, distribution, roles):
    with pytest.raises(
        ConfigError, match=r"protocol\.smoothing = 1e-09: too small for the \d+ parameters of"
    ) as caught:
        roles(method, smoothing=1e-9, distribution=distribution)
    advised = float(re.search(r"use at least (\S+)$", str(caught.value))[1])
    assert advised >= (SMALLEST_STEP if distribution == "gaussian" else 5 * SMALLEST_STEP)
    assert roles(method, smoothing=advised, distribution=distribution), "the advised value is accepted"


def test_the_sphere_needs_more_smoothing_the_more_parameters_there_are():
    check_smoothing(1e-3, 25_000, "gaussian", "party-1")
    check_smoothing(1e-3, 25_000, "sphere", "party-1")
    check_smoothing(1e-6, 2_000_000, "gaussian", "party-1")
    with pytest.raises(ConfigError, match="2000000 parameters of party-1.*use at least 1.6e-03"):
        check_smoothing(1e-3, 2_000_000, "sphere", "party-1")


def test_the_servers_parameters_count_where_it_estimates(roles):
    big = {"server": "mlp:2000"}
    small = 1.2 * SMALLEST_STEP * (17 * 4) ** 0.5 + 1e-5
    with pytest.raises(ConfigError, match="parameters of server"):
        roles("zoo", big, smoothing=small, distribution="sphere")
    assert roles("cascaded", big, smoothing=small * 2, distribution="sphere")


@pytest.mark.parametrize("method", ["zoo", "syn-zoo"])
def test_a_server_without_parameters_has_nothing_to_estimate(method, roles):
    model = {"embedding": 10, "aggregate": "sum", "server": "none"}
    with pytest.raises(
        ConfigError, match=f"protocol.name = '{method}': the server model has no parameters.*'cascaded'"
    ):
        roles(method, model)
    assert roles("cascaded", model) and roles("frozen", model)


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("count", [0, -1, 2000])
def test_directions_are_some_and_not_thousands(method, count, roles):
    keys = ["directions"] if method == "cascaded" else ["directions", "server_directions"]
    for key in keys:
        with pytest.raises(ConfigError, match=rf"protocol\.{key} = {count}: must be between 1 and 64"):
            roles(method, **{key: count})


@pytest.mark.parametrize(("key", "value"), [("directions", 1), ("smoothing", 0.01), ("distribution", "sphere")])
def test_frozen_parties_estimate_nothing(key, value, roles):
    """These methods do not have the keys, so `colonnade compare --protocols cascaded,frozen` drops them."""
    with pytest.raises(ConfigError, match=rf"protocol\.{key} = .*frozen: "):
        roles("frozen", **{key: value})


@pytest.mark.parametrize("method", ALL)
def test_batches_that_the_server_would_not_answer(method, roles):
    with pytest.raises(ConfigError, match=r"train\.batch_size = 7: .*protocol\.min_batch = 8"):
        roles(method, train={"batch_size": 7})
    assert roles(method, train={"batch_size": 8})
    with pytest.raises(ConfigError, match=r"train\.batch_size = 64: .*protocol\.min_batch = 65"):
        roles(method, train={"batch_size": 64}, min_batch=65)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("key", "value"), [("min_batch", 0), ("extra_queries", -1)])
def test_rules_that_make_no_sense(method, key, value, roles):
    with pytest.raises(ConfigError, match=rf"protocol\.{key} = {value}"):
        roles(method, **{key: value})


@pytest.mark.parametrize("method", ["cascaded", "zoo", "frozen"])
@pytest.mark.parametrize(
    ("key", "value"), [("t", 0), ("t", 4), ("max_delay", 0), ("pause_s", [1.0]), ("pause_s", -1.0)]
)
def test_what_vafl_refuses_too(method, key, value, roles):
    with pytest.raises(ConfigError, match=rf"protocol\.{key} = "):
        roles(method, **{key: value})


@pytest.mark.parametrize(("key", "value"), [("distribution", "cauchy"), ("extra_rows", 1.0), ("order", "query-first")])
def test_what_there_is_not(key, value, roles):
    with pytest.raises(ConfigError, match=rf"protocol\.{key} = "):
        roles("cascaded", **{key: value})


@pytest.mark.parametrize("key", ["t", "batches", "max_delay"])
def test_coordinated_rounds_have_nothing_of_the_table(key, roles):
    with pytest.raises(ConfigError, match=rf"protocol\.{key} = .*syn-zoo"):
        roles("syn-zoo", **{key: 1})


# --- what a server may not send


@pytest.fixture
def uploaded(roles):
    """A party whose probe is at the server."""
    _, party, *_ = roles(directions=2, table="zeros")
    (work,) = party.handle(Started(b"key"), 0)
    party.handle(WorkDone(work.token, party.compute(work.job)), 0)
    return party


@pytest.mark.parametrize(
    ("values", "update"),
    [(np.ones(2), 0), (np.ones(4), 0), (np.ones(3, np.float32), 0), (np.ones((3, 1)), 0), (np.ones((3, 64)), 0),
     (np.array([1.0, np.nan, 1.0]), 0), (np.array([np.inf, 1.0, 1.0]), 0), (np.ones(3), -1)],
)  # fmt: skip
def test_bad_losses_name_the_server_and_change_nothing(values, update, uploaded):
    before = state.pack(uploaded.save())
    with pytest.raises(RemoteProtocolError, match="^server: losses of "):
        uploaded.handle(Received("server", Losses(0, update, values)), 0)
    assert state.pack(uploaded.save()) == before
    assert uploaded.handle(Received("server", Losses(0, 0, np.ones(3))), 0), "good ones are still accepted"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e37, 1.7e308])
def test_losses_beyond_float32_lead_to_no_warning_and_the_party_stops(size, uploaded):
    (work,) = uploaded.handle(Received("server", Losses(0, 0, np.array([size, -size, 0.0]))), 0)
    (step,) = uploaded.handle(WorkDone(work.token, uploaded.compute(work.job)), 0)
    with pytest.raises(TrainingDiverged, match="^party-1: its embeddings have left"):
        uploaded.handle(WorkDone(step.token, uploaded.compute(step.job)), 0)


def test_losses_of_another_step_are_dropped(uploaded):
    assert uploaded.handle(Received("server", Losses(1, 0, np.ones(3))), 0) == []
    assert uploaded.state.dropped == 1


def test_too_large_a_rate_diverges(simulate):
    """If both sides estimate, a run does not diverge: μu vanishes beside huge parameters, and no weight changes."""
    tables = {
        "protocol": {"name": "cascaded"},
        "model": {"party": "linear", "embedding": 4, "server": "linear"},
        "train": {"learning_rate": 1e18, "updates": 200, "batch_size": 200},
    }
    with pytest.raises(TrainingDiverged, match="not finite at update|embeddings have left"):
        simulate(tables)


# --- what a party may not send


@pytest.fixture
def uploading(roles):
    """A server, and the first probe of a party."""

    def make(method):
        server, party, *_ = roles(method, **({} if method == "syn-zoo" else {"table": "zeros"}))
        server.handle(Started(b"key"), 0)
        (work,) = party.handle(Started(b"key"), 0)
        (send,) = party.handle(WorkDone(work.token, party.compute(work.job)), 0)
        return server, send.message

    return make


@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_absurd_number_in_a_perturbed_embedding_is_its_senders_fault(method, value, uploading):
    server, probe = uploading(method)
    bad = probe.perturbed.copy()
    bad[0, 3, 1] = value
    before = state.pack(server.save())
    with pytest.raises(RemoteProtocolError, match=r"^party-1: perturbed embeddings that are not finite"):
        server.handle(Received("party-1", msgspec.structs.replace(probe, perturbed=bad)), 0)
    assert state.pack(server.save()) == before
    server.handle(Received("party-1", probe), 0)
    assert len(server.state.queue) + len(server.state.taken) == 1, "a good one is still accepted"


def test_a_party_that_diverges_says_so_itself(roles):
    _, party, *_ = roles(table="zeros")
    (work,) = party.handle(Started(b"key"), 0)
    result = party.compute(work.job)
    result.perturbed[0, 0, 0] = np.inf
    with pytest.raises(TrainingDiverged, match="^party-1: its embeddings have left"):
        party.handle(WorkDone(work.token, result), 0)


def test_a_loss_that_is_not_finite_ends_training_and_names_the_batch(uploading):
    server, probe = uploading("cascaded")
    server.network.theta.fill_(np.nan)
    (step,) = [e for e in server.handle(Received("party-1", probe), 0) if getattr(e, "kind", "") == "step"]
    with pytest.raises(TrainingDiverged, match=r"not finite at update 0 \(batch of party-1\)"):
        server.handle(WorkDone(step.token, server.compute(step.job)), 0)
