"""summary.json has the keys that `Summary` names, from every driver."""

import json

from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare
from colonnade.results.summary import Summary

SMALL = {
    "data": {"source": "wine", "parties": 2},
    "model": {"party": "linear", "embedding": 2},
    "train": {"updates": 4, "batch_size": 16},
}


def test_a_run_has_all_keys_and_no_other(tmp_path):
    summary = prepare(from_dict(SMALL), out=tmp_path / "run").execute()
    assert set(summary) == Summary.__required_keys__
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
