"""The predicting roles as processes: made from what the training left on the disk, met over the same streams.

    OUT/state/          what was trained; read, and left as it is
    OUT/predict/token   who may ask the server over HTTP; made at the first start, for its owner's eyes
    OUT/predict/http    where
    OUT/predict/means   what the parties told to stand in for them

The handshake is that of the training (config, certificates, ids) with the phase beside it: who still trains does not
meet who predicts by accident.
"""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import torch

from colonnade.algorithms.method import SERVER
from colonnade.algorithms.prediction.messages import Asked, Computed, Mean
from colonnade.algorithms.prediction.predictor import PredictPartySetup, PredictServerSetup
from colonnade.config.schema import Config
from colonnade.data import party_lookup
from colonnade.data.alignment import normalise
from colonnade.deployment.own_side import SHARE, limits_of, members_of, stop_on_signals
from colonnade.deployment.party_process import PartyProcess
from colonnade.deployment.server_process import ServerProcess, parties_now, run_id
from colonnade.deployment.terms import Terms, shared_digest
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.dial import Dialler
from colonnade.drivers.processes.fleeting import FleetingNode
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import Bye
from colonnade.predict.http import Closed, HttpDoor, answers_of
from colonnade.predict.in_one_place import predictor_of
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Payload
from colonnade.protocol.role import Role

__all__ = ["PredictPartyProcess", "PredictServerProcess"]

PHASE = {"phase": "predict"}


class PredictServerProcess(Keeper):
    """The server after the training: its network, its parties, its door."""

    def __init__(self, training: ServerProcess) -> None:
        config, self._training, self.out = training.config, training, training.out
        self.config, self.log, self._parties = config, training.log, training.plan.parties
        role = _trained_server(training)
        plan, own = training.plan, config.predict
        predictor = predictor_of(plan.method)
        if own.min_parties > len(plan.parties):
            raise ConfigError("predict.min_parties", own.min_parties, f"there are {len(plan.parties)} parties")
        self._task = training.share.task
        self._role = predictor.server(self._setup(role))
        self.node = FleetingNode(
            self._role, predictor.payloads, self.out / "predict", plan.parties, limits_of(config), self.log, self
        )
        self.shared = training.shared | PHASE
        widths = dict(zip(plan.parties, plan.widths, strict=True))
        terms = Terms(self.shared, training.share.rows, training.share.ids_sha256, widths)
        self.service = Service(
            self.node, training.identity, training.pins, terms, self.status, run=run_id(self.out),
            relay=predictor.peers,
        )  # fmt: skip
        self._updates = role.progress.k
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Computed]] = {}
        self.answered = 0

    def _setup(self, role: Role) -> PredictServerSetup[Any, Any]:
        """What the predicting server is made from."""
        plan, own = self._training.plan, self.config.predict
        told = state.unpack(self._means_file.read_bytes()) if self._means_file.is_file() else {}
        return PredictServerSetup(
            plan.options, role, plan.parties, plan.widths, self._task, own.deadline_s, own.away, own.cache_rows,
            own.min_parties, self._taught(), told,
        )  # fmt: skip

    def _taught(self) -> tuple[bool, ...]:
        """Whose fallback the training taught: everybody's with party dropout, else theirs who lacked rows."""
        absent = self._training.share.absent
        if self.config.train.party_dropout or absent is None:
            return (True,) * len(self._parties)
        return tuple(bool(absent[0][:, party].any()) for party in range(len(self._parties)))

    @property
    def _means_file(self) -> Path:
        return self.out / "predict" / "means.safetensors"

    def emitted(self, record: Payload, node: Node) -> None:
        """An answer for whoever waits for it; or a mean, to be kept."""
        if isinstance(record, Mean):
            replace_file(self._means_file, state.chunks(dict(self._role.means())), 0o600)
        elif isinstance(record, Computed):
            waiting = self._waiting.pop(record.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(record)

    async def ask(self, ids: list[str]) -> dict[str, Any]:
        """Predictions for ids, with what each rests on; an id that is among them more than once is asked for once."""
        if self.node.ended.is_set():
            raise Closed
        self._number += 1
        here = [peer.name for peer in self.node.peers.values() if peer.stream is not None]
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        began = self.node.clock()
        places: dict[str, int] = {}
        copies = [places.setdefault(normalise(id, self.config.align), len(places)) for id in ids]
        self.node.tell(Asked(self._number, list(places), here))
        found = await waiting
        computed = Computed(found.number, found.values[copies], found.blocks[copies], found.away)
        self.answered += len(ids)
        spent_ms = round((self.node.clock() - began) * 1000 / NANOSECONDS, 1)
        self.log.info("answered", ids=len(ids), away=",".join(computed.away) or "nobody", ms=spent_ms)
        return answers_of(ids, computed, self._parties, self._task)

    async def run(self) -> str:
        """Answer until stopped."""
        torch.set_num_threads(1)
        (self.out / "predict").mkdir(parents=True, exist_ok=True, mode=0o700)
        stop_on_signals(self.node)
        self.node.open()
        address = await self.service.start(self._training.wanted_address())
        replace_file(self.out / "address", [address.encode()])
        own = self.config.predict
        door = HttpDoor(self, own.http, _token(self.out / "predict" / "token"), own.max_ids, own.max_body_mb)
        watch = asyncio.ensure_future(self.node.watch())
        try:
            where = await door.open()
            replace_file(self.out / "predict" / "http", [where.encode()])
            self.log.info("predicting", address=address, http=where, digest=shared_digest(self.shared)[:16])
            await self.node.ended.wait()
        finally:
            watch.cancel()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Closed())
            (self.out / "predict" / "http").unlink(missing_ok=True)
            await door.close()
            await self.service.hang_up()
            self.node.close()
        if self.node.error is not None:
            raise self.node.error
        self.log.info("ended", answered=self.answered)
        return "stopped"

    def status(self) -> dict[str, Any]:
        """For the live table, and for whoever asks."""
        return {
            "protocol": self._training.plan.method.name,
            "state": "predicting",
            "clock_s": round(self.node.clock() / NANOSECONDS, 1),
            "updates": self._updates,
            "updates_per_s": 0.0,
            "epochs": 0.0,
            "fraction": 1.0,
            "metric": "",
            "value": None,
            "waits_for": [],
            "waited_s": 0.0,
            "digest": shared_digest(self.shared),
            "answered": self.answered,
            "fallback": list(self._role.means()),
            "parties": parties_now(self.node),
        }


