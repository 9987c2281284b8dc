"""Text that another member chose never reaches a terminal, a log, a page or an error as it was sent."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import nan
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import grpc
import msgspec
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from colonnade.algorithms import METHODS
from colonnade.algorithms.alignment.messages import PAYLOADS as ALIGNMENT
from colonnade.algorithms.leaving import Withdrawn
from colonnade.algorithms.prediction.messages import PAYLOADS as PREDICTION
from colonnade.algorithms.prediction.messages import Ask
from colonnade.cli import main as command_line
from colonnade.cli import printing
from colonnade.cli.certs import show
from colonnade.cli.live import status_table
from colonnade.cli.printing import say, say_note
from colonnade.cli.summary import print_summary
from colonnade.config.schema import from_dict, read_toml
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes import service, wire
from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.service import JOIN, SERVICE, Refused
from colonnade.drivers.processes.service import STATUS as STATUS_CALL
from colonnade.drivers.processes.signing import new_key
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CodecError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.foreign import LONGEST, harmless, text_fields
from colonnade.protocol.messages import Array, EvaluationReply, EvaluationRequest, Message, Payload
from colonnade.report import page
from colonnade.testing.grpc_client import open_channel

FORGED = "12:00:00 info    server: ended status=finished"  # a log line that no role wrote
HOSTILE = f"\x1b]0;owned\x07 \x9b2J \u202egnp.exe\u2066 \r\n{FORGED}\u2028 \x7f"
LONG = "x" * 100_000
MARKUP = "[red]x[/] [link=https://evil.example]y[/link] <script>alert(1)</script>"

PAYLOADS: set[type[Payload]] = {EvaluationReply, EvaluationRequest, *ALIGNMENT, *PREDICTION}
PAYLOADS.update(kind for method in METHODS.values() for kind in method.payloads)
MESSAGES: list[type[Payload]] = sorted((kind for kind in PAYLOADS if issubclass(kind, Message)), key=str)
LONELY = {
    "data": {"parties": 1},
    "protocol": {"name": "vafl", "table": "zeros"},
    "network": {"heartbeat_s": 0.05, "lost_after_s": 0.5},
}
CONTROLS: dict[wire.Kind, type[Any]] = {
    wire.Kind.HELLO: wire.Hello,
    wire.Kind.WELCOME: wire.Welcome,
    wire.Kind.REFUSAL: wire.Refusal,
    wire.Kind.END: wire.End,
    wire.Kind.BYE: wire.Bye,
    wire.Kind.PRESENCE: wire.Presence,
}


def is_harmless(text: str) -> bool:
    return text.isprintable() and len(text) <= LONGEST + 10  # an error also names the peer


def is_harmless_page(text: str) -> bool:
    """Of several lines."""
    return all(line.isprintable() and not line.startswith(FORGED) for line in text.split("\n"))


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder = tmp_path_factory.mktemp("federation") / "certificates"
    throw_away(["lab"], folder)
    return Identity.load(folder / "server.pem", folder / "server.key", folder / "ca.pem")


@asynccontextmanager
async def answering(identity: Identity, answer: bytes) -> AsyncIterator[str]:
    """A server that answers every question about its status with these bytes."""

    async def status(_request: bytes, _context: Any) -> bytes:
        return answer

    server = grpc.aio.server()
    handlers = {STATUS_CALL: grpc.unary_unary_rpc_method_handler(status)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    pair = (identity.key, identity.certificate)
    credentials = grpc.ssl_server_credentials([pair], identity.authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def value_of(annotation: Any, text: str) -> Any:
    """A value of this type, with `text` in every place that can hold text."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return value_of(parts[0], text)
    if annotation is Array:
        return np.zeros((1, 1), np.float32)
    if origin in (list, tuple):
        return origin([value_of(parts[0], text)])
    if origin is dict:
        return {value_of(parts[0], text): value_of(parts[1], text)}
    if origin in (Union, UnionType):
        return text if str in parts else None
    if origin is Literal:
        return parts[0]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return filled(annotation, text)
    return text if annotation in (str, Any) else annotation(0)


def filled(kind: type[Any], text: str) -> Any:
    return kind(**{field.name: value_of(field.type, text) for field in msgspec.structs.fields(kind)})


def words_of(content: msgspec.Struct) -> Iterator[str]:
    """Every text of a struct that a person may see."""
    for name in text_fields(type(content)):
        value = getattr(content, name)
        yield from value if isinstance(value, tuple) else [value]


def read(kind: wire.Kind, body: bytes, content: type[Any]) -> Any:
    return wire.read_control(wire.open_envelope(wire.seal_envelope(kind, 0, 0, body), "lab"), kind, content, "lab")


# What arrives


