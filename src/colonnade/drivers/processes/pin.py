"""A party's connection to the server, which must show a certificate that the party's list of members has.

If one side refuses the other's certificate, the cause names its dates and this machine's clock: one of the two clocks
may be wrong.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Collection

from cryptography import x509

from colonnade.drivers.processes.identity import SERVER, Identity, date_in_words, whole_seconds
from colonnade.drivers.processes.transport.calls import CallLost
from colonnade.drivers.processes.transport.connection import Connection, connect
from colonnade.drivers.processes.transport.tls import BY_DATE, NO_TLS, cause_of, client_context
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["CLOSED", "NOBODY", "NOT_OURS", "NotPinned", "cause_in_words", "pinned_connection", "why_lost"]

NOBODY = "no server listens there"
OTHER_PROGRAM = "what listens there does not speak TLS: another program may use this port"
NOT_OURS = "the server's certificate was not signed by network.authority"
REFUSES = "the server closed the connection; it may not accept this certificate"
CLOSED = "the server closed the connection; if this repeats, the server may not accept this certificate: see its log"


class NotPinned(RemoteProtocolError):
    """The server showed another certificate than the list of members has."""


class Refused(OSError):
    """One side does not accept the other's certificate; the text says what is known of the reason."""


async def pinned_connection(
    identity: Identity, address: str, wanted: Collection[str], most_bytes: int, within_s: float = 10.0
) -> Connection:
    """A connection to a server with one of these fingerprints, or with `()` to any that the authority has signed.

    Raises NotPinned if the server shows another certificate, else OSError.
    """
    try:
        async with asyncio.timeout(within_s):
            connection = await connect(client_context(identity), *_place(address), most_bytes)
    except ssl.SSLCertVerificationError as error:
        if cause_of(error) in BY_DATE:
            raise Refused(await _servers_dates(identity, address, most_bytes, within_s)) from None
        raise
    shown = connection.fingerprint
    if wanted and shown not in wanted:
        connection.abort()
        listed = " or ".join(f"{one[:16]}…" for one in wanted)
        raise NotPinned(SERVER, f"its certificate, {shown[:16]}…, is not the one in network.members, {listed}")
    return connection


def why_lost(error: CallLost, connection: Connection, identity: Identity) -> str:
    """Why a call broke off. TLS 1.3 refuses a client's certificate only in the place of the first answer."""
    return str(error) if connection.spoke else f"{REFUSES} ({_dates(identity.certificate)}): see its log"


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def _servers_dates(identity: Identity, address: str, most_bytes: int, within_s: float) -> str:
    """Say which dates an invalid certificate has. Nothing else of it is used."""
    dates = f"not valid; this machine's clock shows {date_in_words(whole_seconds(None))}"
    with contextlib.suppress(OSError, ValueError):
        async with asyncio.timeout(within_s):
            connection = await connect(client_context(identity, check=False), *_place(address), most_bytes)
        dates = _dates(ssl.DER_cert_to_PEM_cert(connection.certificate).encode())
        connection.abort()
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
        case ssl.SSLError() if cause_of(error) == NO_TLS:
            return OTHER_PROGRAM
        case TimeoutError():
            return "the server did not answer the TLS handshake"
        case ssl.SSLError() | ConnectionError():
            return CLOSED
    return error.strerror or type(error).__name__
