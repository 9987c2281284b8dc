"""The server's and a party's part of predictions, made from the state that the training left on the disk.

    OUT/state/                      the trained state; read, never written
    OUT/predict/tokens.json         the server's list of callers, with the hashes of their tokens
    OUT/predict/http                the URL of the HTTP endpoint
    OUT/predict/certificate.pem     the certificate of the endpoint
    OUT/predict/means.safetensors   the mean embeddings that the parties sent, as fallbacks
    OUT/predict/audit.jsonl         a party's record of the questions, without ids

The handshake is the training's (config, certificates, ids) with the phase added. So a server that predicts does not
admit a party that still trains.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from colonnade.algorithms.method import SERVER
from colonnade.algorithms.prediction.messages import MALFORMED, Asked, Computed, Mean, PartyDeclined, Question
from colonnade.algorithms.prediction.predictor import PredictPartySetup, PredictServerSetup
from colonnade.algorithms.remarks import Remark
from colonnade.config.schema import Config
from colonnade.data import party_lookup
from colonnade.data.alignment import normalise_all
from colonnade.deployment.application import Pace, parties_now
from colonnade.deployment.own_side import SHARE, alignment_of, limits_of
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.terms import shared_digest
from colonnade.drivers.checkpoints import Checkpoints
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.certificate_files import pem, read, read_key
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.node_without_journal import NodeWithoutJournal
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.spans import span
from colonnade.drivers.processes.wire import Bye, End, Hello, Position
from colonnade.predict.answering import AnsweringNode
from colonnade.predict.audit import Audit
from colonnade.predict.callers import Callers
from colonnade.predict.connections import Bounds
from colonnade.predict.http import Answers, BadQuestion, Closed, Front, HttpDoor, answers_of, wrong_id
from colonnade.predict.in_one_place import predictor_of
from colonnade.predict.tokens import Tokens
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError, RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.formats import MEANS, stamp
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.quota import DAY_S, MINUTE_S, Bucket

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

    ask: Callable[[list[str], str], Coroutine[Any, Any, Answers]]
    status: Callable[[], dict[str, Any]]
    unready: Callable[[], list[str]]


class ServerPrediction(Keeper):
    """The server after the training: its network, its parties and its HTTP endpoint."""

    aim, admit_late = "predictions", True

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
        self.callers = Callers(own.caller_requests_per_minute, own.caller_rows_per_day, self.node.clock)
        self._declined: Counter[str] = Counter()  # questions that each party has declined
        self._complaints = Once(side.log)

    def attach(self, service: Service) -> None:
        """Keep the service, which knows whether the host can make progress."""
        self._service = service

    def _unready(self) -> list[str]:
        return self._service.unready()

    def opened(self) -> None:
        """Make the folder for the endpoint's files and the parties' means."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def owes(self) -> dict[str, str]:
        """Nothing: the policy decides what to do without parties that are away."""
        return {}

    def emitted(self, record: Payload, node: Node) -> None:
        """Pass an answer to the question that waits for it, or save a party's mean."""
        if isinstance(record, Mean):
            replace_file(
                _means_file(self.side), state.chunks({**stamp(MEANS), "means": dict(self.role.means())}), 0o600
            )
        elif isinstance(record, Computed):
            waiting = self._waiting.pop(record.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(record)
        elif isinstance(record, PartyDeclined):
            self._declined[record.party] += 1
            self._complaints.warning("a party declined a question", party=record.party, why=record.why)
        elif isinstance(record, Remark):
            self._complaints.warning(record.text, party=record.party)

    async def ask(self, ids: list[str], caller: str) -> Answers:
        """Predictions for ids, with the parties that each rests on. A repeated id is asked once.

        Raises BadQuestion or Closed.
        """
        if self.node.ended.is_set():
            raise Closed
        texts = normalise_all(ids, self.side.config.align)
        if texts != ids and (wrong := wrong_id(texts)):  # an id may have grown
            raise BadQuestion(f"the id at place {wrong[0]} (counted from 0), normalised by [align], {wrong[1]}")
        self._number += 1
        here = [peer.name for peer in self.node.peers.values() if peer.stream is not None]
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        began = self.node.clock()
        places: dict[str, int] = {}
        copies = [places.setdefault(text, len(places)) for text in texts]
        with span("prediction", rows=len(ids)):
            self.node.tell(Asked(self._number, list(places), here))
            found = await waiting
        computed = found
        if len(places) < len(copies):
            computed = Computed(found.number, found.values[copies], found.blocks[copies], found.away)
        self.answered += len(ids)
        spent_ms = round((self.node.clock() - began) * 1000 / NANOSECONDS, 1)
        away = ",".join(computed.away) or "none"
        answers = answers_of(ids, computed, self.side.parties, self.side.share.task)
        without = len(ids) - [answer.refused for answer in answers.answers].count(None)
        fields = {"ids": len(ids), "without_answer": without, "away": away, "ms": spent_ms}
        self.side.log.info("answered", caller=caller, **fields)
        return answers

    @asynccontextmanager
    async def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
        """Open the HTTP endpoint. When it closes, waiting questions fail with Closed."""
        config, log = self.side.config, self.side.log
        own, tls = config.predict, _tls(self.side, self._folder / "certificate.pem")
        behind = _BehindTheDoor(self.ask, status, self._unready)
        front = Front(behind, Tokens(self._folder), self.callers, own.max_ids, log)
        door = HttpDoor(front, own.http, _bounds(config), tls)
        try:
            where = door.open()
            replace_file(self._folder / "http", [where.encode()])
            log.info("predicting", address=address, http=where, digest=shared_digest(self.shared)[:16])
            yield
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Closed())
            (self._folder / "http").unlink(missing_ok=True)
            await door.close()

    def measures(self) -> dict[str, Any]:
        """The callers' names and counts: only the metrics name the callers."""
        return {"callers": self.callers.by_name()}

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
            "refused": self.callers.total_refused(),
            "declined": dict(self._declined),
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


