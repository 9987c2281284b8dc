"""Exported networks: a reader without Colonnade gives the same predictions, and a full disk leaves nothing."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import polars
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from tests.test_docs_blocks import code_of

import colonnade
from colonnade.cli.main import main
from colonnade.drivers.files import Disk
from colonnade.protocol.errors import CheckpointError, ModelError
from colonnade.results.export import export_members
from colonnade.results.trained import find_models

PAGE = Path(__file__).parents[2] / "docs" / "next-month.md"
READER = next(one.text for one in code_of(PAGE) if "load_file" in one.text)


def frames(rows=90, kind="binary"):
    draw = np.random.default_rng(0)
    age, visits = draw.normal(40, 9, rows), draw.normal(5, 3, rows)
    bank = polars.DataFrame({"age": age, "city": draw.choice(["Bern", "Oslo", "Lima"], rows), "zip": age**2})
    score = age / 9 + visits / 3
    y = {"binary": score > 6, "multiclass": np.digitize(score, [5, 7]), "regression": score * 100}[kind]
    return {"bank": bank, "shop": polars.DataFrame({"visits": visits})}, y if kind == "regression" else y.astype(int)


def read(folder, tmp_path, blocks, apart, monkeypatch, capsys):
    """Run the reader of the docs where it cannot import Colonnade: in its own process or, which is faster, here."""
    for name, block in blocks.items():
        block.write_csv(tmp_path / f"{name}.csv")
    tables = [f"{name}={tmp_path / name}.csv" for name in blocks]
    if not apart:
        monkeypatch.setitem(sys.modules, "colonnade", None)
        monkeypatch.setattr(sys, "argv", ["reader.py", str(folder), *tables])
        exec(compile(READER, "reader.py", "exec"), {})  # the docs' own code
        return np.array(json.loads(capsys.readouterr().out))
    blocked = "import sys\nsys.modules['colonnade'] = None\n" + READER
    done = subprocess.run(
        [sys.executable, "-c", blocked, str(folder), *tables], capture_output=True, text=True, check=True
    )
    return np.array(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("protocol", "kind", "settings"),
    [
        ("vafl", "multiclass", {"party_model": "mlp:6,5", "server_model": "mlp:4"}),
        ("sync", "regression", {"party_model": "dense", "aggregate": "mean"}),
        ({"name": "wait"}, "binary", {"party_model": "polynomial:2"}),
        ({"name": "asysqn-sgd", "masking": "off"}, "binary", {}),
    ],
)
def test_a_reader_in_plain_torch_gives_the_same_predictions(
    protocol, kind, settings, tmp_path, monkeypatch, capsys, recwarn
):
    blocks, y = frames(kind=kind)
    scale = "clipped" if protocol == {"name": "wait"} else None
    result = colonnade.train(colonnade.from_blocks(blocks, y, scale=scale), protocol, updates=20, **settings)
    result.export(tmp_path / "models")
    blocks["bank"][3, "city"] = "Rome"  # never seen
    here = result.predict(list(blocks.values()))
    found = read(tmp_path / "models", tmp_path, blocks, protocol == "vafl", monkeypatch, capsys)
    np.testing.assert_allclose(found.reshape(here.shape), here, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("party", "server", "aggregate"),
    [
        ("mlp:6", "mlp:4", "concat"),
        ("polynomial:3", "linear", "mean"),
        ("dense", "none", "sum"),
        ("linear", "linear", "max"),
    ],
)
def test_onnx_computes_the_same(party, server, aggregate, tmp_path):
    blocks, y = frames(kind="multiclass")
    data = colonnade.from_blocks(blocks, y)
    width = {"embedding": 3}
    result = colonnade.train(data, "vafl", party, server, aggregate=aggregate, updates=8, **width)
    result.export(tmp_path, onnx=True)
    h = [_run(tmp_path / f"{name}.onnx", data.block(place, blocks[name])) for place, name in enumerate(data.parties)]
    output = _run(tmp_path / "server.onnx", np.concatenate(h, 1))
    found = torch.softmax(torch.from_numpy(output).double(), 1).numpy()
    np.testing.assert_allclose(found, result.predict(list(blocks.values())), rtol=1e-4, atol=1e-5)


def _run(path, x):
    onnx.checker.check_model(str(path), full_check=True)
    return ReferenceEvaluator(str(path)).run(None, {"input": x})[0]


def test_onnx_of_an_image_network(tmp_path):
    data = colonnade.split(colonnade.load("digits"), parties=2, how="rows")
    result = colonnade.train(data, "vafl", "cnn", updates=2, embedding=4)
    result.export(tmp_path, onnx=True)
    role = next(node.role for node in result._run.simulator.nodes if node.role.name == "party-1")
    found = _run(tmp_path / "party-1.onnx", data.test[0][:20])
    np.testing.assert_allclose(found, role.network.read(data.test[0][:20]), rtol=1e-4, atol=1e-5)


class Own(torch.nn.Linear):
    """A user's class."""


def test_networks_without_such_a_form_are_refused(tmp_path):
    data = colonnade.from_blocks(*frames())
    result = colonnade.train(data, "vafl", Own, updates=2, embedding=3)
    with pytest.raises(ModelError, match="bank: its own module has no ONNX form"):
        result.export(tmp_path / "a", onnx=True)
    assert not (tmp_path / "a").exists()
    result.export(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "bank.json").read_text())["layers"] is None


class FullDisk(Disk):
    """Takes so many bytes and no more."""

    def __init__(self, room):
        self._room = room

    def write(self, file, parts, offset):
        self._room -= sum(map(len, parts))
        if self._room < 0:
            super().write(file, [bytes(parts[0])[:10]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, parts, offset)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs") / "may"
    colonnade.train(colonnade.from_blocks(*frames()), "vafl", "mlp:5", embedding=3, updates=3, out=made)
    return made


def test_a_full_disk_leaves_no_new_file_and_the_old_ones_whole(folder, tmp_path):
    run, members = find_models(folder)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device; no new file is left"):
        export_members(members.values(), run, tmp_path / "new", disk=FullDisk(2000))
    assert not list((tmp_path / "new").iterdir())
    export_members(members.values(), run, tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    with pytest.raises(CheckpointError, match="No space left"):
        export_members(members.values(), "another run", tmp_path / "old", disk=FullDisk(2000))
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}


def test_the_command_writes_the_files_and_refuses_what_is_no_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["colonnade", "export", str(folder), "--out", str(tmp_path / "models")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    names = {f"{name}.{end}" for name in ("bank", "server", "shop") for end in ("json", "safetensors")}
    assert {path.name for path in (tmp_path / "models").iterdir()} == names
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "models").iterdir())
    monkeypatch.setattr(sys, "argv", ["colonnade", "export", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "holds no run" in capsys.readouterr().err


def test_the_program_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = next(one.text for one in code_of(PAGE) if "continue_from" in one.text)
    exec(compile(program, "page.py", "exec"), {})  # the docs' own code
    said = capsys.readouterr().out
    assert "'run': " in said and float(said.split()[-1]) > 0.8  # the first evaluation, before any step
    assert (tmp_path / "models" / "party-4.safetensors").is_file()
