"""The client: ids from a file, answers from the server's endpoint as a CSV, and a federation started for that."""

import asyncio
import contextlib
import csv
import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.config.schema import from_dict, read_toml
from colonnade.data.formats import TABLES, format_of
from colonnade.data.ids import ids_as_text
from colonnade.data.report_progress import silent
from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.tables import column_names, read_columns
from colonnade.deployment.up import FederationUp, reopen_up
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.results.folder import tables_of
from colonnade.results.places import nodes_of, usual_folder

__all__ = ["Door", "ask", "door_of", "open_door", "read_ids", "up_for_questions", "write_answers"]

PER_REQUEST = 1000
PATIENCE_S = 60.0
UP_S = 120.0  # for all roles to start from their checkpoints

SILENCE = (OSError, http.client.HTTPException, ValueError)  # no answer, or not from our server
Answers = list[dict[str, Any]]


class Door(NamedTuple):
    """The address of an endpoint, and the token for it."""

    address: str
    token: str

    def request(self, method: str, path: str, content: Any = None) -> Any:
        """One request; raises ColonnadeError with the server's message if it refuses."""
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        body = None if content is None else json.dumps(content)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            found = json.loads(response.read() or b"{}")
        if response.status != 200:
            raise ColonnadeError(f"{self.address}: {found.get('error', response.reason)}")
        return found

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


def door_of(run: Path) -> Door | None:
    """The endpoint of a server's folder; None if it never had one. Raises ConfigError if the token is unreadable."""
    folder = run / "predict"
    if not (folder / "http").is_file():
        return None
    try:
        token = (folder / "token").read_text("ascii").strip()
    except OSError as error:
        advice = (
            f"cannot be read ({error.strerror}): run the command as the user that runs the server, which makes the "
            "token when it starts"
        )
        raise ConfigError("token", str(folder / "token"), advice) from None
    return Door((folder / "http").read_text("ascii"), token)


def open_door(config: Path, run: Path | None) -> contextlib.AbstractContextManager[Door]:
    """The endpoint of the run's server.

    If the server is away and all roles are on this machine, they are started and run while this context is open.
    """
    from_dict(read_toml(config))
    folder = run or usual_folder(config)
    together = nodes_of(folder).is_dir()  # of `up`: all roles are here
    door = door_of(nodes_of(folder) / "server" / "run" if together else folder)
    if door is not None and door.answers():
        return contextlib.nullcontext(door)
    if not together:
        where = (
            f"no server answers at {door.address}"
            if door is not None
            else "no server answers predictions from this folder now"
        )
        advice = (
            f"{where}: start `colonnade serve {config} --predict`, and the parties with `colonnade join ... --predict`"
        )
        raise ConfigError("--run", str(folder), advice)
    return up_for_questions(reopen_up(from_dict(tables_of(folder)), folder, predict=True))


def ask(door: Door, ids: Sequence[str], on_progress: Callable[[int], None]) -> tuple[list[str], Answers]:
    """The classes, and an answer for each id. Each id is asked once, because every question is a release."""
    distinct = list(dict.fromkeys(ids))
    classes: list[str] = []
    answers: Answers = []
    for start in range(0, len(distinct), PER_REQUEST):
        try:
            found = door.request("POST", "/predict", {"ids": distinct[start : start + PER_REQUEST]})
        except SILENCE as error:
            raise ColonnadeError(
                f"{door.address}: no answer for the ids from number {start}: {error}; see the server's log"
            ) from None
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
    with asyncio.Runner() as runner:
        try:
            yield runner.run(_bring_up(federation))
        finally:
            runner.run(federation.stop())


async def _bring_up(federation: FederationUp) -> Door:
    """Wait until all parties are connected, so that answers use all of them."""
    door, missing = None, list(federation.parties)
    (federation.server_run / "predict" / "http").unlink(missing_ok=True)  # of a server that was killed
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(UP_S):
            await federation.start()
            while missing:
                await federation.look_after()
                await asyncio.sleep(0.1)
                door = door_of(federation.server_run)
                status = None if door is None else await asyncio.to_thread(door.status)
                if status is not None:
                    missing = [party["name"] for party in status["parties"] if party["state"] != "connected"]
    if missing or door is None:
        raise ColonnadeError(
            f"did not start within {UP_S:g} s: {', '.join(missing)}; see the logs in {federation.nodes}"
        )
    return door
