"""The server's HTTP endpoint, over TLS and on loopback by default, for callers with a token.

    POST /predict   {"ids": ["17", "42"]}   →  {"classes": [...], "answers": [{"id", "prediction", "probabilities",
                    "parties", "cached", "fallback", "refused"}, ...]}, one for each id, in their order
    GET  /status    which parties are connected, and which have a fallback
    GET  /healthz   200 while the server runs; /readyz: 200 if it can answer, else 503

The first two need `Authorization: Bearer TOKEN`. Ids and tokens are never logged.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from colonnade.algorithms.prediction.messages import Computed
from colonnade.algorithms.prediction.party import MAX_ID_BYTES
from colonnade.algorithms.prediction.standing_in import CACHED, FALLBACK, SENT, why_refused
from colonnade.data import Task
from colonnade.drivers.processes.logs import Log, Once
from colonnade.predict.callers import Callers, retry_after
from colonnade.predict.connections import Bounds, Connections, Refused
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import CheckpointError, ConfigError

__all__ = ["Answer", "Answers", "BadQuestion", "Closed", "Front", "HttpDoor", "Predictor", "answers_of"]


class Closed(Exception):
    """The server is stopping and gives no more answers."""


class BadQuestion(Exception):
    """An id that cannot be asked for, in words, without the id."""


class Answer(msgspec.Struct, gc=False):
    """The answer for one id, as JSON has it."""

    id: str
    prediction: str | float | None
    probabilities: list[float] | None
    parties: list[str]  # that sent their block now
    cached: list[str]
    fallback: list[str]
    refused: str | None  # why there is no prediction


class Answers(msgspec.Struct, gc=False):
    """The answer to a question."""

    classes: list[str]
    answers: list[Answer]


class _Basis(NamedTuple):
    """The last fields of an `Answer`."""

    parties: list[str]
    cached: list[str]
    fallback: list[str]
    refused: str | None


class Predictor(Protocol):
    """What the endpoint calls."""

    async def ask(self, ids: list[str], caller: str) -> Answers:
        """Predictions for ids; raises BadQuestion, or Closed when the server stops."""

    def status(self) -> dict[str, Any]:
        """The server's status."""

    def unready(self) -> list[str]:
        """Why the server cannot make progress now."""


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


