"""The page's HTTP door: loopback only, one token, reading only.

A request without the token gets 403 and nothing else. The printed address has the token in its query; the door then
sets a cookie and redirects, so that the token does not stay in the address bar. Each connection carries one request.
At the limit of connections the oldest one is closed, so that connections that say nothing cannot keep a reader out.
"""

import gzip
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from colonnade.protocol.errors import ConfigError
from colonnade.protocol.strict_json import to_json

__all__ = ["Answer", "Door"]

MAX_CONNECTIONS = 32
MAX_TARGET = 2048  # characters of the path and the query
MAX_HEADER_BYTES = 16 * 2**10
REQUEST_S = 10.0  # a connection that is silent for so long is closed
LOCAL = ("127.0.0.1", "localhost", "[::1]")  # the names in the header Host; a tunnel may change the port
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src data: blob:; connect-src 'self'"
)
REFUSED = "This page needs the token in the address that `colonnade watch` printed.\n"


@dataclass(frozen=True)
class Answer:
    """A file of the page."""

    kind: str
    body: bytes = field(repr=False)

    @cached_property
    def packed(self) -> bytes:
        """The body compressed, once."""
        return gzip.compress(self.body, 6, mtime=0)


class Door(ThreadingHTTPServer):
    """Serves the page in threads until it is closed."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, files: Mapping[str, Answer], data: Callable[[], dict[str, Any]]) -> None:
        self.token = secrets.token_urlsafe(24)
        self.files, self.data = files, data
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._guard = threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            advice = f"cannot listen there ({error}); choose another port, or leave --port out"
            raise ConfigError("--port", port, advice) from None
        self.cookie = f"colonnade-{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The page's address, with the token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection; at the limit, close the oldest connection."""
        with self._guard:
            self._open[request] = None
            if len(self._open) > MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection, and close it."""
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the caller hung up, or was cut off."""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Door
    timeout = REQUEST_S
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "colonnade", ""

    def do_GET(self) -> None:
        found = urlsplit(self.path)
        given = parse_qs(found.query, max_num_fields=8).get("token", [""])[0] if len(self.path) <= MAX_TARGET else ""
        if not self._is_local() or not self._may_read(given):
            self._send(HTTPStatus.FORBIDDEN, Answer("text/plain", REFUSED.encode()))
        elif given and found.path == "/":
            self._redirect()
        elif found.path == "/data":
            body = to_json(self.server.data(), compact=True, warn=False).encode()
            self._send(HTTPStatus.OK, Answer("application/json", body))
        elif (file := self.server.files.get(found.path)) is not None:
            self._send(HTTPStatus.OK, file)
        else:
            self._send(HTTPStatus.NOT_FOUND, Answer("text/plain", b"There is no such page.\n"))

    def parse_request(self) -> bool:
        """Refuse a head that is too long, before anything is done with it."""
        good = super().parse_request()
        if good and sum(len(key) + len(value) for key, value in self.headers.items()) > MAX_HEADER_BYTES:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        return good

    def _is_local(self) -> bool:
        """Refuse a name that another site has pointed at this machine."""
        name, separator, port = self.headers.get("Host", "").rpartition(":")
        return (name if separator and port.isdigit() else f"{name}{separator}{port}") in LOCAL

    def _may_read(self, given: str) -> bool:
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            kept = None
        token = self.server.token.encode()
        asked, cookie = (text.encode("utf-8", "replace") for text in (given, kept.value if kept is not None else ""))
        return secrets.compare_digest(asked, token) or secrets.compare_digest(cookie, token)

    def _redirect(self) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        # Lax: a link in another page, such as a terminal in the browser, may lead here; no other site may ask for data.
        self.send_header("Set-Cookie", f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/")
        self.send_header("Location", "/")
        self._headers()

    def _send(self, code: HTTPStatus, answer: Answer) -> None:
        packs = len(answer.body) > 1024 and "gzip" in self.headers.get("Accept-Encoding", "")
        body = answer.packed if packs else answer.body
        self.send_response(code)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if packs:
            self.send_header("Content-Encoding", "gzip")
        self._headers()
        self.wfile.write(body)

    def _headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the token would be in the log."""
