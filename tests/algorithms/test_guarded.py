"""Parties behind a guard: the ledger has every message that leaves, and a spent budget ends the uploads."""

import msgspec
import numpy as np
import pytest
from torch import nn

from colonnade.algorithms import METHODS
from colonnade.algorithms.flex.messages import Ready
from colonnade.algorithms.leaving import Withdrawn
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.drivers.ledger_file import read_ledger
from colonnade.drivers.simulator import checkpoint
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.privacy.gaussian import epsilon_of
from colonnade.protocol.errors import CheckpointError, ConfigError, ModelError
from colonnade.protocol.events import Received
from colonnade.protocol.messages import EvaluationReply

NOISE = {"mechanism": "output", "clip": 1.0, "noise": 5.0}
GUARDED = sorted(name for name, method in METHODS.items() if method.capabilities.local_updates)
UPLOADS = (Embeddings, Ready, EvaluationReply)


@pytest.fixture(scope="module")
def data():
    return split(load("breast-cancer"), parties=3, validation_fraction=0)


@pytest.fixture(scope="module")
def unscaled():
    return split(load("breast-cancer"), parties=3, scale="none", validation_fraction=0)


def tables(name="vafl", privacy=NOISE, options=None, train=None, **more):
    usual = {"batch_size": 64, "epochs": 0.5, "eval_every": "0.25 epochs", "learning_rate": 0.1}
    return {
        "protocol": {"name": name, **(options or {})},
        "model": {"party": "dense", "embedding": 3, "server": "linear"},
        "train": usual | (train or {}),
        "privacy": privacy,
        **more,
    }


class Counted(Run):
    """Counts every row that a party sends, evaluation included."""

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.uploads = {}

        def watched(name, effect, size):
            if isinstance(effect.message, UPLOADS):
                self.uploads.setdefault(name, []).append(effect.message)

        self.simulator.on_send = watched


def run(config, data, out):
    made = Counted(federation(from_dict(config), data), None)
    prepared = prepare(from_dict(config), data, out)
    made.folder = prepared.folder
    for guard in prepared._guards().values():
        guard.ledger.close()
    made.keep_ledgers()
    return made, made.execute()


def messages_of(lines):
    return [line for line in lines if line["what"] != "step"]


@pytest.mark.parametrize("name", GUARDED)
def test_every_message_stands_in_the_ledger_with_all_its_rows(name, data, tmp_path):
    made, summary = run(tables(name), data, tmp_path / "run")
    assert summary["status"] == "finished"
    for party in data.parties:
        _, lines, account = read_ledger(tmp_path / "run" / "ledgers" / f"{party}.jsonl")
        sent = made.uploads[party]
        assert len(sent) <= len(messages_of(lines)) <= len(sent) + 1, "one may be under way at the end"
        rows = [len(m.values) + (m.perturbed.size // m.values.shape[1] if hasattr(m, "perturbed") else 0) for m in sent]
        assert sum(rows) <= sum(line["rows"] for line in lines) <= sum(rows) + 64 * 2
        assert account.mu**2 == pytest.approx(sum(line["rows"] for line in lines) * (2 / 5.0) ** 2)
        spent = summary["privacy"]["parties"][party]
        assert spent["mu"] == pytest.approx(account.mu)
        assert spent["epsilon"] == pytest.approx(epsilon_of(account.mu, 1e-5), rel=1e-6)
    assert summary["privacy"]["mu"] == max(one["mu"] for one in summary["privacy"]["parties"].values())
    assert summary["privacy"]["claim_of_theorem_6"]["mu"] < summary["privacy"]["mu"]


@pytest.mark.parametrize("name", ["vafl", "flex", "cascaded"])
def test_what_leaves_is_the_clipped_embedding_and_noise(name, data, tmp_path):
    """With a tiny noise the rows have norm C at most; and no two releases have the same noise."""
    privacy = {"mechanism": "output", "clip": 0.01, "noise": 1e-4}
    made, _ = run(tables(name, privacy, train={"learning_rate": 0.0}), data, tmp_path / "run")
    sent = made.uploads["party-1"]
    longest = max(np.linalg.norm(message.values, axis=1).max() for message in sent)
    assert longest < 0.01 + 1e-4 * 8
    evaluations = [message.values for message in sent if isinstance(message, EvaluationReply)]
    assert len(evaluations) > 1 and not np.array_equal(evaluations[0], evaluations[1]), "θ is the same, noise is not"
    assert np.std(evaluations[0] - evaluations[1]) == pytest.approx(1e-4 * 2**0.5, rel=0.2)


class Sums:
    """A black box without torch: θ times the sum of a row."""

    def __init__(self, inputs, outputs):
        self.outputs = outputs

    def initial(self, generator):
        return generator.normal(size=self.outputs)

    def __call__(self, theta, rows):
        return np.tanh(rows).sum(1, keepdims=True) * theta


@pytest.mark.parametrize("mechanism", ["output", "neurons"])
def test_black_boxes_have_noise_on_what_they_give_and_no_inside(mechanism, data, tmp_path):
    config = from_dict(tables("cascaded", NOISE | {"mechanism": mechanism}))
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, party=Sums))
    if mechanism == "neurons":
        with pytest.raises(ModelError, match="a black box has no layers"):
            prepare(config, data)
        return
    made = prepare(config, data)
    assert made.execute()["privacy"]["mu"] > 1
    assert np.std(made.simulator.nodes[0].role.table.values) == pytest.approx(5.0, rel=0.2)


