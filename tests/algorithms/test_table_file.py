"""The table in a file: equal to the one in memory, restored to any checkpoint, and a clear error on a full disk."""

import json
import os
import resource
import signal
import stat
import struct
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.algorithms.table import EmbeddingTable
from colonnade.algorithms.table_file import FileTable, Tables
from colonnade.drivers.row_file import FileStorage
from colonnade.protocol.errors import CheckpointError, DamagedFile, LocalProtocolError

WIDTHS = (2, 3)
ROWS = 40


def opened(folder, dtype="float32", empty=True):
    table = FileTable(ROWS, WIDTHS, dtype)
    table.open(FileStorage(folder, empty=empty), "train")
    return table


def content(table):
    rows = np.arange(len(table))
    return table.gather(rows).tobytes(), table.ages(rows, 0).tobytes(), table.clipped


def numbers(rows, party, seed):
    return np.random.default_rng(seed).normal(size=(len(rows), WIDTHS[party])).astype(np.float32)


writes = st.tuples(
    st.just("write"), st.integers(0, 1), st.lists(st.integers(0, ROWS - 1), max_size=9), st.integers(0, 99)
)
renewals = st.tuples(
    st.just("renew"), st.sampled_from([(0,), (1,), (0, 1)]), st.lists(st.integers(0, ROWS - 1), max_size=9),
    st.integers(0, 99),
)  # fmt: skip
others = st.sampled_from([("save",), ("checkpointed",), ("load",), ("killed",), ("damaged",)])


def change(table, kind, who, rows, k):
    rows = np.array(rows, np.int32)
    if kind == "write":
        table.write(who, rows, numbers(rows, who, k), k)
    else:
        table.renew(who, rows, k)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(writes | renewals | others, max_size=30), dtype=st.sampled_from(["float32", "float16"]))
def test_it_is_the_table_in_memory_whatever_happens(tmp_path_factory, steps, dtype):
    """Writes, checkpoints, going back, and kills after which only files and one of two kept checkpoints are left."""
    folder = tmp_path_factory.mktemp("table")
    table, model = opened(folder, dtype), EmbeddingTable(ROWS, WIDTHS, dtype)
    saved = kept = before = (table.save(), model.values.copy(), model.renewed.copy())
    for step in steps:
        match step[0]:
            case "save":
                saved = (table.save(), model.values.copy(), model.renewed.copy())
            case "checkpointed":
                before, kept = kept, saved
                table.checkpointed(kept[0])
            case "load" | "killed" | "damaged":
                if step[0] != "load":
                    saved = kept if step[0] == "killed" else before
                    kept = saved
                    table = opened(folder, dtype, empty=False)
                table.load(saved[0])
                model.values[...], model.renewed[...] = saved[1:]
            case _:
                change(table, *step)
                change(model, *step)
        assert content(table)[:2] == content(model)[:2]
    assert table.newest() == model.newest()


def test_half_precision_is_rounded_once_and_cut_off_with_a_count(tmp_path):
    """Both tables clamp alike: float16 ends at ±65504, and an infinity would end the training of all parties."""
    values = np.array([[1.0001, -1e6], [65504.0, 70000.0]], np.float32)
    for table in (opened(tmp_path, "float16"), EmbeddingTable(ROWS, WIDTHS, "float16")):
        table.write(0, np.array([3, 1], np.int32), values, 0)
        got = table.gather(np.array([3, 1]))[:, :2]
        assert got.dtype == np.float32
        assert got.tolist() == [[float(np.float16(1.0001)), -65504.0], [65504.0, 65504.0]]
        assert table.clipped == 2 and "2 embeddings beyond ±65504" in table.note()
        again = table.save()
        table.write(0, np.array([0], np.int32), np.full((1, 2), 1e5, np.float32), 0)
        assert table.clipped == 4
        table.load({key: np.copy(value) if isinstance(value, np.ndarray) else value for key, value in again.items()})
        assert table.clipped == 2, "the count goes back with the table"
    assert EmbeddingTable(1, (1,)).note() == ""


