"""A short version of benchmarks/chaos.py: two schedules on real processes, and what must hold afterwards."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from colonnade.experiments.run import prepare

from ...starting import fork_member

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "chaos.py"
EPOCHS = {"swift": 30.0, "sync": 10.0}
PARTIES = {"swift": 3, "sync": 2}
KILLED = ("party-1", "party-2")


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fork_member)


def test_killed_and_cut_off_swift_finishes_and_takes_each_update_once(chaos: ModuleType, tmp_path: Path) -> None:
    faults = [
        chaos.Fault(0.3, "kill", "party-2", 0.2),
        chaos.Fault(0.2, "cut after upload", "party-1", 0.0),
        chaos.Fault(0.4, "kill", "server", 0.1),
        chaos.Fault(0.1, "swallow", "party-3", 1.5, ("down",), forget=True),
    ]
    config = chaos.chaos_config("swift", EPOCHS["swift"], PARTIES["swift"])
    # On a busy machine the others would finish before the killed one has restarted, with its columns untrained.
    waiting = {"max_delay": 300, "on_lost": "wait"}
    config = msgspec.structs.replace(config, protocol=config.protocol | waiting)
    outcome = chaos.run_one(config, tmp_path / "run", faults)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.restarts == 2
    assert outcome.resets == 0  # nobody has lost its memory
    assert outcome.accuracy > 0.93  # calm: 0.96


def test_killed_sync_has_the_simulators_weights_bit_for_bit(chaos: ModuleType, tmp_path: Path) -> None:
    """Also with a flipped bit in the newest checkpoint of a party: it replays from the one before."""
    config = chaos.chaos_config("sync", EPOCHS["sync"], PARTIES["sync"])
    often = msgspec.structs.replace(config.network, checkpoint_s=0.1)
    config = msgspec.structs.replace(config, network=often)
    faults = [chaos.Fault(0.2, "kill and flip", "party-2", 0.1), chaos.Fault(0.3, "kill", "server", 0.1)]
    outcome = chaos.run_one(config, tmp_path / "run", faults)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.restarts == 2 and outcome.damaged == 1 and outcome.resets == 0
    calm = prepare(config).execute()
    assert outcome.summary["updates"] == calm["updates"]
    assert outcome.summary["weights_sha256"] == calm["weights_sha256"]


@pytest.mark.slow
def test_with_durability_power_everything_killed_at_once_goes_on_bit_for_bit(chaos: ModuleType, tmp_path: Path) -> None:
    config = chaos.chaos_config("sync", EPOCHS["sync"], PARTIES["sync"])
    power = msgspec.structs.replace(config.network, durability="power", checkpoint_s=0.5)
    config = msgspec.structs.replace(config, network=power)
    faults = [chaos.Fault(0.3 if name == "server" else 0.0, "kill", name, 0.1) for name in ("server", *KILLED)]
    outcome = chaos.run_one(config, tmp_path / "run", faults)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.restarts == 3 and outcome.resets == 0 == outcome.damaged
    calm = prepare(config).execute()
    assert outcome.summary["weights_sha256"] == calm["weights_sha256"]
