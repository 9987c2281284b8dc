"""`colonnade check`: a set-up that is right, and many mistakes at once."""

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.first import Answers, write_first_config
from colonnade.config.schema import apply_overrides, read_toml
from colonnade.data import Alignment, save_alignment
from colonnade.data.alignment import digest_of_column
from colonnade.data.tables import read_columns
from colonnade.deployment.check import check_member
from colonnade.drivers.processes import renewal
from colonnade.drivers.processes.certificates import throw_away

PARTIES = ("bank", "shop")


@pytest.fixture
def side(tmp_path, monkeypatch):
    """A folder with the server's and the shop's set-up; the port is free."""
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    write_first_config(tmp_path, Answers("shop", PARTIES, "data/t.csv", "nr", address=address))
    write_first_config(tmp_path, Answers("server", PARTIES, "data/t.csv", "nr", "y", address=address))
    Path("data/t.csv").write_text("nr,a,b,y\n" + "".join(f"{i},{i % 7},{i % 5},{i % 2}\n" for i in range(60)))
    throw_away(PARTIES, tmp_path, 365)
    throw_away(PARTIES, tmp_path / "federation", 365)
    for name in ("shop.toml", "server.toml"):
        change(name)
    return tmp_path


def change(path, **more):
    settings = {key.replace("__", "."): value for key, value in more.items()}
    Path(path).write_text(tomli_w.dumps(apply_overrides(read_toml(path), settings)))


def faults(path, **more):
    found = check_member(Path(path), **more)
    assert found.ok == all(one.status != "error" for one in found.findings)
    return {(one.name, one.status): one for one in found.findings if one.status != "ok"}


def test_a_set_up_that_is_right(side):
    for name in ("shop", "server"):
        found = check_member(Path(f"{name}.toml"))
        assert found.ok and found.name == name
        assert [(one.name, one.status) for one in found.findings if one.status != "ok"] == [("alignment", "warning")]
        assert {"config", "member", "method", "table", "ids", "rows", "certificate", "key", "authority", "members"} <= {
            one.name for one in found.findings
        }
    before = sorted(path.name for path in side.rglob("*"))
    check_member(Path("shop.toml"))
    assert sorted(path.name for path in side.rglob("*")) == before, "it writes nothing"


def test_all_mistakes_at_once(side):
    change(
        "shop.toml", party__id="nummer", party__columns=["a", "q", "r..s"], party__predict_data="new.csv",
        model__embeding=3, train__epochs="many", protocol__name="vafel", network__address="no.such.host.invalid:1",
        network__members="gone.toml",
    )  # fmt: skip
    Path("shop.key").chmod(0o644)
    found = check_member(Path("shop.toml"))
    texts = "\n".join(f"{one.name} {one.status} {one.text} {one.next}" for one in found.findings)
    for words in (
        "config error model.embeding = 3: unknown key", "config error train.epochs = 'many'",
        "method error protocol.name = 'vafel'", "party.id = 'nummer': no such column", "no column 'q'", "no column 'r'",
        "new.csv", "key error network.key = 'shop.key': other users can read", "members error network.members",
        "colonnade accept shop.answer", "address error network.address = 'no.such.host.invalid:1'",
    ):  # fmt: skip
        assert words in texts, words
    assert not found.ok


def test_a_revoked_member(side):
    renewal.renew("shop", side)
    assert not any(name == "members" for name, _ in faults("shop.toml")), "a renewal"
    Path("shop.pem").rename("kept")
    renewal.revoke("shop", side)
    Path("kept").rename("shop.pem")
    assert "the certificate of 'shop' was revoked" in faults("shop.toml")["members", "error"].text
    renewal.revoke("shop", side / "federation")
    found = {one.name: one for one in check_member(Path("server.toml")).findings}
    assert found["members"].status == "ok" and found["members"].text.endswith("; revoked: shop")


def test_certificates_that_do_not_fit(side):
    Path("shop.pem").write_bytes(Path("federation/shop.pem").read_bytes())
    found = check_member(Path("shop.toml")).findings
    errors = {one.text for one in found if one.status == "error"}
    assert any("was not signed by ca.pem" in text for text in errors)
    assert any("is not the private key of shop.pem" in text for text in errors)
    assert any("has another certificate for shop" in text for text in errors)


