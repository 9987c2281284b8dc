"""`wait-dp` behind the guard: the ledger has every row that leaves, and its ε is the ledger's."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from typer.testing import CliRunner

from colonnade.algorithms.fedvs.plain_messages import Upload
from colonnade.cli.main import app
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import from_arrays, split
from colonnade.drivers.ledger_file import LedgerFile, read_ledger
from colonnade.experiments.run import prepare, reopen
from colonnade.privacy.accountant import mu_of
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.privacy.ledger import _unpack_rows
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import PeerJoined, Received, Resumed, Started, WorkDone
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest

ONE = mu_for(5.0, 1e-5)  # μ of one release of one row


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    x = draw.random((125, 6)).astype(np.float32)  # 100 rows to train on: batches of 16 do not divide them
    return split(from_arrays(x, (x.sum(1) > 3).astype(np.int64)), parties=3, scale="minmax")


def tables(**more):
    train = {"batch_size": 16, "epochs": 1.0, "eval_every": "10 epochs", "checkpoint_every": "0.2 epochs"}
    model = {"party": "linear", "embedding": 2, "server": "linear", "aggregate": "mean"}
    return {"protocol": {"name": "wait-dp"}, "model": model, "train": train, **more}


def rows_in(path):
    """How often each row is in the ledger, and the number of all rows."""
    _, lines, _ = read_ledger(path)
    times = Counter((line["part"], row) for line in lines for row in _unpack_rows(line["of"]).tolist())
    return times, sum(line["rows"] for line in lines)


def test_the_account_is_that_of_the_rows_that_left(data, tmp_path):
    """One epoch of 100 rows: the first batch of the next epoch has left, too, so some rows have left twice."""
    run, sent = prepare(from_dict(tables()), data, tmp_path / "run"), []
    run.simulator.on_send = lambda name, effect, size: sent.append((name, effect.message))
    summary = run.execute()
    walk = run.simulator.nodes[0].role.walk
    for party in data.parties:
        left = Counter()
        for name, message in sent:
            if name == party and isinstance(message, Upload):
                left.update(("train", row) for row in walk.rows(message.round).tolist())
            elif name == party and isinstance(message, EvaluationReply):
                left.update(("test", message.start + row) for row in range(len(message.values)))
        found, rows = rows_in(tmp_path / "run" / "ledgers" / f"{party}.jsonl")
        assert left <= found, "every row that left is in the ledger"
        assert max(left.values()) == 2 and sum(times > 1 for (part, _), times in left.items() if part == "train") > 0
        spent = summary["privacy"]["parties"][party]
        assert spent["claim_epsilon"] == pytest.approx(epsilon_of(ONE * sqrt(max(found.values())), 1e-5))
        each = SelfComposedDpEvent(GaussianDpEvent(1 / ONE), rows)  # θ_m was trained on the record: it moves all rows
        assert spent["mu"] == pytest.approx(mu_of(each)) and spent["rows"] == rows == sum(found.values())
        assert spent["epsilon"] == pytest.approx(epsilon_of(ONE * sqrt(rows), 1e-5))
    assert summary["privacy"]["claim_of_own_rows"]["epsilon"] == pytest.approx(7.54, abs=0.01)
    assert summary["privacy"]["epsilon"] > 100 and summary["method"]["epsilon_per_release"] == 5.0
    told = CliRunner().invoke(app, ["privacy", "ledger", str(tmp_path / "run" / "ledgers" / "party-1.jsonl")])
    assert told.exit_code == 0 and "The chain is whole" in told.output


def test_a_resumed_run_has_the_account_of_a_calm_one(data, tmp_path):
    calm = prepare(from_dict(tables()), data, tmp_path / "calm").execute()
    killed = prepare(from_dict(tables()), data, tmp_path / "killed")
    killed.simulator.advance(30)
    killed.folder.save_checkpoint(killed._checkpoint())
    killed.simulator.advance(15)
    killed.close_ledgers()
    resumed = reopen(from_dict(tables()), tmp_path / "killed", lambda config: data).execute()
    for key in ("trace_sha256", "weights_sha256", "value", "privacy"):
        assert resumed[key] == calm[key], key


def test_what_a_party_repeats_after_a_restart_is_counted(data, tmp_path):
    """As in a real restart: the old state, the old job, fresh noise, and the ledger on disk."""

    def opened():
        party = federation(from_dict(tables()), data).roles()[1]
        party.guard.keep(LedgerFile(tmp_path / "ledger.jsonl"))
        return party

    party = opened()
    (embed,) = party.handle(Started(b"a" * 32), 0)
    before = party.save()
    first = party.compute(embed.job)
    party.guard.ledger.close()  # kill -9: the result is lost
    again = opened()
    again.load(before)
    again.handle(Resumed(b"b" * 32), 0)
    second = again.compute(embed.job)
    assert not np.isclose(first.values, second.values).any(), "other noise"
    (upload,) = again.handle(WorkDone(embed.token, second), 0)
    (repeated,) = again.handle(PeerJoined("server", reset=True), 0)  # the server lost the batch: it is sent again
    again.handle(WorkDone(repeated.token, again.compute(repeated.job)), 0)
    for _ in range(2):
        (asked,) = again.handle(Received("server", EvaluationRequest(1, 0, 5)), 0)
        again.handle(WorkDone(asked.token, again.compute(asked.job)), 0)
    times, rows = rows_in(tmp_path / "ledger.jsonl")
    assert Counter(times.values()) == {3: 16, 2: 5} and rows == 3 * 16 + 2 * 5
    assert isinstance(upload.message, Upload)
    spent = again.summary()["privacy"]
    assert spent["mu"] == pytest.approx(ONE * sqrt(rows)) and spent["claim_mu"] == pytest.approx(ONE * sqrt(3))


def test_a_spent_budget_ends_the_run_for_all(data, tmp_path):
    budget = {"budgets": {"party-2": {"epsilon": 60.0, "delta": 1e-5}}}
    summary = prepare(from_dict(tables(party=budget)), data, tmp_path / "run").execute()
    assert summary["status"] == "finished" and summary["updates"] < 7
    assert list(summary["privacy"]["withdrawn"]) == ["party-2"] and "party-2 withdrew" in summary["note"]
    assert summary["privacy"]["parties"]["party-2"]["epsilon"] <= 60.0


def test_a_second_mechanism_is_refused(data):
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    with pytest.raises(ConfigError, match="privacy.mechanism = 'output': wait-dp has a mechanism of its own"):
        prepare(from_dict(tables(privacy=privacy)), data)