def test_without_a_mechanism_it_is_not_accounted(data):
    assert prepare(from_dict(tables(privacy={})), data).execute()["privacy"] is None
    assert prepare(from_dict(tables(privacy={"mechanism": "none"})), data).execute()["privacy"] is None


@pytest.mark.parametrize("name", ["vafl", "swift", "flex"])
def test_private_steps_leave_only_the_records_own_row_to_count(name, unscaled, tmp_path):
    privacy = NOISE | {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 10.0}}
    _, summary = run(tables(name, privacy), unscaled, tmp_path / "run")
    _, lines, account = read_ledger(tmp_path / "run" / "ledgers" / "party-1.jsonl")
    steps = [line for line in lines if line["what"] == "step"]
    assert steps and all(line["sensitivity"] == 2.0 and line["noise"] == 10.0 for line in steps)
    assert all(line["sensitivity"] == 2.0 and line["noise"] == 5.0 for line in messages_of(lines))
    assert account.mu < (sum(line["rows"] for line in messages_of(lines)) * 0.4**2) ** 0.5 / 3
    assert summary["privacy"]["parties"]["party-1"]["mu"] == pytest.approx(account.mu)


def test_zeroth_order_parties_learn_from_answers_alone(unscaled, tmp_path):
    _, summary = run(tables("cascaded", NOISE | {"local_updates": "answers"}), unscaled, tmp_path / "run")
    _, lines, _ = read_ledger(tmp_path / "run" / "ledgers" / "party-1.jsonl")
    batches = [line for line in lines if line["what"] == "batch"]
    assert {line["sensitivity"] for line in batches} == {2.0 * 2**0.5}, "c and ĉ"
    assert summary["privacy"]["mu"] < 3


BUDGET = {"epsilon": 40.0, "delta": 1e-5}  # μ = 6.2: about 240 rows at 0.4 each


@pytest.mark.parametrize("name", ["vafl", "swift", "t-sync", "flex", "cascaded"])
def test_a_spent_budget_ends_the_uploads_of_one_and_the_others_go_on(name, data, tmp_path):
    options = {"table": "zeros"} if name != "flex" else {}
    budgets = {"budgets": {"party-2": BUDGET}}
    config = tables(name, NOISE, options, {"epochs": 2, "eval_every": "2 epochs"}, party=budgets)
    made, summary = run(config, data, tmp_path / "run")
    assert summary["status"] == "finished"
    assert list(summary["privacy"]["withdrawn"]) == ["party-2"]
    assert "party-2 withdrew: its privacy budget does not allow another upload (ε = " in summary["note"]
    _, lines, account = read_ledger(tmp_path / "run" / "ledgers" / "party-2.jsonl")
    assert epsilon_of(account.mu, 1e-5) <= BUDGET["epsilon"]
    assert len(made.uploads["party-2"]) <= len(lines)
    assert len(made.uploads["party-1"]) > len(made.uploads["party-2"])
    assert made.rows[-1]["missing"] == ["party-2"]


@pytest.mark.parametrize("name", ["sync", "p-bcd", "syn-zoo"])
def test_where_all_are_needed_the_run_ends_when_one_withdraws(name, data, tmp_path):
    config = tables(name, train={"epochs": 5, "eval_every": "5 epochs"}, party={"budgets": {"party-2": BUDGET}})
    _, summary = run(config, data, tmp_path / "run")
    assert summary["status"] == "finished" and 0 <= summary["epochs"] < 2
    assert list(summary["privacy"]["withdrawn"]) == ["party-2"]