class PartyPrediction(Keeper):
    """A party after the training: its network, its rows by id, and its audit of the questions."""

    aim = "predictions"

    def __init__(self, side: PartySide) -> None:
        self.side, config, plan = side, side.config, side.plan
        predictor = predictor_of(plan.method)
        if not Checkpoints(side.out / "state").exist():
            raise ConfigError(
                "--predict", str(side.out), "this folder holds no trained model: first run without --predict"
            )
        side.refuse_others_state()
        side.open_ledger()
        side.read()
        party, own, folder = config.party, config.predict, side.out / "predict"
        table = party_lookup(
            *(side.share, _files(config), party.id, config.align, party.format, party.dialect, _answered(side))
        )
        self._audit = Audit(folder, f"{SERVER} {side.authority[:16]}", round(own.audit_mb * 2**20))
        setup = PredictPartySetup(
            options=plan.options,
            trained=side.role,
            parties=plan.parties,
            table=table,
            width=side.width,
            train=_rows_to_tell(side),
            quota=(
                Bucket(own.answer_rows_per_minute, MINUTE_S),
                Bucket(own.answer_rows_per_day, DAY_S, self._audit.rows_of_a_day),
            ),
        )
        self.peers, limits = predictor.peers, limits_of(config)
        others = [name for name in plan.parties if name != side.name] if self.peers else []
        self.node = AnsweringNode(
            predictor.party(setup), predictor.payloads, folder, (SERVER,), limits, side.log, self, far=others
        )
        self.node.on_refused = self._dropped
        self._complaints = Once(side.log)
        self._rows = sum(row >= 0 for row in table.places.values())
        self._shared = side.shared | PHASE

    def update(self) -> None:
        """None: the party no longer trains."""

    def told_before(self) -> None:
        """None: the end of the training does not end predictions."""

    def prepare(self) -> None:
        """Do nothing: `__init__` has read everything."""

    def emitted(self, record: Payload, node: Node) -> None:
        """Write a question into the audit."""
        if isinstance(record, Question):
            self._audit.note(record)
            if record.why:
                self._complaints.warning("refused ids of a question", why=record.why)

    def _dropped(self, error: RemoteProtocolError) -> None:
        """Note a message that could not be used. How many ids it held is not known."""
        try:
            self._audit.note(Question(0, 0, 0, MALFORMED))
        except OSError as failure:
            self.node.fail(CheckpointError(f"{self.side.out}: the audit cannot be written: {failure}"))
        self._complaints.warning("dropped a message of the server", cause=str(error)[:200])

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
        """Close the ledger and the audit. The trained state stays."""
        self.side.close_ledger()
        self._audit.close()

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
        told=_told(means) if means.is_file() else {},
    )


def _told(path: Path) -> dict[str, Array]:
    try:
        found = state.unpack(path.read_bytes())
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {MEANS.remedy}") from None
    means: dict[str, Array] = MEANS.read(found, path, default=1)["means"]
    return means


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


def _answered(side: PartySide) -> Array | None:
    """The rows of party.data that this party answers for; None: all of them.

    Without an alignment, all rows of that file are the federation's: the handshake has compared their ids. Rows of
    party.predict_data are always answered, since the party names that file for predictions alone.
    """
    found = alignment_of(side.config.party.aligned, side.name, "party")
    return None if found is None or side.config.predict.answer == "all" else found.rows


def _bounds(config: Config) -> Bounds:
    own = config.predict
    return Bounds(
        max_waiting=own.max_waiting,
        max_waiting_per_address=own.max_waiting_per_address,
        max_requests=own.max_requests,
        request_s=own.request_s,
        idle_s=own.idle_s,
        max_body_bytes=int(own.max_body_mb * 2**20),
    )


def _tls(side: ServerSide, shown: Path) -> ssl.SSLContext | None:
    """The endpoint's TLS; None for plain HTTP. New connections use the server's certificate after a renewal."""
    shown.unlink(missing_ok=True)
    if not side.config.predict.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_tls(side, context, shown)
    side.on_renewed.append(lambda: _load_tls(side, context, shown))
    return context


def _load_tls(side: ServerSide, context: ssl.SSLContext, shown: Path) -> None:
    """Load the endpoint's certificate, and write it to `shown`, for `colonnade predict`."""
    own = side.config.predict
    certificate, key = side.identity.certificate_file, side.identity.key_file
    if own.certificate is not None and own.key is not None:
        certificate, key = Path(own.certificate).expanduser(), Path(own.key).expanduser()
        read_key("predict.key", key)
    text = read("predict.certificate", certificate)
    try:
        context.load_cert_chain(certificate, key)
        first = x509.load_pem_x509_certificates(text)[0]  # the endpoint's own; the others belong to its chain
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError("predict.certificate", str(certificate), f"cannot be used with {key}: {error}") from None
    replace_file(shown, [pem(first)])
