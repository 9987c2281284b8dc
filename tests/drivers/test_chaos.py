"""A thousand small federations with random methods, options and faults: each ends, and nothing breaks.

The faults are drawn from what `[clock]` can say; every role checks its invariants after every event. Every tenth
federation is saved to bytes in the middle, and a new simulator continues it to the same end.
"""

import random
from functools import cache
from math import inf
from typing import Any, get_args

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.config.resolve import Federation, federation
from colonnade.config.schema import from_dict
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator import checkpoint as simulator_checkpoint
from colonnade.drivers.simulator.links import NEVER, Outages
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import NANOSECONDS, Event, Started, TimerFired

FEDERATIONS, CHUNK = 1000, 100
MOST_EVENTS = 200_000
BATCHES = get_args(VaflOptions.__annotations__["batches"])
Draw = random.Random


@cache
def data(parties: int) -> Any:
    rows = np.random.default_rng(0)
    x = rows.standard_normal((40, 6)).astype(np.float32)
    y = (x @ rows.standard_normal(6) > 0).astype(np.int64)
    return colonnade.split(colonnade.from_arrays(x, y), parties=parties)


def compute(draw: Draw) -> dict[str, Any]:
    kind = draw.choice(["fixed", "exponential", "poisson", "lognormal", "trace"])
    mean = draw.choice([0.0, 0.01, 0.1, 0.5])
    extra: dict[str, Any] = {"poisson": {"unit_s": 0.05}, "trace": {"cpu": [0.0, 90.0, 50.0], "interval_s": 0.3}}
    return {"kind": kind, "mean_s": mean, **extra.get(kind, {})}


def link(draw: Draw) -> dict[str, float]:
    return {"latency_s": draw.choice([0.0, 0.001, 0.05, 0.3]), "bandwidth_mbps": draw.choice([0.05, 1.0, 100.0, inf])}


def fault(draw: Draw, roles: list[str]) -> dict[str, Any]:
    kind = draw.choice(["crash", "offline", "offline", "crash", "loss", "duplicate", "late"])
    at = draw.choice([0.0, 0.1, 0.5, 1.0, draw.uniform(0, 3)])
    until = inf if draw.random() < 0.3 else at + draw.choice([0.05, 0.4, 2.0, draw.uniform(0, 4) + 0.001])
    drawn = {"party": draw.choice(roles), "kind": kind, "at_s": at, "until_s": until}
    return {**drawn, "rate": draw.choice([0.05, 0.3, 0.7])} if kind in ("loss", "duplicate") else drawn


def protocol(draw: Draw, parties: int) -> dict[str, Any]:
    name = draw.choice(["vafl", "vafl", "t-sync", "sync"])
    if name == "sync":
        return {"name": name}
    options = {
        "name": name,
        "batches": draw.choice(BATCHES),
        "table": draw.choice(["warm", "zeros", "mean"]),
        "extra_rows": draw.choice([0.0, 0.5, 2.0]),
        "pause_s": draw.choice([0.0, 0.0, 0.1]),
        "on_lost": draw.choice(["continue", "wait"]),
    }
    options["average"] = draw.random() < 0.3
    if draw.random() < 0.3:
        options |= {"in_flight": draw.choice([2, 3]), "pause_s": 0.0}
    if draw.random() < 0.3:
        options |= {"smaller_batches": True, "extra_rows": 0.0}
    if draw.random() < 0.6:
        options["max_delay"] = draw.choice([1, 2, 5])
    if name == "t-sync":
        options["t"] = draw.randint(1, parties)
    else:
        options["order"] = "upload-first" if "in_flight" in options else draw.choice(["upload-first", "query-first"])
    return options


def setting(seed: int) -> Federation:
    draw = Draw(seed)
    parties = draw.randint(2, 4)
    roles = [*data(parties).parties, "server"]
    limit = {"seconds": draw.uniform(0.5, 3)} if draw.random() < 0.2 else {"updates": draw.randint(8, 15)}
    tables = {
        "protocol": protocol(draw, parties),
        "model": {
            "party": "linear",
            "embedding": [draw.randint(2, 3) for _ in range(parties)],
            "server": draw.choice(["linear", "mlp:3"]),
        },
        "clock": {
            "compute": [compute(draw) for _ in range(parties)],
            "network": [link(draw) for _ in range(parties)],
            "server": {"compute": compute(draw), "network": link(draw)},
            "faults": [fault(draw, roles) for _ in range(draw.randint(0, 4))],
            "lost_after_s": draw.choice([0.0, 0.3, 2.0]),
        },
        "train": {"batch_size": 8, "seed": seed, "eval_every": draw.choice([4, "0.4 s"]), **limit},
    }
    return federation(from_dict(tables), data(parties))


class Witness:
    """Watches from outside what no role may see."""

    def __init__(self, drawn: Federation) -> None:
        faults = drawn.config.clock.faults
        self.down = {
            name: Outages([fault for fault in faults if fault.party == name and fault.kind in ("crash", "late")])
            for name in (*drawn.data.parties, "server")
        }
        self.now = 0
        self.started: set[str] = set()

    def __call__(self, time: int, name: str, event: Event) -> None:
        assert time >= self.now
        assert self.down[name].reachable_from(time) == time, f"{name} handles {event} while it is down"
        assert (name in self.started) != isinstance(event, Started), f"{name}: {event} at the wrong end of its life"
        if isinstance(event, TimerFired):
            assert time >= event.due
        self.started.add(name)
        self.now = time


