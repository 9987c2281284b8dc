"""Speeds of the roles: work and time of the jobs, by the bin in which they begin."""

import numpy as np
import pytest

from colonnade.config.schema import from_dict
from colonnade.drivers.simulator import timeline
from colonnade.drivers.simulator.speeds import MICRO, Speeds
from colonnade.experiments.run import prepare

MS = 10**6


def test_a_job_counts_whole_in_the_bin_in_which_it_begins():
    speeds = Speeds(["server", "a"])
    speeds.note(1, 0, MICRO // 2, 2 * MS)  # half a batch in 2 ms, over two bins of 1 ms
    speeds.note(1, 2 * MS, MICRO, MS)
    assert speeds.totals() == {
        "bin_s": 0.001,
        "batches": [[0.0, 0.0, 0.0], [0.5, 0.0, 1.0]],
        "seconds": [[0.0, 0.0, 0.0], [0.002, 0.0, 0.001]],
    }


def test_nothing_depends_on_when_the_notes_are_folded_or_saved():
    generator, once, often = np.random.default_rng(0), Speeds(["a", "b"]), Speeds(["a", "b"])
    for start in np.sort(generator.integers(0, 5000 * MS, 300)).tolist():
        job = int(generator.integers(2)), start, int(generator.integers(MICRO)), int(generator.integers(1, 99 * MS))
        once.note(*job)
        often.note(*job)
        again = Speeds(["a", "b"])
        again.load(often.save())
        often = again
    assert once.totals() == often.totals()
    assert once.totals()["bin_s"] == 0.016  # 400 bins of 1, 2, 4, 8, 16 ms reach 5 s


def test_compiled_bins_hold_what_numpy_folds(monkeypatch):
    pytest.importorskip("colonnade.drivers.simulator._bins", reason="not compiled here")
    generator, compiled = np.random.default_rng(1), timeline.Bins
    for _ in range(50):
        pair = []
        for found in (compiled, None):
            monkeypatch.setattr(timeline, "Bins", found)
            pair.append(Speeds(["a", "b", "c"]))
        for start in np.sort(generator.integers(0, generator.choice([3, 390, 500, 10**5]) * MS, 60)).tolist():
            for speeds in pair:
                speeds.note(start % 3, start, start % MICRO, start % 997)
        assert pair[0].totals() == pair[1].totals()
        one, two = (speeds.save() for speeds in pair)
        assert one["width"] == two["width"] and np.array_equal(one["sums"], two["sums"])


def test_the_speeds_of_a_run_are_those_of_its_clock():
    config = from_dict(
        {
            "data": {"source": "digits", "parties": 2},
            "model": {"party": "linear", "embedding": 2},
            "protocol": {"name": "sync"},
            "clock": {"compute": [{"mean_s": 0.01}, {"mean_s": 0.04}]},
            "train": {"updates": 10, "batch_size": 32},
        }
    )
    run = prepare(config)
    run.execute()
    speed = run.timeline()["speed"]
    batches, seconds = (np.array(speed[name]).sum(1)[1:] for name in ("batches", "seconds"))
    np.testing.assert_allclose(batches / seconds, [100, 25], rtol=1e-6)
