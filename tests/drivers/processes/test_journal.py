"""The log of a node: it returns what was written, and damage from a crash is noticed or harmless."""

import math

import numpy as np
import pytest

from colonnade.drivers.files import DISK, Disk
from colonnade.drivers.processes.journal import Journal, Record, read_journal
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.events import PeerJoined, PeerLost, Received, Started, TimerFired, WorkDone
from colonnade.protocol.messages import Array, Message, Payload


class Said(Message, frozen=True):
    text: str
    values: list[Array]


class Made(Payload, frozen=True):
    loss: float
    values: list[Array]


CODEC = Codec([Said, Made])
ENTROPY = b"a recognisable secret of 32 byte"
MESSAGE = Said("hello", [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4), np.int32)])


def received(sequence=1, message=MESSAGE, sender="bank", evaluation=False):
    frame = bytes(CODEC.encode(message))
    return Record(sequence, Received(sender, message), 5, sequence, sequence - 1, len(frame), evaluation), frame


def write(path, *records, number=0, closed=False):
    journal = Journal(path, CODEC, number)
    ends = []
    for record, frame in records:
        journal.append(record, frame)
        ends.append(journal.size)
    if closed:
        journal.mark_closed()
    journal.close()
    return ends


def same(found, expected):
    numbers = ("now", "conversation", "sequence", "acknowledged", "size", "evaluation", "again")
    assert [getattr(found, name) for name in numbers] == [getattr(expected, name) for name in numbers]
    one, other = found.event, expected.event
    assert type(one) is type(other)
    for mine, its in ((getattr(one, "message", None), getattr(other, "message", None)),
                      (getattr(one, "result", None), getattr(other, "result", None))):  # fmt: skip
        if mine is not None:
            assert bytes(CODEC.encode(mine)) == bytes(CODEC.encode(its))
            return
    assert one == other


