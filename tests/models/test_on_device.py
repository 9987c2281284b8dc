"""Arrays that stay on a GPU: with CPU tensors in their place, every run gives the same bits."""

from typing import Any

import numpy as np
import pytest
import torch

import colonnade
from colonnade.algorithms.table import EmbeddingTable
from colonnade.models import network, probed, server
from colonnade.models.on_device import OnDevice, contiguous, on_device, seed_generators, to_tensor, zeros
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.messages import Array, Payload

FIRST_ORDER = ["sync", "vafl", "flex", "fedvs"]
AVERAGED = {"party_model": "polynomial:1", "aggregate": "mean"}


class Parcel(Payload, frozen=True):
    values: Array


@pytest.fixture
def device_array() -> OnDevice:
    return OnDevice(torch.arange(12, dtype=torch.float32).view(4, 3))


def test_it_has_the_face_of_an_array(device_array: OnDevice) -> None:
    plain = np.asarray(device_array)
    assert (device_array.shape, device_array.dtype, device_array.ndim, device_array.size, device_array.nbytes) == (
        plain.shape, plain.dtype, plain.ndim, plain.size, plain.nbytes
    )  # fmt: skip
    assert len(device_array) == 4 and device_array.tobytes() == plain.tobytes()


def test_slices_rows_and_concatenation_stay_there(device_array: OnDevice) -> None:
    plain, rows = np.asarray(device_array), np.array([2, 0], np.int32)
    for got, wanted in (
        (device_array[:2], plain[:2]),
        (device_array[:, slice(1, 3)], plain[:, 1:3]),
        (device_array[rows], plain[rows]),
        (np.concatenate([device_array, device_array], axis=1), np.concatenate([plain, plain], axis=1)),
        (contiguous(device_array[:, 1:]), plain[:, 1:]),
    ):
        assert isinstance(got, OnDevice)
        assert np.array_equal(np.asarray(got), wanted)


def test_rows_and_blocks_are_written_there(device_array: OnDevice) -> None:
    plain = np.array(device_array)
    rows, marked = np.array([3, 1], np.int32), np.array([True, False, False, True])
    other = device_array.copy()
    for key, value in (
        ((rows, slice(1, 3)), np.full((2, 2), 7, np.float32)),
        ((slice(None), slice(0, 1)), OnDevice(torch.full((4, 1), 8.0))),
        ((marked, slice(2, 3)), np.nan),
        ((rows[:0], slice(0, 3)), np.zeros((0, 3), np.float32)),
    ):
        device_array[key] = value
        plain[key] = np.asarray(value)
        assert np.array_equal(np.asarray(device_array), plain, equal_nan=True)
    device_array[...] = other
    assert np.array_equal(np.asarray(device_array), np.asarray(other))


def test_a_table_is_on_the_device_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(zeros(4, 3, "cpu"), np.ndarray)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (4 * 48 - 1, 0))
    assert isinstance(zeros(4, 3, "cuda"), np.ndarray)


@pytest.mark.parametrize("lacking", [False, True])
def test_a_table_there_is_that_of_the_memory(lacking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, here = np.random.default_rng(0), EmbeddingTable(9, (2, 3))
    monkeypatch.setattr("colonnade.algorithms.table.zeros", lambda *size: OnDevice(torch.zeros(size[:2])))
    there = EmbeddingTable(9, (2, 3), device="cuda")
    absent = draw.random((9, 2)) < 0.3
    for table in (here, there) if lacking else ():
        table.mark_absent(absent)
    for k in range(20):
        party, rows = int(draw.integers(2)), draw.permutation(9)[:4].astype(np.int32)
        values = draw.standard_normal((4, (2, 3)[party])).astype(np.float32)
        for table in (here, there):
            table.write(party, rows, values, k)
        rows = draw.permutation(9)[:3]
        assert isinstance(there.gather(rows), OnDevice)
        assert np.array_equal(np.asarray(there.gather(rows)), here.gather(rows), equal_nan=True)
        assert np.array_equal(there.ages(rows, k), here.ages(rows, k))
    saved = state.unpack(state.pack(there.save()))
    assert np.array_equal(saved["values"], here.values, equal_nan=True)
    for fresh in (EmbeddingTable(9, (2, 3)), EmbeddingTable(9, (2, 3), device="cuda")):
        fresh.load(saved)
        (part,) = fresh.parts(2, 7)
        assert np.array_equal(np.asarray(part), here.values[2:7], equal_nan=True)


def test_whatever_else_numpy_does_gets_a_copy(device_array: OnDevice) -> None:
    plain = np.asarray(device_array)
    table = np.zeros((4, 3), np.float32)
    table[...] = device_array
    assert np.array_equal(table, plain)
    assert np.array_equal(device_array + plain, 2 * plain)
    assert np.array_equal(np.average([device_array, device_array], axis=0, weights=[1, 3]), plain)
    assert np.array_equal(np.concatenate([plain, device_array]), np.concatenate([plain, plain]))


def test_bytes_are_fetched_when_they_are_asked_for(device_array: OnDevice) -> None:
    plain = bytes(Codec([Parcel]).encode(Parcel(np.asarray(device_array))))
    for lazily in (False, True):
        frame = Codec([Parcel], lazily=lazily).encode(Parcel(device_array))  # type: ignore[arg-type]
        assert isinstance(frame.buffers[0], OnDevice) == lazily
        assert (bytes(frame), b"".join(frame.parts()), frame.size) == (plain, plain, len(plain))
    assert np.array_equal(state.unpack(state.pack([device_array]))[0], np.asarray(device_array))


def test_rows_stay_here_without_a_gpu_or_room(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((4, 2), np.float32)
    assert on_device(x, "cpu") is x
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (4 * x.nbytes - 1, 0))
    assert on_device(x, "cuda") is x


@pytest.mark.parametrize("method", [*FIRST_ORDER, "cascaded", "frozen", "swift", "zoo"])
def test_runs_with_arrays_elsewhere_give_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = colonnade.split(colonnade.load("digits"), parties=3)

    def run() -> dict[str, Any]:
        limits = {"updates": 12, "eval_every": 6, "batch_size": 32, "learning_rate": 0.05, "optimiser": "momentum"}
        model = AVERAGED if method == "fedvs" else {"party_model": "mlp:8", "server_model": "mlp:8"}
        return colonnade.prepare(digits, protocol=method, embedding=4, **model, **limits).execute()

    plain = run()
    for module in (network, server, probed):
        monkeypatch.setattr(module, "to_array", OnDevice)
    monkeypatch.setattr("colonnade.config.resolve.on_device", lambda array, device: OnDevice(to_tensor(array)))
    monkeypatch.setattr("colonnade.algorithms.table.zeros", lambda *size: OnDevice(torch.zeros(size[:2])))
    elsewhere = run()
    same = ("trace_sha256", "weights_sha256", "value", "bytes_up", "bytes_down")
    assert {key: elsewhere[key] for key in same} == {key: plain[key] for key in same}


@pytest.mark.parametrize("gpu", [False, True])
def test_seeding_gives_the_draws_of_torch_and_without_a_gpu_keeps_no_stack_trace(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        wanted = torch.rand(3)
        monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
        seed_generators(7)
        assert torch.equal(torch.rand(3), wanted)
    assert asked == ([7] if gpu else [])
