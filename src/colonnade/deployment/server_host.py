"""The server of a federation in this process: it listens, watches and closes, for any application."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

import torch

from colonnade.deployment.application import Pace, ServerApplication, Stalled
from colonnade.deployment.debts import Debts, in_words
from colonnade.deployment.membership import Membership
from colonnade.deployment.own_side import stop_on_signals
from colonnade.deployment.terms import shared_digest
from colonnade.deployment.vitals import Vitals
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.identity import days_left
from colonnade.drivers.processes.service import Service
from colonnade.protocol.events import NANOSECONDS

__all__ = ["SAY_WAITING_AFTER_S", "ServerHost"]

LOOK_S = 0.5
SAY_WAITING_AFTER_S = 5.0

A_co = TypeVar("A_co", bound=ServerApplication, covariant=True)


class ServerHost(Generic[A_co]):
    """Runs an application as the server."""

    def __init__(self, application: A_co, listen_at: Callable[[], str] | None = None) -> None:
        self.application = application
        side = application.side
        self.config, self.out, self.log = side.config, side.out, side.log
        self.node = application.node
        self.service = Service(
            self.node,
            side.identity,
            side.pins,
            application.terms,
            self.status,
            admit_late=application.admit_late,
            run=application.run_id,
            relay=application.relay,
        )
        application.attach(self.service)
        self.membership = Membership(side, self._members_changed, self._days_of_parties)
        self._serving = False
        self.vitals = Vitals(side, self.node, application.aim, self._unready)
        self.service.unready, self.service.health_changed = lambda: self.vitals.causes, self.vitals.changed
        self._listen_at = listen_at or self._usual_address
        self.address = self.config.network.address
        self._debts = Debts()
        self._looked_at = self._moved_at = time.monotonic()
        self._waiting_said = 0.0
        self._update = 0
        self._per_s = 0.0

    # The life of the process

    async def run(self) -> Mapping[str, Any]:
        """Serve until the end of the run; returns the summary."""
        torch.set_num_threads(1)
        stop_on_signals(self.node)
        with self.vitals.running(self._measures):
            return await self._run()

    async def _run(self) -> Mapping[str, Any]:
        self.vitals.refresh()
        try:
            await self._serve()
            end = self.application.ended()
        except (Exception, asyncio.CancelledError):  # the parties come back when this server does
            await self.service.hang_up()
            self.node.close()
            raise
        if end.status != "stopped":
            await self.service.stop(end)
        else:
            await self.service.hang_up()
        summary = self.application.summary(end)
        self.node.close()
        if end.status != "stopped":
            self.application.write(summary)
        self.application.say_end(summary)
        return summary

    async def _serve(self) -> None:
        """Serve until the node ends."""
        self.node.open()
        self.application.opened()
        self.address = await self.service.start(self._listen_at())
        replace_file(self.out / "address", [self.address.encode()])
        async with self.application.serving(self.address, self.status):
            self._serving = True
            tasks = [asyncio.ensure_future(task) for task in self._watches()]
            try:
                await self.node.ended.wait()
            finally:
                self._serving = False
                self.vitals.over()
                for task in tasks:
                    task.cancel()

    def _watches(self) -> tuple[Coroutine[Any, Any, None], ...]:
        return self.node.watch(), self._watch_progress(), self.membership.watch(), self.vitals.watch()

    def _usual_address(self) -> str:
        """Keep the port that the system chose at the first start, because the parties know it."""
        address, path = self.config.network.address, self.out / "address"
        before = path.read_text() if address.endswith(":0") and path.is_file() else ""
        here = before.startswith(address[:-1])  # not on another machine, such as a node of Ray
        return before if here else address

    def _members_changed(self) -> None:
        self.service.changed(self.application.side.identity, self.application.side.pins)

    def _days_of_parties(self) -> dict[str, int]:
        shown = self.service.shown
        return {name: days_left(shown[name]) for name in self.node.peers if name in shown}

    # Waiting

    async def _watch_progress(self) -> None:
        """Log which parties the run waits for and how long, and give up those that owe something for `give_up_s`."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._collect_debts()
            update = self.application.update() or 0
            waited = self._pace().waited_s
            if update != self._update:
                self._per_s = (update - self._update) / waited if waited > 0 else 0.0
                self._update, self._moved_at, self._waiting_said = update, time.monotonic(), 0.0
            else:
                self._say_waiting(waited)

    def _collect_debts(self) -> None:
        """Count parties as lost that have owed the same for `give_up_s`. If the run needs them, fail with Stalled."""
        now, node = time.monotonic(), self.node
        if node.ended.is_set():
            return
        passed_s, self._looked_at = (0.0 if node.jobs.pending else now - self._looked_at), now
        owes = self.application.owes()
        self._debts.note(owes, {name for name in owes if node.peers[name].stream is not None}, passed_s)
        given_up = {name: node.peers[name].standing.given_up for name in owes}
        if owes and all(given_up.values()):
            node.fail(Stalled("; ".join(f"cannot continue without {name}: {why}" for name, why in given_up.items())))
        overdue = self._debts.overdue(self.config.network.give_up_s)
        for name, debt in overdue.items():
            if node.peers[name].present:
                node.overdue(node.peers[name], debt.what, debt.owed_s)
        still = self.application.owes() if overdue else {}
        stuck = {name: debt for name, debt in overdue.items() if still.get(name) == debt.what}
        if stuck:
            owed_s, what = max(debt.owed_s for debt in stuck.values()), in_words(debt.what for debt in stuck.values())
            node.fail(Stalled(f"waited {owed_s:.0f} s for {', '.join(stuck)}: {what} (network.give_up_s)"))

    def _say_waiting(self, waited: float) -> None:
        owes = self.application.owes()
        if waited >= max(SAY_WAITING_AFTER_S, 2 * self._waiting_said) and owes:
            self._waiting_said = waited
            absent = ",".join(name for name in owes if self.node.peers[name].stream is None) or "none"
            fields = {"on": ",".join(owes), "absent": absent, "owes": in_words(owes.values()), "s": round(waited)}
            why = self.node.role.summary().get("note")
            self.log.warning("waiting", **fields, **({"why": why} if why else {}))

    def _pace(self) -> Pace:
        return Pace(self._per_s, time.monotonic() - self._moved_at)

    # For people

    def status(self) -> dict[str, Any]:
        """The live table as data."""
        pace = self._pace()
        told = {
            "clock_s": round(self.node.clock() / NANOSECONDS, 1),
            "updates_per_s": round(pace.per_s, 2),
            "waits_for": list(self.application.owes()),
            "waited_s": round(pace.waited_s, 1),
            "refused_by_limit": dict(self.node.refused),
            "damaged_files": self.node.damaged_files,
            "certificate_days": self.membership.days(),
            "digest": shared_digest(self.application.shared),
            **self.application.status(pace),
        }
        for party in told["parties"]:
            debt = self._debts.of(party["name"])
            party |= {"owes": debt and debt.what, "owed_s": debt and round(debt.owed_s, 1)}
        return told

    def _measures(self) -> dict[str, Any]:
        """The numbers for Prometheus."""
        told = self.status()
        for party in told["parties"]:
            bye = self.service.byes.get(party["name"])
            party["epsilon"] = bye.privacy.epsilon if bye is not None and bye.privacy is not None else None
        return told | self.application.measures()

    def _unready(self) -> list[str]:
        return [] if self._serving else ["not serving"]
