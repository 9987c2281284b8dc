"""Runs that start from the trained networks of an earlier run."""

import io
import itertools
import json
import shutil
from datetime import UTC, datetime

import numpy as np
import polars
import pytest
import torch

import colonnade
from colonnade.algorithms import METHODS
from colonnade.config.schema import from_dict, read_toml
from colonnade.data import from_blocks, load_party_share
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.up import prepare_up
from colonnade.drivers.ledger_file import read_ledger
from colonnade.drivers.processes.logs import Log
from colonnade.experiments.run import prepare, reopen
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError, ModelError
from colonnade.report.ledger_words import ReadLedger, ledger_in_words
from colonnade.results.trained import MODEL, find_run, kept_continuation

ROWS = 120


def table(rows=ROWS, seed=0, shift=0.0, columns=(3, 2, 2)):
    """Three parties with a few columns each, and a label that all of them are needed for."""
    draw = np.random.default_rng(seed)
    x = draw.normal(shift, 1.5, (rows, sum(columns)))
    y = (x.sum(1) - shift * sum(columns) + draw.normal(0, 0.3, rows) > 0).astype(int)
    ends = np.cumsum([0, *columns])
    return {f"party-{i + 1}": x[:, a:b] for i, (a, b) in enumerate(itertools.pairwise(ends))}, y


def held(before=None, scale=None, **settings):
    blocks, y = table(**settings)
    return from_blocks(blocks, y, scale=scale, before={} if before is None else before.fitted())


def settings_of(name):
    method = METHODS[name]
    privacy = {"epsilon": 50.0, "delta": 1e-3, "clip": 1.0} if name == "wait-dp" else {}
    options = {"name": name} | privacy
    model = {} if method.defaults.party is None else {"embedding": 4}
    return from_dict({"protocol": options, "model": model, "train": {"updates": 6, "eval_every": 3}})


def run(folder, config=None, data=None, before=None):
    config = config or settings_of("sync")
    scale = METHODS[config.protocol["name"]].defaults.scale
    made = prepare(config, held(before, scale) if data is None else data, folder, before=before)
    summary = made.execute()
    made.close_ledgers()
    return summary


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_first_evaluation_is_the_last_of_the_earlier_run(name, tmp_path):
    config = settings_of(name)
    run(tmp_path / "may", config)
    before = find_run(tmp_path / "may")
    run(tmp_path / "june", config, before=before)
    untrained, last, first = (rows_of(tmp_path / folder)[at] for folder, at in (("may", 0), ("may", -1), ("june", 0)))
    assert (untrained["update"], first["update"]) == (0, 0)
    if name == "wait-dp":  # every evaluation has its own noise
        assert first["loss"] == pytest.approx(last["loss"], rel=0.5)
    else:
        assert first["loss"] == pytest.approx(last["loss"], rel=2e-3)  # fedvs rounds its weights at random
        assert abs(untrained["loss"] - last["loss"]) > 5e-3 * last["loss"]
    summary = json.loads((tmp_path / "june" / "summary.json").read_text())
    assert summary["continued_from"] == {"folder": "may", "run": before.run}
    assert "continued_from" not in json.loads((tmp_path / "may" / "summary.json").read_text())


@pytest.fixture(scope="module")
def may(tmp_path_factory):
    """A finished run whose parties have named columns, one of them with categories."""
    folder = tmp_path_factory.mktemp("runs") / "may"
    run(folder, named_config(), named(60))
    return folder


def frames(rows, seed=1, cities=("Bern", "Oslo"), shift=0.0):
    draw = np.random.default_rng(seed)
    age, income, visits = draw.normal(40 + shift, 9, rows), draw.normal(50, 20, rows), draw.normal(shift, 3, rows)
    y = (age + income + 5 * visits > 90 + 6 * shift).astype(int)
    bank = polars.DataFrame({"age": age, "city": draw.choice(cities, rows), "income": income})
    return {"bank": bank, "shop": polars.DataFrame({"visits": visits})}, y


def named(rows, before=None, change=None, **settings):
    blocks, y = frames(rows, **settings)
    blocks = blocks if change is None else change(blocks)
    return from_blocks(blocks, y, before={} if before is None else before.fitted())


def named_config(**tables):
    model = {"party": "mlp:5", "embedding": 3, "server": "mlp:4"} | tables.pop("model", {})
    train = {"updates": 4, "eval_every": 2} | tables.pop("train", {})
    return from_dict({"protocol": {"name": "vafl"}, "model": model, "train": train} | tables)


