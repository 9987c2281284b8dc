"""The hash chain: h ← sha256(h ‖ record)."""

import hashlib
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.protocol import trace as module
from colonnade.protocol.trace import Trace

Record = tuple[int, int, int, int, int, int, bytes]

records = st.tuples(
    st.integers(0, 2**63 - 1),
    st.integers(0, 3),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=20),
)


def digest(chain: list[Record]) -> str:
    trace = Trace()
    for record in chain:
        trace.add(*record)
    assert trace.events == len(chain)
    return trace.hexdigest


def test_nothing_recorded_is_all_zeros() -> None:
    assert digest([]) == "00" * 32


@settings(deadline=None)
@given(st.lists(records, max_size=5))
def test_against_a_direct_computation(chain: list[Record]) -> None:
    h = bytes(32)
    for time, rank, order, sender, receiver, size, header in chain:
        fixed = struct.pack("<q", time) + bytes([rank]) + struct.pack("<qiiI", order, sender, receiver, size)
        h = hashlib.sha256(h + fixed + header).digest()
    assert digest(chain) == h.hex()


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_any_change_of_any_field_changes_the_digest(chain: list[Record], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(chain) - 1))
    field = data.draw(st.integers(0, 6))
    other = data.draw(records)[field]
    changed = list(chain)
    changed[place] = (*chain[place][:field], other, *chain[place][field + 1 :])  # type: ignore[assignment]
    assert (digest(changed) == digest(chain)) == (changed == chain)


def test_order_and_number_of_events_count() -> None:
    one: Record = (1, 0, 1, -1, 0, 0, b"Started")
    two: Record = (1, 0, 2, -1, 1, 0, b"Started")
    assert len({digest(chain) for chain in ([one, two], [two, one], [one], [one, one], [one, two, two])}) == 5


def test_a_digest_of_the_format_that_runs_are_compared_by() -> None:
    assert digest([(1, 2, 3, 4, 5, 6, b"header")]) == (
        hashlib.sha256(
            bytes(32)
            + bytes.fromhex("0100000000000000" + "02" + "0300000000000000" + "04000000" + "05000000" + "06000000")
            + b"header"
        ).hexdigest()
    )


def test_when_the_digest_is_read_makes_no_difference() -> None:
    often, once = Trace(), Trace()
    for number in range(1000):
        for trace in (often, once):
            trace.add(number, 0, number, -1, 0, number, b"step")
        if number % 7 == 0:
            assert len(often.digest) == 32
    h = bytes(32)
    for number in range(1000):
        h = hashlib.sha256(h + struct.pack("<qBqiiI", number, 0, number, -1, 0, number) + b"step").digest()
    assert often.digest == once.digest == h


def test_a_digest_that_is_set_forgets_what_was_added() -> None:
    trace, other = Trace(), Trace()
    trace.add(1, 0, 1, 0, 0, 1, b"forgotten")
    trace.digest = bytes(32)
    assert trace.digest == other.digest


needs_it = pytest.mark.skipif(not module.COMPILED, reason="not compiled here, or no SHA instructions")


def test_a_compiled_file_passes_its_own_check() -> None:
    """Otherwise all other tests would be skipped where the compiler made a file that computes other digests."""
    file = pytest.importorskip("colonnade.protocol._trace", reason="not compiled here")
    assert file.supported() == module.COMPILED


@needs_it
@pytest.mark.parametrize("start", [bytes(32), b"\xff" * 32])
def test_the_compiled_chain_is_that_of_hashlib_for_every_length(start: bytes) -> None:
    for size in [*range(330), 4095, 4096, 100_001]:
        records = [bytes([size % 251]) * size, b"\x80" * size]
        assert module._chained(start, records) == module._one_by_one(start, records), size


@needs_it
@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.lists(st.binary(max_size=300), max_size=20))
def test_the_compiled_chain_is_that_of_hashlib_for_any_records(start: bytes, records: list[bytes]) -> None:
    assert module._chained(start, records) == module._one_by_one(start, records)


@needs_it
def test_the_compiled_chain_refuses_what_is_no_record() -> None:
    for start, records in ((b"", []), (bytes(32), (b"",))):
        with pytest.raises(ValueError, match="32 bytes and a list"):
            module._chained(start, records)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes"):
        module._chained(bytes(32), [b"", "text"])  # type: ignore[list-item]


def test_without_the_compiled_file_the_digests_are_the_same() -> None:
    program = """
import sys
sys.modules["colonnade.protocol._trace"] = None
from colonnade.protocol import trace
made = trace.Trace()
for number in range(600):
    made.add(number, 0, number, -1, 0, number, b"step" * (number % 30))
print(trace.COMPILED, made.hexdigest)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    chain: list[Record] = [(number, 0, number, -1, 0, number, b"step" * (number % 30)) for number in range(600)]
    assert said == f"False {digest(chain)}\n"
