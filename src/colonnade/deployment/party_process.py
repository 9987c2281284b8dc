"""A party of a federation in this process: it reads only its own columns, makes its role and runs it as a node."""

import asyncio
import json
import shutil
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from colonnade import __version__
from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import Plan, find_optimiser, make_plan, parties_of, refuse_fitted, scale_of
from colonnade.config.schema import Config, difference
from colonnade.data import (
    PartyShare,
    load_party_share,
    read_party_share,
)
from colonnade.deployment.own_side import (
    SHARE,
    alignment_of,
    limits_of,
    load_identity,
    members_of,
    refuse_joint,
    stop_on_signals,
)
from colonnade.deployment.terms import DTYPE, shared_digest, shared_part
from colonnade.drivers.files import replace_file
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.drivers.processes.conversation import NEVER_MET
from colonnade.drivers.processes.dial import Dialler
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import PROTOCOL, Bye, End, Hello, Position
from colonnade.privacy.accountant import Spent
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.ports import Releases
from colonnade.results.summary import (
    traffic_fields,
)

__all__ = ["PartyProcess"]

MOST_DIGESTED = 100_000  # rows: of more only blocks are
DIGESTED_BLOCKS, DIGESTED_ROWS = 64, 64


class PartyProcess:
    """A party: its columns, its role, its state."""

    def __init__(self, config: Config, name: str, out: Path, log: Log) -> None:
        self.config, self.name, self.out, self.log = config, name, out, log
        parties = parties_of(config)
        if name not in parties:
            raise ConfigError("--party", name, f"network.parties has {', '.join(parties)}")
        self.identity, pins = load_identity(config), members_of(config)
        self.pinned = pins[SERVER]
        if self.identity.name != name:
            raise ConfigError(
                "network.certificate", config.network.certificate, f"is {self.identity.name}'s, not {name}'s"
            )
        self.share = _party_share(config, name)
        task = None if self.share.labels is None else self.share.labels[0]
        plan = _with_own_settings(make_plan(config, parties, len(self.share.train), task), config, name)
        refuse_joint(plan)
        if self.share.present is not None:
            plan.refuse_lacking()
        assert plan.method.party is not None
        self.plan = plan
        index = parties.index(name)
        share = self.share
        role = plan.method.party(plan.party(index, share.train, share.test, share.shape, share.labels))
        for note in plan.privacy.notes(len(share.train)):
            log.warning(note)
        self.shared = shared_part(config, pins)
        self.width = plan.widths[index]
        others = [other for other in parties if other != name] if plan.method.capabilities.peers else []
        self.node = Node(role, plan.method.payloads, out / "state", (SERVER,), limits_of(config), log, far=others)
        self._switchboard = Switchboard(self.node, self.identity, pins) if plan.method.capabilities.peers else None

    async def run(self) -> End:
        """Take part until the server says that it is over."""
        if (over := self._told_before()) is not None:
            self.log.info("this run is over; for a new one choose another --out", folder=self.out, status=over.status)
            return over
        torch.set_num_threads(1)
        stop_on_signals(self.node)
        self.refuse_others_state()
        self.open_ledger()
        self.node.open()
        if self.node.replayed or self.node.now:
            self.log.info("going on", update=getattr(self.node.role, "k", None), replayed=self.node.replayed)
        dialler = Dialler(
            self.node,
            self.identity,
            self.server_address,
            self.hello,
            self._farewell,
            self.meet,
            self._switchboard,
            self.pinned,
        )
        talk = asyncio.ensure_future(dialler.run())
        tasks = [talk, *(asyncio.ensure_future(task) for task in (self.node.watch(), _wait(self.node.ended)))]
        self.log.info("dialling", server=self.server_address(), digest=shared_digest(self.shared)[:16])
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.node.error is not None:
                raise self.node.error
            end = talk.result() if talk.done() else dialler.end or End("stopped")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.node.close()
            if self.guard is not None:
                self.guard.close()
            if self.node.peers[SERVER].conversation.number == NEVER_MET:
                shutil.rmtree(self.out / "state")  # refused, say: the next try, with another config, begins afresh
        self._write(end)
        self.log.info("ended", status=end.status)
        return end

    def server_address(self) -> str:
        """Asked at every try: where Ray runs the server, it may come back elsewhere."""
        return self.config.network.address

    @property
    def guard(self) -> Releases | None:
        """Of a role that perturbs what it uploads; one that aligns has none."""
        return self.node.guard

    def open_ledger(self) -> None:
        """What was spent before counts."""
        if self.guard is not None and not self.guard.is_kept:
            self.guard.keep(LedgerFile(self.out / "ledger.jsonl", threading.Lock()))

    def hello(self, instance: int, position: Position) -> Hello:
        share = self.share
        return Hello(
            PROTOCOL, __version__, self.shared, share.rows, share.ids_sha256, self.width, DTYPE, instance, position
        )

    def refuse_others_state(self) -> None:
        """A state fits only what it was made with."""
        share, party = self.share, self.config.party
        made_with = {
            "shared": self.shared,
            "rows": share.rows,
            "ids": share.ids_sha256,
            "columns": share.train.shape[1],
            "features": features_digest(share),
            "optimiser": party.optimiser,
        }
        made_with, path = json.loads(json.dumps(made_with)), self.out / "state" / "made_with.json"
        differs = difference(json.loads(path.read_text(encoding="utf-8")), made_with) if path.is_file() else None
        if differs:
            advice = f"was begun with something else ({differs}); choose another --out, or remove it"
            raise ConfigError("--out", str(self.out), advice)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, [json.dumps(made_with).encode()], 0o600)

    def meet(self, run: str) -> None:
        """What was learnt with one server does not belong into another one's model."""
        path = self.out / "state" / "run_id"
        before = path.read_text(encoding="ascii") if path.is_file() else run
        if before != run:
            advice = (
                "holds another run of this federation: choose another --out, or remove it, or bring that server back"
            )
            raise ConfigError("--out", str(self.out), advice)
        if not path.is_file():
            replace_file(path, [run.encode()], 0o600)

    def _told_before(self) -> End | None:
        """The end that an earlier start of this process heard of: the server may be gone since."""
        path = self.out / "summary.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"status": "stopped"}
        over = found["status"] in ("finished", "diverged")  # a stalled server may be started again
        return End(found["status"], found["note"]) if over else None

    def _farewell(self, end: End) -> Bye:
        self._write(end)  # before the server hears of it and goes
        said = self.node.role.summary()
        # A digest of θ_m, which nobody perturbed, would let the server check any guess about the data.
        spent = said.get("privacy")
        told = Spent(**spent) if spent else None
        return Bye("" if spent else said["weights"], self.node.utilisation(), told, self.node.jobs.lane.bins())

    def _write(self, end: End) -> None:
        node = self.node
        summary = {
            "party": self.name,
            "status": end.status,
            "note": end.note,
            "clock_s": node.now / NANOSECONDS,
            **traffic_fields(node.traffic),
            "messages_given_up": sum(peer.conversation.lost for peer in node.peers.values()),
            **({"relay_refused": self._switchboard.refusals} if self._switchboard is not None else {}),
            "utilisation": node.utilisation(),
            **{key: value for key, value in node.role.summary().items() if isinstance(value, int | float | str)},
            "privacy": node.role.summary().get("privacy"),
        }
        replace_file(self.out / "summary.json", [json.dumps(summary, indent=2).encode() + b"\n"])


