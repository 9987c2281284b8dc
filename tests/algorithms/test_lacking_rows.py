"""Rows that some parties lack (align.min_parties): the server trains and evaluates with a learned replacement."""

import types
from dataclasses import replace

import numpy as np
import pytest

from colonnade.drivers.simulator import Simulator
from colonnade.protocol.codec import Codec

TABLES = {
    "protocol": {"name": "vafl"},
    "model": {"party": "mlp:16", "embedding": 8},
    "train": {"epochs": 6, "batch_size": 32, "learning_rate": 0.1, "eval_every": "3 epochs"},
}
METHODS = pytest.mark.parametrize("method", ["sync", "vafl", "t-sync"])


def of(method, **train):
    return TABLES | {"protocol": {"name": method}, "train": TABLES["train"] | train}


def hidden(rows, seed, some=0.45):
    """Two parties: each lacks this many rows, and no row is missing from both."""
    draws = np.random.default_rng(seed).random(rows)
    return np.stack([draws < some, draws > 1 - some], axis=1)


def blanked(x, lacks, fill=0.0):
    x = x.copy()
    x[lacks] = fill
    return x


def run(setting):
    records = []
    simulator = Simulator(
        setting.roles(), Codec(setting.method.payloads), setting.config.clock, 0, check=True,
        on_emit=lambda record, _: records.append(record),
    )  # fmt: skip
    assert simulator.run() == "finished"
    roles = [node.role for node in simulator.nodes]
    return types.SimpleNamespace(
        roles=roles, measured=records[-1].values, weights=[role.network.digest() for role in roles]
    )


def lacking(setting, absent, fill=0.0):
    """The same federation without those rows."""
    parties = [
        replace(
            party,
            train=blanked(party.train, absent[0][:, party.index], fill),
            test=blanked(party.test, absent[1][:, party.index], fill),
        )
        for party in setting.parties
    ]
    return replace(setting, server=replace(setting.server, absent=absent), parties=parties)


def of_rows(setting, rows):
    """The same federation trained on these rows alone."""
    training = replace(setting.training, rows=len(rows))
    parties = [replace(party, train=party.train[rows], training=training) for party in setting.parties]
    server = replace(setting.server, y_train=setting.server.y_train[rows], training=training)
    return replace(setting, server=server, parties=parties)


@METHODS
def test_what_a_party_sends_for_rows_that_it_lacks_changes_nothing(method, resolve):
    setting = resolve(of(method, epochs=1, eval_every="1 epoch"), "breast-cancer", 2)
    absent = hidden(len(setting.server.y_train), 0), hidden(len(setting.server.y_test), 1)
    first, other = (run(lacking(setting, absent, fill)) for fill in (0.0, 3.0))
    assert first.weights == other.weights and first.measured == other.measured
    assert first.weights != run(setting).weights
    fallback = first.roles[0].network.reader.fallback.detach().numpy()
    assert np.isfinite(fallback).all() and np.abs(fallback).min() > 0  # both learned


def test_more_rows_make_a_better_model(resolve):
    """Each party has half of the digits' pixels; one row in ten is complete."""
    adam = {"optimiser": "adam", "learning_rate": 0.01}
    setting = resolve(of("sync", epochs=10, **adam), "digits", 2)
    rows = len(setting.server.y_train)
    absent = hidden(rows, 0), np.zeros((len(setting.server.y_test), 2), bool)
    complete = np.flatnonzero(~absent[0].any(axis=1))
    assert len(complete) < 0.15 * rows
    few = resolve(of("sync", updates=10 * rows // 32, epochs=None, **adam), "digits", 2)  # as many updates
    alone = run(of_rows(few, complete)).measured["accuracy"]
    with_more = run(lacking(setting, absent)).measured["accuracy"]
    everything = run(setting).measured["accuracy"]
    assert alone + 0.03 < with_more < everything + 0.02 and everything > 0.9


@METHODS
def test_it_goes_on_from_its_state(method, resolve):
    setting = resolve(of(method, epochs=1, eval_every="1 epoch"), "breast-cancer", 2)
    absent = hidden(len(setting.server.y_train), 0), hidden(len(setting.server.y_test), 1)
    server = run(lacking(setting, absent)).roles[0]
    again = next(iter(lacking(setting, absent).roles()))
    again.load(server.save())
    assert again.network.digest() == server.network.digest()
    if method != "sync":  # which has no table
        table = server.table.values
        assert np.array_equal(again.table.values, table, equal_nan=True)
        assert np.isnan(table[absent[0][:, 0], :8]).all() and np.isfinite(table[~absent[0][:, 0], :8]).all()