def start_of(before, change=None, config=None, **settings):
    """The roles of a run in June, before their first event."""
    data = named(80, before, change, seed=2, **settings)
    return prepare(config or named_config(), data, before=before)


def embeddings(run, party, rows):
    node = next(node for node in run.simulator.nodes if node.role.name == party)
    data = run.federation.data
    return node.role.network.read(data.block(data.parties.index(party), rows))


def weights(run, name):
    return next(node.role for node in run.simulator.nodes if node.role.name == name).trained()[name]


NEW_ROWS = {"age": [30.0, 55.0], "city": ["Bern", "Oslo"], "income": [10.0, 70.0]}


def test_new_rows_are_scaled_as_before_so_that_equal_rows_have_equal_embeddings(may):
    before, control = find_run(may), named(60)
    june = start_of(before, shift=7.0)
    np.testing.assert_array_equal(june.federation.data.scalers[0].shift, control.scalers[0].shift)
    fresh = from_blocks(*frames(80, 2, shift=7.0))
    assert abs(fresh.scalers[0].shift[0] - control.scalers[0].shift[0]) > 1
    member = before.members["bank"]
    old = prepare(named_config(), named(60), before=before)
    np.testing.assert_array_equal(embeddings(june, "bank", NEW_ROWS), embeddings(old, "bank", NEW_ROWS))
    np.testing.assert_array_equal(weights(june, "bank")["0.weight"], member.tensors["0.weight"])


def test_a_new_column_and_a_new_category_have_zero_weights_and_are_found_by_name(may):
    def change(blocks):
        bank = blocks["bank"].with_columns(debts=polars.Series(np.arange(80.0)))
        return {"bank": bank.select("income", "debts", "city", "age"), "shop": blocks["shop"]}

    before = find_run(may)
    june = start_of(before, change, cities=("Bern", "Lima", "Oslo"))
    assert june.federation.data.encoders[0].features == (
        "income", "debts", "city=Bern", "city=Oslo", "city=Lima", "age",
    )  # fmt: skip
    old, new = before.members["bank"].tensors["0.weight"], weights(june, "bank")["0.weight"]
    np.testing.assert_array_equal(new[:, [5, 2, 3, 0]], old)
    assert not new[:, [1, 4]].any()
    same = start_of(before)
    rows = NEW_ROWS | {"debts": [1.0, 99.0]}
    np.testing.assert_allclose(embeddings(june, "bank", rows), embeddings(same, "bank", NEW_ROWS), atol=1e-6)
    june.execute()
    assert weights(june, "bank")["0.weight"][:, [1, 4]].any()  # it learns them


def test_a_category_that_does_not_occur_any_more_keeps_its_place(may):
    june = start_of(find_run(may), cities=("Oslo",))
    assert june.federation.data.encoders[0].categories[1] == ("Bern", "Oslo")


def test_a_column_that_vanished_is_refused_unless_it_is_named(may):
    def change(blocks):
        return {"bank": blocks["bank"].drop("income"), "shop": blocks["shop"]}

    before = find_run(may)
    with pytest.raises(ConfigError, match=r"data.columns = 'income': is missing: .*--drop-columns income"):
        start_of(before, change)
    june = start_of(before, change, named_config(party={"drop_columns": ["income"]}))
    np.testing.assert_array_equal(weights(june, "bank")["0.weight"], before.members["bank"].tensors["0.weight"][:, :3])
    with pytest.raises(ConfigError, match="party.drop_columns = 'incom': no such column in may"):
        start_of(before, change, named_config(party={"drop_columns": ["incom"]}))
    with pytest.raises(ConfigError, match="party.drop_columns = 'age': bank still has this column"):
        start_of(before, change, named_config(party={"drop_columns": ["income", "age"]}))
    with pytest.raises(ConfigError, match=r"party.drop_columns = .*: is for a run with --continue"):
        prepare(named_config(party={"drop_columns": ["income"]}), named(60))


def test_a_column_of_another_kind_is_refused(may):
    def change(blocks):
        return {"bank": blocks["bank"].with_columns(age=polars.Series(["old"] * 80)), "shop": blocks["shop"]}

    with pytest.raises(DataError, match="bank: column 'age' held numbers in the earlier run, and holds texts now"):
        start_of(find_run(may), change)


