"""What the codec makes of a message to which another release has added a field: the rule of docs/network.md."""

import msgspec
import numpy as np
import pytest

from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CodecError
from colonnade.protocol.messages import Array, Message


class Old(Message, frozen=True, tag="Upload"):
    number: int
    values: Array


class New(Message, frozen=True, tag="Upload"):
    number: int
    values: Array
    staleness: int = 3


class WithArray(Message, frozen=True, tag="Upload"):
    number: int
    values: Array
    more: Array = msgspec.field(default_factory=lambda: np.zeros(0))


VALUES = np.arange(3, dtype=np.float32)


def test_a_field_with_a_default_is_read_by_both_releases():
    from_old = Codec([New]).decode(bytes(Codec([Old]).encode(Old(1, VALUES))))
    assert (from_old.number, from_old.staleness) == (1, 3)
    from_new = Codec([Old]).decode(bytes(Codec([New]).encode(New(1, VALUES, 9))))
    assert from_new.number == 1 and np.array_equal(from_new.values, VALUES)


def test_an_array_needs_a_new_message():
    frame = bytes(Codec([WithArray]).encode(WithArray(1, VALUES, VALUES)))
    with pytest.raises(CodecError, match="16 bytes too many"):
        Codec([Old]).decode(frame)
