"""Renewals and revocations in the federation's folder, with a clock that the test sets."""

import asyncio
import io
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from colonnade.drivers.processes import certificates, renewal, service
from colonnade.drivers.processes.certificates import Identity, fingerprint, read_members, request, sign, throw_away
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.identity import key_digest
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.members import list_code
from colonnade.drivers.processes.members_overview import overview
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.pin import cause_in_words, pinned_connection, why_lost
from colonnade.drivers.processes.transport.calls import CallFailed, CallLost
from colonnade.protocol.errors import ConfigError

NOW = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def home(tmp_path):
    certificates.init(tmp_path / "federation", now=NOW)
    for name in ("bank", "shop"):
        sign(request(name, tmp_path / name), tmp_path / "federation", now=NOW)
    return tmp_path / "federation"


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def members(home):
    return read_members(home / "members.toml")


def test_a_party_is_renewed_for_its_key_and_both_certificates_count(home, tmp_path):
    old, before = read(home / "bank.pem"), members(home)
    renewal.renew("bank", home, now=NOW + 300 * DAY)
    new = read(home / "bank.pem")
    assert new.public_key() == old.public_key() and new.not_valid_after_utc == NOW + 665 * DAY
    assert members(home).all_of("bank") == (fingerprint(new), fingerprint(old))
    assert members(home)["shop"] == before["shop"]
    Identity.load(home / "bank.pem", tmp_path / "bank/bank.key", home / "ca.pem", now=NOW + 300 * DAY)
    renewal.renew("bank", home, now=NOW + 400 * DAY)
    assert members(home).all_of("bank") == (fingerprint(read(home / "bank.pem")), fingerprint(new)), "two at most"
    renewal.renew("bank", home, now=NOW + 2000 * DAY)
    assert len(members(home).all_of("bank")) == 1, "the one before has expired"


def test_a_new_key_comes_with_a_request(home, tmp_path):
    csr = request("bank", tmp_path / "new")
    renewal.renew("bank", home, csr=csr, now=NOW)
    Identity.load(home / "bank.pem", tmp_path / "new/bank.key", home / "ca.pem", now=NOW)
    with pytest.raises(ConfigError, match="is a request of bank, not of shop"):
        renewal.renew("shop", home, csr=csr, now=NOW)


def test_what_cannot_be_renewed_or_revoked(home):
    before = (home / "members.toml").read_bytes()
    with pytest.raises(ConfigError, match="NAME = 'lab': is not a member; the members are server, bank, shop"):
        renewal.renew("lab", home, now=NOW)
    with pytest.raises(ConfigError, match="NAME = 'lab': is not a member"):
        renewal.revoke("lab", home)
    with pytest.raises(ConfigError, match="needs its server.*certs renew server --new-key"):
        renewal.revoke("server", home)
    with pytest.raises(ConfigError, match=r"expired on 2041.*clock shows 2061.*certs renew ca"):
        renewal.renew("bank", home, now=NOW + 11000 * DAY)
    assert (home / "members.toml").read_bytes() == before


def test_a_revoked_party_needs_a_new_key_to_come_back(home, tmp_path):
    old = fingerprint(read(home / "shop.pem"))
    renewal.renew("shop", home, now=NOW)
    newer = fingerprint(read(home / "shop.pem"))
    assert renewal.revoke("shop", home) == ["server", "bank"]
    assert members(home).revoked == {"shop": (newer, old)} and not (home / "shop.pem").exists()
    for act in (lambda: renewal.revoke("shop", home), lambda: renewal.renew("shop", home, now=NOW)):
        with pytest.raises(ConfigError, match=r"was revoked; to admit it again.*certs sign shop.csr"):
            act()
    with pytest.raises(ConfigError, match="has the key of a certificate that was revoked"):
        sign(tmp_path / "shop/shop.csr", home, now=NOW)
    sign(tmp_path / "shop/shop.csr", home, same_key=True, now=NOW)
    renewal.revoke("shop", home)
    sign(request("shop", tmp_path / "new"), home, now=NOW)
    assert "shop" in members(home) and len(members(home).revoked["shop"]) == 3
    with pytest.raises(ConfigError, match="has the key of a certificate that was revoked"):
        renewal.renew("shop", home, csr=tmp_path / "shop/shop.csr", now=NOW)


def test_a_stolen_key_of_the_server_is_replaced(home):
    old = fingerprint(read(home / "server.pem"))
    renewal.renew_server(home, new_key_too=True, now=NOW)
    assert members(home).all_of("server") == (fingerprint(read(home / "server.pem")),)
    assert members(home).revoked == {"server": (old,)}
    assert stat.S_IMODE((home / "server.key").stat().st_mode) == 0o600
    Identity.load(home / "server.pem", home / "server.key", home / "ca.pem", now=NOW)


def test_the_authority_keeps_its_key(home, tmp_path):
    before = key_digest((home / "ca.pem").read_bytes())
    later = NOW + 4000 * DAY
    renewal.renew_authority(home, now=later)
    assert key_digest((home / "ca.pem").read_bytes()) == before
    renewal.renew("bank", home, now=later)
    Identity.load(home / "bank.pem", tmp_path / "bank/bank.key", home / "ca.pem", now=later)


