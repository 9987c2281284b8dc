"""All of these tests run on one torch thread, as runs do; Ray stays on loopback in every test that imports it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.deployment.party_side import PartySide
from colonnade.deployment.server_side import ServerSide
from colonnade.predict.asking import door_of
from colonnade.predict.in_one_place import predict_in_one_place
from colonnade.predict.processes import predicting_party, predicting_server
from colonnade.predict.tokens import Tokens

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # ray reads this when it is imported

PATIENCE_S = 60.0


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def _ask(
    make_server: Callable[[], ServerSide], make_party: Callable[[str, str], PartySide], ids: list[str]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Start every role of a trained federation again from its folder; return answers of the HTTP door and the roles."""
    server = predicting_server(make_server())
    door = server.out / "predict" / "http"
    running = [asyncio.ensure_future(server.run())]
    try:
        await _until(lambda: door.is_file() or running[0].done())
        names, address = server.node.peers, (server.out / "address").read_text()
        parties = [predicting_party(make_party(name, address)) for name in names]
        running += [asyncio.ensure_future(party.run()) for party in parties]
        await _until(lambda: all(peer.stream for peer in server.node.peers.values()))
        with Tokens(server.out / "predict").lent() as token, closing(door_of(server.out, token)) as door_here:
            found = await asyncio.to_thread(door_here.request, "POST", "/predict", {"ids": ids})
        return found["answers"], [host.application.side.role for host in (server, *parties)]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


@pytest.fixture
def predicted() -> Callable[..., Any]:
    """Ask a trained federation for all test rows; the answers must match its final weights."""

    def ask(setting: Any, make_server: Any, make_party: Any) -> Any:
        data = setting.data
        ids = data.ids[len(data.y_train) + data.validation :].to_list()
        answers, roles = asyncio.run(asyncio.wait_for(_ask(make_server, make_party, ids), PATIENCE_S))
        assert all(answer["parties"] == list(setting.data.parties) and not answer["refused"] for answer in answers)
        found = np.array([answer["probabilities"] for answer in answers])
        tests = [block[data.validation :] for block in data.test]
        here = predict_in_one_place(setting.method, setting.options, data.task, roles, tests, 1)
        np.testing.assert_allclose(found, here, rtol=0, atol=1e-6)  # margins are rounded to 2⁻³², sums to float32
        return found

    return ask