@pytest.mark.parametrize("name", ["vafl", "flex"])
def test_when_all_have_withdrawn_the_run_ends(name, data, tmp_path):
    _, summary = run(tables(name, train={"epochs": 50}, party={"budget": BUDGET}), data, tmp_path / "run")
    assert summary["status"] == "finished"
    assert sorted(summary["privacy"]["withdrawn"]) == ["party-1", "party-2", "party-3"]


def resumable(**more):
    train = {"epochs": 2, "eval_every": "1 epoch", "checkpoint_every": "0.5 epochs"}
    return tables("vafl", NOISE, {"table": "zeros"}, train, **more)


def interrupt(config, data, out, events=60):
    """The files on disk when a run is killed some time after its first checkpoint."""
    made = prepare(from_dict(config), data, out)
    made.simulator.advance(events)
    made.folder.save_checkpoint(made._checkpoint())
    made.simulator.advance(events)
    for guard in made._guards().values():
        guard.ledger.close()


def test_a_resumed_run_releases_the_same_once_and_ends_alike(data, tmp_path):
    """A run killed in the middle of a budget: the same uploads, the same ledger, the same withdrawal."""
    config = resumable(party={"budgets": {"party-2": {"epsilon": 60.0, "delta": 1e-5}}})
    calm = prepare(from_dict(config), data, tmp_path / "calm").execute()
    interrupt(config, data, tmp_path / "killed")
    resumed = reopen(from_dict(config), tmp_path / "killed", lambda config: data).execute()
    for key in ("trace_sha256", "weights_sha256", "value", "privacy", "messages"):
        assert resumed[key] == calm[key], key
    assert calm["privacy"]["withdrawn"]


def test_a_ledger_that_was_rolled_back_or_edited_is_refused(data, tmp_path):
    config = resumable()
    interrupt(config, data, tmp_path / "run")
    path = tmp_path / "run" / "ledgers" / "party-3.jsonl"
    whole = path.read_text()

    def go_on():
        reopen(from_dict(config), tmp_path / "run", lambda config: data)

    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with pytest.raises(
        CheckpointError, match=r"party-3.jsonl: ends with line 3, but line \d+ was written: the file was rolled back"
    ):
        go_on()
    path.write_text(whole.replace('"rows": 64', '"rows": 1', 1))
    with pytest.raises(CheckpointError, match="party-3.jsonl: line 2 does not follow"):
        go_on()
    path.unlink()
    with pytest.raises(CheckpointError, match="ends with line 1, but line"):
        go_on()
    path.write_text(whole)
    go_on()


def test_neither_key_nor_noise_is_in_a_checkpoint(data):
    made = prepare(from_dict(resumable()), data)
    made.simulator.advance(60)
    for saved, node in zip(checkpoint.save(made.simulator)["nodes"], made.simulator.nodes, strict=True):
        if node.role.name != "server":
            assert saved["role"]["guard"].keys() == {"draws", "receipt"}


def test_the_server_treats_it_as_lost_for_good(data):
    """A second message or a rejoin does not bring the party back."""
    setting = federation(from_dict(tables("t-sync", options={"t": 3})), data)
    server = setting.roles()[0]
    from colonnade.protocol.events import PeerJoined, Started

    server.handle(Started(b"x"), 0)
    for party in data.parties:
        server.handle(PeerJoined(party), 0)
    server.handle(Received("party-1", Withdrawn("spent" * 1000)), 0)
    server.handle(Received("party-1", Withdrawn("again")), 0)
    server.handle(PeerJoined("party-1"), 0)
    assert list(server.state.present) == ["party-2", "party-3"] and server._needed() == 2
    assert len(server.state.withdrawn["party-1"]) == 200
    server.validate()


