"""Certificates: what is made and what is refused; gRPC and OpenSSL at its strictest agree."""

import os
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.drivers.processes import certificate_files, signing
from colonnade.drivers.processes.certificates import (
    Identity,
    describe,
    expires_in_days,
    fingerprint,
    init,
    read_members,
    request,
    sign,
    throw_away,
)
from colonnade.drivers.processes.renewal import renew_server
from colonnade.protocol.errors import ConfigError

NOW = datetime(2031, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def federation(tmp_path):
    """A federation made at NOW, and one party that was signed then."""
    home, party = tmp_path / "federation", tmp_path / "hospital"
    init(home, ["train.example.org", "192.0.2.7", "2001:db8::7", "localhost"], now=NOW)
    sign(request("hospital", party), home, now=NOW)
    return home


def load(federation, name="hospital", now=NOW, authority=None):
    folder = federation if name == "server" else federation.parent / name
    return Identity.load(
        federation / f"{name}.pem", folder / f"{name}.key", authority or federation / "ca.pem", now=now
    )


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def extension(path, kind):
    return read(path).extensions.get_extension_for_class(kind)


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def own_request(path, name=None, key=None, subject=None, extensions=()):
    """A request that `certs request` would not make."""
    attributes = subject or [(NameOID.COMMON_NAME, name)]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(*pair) for pair in attributes]))
    for value in extensions:
        builder = builder.add_extension(value, critical=True)
    csr = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    path.write_bytes(csr.public_bytes(Encoding.PEM))
    return path


# --- what is made --------------------------------------------------------------------------------------------------


def test_a_federation_has_an_authority_a_server_and_a_list(federation):
    assert sorted(path.name for path in federation.iterdir()) == [
        *("ca.key", "ca.pem", "hospital.pem", "members.toml", "server.key", "server.pem")
    ]
    members = read_members(federation / "members.toml")
    assert members == {name: fingerprint(read(federation / f"{name}.pem")) for name in ("server", "hospital")}
    assert members["server"] == read(federation / "server.pem").fingerprint(hashes.SHA256()).hex()


def test_the_authority_signs_members_and_nothing_below_them(federation):
    basic = extension(federation / "ca.pem", x509.BasicConstraints)
    assert (basic.value.ca, basic.value.path_length, basic.critical) == (True, 0, True)
    usage = extension(federation / "ca.pem", x509.KeyUsage).value
    assert usage.key_cert_sign and usage.crl_sign and not usage.digital_signature
    ca_id = extension(federation / "ca.pem", x509.SubjectKeyIdentifier).value
    for name in ("server.pem", "hospital.pem"):
        assert extension(federation / name, x509.AuthorityKeyIdentifier).value.key_identifier == ca_id.digest
        assert not extension(federation / name, x509.BasicConstraints).value.ca
        assert not extension(federation / name, x509.KeyUsage).value.key_cert_sign
        read(federation / name).verify_directly_issued_by(read(federation / "ca.pem"))


def test_the_server_answers_and_asks_and_a_party_only_asks(federation):
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    assert list(extension(federation / "server.pem", x509.ExtendedKeyUsage).value) == [server, client]
    assert list(extension(federation / "hospital.pem", x509.ExtendedKeyUsage).value) == [client]


def test_the_server_can_be_reached_by_the_names_given(federation):
    names = extension(federation / "server.pem", x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server", "localhost", "train.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "192.0.2.7", "2001:db8::7"]


def test_dates_allow_for_clocks_that_are_a_little_off_and_end_with_the_authority(tmp_path):
    init(tmp_path, days=400, ca_days=100, now=NOW)
    whole = NOW.replace(microsecond=0)
    assert read(tmp_path / "server.pem").not_valid_before_utc == whole - timedelta(minutes=5)
    assert read(tmp_path / "server.pem").not_valid_after_utc == whole + 100 * DAY
    assert read(tmp_path / "ca.pem").not_valid_after_utc == whole + 100 * DAY


def test_serials_and_authorities_differ(tmp_path):
    one, two = init(tmp_path / "one"), init(tmp_path / "two")
    assert read(one.certificate).subject != read(two.certificate).subject
    assert len({read(path).serial_number for path in (*tmp_path.glob("*/*.pem"),)}) == 4


