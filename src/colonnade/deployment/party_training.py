"""A party's part of a training."""

import json
import shutil
from pathlib import Path

from colonnade.config.schema import Config
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_summary import bye_of, news_of, write_summary
from colonnade.deployment.terms import CONTINUES, shared_digest
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper
from colonnade.drivers.processes.wire import Bye, End, Hello, News, Position
from colonnade.protocol.role import Following
from colonnade.results.trained import CONTINUED

__all__ = ["PartyTraining", "training_party"]


def training_party(config: Config, name: str, out: Path, log: Log) -> PartyHost["PartyTraining"]:
    """The party of a training that starts, or continues, in this folder."""
    return PartyHost(PartyTraining(PartySide(config, name, out, log)))


class PartyTraining(Keeper):
    """Starts, or continues from the state of an earlier start if that state fits the config."""

    aim = "training"

    def __init__(self, side: PartySide) -> None:
        self.side = side
        self.node = side.make_node(self)
        self.peers = side.plan.method.capabilities.peers
        self._followed = side.role if isinstance(side.role, Following) else None
        self.node.news = self._news

    def update(self) -> int | None:
        return None if self._followed is None else self._followed.k

    def told_before(self) -> End | None:
        """The end that this process received before a restart: the server may be gone by now."""
        path = self.side.out / "summary.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"status": "stopped"}
        over = found["status"] in ("finished", "diverged")  # a stalled server may be started again
        return End(found["status"], found["note"]) if over else None

    def prepare(self) -> None:
        """Check the state and open the ledger of an earlier start."""
        self.side.refuse_others_state()
        self.side.open_ledger()
        if self.node.guard is not None:
            self.node.guard.summary()  # loads the accountant, which would keep a connected party silent for seconds

    def say_start(self, server: str) -> None:
        """Log the address and the digest, which people compare."""
        self.side.log.info("dialling", server=server, digest=shared_digest(self.side.shared)[:16])

    def _news(self) -> News:
        return news_of(self.node, self.side.config.budget_of(self.node.role.name))

    def hello(self, instance: int, position: Position) -> Hello:
        before = self.side.before
        shared = self.side.shared if before is None else self.side.shared | {CONTINUES: before.run}
        return self.side.hello(shared, instance, position)

    def meet(self, run: str) -> None:
        self.side.meet(run)

    def farewell(self, end: End, relay_refused: int | None) -> Bye:
        """Write the summary before the server gets the BYE and ends."""
        self._write(end, relay_refused)
        return bye_of(self.node)

    def closed(self, met: bool) -> None:
        """Remove the state if the server was never met, so that a refused party can try again with another config."""
        self.side.close_ledger()
        if not met:
            shutil.rmtree(self.side.out / "state")
            if self.side.continues is not None:  # given for this start; `up` gives it once and for all
                (self.side.out / CONTINUED).unlink(missing_ok=True)

    def ended(self, end: End, relay_refused: int | None) -> None:
        self._write(end, relay_refused)
        self.side.log.info("ended", status=end.status)

    def _write(self, end: End, relay_refused: int | None) -> None:
        if end.status == "finished":
            self.side.write_model()
        write_summary(self.side.out, end, self.node, relay_refused, self.side.before)
