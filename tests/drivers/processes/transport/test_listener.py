"""A server's port: who may stay how long, what TLS refuses, and connections that give no sign of life."""

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.drivers.processes import certificates as authority
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.pin import pinned_connection, why_lost
from colonnade.drivers.processes.transport.calls import CallLost
from colonnade.drivers.processes.transport.connection import Connection
from colonnade.drivers.processes.transport.listener import Listener
from colonnade.drivers.processes.transport.tls import client_context

from .conftest import identity

CALM = Limits(handshake_s=1e6, heartbeat_s=1e5, lost_after_s=1e6)
WAIT_S = 60


@contextlib.asynccontextmanager
async def open_door(certificates, limits=CALM, most=100):
    """A listener whose only method takes its callers for members and waits."""

    async def stay(call):
        made.member_calls(call)
        call.over = lambda: made.member_hung_up(call)
        await call.read()

    refused = []
    made = Listener(
        identity(certificates, "server"), {b"/a/stay": stay}, limits, most, 2**20, lambda *why: refused.append(why)
    )
    made.refused = refused
    made.port = await made.start("127.0.0.1", 0)
    made.address = f"127.0.0.1:{made.port}"
    try:
        yield made
    finally:
        await made.stop(0.1)


def timed(run):
    asyncio.run(asyncio.wait_for(run(), WAIT_S))


async def until(holds):
    while not holds():
        await asyncio.sleep(0.005)


async def knock(stack, port, source="127.0.0.1"):
    """A socket that says nothing."""
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
    made.setblocking(False)
    return made


async def closed(sock):
    with contextlib.suppress(ConnectionError):
        return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    return True


def test_the_oldest_strangers_of_a_crowded_address_are_hung_up_on(certificates):
    """Members stay, and so does another address."""

    async def run():
        with contextlib.ExitStack() as stack:
            async with open_door(certificates, replace(CALM, max_per_address=2)) as door:
                member = await pinned_connection(identity(certificates, "bank"), door.address, (), 2**20)
                call = member.call("/a/stay")
                await until(lambda: door._calls)
                other = await knock(stack, door.port, "127.0.0.2")
                crowd = [await knock(stack, door.port) for _ in range(4)]
                assert [await closed(sock) for sock in crowd[:2]] == [True, True]
                assert door.refused == [("connections", "127.0.0.1", "too many connections")] * 2
                assert door.count == 4 and not member.gone.done()
                call.cancel()
                await until(lambda: not door._calls)
                assert door.count == 4, "the member's is a stranger's again"
                await knock(stack, door.port)
                assert await closed(crowd[2])
                with pytest.raises(BlockingIOError):
                    other.recv(1)  # still there

    timed(run)


def test_too_many_connections_in_all(certificates):
    """The address with the most loses its oldest."""

    async def run():
        with contextlib.ExitStack() as stack:
            async with open_door(certificates, CALM, most=4) as door:
                other = await knock(stack, door.port, "127.0.0.2")
                crowd = [await knock(stack, door.port) for _ in range(2)]
                await until(lambda: door.count == 3)
                crowd += [await knock(stack, door.port, "127.0.0.3") for _ in range(2)]
                assert await closed(crowd[0])
                assert door.count == 4
                with pytest.raises(BlockingIOError):
                    other.recv(1)

    timed(run)


def test_a_connection_without_a_members_call_ends_after_a_while(certificates):
    async def run():
        with contextlib.ExitStack() as stack:
            async with open_door(certificates) as door:
                silent = await knock(stack, door.port)
                member = await pinned_connection(identity(certificates, "bank"), door.address, (), 2**20)
                call = member.call("/a/stay")
                await until(lambda: door._calls)
                door._look(time.monotonic() + 1.05e6)
                assert await closed(silent)
                assert door.refused == [("handshake", "127.0.0.1", "connected, but no member called")]
                call.cancel()
                await until(lambda: not door._calls)
                door._look(time.monotonic())
                assert door.count == 1, "it has just hung up"
                door._look(time.monotonic() + 2e6)
                await member.gone

    timed(run)


def test_a_member_that_gives_no_sign_of_life_is_hung_up_on(certificates, monkeypatch):
    async def run():
        async with open_door(certificates, replace(CALM, heartbeat_s=1.0, lost_after_s=5.0)) as door:
            member = await pinned_connection(identity(certificates, "bank"), door.address, (), 2**20)
            call = member.call("/a/stay")
            await until(lambda: door._calls)
            (there,) = door._calls
            there.heard = before = time.monotonic() - 2.0
            door._look(time.monotonic())
            await until(lambda: there.heard > before)  # it answers a PING, although nothing is said
            monkeypatch.setattr(
                Connection, "buffer_updated", lambda self, size: None
            )  # neither side hears anything now
            there.heard = time.monotonic() - 7.0
            door._look(time.monotonic())
            await member.gone
            with pytest.raises(CallLost):
                await call.read()

    timed(run)


