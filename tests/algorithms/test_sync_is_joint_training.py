"""`sync` trains one model: step for step the same as a plain torch loop, `centralised`, and t-sync with t = M."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.protocol.events import Received

CASES = {
    "multiclass": ("digits", {"party": "mlp:16", "embedding": 8, "server": "mlp:16"}, {"learning_rate": 0.2}),
    "binary": (
        "breast-cancer",
        {"party": "dense", "embedding": 4, "server": "linear"},
        {"optimiser": "momentum", "learning_rate": 0.02},
    ),
    "regression": (
        "diabetes",
        {"party": "mlp:8", "embedding": 3, "server": "linear", "aggregate": "sum"},
        {"optimiser": "adam", "learning_rate": 0.01},
    ),
    "l1": (
        "diabetes",
        {"party": "mlp:8", "embedding": 3, "server": "linear"},
        {"loss": "l1", "learning_rate": 0.1},
    ),
    "huber": (
        "diabetes",
        {"party": "mlp:8", "embedding": 3, "server": "linear"},
        {"loss": "huber", "huber_delta": 0.5, "learning_rate": 0.1},
    ),
    "max": (
        "digits",
        {"party": "linear", "embedding": 10, "server": "none", "aggregate": "max"},
        {"learning_rate": 0.1, "step_rule": "inverse", "step_offset": 5.0},
    ),
    "cosine": (
        "digits",
        {"party": "dense", "embedding": 6, "server": "linear"},
        {"learning_rate": 0.2, "step_rule": "cosine", "warm_up": 4},
    ),
    "step": (
        "breast-cancer",
        {"party": "dense", "embedding": 4, "server": "linear"},
        {"optimiser": "adam", "learning_rate": 0.02, "step_rule": "step", "step_every": 3, "step_factor": 0.5},
    ),
    "server l2": (
        "digits",
        {"party": "dense", "embedding": 6, "server": "mlp:8"},
        {
            "learning_rate": 0.3,
            "server_regulariser": {"kind": "l2", "weight": 0.05},
            "regulariser": {"kind": "l2", "weight": 0.01},
        },
    ),
    "short": (
        "digits",
        {"party": "dense", "embedding": 6, "server": "linear"},
        {"learning_rate": 0.3, "max_gradient_norm": {"server": 0.2, "party": [0.05, 0.1, 0.15]}},
    ),
    "l2": (
        "breast-cancer",
        {"party": "mlp:8", "embedding": 4, "server": "mlp:4", "aggregate": "mean"},
        {"learning_rate": {"server": 0.05, "party": 0.1}, "regulariser": {"kind": "l2", "weight": 0.01}},
    ),
}
STEPS = 12


def tables(case, method, **protocol):
    _, model, train = CASES[case]
    limits = {"updates": STEPS, "eval_every": 1, "batch_size": 50}
    return {"protocol": {"name": method, **protocol}, "model": model, "train": {**limits, **train}}


class Joint(nn.Module):
    """All networks in one graph."""

    def __init__(self, parts, top, how):
        super().__init__()
        self.parts, self.top, self.how = nn.ModuleList(parts), top, how

    def forward(self, blocks):
        h = [part(block) for part, block in zip(self.parts, blocks, strict=True)]
        if self.how == "concat":
            return self.top(torch.cat(h, 1))
        stacked = torch.stack(h)
        return self.top({"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0)}[self.how])


def trainable(reader):
    return copy.deepcopy(reader).requires_grad_(True).train()


def error(train):
    match train.get("loss"):
        case "l1":
            return nn.L1Loss()
        case "huber":
            return nn.HuberLoss(delta=train["huber_delta"])
    return nn.MSELoss()


def share_of_rate(train, k):
    match train.get("step_rule"):
        case "inverse":
            return train["step_offset"] / (k + train["step_offset"])
        case "step":
            return train["step_factor"] ** (k // train["step_every"])
        case "cosine":
            return min(1, (k + 1) / train["warm_up"]) * (1 + np.cos(np.pi * k / STEPS)) / 2
    return 1


def plain_torch(roles, data, model, train, batches):
    """A hand-written loop; from Colonnade it takes only the initial weights and the rows of each batch."""
    joint = Joint(
        [trainable(role.network.reader) for role in roles[1:]],
        trainable(roles[0].network.reader),
        model.get("aggregate", "concat"),
    )
    rate = train["learning_rate"]
    rates = rate if isinstance(rate, dict) else {"server": rate, "party": rate}
    groups = [{"params": list(joint.top.parameters()), "lr": rates["server"]},
              {"params": list(joint.parts.parameters()), "lr": rates["party"]}]  # fmt: skip
    groups = [group for group in groups if group["params"]]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "momentum": torch.optim.SGD}[
        train.get("optimiser", "sgd")
    ]
    optimiser = kind(groups, **({"momentum": 0.9} if train.get("optimiser") == "momentum" else {}))
    first_rates = [group["lr"] for group in optimiser.param_groups]
    y = torch.from_numpy(np.asarray(data.y_train))
    losses, shortened = [], []
    for k, rows in enumerate(batches):
        index = torch.from_numpy(rows.astype(np.int64))
        output = joint([torch.from_numpy(block)[index] for block in data.train])
        if data.task.kind == "multiclass":
            loss = nn.functional.cross_entropy(output, y[index])
        elif data.task.kind == "binary":
            loss = nn.functional.binary_cross_entropy_with_logits(output[:, 0], y[index].float())
        else:
            loss = error(train)(output[:, 0], (y[index] - y.mean()) / y.std(correction=0))
        losses.append(loss.item())
        if "regulariser" in train:
            loss = loss + train["regulariser"]["weight"] / 2 * sum((p**2).sum() for p in joint.parts.parameters())
        if "server_regulariser" in train:
            weight = train["server_regulariser"]["weight"]
            loss = loss + weight / 2 * sum((p**2).sum() for p in joint.top.parameters())
        for group, first in zip(optimiser.param_groups, first_rates, strict=True):
            group["lr"] = first * share_of_rate(train, k)
        optimiser.zero_grad()
        loss.backward()
        if norms := train.get("max_gradient_norm"):
            for part, norm in zip([joint.top, *joint.parts], [norms["server"], *norms["party"]], strict=True):
                total = nn.utils.clip_grad_norm_(part.parameters(), norm)
                shortened.append(total.item() > norm)
        optimiser.step()
    assert not shortened or (any(shortened) and not all(shortened))
    return losses, joint


def train_losses(run):
    return [record.train_loss for record in run.records[1:]]


@pytest.mark.parametrize("case", CASES)
def test_sync_is_a_plain_torch_loop_step_for_step(case, simulate, resolve):
    source, model, train = CASES[case]
    setting = resolve(tables(case, "sync"), source, parties=3)
    run = simulate(tables(case, "sync"), source, parties=3)
    assert run.status == "finished" and run.server.k == STEPS
    batches = [event.message.rows for _, role, event in run.events
               if role == "server" and isinstance(event, Received) and event.sender == "party-2"
               and isinstance(event.message, Embeddings)][:STEPS]  # fmt: skip
    losses, joint = plain_torch(setting.roles(), setting.data, model, train, batches)
    np.testing.assert_allclose(train_losses(run), losses, rtol=2e-5)
    for role, part in zip([run.server, *run.parties], [joint.top, *joint.parts], strict=True):
        for found, expected in zip(role.network.reader.parameters(), part.parameters(), strict=True):
            torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        output = joint([torch.from_numpy(block) for block in setting.data.test])
    if setting.data.task.kind == "multiclass":
        expected = (output.argmax(1).numpy() == setting.data.y_test).mean()
        assert run.records[-1].values["accuracy"] == pytest.approx(expected, abs=1.5 / len(output))


@pytest.mark.parametrize("case", CASES)
def test_sync_is_centralised(case, simulate):
    source = CASES[case][0]
    sync, oracle = (simulate(tables(case, method), source, parties=3) for method in ("sync", "centralised"))
    assert len(sync.records) == len(oracle.records) == STEPS + 1
    for one, other in zip(sync.records, oracle.records, strict=True):
        assert (one.update, one.epochs) == (other.update, other.epochs)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.values == pytest.approx(other.values, rel=1e-3)
    np.testing.assert_allclose(train_losses(sync), train_losses(oracle), rtol=1e-4)
    for role, network in zip(sync.parties, oracle.server.parts, strict=True):
        np.testing.assert_allclose(role.network.theta, network.theta, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(sync.server.network.theta, oracle.server.network.theta, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", ["multiclass", "binary", "regression"])
def test_t_sync_of_all_with_shared_batches_is_sync(case, simulate):
    source = CASES[case][0]
    sync = simulate(tables(case, "sync"), source, parties=3)
    all_of_them = simulate(tables(case, "t-sync", t=3, batches="shared", table="zeros"), source, parties=3)
    np.testing.assert_allclose(train_losses(all_of_them), train_losses(sync), rtol=1e-5)
    assert all_of_them.server.staleness.summary()["max"] == 0


def test_one_less_than_all_is_not_sync(simulate):
    sync = simulate(tables("multiclass", "sync"), "digits", parties=3)
    two = simulate(tables("multiclass", "t-sync", t=2, batches="shared", table="zeros"), "digits", parties=3)
    assert not np.allclose(train_losses(two), train_losses(sync), rtol=1e-3)
