"""Speeds of the roles: work and time of the jobs, by the bin in which they begin."""

import numpy as np

from colonnade.config.schema import from_dict
from colonnade.drivers.simulator.speeds import MICRO, Speeds
from colonnade.experiments.run import prepare

MS = 10**6


def test_a_job_counts_whole_in_the_bin_in_which_it_begins():
    speeds = Speeds(["server", "a"])
    speeds.note((1, 0, MICRO // 2, 2 * MS))  # half a batch in 2 ms, over two bins of 1 ms
    speeds.note((1, 2 * MS, MICRO, MS))
    assert speeds.totals() == {
        "bin_s": 0.001,
        "batches": [[0.0, 0.0, 0.0], [0.5, 0.0, 1.0]],
        "seconds": [[0.0, 0.0, 0.0], [0.002, 0.0, 0.001]],
    }


def test_nothing_depends_on_when_the_notes_are_folded_or_saved():
    generator, once, often = np.random.default_rng(0), Speeds(["a", "b"]), Speeds(["a", "b"])
    for start in np.sort(generator.integers(0, 5000 * MS, 300)).tolist():
        job = int(generator.integers(2)), start, int(generator.integers(MICRO)), int(generator.integers(1, 99 * MS))
        once.note(job)
        often.note(job)
        again = Speeds(["a", "b"])
        again.load(often.save())
        often = again
    assert once.totals() == often.totals()
    assert once.totals()["bin_s"] == 0.016  # 400 bins of 1, 2, 4, 8, 16 ms reach 5 s


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
