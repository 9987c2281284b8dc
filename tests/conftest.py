"""Fixtures for the tests of all layers."""

import os
import sys

import numpy as np
import pytest

os.environ.pop("COLUMNS", None)  # a console keeps the width that is set when it is made, in all later tests

from colonnade.cli import printing  # noqa: F401 - makes the console

# The files with the longest single tests. If such a test came last, one core would idle.
FIRST = {
    "test_ageing.py",
    "test_blackbox.py",
    "test_chaos_processes.py",
    "test_determinism.py",
    "test_distinguisher.py",
    "test_flex_network.py",
    "test_installed_method.py",
    "test_interrupt.py",
    "test_lying_alignment.py",
    "test_tutorial_docs.py",
    "test_up_command.py",
    "test_workers.py",
}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture
def judged(monkeypatch):
    """The predictions of every evaluation, as its metric gets them; the last one is that of the final weights."""
    from colonnade.models import metrics  # imports torch, which the process that only hands out tests does not need

    seen, measure = [], metrics.measure

    def listen(metric, task, y, prediction, loss, also=()):
        seen.append(np.array(prediction))
        return measure(metric, task, y, prediction, loss, also)

    for module in list(sys.modules.values()):
        if getattr(module, "measure", None) is measure:
            monkeypatch.setattr(module, "measure", listen)
    return seen
