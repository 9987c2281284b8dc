"""A whole federation on Ray: every role is an actor, with the streams, folders and recovery of the processes.

If a role is lost, alone or with its node, Ray makes it again where there is room. The role then loads its checkpoint
and replays its journal, like any process that was killed. So the folder must be on storage that all nodes share. A
server that restarts on another node writes its new address there. The parties read it whenever they connect.
"""

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from colonnade.algorithms.method import SERVER
from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.deployment.up import FederationUp
from colonnade.drivers.files import CUT_OFF_S, lock_file
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.ray.nodes import free, in_words, refuse_lacking, refuse_unshared
from colonnade.protocol.errors import CheckpointError, ColonnadeError, ConfigError

__all__ = ["FederationOnRay"]

RESTARTS = 20  # of one actor by Ray; after that it has failed
LOOK_S = 1.0  # between two checks whether a role, or Ray's head, is up
ANSWER_S = 5.0  # of the head
SAY_AFTER_S = 10.0  # of a role that is not up


def own_node_address() -> str:
    """This node's address with a new port: on this node the old port may belong to another process."""
    return f"{ray.util.get_node_ip_address()}:0"


class ServerFile:
    """Finds the server by the file with its address."""

    def __init__(self, path: Path, otherwise: str) -> None:
        self._path, self._known = path, otherwise

    def __call__(self) -> str:
        """The current address, or the last one that could be read."""
        with suppress(OSError):
            self._known = self._path.read_text() or self._known
        return self._known