class PredictPartyProcess:
    """A party after the training: its network, and all its rows by id."""

    def __init__(self, training: PartyProcess) -> None:
        config, self._training, self.log = training.config, training, training.log
        self.config, self.out = config, training.out
        share = training.share
        plan = training.plan
        predictor = predictor_of(plan.method)
        if not (self.out / "state" / "checkpoint.safetensors").is_file():
            raise ConfigError("--predict", str(self.out), "nothing was trained here: start it without --predict first")
        training.refuse_others_state()
        training.open_ledger()
        training.node.read()
        table = party_lookup(share, _files(config), config.party.id, config.align, config.party.format)
        accounted = training.guard is not None and training.guard.on  # a mean would spend much of a budget
        taught = config.train.party_dropout or (share.present is not None and not share.present[0].all())
        told = None if taught or accounted else share.train  # taught: the server has learned what stands in for it
        role = predictor.party(
            PredictPartySetup(plan.options, training.node.role, plan.parties, table, training.width, told)
        )
        others = [name for name in plan.parties if name != training.name] if predictor.peers else []
        self.node = FleetingNode(
            role, predictor.payloads, self.out / "predict", (SERVER,), limits_of(config), self.log, far=others
        )  # fmt: skip
        self._switchboard = Switchboard(self.node, training.identity, members_of(config)) if predictor.peers else None
        self.rows = len(table.places)
        training.shared = training.shared | PHASE

    async def run(self) -> str:
        """Answer until stopped."""
        torch.set_num_threads(1)
        training = self._training
        stop_on_signals(self.node)
        self.node.open()
        address = self.config.network.address
        dialler = Dialler(
            self.node, training.identity, address, training.hello, lambda _: Bye("", 0.0), training.meet,
            self._switchboard, training.pinned,
        )  # fmt: skip
        tasks = [asyncio.ensure_future(task) for task in (dialler.run(), self.node.watch(), self.node.ended.wait())]
        self.log.info("predicting", server=address, rows=self.rows, digest=shared_digest(training.shared)[:16])
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.node.error is not None:
                raise self.node.error
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.node.close()
            if training.guard is not None:
                training.guard.close()
        self.log.info("ended")
        return "stopped"


def _trained_server(training: ServerProcess) -> Any:
    """The role as the training left it."""
    plan = training.plan
    role: Any = training.node.role
    reader = Node(
        role, plan.method.payloads, training.out / "state", plan.parties, limits_of(training.config), training.log
    )
    if not reader.read() or reader.finished == "":
        raise ConfigError(
            "--predict", str(training.out), "training has not ended here: start it without --predict first"
        )
    return role


def _files(config: Config) -> list[str]:
    party = config.party
    assert party.data is not None
    if party.predict_data is None:
        return [party.data]
    if party.data.endswith(SHARE):
        advice = "needs party.data to be this party's own file, not a share that was made of a table of all"
        raise ConfigError("party.predict_data", party.predict_data, advice)
    return [party.data, party.predict_data]


def _token(path: Path) -> str:
    """Made at the first start; nobody but its owner reads it."""
    if not path.is_file():
        replace_file(path, [secrets.token_urlsafe(32).encode()], 0o600)
    token = path.read_text(encoding="ascii").strip()
    if len(token) < 16:
        raise CheckpointError(f"{path}: too short to keep anybody out; remove it, and a new one is made")
    return token
