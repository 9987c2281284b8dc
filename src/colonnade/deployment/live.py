"""live.json of a server that trains, and what it answers to `colonnade watch`."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from colonnade.algorithms.method import SERVER
from colonnade.drivers.processes.timeline import picture
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.strict_json import to_json
from colonnade.results.live import Events, LiveFile, coarser, events_in, read_live
from colonnade.results.summary import live_summary, staleness_histogram, traffic_fields

if TYPE_CHECKING:
    from colonnade.deployment.server_training import ServerTraining

__all__ = ["ServerLive"]

LOOK_S = 0.25
MOST_ROWS, MOST_BYTES = 1000, 256 * 2**10  # of metrics.jsonl in one answer


class ServerLive:
    """Keeps live.json while the server of a training runs."""

    def __init__(self, training: "ServerTraining", driver: str) -> None:
        self._training, self._driver = training, driver
        folder, node = training.folder.path, training.node
        self._file = LiveFile(folder)
        self._events = Events(lambda: node.clock() / NANOSECONDS, events_in(read_live(folder)))
        self._status: Callable[[], dict[str, Any]] = dict
        training.side.log.tap = self._events.from_log

    async def keep(self, status: Callable[[], dict[str, Any]]) -> None:
        """Write the file whenever it is time, until cancelled."""
        self._status = status
        while True:
            for peer in self._training.node.peers.values():
                if peer.met and peer.stream is None:
                    self._events.gone(peer.name)  # the log may leave out a party's line: it limits them
            if self._file.due:
                self._file.write(self._content)
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """Write the last state."""
        node = self._training.node
        state = "finished" if node.finished else "failed" if node.error is not None else "stopped"
        self._events.add("run", node.finished or state)
        content = self._content()
        self._file.write(lambda: {**content, "status": {**content["status"], "state": state}})

    def answer(self, since: int) -> dict[str, Any]:
        """What `colonnade watch` shows: the newest content of the file, and the lines of metrics.jsonl from `since` on.

        An answer has a bounded number of lines; the asker asks again for the rest.
        """
        rows, size = self._training.rows, 0
        found: list[dict[str, Any]] = []
        for row in rows[since : since + MOST_ROWS]:
            size += len(to_json(row, warn=False))
            if found and size > MOST_BYTES:
                break
            found.append(row)
        return {"live": {**self._file.content, "rows": found, "rows_from": since, "rows_in_all": len(rows)}}

    def _content(self) -> dict[str, Any]:
        training, node = self._training, self._training.node
        principal, now = training.role.summary(), node.clock()
        here, news = training.service.attendance.shares(now), training.service.news
        told = {name: one.lane for name, one in news.items()}
        roles = (SERVER, *node.peers)
        return {
            "status": self._status(),
            "summary": live_summary(
                training.side.plan,
                principal,
                driver=self._driver,
                clock_s=now / NANOSECONDS,
                wall_s=now / NANOSECONDS,
                traffic=traffic_fields(node.traffic),
                utilisation={SERVER: node.utilisation()} | {name: one.utilisation for name, one in news.items()},
            ),
            "timeline": coarser(picture(roles, node.jobs.lane.shares(now), here, told, now, ended=False)),
            "staleness": staleness_histogram(principal.get("staleness_counts")),
            "privacy": {
                name: {"epsilon": one.privacy.epsilon, "delta": one.privacy.delta, "budget": one.budget}
                for name, one in news.items()
                if one.privacy is not None
            },
            "events": self._events.all(),
        }
