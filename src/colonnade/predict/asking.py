"""The client: ids from a file, answers from the server's endpoint as a CSV, and a federation started for that."""

import asyncio
import contextlib
import csv
import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms.method import SERVER
from colonnade.config.schema import from_dict, read_toml
from colonnade.data.formats import TABLES, format_of
from colonnade.data.ids import ids_as_text
from colonnade.data.report_progress import silent
from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.tables import column_names, read_columns
from colonnade.deployment.up import FederationUp, reopen_up
from colonnade.predict.http_client import HttpClient
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.results.folder import tables_of
from colonnade.results.places import nodes_of, usual_folder

__all__ = [
    "Door",
    "ask",
    "door_of",
    "open_door",
    "read_ids",
    "server_folder",
    "up_for_questions",
    "write_answers",
]

PER_REQUEST = 1000
PATIENCE_S = 60.0
LONGEST_WAIT_S = 60.0  # for a quota
TRIES = 3  # the server closes waiting connections if it has too many
UP_S = 120.0  # for all roles to start from their checkpoints

CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
SILENCE = (OSError, http.client.HTTPException, ValueError, msgspec.MsgspecError)  # no answer, or not from our server
Answers = list[dict[str, Any]]


class Door:
    """An endpoint with a token for it, and a connection that stays open. For one thread."""

    def __init__(self, url: str, token: str, certificate: Path | None = None) -> None:
        self.url, self.token = url, token
        scheme, _, address = url.partition("://")
        self._headers = f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._connection = HttpClient(address, PATIENCE_S, _trusting(certificate) if scheme == "https" else None)

    def request(self, method: str, path: str, content: Any = None) -> Any:
        """One request; raises ColonnadeError with the server's message if it refuses.

        Waits and asks again if the caller's quota says so, but not for longer than LONGEST_WAIT_S.
        """
        while True:
            code, reason, retry_s, found = self._request(method, path, content)
            if code == 200:
                return found
            if code != 429 or not 0 < retry_s <= LONGEST_WAIT_S:
                raise ColonnadeError(f"{self.url}: {found.get('error', reason)}")
            time.sleep(retry_s)

    def _request(self, method: str, path: str, content: Any, tries: int = TRIES) -> tuple[int, str, float, Any]:
        """The status, its words, the seconds after which to try again, and the content of the answer."""
        connection, kept, sent = self._connection, self._connection.is_open, False
        body = b"" if content is None else msgspec.json.encode(content)
        try:
            connection.send(method, path, self._headers, body)
            sent = True
            answer = connection.answer()
            found = msgspec.json.decode(answer.body or b"{}")
        except BaseException as error:
            connection.close()
            unheard = not sent or kept  # a whole request on a new connection may have been answered
            if not isinstance(error, CLOSED) or not unheard or tries == 1:
                raise
            return self._request(method, path, content, tries - 1)
        return answer.status, answer.reason, float(answer.headers.get("retry-after", 0)), found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def answers(self) -> bool:
        """Whether the server answers."""
        return self.status() is not None

    def status(self) -> dict[str, Any] | None:
        """The server's status; None if it does not answer."""
        try:
            found: dict[str, Any] = self.request("GET", "/status")
        except SILENCE:
            return None
        return found


def _trusting(certificate: Path | None) -> ssl.SSLContext:
    """TLS with the server that has exactly this certificate, on any host; it is in the server's folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context


def door_of(run: Path, token: str) -> Door | None:
    """The endpoint of a server's folder; None if it has none now."""
    folder = run / "predict"
    try:
        url = (folder / "http").read_text("ascii")
        return Door(url, token, folder / "certificate.pem")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            "--run", str(run), f"cannot be read: {error.strerror}; ask with a token of your own"
        ) from None


def server_folder(config: Path, run: Path | None) -> Path:
    """The folder of the run's server, also if `up` started it; raises ConfigError if the config is none."""
    from_dict(read_toml(config))
    folder = run or usual_folder(config)
    return nodes_of(folder) / SERVER / "run" if nodes_of(folder).is_dir() else folder