def test_absent_blocks_are_nan(tmp_path):
    absent = np.zeros((ROWS, 2), bool)
    absent[[3, 5], 1] = True
    table, model = opened(tmp_path), EmbeddingTable(ROWS, WIDTHS)
    for one in (table, model):
        one.mark_absent(absent)
        change(one, "write", 1, [5, 6], 2)
    assert content(table) == content(model)
    assert np.isnan(table.gather(np.array([5]))[0, 2:]).all()


def test_the_file_is_sparse_private_and_leaves_no_memory_behind(tmp_path):
    table = FileTable(5_000_000, (16,) * 10, "float16")
    table.open(FileStorage(tmp_path), "train")
    rows = np.arange(0, 5_000_000, 1000, dtype=np.int32)
    for part in np.array_split(rows, 50):
        table.write(3, part, np.ones((len(part), 16), np.float32), 1)
        assert table.gather(part).sum() == 16 * len(part)
    file = tmp_path / "table" / "train.rows"
    assert file.stat().st_size == 5_000_000 * (160 * 2 + 10 * 4)
    assert file.stat().st_blocks * 512 < 2 * 4096 * len(rows), "one page for each row, or two"
    for path in (tmp_path / "table").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(file) not in Path("/proc/self/maps").read_text(), "read by calls"


def test_without_a_folder_it_is_an_unnamed_file():
    table, model = opened(None), EmbeddingTable(ROWS, WIDTHS)
    for one in (table, model):
        change(one, "write", 0, [1, 2], 7)
    table.load(table.save())  # a simulated crash
    assert content(table) == content(model)
    before = table.save()
    change(table, "write", 0, [1], 8)
    with pytest.raises(CheckpointError, match="without a run folder cannot return to a checkpoint"):
        table.load(before)


def test_a_table_without_a_driver_says_so():
    with pytest.raises(LocalProtocolError, match="before a driver opened it"):
        FileTable(ROWS, WIDTHS).gather(np.array([1]))


def test_positions_of_another_history_are_refused(tmp_path):
    table = opened(tmp_path)
    start = table.save()
    change(table, "write", 0, [1], 1)
    left = table.save()
    table.load(start)
    change(table, "write", 0, [2], 1)
    with pytest.raises(CheckpointError, match="do not lead back to the checkpoint"):
        table.load(left)
    for _ in range(2):  # the checkpoint before the last one can still be used
        table.checkpointed(table.save())
    with pytest.raises(CheckpointError, match="do not lead back to the checkpoint"):
        table.load(start)


def test_a_missing_or_foreign_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="train.rows: is missing or belongs to another run"):
        opened(tmp_path, empty=False)
    opened(tmp_path, "float16")
    with pytest.raises(CheckpointError, match="train.rows: is missing or belongs to another run"):
        opened(tmp_path, "float32", empty=False)
    with pytest.raises(CheckpointError, match='of a run with server.table = "file"'):
        EmbeddingTable(ROWS, WIDTHS).load(opened(tmp_path).save())


def test_a_table_of_no_rows_needs_no_file(tmp_path):
    table = Tables("file").to_train(0, WIDTHS)
    table.open(FileStorage(tmp_path), "train")
    table.load(table.save())
    assert len(table) == 0 and not list(tmp_path.iterdir()) and table.newest() == 0


def write_without_end(folder, pipe):
    """A checkpoint after 20 writes; then write without end."""
    table, rng = FileTable(500, (4, 4)), np.random.default_rng(0)
    table.open(FileStorage(folder), "train")
    for k in range(10**9):
        if k == 20:
            table.checkpointed(saved := table.save())
            os.write(pipe, json.dumps(saved).encode() + b"\n")
        write_some(table, rng, k)
        if k == 60:
            os.write(pipe, b"far\n")


def write_some(table, rng, k):
    rows = rng.permutation(500)[:100].astype(np.int32)
    table.write(k % 2, rows, np.full((100, 4), k + 1, np.float32), k)


