"""Pins the server's certificate.

The list of members holds its fingerprint, but gRPC compares no fingerprints. So the party first fetches the certificate
and compares it. Then the certificate replaces the authority as the root of the channel, which accepts no other.
"""

import asyncio
import ssl

from colonnade.drivers.processes.identity import SERVER, Identity, fingerprint
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["CLOSED", "NOBODY", "NOT_OURS", "cause_in_words", "pinned_certificate"]

NOBODY = "no server listens there"
NOT_OURS = "the server's certificate was not signed by network.authority"
CLOSED = "the server closed the connection; if this repeats, the server may not accept this certificate: see its log"


async def pinned_certificate(identity: Identity, address: str, wanted: str, within_s: float = 10.0) -> bytes:
    """The server's certificate in PEM; raises RemoteProtocolError if its fingerprint is not `wanted`."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks authority and name
    context.load_verify_locations(cadata=identity.authority.decode())
    context.load_cert_chain(identity.certificate_file, identity.key_file)
    context.set_alpn_protocols(["h2"])
    async with asyncio.timeout(within_s):
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context, server_hostname=SERVER)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    certificate = ssl.DER_cert_to_PEM_cert(shown).encode()
    if fingerprint(certificate) != wanted:
        cause = f"its certificate, {fingerprint(certificate)[:16]}…, is not the one in network.members, {wanted[:16]}…"
        raise RemoteProtocolError(SERVER, cause)
    return certificate


def cause_in_words(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return NOBODY
        case ssl.SSLCertVerificationError():
            return NOT_OURS
        case TimeoutError():
            return "the server did not answer the TLS handshake"
        case ssl.SSLError() | ConnectionError():
            return CLOSED
    return error.strerror or type(error).__name__
