"""The server's and a party's part of predictions, made from the state that the training left on the disk.

    OUT/state/                      the trained state; read, never written
    OUT/predict/token               the token for HTTP callers; made at the first start, readable by its owner only
    OUT/predict/http                the address of the HTTP endpoint
    OUT/predict/means.safetensors   the mean embeddings that the parties sent, as fallbacks

The handshake is the training's (config, certificates, ids) with the phase added. So a server that predicts does not
admit a party that still trains.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.algorithms.method import SERVER
from colonnade.algorithms.prediction.messages import Asked, Computed, Mean
from colonnade.algorithms.prediction.predictor import PredictPartySetup, PredictServerSetup
from colonnade.config.schema import Config
from colonnade.data import party_lookup
from colonnade.data.alignment import normalise
from colonnade.deployment.application import Pace, parties_now
from colonnade.deployment.own_side import SHARE, limits_of
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.terms import shared_digest
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.node_without_journal import NodeWithoutJournal
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import Bye, End, Hello, Position
from colonnade.predict.http import Closed, HttpDoor, answers_of
from colonnade.predict.in_one_place import predictor_of
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Array, Payload

__all__ = ["PartyPrediction", "ServerPrediction", "predicting_party", "predicting_server"]

PHASE = {"phase": "predict"}


def predicting_server(side: ServerSide) -> "ServerHost[ServerPrediction]":
    """The server that predicts with the state in its folder."""
    return ServerHost(ServerPrediction(side))


def predicting_party(side: PartySide) -> "PartyHost[PartyPrediction]":
    """A party that predicts with the state in its folder."""
    return PartyHost(PartyPrediction(side))


@dataclass(slots=True)
class _BehindTheDoor:
    """What HTTP requests reach."""

    log: Log
    ask: Callable[[list[str]], Coroutine[Any, Any, dict[str, Any]]]
    status: Callable[[], dict[str, Any]]


class ServerPrediction(Keeper):
    """The server after the training: its network, its parties and its HTTP endpoint."""

    admit_late, metrics_port = True, None

    def __init__(self, side: ServerSide) -> None:
        self.side, plan, own = side, side.plan, side.config.predict
        side.reopened()  # raises for another config than the training's
        predictor = predictor_of(plan.method)
        if not side.read():
            raise ConfigError(
                "--predict", str(side.out), "the training in this folder has not ended: first run without --predict"
            )  # fmt: skip
        if own.min_parties > len(plan.parties):
            raise ConfigError(
                "predict.min_parties", own.min_parties, f"must be at most {len(plan.parties)}, the number of parties"
            )
        self.role = predictor.server(_setup_of(side))
        self._folder = side.out / "predict"
        limits = limits_of(side.config)
        self.node = NodeWithoutJournal(
            self.role, predictor.payloads, self._folder, plan.parties, limits, side.log, self
        )
        self.shared = side.shared | PHASE
        self.terms, self.run_id = side.terms(self.shared), side.run_id()
        self.relay = predictor.peers
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Computed]] = {}
        self.answered = 0

    def attach(self, service: Service) -> None:
        """Do nothing: the service is not needed."""

    def opened(self) -> None:
        """Make the folder for the endpoint's files and the parties' means."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def waits_for(self) -> list[str]:
        """No party: the policy decides what to do without parties that are away."""
        return []

    def emitted(self, record: Payload, node: Node) -> None:
        """Pass an answer to the question that waits for it, or save a party's mean."""
        if isinstance(record, Mean):
            replace_file(_means_file(self.side), state.chunks(dict(self.role.means())), 0o600)
        elif isinstance(record, Computed):
            waiting = self._waiting.pop(record.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(record)

    async def ask(self, ids: list[str]) -> dict[str, Any]:
        """Predictions for ids, with the parties that each rests on. A repeated id is asked once. Raises Closed."""
        if self.node.ended.is_set():
            raise Closed
        self._number += 1
        here = [peer.name for peer in self.node.peers.values() if peer.stream is not None]
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        began = self.node.clock()
        places: dict[str, int] = {}
        copies = [places.setdefault(normalise(id, self.side.config.align), len(places)) for id in ids]
        self.node.tell(Asked(self._number, list(places), here))
        found = await waiting
        computed = Computed(found.number, found.values[copies], found.blocks[copies], found.away)
        self.answered += len(ids)
        spent_ms = round((self.node.clock() - began) * 1000 / NANOSECONDS, 1)
        self.side.log.info("answered", ids=len(ids), away=",".join(computed.away) or "none", ms=spent_ms)
        return answers_of(ids, computed, self.side.parties, self.side.share.task)

    @asynccontextmanager
    async def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
        """Open the HTTP endpoint. When it closes, waiting questions fail with Closed."""
        own, log = self.side.config.predict, self.side.log
        behind = _BehindTheDoor(log, self.ask, status)
        door = HttpDoor(behind, own.http, _token(self._folder / "token"), own.max_ids, own.max_body_mb)
        try:
            where = await door.open()
            replace_file(self._folder / "http", [where.encode()])
            log.info("predicting", address=address, http=where, digest=shared_digest(self.shared)[:16])
            yield
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Closed())
            (self._folder / "http").unlink(missing_ok=True)
            await door.close()

    def status(self, pace: Pace) -> dict[str, Any]:
        """For the live table and for HTTP callers."""
        return {
            "protocol": self.side.plan.method.name,
            "state": "predicting",
            "updates": self.side.role.progress.k,
            "epochs": 0.0,
            "fraction": 1.0,
            "metric": "",
            "value": None,
            "waited_s": 0.0,
            "answered": self.answered,
            "fallback": list(self.role.means()),
            "parties": parties_now(self.node),
        }

    def ended(self) -> End:
        """Always "stopped": the server predicts until it is stopped. Raises the node's error."""
        if self.node.error is not None:
            raise self.node.error
        return End("stopped")

    def summary(self, end: End) -> Mapping[str, Any]:
        return {"status": end.status, "note": end.note, "answered": self.answered}

    def write(self, summary: Mapping[str, Any]) -> None:
        """Do nothing: the training's summary stays."""

    def say_end(self, summary: Mapping[str, Any]) -> None:
        """Log the number of answered ids."""
        self.side.log.info("ended", answered=self.answered)