RECORDS = {
    "received": received(7),
    "for evaluation": received(8, evaluation=True),
    "empty": received(1, Said("", [])),
    "umlaut": received(2, sender="Bänke"),
    "done": (Record(9, WorkDone(-3, Made(1.5, [np.ones((2, 2), np.float64)]))), b""),
    "NaN": (Record(2**62, WorkDone(2**40, Made(math.nan, [np.array([math.nan, -math.inf, -0.0], np.float32)]))), b""),
    "many arrays": (Record(1, WorkDone(1, Made(0.0, [np.full(n % 5, n, np.int64) for n in range(1200)]))), b""),
    "to be computed again": (Record(9, WorkDone(7, None), again="refine"), b""),
    "timer": (Record(4, TimerFired("evaluate", 3)), b""),
    "joined": (Record(5, PeerJoined("bank", True), 2**62), b""),
    "joined again": (Record(5, PeerJoined("bank", False), 3), b""),
    "lost": (Record(6, PeerLost("bank")), b""),
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_of_event_returns_as_it_was(name, tmp_path):
    write(tmp_path / "log", RECORDS[name])
    trusted, (found,), *_ = read_journal(tmp_path / "log", CODEC)
    assert trusted
    same(found, RECORDS[name][0])


def test_all_of_them_in_order(tmp_path):
    write(tmp_path / "log", *RECORDS.values())
    trusted, found, *_ = read_journal(tmp_path / "log", CODEC)
    assert trusted and len(found) == len(RECORDS)
    for one, (other, _) in zip(found, RECORDS.values(), strict=True):
        same(one, other)


def test_arrays_come_back_read_only(tmp_path):
    write(tmp_path / "log", RECORDS["received"])
    (found,) = read_journal(tmp_path / "log", CODEC)[1]
    assert not found.event.message.values[0].flags.writeable


def test_entropy_is_never_written(tmp_path):
    write(tmp_path / "log", (Record(0, Started(ENTROPY)), b""), RECORDS["timer"])
    assert ENTROPY not in (tmp_path / "log").read_bytes() and ENTROPY[:8] not in (tmp_path / "log").read_bytes()
    trusted, (found, _), *_ = read_journal(tmp_path / "log", CODEC)
    assert trusted and found.event == Started(b"")


@pytest.mark.parametrize("last", ["received", "done", "joined", "timer"])
def test_a_torn_tail_is_left_out_at_every_byte(last, tmp_path):
    path = tmp_path / "log"
    before, end = write(path, received(1), RECORDS[last])
    whole = path.read_bytes()
    assert end == len(whole)
    for size in range(before, end):
        path.write_bytes(whole[:size])
        trusted, found, *_ = read_journal(path, CODEC)
        assert trusted and len(found) == 1, size
        same(found[0], received(1)[0])


def test_a_torn_tail_over_an_older_log_is_left_out_at_every_byte(tmp_path):
    path = tmp_path / "log"
    write(path, *[received(number, Said("older", [])) for number in range(1, 9)])
    old = path.read_bytes()
    before, end = write(path, received(1), received(2), number=2)
    new = path.read_bytes()
    for size in range(before, end):
        path.write_bytes(new[:size] + old[size:])
        trusted, found, *_ = read_journal(path, CODEC, 2)
        assert trusted and len(found) == 1, size


def test_a_file_that_is_written_over_shows_nothing_of_before(tmp_path):
    path = tmp_path / "log"
    write(path, *[received(number) for number in range(1, 9)], closed=True)
    write(path, received(1), number=2)
    assert [record.sequence for record in read_journal(path, CODEC, 2)[1]] == [1]
    assert read_journal(path, CODEC, 0)[:2] == (False, []), "a log of another number is not this one"


@pytest.mark.parametrize("size", [0, 1, 19, 35, 60])
def test_a_file_that_was_just_being_made_counts_as_none(size, tmp_path):
    path = tmp_path / "log"
    write(path)
    path.write_bytes(path.read_bytes()[:size])
    assert read_journal(path, CODEC)[:2] == (False, [])
    write(path, received(1))
    assert len(read_journal(path, CODEC)[1]) == 1


def test_a_flipped_byte_never_lets_a_wrong_event_through(tmp_path):
    path = tmp_path / "log"
    ends = write(path, *[received(number) for number in range(1, 6)])
    whole = bytearray(path.read_bytes())
    for place in range(ends[1], ends[2]):
        path.write_bytes(bytes(whole[:place]) + bytes([whole[place] ^ 0x10]) + bytes(whole[place + 1 :]))
        _, found, *_ = read_journal(path, CODEC)
        assert [record.sequence for record in found] == [1, 2], place


def test_damage_in_the_middle_is_not_taken_for_a_torn_tail(tmp_path):
    """Whole records follow the gap: something is missing, and conversations must not continue as if nothing were."""
    path = tmp_path / "log"
    ends = write(path, *[received(number) for number in range(1, 6)])
    data = bytearray(path.read_bytes())
    data[ends[2] - 1] ^= 1
    path.write_bytes(data)
    trusted, found, *_ = read_journal(path, CODEC)
    assert not trusted and len(found) == 2


def test_another_boot_means_that_some_may_be_missing(tmp_path, monkeypatch):
    write(tmp_path / "log", received(1))
    monkeypatch.setattr(Disk, "boot_id", lambda self: b"x" * 16)
    trusted, found, *_ = read_journal(tmp_path / "log", CODEC)
    assert not trusted and len(found) == 1


def test_a_closed_log_is_whole_whatever_happened_to_the_machine(tmp_path, monkeypatch):
    write(tmp_path / "log", received(1), closed=True)
    monkeypatch.setattr(Disk, "boot_id", lambda self: b"x" * 16)
    trusted, found, *_ = read_journal(tmp_path / "log", CODEC)
    assert trusted and len(found) == 1


def test_the_boot_id_stays_the_same():
    assert DISK.boot_id() == DISK.boot_id() and len(DISK.boot_id()) == 16


def test_a_log_of_another_release_is_refused(tmp_path):
    (tmp_path / "log").write_bytes(b"CLJ4" + b"x" * 100)
    with pytest.raises(CheckpointError, match="log: a journal of format 4, .* continue with .* or start a new run"):
        read_journal(tmp_path / "log", CODEC)


def test_a_header_that_did_not_reach_the_disk_is_damage(tmp_path):
    (tmp_path / "log").write_bytes(bytes(100))
    trusted, found, *_, damage = read_journal(tmp_path / "log", CODEC)
    assert not trusted and not found and damage == f"{tmp_path / 'log'}: damaged: its header fails its checksum"


def test_a_whole_record_that_cannot_be_read_is_refused(tmp_path):
    class Other(Payload, frozen=True):
        pass

    journal = Journal(tmp_path / "log", Codec([Other]))
    journal.append(Record(1, WorkDone(1, Other())))
    journal.close()
    with pytest.raises(CheckpointError, match="log: byte "):
        read_journal(tmp_path / "log", CODEC)


def test_only_the_owner_may_read_it(tmp_path):
    write(tmp_path / "log", received(1))
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_what_is_appended_is_in_the_file_at_once(tmp_path):
    """The process buffers nothing: another process sees every record while this one still writes."""
    path = tmp_path / "log"
    journal = Journal(path, CODEC)
    for number in range(1, 50):
        journal.append(*received(number))
        trusted, found, *_ = read_journal(path, CODEC)
        assert trusted and [record.sequence for record in found] == list(range(1, number + 1))
    journal.close()


def test_a_page_that_did_not_reach_the_disk_is_noticed(tmp_path):
    """After a power cut any page of the last record may have its old content: zeros, or part of an older log."""
    path = tmp_path / "log"
    older = [received(1, Said("", [np.full(8192, 7, np.float32)]))]
    newer = [received(1, Said("", [np.arange(8192, dtype=np.float32)]))]
    write(path, *older)
    old = path.read_bytes()
    write(path, *newer, number=2)
    new = path.read_bytes()
    assert len(read_journal(path, CODEC, 2)[1]) == 1
    for page in range(4096, len(new), 4096):
        for before in (old, bytes(len(new))):
            path.write_bytes(new[:page] + before[page : page + 4096] + new[page + 4096 :])
            assert read_journal(path, CODEC, 2)[1] == [], page


@pytest.mark.parametrize("failure", ["full", "short"])
def test_a_full_disk_is_said_with_the_file_and_costs_only_the_last_record(failure, tmp_path, monkeypatch):
    path = tmp_path / "log"
    journal = Journal(path, CODEC)
    journal.append(*received(1))
    real = DISK.write

    def write_less(file, parts, offset):
        if failure == "full":
            raise OSError(28, "No space left on device")
        return real(file, [b"".join(parts)[:20]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(DISK, "write", write_less)
        with pytest.raises(CheckpointError, match="log: "):
            journal.append(*received(2))
    journal.mark_closed()
    journal.close()
    assert [record.sequence for record in read_journal(path, CODEC)[1]] == [1]
