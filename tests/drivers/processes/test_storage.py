"""A short version of benchmarks/storage.py: some cases of every fault."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from colonnade.protocol import state

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "storage.py"


@pytest.fixture(scope="module")
def storage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("storage_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("kill", 1), ("kill", 5), ("power cut", 3), ("full", 5), ("misdirected", 5), ("lost", 6)],
)
def test_what_a_node_recovers_was_there_before(storage: ModuleType, kind: str, seed: int) -> None:
    outcome = storage.run_case(seed, kind)
    assert outcome.happened and not outcome.problem and not outcome.refused


def test_a_table_that_a_power_cut_left_in_pieces_is_refused_by_its_name(storage: ModuleType) -> None:
    outcome = storage.run_case(5, "power cut")
    assert not outcome.problem and "/table/" in outcome.refused


def test_a_flipped_bit_is_found_and_the_run_ends_as_the_calm_one(
    storage: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = storage.run_case(4, "flip")
    assert outcome.damaged == 1 and outcome.exact and not outcome.problem
    monkeypatch.setattr(state, "check", lambda data: None)
    assert "a state that it was never in" in storage.run_case(4, "flip").problem, "or such cases find nothing"


@pytest.mark.parametrize("seed", [0, 3, 34])  # vafl in memory, sync, vafl with a table in a file
def test_with_durability_power_a_blackout_costs_only_what_no_member_had_heard_of(
    storage: ModuleType, seed: int
) -> None:
    """All machines go down at once, and what was not synced is gone: conversations go on, and sync ends as if calm."""
    outcome = storage.run_case(seed, "blackout", "power")
    assert outcome.happened and not outcome.problem and not outcome.refused
    assert outcome.resets == outcome.damaged == 0


def test_with_durability_process_a_blackout_restarts_conversations(storage: ModuleType) -> None:
    outcome = storage.run_case(0, "blackout", "process")
    assert outcome.happened and not outcome.problem and outcome.resets > 0


@pytest.mark.parametrize(("kind", "seed"), [("power cut", 5), ("full", 5), ("kill", 1)])
def test_with_durability_power_nothing_is_lost(storage: ModuleType, kind: str, seed: int) -> None:
    """Also a table in a file, which a power cut may leave in pieces otherwise (seed 5)."""
    outcome = storage.run_case(seed, kind, "power")
    assert outcome.happened and not outcome.problem and not outcome.refused
    assert outcome.resets == outcome.damaged == 0


def test_if_outputs_left_before_their_events_were_synced_a_blackout_would_restart_conversations(
    storage: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.FaultyDisk, "sync_data", lambda self, file: None)
    outcomes = [storage.run_case(seed, "blackout", "power") for seed in range(4)]
    assert any(outcome.problem for outcome in outcomes)
