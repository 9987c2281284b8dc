"""Deal the columns to the parties by importance or by correlation, as VertiBench defines it (Wu et al., ICLR 2024).

| `[data] split` | how columns are dealt |
|---|---|
| {importance = α} | r ~ Dirichlet(α, …, α); each column goes to party m with probability r_m |
| {correlation = β} | equal shares with Icor = (1 − β)·min Icor + β·max Icor |

A small α gives most columns to few parties, a large one gives equal shares. Each party gets at least one column.

    Pcor(A, B)   the deviation of the singular values of the Spearman correlations of A's with B's columns, over √d;
                 d is the smaller number of columns
    Icor         the mean over parties i of the mean over j ≠ i of Pcor(i, j) − Pcor(i, i)

With β = 0 the columns of one party correlate with each other, with β = 1 they correlate with the other parties'.
`data.split_seed` makes all draws.

Departures from VertiBench:
- It searches the smallest, the largest and the wanted Icor with a genetic algorithm (BRKGA). Here swaps of two columns
  search, which needs no library. Neither search is exact, so a note says what was reached.
- Only training rows count, and of those at most 5,000.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from colonnade.data.dataset import Dataset
from colonnade.data.table import Table
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError

__all__ = ["RULES", "deal", "icor", "is_dealt"]

RULES = ("importance", "correlation")
MOST_COLUMNS = 256  # for correlation: a swap decomposes matrices of this order
MOST_ROWS = 5_000
SWAPS = 1_500  # tried in each of the three searches
CLOSE = 1e-3  # to the wanted Icor, as a fraction of its range

Groups = list[list[int]]


def is_dealt(how: object) -> bool:
    """Whether a split is a rule of this module; a party may have a rule's name if it has a list of columns."""
    if not isinstance(how, Mapping):
        return False
    return any(name in how and not isinstance(how[name], list | tuple) for name in RULES)


def deal(dataset: Dataset, parties: int, how: Mapping[str, Any], rows: Array, seed: int) -> tuple[list[Array], str]:
    """Return the columns (int64, in order) of each party, and a note for readers of the results."""
    rule, value = _checked(dataset, parties, how)
    draw = np.random.Generator(np.random.PCG64([seed, 1 + RULES.index(rule)]))
    if rule == "importance":
        groups, note = _by_importance(len(dataset.columns), parties, value, draw)
    else:
        groups, note = _by_correlation(_correlations(dataset, rows), parties, value, draw)
    return [np.sort(np.asarray(group, np.int64)) for group in groups], note


def _checked(dataset: Dataset, parties: int, how: Mapping[str, Any]) -> tuple[str, float]:
    if len(how) != 1:
        raise ConfigError("data.split", dict(how), "give one rule alone: {importance = 0.1} or {correlation = 0.5}")
    [(rule, value)] = how.items()
    key, width = f"data.split.{rule}", len(dataset.columns)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(key, value, "must be a number")
    if rule == "importance" and not 0 < value < float("inf"):
        raise ConfigError(key, value, "must be above 0: the parameter of the Dirichlet distribution, such as 0.1 or 10")
    if rule == "correlation" and not 0 <= value <= 1:
        raise ConfigError(key, value, "must be from 0 (correlated columns together) to 1 (at different parties)")
    if dataset.series:
        raise ConfigError("data.split", dict(how), f'{dataset.name} has time series, which stay whole; use "views"')
    if rule == "correlation" and width > MOST_COLUMNS:
        advice = f"{dataset.name} has {width:,} columns, and the search takes at most {MOST_COLUMNS}; use importance"
        raise ConfigError(key, value, advice)
    if not 2 <= parties <= width:
        raise ConfigError("data.parties", parties, f"must be from 2 to {width}, the number of columns")
    return rule, float(value)


def _by_importance(width: int, parties: int, alpha: float, draw: np.random.Generator) -> tuple[Groups, str]:
    share = draw.dirichlet([alpha] * parties)
    first = draw.choice(width, parties, replace=False)  # no party is empty
    owner = draw.choice(parties, width, p=share / share.sum())
    owner[first] = np.arange(parties)
    groups = [np.flatnonzero(owner == party).tolist() for party in range(parties)]
    sizes = ", ".join(str(len(group)) for group in groups)
    return groups, f"data.split: importance = {alpha:g} gave the parties {sizes} columns"


