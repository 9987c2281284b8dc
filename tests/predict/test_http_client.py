"""The client's connection, against a server that answers with given bytes."""

import contextlib
import http.client
import socket
import threading

import pytest

from colonnade.predict.http_client import HttpClient

GOOD = b'HTTP/1.1 200 \r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: 7\r\n\r\n{"a":1}'


@contextlib.contextmanager
def server_that_sends(*pieces, closes=True):
    """Each piece is sent in a write of its own when a request has come."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with listening.accept()[0] as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while connection.recv(10_000):
                    for piece in pieces:
                        connection.sendall(piece)
                    if closes:
                        break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = HttpClient(f"127.0.0.1:{listening.getsockname()[1]}", 30.0, None)
        with contextlib.closing(client):
            yield client
        thread.join(30)


def answer_of(client):
    client.send("POST", "/predict", "Authorization: Bearer t\r\n", b"{}")
    return client.answer()


@pytest.mark.parametrize("cut", [1, 20, len(GOOD) - 9, len(GOOD) - 7, len(GOOD) - 1])
def test_an_answer_may_come_in_pieces(cut):
    with server_that_sends(GOOD[:cut], GOOD[cut:]) as client:
        answer = answer_of(client)
    assert (answer.status, answer.reason, answer.body) == (200, "", b'{"a":1}')
    assert answer.headers["retry-after"] == "7"


def test_a_connection_is_kept_unless_the_server_closes_it():
    with server_that_sends(GOOD, closes=False) as client:
        for _ in range(2):
            assert answer_of(client).status == 200
            assert client.is_open
    with server_that_sends(GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as client:
        assert answer_of(client).body == b'{"a":1}'
        assert not client.is_open


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", http.client.RemoteDisconnected),
        (GOOD[:30], http.client.IncompleteRead),
        (GOOD[:-1], http.client.IncompleteRead),
        (GOOD + b"x", http.client.HTTPException),
        (b"SSH-2.0-OpenSSH\r\n\r\n", http.client.BadStatusLine),
        (GOOD.replace(b"Content-Length: 7\r\n", b""), http.client.HTTPException),
        (GOOD.replace(b"Length: 7", b"Length: -7"), http.client.HTTPException),
        (GOOD.replace(b"Retry-After: 7", b"Retry-After 7"), http.client.HTTPException),
        (b"HTTP/1.1 200 \r\n" + b"a: b\r\n" * 30_000, http.client.LineTooLong),
    ],
)
def test_what_is_no_answer_is_refused(sent, error):
    with server_that_sends(sent) as client, pytest.raises(error):
        answer_of(client)
