"""Pins the server's certificate.

The list of members holds its fingerprint, but gRPC compares no fingerprints. So the party first fetches the certificate
and compares it. Then the certificate replaces the authority as the root of the channel, which accepts no other.

The fetch also finds out whether one side refuses the other's certificate. The cause then names its dates and this
machine's clock: one of the two clocks may be wrong.
"""

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import Collection

from cryptography import x509

from colonnade.drivers.processes.identity import SERVER, Identity, date_in_words, fingerprint, whole_seconds
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["CLOSED", "NOBODY", "NOT_OURS", "NotPinned", "cause_in_words", "pinned_certificate"]

_BY_DATE = (9, 10)  # OpenSSL: not valid yet, expired

NOBODY = "no server listens there"
NOT_OURS = "the server's certificate was not signed by network.authority"
REFUSES = "the server closed the connection; it may not accept this party's certificate"
CLOSED = "the server closed the connection; if this repeats, the server may not accept this certificate: see its log"


class NotPinned(RemoteProtocolError):
    """The server showed another certificate than the list of members has."""


class Refused(OSError):
    """One side does not accept the other's certificate; the text says what is known of the reason."""


async def pinned_certificate(
    identity: Identity, address: str, wanted: str | Collection[str], within_s: float = 10.0
) -> bytes:
    """The server's certificate in PEM; raises NotPinned if its fingerprint is not `wanted`, else OSError."""
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks authority and name
    context.load_verify_locations(cadata=identity.authority.decode())
    _load(context, identity)
    try:
        async with asyncio.timeout(within_s):
            certificate, answers = await _fetch(address, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _BY_DATE:
            raise Refused(await _servers_dates(identity, address, within_s)) from None
        raise
    if not answers:
        raise Refused(f"{REFUSES} ({_dates(identity.certificate)}): see its log")
    if fingerprint(certificate) not in wanted:
        listed = " or ".join(f"{one[:16]}…" for one in wanted)
        cause = f"its certificate, {fingerprint(certificate)[:16]}…, is not the one in network.members, {listed}"
        raise NotPinned(SERVER, cause)
    return certificate


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """Load the certificate and key that were checked. Python takes files only, and those on the disk may be newer."""
    if sys.platform != "linux":
        context.load_cert_chain(identity.certificate_file, identity.key_file)
        return
    with os.fdopen(os.memfd_create("identity"), "wb") as file:  # in memory only
        file.write(identity.key + identity.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


async def _fetch(address: str, context: ssl.SSLContext) -> tuple[bytes, bool]:
    """The certificate that a server shows, and whether it says anything. TLS 1.3 refuses a client by silence."""
    host, _, port = address.rpartition(":")
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, server_hostname=SERVER)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        answers = await reader.read(1) != b""  # an HTTP/2 server speaks first
    finally:
        writer.transport.abort()  # a TLS farewell would take a round trip
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return ssl.DER_cert_to_PEM_cert(shown).encode(), answers


async def _servers_dates(identity: Identity, address: str, within_s: float) -> str:
    """Say which dates an invalid certificate has. Nothing else of it is used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _load(context, identity)
    dates = f"not valid; this machine's clock shows {date_in_words(whole_seconds(None))}"
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(within_s):
            dates = _dates((await _fetch(address, context))[0])
    return f"the server's certificate is {dates}: correct this clock if it is wrong, or renew the certificate"


def _dates(certificate: bytes) -> str:
    found = x509.load_pem_x509_certificate(certificate)
    since, until = date_in_words(found.not_valid_before_utc), date_in_words(found.not_valid_after_utc)
    return f"valid from {since} until {until}; this machine's clock shows {date_in_words(whole_seconds(None))}"


def cause_in_words(error: OSError) -> str:
    match error:
        case Refused():
            return str(error)
        case ConnectionRefusedError():
            return NOBODY
        case ssl.SSLCertVerificationError():
            return NOT_OURS
        case TimeoutError():
            return "the server did not answer the TLS handshake"
        case ssl.SSLError() | ConnectionError():
            return CLOSED
    return error.strerror or type(error).__name__