class Front:
    """Admits callers, keeps them within their quotas, and answers."""

    def __init__(self, predictor: Predictor, tokens: Tokens, callers: Callers, max_ids: int, log: Log) -> None:
        self._predictor, self._tokens, self._callers, self._max_ids = predictor, tokens, callers, max_ids
        self._complaints = Once(log)

    def admit(self, authorization: str) -> str:
        """Return the caller's name; raise Refused for a header without a valid token."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer" or not given.strip():
            raise _unknown("no token: send 'Authorization: Bearer TOKEN', made by `colonnade token new`", "no token")
        try:
            token = self._tokens.find(given.strip())
        except CheckpointError as error:
            self._complaints.warning("no caller is admitted", why=str(error))
            raise _unknown("the server cannot read its list of tokens; see its log", "no list of tokens") from None
        if token is None:
            raise _unknown("wrong token: it is not known here, or it was revoked", "wrong token")
        if token.expires <= time.time():
            raise _unknown(f"the token of {token.name} has expired: make a new one", "expired token")
        return token.name

    def probe(self, method: str, path: str) -> tuple[int, bytes] | None:
        """Answer a probe, which needs no token and learns no more than yes or no; None for other requests."""
        if method != "GET" or path not in ("/healthz", "/readyz"):
            return None
        well = path == "/healthz" or not self._predictor.unready()
        return (200, b'{"ok":true}') if well else (503, b'{"ok":false}')

    async def answer(self, caller: str, method: str, path: str, body: bytes) -> bytes:
        """Return the JSON answer; raise Refused."""
        if wait_s := self._callers.request(caller):
            raise Refused(429, "too many requests (predict.caller_requests_per_minute)", "quota", retry_after(wait_s))
        match method, path:
            case "POST", "/predict":
                return msgspec.json.encode(await self._predict(caller, body))
            case "GET", "/status":
                return msgspec.json.encode(self._predictor.status())
            case _, "/predict" | "/status":
                raise Refused(405, "POST /predict, or GET /status", "no such page")
        raise Refused(404, "there are POST /predict and GET /status", "no such page")

    async def _predict(self, caller: str, body: bytes) -> Answers:
        ids = _ids_of(body, self._max_ids)
        if wait_s := self._callers.rows(caller, len(ids)):
            words = f"{len(ids)} ids are too many now (predict.caller_rows_per_day)"
            raise Refused(429, words, "quota", retry_after(wait_s))
        try:
            return await self._predictor.ask(ids, caller)
        except BadQuestion as error:
            raise Refused(422, str(error), "no question") from None
        except Closed:
            raise Refused(503, "the server is stopping", "stopping") from None

    def refused(self, caller: str, refusal: Refused) -> bytes:
        """Count a refusal and return its JSON."""
        self._callers.refused(caller, refusal.why)
        self._complaints.warning("refused", caller=caller or "unknown", why=refusal.why)
        return msgspec.json.encode({"error": refusal.words})

    def closed(self, why: str) -> None:
        """Count a connection that was closed without a request."""
        self._callers.refused("", why)
        self._complaints.warning("closed a connection", why=why)

    def failed(self, error: BaseException) -> None:
        """Log an error of this program."""
        self._complaints.warning("a request failed", error=repr(error)[:200])


def _unknown(words: str, why: str) -> Refused:
    return Refused(401, words, why, {"WWW-Authenticate": "Bearer"})


def _ids_of(body: bytes, max_ids: int) -> list[str]:
    try:
        ids = msgspec.json.decode(body, type=_Question).ids
    except msgspec.MsgspecError as error:
        raise Refused(422, f'not {{"ids": ["17", "42"]}}: {error}', "no question") from None
    if not 0 < len(ids) <= max_ids:
        words = f"{len(ids)} ids; 1 to {max_ids} may be asked for at once (predict.max_ids)"
        raise Refused(422, words, "no question")
    if wrong := wrong_id(ids):
        raise Refused(422, f"the id at place {wrong[0]} (counted from 0) {wrong[1]}", "no question")
    return ids


def wrong_id(ids: Sequence[str]) -> tuple[int, str] | None:
    """Return the place of the first id that cannot be asked for, and why; None if there is no such id."""
    for place, id in enumerate(ids):
        if not id.strip() or len(id.encode()) > MAX_ID_BYTES:
            return place, f"is empty, or longer than {MAX_ID_BYTES} bytes"
    return None


def answers_of(ids: Sequence[str], computed: Computed, parties: Sequence[str], task: Task) -> Answers:
    """The answers for a computation."""
    answers, bases = [], dict[bytes, _Basis]()  # most ids rest on the same blocks
    width, blocks = len(parties), computed.blocks.tobytes()
    for place, (id, values) in enumerate(zip(ids, computed.values.tolist(), strict=True)):
        what = blocks[width * place : width * (place + 1)]
        basis = bases.get(what)
        if basis is None:
            basis = bases[what] = _basis(what, parties, computed.away)
        prediction, probabilities = (None, None) if basis.refused else _prediction(values, task.classes)
        answers.append(Answer(id, prediction, probabilities, *basis))
    return Answers(list(task.classes), answers)


def _prediction(values: list[float], classes: Sequence[str]) -> tuple[str | float, list[float] | None]:
    """The class, or the value, and the probabilities of the classes."""
    return (classes[values.index(max(values))], values) if classes else (values[0], None)


def _basis(what: Sequence[int], parties: Sequence[str], away: Sequence[str]) -> _Basis:
    """What an answer rests on, or why it is refused."""
    refused = why_refused(what, parties, away)
    return _Basis(
        parties=_those(parties, what, SENT),
        cached=_those(parties, what, CACHED),
        fallback=[] if refused else _those(parties, what, FALLBACK),
        refused=refused or None,
    )


def _those(parties: Sequence[str], what: Sequence[int], code: int) -> list[str]:
    return [name for name, found in zip(parties, what, strict=True) if found == code]


class HttpDoor:
    """Opens and closes the endpoint. `tls` is None for plain HTTP."""

    def __init__(self, front: Front, address: str, bounds: Bounds, tls: ssl.SSLContext | None) -> None:
        self._address, self._tls = address, tls
        self._connections = Connections(front, bounds, tls)

    def open(self) -> str:
        """Listen; returns the URL with the actual port. Raises ConfigError if the port is taken."""
        listening = _listen(self._address)
        host, port = listening.getsockname()[:2]
        if self._tls is None and not ipaddress.ip_address(host).is_loopback:
            listening.close()
            advice = f"plain HTTP is for loopback only, and predict.http = '{self._address}' is not"
            raise ConfigError("predict.tls", False, advice)
        self._connections.start(listening)
        where = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
        return f"{'http' if self._tls is None else 'https'}://{where}"

    async def close(self) -> None:
        """Finish the requests in progress and accept no more."""
        await self._connections.stop()


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if "[" in host else socket.AF_INET
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError("predict.http", address, f"cannot listen there: {error}; write host:port") from None
