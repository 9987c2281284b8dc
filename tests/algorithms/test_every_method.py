"""What every method must do: learn, keep its invariants, repeat itself, survive a save, predict."""

import dataclasses
import sys
import types
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from colonnade.algorithms import METHODS, find_method
from colonnade.api import Result
from colonnade.data import load as load_data
from colonnade.drivers import ledger_file
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator.checkpoint import load, save
from colonnade.experiments.run import Run
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import ConfigError
from colonnade.results.verdict import warnings_of

PAGES = Path(__file__).parents[2] / "docs" / "methods"
VARIANTS = [(name, {}) for name in METHODS] + [
    ("vafl", {"order": "query-first"}),
    ("vafl", {"batches": "shared", "extra_rows": 1.0, "table": "zeros"}),
    ("vafl", {"max_delay": 5, "pause_s": 0.005}),
    ("t-sync", {"t": 3, "max_delay": 10}),
    ("t-sync", {"t": 2, "in_flight": 3, "max_delay": 6, "batches": "shared", "extra_rows": 0.5}),
    ("cascaded", {"directions": 4, "distribution": "sphere"}),
    ("cascaded", {"max_delay": 5}),
    ("cascaded", {"t": 2}),
    ("flex", {"labels": "shared", "momentum": [0.5, 0.0, 0.0, 0.9], "prox": 0.1, "decay": 0.9, "max_steps": 6}),
    ("flex", {"timeout_s": 0.05, "on_lost": "wait", "max_steps": 4}),
    ("adaptive-flex", {"timeout_s": 0.05, "labels": "shared", "max_steps": 4, "A": {"server": 0.3, "party": 0.5}}),
    ("fedvs", {"K": 2, "T": 0, "allow_unprotected": True, "blinding": False, "deadline_s": 0.2, "stale": "refuse"}),
    ("ignore", {"fastest": 3, "K": 2}),
    # The printed curvature mixes two batches: when a party is lost, it throws an intercept far off.
    ("asysqn-svrg", {"curvature": "printed", "ahead": 0, "delta": 1.0, "intercept": False}),
    ("asysqn-svrg", {"share": True, "extrapolate": True}),
    ("asysqn-sgd", {"share": True, "ahead": 0, "on_lost": "wait"}),
    ("asysqn-saga", {"masking": "off", "loss": "ls-svm", "fan_out": 3, "on_lost": "wait"}),
]
# Estimates are noisier with more parameters, so these have fewer parameters and more, smaller steps. The
# floors lie well above chance (0.1) and below what ten seeds gave; frozen parties do not reach that of `cascaded`.
PLAIN = {"party": "mlp:16", "embedding": 8, "server": "linear"}
ESTIMATED = {"party": "linear", "embedding": 4, "server": "linear"}
POLYNOMIAL = {"party": "polynomial:2", "embedding": 8, "server": "linear", "aggregate": "mean"}
# A party's gradient is that of an average.
AVERAGED = {"batch_size": 64, "epochs": 4, "learning_rate": {"server": 1.0, "party": 6.0}}
SETTINGS = {  # model, train, floor
    "cascaded": (ESTIMATED, {"batch_size": 64, "epochs": 8, "learning_rate": {"server": 0.6, "party": 0.06}}, 0.85),
    "zoo": (ESTIMATED, {"batch_size": 64, "epochs": 8, "learning_rate": 0.06}, 0.65),
    "syn-zoo": (ESTIMATED, {"batch_size": 64, "epochs": 12, "learning_rate": 0.06}, 0.5),
    "frozen": (ESTIMATED, {"batch_size": 64, "epochs": 8, "learning_rate": 0.6}, 0.6),
    "fedvs": (POLYNOMIAL, AVERAGED, 0.75),
    "wait": (POLYNOMIAL, AVERAGED, 0.75),
    "ignore": (POLYNOMIAL, AVERAGED, 0.6),
    "wait-dp": (POLYNOMIAL, AVERAGED, 0.15),
    "flex": (PLAIN, {"batch_size": 64, "epochs": 5, "learning_rate": 0.06}, 0.75),
    "sync-min": (PLAIN, {"epochs": 5, "learning_rate": 0.1}, 0.75),
} | dict.fromkeys(("adaptive-flex", "sync-max"), (PLAIN, {"batch_size": 64, "epochs": 5, "learning_rate": 0.045}, 0.75))
USUAL = (PLAIN, {"epochs": 4, "learning_rate": 0.3}, 0.75)
LINEAR = {name for name, method in METHODS.items() if method.capabilities.party_labels}  # of two classes
SETTINGS |= {name: ({}, {"batch_size": 128, "epochs": 24, "learning_rate": 0.05}, 0.9) for name in LINEAR}