@pytest.mark.parametrize(
    ("days", "name", "status", "words"),
    [
        (-1, "clock", "error", "set the clock"),
        (340, "certificate", "warning", "expires in 2"),
        (370, "certificate", "error", "expired on"),
    ],
)
def test_the_clock_and_the_dates(side, days, name, status, words):
    found = faults("shop.toml", now=datetime.now(UTC) + timedelta(days=days))[name, status]
    assert words in f"{found.text} {found.next}"


def test_ids_that_are_not_unique(side):
    with Path("data/t.csv").open("a") as file:
        file.write("3,1,1,1\n,1,1,0\n")
    assert "1 rows have no id, 1 rows repeat an earlier id" in faults("shop.toml")["ids", "error"].text
    change("shop.toml", align__duplicates="drop", align__empty="drop")
    assert ("ids", "error") not in faults("shop.toml") and ("rows", "error") not in faults("shop.toml")


def test_rows_that_cannot_be_trained_on(side):
    with Path("data/t.csv").open("a") as file:
        file.write("99,,1,1\n")
    assert "party.missing" in faults("shop.toml")["rows", "error"].text


def test_an_alignment_that_is_old_or_anothers(side):
    file = Path("data/t.csv")
    _, texts = read_columns(file, (), ("nr",), (), lambda *_: None)
    digest = digest_of_column(texts["nr"])
    rows = np.arange(60)
    save_alignment(Alignment("shop", (*PARTIES, "server"), rows, "0" * 64, digest), Path("shop-order.safetensors"))
    assert not faults("shop.toml")
    save_alignment(Alignment("shop", ("shop", "server"), rows, "0" * 64, digest), Path("shop-order.safetensors"))
    assert "bank took no part" in faults("shop.toml")["alignment", "error"].text
    save_alignment(Alignment("bank", (*PARTIES, "server"), rows, "0" * 64, digest), Path("shop-order.safetensors"))
    assert "is the order of bank's rows" in faults("shop.toml")["alignment", "error"].text
    save_alignment(Alignment("shop", (*PARTIES, "server"), rows, "0" * 64, "0" * 64), Path("shop-order.safetensors"))
    assert "have changed since the alignment" in faults("shop.toml")["alignment", "error"].text


def test_the_port_and_the_address(side):
    address = read_toml("server.toml")["network"]["address"]
    assert "does not answer" in faults("shop.toml", dial=True)["address", "warning"].text
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert "cannot listen there" in faults("server.toml")["address", "error"].text
        assert ("address", "warning") not in faults("shop.toml", dial=True)
    change("shop.toml", network__address="0.0.0.0:7450")
    assert "as this machine reaches the server" in faults("shop.toml")["address", "error"].text


def test_the_disk(side, monkeypatch):
    Path("file").write_text("")
    assert "cannot be written to" in faults("shop.toml", out=Path("file/run"))["disk", "error"].text
    if os.getuid():
        Path("closed").mkdir(mode=0o500)
        assert "cannot be written to" in faults("shop.toml", out=Path("closed/run"))["disk", "error"].text
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    assert "free some space" in faults("shop.toml")["disk", "error"].next


def test_a_config_that_would_run_code(side):
    change("shop.toml", model__party="evil.models:Net")
    found = faults("shop.toml")
    assert "add --trust evil.models" in found["trust", "error"].text and ("method", "error") not in found


def test_a_missing_extra(side, monkeypatch):
    monkeypatch.setattr("colonnade.extras.find_spec", lambda name: None)
    change("shop.toml", track__to=["mlflow"])
    assert "pip install 'colonnade[track]'" in faults("shop.toml")["extras", "error"].text


def test_the_command(side):
    done = CliRunner().invoke(app, ["check", "shop.toml", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["ok"] and found["member"] == "shop"
    assert set(found["checks"][0]) == {"name", "status", "text", "next"}
    Path("shop.key").chmod(0o644)
    done = CliRunner().invoke(app, ["check", "shop.toml"])
    assert done.exit_code == 2 and "chmod 600 shop.key" in done.stdout.replace("\n", " ")
    done = CliRunner().invoke(app, ["check", "none.toml"])
    assert done.exit_code == 2 and "there is no such file" in done.stdout
    os.chdir("data")
    done = CliRunner().invoke(app, ["check", "../shop.toml"])
    assert done.exit_code == 2 and "cd .." in done.stdout
