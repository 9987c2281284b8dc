"""Seeds: stable across releases and machines, independent of each other and of PYTHONHASHSEED."""

import os
import subprocess
import sys

import numpy as np

from colonnade.protocol.seeds import derive, generator


def test_two_values_that_must_never_change() -> None:
    assert derive(0, "links") == 8436229389765135665
    assert derive(7, "batches", 2, 0) == 689868699346316513


def test_seeds_fit_in_63_bits() -> None:
    assert all(0 <= derive(seed, "x") < 2**63 for seed in range(-5, 200))


def test_every_part_of_the_path_counts() -> None:
    paths = [(0,), (0, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, 0, "a"), (1, "a"), (10,), (0, "ab"), (1, "0", "a")]
    assert len({derive(*path) for path in paths}) == len(paths)  # type: ignore[arg-type]


def test_streams_do_not_depend_on_what_was_made_before() -> None:
    first = generator(3, "pace", "a").random(4)
    generator(3, "pace", "b").random(100)
    np.testing.assert_array_equal(generator(3, "pace", "a").random(4), first)
    assert not np.array_equal(generator(3, "pace", "b").random(4), first)


def test_the_hash_seed_of_python_does_not_matter() -> None:
    code = (
        "from colonnade.protocol.seeds import derive, generator; print(derive(5, 'a', 1), generator(5, 'a').random())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert outputs == {f"{derive(5, 'a', 1)} {generator(5, 'a').random()}\n"}