def test_no_message_with_text_is_overlooked() -> None:
    """A list of ids (Ask) stays as it is, and names of metrics (Judged) are only looked up."""
    fields = {kind: str([field.type for field in msgspec.structs.fields(kind)]) for kind in MESSAGES}
    with_text = {kind.__name__ for kind, types in fields.items() if "str" in types}
    assert {"Withdrawn", "Trouble", "Diverged", "Differs", "BeginAlignment"} < with_text
    assert with_text - {kind.__name__ for kind in MESSAGES if text_fields(kind)} == {"Ask", "Judged"}


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["hostile", "long"])
def test_texts_of_every_message_are_harmless_once_decoded(text: str) -> None:
    for kind in MESSAGES:
        codec = Codec([kind])
        found = codec.decode(bytes(codec.encode(filled(kind, text))), "lab")
        assert all(is_harmless(word) for word in words_of(found)), kind


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["hostile", "long"])
@pytest.mark.parametrize("kind", CONTROLS, ids=lambda kind: kind.name)
def test_texts_of_a_control_body_are_harmless_or_refused(kind: wire.Kind, text: str) -> None:
    content = CONTROLS[kind]
    try:
        found = read(kind, msgspec.msgpack.encode(filled(content, text)), content)
    except CodecError as error:
        assert is_harmless(error.cause)
    else:
        assert all(is_harmless(word) for word in words_of(found))


def test_an_id_reaches_the_party_unchanged() -> None:
    codec, asked = Codec([Ask]), Ask(1, 0, ["a\u00a0b", LONG])
    assert codec.decode(bytes(codec.encode(asked))) == asked


@pytest.mark.parametrize(
    "frame",
    [
        {"type": HOSTILE},
        {"type": "EvaluationReply", "number": 1, "start": 0, "step": 0, "values": HOSTILE},
        {"type": "EvaluationReply", "number": HOSTILE},
    ],
)
def test_an_error_that_quotes_a_frame_is_harmless(frame: dict[str, Any]) -> None:
    header = msgspec.msgpack.encode(frame)
    data = b"CLN\x01" + len(header).to_bytes(4, "little") + header + bytes(-len(header) % 8)
    with pytest.raises(CodecError) as caught:
        Codec([Withdrawn, EvaluationReply]).decode(data, "lab")
    assert is_harmless(str(caught.value))


@pytest.mark.parametrize("kind", CONTROLS, ids=lambda kind: kind.name)
def test_an_error_that_quotes_a_control_body_is_harmless(kind: wire.Kind) -> None:
    with pytest.raises(CodecError) as caught:
        read(kind, msgspec.msgpack.encode({HOSTILE: HOSTILE}), CONTROLS[kind])
    assert is_harmless(str(caught.value))


def test_a_run_id_that_a_file_could_not_hold_is_refused() -> None:
    for run in ("ä", "a\n", "x" * 65):
        body = msgspec.msgpack.encode(wire.Welcome(True, wire.Position(1, 0, 0, 0), run))
        with pytest.raises(CodecError):
            read(wire.Kind.WELCOME, body, wire.Welcome)


def test_a_refusal_quotes_a_guest_harmlessly() -> None:
    assert is_harmless(Refused(f"the shared config differs: {HOSTILE}").cause)
    assert is_harmless(RemoteProtocolError("lab", HOSTILE).cause)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_a_harmless_text_is_printable_and_stays_as_it_is(text: str) -> None:
    shown = harmless(text, 40)
    assert shown.isprintable()
    assert len(shown) <= 40
    assert harmless(shown, 40) == shown
    if text.isprintable() and len(text) <= 40:
        assert shown == text


# What is shown


@pytest.mark.parametrize("as_json", [True, False])
def test_a_log_line_stays_one_harmless_line(as_json: bool) -> None:
    stream = io.StringIO()
    log = Log("server", as_json=as_json, stream=stream)
    log.warning(HOSTILE, cause=HOSTILE, peer=HOSTILE.replace(" ", ""), names=[HOSTILE])
    line = stream.getvalue()
    assert line.endswith("\n")
    assert line[:-1].isprintable()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal gets. Rich adds no colours here, so every escape sequence is a member's."""
    stream = io.StringIO()
    monkeypatch.setattr(printing, "console", Console(file=stream, width=1000, color_system=None))
    return stream


def test_lines_and_notes_reach_a_terminal_harmlessly(screen: io.StringIO) -> None:
    say(HOSTILE.replace("\n", ""))
    say_note(HOSTILE.replace("\n", "") + MARKUP)
    assert is_harmless_page(screen.getvalue())
    assert MARKUP in screen.getvalue()  # shown, not obeyed


def test_an_error_reaches_a_terminal_harmlessly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise TrainingDiverged(HOSTILE.replace("\n", ""))

    monkeypatch.setattr(command_line, "app", fail)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit):
        command_line.main()
    printed = capsys.readouterr().err
    assert "Error: \\x1b]0;owned" in printed
    assert is_harmless_page(printed)


