"""What an operator asks a running federation: health, numbers, spans and the audit log, all over real connections."""

import asyncio
import contextlib
import io
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.chained_file import generations, read_lines, verify
from colonnade.drivers.health_file import newest_health
from colonnade.drivers.processes import grpc_health, spans
from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.metrics import METRICS
from colonnade.protocol.errors import ConfigError
from colonnade.testing.grpc_client import open_channel

NAMES = ("bank", "shop")
PATIENCE_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


async def until(condition, what):
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Federation:
    """A server and two parties in one event loop, with a privacy mechanism, until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.certificates = folder, folder / "certificates"
        throw_away((*NAMES, "stranger"), self.certificates)
        data = split(load("digits"), parties=2)
        save_share(server_share(data), folder / "server.safetensors")
        for index, name in enumerate(NAMES):
            save_share(party_share(data, index, False), folder / f"{name}.safetensors")
        self.ports = {"server": free_port(), "bank": free_port(), "shop": None}

    def config(self, name, address):
        keys = self.certificates
        network = {
            "parties": list(NAMES), "address": address,
            "certificate": f"{keys}/{name}.pem", "key": f"{keys}/{name}.key",
            "authority": f"{keys}/ca.pem", "members": f"{keys}/members.toml", "checkpoint_s": 0.2,
            "lost_after_s": 2.0, "heartbeat_s": 0.5,
        }  # fmt: skip
        network |= {} if self.ports[name] is None else {"metrics_port": self.ports[name]}
        own = {"data": f"{self.folder}/{name}.safetensors"}
        own |= {"budget": {"epsilon": 1e6, "delta": 1e-5}} if name == "bank" else {}
        return from_dict(
            {
                "network": network,
                "protocol": {"name": "vafl"},
                "model": {"party": "linear", "embedding": 4},
                "privacy": {"mechanism": "output", "clip": 1.0, "noise": 50.0},
                "train": {"batch_size": 32, "epochs": 1e5, "eval_every": "1 epoch"},
                "server" if name == "server" else "party": own,
            }
        )

    async def run(self, look):
        log = Log("server", stream=io.StringIO())
        self.server = training_server(self.config("server", "127.0.0.1:0"), self.folder / "server", log)
        running = [asyncio.ensure_future(self.server.run())]
        address = self.folder / "server" / "address"
        await until(lambda: address.is_file() or running[0].done(), "the address")
        self.address = address.read_text()
        self.parties = {}
        for name in NAMES:
            made = training_party(
                self.config(name, self.address), name, self.folder / name, Log(name, stream=io.StringIO())
            )
            self.parties[name] = made
            running.append(asyncio.ensure_future(made.run()))
        try:
            await until(lambda: self.server.application.update() > 20 or running[0].done(), "the training")
            await look(self)
        finally:
            for host in (*self.parties.values(), self.server):
                host.node.stop()
            found = await asyncio.gather(*running, return_exceptions=True)
        assert not [one for one in found if isinstance(one, BaseException)], found

    def channel(self, name):
        keys = self.certificates
        identity = Identity.load(keys / f"{name}.pem", keys / f"{name}.key", keys / "ca.pem")
        return open_channel(identity, self.address, Limits())


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Everything that one federation answered."""
    pytest.importorskip("prometheus_client")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use_tracer(provider.get_tracer("test"))
    found, federation = {}, Federation(tmp_path_factory.mktemp("operating"))

    async def look(here):
        for name in ("server", "bank"):
            await until(lambda name=name: not here_host(here, name).vitals.causes, f"{name} to be ready")
            for page in ("metrics", "healthz", "readyz", "other"):
                found[name, page] = await asyncio.to_thread(get, here.ports[name], f"/{page}")
        found["health"] = {name: newest_health(here.folder / name) for name in ("server", *NAMES)}
        found["checks"] = await checks(here)
        found["watched"] = await watched(here)
        await until(lambda: any(one.name == "evaluation" for one in exporter.get_finished_spans()), "an evaluation")

    try:
        asyncio.run(asyncio.wait_for(federation.run(look), 3 * PATIENCE_S))
    finally:
        spans.use_tracer(None)
    found["spans"], found["folder"] = exporter.get_finished_spans(), federation.folder
    return found


def here_host(here, name):
    return here.server if name == "server" else here.parties[name]


