"""Roles as operating-system processes, talking over gRPC with mutual TLS."""

import os
from importlib.metadata import version

_SETTING, _NEWEST = "GRPC_EXPERIMENTS", (1, 85)  # a release that does not know these would complain
if _SETTING not in os.environ and tuple(map(int, version("grpcio").split(".")[:2])) <= _NEWEST:
    # gRPC's older way of waiting for sockets wakes one thread less for each message: a sixth more round trips
    # (benchmarks/network). It is read once, with the first import, and is not left for child processes.
    os.environ[_SETTING] = "-event_engine_client,-event_engine_listener"
    import grpc  # noqa: F401

    del os.environ[_SETTING]