def test_a_certificates_names_reach_a_terminal_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, now = new_key(), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab\x1b]0;owned\x07")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    (tmp_path / "lab.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    show(tmp_path / "lab.pem")
    printed = capsys.readouterr().out
    assert "lab\\x1b]0;owned" in printed
    assert is_harmless_page(printed)


STATUS: dict[str, Any] = {
    "protocol": "vafl", "state": "waiting", "updates": 1, "updates_per_s": 1.0, "epochs": 1.0, "metric": "auc",
    "value": 0.5, "rows": "test", "clock_s": 1.0, "waits_for": ["lab"], "waited_s": 9.0, "fraction": 0.5,
    "refused_by_limit": {"calls": 3},
    "parties": [{
        "name": "lab", "state": "away", "steps_per_s": 1.0, "staleness": 1.0, "bytes_up": 1, "bytes_down": 1,
        "bytes_eval": 1, "last_seen_s": 1.0, "refused": 0, "owes": "rows", "owed_s": 99.0,
    }],
}  # fmt: skip


def hostile_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: hostile_tree(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile_tree(item) for item in value]
    return f"{value}{MARKUP}{HOSTILE}" if isinstance(value, str) else value


def test_a_lying_servers_status_reaches_a_terminal_harmlessly(screen: io.StringIO, identity: Identity) -> None:
    answers = [msgspec.json.encode(hostile_tree(STATUS)), b'{"value": NaN}', HOSTILE.encode()]

    async def ask(answer: bytes) -> bytes:
        async with answering(identity, answer) as address:
            return await ask_status(identity, address, Limits())

    found = json.loads(asyncio.run(ask(answers[0])))
    printing.console.print(status_table(found))
    assert MARKUP in screen.getvalue()
    assert is_harmless_page(screen.getvalue())
    for answer in answers[1:]:
        with pytest.raises(RemoteProtocolError, match="its status is not JSON"):
            asyncio.run(ask(answer))


# The whole way: a member of a running federation


async def withdraw_and_lie(folder: Path, stream: io.StringIO) -> Any:
    """A server in training, and its only party, which leaves with a hostile reason; returns the summary."""
    up = prepare_up(from_dict(LONELY), folder)
    own = up.nodes / "server"
    log = Log("server", stream=stream)
    server = training_server(from_dict(read_toml(own / "config.toml")), own / "run", log)
    serving = asyncio.ensure_future(server.run())
    while not (own / "run" / "address").exists():
        assert not serving.done(), serving.result()
        await asyncio.sleep(0.005)
    (name,) = up.parties
    up.write_config(name, (own / "run" / "address").read_text())
    tables = read_toml(up.nodes / name / "config.toml")
    lab = training_party(from_dict(tables), name, up.nodes / name / "run", Log(name, stream=io.StringIO())).application
    async with open_channel(lab.side.identity, lab.side.config.network.address, Limits()) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{JOIN}")()
        await call.write(wire.control(wire.Kind.HELLO, lab.hello(1, wire.Position(0, 0, 0, 0))))
        await call.read()
        await call.write(wire.seal_message(1, 0, Codec([Withdrawn]).encode(Withdrawn(HOSTILE))))
        while wire.open_envelope(await call.read(), "server").kind != wire.Kind.END:
            pass
        await call.write(wire.control(wire.Kind.BYE, wire.Bye(HOSTILE, nan)))
        return await serving


def test_a_member_that_withdraws_with_a_hostile_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FAREWELL_S", 0.0)  # the refused goodbye does not come again
    stream = io.StringIO()
    summary = asyncio.run(asyncio.wait_for(withdraw_and_lie(tmp_path / "up", stream), 60))
    assert "withdrew: \\x1b]0;owned\\x07" in summary["note"]
    assert "refused" in stream.getvalue()
    assert is_harmless_page(stream.getvalue())
    folder = tmp_path / "up" / "nodes" / "server" / "run"
    found = msgspec.json.decode((folder / "summary.json").read_bytes())
    assert found["note"] == summary["note"]
    assert list(found["utilisation"]) == ["server"]  # the impossible goodbye was refused
    check_shown(found, folder, monkeypatch)


def check_shown(summary: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal and a page also show a summary of a release that let hostile texts in."""
    monkeypatch.setattr(page, "_library", lambda: "")  # plotly.js takes seconds to compress
    text = HOSTILE.replace("\n", "") + MARKUP
    summary |= {"note": text, "warnings": [text]}
    (folder / "summary.json").write_text(json.dumps(summary))
    screen = io.StringIO()
    print_summary(summary, Console(file=screen, width=1000, color_system=None))
    assert screen.getvalue().count(MARKUP) == 2
    assert is_harmless_page(screen.getvalue())
    html = page.write_report(folder).read_text(encoding="utf-8")
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") == 2
