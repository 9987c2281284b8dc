"""Predictions of methods whose parties show the server their embeddings. The server asks for those of the ids."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.method import Options
from colonnade.algorithms.prediction.messages import PAYLOADS
from colonnade.algorithms.prediction.party import PredictParty
from colonnade.algorithms.prediction.predictor import Predictor, PredictPartySetup, PredictServerSetup, TrainedRoles
from colonnade.algorithms.prediction.server import PredictServer
from colonnade.algorithms.prediction.standing_in import StandIns
from colonnade.models import Network, PartyDropout, ServerNetwork
from colonnade.models.joint import Joint
from colonnade.privacy.guard import Guard
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.protocol.messages import Array
from colonnade.protocol.role import Embedding, Role

__all__ = ["PlainPredictor", "Seeing", "Showing"]


class Seeing(Role, Protocol):
    """A trained server that sees embeddings and has θ_0."""

    @property
    def network(self) -> ServerNetwork:
        """θ_0."""

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation, which turns the parties' embeddings into the input of θ_0."""


class Showing(Embedding, Protocol):
    """A trained party that shows embeddings, behind its guard."""

    @property
    def network(self) -> object:
        """A `Network`, or a black box."""

    @property
    def guard(self) -> Guard:
        """The guard, which accounts for the embeddings if the config asks for it."""


class PlainPredictor(Predictor[Options, Seeing, Showing]):
    """The server sees the embeddings of the ids that it asks for, as it saw those of the training rows."""

    payloads = PAYLOADS
    joint = True

    def server(self, setup: PredictServerSetup[Options, Seeing]) -> PredictServer:
        """Make a server that asks for embeddings. `setup.away` says what replaces missing ones."""
        network, parties = setup.trained.network, setup.parties
        stand_ins = StandIns(setup.away, setup.widths, setup.cache_rows, setup.min_parties)
        gate = network.reader
        if isinstance(gate, PartyDropout):
            vector = gate.fallback.detach().cpu().numpy().copy()
            stand_ins.learned({n: vector[block] for n, block in enumerate(stand_ins.blocks) if setup.taught[n]})
        stand_ins.learned({parties.index(name): vector for name, vector in setup.told.items()})
        network.freeze()
        return PredictServer(parties, setup.widths, network, setup.trained.evaluation, stand_ins, setup.deadline_s)

    def party(self, setup: PredictPartySetup[Options, Showing]) -> PredictParty:
        """Make a party that embeds the rows it is asked for."""
        network = setup.trained.network
        if isinstance(network, Network):
            network.freeze()
        return PredictParty(setup.trained, setup.table, setup.width, setup.train, setup.quota)

    def in_one_place(
        self, roles: TrainedRoles[Options, Seeing, Showing], blocks: Sequence[Array], number: int
    ) -> Array:
        """Predict from what each party would send over the network: perturbed and accounted if its uploads are."""
        pairs = zip(roles.parties, blocks, strict=True)
        h = np.concatenate([_embedded(party, block, number) for party, block in pairs], axis=1)
        network = roles.server.network
        return network.predict(roles.server.evaluation.gathered(h))

    def networks(self, roles: TrainedRoles[Options, Seeing, Showing]) -> Joint:
        """Return θ_0 and the parties' networks; raise ConfigError for a black box, which has no gradient."""
        parts = [_differentiable(party) for party in roles.parties]
        return Joint(roles.server.network, parts, roles.server.evaluation.gathered)


def _differentiable(party: Showing) -> Network:
    if isinstance(party.network, Network):
        return party.network
    raise ConfigError("model.party", party.name, "is a black box, which has no gradient: leave [diagnose] out")


def _embedded(party: Showing, block: Array, number: int) -> Array:
    """Embed a block. Rows have no ids here, so rows with equal columns count as one row."""
    first: dict[bytes, int] = {}
    rows = [first.setdefault(row.tobytes(), place) for place, row in enumerate(block + np.float32(0))]  # −0 becomes 0
    values = party.embed(block, np.array(rows, np.int64), number)
    if values is None:
        raise ColonnadeError(f"predict: {party.name} answers no more requests: {party.guard.why()}")
    return values
