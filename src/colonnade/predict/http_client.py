"""The client's side of HTTP/1.1, as far as it talks to this server: one connection, one request at a time.

The server sends every answer with a length, and few headers. The standard library would parse them as an e-mail, which
takes longer than everything else that the client does for one id.
"""

import re
import socket
import ssl
from http.client import BadStatusLine, HTTPException, IncompleteRead, LineTooLong, RemoteDisconnected
from typing import NamedTuple

__all__ = ["Answer", "HttpClient"]

MOST_HEAD_BYTES = 64 * 2**10
READ_BYTES = 256 * 2**10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: (.*))?", re.DOTALL)


class Answer(NamedTuple):
    status: int
    reason: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpClient:
    """A connection that opens when it is needed and stays open. A failed request leaves it closed."""

    def __init__(self, address: str, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._address, self._timeout_s, self._tls = address, timeout_s, tls
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is kept from an earlier request."""
        return self._socket is not None

    def send(self, method: str, path: str, headers: str, body: bytes = b"") -> None:
        """Send a request in one write: one TLS record, and one turn of the server's event loop.

        `headers` are whole lines.
        """
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._address}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self._connected().sendall(head.encode("ascii") + body)

    def answer(self) -> Answer:
        """Return the answer to the request that was sent; raise HTTPException if it is none."""
        head, body = self._head()
        status, headers = _parsed(head)
        length = headers.get("content-length", "")
        if not length.isdecimal():
            raise HTTPException("an answer without a length")
        whole = self._rest(body, int(length))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(int(status[1]), (status[2] or b"").decode("latin-1"), headers, whole)

    def close(self) -> None:
        """Close the connection."""
        kept, self._socket = self._socket, None
        if kept is not None:
            kept.close()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            host, _, port = self._address.rpartition(":")
            host = host.strip("[]")
            plain = socket.create_connection((host, int(port)), self._timeout_s)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=host)
            except BaseException:
                plain.close()
                raise
        return self._socket

    def _head(self) -> tuple[bytes, bytes]:
        """The lines before the empty one, and what has come of the body."""
        found = self._read()
        if not found:
            raise RemoteDisconnected("the server closed the connection without an answer")
        while b"\r\n\r\n" not in found:
            if len(found) > MOST_HEAD_BYTES:
                raise LineTooLong("head")
            more = self._read()
            if not more:
                raise IncompleteRead(found)
            found += more
        head, _, body = found.partition(b"\r\n\r\n")
        return head, body

    def _rest(self, begun: bytes, length: int) -> bytes:
        if len(begun) > length:
            raise HTTPException("an answer that is longer than it says")
        parts, missing = [begun], length - len(begun)
        while missing:
            part = self._read()
            if not part or len(part) > missing:
                raise IncompleteRead(b"".join(parts), missing)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _read(self) -> bytes:
        return self._connected().recv(READ_BYTES)


def _parsed(head: bytes) -> tuple[re.Match[bytes], dict[str, str]]:
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise BadStatusLine(first[:80].decode("latin-1"))
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise HTTPException("a header without a colon")
        headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    return status, headers
