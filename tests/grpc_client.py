"""The package grpcio as the other side: what an independent gRPC program sees of Colonnade's servers."""

import grpc

from colonnade.drivers.processes.service import most_bytes


def open_channel(identity, address, limits):
    """A channel to a federation's server on any host."""
    credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    size = most_bytes(limits.max_message_bytes)
    options = [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.ssl_target_name_override", "server"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    return grpc.aio.secure_channel(address, credentials, options)