def _correlations(dataset: Dataset, rows: Array) -> Array:
    """Return Spearman's correlations of all columns; those of a constant column are 0."""
    from scipy.stats import rankdata

    some = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(np.int64)]
    every = np.arange(len(dataset.columns))
    if isinstance(dataset.x, Table):
        x = dataset.x.take(some, every)
    else:
        x = np.asarray(dataset.x[some].toarray() if sparse.issparse(dataset.x) else dataset.x[some], np.float64)
    known = np.isfinite(x)
    means = np.where(known, x, 0).sum(0) / np.maximum(known.sum(0), 1)
    ranks = rankdata(np.where(known, x, means), axis=0)
    ranks -= ranks.mean(0)
    norms = np.sqrt((ranks**2).sum(0))
    ranks /= np.where(norms > 0, norms, 1)
    correlations: Array = ranks.T @ ranks
    return correlations


def pcor(block: Array) -> float:
    """Return VertiBench's score of one block of the correlation matrix; 0 if a side has one column only."""
    smaller = min(block.shape)
    if smaller < 2:
        return 0.0
    return float(np.std(np.linalg.svd(block, compute_uv=False), ddof=1) / np.sqrt(smaller))


def icor(correlations: Array, groups: Groups) -> float:
    """Return the overall score of a split; `groups` are the columns of each party."""
    return _mean_difference(_scores(correlations, groups))


def _scores(correlations: Array, groups: Groups) -> Array:
    found = np.zeros((len(groups), len(groups)))
    for i, j in itertools.combinations_with_replacement(range(len(groups)), 2):
        found[i, j] = found[j, i] = pcor(correlations[np.ix_(groups[i], groups[j])])
    return found


def _mean_difference(scores: Array) -> float:
    count = len(scores)
    between = (scores.sum(1) - np.diag(scores)) / (count - 1)
    return round(float((between - np.diag(scores)).mean()), 9)  # the last bits depend on the processor


def _by_correlation(correlations: Array, parties: int, beta: float, draw: np.random.Generator) -> tuple[Groups, str]:
    start = [part.tolist() for part in np.array_split(draw.permutation(len(correlations)), parties)]
    lowest, low = _search(correlations, start, lambda value: value, draw)
    highest, high = _search(correlations, start, lambda value: -value, draw)
    wanted, close = (1 - beta) * low + beta * high, CLOSE * (high - low)
    nearer = lowest if beta <= 0.5 else highest
    groups, reached = _search(correlations, nearer, lambda value: abs(value - wanted), draw, close)
    found = f"Icor {reached:.4f}, wanted {wanted:.4f}, between {low:.4f} and {high:.4f}"
    return groups, f"data.split: correlation = {beta:g} gave {found}"


# DEVIATION: VertiBench has a genetic algorithm here, see above.
def _search(
    correlations: Array,
    start: Groups,
    cost: Callable[[float], float],
    draw: np.random.Generator,
    enough: float = -np.inf,
) -> tuple[Groups, float]:
    """Swap two columns of two parties as long as that does not raise the cost of Icor; also return the Icor reached."""
    groups, scores = [list(group) for group in start], _scores(correlations, start)
    value = _mean_difference(scores)
    for _ in range(SWAPS):
        if cost(value) <= enough:
            break
        a, b = draw.choice(len(groups), 2, replace=False)
        i, j = draw.integers(len(groups[a])), draw.integers(len(groups[b]))
        groups[a][i], groups[b][j] = groups[b][j], groups[a][i]
        tried = scores.copy()
        for one, other in {(min(k, m), max(k, m)) for k in (a, b) for m in range(len(groups))}:
            tried[one, other] = tried[other, one] = pcor(correlations[np.ix_(groups[one], groups[other])])
        after = _mean_difference(tried)
        if cost(after) <= cost(value):
            scores, value = tried, after
        else:
            groups[a][i], groups[b][j] = groups[b][j], groups[a][i]
    return groups, value
