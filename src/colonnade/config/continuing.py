"""A run that starts from the trained weights of an earlier run: what it takes over, and what it refuses.

    taken over      the weights that the last evaluation read; the encoding and scaling of the columns; the scaling of a
                    regression's targets; what was spent of each party's privacy
    starts fresh    everything that belongs to rows (tables, walks, SAGA's slopes, coded shares), the optimisers'
                    moments, counters and clocks

Columns, categories and parties are found by their names (`models.continued`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from colonnade.algorithms.method import SERVER, Options, PartySetup, ServerSetup
from colonnade.data import Fitted
from colonnade.data.suggest import listing
from colonnade.models.continued import Continued
from colonnade.models.server import aggregated_width
from colonnade.privacy.ledger import Earlier
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["Continuation", "ServerPart", "TrainedMember", "member_of_party", "member_of_server", "spec_of", "used"]

_LESS = "start a new run without --continue"


@dataclass(frozen=True, slots=True, eq=False)
class ServerPart:
    """What only a server's model has."""

    parties: tuple[str, ...]
    widths: tuple[int, ...]  # of their embeddings
    aggregate: str
    task: str  # the kind of the task
    classes: tuple[str, ...]
    target_scale: tuple[float, float]
    away: tuple[str, ...] = ()  # parties that were not there at the end, and may have kept no network


@dataclass(frozen=True, slots=True, eq=False)
class TrainedMember:
    """The trained network of a party or of the server, and what its inputs mean."""

    name: str
    method: str
    model: str | None  # as in the config; None: a module or a callable
    tensors: dict[str, Array]
    shape: tuple[int, ...]  # of one input row
    width: int  # of the output
    fitted: Fitted | None = None  # of a party: what it fitted on its training rows
    server: ServerPart | None = None
    accounted: bool = False  # of a party: whether its releases have an account


def spec_of(model: Any) -> str | None:
    """Return the config's name of a model; None for a module or a callable."""
    named = model.model if isinstance(model, Continued) else model
    return named if isinstance(named, str) else None


def member_of_party(
    setup: PartySetup[Options], method: str, tensors: dict[str, Array], fitted: Fitted | None
) -> TrainedMember:
    """Return what a later run needs of a party."""
    on = setup.privacy.on
    return TrainedMember(
        setup.name, method, spec_of(setup.model), tensors, tuple(setup.shape), setup.width, fitted, accounted=on
    )


def member_of_server(
    setup: ServerSetup[Options],
    method: str,
    tensors: dict[str, Array],
    scale: tuple[float, float],
    away: tuple[str, ...] = (),
) -> TrainedMember:
    """Return what a later run needs of the server; `away` are the parties that were not there at the end."""
    task = setup.task
    part = ServerPart(setup.parties, setup.widths, setup.aggregate, task.kind, tuple(task.classes), scale, away)
    inputs = aggregated_width(setup.aggregate, setup.widths)
    return TrainedMember(SERVER, method, spec_of(setup.model), tensors, (inputs,), task.outputs, server=part)


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """The members of an earlier run that this process has, and that run's name."""

    folder: str  # the folder's name, for people
    run: str  # the run's id; of a simulated run, the digest of its weights
    members: dict[str, TrainedMember]
    earlier: dict[str, Earlier] = field(default_factory=dict)  # the parties' accounts, if they have any

    @property
    def origin(self) -> dict[str, str]:
        """What a summary says about it."""
        return {"folder": self.folder, "run": self.run}

    def fitted(self) -> dict[str, Fitted]:
        """Return what each party had fitted, for the columns that stay."""
        return {name: one.fitted for name, one in self.members.items() if one.fitted is not None}

    def former(self) -> tuple[str, ...]:
        """Return the parties that must continue too: those that were there at the end of the earlier run."""
        part = self._server_part()
        return () if part is None else tuple(name for name in part.parties if name not in part.away)

    def away(self) -> tuple[str, ...]:
        """Return the parties that may continue, or start fresh."""
        part = self._server_part()
        return () if part is None else part.away

    def _server_part(self) -> ServerPart | None:
        return self.members[SERVER].server if SERVER in self.members else None

    def only(self, name: str) -> "Continuation":
        """Return the part of one member."""
        earlier = {name: self.earlier[name]} if name in self.earlier else {}
        return replace(self, members={name: self.members[name]}, earlier=earlier)

    def require(self, names: Iterable[str]) -> None:
        """Raise ConfigError unless the folder has the networks of these members."""
        if missing := [name for name in names if name not in self.members]:
            advice = f"has the network of {listing(self.members)}, not of {missing[0]}: name {missing[0]}'s folder"
            raise ConfigError("--continue", self.folder, advice)

    def server(self, setup: ServerSetup[Any]) -> ServerSetup[Any]:
        """Return the setup of a server that starts with the earlier weights."""
        before = self.members[SERVER]
        part = before.server
        assert part is not None
        _same("model.server", before.model, spec_of(setup.model), "server")
        _same("model.aggregate", part.aggregate, setup.aggregate, "server")
        if (part.task, part.classes) != (setup.task.kind, tuple(setup.task.classes)):
            raise ConfigError(
                "server.label",
                listing(setup.task.classes) or setup.task.kind,
                f"the earlier run predicts {listing(part.classes) or part.task}, and its outputs mean these; {_LESS}",
            )
        blocks = _block_places(part, setup)
        width = aggregated_width(part.aggregate, part.widths)
        inputs = blocks if setup.aggregate == "concat" else np.arange(width)
        model = Continued(setup.model, before.tensors, inputs, width, part.parties, blocks)
        scale = part.target_scale if setup.task.kind == "regression" else None
        return replace(setup, model=model, target_scale=scale)

    def party(
        self, setup: PartySetup[Any], fitted: Fitted | None, dropped: Sequence[str], key: str = "party"
    ) -> PartySetup[Any]:
        """Return the setup of a party that starts with its earlier weights; unchanged, if the party is new.

        `dropped` are the columns that may be gone. `key` is the section of the config that names the columns.
        """
        before = self.members.get(setup.name)
        if before is None:
            return setup
        _same("model.party", before.model, spec_of(setup.model), setup.name)
        if before.width != setup.width:
            advice = f"{setup.name} had embeddings of width {before.width} in the earlier run: set the same width"
            raise ConfigError("model.embedding", setup.width, advice)
        inputs, count = _column_places(before, fitted, setup, dropped, key)
        earlier = self._account(setup)
        return replace(setup, model=Continued(setup.model, before.tensors, inputs, count), earlier=earlier)

    def _account(self, setup: PartySetup[Any]) -> Earlier | None:
        """Return what was spent before; raises ConfigError if no account can cover both runs."""
        if not setup.privacy.on:
            return None
        earlier, key = self.earlier.get(setup.name), "privacy.mechanism"
        if earlier is None:
            cause = f"{setup.name} released embeddings without an account in the earlier run"
            raise ConfigError(key, setup.privacy.mechanism, f"{cause}, so that no ε covers both runs together: {_LESS}")
        if setup.privacy.by_record and not earlier.by_record:
            cause = f"{setup.name} trained on its records without noise in the earlier run"
            advice = f"set 'plain', or {_LESS}"
            raise ConfigError(
                "privacy.local_updates", setup.privacy.local_updates, f"{cause}, so every row depends on them: {advice}"
            )
        return earlier

    def check_dropped(self, dropped: Sequence[str], parties: Iterable[str]) -> None:
        """Raise ConfigError for a name that no party of the earlier run had, which is probably misspelt."""
        known = {
            name for party in parties if (one := self.members.get(party)) and one.fitted for name in one.fitted.names
        }
        unknown = [name for name in dropped if name not in known]
        if unknown:
            raise ConfigError("party.drop_columns", unknown[0], f"no such column in {self.folder}: {listing(known)}")


