"""Runs whose server keeps its tables in files: the same runs bit for bit, killed or not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import apply_overrides, from_dict
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError

TABLES: dict[str, Any] = {
    "data": {"source": "breast-cancer", "parties": 3},
    "model": {"party": "linear", "embedding": 4},
    "clock": {
        "compute": {"kind": "exponential", "mean_s": 0.02},
        "faults": [{"party": "party-2", "kind": "crash", "at_s": 0.2, "until_s": 0.4}],
    },
    "train": {"batch_size": 16, "eval_every": 40, "seed": 4},
}
METHODS: list[dict[str, Any]] = [{"name": "vafl", "max_delay": 20}, {"name": "cascaded", "t": 2}, {"name": "flex"}]
UPDATES = {"vafl": 100, "cascaded": 60, "flex": 30}
HASHES = ("trace_sha256", "weights_sha256", "value", "loss", "staleness", "updates")


def config(method: dict[str, Any], **server: str) -> Any:
    updates = UPDATES[method["name"]]
    train = {"train.updates": updates, "train.checkpoint_every": updates // 5}
    return from_dict(apply_overrides(TABLES, {"protocol": method, "server": server, **train}))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every few events whether a checkpoint is due."""
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 20)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def hashes(run: Run) -> list[Any]:
    summary = run.execute()
    return [summary[key] for key in HASHES]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_in_a_file_as_in_memory_killed_or_not(tmp_path: Path, method: dict[str, Any]) -> None:
    calm = hashes(prepare(config(method)))
    assert hashes(prepare(config(method, table="file"))) == calm, "in a file without a name"

    folder, big = tmp_path / "run", config(method, table="file")
    killed = prepare(big, out=folder)
    seen: list[bytes] = []

    def kill(run: Run) -> None:
        file = folder / "checkpoint.safetensors"
        now = file.read_bytes() if file.exists() else b""
        if len(seen) == 2:
            run.simulator.advance(50)  # the table changes after the last checkpoint
            raise InterruptedError
        if now and now not in seen:
            seen.append(now)

    with pytest.raises(InterruptedError):
        killed.execute(kill)
    assert len(list(folder.glob("table/*.undo-*"))) == 4, "for each table, two logs: back to either checkpoint"
    saved: Any = state.unpack((folder / "checkpoint.safetensors").read_bytes())
    assert saved["simulator"]["nodes"][0]["role"]["table"].keys() == {"at", "clipped"}, "and no copy of the table"
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    flip(damaged / "checkpoint.safetensors")
    assert hashes(reopen(big, damaged)) == calm, "from the checkpoint before, and its table"
    assert hashes(reopen(big, folder)) == calm

    (folder / "table" / "train.rows").unlink()
    with pytest.raises(CheckpointError, match="train.rows: is missing or belongs to another run"):
        reopen(big, folder)


def test_a_run_cut_off_before_its_first_checkpoint_begins_with_an_empty_table(tmp_path: Path) -> None:
    big = config(METHODS[0], table="file")
    prepare(big, out=tmp_path / "run").simulator.advance(100)
    assert hashes(reopen(big, tmp_path / "run")) == hashes(prepare(config(METHODS[0])))


def test_half_precision_is_the_same_in_memory_and_in_a_file() -> None:
    """Half precision changes the weights a little."""
    runs = [prepare(config(METHODS[0], table=where, table_dtype="float16")) for where in ("memory", "file")]
    one, other = map(hashes, runs)
    exact = hashes(prepare(config(METHODS[0])))
    assert one == other and one[1] != exact[1]
    assert one[3] == pytest.approx(exact[3], rel=0.01)


@pytest.mark.parametrize(("key", "value"), [("table", "disk"), ("table_dtype", "float64")])
def test_other_words_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"server.{key} = '{value}': use one of"):
        config(METHODS[0], **{key: value})
