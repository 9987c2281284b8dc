"""What a party tells about itself with its acknowledgements, and what a page asks the server for."""

from typing import Any

import msgspec
import numpy as np
import pytest

from colonnade.drivers.processes import timeline
from colonnade.drivers.processes.timeline import Attendance, Lane, picture
from colonnade.drivers.processes.wire import (
    MAX_NEWS_BYTES,
    MAX_QUESTION_BYTES,
    Kind,
    LaneBins,
    News,
    Question,
    news_body,
    open_envelope,
    read_news,
    read_question,
    seal_envelope,
)
from colonnade.privacy.accountant import Spent
from colonnade.protocol.errors import CodecError

MS = 1_000_000
SPENT = Spent(1.0, 2.0, 1e-5, 3, 4, {"batch": 3}, 1.0, 2.0)


def read(body: bytes) -> News:
    return read_news(open_envelope(seal_envelope(Kind.ACK, 0, 7, body), "bank"), "bank")


def test_news_return_as_they_were() -> None:
    for news in (News(LaneBins(1, [], []), 0.0), News(LaneBins(8, [0, 250], [1000, 500]), 0.5, SPENT, 4.0)):
        assert read(news_body(news)) == news


def test_the_longest_lane_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0]
    monkeypatch.setattr(timeline, "perf_counter_ns", lambda: moment[0])
    lane = Lane()
    lane.know_clock(0)
    for second in range(3600):
        moment[0] = 1000 * second * MS
        lane.begin()
        lane.end(moment[0] + 250 * MS)
    whole, few = lane.bins(), lane.bins(200)
    assert len(few.busy) <= 200 < len(whole.busy) and few.bin_ms == 2 * whole.bin_ms
    assert sum(few.busy) * few.bin_ms == pytest.approx(sum(whole.busy) * whole.bin_ms, rel=1e-2)
    assert len(news_body(News(few, 0.5, SPENT, 1.0))) < MAX_NEWS_BYTES // 2


def test_news_that_are_too_long_are_not_sent_and_not_read() -> None:
    kinds = {f"{'x' * 60}{number}": 1 for number in range(64)}
    long = News(LaneBins(1, [999] * 400, [999] * 400), 0.5, msgspec.structs.replace(SPENT, by_kind=kinds))
    assert news_body(long) == b""
    with pytest.raises(CodecError, match=f"bytes of news, the limit is {MAX_NEWS_BYTES}"):
        read(msgspec.msgpack.encode(long))


GOOD: dict[str, Any] = {"lane": {"bin_ms": 8, "busy": [0], "known": [1000]}, "utilisation": 0.5}


@pytest.mark.parametrize(
    "wrong",
    [
        {"utilisation": 1.5}, {"utilisation": float("nan")}, {"budget": 0.0}, {"budget": float("inf")}, {"more": 1},
        {"lane": None}, {"lane": {"bin_ms": 3, "busy": [0], "known": [0]}}, {"privacy": {"mu": -1.0}},
        {"lane": {"bin_ms": 8, "busy": [0, 0], "known": [0]}}, {"lane": {"bin_ms": 8, "busy": [1001], "known": [0]}},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_news_are_refused(wrong: dict[str, Any]) -> None:
    assert read(msgspec.msgpack.encode(GOOD)).utilisation == 0.5
    with pytest.raises(CodecError, match="bank: ACK cannot be read"):
        read(msgspec.msgpack.encode(GOOD | wrong))


def test_after_the_last_report_nothing_is_known_yet() -> None:
    attendance = Attendance(["a"])
    attendance.came("a", 0)
    own = np.array([[0.0] * 8, [1.0] * 8]), MS
    told = {"a": LaneBins(1, [1000, 0, 500], [1000, 1000, 1000])}
    found = picture(("server", "a"), own, attendance.shares(8 * MS), told, 8 * MS, ended=False)
    assert found["unknown"][1] == [0, 0, 0, 1, 1, 1, 1, 1] and found["busy"][1][:3] == [1, 0, 0.5]
    at_the_end = picture(("server", "a"), own, attendance.shares(8 * MS), told, 8 * MS)
    assert at_the_end["unknown"][1] == [0] * 8


def test_a_question_is_a_small_number() -> None:
    assert read_question(msgspec.msgpack.encode(Question(12)), "bank").since == 12
    for body in (b"x", b"\xff" * 10, msgspec.msgpack.encode({"since": -1}), msgspec.msgpack.encode({"since": 2**60})):
        with pytest.raises(CodecError, match="its question cannot be read"):
            read_question(body, "bank")
    with pytest.raises(CodecError, match=f"the limit is {MAX_QUESTION_BYTES}"):
        read_question(bytes(MAX_QUESTION_BYTES + 1), "bank")
