"""The page's door: only with its token, only reading, within limits."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.dashboard.door import MAX_CONNECTIONS, Door
from colonnade.dashboard.page import open_door
from colonnade.dashboard.source import FolderSource
from colonnade.protocol.errors import ConfigError


@pytest.fixture(scope="module")
def door(finished: Path) -> Iterator[Door]:
    opened = open_door(FolderSource(finished))
    yield opened
    opened.close()


def ask(door: Door, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", door.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize("path", ["/", "/data", "/watch.js", "/plotly.js", "/nothing", "/?token=", "/data?token=wrong"])
def test_a_request_without_the_token_gets_no_data(door: Door, path: str) -> None:
    code, headers, body = ask(door, path)
    assert code == 403
    assert body == b"This page needs the token in the address that `colonnade watch` printed.\n"
    assert "Set-Cookie" not in headers


def test_a_wrong_or_strange_cookie_is_no_token(door: Door) -> None:
    for cookie in (f"{door.cookie}=wrong", f"other={door.token}", "=;=;\x7f", f'{door.cookie}="\\351"'):
        assert ask(door, "/data", Cookie=cookie)[0] == 403


def test_the_address_sets_a_cookie_and_hides_the_token(door: Door) -> None:
    assert door.address.startswith(f"http://127.0.0.1:{door.server_port}/?token=")
    code, headers, _ = ask(door, f"/?token={door.token}")
    assert (code, headers["Location"]) == (303, "/")
    assert headers["Set-Cookie"] == f"{door.cookie}={door.token}; HttpOnly; SameSite=Lax; Path=/"
    assert headers["Referrer-Policy"] == "no-referrer"
    code, headers, page = ask(door, "/", Cookie=headers["Set-Cookie"].partition(";")[0])
    assert code == 200 and b"<!doctype html>" in page and door.token.encode() not in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy


def test_the_page_asks_no_other_site(door: Door) -> None:
    page = ask(door, "/", Cookie=f"{door.cookie}={door.token}")[2].decode()
    assert page.count("src=") == 2 and 'src="/plotly.js"' in page and 'src="/watch.js"' in page
    assert page.count("http") == 1 and "xmlns='http://www.w3.org/2000/svg'" in page


def test_the_data_are_the_runs(door: Door) -> None:
    code, headers, body = ask(door, f"/data?token={door.token}")
    found = json.loads(body)
    assert code == 200 and headers["Cache-Control"] == "no-store"
    assert found["state"]["word"] == "finished" and len(found["parties"]) == 3
    assert {"metric", "loss", "timeline", "bytes", "utilisation"} <= set(found["figures"])


def test_an_unknown_path_is_not_found_and_nothing_is_outside(door: Door) -> None:
    for path in ("/nothing", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/data/"):
        assert ask(door, path, Cookie=f"{door.cookie}={door.token}")[0] == 404


def test_a_name_that_points_here_is_refused(door: Door) -> None:
    """Another site may let its name point at 127.0.0.1; the browser then sends that name."""
    token = f"/data?token={door.token}"
    assert ask(door, token, Host="evil.example:80")[0] == 403
    assert ask(door, token, Host="127.0.0.1.evil.example")[0] == 403
    assert ask(door, token, Host="localhost:8000")[0] == 200, "the near end of a tunnel has another port"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_possible(door: Door, method: str) -> None:
    assert ask(door, f"/data?token={door.token}", method)[0] == 501


def test_a_huge_request_is_refused(door: Door) -> None:
    assert ask(door, f"/data?token={door.token}&more={'x' * 5000}")[0] == 403
    assert ask(door, f"/data?token={door.token}", Cookie="x" * 40_000)[0] == 431
    with socket.create_connection(("127.0.0.1", door.server_port), timeout=10) as caller:
        caller.sendall(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n")
        assert b" 414 " in caller.recv(100)


def test_silent_connections_do_not_keep_a_reader_out(door: Door) -> None:
    silent = [socket.create_connection(("127.0.0.1", door.server_port)) for _ in range(2 * MAX_CONNECTIONS)]
    try:
        assert ask(door, f"/data?token={door.token}")[0] == 200
        silent[0].settimeout(10)
        assert silent[0].recv(1) == b"", "the oldest was closed"
        ends = time.monotonic() + 10
        while len(door._open) > MAX_CONNECTIONS and time.monotonic() < ends:
            time.sleep(0.01)
        assert len(door._open) <= MAX_CONNECTIONS
    finally:
        for caller in silent:
            caller.close()


def test_what_is_no_http_is_closed_in_silence(door: Door, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", door.server_port), timeout=10) as caller:
        caller.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        caller.recv(2000)
    with socket.create_connection(("127.0.0.1", door.server_port)) as caller:
        caller.sendall(b"GET /data HT")
    assert ask(door, f"/data?token={door.token}")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_said(door: Door, finished: Path) -> None:
    with pytest.raises(ConfigError, match="--port"):
        open_door(FolderSource(finished), door.server_port)
    with pytest.raises(ConfigError, match="--port"):
        open_door(FolderSource(finished), 70_000)
