"""The driver for a real network: each role is an operating-system process, connected by gRPC with mutual TLS."""

import os
from importlib.metadata import version

_SETTING, _NEWEST = "GRPC_EXPERIMENTS", (1, 85)  # newer releases may not know these experiments and would complain
if _SETTING not in os.environ and tuple(map(int, version("grpcio").split(".")[:2])) <= _NEWEST:
    # gRPC's older way of waiting for sockets wakes one thread less per message: a sixth more round trips
    # (benchmarks/network). gRPC reads the variable once, at the first import. Child processes do not inherit it.
    os.environ[_SETTING] = "-event_engine_client,-event_engine_listener"
    import grpc  # noqa: F401

    del os.environ[_SETTING]
