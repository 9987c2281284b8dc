"""The one exception tree."""

import pytest

from colonnade.protocol import errors
from colonnade.protocol.errors import CodecError, ConfigError, ProtocolError, RemoteProtocolError

OTHERS = {
    "DamagedFile",
    "MissingExtra",
    "NotWritable",
    "PartyDiverged",
    "TrainingDiverged",
    "WorkerLost",
}  # not named …Error


def test_the_tree_is_the_printed_one() -> None:
    parents: list[str] = []
    printed = {}
    for line in (errors.__doc__ or "").splitlines():
        drawn = line.split("  ")[0] if line.startswith("Colonnade") else line
        if "Error" not in drawn.split(" a ")[0] and not OTHERS & set(drawn.split()):
            continue
        name = drawn.lstrip("│├└─ ").split()[0]
        depth = (len(drawn) - len(drawn.lstrip("│├└─ "))) // 4
        parents[depth:] = [name]
        printed[name] = parents[depth - 1] if depth else "Exception"
    assert set(printed) == set(errors.__all__)
    for name, parent in printed.items():
        assert getattr(errors, name).__bases__[0].__name__ == parent


def test_a_config_error_names_key_value_and_advice() -> None:
    error = ConfigError("train.batch_size", 0, "must be 1 or more rows")
    assert str(error) == "train.batch_size = 0: must be 1 or more rows"
    assert (error.key, error.value, error.advice) == ("train.batch_size", 0, "must be 1 or more rows")


@pytest.mark.parametrize("kind", [RemoteProtocolError, CodecError])
def test_a_remote_error_names_the_peer(kind: type[RemoteProtocolError]) -> None:
    error = kind("bank", "not a Colonnade frame")
    assert str(error) == "bank: not a Colonnade frame"
    assert (error.peer, error.cause) == ("bank", "not a Colonnade frame")
    assert isinstance(error, ProtocolError)