async def checks(here):
    """The answers of Check to members, to a stranger, and to bad requests."""
    found = {}
    requests = {"all": b"", "ours": b"\x0a\x14colonnade.Federation", "other": b"\x0a\x01x", "bad": b"\xff" * 9}
    async with here.channel("bank") as channel:
        check = channel.unary_unary(f"/{grpc_health.HEALTH}/Check")
        for name, request in requests.items():
            found[name] = await answer(check, request)
        call = channel.stream_stream(f"/{grpc_health.HEALTH}/Check")()  # sends nothing
        found["silent"] = await code_of(call.read())
    async with here.channel("stranger") as channel:
        found["stranger"] = await answer(channel.unary_unary(f"/{grpc_health.HEALTH}/Check"), b"")
    return found


async def answer(method, request):
    try:
        return await method(request, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code()


async def code_of(reading):
    try:
        return await reading
    except grpc.aio.AioRpcError as error:
        return error.code()


async def watched(here):
    """What Watch says when the server becomes unready and ready again."""
    async with here.channel("bank") as channel:
        call = channel.unary_stream(f"/{grpc_health.HEALTH}/Watch")(b"")
        found = [await call.read()]
        here.server._serving = False
        here.server.vitals.refresh()
        found.append(await asyncio.wait_for(call.read(), PATIENCE_S))
        here.server._serving = True
        here.server.vitals.refresh()
        found.append(await asyncio.wait_for(call.read(), PATIENCE_S))
        call.cancel()
        unknown = channel.unary_stream(f"/{grpc_health.HEALTH}/Watch")(b"\x0a\x01x")
        found.append(await asyncio.wait_for(unknown.read(), PATIENCE_S))
        unknown.cancel()
    return found


def test_grpc_health_answers_members_only(told):
    denied, missing, bad, late = (
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
    serving = grpc_health.response(grpc_health.SERVING)
    assert told["checks"] == {
        "all": serving, "ours": serving, "other": missing, "bad": bad, "silent": late, "stranger": denied,
    }  # fmt: skip


def test_grpc_health_watch_tells_every_change(told):
    assert [status[1] for status in told["watched"]] == [1, 2, 1, 3]


def test_a_health_request_is_read_strictly():
    from hypothesis import given
    from hypothesis import strategies as st

    for text in ("", "a", "x" * 127, "ü" * 64, "x" * 200):
        data = text.encode()
        size = bytes((len(data),)) if len(data) < 128 else bytes((len(data) & 0x7F | 0x80, len(data) >> 7))
        assert grpc_health.read_request(b"\x0a" + size + data if data else b"") == text
    for data in (b"\x0a", b"\x0a\x05ab", b"\x0a\x01ab", b"\x12\x01a", b"\x0a\xff\xff", b"\x0a\x01\xff", b"\x0a" * 400):
        assert grpc_health.read_request(data) is None

    @given(st.binary(max_size=400))
    def any_bytes(data):
        found = grpc_health.read_request(data)
        assert found is None or isinstance(found, str)

    any_bytes()


@pytest.mark.parametrize("name", ["server", "bank"])
def test_probes_on_loopback(name, told):
    assert told[name, "healthz"] == (200, "ok\n") and told[name, "readyz"] == (200, "ok\n")
    assert told[name, "other"][0] == 404


def numbers_of(text):
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_the_servers_metrics(told):
    code, text = told["server", "metrics"]
    found = numbers_of(text)
    assert code == 200 and found["colonnade_ready"] == 1 and found["colonnade_updates"] > 20
    assert found["colonnade_journal_bytes"] > 0 and 0 <= found["colonnade_checkpoint_age_s"] < PATIENCE_S
    assert 10 < found["colonnade_open_descriptors"] < found["colonnade_descriptor_limit"]
    assert found["colonnade_resident_bytes"] > 2**20
    for name in NAMES:
        assert found[f'colonnade_party_connected{{party="{name}"}}'] == 1
        assert found[f'colonnade_party_queued_bytes{{party="{name}"}}'] >= 0
    assert 'aim="training"' in text


def test_a_partys_metrics(told):
    found = numbers_of(told["bank", "metrics"][1])
    assert found["colonnade_connected"] == 1 and found["colonnade_ready"] == 1
    assert 0 < found["colonnade_epsilon"] < found["colonnade_epsilon_budget"] == 1e6
    assert found['colonnade_peer_queued_bytes{peer="server"}'] >= 0
    assert not any(name.startswith(("colonnade_party_", "colonnade_predict_")) for name in found)


def test_health_files_say_ready_and_are_removed_at_the_end(told):
    for name, health in told["health"].items():
        assert (health.role, health.aim, health.causes) == (name, "training", []) and health.age_s() < 1e6
        assert not (told["folder"] / name / "health.json").exists()


def test_the_audit_logs_tell_the_story_and_are_whole(told):
    for name in ("server", *NAMES):
        files = generations(told["folder"] / name / "audit.jsonl")
        events = [(line["event"], line["fields"]) for line in read_lines(files)]
        assert verify(files).lines == len(events)
        assert events[0][0] == "started" and events[0][1]["aim"] == "training"
        assert events[-1][0] == "ended" and events[-1][1]["status"] == "stopped"
        peers = {fields.get("peer") for event, fields in events if event == "joined"}
        assert peers == ({"server"} if name in NAMES else set(NAMES))
    refused = [fields for event, fields in events_of(told, "server") if event == "refused"]
    assert {"stranger", "bank"} <= {fields["peer"] for fields in refused}


def events_of(told, name):
    return [(line["event"], line["fields"]) for line in read_lines(generations(told["folder"] / name / "audit.jsonl"))]


def test_spans_have_numbers_only(told):
    names = {one.name for one in told["spans"]}
    assert {"join", "connect", "update", "evaluation", "checkpoint"} <= names
    for one in told["spans"]:
        assert set(one.attributes or {}) <= {"update", "rows"} and not one.events
        assert all(isinstance(value, int) for value in (one.attributes or {}).values())
        assert one.end_time >= one.start_time


def test_a_span_that_fails_names_the_kind_of_error_only():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use_tracer(provider.get_tracer("test"))
    try:
        with contextlib.suppress(ValueError), spans.span("join"):
            raise ValueError("a secret id")
    finally:
        spans.use_tracer(None)
    assert "secret" not in exporter.get_finished_spans()[0].to_json()
    assert exporter.get_finished_spans()[0].status.description == "ValueError"
    assert spans.span("join") is spans.span("update"), "off: one context that does nothing"


@pytest.mark.parametrize(
    ("variables", "exporter"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_spans_are_off_unless_the_environment_asks(variables, exporter, monkeypatch):
    for name in ("OTEL_TRACES_EXPORTER", *spans._ENDPOINTS, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert spans.wanted_exporter() == exporter
    if not exporter:
        spans.start_spans("server", Log("server", stream=io.StringIO()))()
        assert not spans.spans_on()


def test_an_unknown_exporter_is_a_warning(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    log = io.StringIO()
    spans.start_spans("server", Log("server", as_json=True, stream=log))()
    assert json.loads(log.getvalue())["event"] == "spans are not sent" and not spans.spans_on()


def test_a_server_that_cannot_start_leaves_no_sign_of_life(tmp_path):
    federation = Federation(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = federation.config("server", f"127.0.0.1:{taken.getsockname()[1]}")
        server = training_server(config, tmp_path / "server", Log("server", stream=io.StringIO()))
        with pytest.raises(ConfigError, match="cannot listen there"):
            asyncio.run(server.run())
    assert not (tmp_path / "server" / "health.json").exists()
    events = [(line["event"], line["fields"]) for line in read_lines([tmp_path / "server" / "audit.jsonl"])]
    assert events[-1] == ("failed", {"cause": "ConfigError"})


def test_every_metric_says_what_it_is():
    for name, metric in METRICS.items():
        assert metric.words[0].isupper() or metric.words[0] in "1ε", name
        assert metric.of in ("server", "party", "both")


def test_the_page_has_the_table_of_all_metrics():
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `colonnade_(\w+)` \| (.*?) \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    wanted = [
        (name + ("_total" if metric.counter else ""), ", ".join(metric.labels), metric.of, metric.words)
        for name, metric in METRICS.items()
    ]
    assert [(name, labels.strip(), of, words) for name, labels, of, words in rows] == wanted


def test_the_page_names_every_cause_of_a_refusal():
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w ]+)`", page.partition("The causes of")[2].partition("Alerts")[0]))
    sources = (Path(__file__).parents[2] / "src" / "colonnade" / "drivers" / "processes").glob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    counted = set(re.findall(r'refused\["([\w ]+)"\] \+= 1', text)) | set(re.findall(r'_count\("(\w+)"', text))
    assert counted | {"connections"} <= named, counted - named