def name_of(variant):
    return "-".join([variant[0], *(f"{key}={value}" for key, value in variant[1].items())])


def tables(variant):
    method, options = variant
    model, train, _ = SETTINGS.get(method, USUAL)
    return {
        "protocol": {"name": method, **options},
        "model": model,
        "clock": {
            "compute": {"kind": "exponential", "mean_s": 0.01},
            "faults": [{"party": "party-2", "kind": "crash", "at_s": 0.3, "until_s": 0.4}],
            "lost_after_s": 0.05,
        },
        "train": {"batch_size": 32, "eval_every": "1 epoch", **train},
    }


def source(method):
    return "breast-cancer" if method in LINEAR else "digits"


def simulator(setting, records):
    return Simulator(
        setting.roles(), Codec(setting.method.payloads), setting.config.clock, setting.config.train.seed,
        full_trace=True, check=True, on_emit=lambda record, _: records.append(record),
        peers=setting.method.capabilities.peers,
    )  # fmt: skip


def outcome(made):
    """Everything a run leaves behind: trace, weights and all other state that its roles save."""
    return made.trace.hexdigest, [node.role.summary() for node in made.nodes], state.pack(save(made))


def warnings_about(run):
    said, setting = run.server.summary(), run.federation
    summary = {
        "status": run.status, "updates": said["updates"], "metric": setting.training.metric, "privacy": None,
        "parties": len(setting.data.parties), "validation_rows": 0, "test_rows": len(setting.data.y_test),
    }  # fmt: skip
    rows = [
        {"update": one.update, "value": one.values[summary["metric"]], "loss": one.loss, "missing": one.missing}
        for one in run.records
    ]
    return warnings_of(summary, rows, said.get("warnings", ()))


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_learns(variant, simulate):
    run = simulate(tables(variant), source(variant[0]))
    assert run.status == "finished"
    first, last = run.records[0], run.records[-1]
    assert first.update == 0 and first.values["accuracy"] < (0.6 if variant[0] in LINEAR else 0.35)
    assert last.values["accuracy"] > SETTINGS.get(variant[0], USUAL)[2], "ten classes"
    assert last.loss < first.loss
    assert last.epochs >= run.federation.config.train.epochs and last.update == run.server.summary()["updates"]
    assert warnings_about(run) == [], "a false alarm"


def with_ledgers(made, folder):
    """Keep the ledgers as a run's folder does. A resumed run cuts them back once its checkpoint is loaded."""
    guards = [node.guard for node in made.nodes if node.guard is not None and node.guard.on]
    for guard in guards:
        guard.keep(LedgerFile(folder / f"{guard.ledger.terms['party']}.jsonl"))
    return guards