class RoleActor:
    """One role in a worker of Ray. Ray makes it again when it is lost."""

    def __init__(self, nodes: str, name: str, home: str) -> None:
        self._folder, self._name = Path(nodes) / name, name
        self._process: ServerHost[ServerTraining] | PartyHost[PartyTraining] | None = None
        self._running: asyncio.Task[str] | None = None
        self._stopped = False
        if Path(home).is_dir():
            os.chdir(home)
            sys.path.append("")  # `package.module:Class` may be there
        file = os.open(self._folder / "log.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for stream in (1, 2):
            os.dup2(file, stream)  # as of a separate process
        os.close(file)
        self._log = Log(name, as_json=True, stream=sys.stderr)
        node = ray.get_runtime_context().get_node_id()
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")  # as set by Ray
        self._log.info("actor", host=ray.util.get_node_ip_address(), node=node, pid=os.getpid(), gpus=gpus)

    async def here(self) -> tuple[str, int]:
        """The node and the process in which it runs."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    async def stop(self) -> None:
        """Stop cleanly, with the state saved."""
        self._stopped = True
        if self._process is not None:
            self._process.node.stop()

    async def run(self) -> str:
        """Run until training ends; returns the status. If Ray repeats the call, the role still runs once."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        return await asyncio.shield(self._running)

    async def _run(self) -> str:
        try:
            self._process = await asyncio.to_thread(self._make)  # `here` can answer meanwhile
            if self._stopped:
                self._process.node.stop()
            ended: Any = await self._process.run()
        except Exception as error:
            self._log.error("failed", cause=_words(error))
            raise
        return str(ended["status"] if isinstance(ended, dict) else ended.status)

    def _make(self) -> ServerHost[ServerTraining] | PartyHost[PartyTraining]:
        self._wait_for_the_one_before(self._folder / "run" / "state" / "lock")
        config, out = from_dict(read_toml(self._folder / "config.toml")), self._folder / "run"
        process: ServerHost[ServerTraining] | PartyHost[PartyTraining]
        if self._name == SERVER:
            process = ServerHost(ServerTraining(ServerSide(config, out, self._log), driver="ray"), own_node_address)
        else:
            server_at = ServerFile(self._folder.parent / SERVER / "run" / "address", config.network.address)
            process = PartyHost(PartyTraining(PartySide(config, self._name, out, self._log)), server_at)
        for note in process.application.side.share.notes:
            self._log.info("note", about=note)
        return process

    def _wait_for_the_one_before(self, lock: Path) -> None:
        """Wait until the role's earlier worker has ended.

        A node that was cut off, and that Ray reports as lost, notices it only after minutes. Until then its role runs.
        """
        if not lock.is_file():
            return
        try:
            os.close(lock_file(lock))
        except CheckpointError:
            self._log.warning("waiting for the previous worker of this role to end")
            os.close(lock_file(lock, CUT_OFF_S))


ROLE: Any = ray.remote(RoleActor)


class ActorChild:
    """One role's actor as the driver's process sees it. It has the interface of `Child`."""

    hopeless = True  # Ray has already restarted it often enough

    def __init__(self, name: str, nodes: Path, amounts: dict[str, float]) -> None:
        self.name, self.log, self._nodes, self.amounts = name, nodes / name / "log.jsonl", nodes, amounts
        self._actor: Any = None
        self._end: Any = None
        self._asked: Any = None  # the pending call that asks where it is
        self._asked_at = self._up_at = 0.0
        self._place: tuple[str, int] | None = None
        self._error: Exception | None = None
        self._status = ""

    async def start(self) -> None:
        """Ask Ray to create the actor."""
        custom = {name: amount for name, amount in self.amounts.items() if name not in ("CPU", "GPU")}
        role = ROLE.options(
            num_cpus=self.amounts["CPU"],
            num_gpus=self.amounts["GPU"],
            resources=custom,
            max_restarts=RESTARTS,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )
        self._actor = role.remote(str(self._nodes), self.name, str(Path.cwd()))
        self._end = self._actor.run.remote()
        self._up_at = time.monotonic()
        self._ask()

    def _ask(self) -> None:
        self._asked, self._asked_at = self._actor.here.remote(), time.monotonic()

    @property
    def code(self) -> int | None:
        """Like a process: 0 or 1 if it ended by itself, 2 if it failed, None while it runs or Ray restarts it."""
        if self._error is None and not self._status and self._end is not None and _is_there(self._end):
            try:
                self._status = ray.get(self._end)
            except Exception as error:
                self._error = error
        if self._error is not None:
            return 2
        return None if not self._status else int(self._status not in ("finished", "stopped"))

    def last_words(self) -> str:
        """Why it failed."""
        assert self._error is not None
        return _words(self._error)

    def look(self) -> str | None:
        """Ask from time to time where the actor is; returns a message if it was restarted."""
        if self._actor is None or self.code is not None:
            return None
        if not _is_there(self._asked):
            return None
        before, now = self._place, time.monotonic()
        try:
            place: tuple[str, int] = ray.get(self._asked)
        except RayError:
            return None  # `code` will report it
        self._place, self._up_at = place, now
        if now - self._asked_at >= LOOK_S:
            self._ask()
        return f"{self.name} was lost, and continues at node {place[0][:8]}" if before not in (None, place) else None

    @property
    def silent_s(self) -> float:
        """Seconds in which it has not been up."""
        running = self._actor is not None and self.code is None
        return time.monotonic() - self._up_at if running else 0.0

    def stop(self) -> None:
        """Ask it to stop cleanly. An actor that is not placed yet is killed."""
        if self._actor is None:
            return
        if self._place is None:
            self._kill()
        elif self.code is None:
            self._actor.stop.remote()

    async def gone(self, timeout_s: float) -> None:
        """Wait until it has ended, and free its resources."""
        if self._actor is None:
            return
        end = time.monotonic() + timeout_s
        while self.code is None and time.monotonic() < end:
            await asyncio.sleep(0.05)
        self._kill()

    def _kill(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


class FederationOnRay(FederationUp):
    """Runs the roles as actors of the Ray to which this process is connected."""

    children: dict[str, ActorChild]

    @staticmethod
    def refuse(config: Config, parties: tuple[str, ...]) -> None:
        """Raise ConfigError for what the cluster can never run."""
        unknown = [name for name in config.resources.parties if name not in parties]
        if unknown:
            raise ConfigError("resources.parties", unknown[0], f"there is no such party; known: {', '.join(parties)}")
        if config.predict.stay:
            advice = "does not work with --driver ray: train first, then run `colonnade up --resume DIR --predict`"
            raise ConfigError("predict.stay", True, advice)
        refuse_lacking({name: config.resources.of(name).amounts for name in (SERVER, *parties)})

    def __init__(self, config: Config, out: Path, *others: Any) -> None:
        self._said: set[str] = set()
        self._looked_at = 0.0
        super().__init__(config, out.resolve(), *others)

    def _child(self, name: str) -> ActorChild:
        return ActorChild(name, self.nodes, self.config.resources.of(name).amounts)

    async def start(self) -> None:
        """Start the roles; raises ConfigError unless all nodes see the same folder."""
        refuse_unshared(self.nodes / "certificates" / "members.toml")
        await super().start()

    async def look_after(self) -> None:
        """Report which roles were restarted, and which wait for resources."""
        await self._look_at_head()
        await super().look_after()
        for child in self.children.values():
            if (moved := child.look()) is not None:
                self.say(moved)
            if child.silent_s < SAY_AFTER_S:
                self._said.discard(child.name)
            elif child.name not in self._said:
                self._said.add(child.name)
                self.say(_waits(child))
            if child.silent_s > self.config.network.give_up_s:
                raise ColonnadeError(f"{_waits(child)} (network.give_up_s)")

    async def _look_at_head(self) -> None:
        """Report a head that does not answer: Ray would end this process after a minute without a useful message."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        head = ray.get_runtime_context().gcs_address
        host, _, port = head.rpartition(":")
        try:
            async with asyncio.timeout(ANSWER_S):
                _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
        except OSError:
            if head not in self._said:
                self._said.add(head)
                self.say(
                    f"Ray's head at {head} does not answer. Without it Ray soon ends all roles. Start Ray again, "
                    f"then continue with its --address: colonnade run --driver ray --resume {self.out}"
                )


def _waits(child: ActorChild) -> str:
    has = free()
    room = all(amount <= has.get(name, 0.0) for name, amount in child.amounts.items())
    why = "; it is starting, or Ray has not yet noticed that its node is lost" if room else ""
    return (
        f"{child.name} has not been running for {child.silent_s:.0f} s: it asks for {in_words(child.amounts)}; the "
        f"cluster has free: {in_words(has)}{why}"
    )


def _is_there(reference: Any) -> bool:
    done, _ = ray.wait([reference], timeout=0)
    return bool(done)


def _words(error: Exception) -> str:
    """The role's own message, or Ray's."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, ColonnadeError):
        return str(cause)
    if isinstance(cause, RayError):
        last = str(cause).strip().splitlines()[-1].strip()
        return f"lost more than {RESTARTS} times, or it could not be started ({type(cause).__name__}: {last})"
    return f"{type(cause).__name__}: {cause}"