def test_keys_are_born_private_even_under_an_open_umask(tmp_path, monkeypatch):
    modes = {}

    def spy(path, flags, mode, open=os.open):
        descriptor = open(path, flags, mode)
        modes[Path(path).name] = (stat.S_IMODE(os.fstat(descriptor).st_mode), bool(flags & os.O_EXCL))
        return descriptor

    monkeypatch.setattr(certificate_files.os, "open", spy)
    before = os.umask(0)
    try:
        init(tmp_path / "federation")
        request("hospital", tmp_path)
        throw_away(["a"], tmp_path / "local")
    finally:
        os.umask(before)
    assert {name for name in modes if name.endswith(".key")} == {"ca.key", "server.key", "hospital.key", "a.key"}
    for name, found in modes.items():
        assert found == ((0o600 if name.endswith(".key") else 0o644), True)
    assert all(mode(path) == 0o600 for path in tmp_path.rglob("*.key"))


# --- requests and signing ------------------------------------------------------------------------------------------


def test_a_request_that_asks_to_be_an_authority_gets_a_plain_certificate(federation, tmp_path):
    asked = [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
        x509.SubjectAlternativeName([x509.DNSName("localhost")]),
    ]
    subject = [(NameOID.ORGANIZATION_NAME, "server"), (NameOID.COMMON_NAME, "greedy")]
    path = sign(own_request(tmp_path / "x.csr", subject=subject, extensions=asked), federation, now=NOW)
    assert path == federation / "greedy.pem"
    assert [attribute.value for attribute in read(path).subject] == ["greedy"]
    assert not extension(path, x509.BasicConstraints).value.ca
    assert list(extension(path, x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        extension(path, x509.SubjectAlternativeName)


@pytest.mark.parametrize("name", ["server", "Server", "ca", "", "../up", "a b", ".hidden", "x" * 64, "a\n", "é"])
def test_names_that_no_party_can_have(federation, tmp_path, name):
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match="name"):
        request(name, tmp_path)
    with pytest.raises(ConfigError, match="name"):
        throw_away(["a", name], tmp_path / "local")
    assert snapshot(tmp_path) == before
    if name:
        csr = own_request(tmp_path / "bad.csr", name)
        with pytest.raises(ConfigError, match="name"):
            sign(csr, federation, renew=True, now=NOW)
        csr.unlink()
    assert snapshot(tmp_path) == before


def test_requests_that_are_not_signed(federation, tmp_path):
    good = request("bank", tmp_path).read_bytes()
    csr = tmp_path / "odd.csr"
    der = bytearray(x509.load_pem_x509_csr(good).public_bytes(Encoding.DER))
    der[der.index(b"bank")] = ord("t")  # the name was changed in transit
    csr.write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM))
    with pytest.raises(ConfigError, match="signature is wrong"):
        sign(csr, federation, now=NOW)
    csr.write_bytes(b"hello")
    with pytest.raises(ConfigError, match="not a signing request"):
        sign(csr, federation, now=NOW)
    with pytest.raises(ConfigError, match="No such file"):
        sign(tmp_path / "none.csr", federation, now=NOW)
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(ConfigError, match="P-256"):
            sign(own_request(csr, "bank", key), federation, now=NOW)
    with pytest.raises(ConfigError, match="one valid member name"):
        sign(own_request(csr, subject=[(NameOID.COMMON_NAME, "a"), (NameOID.COMMON_NAME, "b")]), federation, now=NOW)
    assert set(read_members(federation / "members.toml")) == {"server", "hospital"}


def test_signing_again_needs_renew_and_a_first_time_refuses_it(federation, tmp_path):
    csr, members = tmp_path / "hospital/hospital.csr", federation / "members.toml"
    before = snapshot(federation)
    with pytest.raises(ConfigError, match="--renew"):
        sign(csr, federation, now=NOW)
    with pytest.raises(ConfigError, match="no certificate to renew"):
        sign(request("bank", tmp_path), federation, renew=True, now=NOW)
    with pytest.raises(ConfigError, match="upper and lower case"):
        sign(request("Hospital", tmp_path), federation, now=NOW)
    assert snapshot(federation) == before

    later = NOW + 400 * DAY
    sign(csr, federation, days=30, renew=True, now=later)
    assert read_members(members)["hospital"] == fingerprint(read(federation / "hospital.pem"))
    assert members.read_bytes() != before[members]
    assert expires_in_days(load(federation, now=later), now=later) == 30


def test_a_struck_off_member_comes_back_by_renewal(federation, tmp_path):
    members = federation / "members.toml"
    lines = [line for line in members.read_text().splitlines() if "hospital" not in line]
    members.write_text("\n".join(lines))
    sign(tmp_path / "hospital/hospital.csr", federation, renew=True, now=NOW)
    assert set(read_members(members)) == {"server", "hospital"}


