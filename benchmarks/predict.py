"""What a prediction costs: a federation of three processes beside the server, asked over HTTP, against the bare model.

    python benchmarks/predict.py [--repeats 200] [--rows 20000]

A random table of 24 columns, three parties `mlp:64` of 16, a server `mlp:32`, trained for a moment. Then the server and
the parties come up from their checkpoints (mutual TLS over loopback, one thread each) and are asked for batches of 1,
100 and 1000 ids, one request after the other. The bare model is the same networks with the same rows in this process,
no ids, no messages. Plain torch is the layers of these networks as bare modules under `torch.inference_mode`. The floor
is the same hops between as many processes, with nothing in them (`predict_floor.py`): a federation without any cost of
its own would reach floor + bare, and less only by running networks side by side. All four are timed in turn, batch by
batch, and the ratios are those of the medians. The predictions are compared: they must be the same up to rounding.
"""

import argparse
import asyncio
import copy
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
        role.load(saved_role(out, role.name))
    tables = [np.concatenate([train, test]) for train, test in zip(data.train, data.test, strict=True)]

    def predict(rows: np.ndarray) -> np.ndarray:
        h = [role.network.read(table[rows]) for role, table in zip(roles[1:], tables, strict=True)]
        top = roles[0].network
        return np.asarray(top.objective.predict(top.output(np.concatenate(h, 1))))

    return predict


def plain_torch(config: Any, data: Any, out: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The same layers as bare modules of torch under `torch.inference_mode`, without any code of this package."""
    roles: list[Any] = federation(config, data).roles()
    for role in roles:
        role.load(saved_role(out, role.name))
    top, *parties = [copy.deepcopy(role.network.reader) for role in roles]
    tables = [np.concatenate([train, test]) for train, test in zip(data.train, data.test, strict=True)]

    @torch.inference_mode()
    def predict(rows: np.ndarray) -> np.ndarray:
        h = [party(torch.from_numpy(table[rows])) for party, table in zip(parties, tables, strict=True)]
        ones = torch.sigmoid(top(torch.cat(h, 1))[:, 0].double())
        return torch.stack([1 - ones, ones], 1).numpy()

    return predict


def saved_role(out: Path, name: str) -> Any:
    """The state that a role's process saved."""
    return state.unpack((out / "nodes" / name / "run" / "state" / "checkpoint.safetensors").read_bytes())["role"]


def frame_bytes(message: Ask | Found) -> int:
    """The size of a message on the wire."""
    return Codec(PAYLOADS).encode(message).size + ENVELOPE_BYTES


def measure(
    door: Door, bare: Callable[[np.ndarray], np.ndarray], plain: Callable[[np.ndarray], np.ndarray],
    hops: Callable[..., object], ids: list[str], batch: int, repeats: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Seconds of every request, of the bare model and of plain torch with the same rows, and of the empty hops."""
    generator, asked, alone, torches, empty = np.random.default_rng(batch), [], [], [], []
    found_bytes = frame_bytes(Found(0, 0, np.ones(batch, bool), np.zeros((batch, 16), np.float32)))
    for repeat in range(repeats + 5):
        rows = generator.integers(0, len(ids), batch)
        chosen = [ids[row] for row in rows]
        start = time.perf_counter()
        found = door.request("POST", "/predict", {"ids": chosen})
        between = time.perf_counter()
        expected = bare(rows)
        end = time.perf_counter()
        in_torch = plain(rows)
        last = time.perf_counter()
        answered = np.array([answer["probabilities"] for answer in found["answers"]])
        if not all(np.allclose(given, expected, rtol=0.0, atol=ROUNDING) for given in (answered, in_torch)):
            raise SystemExit("the federation predicts something else than the bare model")
        sizes = frame_bytes(Ask(0, 0, chosen)), found_bytes, len(json.dumps(found))
        before = time.perf_counter()
        hops(chosen, *sizes)
        after = time.perf_counter()
        if repeat >= 5:  # the first ones trigger late imports
            asked.append(between - start)
            alone.append(end - between)
            torches.append(last - end)
            empty.append(after - before)
    return np.array(asked), np.array(alone), np.array(torches), np.array(empty)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=200)
    arguments.add_argument("--rows", type=int, default=20_000)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(width=170)
    config, data = from_dict(CONFIG), make_data(options.rows)
    table = Table(
        "ids", "p50 (ms)", "p95 (ms)", "rows/s", "bare p50 (ms)", "bare rows/s", "p50 ratio", "rows/s ratio",
        "floor p50 (ms)", "floor ratio", "plain torch p50 (ms)", "p50 / plain torch",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        asyncio.run(prepare_up(config, out, data).run())
        bare, plain = bare_model(config, data, out), plain_torch(config, data, out)
        with up_for_questions(reopen_up(config, out, predict=True)) as door, floor(list(data.parties)) as hops:
            for batch in BATCHES:
                asked, alone, torches, empty = measure(door, bare, plain, hops, list(data.ids), batch, options.repeats)
                p50, p95, own, least = np.median(asked), np.quantile(asked, 0.95), np.median(alone), np.median(empty)
                layers = np.median(torches)
                cells = (1e3 * p50, 1e3 * p95, batch / p50, 1e3 * own, batch / own, p50 / own, own / p50)
                cells += (1e3 * least, least / own, 1e3 * layers, p50 / layers)
                table.add_row(str(batch), *(f"{cell:.3g}" if cell < 1000 else f"{cell:.0f}" for cell in cells))
    console.print(table)


if __name__ == "__main__":
    main()