# What TLS refuses


def raw(certificates, **more):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / "ca.pem")
    for key, value in more.items():
        setattr(context, key, value)
    return context


async def shake(door, context):
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=context, server_hostname="server")
        await reader.read()
        writer.close()


def for_servers_only(certificates, folder):
    """A certificate of the federation's authority that its holder may not call with."""
    ca = x509.load_pem_x509_certificate((certificates / "ca.pem").read_bytes())
    signing = load_pem_private_key((certificates / "ca.key").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mallory")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(ca.subject).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
    pem = made.sign(signing, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / "made.pem").write_bytes(pem)
    (folder / "made.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "made.pem", folder / "made.key"


@pytest.mark.parametrize(
    ("guest", "cause"),
    [
        ("none", "no certificate"),
        ("old TLS", "speaks an older TLS than 1.3"),
        ("other", "a certificate of another authority"),
        ("a server's", "a certificate that is not for this"),
    ],
)
def test_why_a_handshake_fails(certificates, tmp_path, guest, cause):
    context = raw(certificates)
    if guest == "old TLS":
        context = raw(certificates, maximum_version=ssl.TLSVersion.TLSv1_2)
    elif guest == "other":
        throw_away(["bank"], tmp_path / "other")
        context.load_cert_chain(tmp_path / "other" / "bank.pem", tmp_path / "other" / "bank.key")
    elif guest == "a server's":
        context.load_cert_chain(*for_servers_only(certificates, tmp_path))

    async def run():
        async with open_door(certificates) as door:
            await shake(door, context)
            await until(lambda: door.refused)
            assert door.refused == [("tls", "127.0.0.1", cause)]

    timed(run)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(100), b"\xde\xad\xbe\xef" * 64, b"\x16\x03\x01\xff\xff" + bytes(500)],
)
def test_guests_that_speak_no_tls(certificates, said):
    async def run():
        with contextlib.ExitStack() as stack:
            async with open_door(certificates) as door:
                guest = await knock(stack, door.port)
                guest.send(said)
                await until(lambda: door.refused)
                assert door.refused == [("tls", "127.0.0.1", "does not speak TLS")]

    timed(run)


def test_a_guest_that_speaks_tls_and_not_http2(certificates):
    context = raw(certificates)
    context.load_cert_chain(certificates / "bank.pem", certificates / "bank.key")

    async def run():
        async with open_door(certificates) as door:
            _, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=context, server_hostname="server")
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: door.refused)
            assert door.refused == [("protocol", "127.0.0.1", "does not speak HTTP/2")]
            writer.close()

    timed(run)


def test_another_certificate_is_shown_from_the_next_connection_on(certificates, tmp_path):
    home = tmp_path / "federation"
    authority.init(home)
    authority.sign(authority.request("bank", home), home)

    async def run():
        async with open_door(home) as door:
            before = await pinned_connection(identity(home, "bank"), door.address, (), 2**20)
            call = before.call("/a/stay")
            door.show(identity(certificates, "server"))  # of another authority
            with pytest.raises(ssl.SSLCertVerificationError):
                await pinned_connection(identity(home, "bank"), door.address, (), 2**20)
            after = await pinned_connection(identity(certificates, "bank"), door.address, (), 2**20)
            assert after.fingerprint != before.fingerprint and not before.gone.done()
            call.cancel()

    timed(run)


def test_a_client_hears_why_its_certificate_is_refused(certificates, tmp_path):
    throw_away(["bank"], tmp_path / "other")
    stranger = replace(identity(tmp_path / "other", "bank"), authority=(certificates / "ca.pem").read_bytes())

    async def run():
        async with open_door(certificates) as door:
            connection = await pinned_connection(stranger, door.address, (), 2**20)
            with pytest.raises(CallLost) as raised:
                await connection.call("/a/stay").read()
            assert "it may not accept this certificate (valid from" in why_lost(raised.value, connection, stranger)

    timed(run)


def test_two_servers_do_not_share_a_port(certificates):
    async def run():
        async with open_door(certificates) as door:
            other = Listener(identity(certificates, "server"), {}, CALM, 100, 2**20, print)
            with pytest.raises(OSError, match="in use"):
                await other.start("127.0.0.1", door.port)

    timed(run)


def test_a_pin_is_compared_before_anything_is_said(certificates):
    async def run():
        async with open_door(certificates) as door:
            own = identity(certificates, "bank")
            with pytest.raises(Exception, match="is not the one in network.members"):
                await pinned_connection(own, door.address, ["0" * 64], 2**20)
            assert client_context(own).verify_mode == ssl.CERT_REQUIRED and client_context(own).check_hostname

    timed(run)