def test_killed_in_the_middle_of_writing_it_goes_back_to_the_checkpoint(tmp_path):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            write_without_end(tmp_path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        saved = json.loads(pipe.readline())
        assert pipe.readline() == "far\n"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    model, rng = EmbeddingTable(500, (4, 4)), np.random.default_rng(0)
    for k in range(20):
        write_some(model, rng, k)
    for _ in range(2):  # killed again right after the restore
        table = FileTable(500, (4, 4))
        table.open(FileStorage(tmp_path, empty=False), "train")
        table.load(saved)
        assert content(table) == content(model)


def saved_twice(folder):
    """A table with two checkpoints, and writes after both; returns them with what the table held then."""
    table, found = opened(folder), []
    for k in range(3):
        change(table, "write", k % 2, [k, k + 1, 20], k)
        if k < 2:
            table.checkpointed(saved := table.save())
            found.append((saved, content(table)))
    return found


@pytest.mark.parametrize(("file", "step"), [("train.rows", 61), ("train.undo-1", 7), ("train.undo-2", 7)])
def test_a_flipped_bit_is_never_loaded_in_silence(tmp_path, file, step):
    """Whatever bit it is: the table is as it was at the checkpoint, or the file is refused by its name."""
    before, last = saved_twice(tmp_path)
    folder, refused = tmp_path / "table", 0
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    places = range(0, len(whole[folder / file]), step)
    for place in places:
        for saved, expected in (before, last):
            for path, data in whole.items():
                path.write_bytes(data)
            damaged = bytearray(whole[folder / file])
            damaged[place] ^= 1 << place % 8
            (folder / file).write_bytes(damaged)
            table = opened(tmp_path, empty=False)
            try:
                table.load(saved)
            except DamagedFile as error:
                refused += 1
                assert "train." in str(error) and ("damaged" in str(error) or "do not lead back" in str(error))
            else:
                assert content(table) == expected, place
    assert refused > len(places) / 2, "or the test flips what is never read"


def test_rows_that_a_power_cut_lost_are_noticed(tmp_path):
    """The file holds an earlier, valid content of a row: no checksum of the row itself could tell."""
    _, (saved, _) = saved_twice(tmp_path)
    rows = tmp_path / "table" / "train.rows"
    data = bytearray(rows.read_bytes())
    size = len(data) // ROWS
    data[:size] = bytes(size)
    rows.write_bytes(data)
    with pytest.raises(DamagedFile, match="train.rows: damaged: its rows are not those of the checkpoint"):
        opened(tmp_path, empty=False).load(saved)


@pytest.fixture
def no_more_than():
    """Files of this process may not grow beyond this many bytes; Python ignores the signal, and the write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [20, 60, 300, 20 * ROWS])
def test_no_room_is_said_with_the_file_and_nothing_is_lost(tmp_path, no_more_than, room):
    """Whether the undo log or the table runs out of room, a restore undoes the half-finished write."""
    table = opened(tmp_path)
    change(table, "write", 0, [1, 2, 39], 1)
    table.checkpointed(saved := table.save())
    before = content(table)
    no_more_than(room)
    with pytest.raises(
        CheckpointError, match=r"train.(rows|undo): cannot be written \(File too large\): .* MB are free there"
    ):
        for k in range(100):
            change(table, "write", 1, [0, 1, 5, 6, 7, 20, 38, 39], k)
    no_more_than(resource.RLIM_INFINITY)
    again = opened(tmp_path, empty=False)
    again.load(saved)
    assert content(again) == before


def test_undoing_may_be_killed_too(tmp_path):
    """A torn last record is left out; a restore that is cut off starts again and gives the same result."""
    table = opened(tmp_path)
    change(table, "write", 0, [1, 20], 50)
    table.checkpointed(saved := table.save())
    before = content(table)
    for k in range(6):
        change(table, "write", k % 2, [k, k + 1, 20], k)
    with (tmp_path / "table" / "train.undo-1").open("ab") as log:
        pair = struct.pack("<II", 0x50, 1)
        log.write(pair + struct.pack("<I", crc32(pair)) + b"torn")
    half, undone = opened(tmp_path, empty=False), []

    def die_after_two(record):
        if len(undone) == 2:
            raise KeyboardInterrupt
        undone.append(record)
        take_back(record)

    take_back, half._file._take_back = half._file._take_back, die_after_two
    with pytest.raises(KeyboardInterrupt):
        half._file.back_to(saved["at"])
    assert content(half) != before
    again = opened(tmp_path, empty=False)
    again.load(saved)
    assert content(again) == before
