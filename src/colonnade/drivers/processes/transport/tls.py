"""TLS with certificates on both sides, without a socket: what the other side sent goes in, what it is to get comes out.

Only TLS 1.3. There, a server checks the client's certificate after the client believes the handshake to be over: the
client hears of a refusal in the place of the first answer.
"""

import os
import ssl
import sys
from ssl import MemoryBIO, SSLContext, SSLError

from colonnade.drivers.processes.identity import SERVER, Identity

__all__ = ["BY_DATE", "NO_TLS", "Tls", "cause_of", "client_context", "server_context"]

EXPIRED, TOO_NEW = "an expired certificate", "a certificate that is not yet valid"
BY_DATE = (EXPIRED, TOO_NEW)
NO_TLS = "does not speak TLS"
_BAD_DATES = {9: TOO_NEW, 10: EXPIRED}  # OpenSSL's codes
_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "CERTIFICATE_VERIFY_FAILED": "a certificate of another authority",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "UNSUPPORTED_PROTOCOL": "speaks an older TLS than 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "does not accept this server's authority",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "takes this server's certificate for expired: compare the clocks",
    "SSLV3_ALERT_BAD_CERTIFICATE": "does not accept this server's certificate",
}
_PURPOSE = 26  # OpenSSL: "unsuitable certificate purpose"


def server_context(identity: Identity) -> SSLContext:
    """For connections that come in: only callers with a certificate of this member's authority."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no connection continues an earlier one
    return context


def client_context(identity: Identity, *, check: bool = True) -> SSLContext:
    """For connections to this federation's server; without `check`, any certificate is accepted, to look at it."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
    if not check:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _context(protocol: int, identity: Identity) -> SSLContext:
    context = SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.authority.decode())
    if sys.platform != "linux":
        context.load_cert_chain(identity.certificate_file, identity.key_file)
        return context
    # Python takes files only, and those on the disk may be newer than what was checked.
    with os.fdopen(os.memfd_create("identity"), "wb") as file:  # in memory only
        file.write(identity.key + identity.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def cause_of(error: SSLError) -> str:
    """Say why a handshake failed: what the caller lacks or does."""
    code = getattr(error, "verify_code", None)
    if code in _BAD_DATES:
        return _BAD_DATES[code]
    if code == _PURPOSE:
        return "a certificate that is not for this"
    return _CAUSES.get(error.reason or "", "handshake failed")


class Tls:
    """One connection's encryption."""

    def __init__(self, context: SSLContext, *, server: bool) -> None:
        self._in, self._out = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server, server_hostname=None if server else SERVER
        )
        self.ready = False  # the handshake is over
        self.certificate = b""  # the other side's, in DER, once it is

    def shake(self) -> None:
        """Go on with the handshake as far as possible; raises ssl.SSLError if it fails."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.ready, self.certificate = True, self._tls.getpeercert(binary_form=True) or b""

    def receive(self, data: memoryview) -> None:
        """Take encrypted bytes."""
        self._in.write(data)

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into the buffer; returns the number of bytes, 0 if more must be received first, or at the end.

        Raises ssl.SSLError if the other side refused this side's certificate, or sent nonsense.
        """
        filled, size = 0, len(buffer)
        while filled < size and (self._in.pending or self._tls.pending()):  # one record at a time
            try:
                found = self._tls.read(size - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                break
            if not found:
                break
            filled += int(found)
        return filled

    def write(self, data: bytes) -> None:
        """Encrypt."""
        self._tls.write(data)

    def outgoing(self) -> bytes:
        """The encrypted bytes for the other side."""
        return self._out.read() if self._out.pending else b""