def test_a_partition_with_other_scaling_is_refused(may):
    with pytest.raises(ConfigError, match=r"continue_from = 'bank: age': is not scaled .* like="):
        prepare(named_config(), named(80, seed=2, shift=7.0), before=find_run(may))


def test_a_party_more_starts_fresh_and_the_servers_network_ignores_it_at_first(may):
    def change(blocks):
        clinic = polars.DataFrame({"pulse": np.linspace(50, 90, 80)})
        return {"clinic": clinic, **blocks}

    before = find_run(may)
    june, same = start_of(before, change), start_of(before)
    old, new = before.members["server"].tensors["0.weight"], weights(june, "server")["0.weight"]
    np.testing.assert_array_equal(new[:, 3:], old)
    assert not new[:, :3].any() and weights(june, "clinic")["0.weight"].any()
    first, plain = (run.execute() and run.rows[0]["loss"] for run in (june, same))
    assert first == pytest.approx(plain, rel=1e-6)


def test_a_party_fewer_takes_its_inputs_with_it(may):
    before = find_run(may)
    june = start_of(before, lambda blocks: {"shop": blocks["shop"]})
    np.testing.assert_array_equal(
        weights(june, "server")["0.weight"], before.members["server"].tensors["0.weight"][:, 3:]
    )
    assert june.execute()["status"] == "finished"


def test_nothing_is_rearranged_for_a_sum(tmp_path):
    config = named_config(model={"aggregate": "sum", "server": "linear"})
    run(tmp_path / "may", config, named(60))
    before = find_run(tmp_path / "may")
    june = start_of(before, lambda blocks: {"shop": blocks["shop"], "clinic": blocks["bank"]}, config)
    np.testing.assert_array_equal(weights(june, "server")["weight"], before.members["server"].tensors["weight"])


