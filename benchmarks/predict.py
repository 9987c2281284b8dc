"""What a prediction costs: a federation of three processes beside the server, asked over HTTP, against the bare model.

    python benchmarks/predict.py [--repeats 200] [--rows 20000]

A random table of 24 columns, three parties `mlp:64` of 16, a server `mlp:32`, trained for a moment. Then the server and
the parties come up from their checkpoints (mutual TLS over loopback, one thread each) and are asked for batches of 1,
100 and 1000 ids, one request after the other. The bare model is the same networks with the same rows in this process,
no ids, no messages. The floor is the same hops between as many processes, with nothing in them (`predict_floor.py`): a
federation without any cost of its own would reach floor + bare, and less only by running networks side by side. All
three are timed in turn, batch by batch, and the ratios are those of the medians. The predictions are compared: they
must be the same up to rounding.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from predict_floor import floor
from rich.console import Console
from rich.table import Table

from colonnade.algorithms.prediction.messages import PAYLOADS, Ask, Found
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import from_arrays, split
from colonnade.deployment.up import prepare_up, reopen_up
from colonnade.drivers.processes.wire import ENVELOPE_BYTES
from colonnade.predict.asking import Door, up_for_questions
from colonnade.protocol import state
from colonnade.protocol.codec import Codec

BATCHES = (1, 100, 1000)
ROUNDING = 1e-6  # the federation may compute the rows in other pieces
CONFIG = {
    "model": {"party": "mlp:64", "embedding": 16, "server": "mlp:32"},
    "protocol": {"name": "sync"},
    "train": {"updates": 20, "eval_every": 20, "learning_rate": 0.1},
    "predict": {"http": "127.0.0.1:0"},
}


def make_data(rows: int) -> Any:
    """A random table for three parties."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 24)).astype(np.float32)
    return split(from_arrays(x, (x[:, ::5].sum(1) > 0).astype(int)), parties=3)


def bare_model(config: Any, data: Any, out: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The networks that the processes saved, called directly."""
    roles: list[Any] = federation(config, data).roles()
    for role in roles:
        saved = state.unpack((out / "nodes" / role.name / "run" / "state" / "checkpoint.safetensors").read_bytes())
        role.load(saved["role"])
    tables = [np.concatenate([train, test]) for train, test in zip(data.train, data.test, strict=True)]

    def predict(rows: np.ndarray) -> np.ndarray:
        h = [role.network.read(table[rows]) for role, table in zip(roles[1:], tables, strict=True)]
        top = roles[0].network
        return np.asarray(top.objective.predict(top.output(np.concatenate(h, 1))))

    return predict


def frame_bytes(message: Ask | Found) -> int:
    """The size of a message on the wire."""
    return Codec(PAYLOADS).encode(message).size + ENVELOPE_BYTES


def measure(
    door: Door, bare: Callable[[np.ndarray], np.ndarray], hops: Callable[..., object], ids: list[str], batch: int,
    repeats: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Seconds of every request, of the bare model with the same rows, and of the same hops with nothing in them."""
    generator, asked, alone, empty = np.random.default_rng(batch), [], [], []
    found_bytes = frame_bytes(Found(0, 0, np.ones(batch, bool), np.zeros((batch, 16), np.float32)))
    for repeat in range(repeats + 5):
        rows = generator.integers(0, len(ids), batch)
        chosen = [ids[row] for row in rows]
        start = time.perf_counter()
        found = door.request("POST", "/predict", {"ids": chosen})
        between = time.perf_counter()
        expected = bare(rows)
        end = time.perf_counter()
        answered = np.array([answer["probabilities"] for answer in found["answers"]])
        if not np.allclose(answered, expected, rtol=0.0, atol=ROUNDING):
            raise SystemExit("the federation predicts something else than the bare model")
        sizes = frame_bytes(Ask(0, 0, chosen)), found_bytes, len(json.dumps(found))
        before = time.perf_counter()
        hops(chosen, *sizes)
        after = time.perf_counter()
        if repeat >= 5:  # the first ones trigger late imports
            asked.append(between - start)
            alone.append(end - between)
            empty.append(after - before)
    return np.array(asked), np.array(alone), np.array(empty)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=200)
    arguments.add_argument("--rows", type=int, default=20_000)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(width=130)
    config, data = from_dict(CONFIG), make_data(options.rows)
    table = Table(
        "ids", "p50 (ms)", "p95 (ms)", "rows/s", "bare p50 (ms)", "bare rows/s", "p50 ratio", "rows/s ratio",
        "floor p50 (ms)", "floor ratio",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        asyncio.run(prepare_up(config, out, data).run())
        bare = bare_model(config, data, out)
        with up_for_questions(reopen_up(config, out, predict=True)) as door, floor(list(data.parties)) as hops:
            for batch in BATCHES:
                asked, alone, empty = measure(door, bare, hops, list(data.ids), batch, options.repeats)
                p50, p95, own, least = np.median(asked), np.quantile(asked, 0.95), np.median(alone), np.median(empty)
                cells = (1e3 * p50, 1e3 * p95, batch / p50, 1e3 * own, batch / own, p50 / own, own / p50)
                cells += (1e3 * least, least / own)
                table.add_row(str(batch), *(f"{cell:.3g}" if cell < 1000 else f"{cell:.0f}" for cell in cells))
    console.print(table)


if __name__ == "__main__":
    main()
