"""A role that refuses a message keeps its state and outbox. All roles of all methods, in the middle of a run.

The messages are those of the run, to this role or to others, with a field or the sender replaced.
"""

import random

import msgspec
import numpy as np
import pytest

from colonnade.algorithms import METHODS
from colonnade.protocol import state
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import PeerLost, Received
from colonnade.protocol.messages import Message

from .test_every_method import LINEAR, SETTINGS, USUAL

TRIED = 40  # messages for each role


def others(value, draw):
    """Values that may stand where this one does, most of them absurd."""
    match value:
        case bool():
            return [not value]
        case int():
            return [-1, value + 1, 2**62]
        case float():
            return [float("nan"), -1.0, float("inf")]
        case str() | bytes():
            return [value[:0], value * 2]
        case list():
            return [[], [*value, 99], value[:-1]] if all(isinstance(item, int) for item in value) else [[]]
        case np.ndarray() if value.ndim:
            spoilt = value.copy()
            if spoilt.size:
                spoilt.reshape(-1)[draw.randrange(spoilt.size)] = (
                    np.nan if value.dtype.kind == "f" else spoilt.max() + 1
                )
            return [spoilt, value[:-1], value.astype(np.float64), np.zeros((2, 3), np.float32), value[:0]]
    return []


def spoilt(message, draw):
    """The same message with one field changed."""
    name = draw.choice(message.__struct_fields__)
    choices = others(getattr(message, name), draw)
    return msgspec.structs.replace(message, **{name: draw.choice(choices)}) if choices else message


def mail_of(run):
    return [(role, event.sender, event.message) for _, role, event in run.events if isinstance(event, Received)]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.party is not None])
def test_a_refused_message_changes_nothing(name, simulate):
    model, train, _ = SETTINGS.get(name, USUAL)
    tables = {
        "protocol": {"name": name},
        "model": model,
        "clock": {"compute": {"kind": "exponential", "mean_s": 0.01}},
        "train": {"batch_size": 32, "eval_every": "1 epoch", **train},
    }
    run = simulate(tables, "breast-cancer" if name in LINEAR else "digits", until=150)
    draw, mail = random.Random(name), mail_of(run)
    refused = 0
    for role in (run.server, run.parties[0]):
        own = [(sender, message) for to, sender, message in mail if to == role.name]
        before = state.pack(role.save())
        calm = repr(role.handle(PeerLost("a stranger"), run.simulator.now))
        role.load(state.unpack(before))
        for _ in range(TRIED):
            sender, message = draw.choice(own) if draw.random() < 0.7 else draw.choice(mail)[1:]
            message = spoilt(message, draw)
            sender = sender if draw.random() < 0.8 else draw.choice(["server", "party-2", "a stranger"])
            assert isinstance(message, Message)
            try:
                role.handle(Received(sender, message), run.simulator.now)
            except RemoteProtocolError:
                refused += 1
                assert state.pack(role.save()) == before, f"{role.name} refused {message!r:.200} and changed"
            except Exception as error:  # the run would end here and report why
                assert not isinstance(error, IndexError | KeyError | TypeError | AttributeError), repr(error)
            role.load(state.unpack(before))
            assert state.pack(role.save()) == before
        left = repr(role.handle(PeerLost("a stranger"), run.simulator.now))
        assert left == calm, "a refused message's effects leave with the next event"
    assert refused >= TRIED // 4
