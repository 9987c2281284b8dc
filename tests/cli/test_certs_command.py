"""`colonnade certs`: a federation from nothing to a party that can dial, as two people would type it."""

import re

import pytest
from typer.testing import CliRunner

from colonnade.cli.certs import certs_app
from colonnade.drivers.processes.certificates import Identity, describe, read_members
from colonnade.protocol.errors import ConfigError


@pytest.fixture
def certs(monkeypatch, tmp_path):
    """`colonnade certs ARGS` in a folder of its own; return its output."""
    monkeypatch.chdir(tmp_path)

    def call(*args):
        result = CliRunner().invoke(certs_app, [*map(str, args)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_from_init_to_an_identity(certs, tmp_path):
    said = certs("init", "--host", "train.example.org", "--host", "192.0.2.7")
    assert "federation/ca.key" in said and "colonnade certs sign NAME.csr --dir federation" in said
    said = certs("request", "hospital", "--dir", "h")
    assert "h/hospital.key is the private key: it stays" in said and "to the federation: h/hospital.csr" in said
    said = certs("sign", "h/hospital.csr")
    assert "to hospital: federation/hospital.pem, federation/ca.pem\n" in said
    assert (
        "once the last party is signed: federation/members.toml" in said
        and read_members(tmp_path / "federation/members.toml")["hospital"] in said
    )
    home = tmp_path / "federation"
    assert Identity.load(home / "hospital.pem", tmp_path / "h/hospital.key", home / "ca.pem").name == "hospital"
    assert not list(home.glob("hospital.key"))


def test_show_prints_what_a_certificate_says(certs):
    certs("init", "--host", "train.example.org")
    said = certs("show", "federation/server.pem")
    assert re.search(r"^name: +server$", said, re.M)
    assert re.search(r"^issuer: +federation [0-9a-f]{16}$", said, re.M)
    assert re.search(r"^valid until: 2\d{3}-\d\d-\d\d \d\d:\d\d UTC$", said, re.M)
    assert re.search(r"^fingerprint: [0-9a-f]{64}$", said, re.M)
    assert re.search(r"^hosts: +server, localhost, train.example.org, 127.0.0.1$", said, re.M)


def test_renewals_say_which_member_needs_what(certs, tmp_path):
    certs("init", "--dir", "f")
    certs("request", "bank")
    certs("sign", "bank.csr", "--dir", "f")
    before = read_members(tmp_path / "f/members.toml")
    assert "to bank: f/bank.pem" in certs("sign", "bank.csr", "--dir", "f", "--renew", "--days", 90)
    said = certs("init", "--dir", "f", "--renew", "--host", "new.example.org")
    assert "every party: f/members.toml" in said and "to the server: f/server.pem" in said
    after = read_members(tmp_path / "f/members.toml")
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())
    assert "new.example.org" in describe(tmp_path / "f/server.pem")["hosts"]


def test_errors_are_for_the_main_command_to_print(certs):
    certs("init")
    with pytest.raises(ConfigError, match="federation/ca.key.*exists.*certs renew server"):
        certs("init")
    with pytest.raises(ConfigError, match="name = 'a b'"):
        certs("request", "a b")
    with pytest.raises(ConfigError, match="none.csr.*No such file"):
        certs("sign", "none.csr")
    with pytest.raises(ConfigError, match="not a certificate"):
        certs("show", "federation/ca.key")


def test_renew_revoke_and_show(certs, tmp_path):
    certs("init")
    code = re.search(r"Code of the request: ((\d{5} ){4}\d{5})  \(compare these digits by telephone before signing\)",
                     certs("request", "shop"))[1]  # fmt: skip
    assert f"{code}  (compare these digits by telephone" in certs("show", "shop.csr")
    with pytest.raises(ConfigError, match=f"--code = '00000': shop.csr has the code {code}: it is not the request"):
        certs("sign", "shop.csr", "--code", "00000")
    assert not (tmp_path / "federation/shop.pem").exists()
    assert "Signed shop" in certs("sign", "shop.csr", "--code", code.replace(" ", ""))
    assert "to the server, and to every party: federation/members.toml\n  to shop:" in certs("renew", "shop")
    assert "to the server: federation/server.pem" in certs("renew", "server", "--host", "new.example.org")
    assert "to the server, and to every party: federation/ca.pem" in certs("renew", "ca", "--days", 20)
    said = certs("show")
    assert re.search(r"^ca +authority +2\S+ \S+ UTC +(19|20) days left", said, re.M)
    assert re.search(r"^shop +member +2\S+ \S+ UTC +36\d days left +[0-9a-f]{16}…$", said, re.M)
    assert re.search(r"^shop +before +2\S+ ", said, re.M) and re.search(r"^Code of this list: \d{5} ", said, re.M)
    certs("request", "bank")
    certs("sign", "bank.csr")
    assert "to server, bank: federation/members.toml" in certs("revoke", "shop")
    assert len(re.findall(r"^shop +revoked +2", certs("show", "federation/members.toml"), re.M)) == 2
    with pytest.raises(ConfigError, match="--host and --new-key are for the server"):
        certs("renew", "bank", "--new-key")
    with pytest.raises(ConfigError, match="is for a party, not for server"):
        certs("renew", "server", "--request", "bank.csr")
    assert "Fingerprint" in certs("renew", "bank", "--request", "bank.csr")
    with pytest.raises(ConfigError, match=r"network.members.*No such file"):
        certs("show", tmp_path)


@pytest.mark.parametrize("command", ["init", "request", "sign", "renew", "revoke", "show"])
def test_help_has_an_example(certs, command):
    assert f"colonnade certs {command}" in certs(command, "--help")
