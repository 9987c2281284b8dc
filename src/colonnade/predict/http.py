"""The server's HTTP endpoint, on loopback by default, for callers with the token.

    POST /predict   {"ids": ["17", "42"]}   →  {"classes": [...], "answers": [{"id", "prediction", "probabilities",
                    "parties", "cached", "fallback", "refused"}, ...]}, one for each id, in their order
    GET  /status    which parties are connected, and which have a fallback

Both need `Authorization: Bearer TOKEN`. Ids are never logged. The endpoint speaks plain HTTP. For callers beyond this
machine, put a proxy with TLS in front of it.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from colonnade.algorithms.prediction.messages import Computed
from colonnade.algorithms.prediction.party import MAX_ID_BYTES
from colonnade.algorithms.prediction.standing_in import CACHED, FALLBACK, SENT, why_refused
from colonnade.data import Task
from colonnade.protocol.errors import ConfigError

__all__ = ["Closed", "HttpDoor", "Predictor", "answers_of", "application"]

MAX_REQUESTS = 64  # at the same time


class Closed(Exception):
    """The server is stopping and gives no more answers."""


class Predictor(Protocol):
    """What the endpoint calls."""

    log: Any

    async def ask(self, ids: list[str]) -> dict[str, Any]:
        """Predictions for ids; raises Closed when the server stops."""

    def status(self) -> dict[str, Any]:
        """The server's status."""


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


class _Refused(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


def application(predictor: Predictor, token: str, max_ids: int, max_body_mb: float) -> Any:
    """The FastAPI application for `predictor`."""
    from fastapi import FastAPI, Request, Response

    app = FastAPI(title="colonnade", docs_url=None, redoc_url=None, openapi_url=None)
    expected, limit = token.encode(), int(max_body_mb * 2**20)

    def admit(request: Request) -> None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise _Refused(
                401, "no token: send 'Authorization: Bearer TOKEN', from predict/token in the server's folder"
            )
        if not hmac.compare_digest(given.strip().encode(), expected):
            raise _Refused(401, "wrong token: the right one is in predict/token in the server's folder")

    async def body_of(request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise _Refused(413, f"more than {limit} bytes (predict.max_body_mb)")
        return bytes(body)

    @app.exception_handler(_Refused)
    async def refused(_request: Request, refusal: _Refused) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if refusal.code == 401 else {}
        return _json({"error": refusal.words}, refusal.code, headers)

    def _json(content: Any, code: int = 200, headers: dict[str, str] | None = None) -> Response:
        return Response(msgspec.json.encode(content), code, headers, "application/json")

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        admit(request)
        ids = _ids_of(await body_of(request), max_ids)
        try:
            return _json(await predictor.ask(ids))
        except Closed:
            raise _Refused(503, "the server is stopping") from None

    @app.get("/status")
    async def status(request: Request) -> Response:
        admit(request)
        return _json(predictor.status())

    return app


def _ids_of(body: bytes, max_ids: int) -> list[str]:
    try:
        ids = msgspec.json.decode(body, type=_Question).ids
    except msgspec.MsgspecError as error:
        raise _Refused(422, f'not {{"ids": ["17", "42"]}}: {error}') from None
    if not 0 < len(ids) <= max_ids:
        raise _Refused(422, f"{len(ids)} ids; 1 to {max_ids} may be asked for at once (predict.max_ids)")
    for place, id in enumerate(ids):
        if not id.strip() or len(id.encode()) > MAX_ID_BYTES:
            raise _Refused(
                422, f"the id at place {place} (counted from 0) is empty, or longer than {MAX_ID_BYTES} bytes"
            )
    return ids


def answers_of(ids: Sequence[str], computed: Computed, parties: Sequence[str], task: Task) -> dict[str, Any]:
    """The JSON answer for a computation."""
    rows = zip(ids, computed.values, computed.blocks, strict=True)
    return {
        "classes": list(task.classes),
        "answers": [_answer(id, values, what, parties, computed.away, task) for id, values, what in rows],
    }


def _answer(id: str, values: Any, what: Any, parties: Sequence[str], away: Sequence[str], task: Task) -> dict[str, Any]:
    refused = why_refused(what, parties, away)
    prediction: str | float | None = None
    if not refused:
        prediction = task.classes[int(np.argmax(values))] if task.classes else float(values[0])
    return {
        "id": id,
        "prediction": prediction,
        "probabilities": [float(value) for value in values] if task.classes and not refused else None,
        "parties": _those(parties, what, SENT),
        "cached": _those(parties, what, CACHED),
        "fallback": [] if refused else _those(parties, what, FALLBACK),
        "refused": refused or None,
    }


def _those(parties: Sequence[str], what: Any, code: int) -> list[str]:
    return [name for name, found in zip(parties, what, strict=True) if found == code]


class HttpDoor:
    """Opens and closes the endpoint."""

    def __init__(self, predictor: Predictor, address: str, token: str, max_ids: int, max_body_mb: float) -> None:
        self._predictor, self._address = predictor, address
        self._app_of = (token, max_ids, max_body_mb)
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Listen; returns the address with the actual port. Raises ConfigError if the port is taken."""
        import uvicorn

        app = application(self._predictor, *self._app_of)

        class Quiet(uvicorn.Server):
            """Leaves signals to the process."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        listening = _listen(self._address)
        host, port = listening.getsockname()[:2]
        if not ipaddress.ip_address(host).is_loopback:
            self._predictor.log.warning(
                "plain HTTP is open to other machines: put a TLS proxy in front of it", http=host
            )
        settings = {"access_log": False, "log_config": None, "lifespan": "off", "limit_concurrency": MAX_REQUESTS}
        config = uvicorn.Config(app, timeout_graceful_shutdown=2, server_header=False, **settings)  # type: ignore[arg-type]
        self._server = Quiet(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        return f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"

    async def close(self) -> None:
        """Finish the requests in progress and accept no more."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if "[" in host else socket.AF_INET
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError("predict.http", address, f"cannot listen there: {error}; write host:port") from None
