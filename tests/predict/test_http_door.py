"""The HTTP endpoint: tokens, quotas, limits of connections, and answers in words; on a socket, without a federation."""

import asyncio
import contextlib
import io
import json
import socket
import threading
import time

import h11
import msgspec
import numpy as np
import pytest

from colonnade.algorithms.prediction.messages import Computed
from colonnade.algorithms.prediction.standing_in import CACHED, FALLBACK, LACKS, SENT
from colonnade.data.task import Task
from colonnade.drivers.processes.logs import Log
from colonnade.predict import connections
from colonnade.predict import tokens as tokens_module
from colonnade.predict.asking import Door, read_ids
from colonnade.predict.callers import Callers
from colonnade.predict.connections import Bounds
from colonnade.predict.http import BadQuestion, Closed, Front, HttpDoor, answers_of
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import CheckpointError, ColonnadeError, ConfigError

BOUNDS = Bounds(
    max_waiting=100, max_waiting_per_address=20, max_requests=2, request_s=30.0, idle_s=30.0, max_body_bytes=1000
)


class Predictor:
    def __init__(self):
        self.asked, self.held, self.holds = [], [], threading.Semaphore(0)
        self.causes = []

    async def ask(self, ids, caller):
        self.asked.append((caller, ids))
        if ids == ["stop"]:
            raise Closed
        if ids == ["grows"]:
            raise BadQuestion("the id at place 0 grows")
        if ids == ["wait"]:
            self.held.append(asyncio.get_running_loop().create_future())
            self.holds.release()
            await self.held[-1]
        return {"classes": [], "answers": [{"id": id} for id in ids]}

    def status(self):
        return {"state": "predicting"}

    def unready(self):
        return self.causes


class Place:
    """A running endpoint, with a caller `me`."""

    def __init__(self, folder, bounds=BOUNDS, requests=1000, rows=1000):
        self.predictor, self.tokens = Predictor(), Tokens(folder)
        self.token, self.log, self.now = self.tokens.new("me", 1), io.StringIO(), 0
        self.callers = Callers(requests, rows, lambda: self.now)
        front = Front(self.predictor, Tokens(folder), self.callers, 3, Log("server", stream=self.log))
        self.door = HttpDoor(front, "127.0.0.1:0", bounds, None)

    def address(self):
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def call(self, method, path, token=None, content=None, authorization=None):
        """The status, the headers and the JSON of one request on a connection of its own."""
        import http.client

        connection = http.client.HTTPConnection(*self.address(), timeout=60)
        headers = {"Authorization": authorization or f"Bearer {token or self.token}"}
        try:
            connection.request(method, path, content, headers if authorization != "" else {})
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        finally:
            connection.close()

    def predict(self, *ids, **more):
        return self.call("POST", "/predict", content=json.dumps({"ids": list(ids)}), **more)