def _same(key: str, before: str | None, now: str | None, who: str) -> None:
    if before is not None and now is not None and before != now:
        raise ConfigError(key, now, f"{who} had {before!r} in the earlier run: set it to that, or {_LESS}")


def _block_places(part: ServerPart, setup: ServerSetup[Any]) -> Array:
    """Return where each place of all embeddings, side by side, was in the earlier run; -1 for a new party's."""
    widths = dict(zip(part.parties, part.widths, strict=True))
    for name, width in zip(setup.parties, setup.widths, strict=True):
        if widths.get(name, width) != width:
            advice = f"{name} had embeddings of width {widths[name]} in the earlier run: set the same width"
            raise ConfigError("model.embedding", width, advice)
    if not set(setup.parties) & set(part.parties):
        advice = f"none of them was in the earlier run, which had {listing(part.parties)}: {_LESS}"
        raise ConfigError("network.parties", list(setup.parties), advice)
    starts = dict(zip(part.parties, np.cumsum([0, *part.widths]), strict=False))
    blocks = [
        starts[name] + np.arange(width) if name in starts else np.full(width, -1)
        for name, width in zip(setup.parties, setup.widths, strict=True)
    ]
    return np.concatenate(blocks).astype(np.int64)


def _column_places(
    before: TrainedMember, now: Fitted | None, setup: PartySetup[Any], dropped: Sequence[str], key: str
) -> tuple[Array, int]:
    """Return where each feature was in the earlier run, and how many features that had."""
    count, name = int(np.prod(before.shape)), setup.name
    if before.fitted is None or now is None or len(now.features) != int(np.prod(setup.shape)):
        if tuple(setup.shape) != before.shape:
            advice = f"{name} had rows of shape {before.shape} in the earlier run, and its columns have no names"
            raise ConfigError(f"{key}.data", str(tuple(setup.shape)), f"{advice}: give the same columns")
        return np.arange(count), count
    gone = [column for column in before.fitted.names if column not in now.names]
    if unsaid := [column for column in gone if column not in dropped]:
        typed = " ".join(f"--drop-columns {column}" for column in unsaid[:5])
        advice = f"{name} had it in the earlier run; bring it back, or drop its weights with {typed}"
        raise ConfigError(f"{key}.columns", unsaid[0], f"is missing: {advice}")
    if still := [column for column in dropped if column in now.names and column in before.fitted.names]:
        raise ConfigError("party.drop_columns", still[0], f"{name} still has this column: take it out of its columns")
    if (other := now.same_scale(before.fitted)) is not None:
        advice = "is not scaled as in the earlier run, to which the weights belong; make the data with like=…"
        raise ConfigError("continue_from", f"{name}: {other}", advice)
    places = {feature: place for place, feature in enumerate(before.fitted.features)}
    return np.array([places.get(feature, -1) for feature in now.features], np.int64), count


def used(before: "Continuation | None") -> Mapping[str, Fitted]:
    """Return what the parties had fitted; nothing, if a run continues no other."""
    return {} if before is None else before.fitted()
