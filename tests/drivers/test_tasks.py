"""Calls in processes of this machine: results, failures, and an end that is asked for."""

import multiprocessing
import operator
import os
import sys
import time
from contextlib import closing
from types import ModuleType

from colonnade.drivers.tasks import in_turn


def test_every_call_ends_with_its_result_or_its_cause():
    calls = [(3, 4), (1, 0), (1, 2)]
    ended = dict(filter(None, in_turn(operator.truediv, calls, 2)))
    assert ended == {0: 0.75, 1: "ZeroDivisionError: division by zero", 2: 0.5}


def test_a_process_that_dies_costs_its_own_call_only():
    ended = dict(filter(None, in_turn(os._exit, [(3,), (4,)], 1)))
    assert ended == {0: "its process ended with code 3", 1: "its process ended with code 4"}


def test_a_process_that_never_came_up_costs_its_own_call_only(monkeypatch):
    module = ModuleType("only_here")  # another process cannot import it
    exec("def function(): pass", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    ended = dict(filter(None, in_turn(module.function, [()], 1)))
    assert ended == {0: "its process ended with code 1"}


def test_a_terminal_does_not_interrupt_the_processes_itself():
    ((_, group),) = filter(None, in_turn(os.getpgrp, [()], 1))
    assert group != os.getpgrp()


def test_an_iterator_that_is_closed_interrupts_the_calls():
    with closing(in_turn(time.sleep, [(1000,), (1000,)], 2)) as ends:
        assert next(ends) is None
    assert multiprocessing.active_children() == []
