"""Predictions under attack: the parties are processes, the server runs here and asks what no honest server asks.

One federation for all tests: 100 of 120 rows are aligned, and the parties answer at most 1,000 rows a minute.
"""

import asyncio
import http.client
import json
import os
import socket
import ssl
import sys
import threading
import time
from contextlib import closing, suppress
from urllib.request import urlopen

import numpy as np
import polars
import pytest
import tomli_w

from colonnade.algorithms.prediction.messages import Ask, Asked, Mean
from colonnade.algorithms.prediction.standing_in import AWAY, LACKS, SENT
from colonnade.cli.privacy_audit import audit
from colonnade.cli.token import new, revoke
from colonnade.config.schema import from_dict, to_dict
from colonnade.data import Alignment, save_alignment
from colonnade.data.alignment import digest_of_column
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.predict.asking import door_of
from colonnade.predict.audit import read_audit
from colonnade.predict.processes import predicting_server
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import ColonnadeError
from colonnade.protocol.events import Send

from ..starting import Popen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the server runs on uvloop")

NAMES = ("bank", "shop")
ROWS, ALIGNED, PER_MINUTE = 120, 100, 1_000
PATIENCE_S = 120.0
GROWS = "\ufdfa" * 66  # 198 bytes, and 1,188 characters under NFKC


def make_files(folder):
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).round(3)
    frame = polars.DataFrame({"client": [f"C{row:03}" for row in range(ROWS)], **dict(zip("abcd", x.T, strict=True))})
    frame = frame.with_columns(late=frame["a"] + frame["c"] > 0)
    frame.select("client", "a", "b", "late").write_csv(folder / "bank.csv")
    frame.select("client", "c", "d").write_csv(folder / "shop.csv")
    throw_away(NAMES, folder / "keys")
    for name in (*NAMES, "server"):
        digest = digest_of_column(frame["client"])
        aligned = Alignment(name, (*NAMES, "server"), np.arange(ALIGNED), "ab" * 32, digest)
        save_alignment(aligned, folder / f"{name}-order.safetensors")


def config_of(folder, name, address, port=None):
    keys = folder / "keys"
    columns = {"bank": ["a", "b"], "shop": ["c", "d"]}
    own = {"id": "client", "aligned": f"{folder}/{name}-order.safetensors"}
    own |= {"data": f"{folder}/{'bank' if name == 'server' else name}.csv"}
    own |= {"label": "late"} if name == "server" else {"columns": columns[name]}
    return from_dict(
        {
            "protocol": {"name": "sync"},
            "model": {"party": "linear", "embedding": 2, "server": "linear"},
            "train": {"updates": 4, "eval_every": 4, "learning_rate": 0.1, "batch_size": 16, "optimiser": "sgd"},
            "align": {"unicode": "NFKC"},
            "predict": {
                "http": "127.0.0.1:0", "answer_rows_per_minute": PER_MINUTE, "caller_rows_per_day": 300,
                "away": ["refuse"], "deadline_s": 60.0,
            },
            "network": {
                "parties": list(NAMES), "address": address, "certificate": f"{keys}/{name}.pem",
                "key": f"{keys}/{name}.key", "authority": f"{keys}/ca.pem", "members": f"{keys}/members.toml",
                "metrics_port": port,
            },
            "server" if name == "server" else "party": own,
        }
    )  # fmt: skip


