"""What a party fitted on its training rows, to be used again: categories, means for missing numbers, and the scaling.

A run that continues another one needs all three of the earlier run, because its weights belong to them. Columns are
found by name:

| column | encoding and scaling |
|---|---|
| of the earlier run | the earlier ones |
| new | fitted on the new training rows |
| a category of the earlier run | keeps its feature, also if it does not occur any more |
| a new category | has a feature after those of the column's earlier categories |
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from colonnade.data.encoding import Categories, Encoder
from colonnade.data.scaling import Scaler
from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

__all__ = ["NOTHING_FITTED", "Fitted", "encoder_with", "fitted_of", "scaler_with"]


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """An encoder and a scaler as plain values."""

    names: tuple[str, ...]  # of the raw columns
    categories: Categories
    means: Array | None
    shift: Array  # (features,)
    gain: Array
    limit: float
    lengths: tuple[int, ...] = ()  # of text columns: see Encoder

    @property
    def encoder(self) -> Encoder:
        return Encoder(self.names, self.categories, self.means, self.lengths)

    @property
    def scaler(self) -> Scaler:
        return Scaler(self.shift, self.gain, self.limit)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features: a column's name, or "name=category"."""
        return self.encoder.features

    def same_scale(self, other: "Fitted") -> str | None:
        """Return the first feature of both that the two scale differently; None if there is none."""
        mine = {name: place for place, name in enumerate(self.features)}
        if self.limit != other.limit and self.names and other.names:
            return next((name for name in other.features if name in mine), None)
        for place, name in enumerate(other.features):
            own = mine.get(name)
            if own is not None and (self.shift[own], self.gain[own]) != (other.shift[place], other.gain[place]):
                return name
        return None


NOTHING_FITTED: Mapping[str, Fitted] = {}


def fitted_of(encoder: Encoder, scaler: Scaler) -> Fitted:
    held = encoder.names, encoder.categories, encoder.means
    return Fitted(*held, scaler.shift, scaler.gain, scaler.limit, encoder.lengths)


def encoder_with(before: Fitted, now: Encoder, party: str) -> Encoder:
    """Return the encoder of the columns now, with the categories and means of the earlier run."""
    if before.lengths or now.lengths:
        raise DataError(f"{party}: a run with text columns cannot be continued: train it from the start")
    old = dict(zip(before.names, before.categories, strict=True))
    categories = tuple(
        _categories(name, old[name], held, party) if name in old else held
        for name, held in zip(now.names, now.categories, strict=True)
    )
    means = None if now.means is None else now.means.copy()
    if means is not None and before.means is not None:
        known = dict(zip(before.names, before.means, strict=True))
        means = np.array([known.get(name, own) for name, own in zip(now.names, means, strict=True)])
    return Encoder(now.names, categories, means)


def _categories(
    name: str, old: tuple[str, ...] | None, now: tuple[str, ...] | None, party: str
) -> tuple[str, ...] | None:
    if (old is None) != (now is None):
        had, has = ("numbers", "texts") if old is None else ("categories", "numbers")
        advice = "" if old is None else "; if they are categories, name the column in `categorical`"
        raise DataError(f"{party}: column '{name}' held {had} in the earlier run, and holds {has} now{advice}")
    return old if now is None or old is None else (*old, *(category for category in now if category not in old))


def scaler_with(before: Fitted, encoder: Encoder, fitted: Scaler, party: str) -> Scaler:
    """Return the scaler of the columns now, with the scaling of the earlier run for its columns."""
    old = {name: place for place, name in enumerate(before.features)}
    places = np.array([old.get(name, -1) for name in encoder.features], np.int64)
    stays = places >= 0
    if stays.any() and before.limit != fitted.limit:
        kinds = ("'clipped'", "another scale") if before.limit < np.inf else ("no 'clipped'", "'clipped'")
        raise DataError(f"{party}: the earlier run had {kinds[0]}, and now there is {kinds[1]}: set the same scale")
    shift, gain = fitted.shift.copy(), fitted.gain.copy()
    shift[stays], gain[stays] = before.shift[places[stays]], before.gain[places[stays]]
    return Scaler(shift, gain, fitted.limit)
