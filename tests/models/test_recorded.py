"""When a network's passes are recorded. Recording needs a GPU; torch's meta device replaces it here."""

from typing import Any

import pytest
import torch
from torch import nn

from colonnade.models.recorded import AFTER, Recorder


def tries(recorder: Recorder, x: torch.Tensor, count: int) -> list[bool]:
    return [recorder.pass_for(x)[1] for _ in range(count)]


def test_the_first_passes_and_other_shapes_are_computed_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    module, replay = nn.Linear(3, 2, device="meta"), lambda x: x
    monkeypatch.setattr("torch.cuda.make_graphed_callables", lambda whole, samples: replay)
    recorder, x, short = Recorder(module), torch.empty(4, 3, device="meta"), torch.empty(2, 3, device="meta")
    assert tries(recorder, x, AFTER) == [False] * (AFTER - 1) + [True]
    assert recorder.pass_for(x) == (replay, True)
    assert recorder.pass_for(short) == (module, False)
    assert recorder.pass_for(x.clone().requires_grad_()) == (module, False)
    with torch.no_grad():
        assert recorder.pass_for(x) == (module, False)


def test_what_cannot_be_recorded_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fail(whole: Any, samples: Any) -> Any:
        asked.append(samples)
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr("torch.cuda.make_graphed_callables", fail)
    assert tries(Recorder(nn.Linear(3, 2, device="meta")), torch.empty(4, 3, device="meta"), 3 * AFTER) == [False] * (
        3 * AFTER
    )
    assert len(asked) == 1


def test_on_a_processor_nothing_is_recorded() -> None:
    assert not any(tries(Recorder(nn.Linear(3, 2)), torch.zeros(4, 3), 3 * AFTER))
