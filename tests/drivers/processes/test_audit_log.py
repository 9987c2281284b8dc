"""The audit log: audited events whatever the level, counts of what was limited, and no end of the process."""

import io
import json
import os
import threading

import pytest

from colonnade.drivers.chained_file import generations, read_lines, verify
from colonnade.drivers.processes.audit import AUDITED, AuditLog
from colonnade.drivers.processes.logs import Log, Once


@pytest.fixture
def log(tmp_path):
    made = Log("server", level="error", stream=io.StringIO())
    made.audit = AuditLog(tmp_path / "audit.jsonl", "server")
    yield made
    made.close_audit()


def events(tmp_path):
    return [(line["event"], line["fields"]) for line in read_lines(generations(tmp_path / "audit.jsonl"))]


def test_audited_events_are_written_below_the_logs_level_and_others_are_not(log, tmp_path):
    log.info("joined", peer="bank", known=3)
    log.info("checkpoint", number=4)
    log.warning("refused", cause="line\nbreak \x1b[31m", host="h" * 1000)
    log.info("members changed", added=["shop"], removed=[], renewed=["bank"])
    log.close_audit()
    found = events(tmp_path)
    assert [event for event, _ in found] == ["joined", "refused", "members changed"]
    assert found[0][1] == {"peer": "bank", "known": 3} and found[2][1]["added"] == ["shop"]
    assert found[1][1]["cause"] == "line\\nbreak \\x1b[31m" and len(found[1][1]["host"]) == 300
    assert log.stream.getvalue() == "" and verify(generations(tmp_path / "audit.jsonl")).lines == 3


def test_refusals_that_were_only_counted_appear_with_their_count(log, tmp_path):
    once = Once(log)
    for _ in range(40):
        once.warning("refused", cause="no certificate")
    for number in range(3 * Once.MAX_LINES):
        once.warning("refused", cause=f"from {number}")
    for number in range(50):
        once.info("joined", peer="bank", known=number)
    log.close_audit()
    found = events(tmp_path)
    written = [fields for event, fields in found if event == "refused" and "repeated" not in fields]
    assert len(written) < Once.MAX_LINES
    counts = {event: fields["repeated"] for event, fields in found if "repeated" in fields}
    assert counts["refused"] + len(written) == 40 + 3 * Once.MAX_LINES
    assert counts["joined"] == 50 - Once.MAX_CHANGES


def test_a_disk_that_cannot_be_written_is_a_fault_and_not_the_end(log, tmp_path, monkeypatch):
    real = os.write

    def full(number, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.info("joined", peer="bank")
    assert "No space left" in log.audit.fault
    monkeypatch.setattr(os, "write", real)
    log.info("joined", peer="shop")
    assert log.audit.fault == "" and [fields["peer"] for _, fields in events(tmp_path)] == ["shop"]


def test_threads_write_one_chain_and_it_is_synced_once_a_second(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = Log("server", stream=io.StringIO())
    log.audit = AuditLog(tmp_path / "audit.jsonl", "server")
    threads = [threading.Thread(target=lambda: [log.info("joined", peer="x") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close_audit()
    assert verify(generations(tmp_path / "audit.jsonl")).lines == 200 and len(synced) < 20


def test_values_that_json_cannot_hold_are_texts(log, tmp_path):
    log.audited("started", folder=tmp_path, rate=float("nan"), share=0.5, many=set(range(200)), ok=True, none=None)
    log.close_audit()
    fields = events(tmp_path)[0][1]
    assert fields["folder"] == str(tmp_path) and fields["rate"] == "nan" and fields["share"] == 0.5
    assert len(fields["many"]) == 100 and fields["ok"] is True and fields["none"] is None
    json.dumps(fields, allow_nan=False)


def test_no_audited_event_is_misspelt():
    """Every event in the list is logged somewhere in the sources, or by `audited`."""
    from pathlib import Path

    import colonnade

    sources = "".join(path.read_text(encoding="utf-8") for path in Path(colonnade.__file__).parent.rglob("*.py"))
    later = {"members changed", "certificate renewed"}  # of the reload of members
    assert [event for event in AUDITED - later if sources.count(f'"{event}"') < 2] == []