def _with_own_settings(plan: Plan, config: Config, name: str) -> Plan:
    """A party's optimiser and rate are its own business."""
    index, training = plan.parties.index(name), plan.training
    optimisers, rates = list(training.party_optimisers), list(training.party_rates)
    if config.party.optimiser is not None:
        optimisers[index] = find_optimiser("party.optimiser", config.party.optimiser)
    if config.party.learning_rate is not None:
        if not 0 <= config.party.learning_rate < float("inf"):
            raise ConfigError("party.learning_rate", config.party.learning_rate, "must be 0 or more")
        rates[index] = config.party.learning_rate
    training = replace(training, party_optimisers=tuple(optimisers), party_rates=tuple(rates))
    return replace(plan, training=training)


def _party_share(config: Config, name: str) -> PartyShare:
    party, data = config.party, config.data
    if party.data is None:
        raise ConfigError("party.data", None, "name the file with this party's columns")
    if party.data.endswith(SHARE):
        return load_party_share(Path(party.data))
    scale = scale_of(config) if party.scale is None else party.scale
    refuse_fitted(config, scale != "none", "party.scale", scale)  # left out: "standard"
    return read_party_share(
        Path(party.data),
        name=name,
        id=party.id,
        label=party.label,
        categorical=tuple(party.categorical),
        columns=party.columns,
        scale=scale,
        missing=party.missing,
        test_fraction=data.test_fraction,
        split_seed=data.split_seed,
        aligned=alignment_of(party.aligned, name, "party"),
        format=party.format,
    )


def features_digest(share: PartyShare) -> str:
    """What was trained on: other numbers under the same ids are another table.

    Of many rows only some blocks are looked at, from the first to the last: a table with other numbers in other places
    alone is not told apart.
    """
    digest = sha256()
    for part in (share.train, share.test):
        if len(part) <= MOST_DIGESTED:
            digest.update(np.ascontiguousarray(part).data)
            continue
        digest.update(repr(part.shape).encode())
        for start in np.linspace(0, len(part) - DIGESTED_ROWS, DIGESTED_BLOCKS).astype(int).tolist():
            digest.update(np.ascontiguousarray(part[start : start + DIGESTED_ROWS]).data)
    return digest.hexdigest()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