def simulator(drawn: Federation) -> tuple[Simulator, Witness]:
    witness = Witness(drawn)
    config = drawn.config
    made = Simulator(
        drawn.roles(), Codec(drawn.method.payloads), config.clock, config.train.seed,
        on_event=witness, check=True, peers=drawn.method.capabilities.peers,
    )  # fmt: skip
    return made, witness


def finish(run: Simulator) -> None:
    for _ in range(MOST_EVENTS // 1000):
        if not run.advance(1000):
            return
    raise AssertionError(f"no end after {MOST_EVENTS} events, at {run.now / 1e9} s")


def digests(run: Simulator) -> list[str]:
    return [run.trace.hexdigest, *(node.role.summary()["weights"] for node in run.nodes)]


def check_end(drawn: Federation, run: Simulator) -> None:
    server: Any = run.nodes[0].role
    assert run.status in ("finished", "stalled")
    if run.status == "finished":
        limit = drawn.training.limit
        assert server.k == limit.amount or limit.unit == "seconds"
    else:
        cut_off = run.links.ports[0].outages.reachable_from(run.now) == NEVER
        assert server.waits_for() or cut_off, "the server waits without end and does not say for which party"
    for node in run.nodes:
        role: Any = node.role
        role.validate()
        assert np.isfinite(role.network.theta.numpy()).all()
        assert 0 <= node.utilisation(run.now) <= 1
        assert node.busy_ns >= 0 and node.aside_ns >= 0
    traffic = run.traffic
    assert traffic.bytes_up + traffic.bytes_down == sum(size for _, size in traffic.by_kind.values())
    assert traffic.messages == sum(count for count, _ in traffic.by_kind.values())
    bound = getattr(drawn.options, "max_delay", None)
    if bound is not None and drawn.options.on_lost == "wait":  # type: ignore[attr-defined]
        assert server.summary()["staleness"]["max"] <= bound


def check_resume(seed: int, drawn: Federation) -> None:
    """Saved in the middle and loaded into a new simulator: both continue alike."""
    run, _ = simulator(drawn)
    run.advance(Draw(-seed).randint(1, 150))
    data_saved = state.pack(simulator_checkpoint.save(run))
    twin, _ = simulator(drawn)
    twin._on_event = None  # it would miss the starts
    simulator_checkpoint.load(twin, state.unpack(data_saved))
    finish(run)
    finish(twin)
    assert (twin.status, digests(twin), twin.traffic) == (run.status, digests(run), run.traffic)


def by_hand(faults: list[dict[str, Any]], **options: Any) -> Federation:
    tables = {
        "protocol": {"name": "vafl", **options},
        "model": {"party": "linear", "embedding": 2},
        "clock": {"compute": {"mean_s": 0.1}, "server": {"compute": {"mean_s": 0.1}}, "faults": faults},
        "train": {"batch_size": 8, "updates": 40},
    }
    return federation(from_dict(tables), data(2))


@pytest.mark.parametrize("on_lost", ["continue", "wait"])
def test_when_all_parties_are_gone_all_are_named(on_lost: str) -> None:
    names = list(data(2).parties)
    run, _ = simulator(by_hand([{"party": name, "kind": "crash", "at_s": 0.5} for name in names], on_lost=on_lost))
    finish(run)
    assert run.status == "stalled"
    assert run.principal.role.summary()["waits_for"] == names


@pytest.mark.parametrize("index", [0, 1])
def test_jobs_from_a_checkpoint_can_run_again_after_a_crash(index: int) -> None:
    """Arrays from the codec are read-only; the roles must accept that."""
    calm, _ = simulator(by_hand([]))
    while calm.now < NANOSECONDS // 2 or not any(job.end > job.start for job in calm.nodes[index].jobs.values()):
        assert calm.advance(1)
    (job,) = calm.nodes[index].jobs.values()
    middle = (job.start + job.end) / 2 / NANOSECONDS
    name = calm.nodes[index].role.name
    drawn = by_hand([{"party": name, "kind": "crash", "at_s": middle, "until_s": middle + 0.3}])
    run, twin = simulator(drawn)[0], simulator(drawn)[0]
    while run.heap[0][0] < middle * NANOSECONDS:
        assert run.advance(1)
    assert run.nodes[index].jobs  # the crash will cut it off
    twin._on_event = None
    simulator_checkpoint.load(twin, state.unpack(state.pack(simulator_checkpoint.save(run))))
    finish(run)
    finish(twin)
    assert digests(twin) == digests(run)


CHUNKS = range(FEDERATIONS // CHUNK)


@pytest.mark.parametrize("chunk", [pytest.param(n, marks=[pytest.mark.slow] * (n % 4 > 0)) for n in CHUNKS])
def test_a_hundred_federations(chunk: int) -> None:
    outcomes = []
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        drawn = setting(seed)
        run, _ = simulator(drawn)
        try:
            finish(run)
            check_end(drawn, run)
            if seed % 10 == 0:
                check_resume(seed, drawn)
        except Exception as error:
            error.add_note(f"seed {seed}: {drawn.config.protocol}, {drawn.config.clock}, {drawn.config.train}")
            raise
        outcomes.append(run.status)
    assert outcomes.count("finished") > CHUNK // 3
    assert outcomes.count("stalled") > 0


def test_the_same_federation_twice_is_the_same() -> None:
    for seed in range(0, 100, 9):
        runs = [simulator(setting(seed))[0] for _ in range(2)]
        for run in runs:
            finish(run)
        assert digests(runs[0]) == digests(runs[1])
