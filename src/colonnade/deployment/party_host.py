"""A party of a federation in this process: it connects, talks and closes, for any application."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from colonnade.deployment.application import PartyApplication
from colonnade.deployment.membership import Membership
from colonnade.deployment.own_side import stop_on_signals
from colonnade.deployment.vitals import Vitals
from colonnade.drivers.processes.conversation import NEVER_MET
from colonnade.drivers.processes.dial import Dialler
from colonnade.drivers.processes.identity import certificate_days
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import Bye, End
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.role import SERVER

__all__ = ["PartyHost"]

A_co = TypeVar("A_co", bound=PartyApplication, covariant=True)


class PartyHost(Generic[A_co]):
    """Runs an application as a party."""

    def __init__(self, application: A_co, server_at: Callable[[], str] | None = None) -> None:
        self.application = application
        side = application.side
        self.config, self.out, self.log = side.config, side.out, side.log
        self.node = application.node
        self._server_at = server_at or self._usual_address  # called at every try: the server may move
        self.vitals = Vitals(side, self.node, application.aim, self._unready)
        self._switchboard = Switchboard(self.node, side.identity, side.pins) if application.peers else None

    async def run(self) -> End:
        """Take part until the server sends END."""
        application, node = self.application, self.node
        if (over := application.told_before()) is not None:
            self.log.info("this run has ended; for a new run choose another --out", folder=self.out, status=over.status)
            return over
        torch.set_num_threads(1)
        stop_on_signals(node)
        with self.vitals.running(self._measures):
            return await self._run()

    async def _run(self) -> End:
        application, node = self.application, self.node
        application.prepare()
        self.vitals.refresh()
        node.open()
        if node.replayed or node.now:
            self.log.info("continuing", update=application.update(), replayed=node.replayed)
        dialler = self._dialler()
        talk = asyncio.ensure_future(dialler.run())
        membership = Membership(application.side, lambda: self._changed(dialler))
        watches = (node.watch(), membership.watch(), _wait(node.ended))
        tasks = [talk, *(asyncio.ensure_future(task) for task in watches)]
        health = asyncio.ensure_future(self.vitals.watch())
        application.say_start(self._server_at())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if node.error is not None:
                raise node.error
            end = talk.result() if talk.done() else dialler.end or End("stopped")
        finally:
            for task in (*tasks, health):
                task.cancel()
            await asyncio.gather(*tasks, health, return_exceptions=True)
            node.close()
            application.closed(met=node.peers[SERVER].conversation.number != NEVER_MET)
        application.ended(end, self._relay_refused)
        return end

    def _dialler(self) -> Dialler:
        side, application = self.application.side, self.application
        return Dialler(
            self.node,
            side.identity,
            self._server_at,
            application.hello,
            self._farewell,
            application.meet,
            self._switchboard,
            side.pins.all_of(SERVER),
        )

    def _changed(self, dialler: Dialler) -> None:
        """Use the side's new certificate and list of members."""
        side = self.application.side
        if self._switchboard is not None:
            self._switchboard.changed(side.identity, side.pins)
        dialler.changed(side.identity, side.pins.all_of(SERVER))

    def _farewell(self, end: End) -> Bye:
        return self.application.farewell(end, self._relay_refused)

    @property
    def _relay_refused(self) -> int | None:
        return self._switchboard.refusals if self._switchboard is not None else None

    def _unready(self) -> list[str]:
        return [] if self.node.peers[SERVER].stream is not None else ["not connected to the server"]

    def _measures(self) -> dict[str, Any]:
        """The numbers for Prometheus."""
        node, guard = self.node, self.node.guard
        return {
            "updates": self.application.update(),
            "clock_s": round(node.clock() / NANOSECONDS, 1),
            "connected": node.peers[SERVER].stream is not None,
            "damaged_files": node.damaged_files,
            "certificate_days": certificate_days(self.application.side.identity),
            "refused_by_limit": dict(node.refused),
            "queued_bytes": {peer.name: peer.conversation.waiting_bytes for peer in node.peers.values()},
            "epsilon": guard.epsilon if guard is not None else None,
            "epsilon_budget": guard.epsilon_budget if guard is not None else None,
        }

    def _usual_address(self) -> str:
        return self.config.network.address


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