def test_the_server_is_renewed_with_its_key_and_its_hosts(federation):
    key, other = (federation / "server.key").read_bytes(), (federation / "hospital.pem").read_bytes()
    later = NOW + 366 * DAY
    with pytest.raises(ConfigError, match="certs renew server"):
        load(federation, "server", later)
    renew_server(federation, ["new.example.org"], now=later)
    assert expires_in_days(load(federation, "server", later), now=later) == 365
    assert describe(federation / "server.pem")["hosts"] == (
        "server, localhost, train.example.org, new.example.org, 127.0.0.1, 192.0.2.7, 2001:db8::7"
    )
    assert (federation / "server.key").read_bytes() == key
    assert (federation / "hospital.pem").read_bytes() == other
    assert read_members(federation / "members.toml")["server"] == fingerprint(read(federation / "server.pem"))


def test_an_authority_that_is_expired_or_wrong_signs_nothing(federation, tmp_path):
    csr = request("bank", tmp_path)
    with pytest.raises(ConfigError, match="ca.pem.*expired on 2041-04-28"):
        sign(csr, federation, now=NOW + 4000 * DAY)
    (federation / "ca.key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        sign(csr, federation, now=NOW)
    (federation / "ca.key").chmod(0o600)
    (federation / "ca.key").write_bytes((federation / "server.key").read_bytes())
    with pytest.raises(ConfigError, match="not the private key"):
        sign(csr, federation, now=NOW)
    with pytest.raises(ConfigError, match="No such file"):
        sign(csr, tmp_path / "elsewhere", now=NOW)


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["ca.key", "ca.pem", "server.key", "server.pem", "members.toml"])
def test_init_writes_nothing_where_one_of_its_files_is(tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=there):
        init(tmp_path)
    assert snapshot(tmp_path) == {tmp_path / there: b"mine"}


@pytest.mark.parametrize("there", ["hospital.key", "hospital.csr"])
def test_a_request_overwrites_nothing(tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=there):
        request("hospital", tmp_path)
    assert snapshot(tmp_path) == {tmp_path / there: b"mine"}


def test_a_set_that_cannot_be_finished_is_taken_back(tmp_path):
    (tmp_path / "server.pem").symlink_to(tmp_path / "nowhere")  # not there to look at, in the way all the same
    with pytest.raises(ConfigError, match="server.pem.*File exists"):
        init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["server.pem"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        init(tmp_path / "file")


@pytest.mark.parametrize("days", [0, -1, 36501, 10**12])
def test_days_that_cannot_be(tmp_path, days):
    with pytest.raises(ConfigError, match="days"):
        init(tmp_path, days=days)
    with pytest.raises(ConfigError, match="days"):
        init(tmp_path, ca_days=days)
    assert not snapshot(tmp_path)


@pytest.mark.parametrize(
    "host", ["host:7000", "https://host", "", "300.1.1.1", "a..b", "bücher.example", "[::1]", "*.x"]
)
def test_hosts_that_cannot_be(tmp_path, host):
    with pytest.raises(ConfigError, match="host"):
        init(tmp_path, [host])
    assert not snapshot(tmp_path)


HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("members = 3", r"a table \[members\]"),
        ("", r"a table \[members\]"),
        (f"[members]\na = '{HEX}'\n[others]\n", r"a table \[members\]"),
        ("[members", "not TOML"),
        ("[members]\na = 3", "a: must be 64 lower-case hex"),
        (f"[members]\na = '{HEX.upper()}'", "a: must be 64 lower-case hex"),
        (f"[members]\n'a b' = '{HEX}'", "'a b'"),
        (f"[members]\na = '{HEX}'\nb = '{HEX}'", "same fingerprint"),
    ],
)
def test_lists_of_members_that_cannot_be(tmp_path, text, complaint):
    path = tmp_path / "members.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"network.members.*{complaint}"):
        read_members(path)


