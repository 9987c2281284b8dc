"""The package grpcio as the other side: what an independent gRPC program sees of Colonnade's server.

Colonnade itself does not need that package; `pip install grpcio` brings it.
"""

from typing import Any

import grpc

from colonnade.drivers.processes.identity import SERVER, Identity
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.service import most_bytes

__all__ = ["open_channel"]


def open_channel(identity: Identity, address: str, limits: Limits, *options: tuple[str, int]) -> Any:
    """A `grpc.aio` channel to a federation's server on any host. The options come after the usual ones."""
    credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    size = most_bytes(limits.max_message_bytes)
    usual: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.ssl_target_name_override", SERVER),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    return grpc.aio.secure_channel(address, credentials, [*usual, *options])