@contextlib.contextmanager
def open_door(config: Path, run: Path | None) -> Iterator[Door]:
    """The endpoint of the run's server, with a token for as long as this context is open.

    If the server is away and all roles are on this machine, they are started and run while this context is open.
    """
    server = server_folder(config, run)
    folder = run or usual_folder(config)
    with contextlib.ExitStack() as stack:
        door = None
        if (server / "predict" / "http").is_file():
            token = stack.enter_context(Tokens(server / "predict").lent())
            door = door_of(server, token)
        if door is not None and door.answers():
            with contextlib.closing(door):
                yield door
            return
    if server == folder:
        where = f"no server answers at {door.url}" if door is not None else "no server answers questions from it now"
        advice = (
            f"{where}: start `colonnade serve {config} --predict`, and the parties with `colonnade join ... --predict`"
        )
        raise ConfigError("--run", str(folder), advice)
    with up_for_questions(reopen_up(from_dict(tables_of(folder)), folder, predict=True)) as door:
        yield door


def ask(door: Door, ids: Sequence[str], on_progress: Callable[[int], None]) -> tuple[list[str], Answers]:
    """The classes, and an answer for each id. Each id is asked once, because every question is a release."""
    distinct = list(dict.fromkeys(ids))
    classes: list[str] = []
    answers: Answers = []
    for start in range(0, len(distinct), PER_REQUEST):
        try:
            found = door.request("POST", "/predict", {"ids": distinct[start : start + PER_REQUEST]})
        except SILENCE as error:
            raise ColonnadeError(f"{door.url}: no answer to ids from {start}: {error}; see the server's log") from None
        classes = found["classes"]
        answers += found["answers"]
        on_progress(len(answers))
    of = dict(zip(distinct, answers, strict=True))
    return classes, [of[id] for id in ids]


def read_ids(path: Path, column: str | None) -> list[str]:
    """One id per line, or a column of a .csv, .csv.gz or .parquet file; raises ConfigError."""
    if not path.is_file():
        raise ConfigError("--ids", str(path), "there is no such file")
    if format_of(path, None, TABLES, "--file") is None:
        ids = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    else:
        names = column_names(path, silent)
        column = names[0] if column is None and len(names) == 1 else column
        if column is None:
            raise ConfigError("--column", None, f"name the column of {path.name} with the ids: {', '.join(names[:8])}")
        if column not in names:
            advice = f"no such column in {path.name}{did_you_mean(column, names)}: {listing(names)}"
            raise ConfigError("--column", column, advice)
        _, texts = read_columns(path, (), (column,), (), silent)
        ids = ids_as_text(path, texts[column]).to_list()
    if not ids:
        raise ConfigError("--ids", str(path), "has no ids")
    return ids


def write_answers(path: Path, classes: Sequence[str], answers: Answers) -> None:
    """One row per id. Several names in a cell are separated by spaces."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        chances = [f"probability of {name}" for name in classes]
        table.writerow(["id", "prediction", *chances, "parties", "cached", "fallback", "refused"])
        for answer in answers:
            values = answer["probabilities"] or [""] * len(classes)
            prediction = "" if answer["prediction"] is None else answer["prediction"]
            names = [" ".join(answer[key]) for key in ("parties", "cached", "fallback")]
            table.writerow([answer["id"], prediction, *values, *names, answer["refused"] or ""])


@contextlib.contextmanager
def up_for_questions(federation: FederationUp) -> Iterator[Door]:
    """Start all roles of a finished run from their checkpoints, and stop them at the end."""
    with asyncio.Runner() as runner, Tokens(federation.server_run / "predict").lent() as token:
        try:
            with contextlib.closing(runner.run(_bring_up(federation, token))) as door:
                yield door
        finally:
            runner.run(federation.stop())


async def _bring_up(federation: FederationUp, token: str) -> Door:
    """Wait until all parties are connected, so that answers use all of them."""
    door, missing = None, list(federation.parties)
    (federation.server_run / "predict" / "http").unlink(missing_ok=True)  # of a server that was killed
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(UP_S):
            await federation.start()
            while missing:
                await federation.look_after()
                await asyncio.sleep(0.1)
                door = door or door_of(federation.server_run, token)
                status = None if door is None else await asyncio.to_thread(door.status)
                if status is None:
                    door = None  # the server may come back at another port
                else:
                    missing = [party["name"] for party in status["parties"] if party["state"] != "connected"]
    if missing or door is None:
        raise ColonnadeError(
            f"did not start within {UP_S:g} s: {', '.join(missing)}; see the logs in {federation.nodes}"
        )
    return door