@pytest.mark.parametrize("aggregate", ["concat", "sum"])
def test_what_stands_for_an_absent_party_is_found_by_name(aggregate, tmp_path):
    config = named_config(model={"aggregate": aggregate}, train={"party_dropout": 0.5})
    run(tmp_path / "may", config, named(60))
    before = find_run(tmp_path / "may")
    old = before.members["server"].tensors["party_dropout"]
    june = start_of(before, lambda blocks: {"shop": blocks["shop"], "bank": blocks["bank"]}, config)
    np.testing.assert_array_equal(weights(june, "server")["party_dropout"], np.roll(old, 3))
    assert old.any()


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({"model": {"party": "mlp:6"}}, "model.party = 'mlp:6': bank had 'mlp:5'"),
        ({"model": {"party": "dense"}}, "model.party = 'dense': bank had 'mlp:5'"),
        ({"model": {"server": "linear"}}, "model.server = 'linear': server had 'mlp:4'"),
        ({"model": {"embedding": 2}}, "model.embedding = 2: bank had embeddings of width 3"),
        ({"model": {"aggregate": "sum"}}, "model.aggregate = 'sum': server had 'concat'"),
        (
            {"protocol": {"name": "asysqn-sgd", "masking": "off"}, "model": {"server": "mlp:4"}},
            "one weight for each column",
        ),
        (
            {"privacy": {"mechanism": "output", "clip": 1.0, "noise": 9.0}},
            "privacy.mechanism = 'output': bank released",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(tables, complaint, may):
    with pytest.raises((ConfigError, ModelError), match=complaint):
        start_of(find_run(may), config=named_config(**tables))


def test_another_method_with_the_same_networks_may_continue(may):
    june = start_of(find_run(may), config=named_config(protocol={"name": "flex"}))
    assert june.execute()["protocol"] == "flex"


def test_other_classes_are_refused(may):
    blocks, y = frames(80, 2)
    data = from_blocks(blocks, y + 1, before=find_run(may).fitted())
    with pytest.raises(ConfigError, match=r"server.label = '1, 2': the earlier run predicts 0, 1"):
        prepare(named_config(), data, before=find_run(may))


def test_networks_that_cannot_be_rearranged_need_the_same_columns():
    class Own(torch.nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.inner = torch.nn.Linear(inputs, outputs)

        def forward(self, x):
            return self.inner(x)

    first = colonnade.train(named(60), "vafl", Own, embedding=3, updates=3)
    again = colonnade.train(named(60), "vafl", Own, embedding=3, updates=3, continue_from=first)
    assert again.metrics["loss"][0] == pytest.approx(first.metrics["loss"][-1])
    blocks, y = frames(60)
    wider = {**blocks, "shop": blocks["shop"].with_columns(more=polars.lit(1.0))}
    with pytest.raises(ModelError, match="model.party of shop: its inputs differ .* can be rearranged"):
        colonnade.train(
            colonnade.from_blocks(wider, y, like=first), "vafl", Own, embedding=3, updates=3, continue_from=first
        )


def test_polynomials_are_rearranged_power_by_power(tmp_path):
    config = named_config(model={"party": "polynomial:2", "server": "linear"})
    run(tmp_path / "may", config, named(60))
    before = find_run(tmp_path / "may")

    def change(blocks):
        return {"bank": blocks["bank"].select("income", "city", "age"), "shop": blocks["shop"]}

    june, same = start_of(before, change, config), start_of(before, None, config)
    np.testing.assert_allclose(embeddings(june, "bank", NEW_ROWS), embeddings(same, "bank", NEW_ROWS), atol=1e-5)


def test_regression_keeps_the_scaling_of_its_targets(tmp_path):
    blocks, _ = frames(60)
    y = blocks["shop"]["visits"].to_numpy() * 100 + 7
    config = named_config()
    run(tmp_path / "may", config, from_blocks(blocks, y))
    before = find_run(tmp_path / "may")
    june = prepare(config, from_blocks(blocks, y * 3, before=before.fitted()), before=before)
    assert june._server.network.objective.scale == before.members["server"].server.target_scale != (0.0, 1.0)


def test_a_continued_run_resumes_without_the_earlier_folder(may, tmp_path):
    shutil.copytree(may, tmp_path / "may")
    before = find_run(tmp_path / "may")
    config = named_config(train={"updates": 40, "checkpoint_every": 5})
    june = prepare(config, named(80, before, seed=2), tmp_path / "june", before=before)
    june.simulator.advance(100)
    june.folder.save_checkpoint(june._checkpoint())
    whole = prepare(config, named(80, before, seed=2), before=before).execute()
    shutil.rmtree(tmp_path / "may")
    again = reopen(june.federation.config, tmp_path / "june", lambda _, before: named(80, seed=2, before=_Has(before)))
    assert again.execute()["weights_sha256"] == whole["weights_sha256"]


class _Has:
    def __init__(self, fitted):
        self._fitted = fitted

    def fitted(self):
        return self._fitted


# Privacy: what the earlier run spent counts.

PRIVATE = {"privacy": {"mechanism": "output", "clip": 1.0, "noise": 40.0, "delta": 1e-3}}


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "may"
    made = prepare(named_config(**PRIVATE), named(60), folder)
    summary = made.execute()
    made.close_ledgers()
    return folder, summary


def test_both_runs_are_composed_and_the_ledger_says_so(private, tmp_path):
    folder, spent = private
    before = find_run(folder)
    made = prepare(named_config(**PRIVATE), named(80, before, seed=2), tmp_path / "june", before=before)
    both = made.execute()
    made.close_ledgers()
    alone = prepare(named_config(**PRIVATE), named(80, seed=2)).execute()
    for name in ("bank", "shop"):
        mu = both["privacy"]["parties"][name]["mu"]
        parts = [one["privacy"]["parties"][name]["mu"] for one in (spent, alone)]
        assert mu == pytest.approx(np.hypot(*parts), rel=1e-6)
    terms, _, account = read_ledger(tmp_path / "june" / "ledgers" / "bank.jsonl")
    assert terms["earlier"]["head"] == before.earlier["bank"].head
    assert account.mu == pytest.approx(both["privacy"]["parties"]["bank"]["mu"])
    assert "earlier" not in read_ledger(folder / "ledgers" / "bank.jsonl")[0]
    read = [_read(path / "ledgers" / "bank.jsonl") for path in (folder, tmp_path / "june")]
    page = str(ledger_in_words(read, 1, 1e-3, datetime.now(UTC)))
    assert f"Together: μ = {account.mu:.6g}," in page and "The run continues an earlier one" in page
    third = find_run(tmp_path / "june")
    assert sum(count for _, _, count in third.earlier["bank"].events) > sum(
        count for _, _, count in before.earlier["bank"].events
    )


def _read(path):
    return ReadLedger(str(path), "", *read_ledger(path))


def test_a_budget_that_was_spent_before_allows_no_release(private):
    folder, spent = private
    limit = spent["privacy"]["parties"]["bank"]["epsilon"] * 1.0001
    tables = PRIVATE | {"party": {"budgets": {"bank": {"epsilon": limit, "delta": 1e-3}}}}
    before = find_run(folder)
    june = prepare(named_config(**tables), named(80, before, seed=2), before=before)
    ended = june.execute()
    assert "its privacy budget does not allow another upload" in json.dumps(ended)
    assert ended["privacy"]["parties"]["bank"]["releases"] == 0


def test_no_account_by_record_after_plain_steps(tmp_path):
    blocks, y = frames(60)
    raw = {name: block.drop("city", strict=False) for name, block in blocks.items()}
    run(tmp_path / "may", named_config(**PRIVATE), from_blocks(raw, y, scale="none"))
    before = find_run(tmp_path / "may")
    private = PRIVATE["privacy"] | {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 40.0}}
    tables = {"privacy": private, "data": {"scale": "none"}}
    data = from_blocks(raw, y, scale="none", before=before.fitted())
    with pytest.raises(ConfigError, match=r"local_updates = 'dp-sgd': bank trained on its records without noise"):
        prepare(named_config(**tables), data, before=before)


def test_a_missing_ledger_is_refused(private, tmp_path):
    shutil.copytree(private[0], tmp_path / "may")
    (tmp_path / "may" / "ledgers" / "shop.jsonl").unlink()
    with pytest.raises(CheckpointError, match="the privacy ledger of shop is missing"):
        find_run(tmp_path / "may")


def test_every_role_of_a_federation_on_one_machine_gets_its_own_part(may, tmp_path):
    path = tmp_path / "table.csv"
    blocks, y = frames(70, 2)
    polars.concat([*blocks.values(), polars.DataFrame({"label": y})], how="horizontal").write_csv(path)
    columns = {"bank": ["age", "city", "income"], "shop": ["visits"]}
    config = named_config(data={"source": str(path), "label": "label", "split": columns, "scale": "standard"})
    prepare_up(config, tmp_path / "june", continues=may)
    for name in ("server", "bank", "shop"):
        kept = kept_continuation(tmp_path / "june" / "nodes" / name / "run")
        assert list(kept.members) == [name] and kept.folder == "may"
    share = load_party_share(tmp_path / "june" / "nodes" / "bank" / "share.safetensors")
    assert share.fitted.shift[0] == find_run(may).members["bank"].fitted.shift[0]
    server = tmp_path / "june" / "nodes" / "server"
    side = ServerSide(from_dict(read_toml(server / "config.toml")), server / "run", Log("server", stream=io.StringIO()))
    side.folder()  # a folder with nothing but the start is a new one
    assert side.before.run == kept.run


# Folders that are no run, or not a finished one.


def test_folders_without_networks_are_refused(may, tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        find_run(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"holds no run \(it is empty\)"):
        find_run(tmp_path)
    prepare(named_config(), named(60), tmp_path / "begun")
    with pytest.raises(ConfigError, match="has not finished: finish it first, with --resume"):
        find_run(tmp_path / "begun")
    (tmp_path / "begun" / "summary.json").write_text('{"status": "diverged"}')
    with pytest.raises(ConfigError, match="its training diverged"):
        find_run(tmp_path / "begun")
    (tmp_path / "begun" / "summary.json").write_text('{"status": "finished"}')
    with pytest.raises(ConfigError, match="an earlier release"):
        find_run(tmp_path / "begun")


def test_a_damaged_or_foreign_file_is_refused(may, tmp_path):
    content = bytearray((may / MODEL).read_bytes())
    content[-3] ^= 1
    (tmp_path / MODEL).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{MODEL}: damaged: the checksum"):
        find_run(tmp_path)
    for change, complaint in (({"format": 0, "release": "0.0.1"}, "format 0 of release 0.0.1"), ({"kind": "x"}, "not")):
        found = state.unpack((may / MODEL).read_bytes())
        (tmp_path / MODEL).write_bytes(state.pack(found | change))
        with pytest.raises(CheckpointError, match=complaint):
            find_run(tmp_path)


def test_a_partys_folder_is_not_enough_for_all(may, tmp_path):
    before = find_run(may).only("bank")
    with pytest.raises(ConfigError, match="has the network of bank, not of server"):
        prepare(named_config(), named(80, before, seed=2), before=before)