REFUSED = {
    "clip": ({"mechanism": "output", "noise": 1.0}, "privacy.clip = None: is missing: without a bound"),
    "negative noise": (NOISE | {"noise": -1.0}, "privacy.noise = -1.0: must be a standard deviation"),
    "no noise": (NOISE | {"noise": 0.0}, "privacy.noise = 0.0: must be above 0"),
    "no mechanism": ({"clip": 1.0, "noise": 1.0}, "privacy.mechanism = None: choose 'output'"),
    "unknown mechanism": (NOISE | {"mechanism": "laplace"}, "privacy.mechanism"),
    "inner": (NOISE | {"inner": 0.1}, "privacy.inner = 0.1: noise in inner layers needs mechanism = 'neurons'"),
    "delta": (NOISE | {"delta": 1.0}, "privacy.delta = 1.0"),
    "dp-sgd": (NOISE | {"local_updates": "dp-sgd"}, "belong together"),
    "zeroth": (
        NOISE | {"local_updates": "answers"},
        "privacy.local_updates = 'answers': vafl supports 'plain' and 'dp-sgd'",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_has_no_guarantee_is_refused(why, data):
    privacy, words = REFUSED[why]
    with pytest.raises(ConfigError, match=words):
        prepare(from_dict(tables(privacy=privacy)), data)


def test_a_method_without_a_place_for_it_is_refused_and_so_is_a_budget_without_a_mechanism(data):
    with pytest.raises(ConfigError, match="privacy.mechanism = 'output': wait cannot add noise"):
        prepare(from_dict(tables("wait") | {"model": {"party": "linear", "aggregate": "mean"}}), data)
    with pytest.raises(ConfigError, match="party.budget = .*needs a mechanism"):
        prepare(from_dict(tables(privacy={}, party={"budget": BUDGET})), data)
    with pytest.raises(ConfigError, match="party.budgets = 'nobody': no such party"):
        prepare(from_dict(tables(party={"budgets": {"nobody": BUDGET}})), data)
    with pytest.raises(ConfigError, match="party.budget.epsilon = 0.0"):
        prepare(from_dict(tables(party={"budget": {"epsilon": 0.0, "delta": 1e-5}})), data)


def test_a_model_without_layers_is_refused_inner_noise(data):
    config = tables(privacy=NOISE | {"mechanism": "neurons"}) | {"model": {"party": "polynomial:2", "embedding": 3}}
    with pytest.raises(ModelError, match="Polynomial is not made of layers"):
        prepare(from_dict(config), data)


def test_by_record_nothing_else_may_be_fitted_on_the_rows(data, unscaled):
    """The mean and deviation of a column, and BatchNorm's averages, move every row with the record."""
    privacy = NOISE | {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 1.0}}
    left_out = r"data.scale = '\(left out\)': the default scale is fitted .* set data.scale = 'none' \(the word\)"
    with pytest.raises(ConfigError, match=left_out):
        prepare(from_dict(tables(privacy=privacy)), data)
    with pytest.raises(ConfigError, match=r"data.scale = 'standard': is fitted .* set data.scale = 'none'"):
        prepare(from_dict(tables(privacy=privacy, data={"scale": "standard"})), data)
    with pytest.raises(ConfigError, match="data.missing = 'mean': is fitted on the training rows"):
        prepare(from_dict(tables(privacy=privacy, data={"missing": "mean"})), unscaled)
    config = msgspec.structs.replace(from_dict(tables(privacy=privacy)))
    norm = msgspec.structs.replace(config.model, party=lambda inputs, outputs: nn.Sequential(
        nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)))  # fmt: skip
    with pytest.raises(ModelError, match="keeps running averages"):
        prepare(msgspec.structs.replace(config, model=norm), unscaled)


def test_a_network_without_gradients_of_single_records_is_refused(unscaled):
    privacy = NOISE | {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 1.0}}
    config = from_dict(tables(privacy=privacy))

    class Sorts(nn.Module):
        """Branches on the value of its input, so its gradients cannot be computed for all rows at once."""

        def __init__(self, inputs, outputs):
            super().__init__()
            self.layer = nn.Linear(inputs, outputs)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) >= 0 else self.layer(-x)

    model = msgspec.structs.replace(config.model, party=Sorts)
    with pytest.raises(ModelError, match="has no gradient for each record"):
        prepare(msgspec.structs.replace(config, model=model), unscaled)


def test_a_delta_as_large_as_one_row_is_warned_of(data):
    notes = prepare(from_dict(tables(privacy=NOISE | {"delta": 0.01})), data).federation.notes
    assert any("delta = 0.01 is not below 1/455" in note for note in notes)
    assert not prepare(from_dict(tables()), data).federation.notes


@pytest.mark.parametrize("name", ["vafl", "t-sync", "sync", "flex", "p-bcd", "cascaded", "syn-zoo"])
def test_every_invariant_holds_while_a_party_withdraws(name, simulate, data):
    config = tables(name, train={"epochs": 1, "eval_every": "0.3 epochs"}, party={"budgets": {"party-3": BUDGET}})
    found = simulate(config, data=data)
    assert found.status == "finished" and list(found.server.summary()["withdrawn"]) == ["party-3"]
    after = [event for _, role, event in found.events if role == "server" and isinstance(event, Received)]
    said = [event.message for event in after if event.sender == "party-3"]
    assert isinstance(said[-1], Withdrawn) and sum(isinstance(message, Withdrawn) for message in said) == 1
