"""States become plain values and get their types back; a state that cannot be saved is refused at once."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pytest

from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, LocalProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import UNSAVED, Component, form_of, transient


class Request(NamedTuple):
    party: int
    rows: Array


class Report(msgspec.Struct, frozen=True):
    steps: int
    weight: float = 1.0


@dataclass(slots=True)
class Part:
    name: str
    values: Array


@dataclass(slots=True, kw_only=True)
class State:
    k: int = 0
    doing: Literal["idle", "busy"] = "idle"
    weight: float | None = None
    key: bytes = b""
    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    rows: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    line: list[Request] = field(default_factory=list)
    last: dict[int, Request] = field(default_factory=dict)
    named: dict[tuple[int, str], Request] = field(default_factory=dict)
    newest: Report | None = None
    part: Part = field(default_factory=lambda: Part("a", np.ones(2)))
    pairs: tuple[tuple[int, Array], ...] = ()
    asked: tuple[str, Request] | None = None
    cache: deque[int] = transient(deque)


def full():
    rows = np.array([3, 1], np.int32)
    return State(
        k=7, doing="busy", weight=float("inf"), key=b"\0\1", rows=rows, line=[Request(1, rows)],
        last={2: Request(2, rows + 1)}, named={(1, "a"): Request(3, rows)}, newest=Report(4, 0.5),
        part=Part("b", np.eye(2)), pairs=((1, rows), (2, rows)), asked=("a", Request(0, rows)), cache=deque([1]),
    )  # fmt: skip


def through_a_file(made, read=state.unpack):
    form = form_of(type(made))
    return form.typed(read(state.pack(form.plain(made))))


@pytest.mark.parametrize("made", [State(), full()], ids=["defaults", "everything set"])
def test_a_state_comes_back_as_it_was(made):
    back = through_a_file(made)
    assert state.pack(form_of(State).plain(back)) == state.pack(form_of(State).plain(made))
    for name in State.__slots__:
        assert type(getattr(back, name)) is type(getattr(made, name)), name
    assert back.draws.integers(1 << 60) == made.draws.integers(1 << 60)


def test_containers_hold_their_types_again():
    back = through_a_file(full())
    assert type(back.line[0]) is Request and type(back.last[2]) is Request and type(back.named[1, "a"]) is Request
    assert back.newest == Report(4, 0.5)
    assert back.asked is not None and type(back.asked[1]) is Request and type(back.pairs[0]) is tuple


def test_a_transient_field_is_made_again_and_not_saved():
    made = full()
    assert "cache" not in form_of(State).plain(made)
    assert through_a_file(made).cache == deque()


def test_arrays_of_a_mapped_checkpoint_may_be_changed():
    back = through_a_file(full(), state.views)
    back.rows[0] = 9
    back.line[0].rows[0] = 9
    back.part.values[0, 0] = 9


@pytest.mark.parametrize("kind", [Any, set[int], deque[int], list[set[int]], dict[Request, int], object, "int | Part"])
def test_a_type_that_cannot_be_saved_is_refused_when_it_is_first_seen(kind):
    with pytest.raises(LocalProtocolError, match="a state cannot hold a"):
        form_of(kind)


def test_two_types_that_a_checkpoint_could_not_tell_apart_are_refused():
    with pytest.raises(LocalProtocolError, match="does not say which"):
        form_of(Request | Report)


class Other(msgspec.Struct, frozen=True):
    steps: int
    more: int = 4


def test_a_field_that_a_newer_release_added_is_refused():
    saved = form_of(State).plain(State()) | {"other": 1}
    with pytest.raises(CheckpointError, match="newer release than .* it has other of a State.*start a new run"):
        form_of(State).typed(saved)


class Place(NamedTuple):
    row: int
    column: int = 7


@dataclass(slots=True)
class Grown:
    old: int
    report: Other | None
    place: Place
    rate: float = 0.5
    names: list[str] = field(default_factory=lambda: ["new"])


def test_a_field_with_a_default_is_made_if_an_older_release_did_not_have_it():
    saved = {"old": 3, "report": {"steps": 1}, "place": {"row": 2}}
    found = form_of(Grown).typed(saved)
    assert found == Grown(3, Other(1), Place(2, 7), 0.5, ["new"])
    assert form_of(Grown).typed(saved).names is not found.names
    with pytest.raises(CheckpointError, match="older release than .* it lacks old of a Grown"):
        form_of(Grown).typed({"report": None, "place": {"row": 2}})


def test_structs_of_several_types_are_saved_with_their_names():
    form = form_of(list[Report | Other | None])
    made = [Other(1), None, Report(2, 0.5)]
    assert form.typed(state.unpack(state.pack(form.plain(made)))) == made


@dataclass(slots=True)
class Phase(Component):
    network: object = field(metadata=UNSAVED)
    steps: int = 0
    line: list[Request] = field(default_factory=list)


def test_a_component_takes_over_its_fields_and_keeps_what_it_was_made_from():
    rows, network = np.array([3, 1], np.int32), object()
    made, other = Phase(None, 3, [Request(1, rows)]), Phase(network)
    other.load(state.unpack(state.pack(made.save())))
    assert (other.network, other.steps) == (network, 3) and type(other.line[0]) is Request
    other.load({"steps": 1})  # of a release without the line
    assert other.steps == 1 and other.line == []
    with pytest.raises(CheckpointError, match="newer release"):
        other.load({"steps": 1, "more": 2})
