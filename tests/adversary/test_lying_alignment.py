"""A member that breaks the rules of an alignment: the end names it, the others keep their files, and may try again."""

import asyncio
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import tomli_w

from colonnade.algorithms.alignment import PAYLOADS
from colonnade.algorithms.alignment.messages import BeginAlignment, Declare, Done, Raised
from colonnade.config.schema import to_dict
from colonnade.deployment.alignment import aligning_party
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.service import JOIN, SERVICE
from colonnade.drivers.processes.wire import Bye, Kind, Position, control, open_envelope, seal_envelope
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import Send
from colonnade.protocol.messages import Message
from colonnade.testing.grpc_client import open_channel

from ..drivers.processes.conftest import until
from ..drivers.processes.test_alignment_network import COUNTS, PARTIES, Organisations
from ..starting import PATIENCE_S, Command, Commands

EARLIER = b"the order of an earlier alignment"
CODEC = Codec([kind for kind in PAYLOADS if issubclass(kind, Message)])


@pytest.fixture(scope="module")
def starter() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.close()


@pytest.fixture
def organisations(tmp_path: Path) -> Organisations:
    (tmp_path / "keys").mkdir()
    throw_away(PARTIES, tmp_path / "keys")
    made = Organisations(tmp_path, tmp_path / "keys")
    for name in ("server", *PARTIES):
        (tmp_path / name / "aligned.safetensors").write_bytes(EARLIER)
    return made


def orders(here: Organisations) -> dict[str, bytes]:
    """The content of every file of an order, by member."""
    found = here.folder.glob("*/aligned*.safetensors")
    return {f"{path.parent.name} {path.stem}": path.read_bytes() for path in found}


def start(here: Organisations, starter: Commands, name: str) -> Command:
    """`colonnade align` as a process of this member."""
    home, out = here.folder / name, here.folder / "server" / "out"
    there = {} if name == "server" else {"network.address": (out / "address").read_text()}
    (home / "config.toml").write_text(tomli_w.dumps(to_dict(here.config(name, **there))))
    if name == "server":
        (out / "address").unlink(missing_ok=True)
    words = ("align", home / "config.toml", "--out", home / "out", "--log-json")
    process = starter.start(home / "log.jsonl", *words)
    end = time.monotonic() + PATIENCE_S
    while name == "server" and not (out / "address").exists():
        assert process.code is None and time.monotonic() < end, process.log.read_text()
        time.sleep(0.02)
    return process


async def lie(here: Organisations) -> None:
    """As lab: declare its ids, then report fewer than no points."""
    address = (here.folder / "server" / "out" / "address").read_text()
    config = here.config("lab", **{"network.address": address})
    party = aligning_party(config, here.folder / "liar", Log("lab", stream=io.StringIO())).application
    async with open_channel(party.side.identity, address, Limits()) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{JOIN}")()
        await call.write(control(Kind.HELLO, party.hello(1, Position(0, 0, 0, 0))))
        await call.write(seal_envelope(Kind.MESSAGE, 1, 0, bytes(CODEC.encode(Declare(COUNTS["lab"])))))
        while (data := await call.read()) is not grpc.aio.EOF:
            envelope = open_envelope(data, "server")
            begins = envelope.kind == Kind.MESSAGE and isinstance(CODEC.decode(envelope.body), BeginAlignment)
            if begins:
                await call.write(seal_envelope(Kind.MESSAGE, 2, 1, bytes(CODEC.encode(Raised(-1)))))
            elif envelope.kind == Kind.END:
                await call.write(control(Kind.BYE, Bye("", 0.0)))


def test_the_end_names_the_member_and_the_same_commands_work_again(
    organisations: Organisations, starter: Commands
) -> None:
    before = orders(organisations)
    honest = [start(organisations, starter, name) for name in ("server", "clinic")]
    asyncio.run(asyncio.wait_for(lie(organisations), PATIENCE_S))
    assert [process.wait() for process in honest] == [1, 1]
    for name in ("server", "clinic"):
        summary = json.loads((organisations.folder / name / "out" / "summary.json").read_text())
        assert summary["status"] == "refused" and "lab reports -1 raised points" in summary["note"]
    assert orders(organisations) == before
    again = [start(organisations, starter, name) for name in ("server", *PARTIES)]
    assert [process.wait() for process in again] == [0, 0, 0]
    assert organisations.order("clinic") == organisations.order("lab") == organisations.order("server")
    assert len(orders(organisations)) == 3


def test_a_lie_at_the_very_end_leaves_the_files_as_they_were(
    organisations: Organisations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members have computed the order; lab says that it has another one."""
    before, send = orders(organisations), Node._send

    def lying(node: Any, effect: Send) -> None:
        if node.role.name == "lab" and isinstance(effect.message, Done):
            effect = Send(effect.to, msgspec.structs.replace(effect.message, sha256="0" * 64))
        send(node, effect)

    monkeypatch.setattr(Node, "_send", lying)
    server, ends = organisations.align(type("tools", (), {"until": staticmethod(until)}))
    assert server["status"] == ends["clinic"].status == "refused"
    assert server["note"].startswith("the members computed different row orders (lab)")
    assert orders(organisations) == before
