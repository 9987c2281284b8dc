"""The Byzantine harness finds what it is for: methods with a planted fault fail its checks, and its cases repeat."""

import dataclasses
import sys
import types

import pytest
import torch

from colonnade.algorithms import METHODS
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.algorithms.vafl.server import Server
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.testing.cases import case, sweep_case

MOST = 200  # cases until a fault must be found


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Crashes(Server):
    """Uses a number of the message before it checks it."""

    def embeddings(self, sender: str, message: Embeddings) -> None:
        assert message.batch < 2 or message.values[message.batch - 1] is not None  # IndexError
        super().embeddings(sender, message)


class Changes(Server):
    """Counts a message before it refuses it."""

    def embeddings(self, sender: str, message: Embeddings) -> None:
        self.state.requests += 1
        super().embeddings(sender, message)


class Blames(Server):
    """Refuses the wrong party."""

    def embeddings(self, sender: str, message: Embeddings) -> None:
        try:
            super().embeddings(sender, message)
        except RemoteProtocolError as error:
            other = next(name for name in self.names if name != sender)
            raise RemoteProtocolError(other, error.cause) from error


class Forgets(Server):
    """Waits for all parties, and does not say for which."""

    def lost(self, peer: str) -> None:
        self.state.present[peer] = True

    def _needed(self) -> int:
        return len(self.names)

    def waits_for(self) -> list[str]:
        return []


@pytest.fixture
def method_with(monkeypatch):
    """The dotted path of a copy of `vafl` with another server."""

    def make(server: type[Server]) -> str:
        module = types.ModuleType(f"vafl_that_{server.__name__.lower()}")
        module.METHOD = dataclasses.replace(METHODS["vafl"], name=module.__name__, server=server)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return f"{module.__name__}:METHOD"

    return make


@pytest.mark.parametrize(("server", "fault"), [(Blames, "blame"), (Forgets, "hang")], ids=["blame", "hang"])
def test_cases_find_where_a_lie_leads(server, fault, method_with):
    name = method_with(server)
    assert any(case(name, seed).fault == fault for seed in range(MOST))


@pytest.mark.parametrize(("server", "fault"), [(Crashes, "crash"), (Changes, "changed")], ids=["crash", "changed"])
def test_a_sweep_finds_what_one_message_does(server, fault, method_with):
    assert fault in {finding.fault for finding in sweep_case(method_with(server), 0, share=0.05).findings}
