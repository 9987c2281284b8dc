"""Direct label inference: which roles learn labels from which method; and a check that the measurement can fail."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.algorithms.vafl.messages import Embeddings, Gradient
from colonnade.algorithms.zeroth.messages import Probe
from colonnade.attacks.attack import Order, Outcome, attack
from colonnade.attacks.clients import Client, GradientReader, LossReader, PackedRows, RowByRow
from colonnade.attacks.eavesdropper import Eavesdropper
from colonnade.attacks.label_inference import LABEL_INFERENCE, summing_tables
from colonnade.attacks.registry import find_attack
from colonnade.attacks.stage import Stage
from colonnade.config.resolve import federation, load_partition
from colonnade.config.schema import Config, apply_overrides, from_dict
from colonnade.data import Partition
from colonnade.experiments.run import one_thread
from colonnade.protocol.errors import ConfigError, ModelError, RemoteProtocolError
from colonnade.protocol.events import Received
from colonnade.protocol.messages import Message

DIGITS: dict[str, Any] = {"train": {"learning_rate": 0.01}}
ROWS, FEW = 1438, 320


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def digits() -> Partition:
    return load_partition(from_dict(summing_tables({**DIGITS, "data": {"validation_fraction": 0}})))


@pytest.fixture(scope="module")
def few(digits: Partition) -> Partition:
    """Few rows, for attackers that ask about one row at a time."""
    return replace(digits, train=tuple(x[:FEW] for x in digits.train), y_train=digits.y_train[:FEW])


def attacked(
    data: Partition, protocols: str, attackers: str, trials: int = 1, tables: dict[str, Any] = DIGITS
) -> dict[tuple[str, str], Outcome]:
    def load(config: Config) -> Partition:
        return data

    order = Order(tables, protocols.split(","), attackers.split(","), trials, load)
    return {(outcome.method, outcome.attacker): outcome for outcome in attack(LABEL_INFERENCE, order)}


def stage(data: Partition, method: str, **fields: Any) -> Stage:
    tables = apply_overrides(
        summing_tables({**DIGITS, "protocol": {"name": method}}), {"model.embedding": data.task.outputs}
    )
    return Stage(federation(from_dict({**tables, "protocol": {"name": method, **fields}}), data))


def highest(chance: float, rows: int) -> float:
    """Four standard deviations above a share that is due to luck: missed once in 30,000."""
    return chance + 4 * sqrt(chance * (1 - chance) / rows)


FLEX = ["flex", "adaptive-flex", "p-bcd", "sync-min", "sync-max"]


@pytest.mark.parametrize("method", ["vafl", "swift", "sync", "t-sync", *FLEX, "wait", "wait-dp"])
def test_gradients_tell_every_label(method: str, digits: Partition) -> None:
    found = attacked(digits, method, "curious,eavesdropper")
    assert [outcome.success for outcome in found.values()] == [1.0, 1.0]
    assert all(outcome.control < highest(outcome.chance, ROWS) for outcome in found.values())


def test_a_party_that_is_left_out_is_told_nothing_of_that_round(digits: Partition) -> None:
    """`ignore` with two parties uses one of them, and that one receives ∇_H."""
    found = attacked(digits, "ignore", "curious")["ignore", "curious client"]
    read = found.trials[0].read / ROWS
    assert 0.2 < read < 0.8
    assert abs(found.success - (read + (1 - read) / 10)) < highest(0.1, ROWS) - 0.1


def test_sums_of_coded_embeddings_tell_every_label_through_their_gradient() -> None:
    """`fedvs`: an honest party reads ∇_H, which the server sends to all; K = 2 cuts the rows into two segments."""
    tables = {**DIGITS, "data": {"parties": 5}, "protocol": {"K": 2}}
    found = attack(LABEL_INFERENCE, Order(tables, ["fedvs"], ["curious"], 1))[0]
    assert found.attacker == "curious client, by the protocol" and found.success == 1.0
    assert found.control < highest(found.chance, ROWS)


def test_luck_is_that_of_the_guesses_not_one_of_all_classes() -> None:
    """Against shuffled labels, correct guesses of 76/24 classes are right in Σp² of all rows, not in half of them."""
    rare = np.arange(FEW) % 25 < 6
    tables = {**DIGITS, "data": {"source": "breast-cancer"}}
    data = load_partition(from_dict(summing_tables(tables)))
    data = replace(data, train=tuple(x[:FEW] for x in data.train), y_train=(~rare).astype(data.y_train.dtype))
    found = attacked(data, "vafl", "curious", tables=tables)["vafl", "curious client"]
    share = rare.mean()
    assert found.success == 1.0 and found.chance == 1 - share
    assert found.matched == pytest.approx(share**2 + (1 - share) ** 2) and found.matched > 0.6
    assert found.trials[0].expected / FEW == pytest.approx(found.matched)
    assert abs(found.control - found.matched) < highest(found.matched, FEW) - found.matched


@pytest.mark.parametrize("method", ["cascaded", "zoo", "syn-zoo"])
def test_losses_of_batches_tell_hardly_any(method: str, digits: Partition) -> None:
    found = attacked(digits, method, "curious,eavesdropper", trials=3)
    assert len(found) == 3
    for outcome in found.values():
        assert outcome.success < highest(outcome.chance + 0.02, 3 * ROWS), outcome.attacker
        assert [trial.asked >= 22 for trial in outcome.trials] == [True] * 3 and outcome.trials[0].read == ROWS


@pytest.mark.parametrize("method", ["cascaded", "syn-zoo"])
def test_losses_per_sample_tell_more(method: str, digits: Partition) -> None:
    told = attacked(digits, method, "per-sample")[method, "curious client, losses per sample"]
    assert 0.16 < told.success < 0.25  # digest: 20 %


def test_the_rules_stop_row_by_row_and_nothing_else_does(few: Partition) -> None:
    found = attacked(few, "cascaded", "adaptive")
    against, without = (found["cascaded", f"row by row, {how}"] for how in ("against the rules", "no rules"))
    assert against.trials[0].refused == against.trials[0].asked == 100 and against.trials[0].read == 0
    assert "protocol.min_batch" in against.trials[0].first_refusal
    assert against.success < highest(against.chance, FEW)
    assert without.success == 1.0 and without.trials[0].refused == 0


def test_both_tricks_of_row_by_row_are_refused(few: Partition) -> None:
    """One row alone, and one row many times."""
    causes = []
    scene = stage(few, "cascaded")
    server = scene.setting.method.server(scene.setting.server)
    client = RowByRow(scene.place)
    for _ in range(2):
        question = client.ask(0)
        probe = Probe(0, len(question.rows), question.rows, question.values, perturbed=question.perturbed)
        with pytest.raises(RemoteProtocolError) as refused:
            server.handle(Received("party-1", probe), 0)
        causes.append(refused.value.cause)
        client.refused()
    assert "protocol.min_batch" in causes[0] and "each row may occur once" in causes[1]


def test_what_remains_inside_the_rules(few: Partition) -> None:
    """A known weakness, measured: a float64 can hold a dozen labels. If this fails, update docs/attacks.md."""
    found = attacked(few, "cascaded", "adaptive")["cascaded", "packed rows, inside the rules"]
    assert found.success == 1.0 and found.trials[0].refused == 0
    assert found.trials[0].asked == 6 * FEW // 64  # six epochs of honest batches


def test_large_batches_slow_down_what_remains(digits: Partition) -> None:
    scene = stage(digits, "cascaded", min_batch=64, extra_queries=0)
    client = PackedRows(scene.place)
    asked = scene.intrude(client).asked
    assert (client.guesses == digits.y_train).all() and not client.refusals
    assert asked == 6 * 22  # epochs and batches: 12 labels of each batch of 64


def test_coordinated_rounds_leave_no_choice_of_rows(digits: Partition) -> None:
    found = attacked(digits, "syn-zoo", "adaptive")
    assert list(found) == [("syn-zoo", "packed rows, inside the rules")]
    assert 0.2 < found["syn-zoo", "packed rows, inside the rules"].success < 0.35


def test_more_directions_tell_more(digits: Partition) -> None:
    many = attacked(digits, "cascaded", "curious", tables={**DIGITS, "protocol": {"directions": 64}})
    assert 0.3 < many["cascaded", "curious client"].success < 0.6


@pytest.mark.parametrize(
    ("method", "client", "rules"),
    [
        ("vafl", GradientReader, True),
        ("flex", GradientReader, True),
        ("wait", GradientReader, True),
        ("cascaded", RowByRow, False),
        ("cascaded", PackedRows, True),
    ],
)
def test_shuffled_labels_refute(method: str, client: type[Client], rules: bool, few: Partition) -> None:
    """The same attacks on a server with shuffled labels find those labels and learn nothing about the true ones."""
    shuffled = replace(few, y_train=np.random.default_rng(5).permutation(few.y_train))
    scene = stage(shuffled, method)
    attacker = client(scene.place)
    scene.intrude(attacker, rules=rules)
    assert (attacker.guesses == shuffled.y_train).all()
    assert (attacker.guesses == few.y_train).mean() < highest(0.12, FEW)


def test_shuffled_labels_refute_what_an_honest_party_of_fedvs_reads() -> None:
    tables = {**DIGITS, "data": {"parties": 3, "scale": "minmax"}, "protocol": {"name": "fedvs"}}
    tables = apply_overrides(summing_tables(tables), {"model.embedding": 10})
    true = load_partition(from_dict(tables))
    true = replace(true, train=tuple(x[:FEW] for x in true.train), y_train=true.y_train[:FEW])
    shuffled = replace(true, y_train=np.random.default_rng(5).permutation(true.y_train))
    scene = Stage(federation(from_dict(tables), shuffled))
    eavesdropper = Eavesdropper(scene.place)
    scene.listen(eavesdropper)
    assert (eavesdropper.guesses == shuffled.y_train).all()
    assert (eavesdropper.guesses == true.y_train).mean() < highest(0.12, FEW)


def test_an_ear_hears_only_its_party(digits: Partition) -> None:
    heard: list[Message] = []

    class Recorder(Eavesdropper):
        def hear(self, message: Message) -> None:
            heard.append(message)
            super().hear(message)

    scene = stage(digits, "vafl")
    eavesdropper, walk = Recorder(scene.place), scene.place.walk
    scene.listen(eavesdropper)
    assert (eavesdropper.guesses == digits.y_train).all()
    batches = [message for message in heard if isinstance(message, Embeddings) and message.batch]
    assert len(batches) >= walk.per_epoch and {type(message) for message in heard} == {Embeddings, Gradient}
    assert all((message.rows == walk.batch(message.step)).all() for message in batches)


def test_the_benign_party_is_told_means(digits: Partition) -> None:
    """Per-sample losses would stop an honest party; only the intruder gets them."""
    scene = stage(digits, "cascaded")
    intruder = scene.intrude(LossReader(scene.place), per_sample=True)
    assert intruder.finished and intruder.asked == scene.place.walk.per_epoch


def test_a_single_logit() -> None:
    tables = {**DIGITS, "data": {"source": "breast-cancer"}}
    data = load_partition(from_dict(summing_tables(tables)))
    found = attacked(data, "vafl,cascaded", "curious,adaptive", tables=tables)
    shares = {key: outcome.success for key, outcome in found.items()}
    assert shares["vafl", "curious client"] == 1.0
    assert shares["cascaded", "row by row, no rules"] == shares["cascaded", "packed rows, inside the rules"] == 1.0
    assert shares["cascaded", "curious client"] < highest(0.62, 455)


def test_the_same_seed_gives_the_same_attack(digits: Partition) -> None:
    first, second = (attacked(digits, "cascaded", "curious,eavesdropper") for _ in range(2))
    assert [outcome.summary() for outcome in first.values()] == [outcome.summary() for outcome in second.values()]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"server": "linear"}}, "model.server = 'linear': the direct attack needs a server that only sums"),
        ({"model": {"aggregate": "concat"}}, "model.aggregate = 'concat': the direct attack needs a server"),
    ],
)
def test_refuses_servers_that_do_more(tables: dict[str, Any], message: str, digits: Partition) -> None:
    with pytest.raises(ConfigError, match=message):
        attacked(digits, "vafl", "curious", tables=tables)


def test_shared_labels_need_no_attack(digits: Partition) -> None:
    with pytest.raises(ConfigError, match=r"protocol.labels = 'shared': the server sends the labels themselves"):
        attacked(digits, "flex", "curious", tables={"protocol": {"labels": "shared"}})


def test_refuses_other_widths(digits: Partition) -> None:
    with pytest.raises(ModelError, match="a server that only sums needs an embedding of 10"):
        attacked(digits, "vafl", "curious", tables={"model": {"embedding": 32}})


@pytest.mark.parametrize(
    ("protocols", "attackers", "message"),
    [
        ("vafll", "curious", "did you mean 'vafl'"),
        ("centralised", "curious", "there is nothing to attack"),
        ("frozen", "curious", "use 'cascaded'"),
        ("vafl", "curios", "did you mean 'curious'"),
        ("asysqn-sgd", "curious", "every party holds the labels: there is nothing to infer"),
    ],
)
def test_refuses_unknown_words(protocols: str, attackers: str, message: str, digits: Partition) -> None:
    with pytest.raises(ConfigError, match=message):
        attacked(digits, protocols, attackers)


@pytest.mark.parametrize("attacker", ["curious", "eavesdropper"])
def test_an_answer_that_no_attack_can_read_is_not_called_safe(
    attacker: str, digits: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    with pytest.raises(ConfigError, match="answers with Signs.*no built-in attacker can read this"):
        attacked(digits, "vafl_sign:METHOD", attacker)


def test_refuses_regression(digits: Partition) -> None:
    values = replace(digits, task=replace(digits.task, kind="regression", classes=()))
    with pytest.raises(ConfigError, match="is a regression task: there are no classes"):
        attacked(values, "vafl", "curious")


def test_refuses_no_trials_and_unknown_attacks(digits: Partition) -> None:
    with pytest.raises(ConfigError, match="--trials = 0: must be 1 or more"):
        attacked(digits, "vafl", "curious", trials=0)
    with pytest.raises(ConfigError, match="did you mean 'label-inference'"):
        find_attack("label-infrence")
    with pytest.raises(ConfigError, match="is a ModuleSpec, not a colonnade Attack"):
        find_attack("colonnade.attacks:__spec__")
    assert find_attack("label-inference") is LABEL_INFERENCE