class Federation:
    """A trained federation; its server predicts in a thread, on uvloop as `serve` does."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "run" / "server"
        self.log = (folder / "server.log").open("w")
        self.processes = {}

    def side(self, name, address="127.0.0.1:0", port=None):
        config, out = config_of(self.folder, name, address, port), self.folder / "run" / name
        log = Log(name, stream=self.log)
        return ServerSide(config, out, log) if name == "server" else PartySide(config, name, out, log)

    async def train(self):
        server = ServerHost(ServerTraining(self.side("server")))
        running = asyncio.ensure_future(server.run())
        while not (self.out / "address").is_file():
            await asyncio.sleep(0.01)
        address = (self.out / "address").read_text()
        await asyncio.gather(running, *(PartyHost(PartyTraining(self.side(n, address))).run() for n in NAMES))

    async def serve(self):
        self.loop, self.asked = asyncio.get_running_loop(), 10_000
        self.server = predicting_server(self.side("server", port=self.port))
        self.running = asyncio.ensure_future(self.server.run())
        with suppress(asyncio.CancelledError):
            await self.running

    def start(self):
        import uvloop

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        asyncio.run(self.train())
        (self.out / "address").unlink()
        self.thread = threading.Thread(target=lambda: uvloop.run(self.serve()))
        self.thread.start()
        self.until((self.out / "predict" / "http").is_file)
        address = (self.out / "address").read_text()
        for name in NAMES:
            path = self.folder / f"{name}.toml"
            path.write_text(tomli_w.dumps(to_dict(config_of(self.folder, name, address))))
            words = ["join", path, "--party", name, "--predict", "--out", self.folder / "run" / name]
            log = (self.folder / f"{name}.log").open("w")
            with log:
                command = [sys.executable, "-m", "colonnade", *map(str, words)]
                self.processes[name] = Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        self.until(lambda: all(self.server.node.peers[name].stream for name in NAMES))

    def stop(self):
        self.loop.call_soon_threadsafe(self.running.cancel)
        self.thread.join(PATIENCE_S)
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.log.close()

    def until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end and self.thread.is_alive(), (self.folder / "server.log").read_text()
            time.sleep(0.01)

    def alive(self):
        return all(process.poll() is None for process in self.processes.values())

    def ask_parties(self, *ids):
        """What the parties answer to ids that no door has checked: the kind of each block."""

        async def ask():
            application = self.server.application
            self.asked += 1
            found = application._waiting[self.asked] = self.loop.create_future()
            application.node.tell(Asked(self.asked, list(ids), list(NAMES)))
            return (await found).blocks.tolist()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(PATIENCE_S)

    def send(self, to, message):
        async def send():
            self.server.node._send(Send(to, message))

        asyncio.run_coroutine_threadsafe(send(), self.loop).result(PATIENCE_S)

    def questions(self, name):
        return read_audit(self.folder / "run" / name / "predict")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    make_files(folder)
    made = Federation(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def door(federation):
    with Tokens(federation.out / "predict").lent() as token, closing(door_of(federation.out, token)) as door:
        yield door


def predict(door, *ids):
    return door.request("POST", "/predict", {"ids": list(ids)})["answers"]


def test_64_idle_connections_do_not_block_the_holder_of_a_token(federation, door):
    host, _, port = door.url.removeprefix("https://").rpartition(":")
    context = ssl.create_default_context(cafile=federation.folder / "keys" / "ca.pem")
    idle = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(64)]
    idle += [
        context.wrap_socket(socket.create_connection((host, int(port)), timeout=PATIENCE_S), server_hostname=host)
        for _ in range(8)
    ]
    idle[-1].send(b"POST /predict HTTP/1.1\r\n")
    (answer,) = predict(door, "C001")
    assert answer["parties"] == list(NAMES)
    for one in idle:
        one.close()


def test_an_id_that_grows_is_refused_at_the_door_and_at_the_parties(federation, door):
    with pytest.raises(ColonnadeError, match=r"the id at place 1 .* normalised by \[align\], is .* longer than 200"):
        predict(door, "C001", GROWS)
    assert federation.ask_parties("C001", GROWS) == [[SENT] * 2, [LACKS] * 2], "as sent, it is short"
    assert federation.ask_parties("x" * 1188) == [[AWAY] * 2]
    assert federation.alive() and predict(door, "C002")[0]["parties"] == list(NAMES)
    assert federation.questions("shop")[1][-2].why == "malformed"


def test_no_message_of_the_server_ends_a_party(federation, door):
    federation.send("shop", Ask(1, 0, []))
    federation.send("shop", Ask(-(2**63), 2**62, ["C001"]))
    federation.send("shop", Mean(np.zeros(2, np.float32)))  # no message for a party

    async def garbage():
        peer = federation.server.node.peers["shop"]
        stream, peer.stream = peer.stream, None  # nothing is written meanwhile
        federation.server.node._send(Send("shop", Ask(1, 0, ["C001"])))
        _, frame = peer.conversation.outbox[-1]
        peer.conversation.outbox[-1] = (peer.conversation.sent, frame[:-9] + b"\xff" * 9)  # cannot be decoded
        peer.stream = stream
        stream.wake()

    asyncio.run_coroutine_threadsafe(garbage(), federation.loop).result(PATIENCE_S)
    assert predict(door, "C003")[0]["parties"] == list(NAMES) and federation.alive()
    whys = [line.why for line in federation.questions("shop")[1][-5:]]
    assert sorted(whys) == ["", "", *["malformed"] * 3], "an answer may take longer than the next refusals"
    assert whys[0] == "malformed" and whys[-1] == ""


def test_ids_that_were_never_aligned_are_not_answered_and_each_question_is_on_record(federation, capsys):
    before, _ = federation.questions("shop")
    assert federation.ask_parties("C099", "C100", "C119", "nobody") == [[SENT] * 2, *[[LACKS] * 2] * 3]
    totals, lines = federation.questions("shop")
    last = lines[-1]
    assert (last.ids, last.answered, last.refused, last.why) == (4, 1, 2, "not aligned")
    assert totals.questions == before.questions + 1 and last.who.startswith("server ")
    held = federation.folder / "run" / "shop" / "predict" / "audit.jsonl"
    assert "C1" not in held.read_text() and held.stat().st_mode & 0o77 == 0
    audit(federation.folder / "run" / "shop", 1)
    assert "not aligned" in capsys.readouterr().out.splitlines()[-1]


def test_tokens_tls_and_quotas_as_a_caller_meets_them(federation, capsys):
    config = federation.folder / "server.toml"
    config.write_text("")
    new(config, "scoring", 30, federation.out)
    token = capsys.readouterr().out.strip()
    host, _, port = (federation.out / "predict" / "http").read_text().removeprefix("https://").rpartition(":")
    context = ssl.create_default_context(cafile=federation.folder / "keys" / "ca.pem")  # as curl --cacert ca.pem

    def call(ids):
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE_S)
        with closing(connection):
            connection.request("POST", "/predict", json.dumps({"ids": ids}), {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            return response.status, response.headers.get("Retry-After"), json.loads(response.read())

    assert call(["C001"])[2]["answers"][0]["parties"] == list(NAMES)
    code, wait_s, content = call(["C001"] * 300)
    assert code == 429 and int(wait_s) > 0 and "caller_rows_per_day" in content["error"]
    with urlopen(f"http://127.0.0.1:{federation.port}/metrics", timeout=PATIENCE_S) as metrics:
        said = metrics.read().decode()
    assert 'colonnade_predict_rows_total{caller="scoring"} 1.0' in said
    assert 'colonnade_predict_refused_total{caller="scoring",why="quota"} 1.0' in said
    revoke(config, "scoring", federation.out)
    code, _, content = call(["C001"])
    assert code == 401 and "revoked" in content["error"]
    log = (federation.folder / "server.log").read_text()
    assert "caller=scoring" in log and token not in log
    with closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)) as plain:
        plain.request("GET", "/status")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()


def test_too_many_rows_are_declined_until_the_quota_comes_back(federation):
    """The last test: it uses up the parties' quota."""
    federation.ask_parties(*(f"x{row}" for row in range(PER_MINUTE // 2)))
    blocks = federation.ask_parties(*(f"x{row}" for row in range(PER_MINUTE - 1)))
    assert blocks == [[AWAY] * 2] * (PER_MINUTE - 1) and federation.alive()
    last = federation.questions("bank")[1][-1]
    assert (last.answered, last.refused, last.why) == (0, PER_MINUTE - 1, "quota")
    assert federation.server.application.status(None)["declined"]["bank"] >= 1
