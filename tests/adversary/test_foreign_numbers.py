"""Numbers that another member chose are checked where they arrive, and every JSON file stays strict JSON."""

import io
import json
import warnings
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colonnade.config.schema import from_dict
from colonnade.drivers.processes import wire
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import CodecError
from colonnade.protocol.strict_json import to_json
from colonnade.results.folder import RunFolder

SPENT = {
    "mu": 1.0, "epsilon": 2.0, "delta": 1e-5, "releases": 3, "rows": 4, "by_kind": {"fresh rows": 3}, "claim_mu": 1.0,
    "claim_epsilon": 2.0,
}  # fmt: skip
LANE: dict[str, Any] = {"bin_ms": 1024, "busy": [0, 1000], "known": [1000, 1000]}
BYE: dict[str, Any] = {"weights": "", "utilisation": 0.5, "privacy": SPENT, "lane": LANE}
POSITION = {"number": 1, "sent": 2, "acknowledged": 1, "received": 0}


def read(kind: wire.Kind, content: type[Any], fields: dict[str, Any]) -> Any:
    frame = wire.seal_envelope(kind, 0, 0, msgspec.msgpack.encode(fields))
    return wire.read_control(wire.open_envelope(frame, "lab"), kind, content, "lab")


def strictly(text: str) -> Any:
    """Parse as other programs do, which know no NaN."""
    return msgspec.json.decode(text)


# What arrives


def test_an_honest_goodbye_is_read() -> None:
    for changes in ({}, {"utilisation": 0.0}, {"utilisation": 1}, {"privacy": SPENT | {"mu": inf, "epsilon": inf}}):
        assert read(wire.Kind.BYE, wire.Bye, BYE | changes).lane == wire.LaneBins(**LANE)


@pytest.mark.parametrize("number", [nan, inf, -inf, -1.0, 1.0001, 1e300, 2**63, -(2**63)])
def test_a_goodbye_with_an_impossible_utilisation_is_refused(number: float) -> None:
    with pytest.raises(CodecError, match="BYE cannot be read"):
        read(wire.Kind.BYE, wire.Bye, BYE | {"utilisation": number})


@pytest.mark.parametrize(
    "wrong",
    [{key: number} for key in ("mu", "epsilon", "claim_mu", "claim_epsilon") for number in (nan, -inf, -1.0)]
    + [{"delta": number} for number in (nan, inf, -0.1, 1.1)]
    + [{key: number} for key in ("releases", "rows") for number in (-1, 2**63 - 1)]
    + [{"by_kind": kinds} for kinds in ({"x": -1}, {"x": 2**63}, {"\x1b]0;": 1}, {"x" * 1000: 1})]
    + [{"by_kind": {f"kind-{number}": 1 for number in range(1000)}}],
    ids=str,
)
def test_a_goodbye_with_an_impossible_account_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="BYE cannot be read"):
        read(wire.Kind.BYE, wire.Bye, BYE | {"privacy": SPENT | wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"bin_ms": 3}, {"bin_ms": 0}, {"bin_ms": 2**40}, {"busy": [-1, 0]}, {"busy": [1001, 0]}, {"busy": [nan, 0]},
        {"busy": [0]}, {"busy": [0] * 10_000, "known": [0] * 10_000},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_a_goodbye_with_an_impossible_timeline_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CodecError, match="BYE cannot be read"):
        read(wire.Kind.BYE, wire.Bye, BYE | {"lane": LANE | wrong})


@pytest.mark.parametrize("key", POSITION)
@pytest.mark.parametrize("number", [-2, 2**62 + 1, 2**64 - 1, 0.5, nan])
def test_a_welcome_with_an_impossible_position_is_refused(key: str, number: float) -> None:
    good = {"reset": False, "position": POSITION, "run": "1", "clock": 0}
    assert read(wire.Kind.WELCOME, wire.Welcome, good).position.sent == 2
    with pytest.raises(CodecError):
        read(wire.Kind.WELCOME, wire.Welcome, good | {"position": POSITION | {key: number}})


@pytest.mark.parametrize("seconds", [nan, inf, -1.0, 1e300])
def test_a_presence_with_an_impossible_silence_is_refused(seconds: float) -> None:
    with pytest.raises(CodecError):
        read(wire.Kind.PRESENCE, wire.Presence, {"here": {}, "silent_s": {"lab": seconds}})


# What is written


def test_a_number_that_is_not_finite_is_written_as_null_with_a_warning() -> None:
    value = {"a": nan, "b": [1.0, inf, {"c": -inf}], "d": (nan, 2), "e": 0.5, "f": True, "g": None}
    with pytest.warns(RuntimeWarning, match=r"written as null: a, b\[1\], b\[2\].c, d\[0\]$"):
        text = to_json(value)
    assert strictly(text) == {"a": None, "b": [1.0, None, {"c": None}], "d": [None, 2], "e": 0.5, "f": True, "g": None}


def test_finite_values_are_written_as_before() -> None:
    value = {"ä": [1, 2.5, "x"], "b": {}}
    assert to_json(value) == json.dumps(value)
    assert to_json(value, indent=2) == json.dumps(value, indent=2)
    assert to_json(value, compact=True) == json.dumps(value, separators=(",", ":"))


def test_the_files_of_a_run_are_strict_json(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", from_dict({}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        folder.append({"update": 1, "value": nan, "staleness": [inf]})
        folder.write_summary({"utilisation": {"lab": nan}, "privacy": {"epsilon": inf}})
        folder.write_figures({"busy": [[nan]]}, {"width": 1, "counts": [1]})
    path = tmp_path / "run"
    assert strictly((path / "summary.json").read_text())["utilisation"] == {"lab": None}
    assert strictly((path / "timeline.json").read_text()) == {"busy": [[None]]}
    assert [strictly(line) for line in (path / "metrics.jsonl").read_text().splitlines()] == folder.rows()
    assert folder.cut_back(1) == [{"update": 1, "value": None, "staleness": [None]}]


def test_a_json_log_line_is_strict_json_and_needs_no_warning() -> None:
    stream = io.StringIO()
    Log("server", as_json=True, stream=stream).info("evaluated", value=nan, of=Path("x"))
    assert strictly(stream.getvalue())["value"] is None


def test_no_module_writes_json_in_another_way() -> None:
    """Except the states and digests, which only Colonnade reads."""
    sources = Path(to_json.__code__.co_filename).parents[1]
    own = {"protocol/strict_json.py", "protocol/state.py", "privacy/ledger.py", "deployment/terms.py"}
    own |= {"deployment/party_side.py", "experiments/privacy_report.py", "predict/asking.py"}
    own |= {"drivers/processes/members.py", "protocol/chain.py"}
    own.add("testing/adversary.py")  # which writes nothing: it checks that a summary is strict JSON
    found = {path.relative_to(sources).as_posix() for path in sources.rglob("*.py") if "json.dump" in path.read_text()}
    assert found <= own