@contextlib.contextmanager
def running(place):
    """Its event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def opened():
        return place.door.open()

    try:
        place.url = asyncio.run_coroutine_threadsafe(opened(), loop).result(60)
        place.loop = loop
        yield place
        asyncio.run_coroutine_threadsafe(place.door.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def place(tmp_path):
    with running(Place(tmp_path)) as place:
        yield place


def test_probes_need_no_token_and_learn_only_yes_or_no(place):
    assert place.call("GET", "/healthz", authorization="")[::2] == (200, {"ok": True})
    assert place.call("GET", "/readyz?x=1", authorization="")[::2] == (200, {"ok": True})
    place.predictor.causes = ["the disk cannot be written: No space left on device"]
    code, headers, said = place.call("GET", "/readyz", authorization="")
    assert (code, said, headers["Connection"]) == (503, {"ok": False}, "close")
    assert place.call("GET", "/healthz", authorization="")[0] == 200
    assert place.call("POST", "/readyz", authorization="")[0] == 401
    assert place.callers.by_name()[0]["refused"] == {"no token": 1}, "probes are no requests"


def test_ids_are_answered_in_their_order_and_a_connection_is_kept(place):
    door = Door(place.url, place.token)
    for _ in range(2):
        found = door.request("POST", "/predict", {"ids": ["7", "3"]})
        assert found == {"classes": [], "answers": [{"id": "7"}, {"id": "3"}]}
    assert place.predictor.asked == [("me", ["7", "3"])] * 2
    assert door.request("GET", "/status") == {"state": "predicting"}
    door.close()


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        ("", "no token"),
        ("Bearer", "no token"),
        ("Basic abc", "no token"),
        ("Bearer wrong", "wrong token"),
        ("Bearer \xe9", "wrong token"),
    ],
)
@pytest.mark.parametrize("path", ["/predict", "/status"])
def test_without_a_token_nothing_is_asked(place, authorization, words, path):
    method = "POST" if path == "/predict" else "GET"
    code, headers, content = place.call(method, path, content='{"ids": ["1"]}', authorization=authorization)
    assert code == 401 and words in content["error"] and headers["WWW-Authenticate"] == "Bearer"
    assert place.predictor.asked == [] and place.callers.strangers[words] == 1


def test_a_token_ends_when_it_expires_and_when_it_is_revoked_without_a_restart(place, monkeypatch):
    other = place.tokens.new("other", 2)
    assert place.predict("1", token=other)[0] == 200
    later = time.time() + 1.5 * 86_400
    with monkeypatch.context() as patch:
        patch.setattr(tokens_module.time, "time", lambda: later)
        code, _, content = place.predict("1")
        assert code == 401 and content["error"] == "the token of me has expired: make a new one"
        assert place.predict("1", token=other)[0] == 200
    assert place.tokens.revoke("other") == 1 and place.tokens.revoke("other") == 0
    code, _, content = place.predict("1", token=other)
    assert code == 401 and "revoked" in content["error"]
    assert "wrong token" in place.log.getvalue() and other not in place.log.getvalue()


def test_tokens_are_hashed_at_rest_and_only_their_owner_reads_the_file(place, tmp_path):
    held = tmp_path / "tokens.json"
    assert place.token not in held.read_text() and held.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="has a token that is valid"):
        place.tokens.new("me", 1)
    for name in ("", "a b", "operator", "x" * 64):
        with pytest.raises(ConfigError, match="NAME"):
            place.tokens.new(name, 1)
    with pytest.raises(ConfigError, match="--days"):
        place.tokens.new("you", 0)
    with place.tokens.lent() as lent:
        assert place.predict("1", token=lent)[0] == 200
    assert place.predict("1", token=lent)[0] == 401
    assert [token.name for token in place.tokens.all()] == ["me"]


def test_a_damaged_list_of_tokens_admits_no_caller(place, tmp_path):
    (tmp_path / "tokens.json").write_text("{")
    code, _, content = place.predict("1")
    assert code == 401 and "cannot read its list" in content["error"]
    with pytest.raises(CheckpointError, match="tokens.json: cannot be read"):
        place.tokens.all()


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", 422, '"ids"'),
        (b"[1]", 422, '"ids"'),
        (b'{"ids": [1]}', 422, "Expected `str`"),
        (b'{"ids": ["1"], "x": 1}', 422, "unknown field"),
        (b'{"ids": []}', 422, "0 ids; 1 to 3"),
        (b'{"ids": ["1", "2", "3", "4"]}', 422, "4 ids; 1 to 3"),
        (b'{"ids": ["1", "  "]}', 422, "place 1"),
        (b'{"ids": ["' + b"1" * 300 + b'"]}', 422, "place 0"),
        (b'{"ids": ["grows"]}', 422, "place 0 grows"),
        (b'{"ids": ["\\ud800"]}', 422, "ids"),
        (b" " * 2000, 413, "max_body_mb"),
        (b'{"ids": ["stop"]}', 503, "stopping"),
    ],
)
def test_what_is_no_question_is_refused_with_the_reason(place, content, code, words):
    found, _, answer = place.call("POST", "/predict", content=content)
    assert found == code and words in answer["error"]


def test_there_are_no_other_pages(place):
    for path in ("/docs", "/openapi.json", "/"):
        assert place.call("GET", path)[0] == 404
    assert place.call("GET", "/predict")[0] == 405


def test_a_caller_has_a_quota_of_requests_and_rows_and_is_told_when_to_come_back(tmp_path):
    with running(Place(tmp_path, requests=6, rows=5)) as place:
        assert place.predict("1", "2", "3")[0] == 200
        code, headers, content = place.predict("1", "2", "3")
        assert code == 429 and "caller_rows_per_day" in content["error"]
        assert int(headers["Retry-After"]) == 17_280, "a fifth of a day for one row"
        other = place.tokens.new("other", 1)
        assert place.predict("1", "2", "3", token=other)[0] == 200, "each caller has its own"
        assert place.predict("1", "2")[0] == 200
        for _ in range(3):
            assert place.call("GET", "/status")[0] == 200
        code, headers, content = place.call("GET", "/status")
        assert code == 429 and "caller_requests_per_minute" in content["error"] and headers["Retry-After"] == "10"
        place.now = 20 * 10**9
        assert place.call("GET", "/status")[0] == 200
        strangers, me, _ = place.callers.by_name()
        assert (me["name"], me["requests"], me["rows"], me["refused"]) == ("me", 8, 5, {"quota": 2})
        assert strangers["refused"] == {} and place.callers.total_refused() == {"quota": 2}


def test_a_quota_can_be_too_small_for_a_question(tmp_path):
    with running(Place(tmp_path, rows=2)) as place:
        code, headers, _ = place.predict("1", "2", "3")
        assert code == 429 and "Retry-After" not in headers, "waiting does not help"
        with contextlib.closing(Door(place.url, place.token)) as door:
            with pytest.raises(ColonnadeError, match="caller_rows_per_day"):
                door.request("POST", "/predict", {"ids": ["1", "2", "3"]})
            assert door.request("POST", "/predict", {"ids": ["1"]}), "on the same connection"


def idle(place, count):
    return [socket.create_connection(place.address(), timeout=60) for _ in range(count)]


def test_idle_connections_never_keep_out_a_caller_with_a_token(place):
    silent = idle(place, 32)
    for one in silent:
        one.send(b"POST /predict HTTP/1.1\r\nHost: x\r\n")
    silent += idle(place, 32)
    for _ in range(3):
        assert place.predict("1")[0] == 200
    assert place.callers.strangers["too many connections of one address"] >= 44
    for one in silent[:44]:
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b"", "the oldest are closed"
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
    for one in silent:
        one.close()


def test_of_many_addresses_the_one_with_the_most_connections_is_closed_first(tmp_path):
    bounds = Bounds(8, 8, 2, request_s=30.0, idle_s=30.0, max_body_bytes=1000)
    with running(Place(tmp_path, bounds)) as place:
        one = socket.create_connection(place.address(), source_address=("127.0.0.2", 0), timeout=60)
        silent = idle(place, 20)
        one.sendall(f"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {place.token}\r\n\r\n".encode())
        assert one.recv(12) == b"HTTP/1.1 200"
        for other in (one, *silent):
            other.close()


def test_a_silent_connection_is_closed(tmp_path):
    bounds = Bounds(100, 20, 2, request_s=0.05, idle_s=0.05, max_body_bytes=1000)
    with running(Place(tmp_path, bounds)) as place:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {place.token}\r\n".encode()
        for said, answered in ((b"", b""), (head, b""), (head + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408 ")):
            (one,) = idle(place, 1)
            one.sendall(said)
            with one.makefile("rb") as file:
                assert file.read().startswith(answered or b"") and (answered or not file.read())
            one.close()
        assert place.callers.strangers["silent"] == 2


def test_what_is_not_http_is_closed(place):
    (one,) = idle(place, 1)
    one.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert one.recv(1) == b""
    one.close()
    assert place.callers.strangers["not HTTP"] == 1


def head_of(place, more="", end="\r\n", length=13, method="POST", version="1.1"):
    lines = [f"{method} /predict HTTP/{version}", "Host: x", f"Authorization: Bearer {place.token}"]
    return end.join([*lines, *([more] if more else []), f"Content-Length: {length}", "", ""]).encode()


def conversation(place, *writes):
    """What the server sends on one connection: each write waits until the answer to the one before it has begun."""
    found = b""
    with socket.create_connection(place.address(), timeout=60) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for written in writes:
            line.sendall(written)
            if not written.endswith(b"{"):
                try:
                    found += line.recv(100_000)
                except ConnectionResetError:
                    break
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_WR)
            while more := line.recv(100_000):
                found += more
    return found


BODY = b'{"ids":["17"]}'


@pytest.mark.parametrize(
    "writes",
    [
        lambda place: [head_of(place, length=14) + BODY] * 3,
        lambda place: [head_of(place, length=14) + BODY, head_of(place, length=14) + BODY[:1], BODY[1:]],
        lambda place: [head_of(place, length=14) + BODY, (head_of(place, length=14) + BODY) * 3],
        lambda place: [head_of(place, length=14) + BODY, head_of(place, length=14) + BODY + b"GET /nothing"],
        lambda place: [head_of(place, length=9) + b'{"ids":1}'] * 2,
        lambda place: [head_of(place, "Connection: keep-alive", length=14) + BODY] * 3,
        lambda place: [head_of(place, "Connection: close", length=14) + BODY] * 2,
        lambda place: [head_of(place, "Connection: close\r\nConnection: keep-alive", length=14) + BODY] * 2,
        lambda place: [head_of(place, version="1.0", length=14) + BODY] * 2,
        lambda place: [head_of(place, method="HEAD", length=14) + BODY] * 2,
        lambda place: [head_of(place, length=2000) + 2000 * b" "] * 2,
        # Bare line ends: h11 ends this head before the part that looks like its end.
        lambda place: [head_of(place, end="\n", length=4) + b"\r\n\r\n"] * 2,
    ],
)
def test_a_head_that_is_known_means_what_h11_reads_in_it(place, monkeypatch, writes):
    remembering = conversation(place, *writes(place))
    asked, place.predictor.asked = place.predictor.asked, []
    monkeypatch.setattr(connections, "KNOWN_HEAD_BYTES", 0)
    assert remembering == conversation(place, *writes(place))
    assert asked == place.predictor.asked


def test_h11_reads_the_same_head_once(place, monkeypatch):
    read, receive = [], h11.Connection.receive_data
    monkeypatch.setattr(h11.Connection, "receive_data", lambda own, data: read.append(data) or receive(own, data))
    with contextlib.closing(Door(place.url, place.token)) as door:
        for id in ["1", "2", "33", "4", "55"]:
            assert door.request("POST", "/predict", {"ids": [id]})["answers"] == [{"id": id}]
    assert len([data for data in read if data]) == 2, "one for each length of the body"


def test_a_known_head_is_admitted_each_time(place):
    asked = head_of(place, length=14) + BODY
    with socket.create_connection(place.address(), timeout=60) as line:
        for _ in range(2):
            line.sendall(asked)
            assert line.recv(100_000).startswith(b"HTTP/1.1 200 ")
        place.tokens.revoke("me")
        line.sendall(asked)
        found = line.recv(100_000)
        assert found.startswith(b"HTTP/1.1 401 ") and b"Connection: close" in found
        assert line.recv(1) == b""


def test_a_connection_keeps_few_heads_and_none_of_a_stranger(place):
    kept = []
    made = connections._Line
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "_Line", lambda *parts: kept.append(made(*parts)) or kept[-1])
        with contextlib.closing(Door(place.url, place.token)) as door:
            for length in range(1, 40):
                door.request("POST", "/predict", {"ids": [length * "1"]})
            assert 0 < len(kept[0]._known) <= connections.KNOWN_HEADS
        assert place.call("GET", "/status", token="wrong")[0] == 401
    assert len(kept) == 2 and not kept[1]._known


def test_only_admitted_requests_count_against_their_limit(place):
    silent = idle(place, 10)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(place.predict("wait")[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert place.predictor.holds.acquire(timeout=60)
    code, headers, content = place.predict("1")
    assert code == 503 and "max_requests" in content["error"] and headers["Retry-After"] == "1"
    for one in place.predictor.held:
        place.loop.call_soon_threadsafe(one.set_result, None)
    for thread in threads:
        thread.join(60)
    assert answers == [200, 200] and place.predict("1")[0] == 200
    for one in silent:
        one.close()


def test_plain_http_is_for_loopback_only(tmp_path):
    front = Front(Predictor(), Tokens(tmp_path), Callers(1, 1, lambda: 0), 1, Log("server", stream=io.StringIO()))
    with pytest.raises(ConfigError, match="predict.tls = False: plain HTTP is for loopback only"):
        HttpDoor(front, "0.0.0.0:0", BOUNDS, None).open()


def test_an_answer_says_what_it_rests_on():
    blocks = np.array([[SENT, FALLBACK], [SENT, CACHED], [LACKS, LACKS]], np.uint8)
    values = np.array([[0.25, 0.75], [0.5, 0.5], [0, 0]])
    task = Task("binary", ("no", "yes"))
    computed = Computed(1, values, blocks, [])
    found = json.loads(msgspec.json.encode(answers_of(["a", "b", "x"], computed, ("bank", "shop"), task)))
    first, second, third = found["answers"]
    assert list(first) == ["id", "prediction", "probabilities", "parties", "cached", "fallback", "refused"]
    assert found["classes"] == ["no", "yes"] and first["prediction"] == "yes" and first["probabilities"] == [0.25, 0.75]
    assert (first["parties"], first["fallback"], first["refused"]) == (["bank"], ["shop"], None)
    assert (second["parties"], second["cached"]) == (["bank"], ["shop"])
    assert (third["prediction"], third["probabilities"], third["refused"]) == (None, None, "no party has this id")


def test_a_value_has_no_probabilities():
    computed = Computed(1, np.array([[3.5]]), np.array([[SENT, SENT]], np.uint8), [])
    (answer,) = answers_of(["a"], computed, ("bank", "shop"), Task("regression", ())).answers
    assert answer.prediction == 3.5 and answer.probabilities is None


def test_ids_from_a_column_that_is_there(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("client,x\n7,1\n8,2\n")
    assert read_ids(path, "client") == ["7", "8"]
    with pytest.raises(ConfigError, match=r"^--column = 'clint': no such column in new.csv \(did you mean 'client'\?"):
        read_ids(path, "clint")
