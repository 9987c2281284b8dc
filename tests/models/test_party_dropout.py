"""Party dropout: a gate before the server's network, open in evaluation, drawn by seed in training."""

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.config.resolve import make_plan
from colonnade.config.schema import from_dict
from colonnade.data.task import Task
from colonnade.experiments.run import prepare
from colonnade.models import Objective, OptimiserSpec, PartyDropout, ServerNetwork, with_party_dropout
from colonnade.protocol.errors import ConfigError

WIDTHS = (1, 2)


def network(probability, how="concat", widths=WIDTHS):
    inner = nn.Linear(sum(widths) if how == "concat" else widths[0], 1, bias=False)
    nn.init.ones_(inner.weight)
    module, how = with_party_dropout(inner, probability, widths, how)
    objective = Objective(Task("regression", ()), np.array([-1.0, 1.0], np.float32))
    return ServerNetwork(module, OptimiserSpec("sgd"), objective, how, len(widths))


def test_without_it_nothing_is_wrapped():
    inner = nn.Linear(3, 1)
    assert with_party_dropout(inner, 0.0, WIDTHS, "mean") == (inner, "mean")


def test_a_replaced_block_has_no_gradient_and_its_fallback_has():
    h = np.ones((64, 3), np.float32)
    found = network(0.5).gradients(h, np.full(64, 100.0, np.float32), seed=3)
    away = found.h == 0
    assert (away[:, 1] == away[:, 2]).all(), "a party is present or absent as a whole"
    assert 0.2 < away[:, 0].mean() < 0.8 and (away[:, 0] != away[:, 1]).any()
    of_fallback = found.theta_0[:3]
    assert (of_fallback < 0).all() and of_fallback[1] == of_fallback[2]


def test_the_same_seed_draws_the_same_parties():
    h, targets = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32), np.zeros(32, np.float32)
    first, again, other = (network(0.5).gradients(h, targets, seed) for seed in (1, 1, 2))
    assert first.loss == again.loss and (first.theta_0 == again.theta_0).all() and first.loss != other.loss


def test_torchs_own_generator_is_left_alone():
    made, before = network(0.5), torch.get_rng_state()
    made.gradients(np.ones((4, 3), np.float32), np.zeros(4, np.float32), 1)
    assert torch.equal(before, torch.get_rng_state())


def test_in_evaluation_all_blocks_count():
    assert network(0.9).output(np.array([[1, 2, 3]], np.float32)).item() == 6


@pytest.mark.parametrize(("how", "expected"), [("sum", 3.0), ("mean", 1.5), ("max", 2.0)])
def test_the_gate_is_before_the_aggregate(how, expected):
    made = network(0.5, how, (1, 1))
    assert isinstance(made.reader, PartyDropout)
    assert made.output(np.array([[1, 2]], np.float32)).item() == expected


def tables(**more):
    train = {"updates": 30, "eval_every": 15, "party_dropout": 0.4} | more.pop("train", {})
    model = {"party": "linear", "embedding": 4}
    return {
        "data": {"source": "digits", "parties": 2},
        "model": model,
        "protocol": {"name": "vafl"} | more,
        "train": train,
    }


@pytest.mark.parametrize("name", ["sync", "vafl", "t-sync", "p-bcd"])
def test_methods_train_with_it_and_learn_a_fallback(name):
    runs = [prepare(from_dict(tables(name=name))) for _ in range(2)]
    first, again = [run.execute() for run in runs]
    assert first["weights_sha256"] == again["weights_sha256"] and first["trace_sha256"] == again["trace_sha256"]
    fallback = runs[0].simulator.nodes[0].role.network.reader.fallback
    assert fallback.shape == (8,) and fallback.abs().min() > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train": {"party_dropout": 1.0}}, "below 1"),
        ({"train": {"party_dropout": -0.1}}, "below 1"),
        ({"name": "fedvs"}, "does not support it: use one of sync, swift"),
        ({"name": "asysqn-sgd"}, "does not support it"),
        ({"name": "centralised"}, "does not support it"),
        ({"name": "flex", "labels": "shared"}, "labels = 'shared'"),
    ],
)
def test_what_cannot_be_is_refused(more, words):
    with pytest.raises(ConfigError, match="train.party_dropout") as error:
        make_plan(from_dict(tables(**more)), ("a", "b", "c"), 100, Task("binary", ("0", "1")))
    assert words in str(error.value)