def test_a_missing_or_binary_list_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="network.members.*No such file"):
        read_members(tmp_path / "members.toml")
    (tmp_path / "members.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        read_members(tmp_path / "members.toml")


def test_dots_in_a_name_stay_one_key(federation, tmp_path):
    sign(request("a.b-c_d", tmp_path), federation, now=NOW)
    assert set(read_members(federation / "members.toml")) == {"server", "hospital", "a.b-c_d"}


# --- an identity, before any connection ----------------------------------------------------------------------------


def test_an_identity_that_is_sound(federation):
    identity = load(federation)
    assert identity.name == "hospital"
    assert identity.certificate == (federation / "hospital.pem").read_bytes()
    assert identity.authority == (federation / "ca.pem").read_bytes()
    assert fingerprint(identity.certificate) == read_members(federation / "members.toml")["hospital"]
    assert expires_in_days(identity, now=NOW) == 365
    assert load(federation, "server").name == "server"


def test_an_identity_does_not_show_its_key(federation):
    assert b"PRIVATE KEY" in load(federation).key
    assert "PRIVATE" not in repr(load(federation))


@pytest.mark.parametrize("wide", [0o644, 0o640, 0o602, 0o610])
def test_a_key_that_others_can_reach(federation, wide):
    key = federation.parent / "hospital/hospital.key"
    key.chmod(wide)
    with pytest.raises(ConfigError, match=f"network.key.*chmod 600 {key}"):
        load(federation)
    key.chmod(0o400)
    load(federation)


def test_files_that_are_missing_or_something_else(federation, tmp_path):
    pem, key, ca = federation / "hospital.pem", tmp_path / "hospital/hospital.key", federation / "ca.pem"
    nothing, words = tmp_path / "nothing", tmp_path / "words"
    words.write_text("hello")
    words.chmod(0o600)
    for setting, place in (("network.certificate", 0), ("network.key", 1), ("network.authority", 2)):
        for path, complaint in ((nothing, "No such file"), (tmp_path, "Is a directory"), (words, "in PEM")):
            files = [pem, key, ca]
            files[place] = path
            with pytest.raises(ConfigError, match=f"{setting} = .*{complaint}"):
                Identity.load(*files, now=NOW)
    words.write_bytes(ca.read_bytes() + pem.read_bytes())
    with pytest.raises(ConfigError, match="network.authority.*holds 2 certificates"):
        Identity.load(pem, key, words, now=NOW)


def test_a_key_behind_a_passphrase(federation, tmp_path):
    key = tmp_path / "hospital/hospital.key"
    private = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(ConfigError, match="network.key.*passphrase"):
        load(federation)


def test_files_that_do_not_belong_together(federation, tmp_path):
    pem, key = federation / "hospital.pem", tmp_path / "hospital/hospital.key"
    with pytest.raises(ConfigError, match="network.key.*not the private key of"):
        Identity.load(pem, federation / "server.key", federation / "ca.pem", now=NOW)
    other = init(tmp_path / "other", now=NOW)
    with pytest.raises(ConfigError, match="network.certificate.*not signed by"):
        Identity.load(pem, key, other.certificate, now=NOW)
    with pytest.raises(ConfigError, match="network.authority.*not an authority's"):
        Identity.load(pem, key, federation / "server.pem", now=NOW)


def test_an_authority_of_the_same_name_is_found_out_by_its_signature(federation, tmp_path, monkeypatch):
    name = describe(federation / "ca.pem")["name"].removeprefix("federation ")
    monkeypatch.setattr(signing.secrets, "token_hex", lambda size: name)
    twin = init(tmp_path / "twin", now=NOW).certificate
    assert read(twin).subject == read(federation / "ca.pem").subject
    with pytest.raises(ConfigError, match="network.certificate.*not signed by"):
        load(federation, authority=twin)


def test_dates_are_checked_to_the_second(federation):
    whole = NOW.replace(microsecond=0)
    first, last = whole - timedelta(minutes=5), whole + 365 * DAY
    load(federation, now=first)
    load(federation, now=last)
    with pytest.raises(
        ConfigError, match="only from 2031-05-01 11:55 UTC, but this machine's clock shows 2031-05-01 11:54 UTC"
    ):
        load(federation, now=first - timedelta(seconds=1))
    with pytest.raises(
        ConfigError, match="expired on 2032-04-30 12:00 UTC; .*clock shows 2032-04-30 12:00 UTC.*certs renew hospital"
    ):
        load(federation, now=last + timedelta(seconds=1))
    with pytest.raises(ConfigError, match="network.authority.*expired on 2041-04-28"):
        load(federation, now=NOW + 3651 * DAY)


# --- for one machine -----------------------------------------------------------------------------------------------


def test_a_throw_away_federation_is_whole(tmp_path):
    throw_away(["a", "b"], tmp_path / "local", now=NOW)
    local = tmp_path / "local"
    pairs = [f"{name}.{kind}" for name in ("a", "b", "server") for kind in ("key", "pem")]
    assert sorted(path.name for path in local.iterdir()) == sorted([*pairs, "ca.key", "ca.pem", "members.toml"])
    assert (mode(local), mode(local / "ca.key")) == (0o700, 0o600)
    ca_key = read(local / "ca.pem").public_key()
    for name, mark in read_members(local / "members.toml").items():
        identity = Identity.load(local / f"{name}.pem", local / f"{name}.key", local / "ca.pem", now=NOW)
        assert (identity.name, fingerprint(identity.certificate)) == (name, mark)
        assert load_pem_private_key(identity.key, None).public_key() != ca_key
    with pytest.raises(ConfigError, match="exists"):
        throw_away(["c"], local)


# --- TLS -----------------------------------------------------------------------------------------------------------


def shake_hands(server, client, host):
    """A whole TLS handshake in memory; return the names that the two sides saw."""
    wires = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    ends = [
        server.wrap_bio(wires[0], wires[1], server_side=True),
        client.wrap_bio(wires[1], wires[0], server_hostname=host),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return [dict(pair[0] for pair in end.getpeercert()["subject"])["commonName"] for end in ends]


def context(purpose, federation, pem, key):
    made = ssl.create_default_context(purpose, cafile=federation / "ca.pem")
    made.load_cert_chain(pem, key)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


@pytest.fixture
def running(tmp_path):
    """A federation made today."""
    home = tmp_path / "today"
    init(home, ["train.example.org", "192.0.2.7"])
    sign(request("hospital", tmp_path), home)
    return home


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "train.example.org", "192.0.2.7"])
def test_openssl_accepts_both_sides_at_its_strictest(running, tmp_path, host):
    server = context(ssl.Purpose.CLIENT_AUTH, running, running / "server.pem", running / "server.key")
    party = context(ssl.Purpose.SERVER_AUTH, running, running / "hospital.pem", tmp_path / "hospital.key")
    assert shake_hands(server, party, host) == ["hospital", "server"]