def test_the_overview_has_dates_and_marks(home, tmp_path):
    renewal.renew("bank", home, now=NOW + 100 * DAY)
    renewal.revoke("shop", home)
    rows = [(row.name, row.state, row.days) for row in overview(home / "members.toml", now=NOW + 350 * DAY)]
    assert rows == [
        ("ca", "authority", 3300), ("server", "member", 15), ("bank", "member", 115), ("bank", "before", 15),
        ("shop", "revoked", 15),
    ]  # fmt: skip
    code = list_code(members(home))
    elsewhere = tmp_path / "members.toml"
    elsewhere.write_bytes((home / "members.toml").read_bytes())
    assert list_code(read_members(elsewhere)) == code
    assert all(row.until is None for row in overview(elsewhere, now=NOW))
    renewal.renew("bank", home, now=NOW)
    assert list_code(members(home)) != code


# A federation on one machine


def test_a_folder_of_one_machine_renews_itself(tmp_path):
    folder, names = tmp_path / "keys", ["a", "b"]
    throw_away(names, folder, 30, now=NOW)
    before = key_digest((folder / "ca.pem").read_bytes())
    assert renewal.freshen(names, folder, 30, now=NOW + 19 * DAY) == []
    assert renewal.freshen(names, folder, 30, now=NOW + 21 * DAY) == ["server", "a", "b"]
    assert renewal.freshen(names, folder, 30, now=NOW + 21 * DAY) == []
    for later in (NOW + 200 * DAY, NOW + 5000 * DAY):  # expired; the second time the authority, too
        assert renewal.freshen(names, folder, 30, now=later) == ["server", "a", "b"]
        for name in ("server", *names):
            Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem", now=later)
            assert members(folder).all_of(name) == (fingerprint(read(folder / f"{name}.pem")),)
    assert key_digest((folder / "ca.pem").read_bytes()) == before
    (folder / "a.pem").write_bytes((folder / "b.pem").read_bytes())  # as after a crash between two files
    assert renewal.freshen(names, folder, 30, now=later) == ["a"]


def test_a_folder_without_the_authoritys_key_gets_a_new_authority(tmp_path):
    folder = tmp_path / "keys"
    throw_away(["a"], folder, now=NOW)
    before = key_digest((folder / "ca.pem").read_bytes())
    (folder / "ca.key").unlink()
    assert renewal.freshen(["a"], folder, now=NOW) == ["server", "a"]
    assert key_digest((folder / "ca.pem").read_bytes()) != before
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    Identity.load(folder / "a.pem", folder / "a.key", folder / "ca.pem", now=NOW)
    assert renewal.freshen(["a"], folder, now=NOW) == []


# Clocks that are wrong


@pytest.fixture
def at_clock(tmp_path, tools):
    """What a party hears from a server; each member's certificate is a year long, made so many days from today."""

    def hear(server_days, party_days, act=_ask):
        today, home = datetime.now(UTC), tmp_path / "federation"
        certificates.init(home, now=today - 1000 * DAY)
        renewal.renew_server(home, now=today + server_days * DAY)
        csr = request("bank", tmp_path)
        sign(csr, home, now=today + party_days * DAY)
        own = Identity.load(home / "server.pem", home / "server.key", home / "ca.pem", now=today + server_days * DAY)
        party = Identity.load(home / "bank.pem", tmp_path / "bank.key", home / "ca.pem", now=today + party_days * DAY)
        return asyncio.run(asyncio.wait_for(_hear(tools, own, party, act), 60))

    return hear


async def _ask(party, address, wanted):
    """Call, and raise what the party hears."""
    async with await pinned_connection(party, address, wanted, 2**20, 5.0) as connection:
        call = connection.call("/no/method")
        try:
            await call.read()
        except CallLost as error:
            raise OSError(1, why_lost(error, connection, party)) from None
        except CallFailed as error:
            assert "no such method" in str(error)


async def _hear(tools, own, party, act):
    node = Node.__new__(Node)  # the service needs limits, peers and a log only
    node.limits, node.peers, node.refused, node.log = tools.CALM, {}, {}, Log("server", stream=io.StringIO())
    made = service.Service(node, own, {}, lambda *_: None, dict)
    address = await made.start("127.0.0.1:0")
    try:
        await act(party, address, [fingerprint(own.certificate)])
    except OSError as error:
        return cause_in_words(error)
    finally:
        await made.hang_up()
    return ""


def test_both_clocks_are_right(at_clock):
    assert at_clock(-1, -1) == ""


@pytest.mark.parametrize("days", [-370, 2])
def test_the_servers_certificate_is_not_valid_by_the_partys_clock(at_clock, days):
    said = at_clock(days, -1)
    assert said.startswith("the server's certificate is valid from 20") and "this machine's clock shows" in said
    assert "correct this clock" in said


@pytest.mark.parametrize("days", [-370, 2])
def test_the_partys_certificate_is_not_valid_by_the_servers_clock(at_clock, days):
    said = at_clock(-1, days)
    assert said.startswith("the server closed the connection; it may not accept this certificate (valid from")
    assert "this machine's clock shows" in said and "see its log" in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Python's TLS reads the member's own files")
def test_a_party_dials_with_the_certificate_that_was_checked(at_clock):
    async def act(party, *others):
        party.key_file.unlink()
        party.certificate_file.write_text("being replaced")
        return await _ask(party, *others)

    assert at_clock(-1, -1, act) == ""


def test_a_question_for_the_status_names_the_clock_too(at_clock):
    async def ask(party, address, *_):
        with pytest.raises(
            ConfigError, match="the server's certificate is valid from 20.*; this machine's clock shows 20"
        ):
            await ask_status(party, address, Limits())

    assert at_clock(-370, -1, ask) == ""
