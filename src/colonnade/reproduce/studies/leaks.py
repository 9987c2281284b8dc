"""VFL-Cascaded's Table I: how often an attacker infers a label from the server's answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.attacks.attack import Order, attack
from colonnade.attacks.registry import find_attack
from colonnade.reproduce.conduct import Curve, Job
from colonnade.reproduce.item import Column
from colonnade.reproduce.result import Cell

__all__ = ["labels", "success"]

ATTACK = "label-inference"
# The attackers of the paper, by the names that the attack gives them.
NAMES = {"curious client": "curious client", "eavesdropper": "eavesdropper", "eavesdropper, random u": "eavesdropper"}


def labels(job: Job, columns: Sequence[Column]) -> tuple[list[Cell], dict[str, dict[str, Curve]]]:
    """A row for each method and attacker."""
    cells = []
    for column in columns:
        found = success(job, job.tables(column), [row.set["protocol.name"] for row in job.rows()])
        for row in job.rows():
            values = found[row.set["protocol.name"], row.set["attacker"]]
            cells.append(Cell(row=row.name, column=column.name, values=values))
    return cells, {}


def success(job: Job, tables: Mapping[str, Any], methods: Sequence[str]) -> dict[tuple[str, str], list[float | None]]:
    """Method and attacker → the share of labels inferred in each trial, per cent."""
    order = Order(
        tables, list(dict.fromkeys(methods)), ["curious", "eavesdropper"], job.seeds,
        on_progress=lambda text, done: job.tell(f"{job.item.id}: {text}") if done in (0.0, 1.0) else None,
    )  # fmt: skip
    found: list[Any] = attack(find_attack(ATTACK), order, None, "")
    return {
        (one.method, NAMES[one.attacker]): [100 * trial.right / trial.rows for trial in one.trials]
        for one in found
        if one.attacker in NAMES
    }
