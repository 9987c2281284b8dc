"""Same seed, same trace and same weights, for any hash seed, and with or without encoding to bytes."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import colonnade
from colonnade.algorithms.chassis import Chassis
from colonnade.algorithms.registry import find_method
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import Effect, Event, Received

METHODS = ["sync", "vafl", "t-sync"]
DIGESTS = ("trace_sha256", "weights_sha256")
CLOCK = {
    "compute": {"kind": "lognormal", "mean_s": 0.05},
    "network": {"latency_s": 0.01, "bandwidth_mbps": 5.0},
    "faults": [
        {"party": "party-1", "kind": "loss", "rate": 0.1},
        {"party": "party-2", "kind": "duplicate", "rate": 0.1},
        {"party": "party-3", "kind": "crash", "at_s": 0.5, "until_s": 1.0},
    ],
}

SCRIPT = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import colonnade
data = colonnade.split(colonnade.load("breast-cancer"), parties=4)
clock, methods = json.loads(sys.argv[2]), json.loads(sys.argv[3])
runs = {}
for method in methods:
    result = colonnade.train(data, method, "mlp:8", embedding=4, clock=clock, updates=60, batch_size=16, seed=5)
    runs[method] = {key: result.summary[key] for key in ("trace_sha256", "weights_sha256")}
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def data() -> Any:
    return colonnade.split(colonnade.load("breast-cancer"), parties=4)


def summary(data: Any, method: str, **settings: Any) -> dict[str, Any]:
    ordinary = {"embedding": 4, "clock": clock_of(data), "updates": 60, "batch_size": 16, "seed": 5}
    return colonnade.train(data, method, "mlp:8", **{**ordinary, **settings}).summary


def clock_of(data: Any) -> dict[str, Any]:
    names = dict(zip(["party-1", "party-2", "party-3"], data.parties, strict=False))
    return {**CLOCK, "faults": [{**fault, "party": names[fault["party"]]} for fault in CLOCK["faults"]]}  # type: ignore[dict-item, index]


def digests(result: dict[str, Any]) -> dict[str, str]:
    return {key: result[key] for key in DIGESTS}


def test_the_hash_seed_of_python_does_not_matter(data: Any) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(sys.path), json.dumps(clock_of(data)), json.dumps(METHODS)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "4242")
    ]
    here = {method: digests(summary(data, method)) for method in METHODS}
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert json.loads(output) == here


@pytest.mark.parametrize("method", [*METHODS, "centralised"])
def test_the_same_seed_gives_the_same_run(data: Any, method: str) -> None:
    clock = {} if method == "centralised" else clock_of(data)
    one, two = (summary(data, method, clock=clock) for _ in range(2))
    for result in (one, two):
        result.pop("wall_s")
    assert one == two


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_another_run(data: Any, method: str) -> None:
    one, other = summary(data, method), summary(data, method, seed=6)
    assert all(one[key] != other[key] for key in DIGESTS)


def test_the_full_trace_is_another_digest_of_the_same_run(data: Any) -> None:
    headers, full = summary(data, "vafl"), summary(data, "vafl", trace="full")
    assert headers["trace_sha256"] != full["trace_sha256"]
    assert headers["weights_sha256"] == full["weights_sha256"]
    assert full["trace_sha256"] == summary(data, "vafl", trace="full")["trace_sha256"]


def test_only_the_full_trace_sees_payloads(data: Any) -> None:
    """Another learning rate changes no header, time or length."""
    rates = {"learning_rate": 0.05}
    assert summary(data, "sync")["trace_sha256"] == summary(data, "sync", **rates)["trace_sha256"]
    full = [summary(data, "sync", trace="full", **settings)["trace_sha256"] for settings in ({}, rates)]
    assert full[0] != full[1]


@pytest.mark.parametrize("method", METHODS)
def test_messages_that_are_really_encoded_change_nothing(
    data: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = digests(summary(data, method, trace="full"))
    handle, codec, decoded = Chassis.handle, Codec(find_method(method).payloads), []

    def handle_bytes(self: Any, event: Event, now: int) -> list[Effect]:
        if isinstance(event, Received):
            message = codec.decode(bytes(codec.encode(event.message)), event.sender)
            event = Received(event.sender, message)  # type: ignore[arg-type]
            decoded.append(event)
        return handle(self, event, now)

    monkeypatch.setattr(Chassis, "handle", handle_bytes)
    assert digests(summary(data, method, trace="full")) == plain
    assert len(decoded) > 60
