"""A finished run of the simulator in a folder."""

from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare

TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 3},
    "protocol": {"name": "vafl"},
    "model": {"party": "linear", "embedding": 4},
    "train": {"seconds": 4.0, "eval_every": "0.5s"},
    "clock": {
        "compute": {"mean_s": 0.05},
        "faults": [{"party": "party-2", "kind": "offline", "at_s": 1.0, "until_s": 2.0}],
    },
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched") / "run"
    prepare(from_dict(TABLES), out=path).execute()
    return path