def test_openssl_refuses_a_party_as_server_and_a_host_that_was_not_given(running, tmp_path):
    server = context(ssl.Purpose.CLIENT_AUTH, running, running / "server.pem", running / "server.key")
    party = context(ssl.Purpose.SERVER_AUTH, running, running / "hospital.pem", tmp_path / "hospital.key")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, party, "elsewhere.example.org")
    posing = context(ssl.Purpose.CLIENT_AUTH, running, running / "hospital.pem", tmp_path / "hospital.key")
    party.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="(?i)unsuitable certificate purpose|unsupported .*purpose"):
        shake_hands(posing, party, "localhost")


@pytest.fixture
def grpc_server(running):
    """The address of a gRPC server that requires this federation's certificates and answers with the caller's name."""

    def who(message, call):
        return call.auth_context()["x509_common_name"][0]

    handler = grpc.method_handlers_generic_handler("Test", {"Who": grpc.unary_unary_rpc_method_handler(who)})
    server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
    own = Identity.load(running / "server.pem", running / "server.key", running / "ca.pem")
    tls = grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", tls)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def ask(address, authority, key=None, certificate=None):
    credentials = grpc.ssl_channel_credentials(authority.read_bytes(), key, certificate)
    with grpc.secure_channel(address, credentials) as channel:
        return channel.unary_unary("/Test/Who")(b"", timeout=20).decode()


def test_grpc_accepts_a_signed_party_and_the_server_itself(grpc_server, running, tmp_path):
    for name, folder in (("hospital", tmp_path), ("server", running)):
        own = Identity.load(running / f"{name}.pem", folder / f"{name}.key", running / "ca.pem")
        assert ask(grpc_server, running / "ca.pem", own.key, own.certificate) == name


def refused(*arguments):
    with pytest.raises(grpc.RpcError) as error:
        ask(*arguments)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE  # and not DEADLINE_EXCEEDED


def test_grpc_refuses_a_stranger_an_expired_party_and_a_caller_without_certificate(grpc_server, running, tmp_path):
    ca = running / "ca.pem"
    throw_away(["hospital"], tmp_path / "strangers")
    stranger = [(tmp_path / f"strangers/hospital.{kind}").read_bytes() for kind in ("key", "pem")]
    refused(grpc_server, ca, *stranger)

    today = datetime.now(UTC)
    signer, key = signing.Signer.load(ca, running / "ca.key", today), signing.new_key()
    fresh, expired = (
        certificate_files.pem(signer.issue("late", key.public_key(), signing.PARTY_USAGE, 1, moment))
        for moment in (today, today - 2 * DAY)
    )
    assert ask(grpc_server, ca, certificate_files.pem_of_key(key), fresh) == "late"
    refused(grpc_server, ca, certificate_files.pem_of_key(key), expired)

    refused(grpc_server, ca)
    refused(grpc_server, tmp_path / "strangers/ca.pem", *stranger)  # a stranger does not trust the server either