class Noon(datetime):
    """A fixed time, since the hashes of a ledger cover it."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, 12, tzinfo=tz)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_repeats_itself_and_continues_identically(variant, resolve, tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_file, "datetime", Noon)
    short = tables(variant)
    optimiser = {} if variant[0] in LINEAR else {"optimiser": "adam"}
    if "momentum" in variant[1]:  # adam has no momentum
        optimiser = {
            "optimiser": {"server": "adam", "party": ["adam" if not rho else "sgd" for rho in variant[1]["momentum"]]}
        }
    # Linear methods have fewer rows. A batch of 64 would make the runs too short for the crash.
    length = {"epochs": 6} if variant[0] in LINEAR else {"epochs": 1, "batch_size": 32}
    short["train"] |= {"learning_rate": 0.01, "eval_every": 15, **length, **optimiser}
    setting, whole_records = resolve(short, source(variant[0])), []
    whole = simulator(setting, whole_records)
    with_ledgers(whole, tmp_path / "whole")
    whole.run()
    middle = whole.trace.events // 2 + 1
    records = []
    begun = simulator(setting, records)
    begun_ledgers = with_ledgers(begun, tmp_path / "begun")
    begun.advance(middle)
    assert 0 < begun.trace.events < whole.trace.events
    saved = state.unpack(state.pack(save(begun)))
    for guard in begun_ledgers:
        guard.ledger.close()
    resumed = simulator(setting, records)
    guards = with_ledgers(resumed, tmp_path / "begun")
    load(resumed, saved)
    for guard in guards:
        guard.cut_back()
    resumed.run()
    assert outcome(resumed) == outcome(whole)
    assert repr(records) == repr(whole_records)


# How far a prediction may lie from the evaluation's own. For other methods only the number of rows in a matrix product
# may differ, since equal rows are embedded once; the margins of linear methods are rounded to 2⁻³².
APART = {"fedvs": 1e-3}  # every exchange rounds the weights at random; 1.4e-4 was seen
QUIET = {"wait-dp": {"epsilon": 1e14}}  # so little noise that predictions can be compared


@pytest.mark.parametrize("method", METHODS)
def test_predicts_what_its_last_evaluation_says(method, resolve, judged):
    short = tables((method, QUIET.get(method, {}))) | {"clock": {}}
    del short["train"]["epochs"]
    short["train"] |= {"updates": 10}
    setting = resolve(short, source(method))
    run = Run(setting, None)
    result = Result(run, run.execute())
    rows = setting.data.ids[len(setting.data.y_train) :].cast(int).to_numpy()
    found = result.predict(load_data(source(method)).x[rows])
    assert result.summary["status"] == "finished" and np.abs(judged[0] - judged[-1]).max() > 0.005, "it has learnt"
    np.testing.assert_allclose(found, judged[-1], rtol=0, atol=APART.get(method, 1e-6))
    if method not in APART:
        assert np.mean(found.argmax(1) == setting.data.y_test) == result.summary["accuracy"]


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_is_another_run(method, resolve):
    digests = set()
    for seed in (0, 1):
        short = tables((method, {}))
        short["train"] |= {"seed": seed, "epochs": 3 if method in LINEAR else 0.3}  # w = 0: the first steps are alike
        made = simulator(resolve(short, source(method)), [])
        made.run()
        digests.add("".join(node.role.summary()["weights"] for node in made.nodes))
    assert len(digests) == 2


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_says_what_it_is(method):
    assert method.paper and method.summary and method.reveals and method.exposes
    assert find_method(method.name) is method
    assert f"`{method.name}`" in (PAGES / method.page).read_text(encoding="utf-8")
    assert (method.joint is None) == (method.server is not None) == (method.party is not None)


def test_a_method_of_ones_own_is_found_by_its_path(monkeypatch):
    module = types.ModuleType("own_method_of_a_test")
    module.METHOD = dataclasses.replace(METHODS["vafl"], name="mine")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert find_method("own_method_of_a_test:METHOD") is module.METHOD


def test_a_path_to_something_else_is_refused():
    with pytest.raises(ConfigError, match="is a tuple, not a colonnade Method"):
        find_method("colonnade.algorithms.vafl:METHODS")
    with pytest.raises(ConfigError, match="protocol.name = 'no_such_package:METHOD': cannot be imported"):
        find_method("no_such_package:METHOD")
    with pytest.raises(ConfigError, match="cannot be imported"):
        find_method("colonnade.algorithms.vafl:NOTHING")


def test_an_unknown_method_is_refused_with_a_hint():
    with pytest.raises(ConfigError, match="protocol.name = 'vaffl': unknown method; did you mean 'vafl'. there are: "):
        find_method("vaffl")
