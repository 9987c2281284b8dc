"""gRPC's wire format, on the event loop's own thread: calls of one program on another, over HTTP/2 and mutual TLS.

    tls         bytes of the wire ↔ plain bytes, certificates on both sides
    http2       plain bytes ↔ streams with flow control (RFC 9113), without a socket
    calls       one gRPC call on a stream: messages both ways, then a status
    connection  one socket with all of this; `connect` for a client
    listener    a server's port: handlers by method, limits of connections

Any gRPC program can talk to it: members of release 0.1, health probes. It is not built on the package grpcio, which has
threads of its own between socket and event loop: with them a message takes about twice as long (docs/measurements.md).
The tests use grpcio as the other side.
"""
