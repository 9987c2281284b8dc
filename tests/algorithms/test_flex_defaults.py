"""With only its name as a setting and a slow party, each method learns; its defaults were chosen on other data."""

import numpy as np
import pytest

STEP_S = [0.01, 0.01, 0.01, 0.1]


def tables(name):
    return {
        "protocol": {"name": name},
        "clock": {"compute": [{"mean_s": step_s} for step_s in STEP_S]},
        "train": {"updates": 50, "eval_every": 50},
    }


@pytest.mark.parametrize("name", ["flex", "adaptive-flex", "p-bcd", "sync-min", "sync-max"])
def test_learns_with_its_name_alone(name, simulate):
    run = simulate(tables(name), "wine")
    assert run.status == "finished"
    labels = run.federation.server.y_test
    majority = np.bincount(labels).max() / len(labels)
    first, last = run.records[0], run.records[-1]
    assert last.values["accuracy"] > majority + 0.3 and last.loss < first.loss / 2
    slow, quick = run.roles["party-4"].network.steps, run.roles["party-1"].network.steps
    assert slow < quick / 4 if "flex" in name else slow == quick == 50
    rounds_s = run.simulator.now / 1e9 / 50
    assert rounds_s < 0.04 if "flex" in name else rounds_s > 0.1, "one of them waits for the slow party"