class PartyPrediction:
    """A party after the training: its network, and all its rows by id."""

    def __init__(self, side: PartySide) -> None:
        self.side, config, plan = side, side.config, side.plan
        predictor = predictor_of(plan.method)
        if not (side.out / "state" / "checkpoint.safetensors").is_file():
            raise ConfigError(
                "--predict", str(side.out), "this folder holds no trained model: first run without --predict"
            )
        side.refuse_others_state()
        side.open_ledger()
        side.read()
        party = config.party
        table = party_lookup(side.share, _files(config), party.id, config.align, party.format, party.dialect)
        setup = PredictPartySetup(
            options=plan.options,
            trained=side.role,
            parties=plan.parties,
            table=table,
            width=side.width,
            train=_rows_to_tell(side),
        )
        self.peers, limits = predictor.peers, limits_of(config)
        others = [name for name in plan.parties if name != side.name] if self.peers else []
        self.node = NodeWithoutJournal(
            predictor.party(setup), predictor.payloads, side.out / "predict", (SERVER,), limits, side.log, far=others
        )
        self._rows = len(table.places)
        self._shared = side.shared | PHASE

    def update(self) -> None:
        """None: the party no longer trains."""

    def told_before(self) -> None:
        """None: the end of the training does not end predictions."""

    def prepare(self) -> None:
        """Do nothing: `__init__` has read everything."""

    def say_start(self, server: str) -> None:
        """Log the address and the digest, which people compare."""
        self.side.log.info("predicting", server=server, rows=self._rows, digest=shared_digest(self._shared)[:16])

    def hello(self, instance: int, position: Position) -> Hello:
        """The training's HELLO with the phase added."""
        return self.side.hello(self._shared, instance, position)

    def meet(self, run: str) -> None:
        self.side.meet(run)

    def farewell(self, end: End, relay_refused: int | None) -> Bye:
        """An empty BYE."""
        return Bye("", 0.0)

    def closed(self, met: bool) -> None:
        """Close the ledger. The trained state stays."""
        self.side.close_ledger()

    def ended(self, end: End, relay_refused: int | None) -> None:
        """Log the end. The training's summary stays."""
        self.side.log.info("ended")


def _setup_of(side: ServerSide) -> PredictServerSetup[Any, Any]:
    plan, own, means = side.plan, side.config.predict, _means_file(side)
    return PredictServerSetup(
        options=plan.options,
        trained=side.role,
        parties=plan.parties,
        widths=plan.widths,
        task=side.share.task,
        deadline_s=own.deadline_s,
        away=own.away,
        cache_rows=own.cache_rows,
        min_parties=own.min_parties,
        taught=_taught(side),
        told=state.unpack(means.read_bytes()) if means.is_file() else {},
    )


def _taught(side: ServerSide) -> tuple[bool, ...]:
    """For which parties the server may have learned a fallback.

    With party dropout, or if no party lacks rows, all parties; else the parties that lacked training rows.
    """
    absent = side.share.absent
    if side.config.train.party_dropout or absent is None:
        return (True,) * len(side.parties)
    return tuple(bool(absent[0][:, party].any()) for party in range(len(side.parties)))


def _means_file(side: ServerSide) -> Path:
    return side.out / "predict" / "means.safetensors"


def _rows_to_tell(side: PartySide) -> Array | None:
    """The rows whose mean embedding is the party's fallback; None if the party sends no mean."""
    share = side.share
    accounted = side.guard is not None and side.guard.on  # a mean would spend much of a budget
    taught = side.config.train.party_dropout or (share.present is not None and not share.present[0].all())
    return None if taught or accounted else share.train  # taught: the server has learned a fallback


def _files(config: Config) -> list[str]:
    party = config.party
    assert party.data is not None
    if party.predict_data is None:
        return [party.data]
    if party.data.endswith(SHARE):
        advice = "needs party.data to be this party's own table, not a file that `colonnade up` made"
        raise ConfigError("party.predict_data", party.predict_data, advice)
    return [party.data, party.predict_data]


def _token(path: Path) -> str:
    """The token, made at the first start with mode 0600; raises CheckpointError if it is too short."""
    if not path.is_file():
        replace_file(path, [secrets.token_urlsafe(32).encode()], 0o600)
    token = path.read_text(encoding="ascii").strip()
    if len(token) < 16:
        raise CheckpointError(
            f"{path}: this token is too short to be safe; remove the file, and the server makes a new one"
        )
    return token
