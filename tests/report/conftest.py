"""Folders to report on: a real run and race, and a large made-up race."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments.compare import compare
from colonnade.experiments.run import one_thread, prepare

TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 2},
    "model": {"party": "linear", "embedding": 4},
    "train": {"updates": 8, "eval_every": 2, "target": 0.3},
    "methods": {"ahead<1>": {"protocol.name": "vafl", "protocol.extra_rows": 1}},
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports")
    prepare(from_dict({key: value for key, value in TABLES.items() if key != "methods"}), out=path / "run").execute()
    command = "colonnade compare race.toml --protocols 'sync,ahead<1>' --seeds 2"
    compare(TABLES, ["sync", "ahead<1>", "centralised"], 2, path / "race", command=command)
    return path


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def large_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 methods × 5 seeds, 8 parties, 1,000 evaluations each, and a timeline with all its bins."""
    out, generator = tmp_path_factory.mktemp("reports") / "large", np.random.default_rng(0)
    roles = ["server", *(f"party-{number}" for number in range(1, 9))]
    for method in range(8):
        for seed in range(5):
            _write_run(out / f"method-{method}-seed{seed}", seed, roles, generator)
    (out / "command.txt").write_text("colonnade compare large.toml --seeds 5\n")
    return out


def _write_run(folder: Path, seed: int, roles: list[str], generator: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    values = np.maximum.accumulate(generator.random(1000))
    rows = [
        {
            "clock_s": 0.1 * place + generator.random() / 100, "wall_s": 0.01 * place, "update": 7 * place,
            "epochs": place / 10, "value": value, "accuracy": value, "loss": 3 * (1 - value), "train_loss": 1 - value,
            "bytes_up": 12_345 * place, "bytes_down": 23_456 * place,
            "staleness": (50 * generator.random(8)).tolist(), "missing": [],
        }
        for place, value in enumerate(values.tolist())
    ]  # fmt: skip
    shares = generator.dirichlet([1, 1, 1, 1], (len(roles), 400)).round(3)
    summary = {
        "protocol": "vafl", "parties": 8, "seed": seed, "driver": "sim", "status": "finished", "note": "",
        "updates": 7000, "epochs": 100.0, "clock_s": 100.0, "wall_s": 10.0, "metric": "accuracy",
        "value": rows[-1]["value"], "accuracy": rows[-1]["value"], "loss": rows[-1]["loss"], "target": 0.9,
        "time_to_target_s": 3.0 + generator.random(), "messages": 1000, "bytes_up": 10**7, "bytes_down": 10**7,
        "bytes_eval": 10**6, "bytes_by_kind": {"Embeddings": 10**7, "Gradient": 10**7},
        "staleness": {"mean": 20.0, "p95": 50.0, "max": 99.0}, "utilisation": dict.fromkeys(roles, 0.5),
        "privacy": None, "trace_sha256": "0" * 64, "weights_sha256": "1" * 64,
    }  # fmt: skip
    timeline = {"roles": roles, "bin_s": 0.25, "end_s": 100.0}
    timeline |= {state: shares[..., index].tolist() for index, state in enumerate(("busy", "transit", "offline"))}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "timeline.json").write_text(json.dumps(timeline))
    (folder / "staleness.json").write_text(json.dumps({"width": 4, "counts": generator.integers(9, 999, 128).tolist()}))
    (folder / "config.toml").write_text("[train]\nseconds = 100.0\n")
