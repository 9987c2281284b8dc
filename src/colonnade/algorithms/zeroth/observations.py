"""What an attacker sees of the zeroth-order methods: c and ĉ with row numbers go up, losses h and ĥ come down."""

from dataclasses import replace

import msgspec

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.observations import LOSSES, Answer, Asking, Batches, Experiment, Observations, Upload
from colonnade.algorithms.training import Training
from colonnade.algorithms.vafl.messages import Embeddings, FreshRequest, Skip
from colonnade.algorithms.vafl.observations import EmbeddingsPen
from colonnade.algorithms.zeroth.config import SynZooOptions, TableOptions, ZerothOptions, ZooOptions
from colonnade.algorithms.zeroth.messages import Losses, Probe
from colonnade.algorithms.zeroth.server import Probing
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Message
from colonnade.protocol.role import Role

__all__ = ["FROZEN", "OBSERVATIONS", "ROUNDS"]


class ProbePen(EmbeddingsPen):
    """Uploads as `Probe`."""

    def upload(self, upload: Upload, now: int) -> Message:
        """Return a `Probe`, or without ĉ an `Embeddings` that the server refuses."""
        if upload.perturbed is None:
            return super().upload(upload, now)
        return Probe(upload.step, len(upload.rows), upload.rows, upload.values, perturbed=upload.perturbed)


def read_upload(message: Message, walk: Batches) -> Upload | None:
    """Read c and ĉ from a `Probe`, or c alone from other `Embeddings`."""
    if not isinstance(message, Embeddings):
        return None
    perturbed = message.perturbed if isinstance(message, Probe) else None
    renewed = len(message.rows) - message.batch
    return Upload(message.step, message.rows, message.values, perturbed, renewed)


def read_answer(message: Message) -> Answer | None:
    """Read h and ĥ of the uploaded batch, or the step of a `Skip`."""
    match message:
        case Losses(step=step, values=values):
            return Answer(step, values, step + 1)
        case Skip(step=step):
            return Answer(step - 1, None, step)
    return None


class _SummingZoo(ZooOptions, frozen=True):
    server_zeroth = ""


class _SummingSynZoo(SynZooOptions, frozen=True):
    server_zeroth = ""


def _summing(options: ZerothOptions) -> ZerothOptions:
    """Let `zoo` and `syn-zoo` accept a server without weights to estimate. It takes no steps and answers as usual."""
    if type(options) is ZooOptions:  # a subclass may have fields that these classes lack
        return _SummingZoo(**msgspec.structs.asdict(options))
    if type(options) is SynZooOptions:
        return _SummingSynZoo(**msgspec.structs.asdict(options))
    return options


def _switch(server: Role, rules: bool, per_sample: bool) -> None:
    assert isinstance(server, Probing)
    server.rules, server.per_sample = rules, per_sample


def _mean(message: Message) -> Message:
    """Average losses per row, since an honest party refuses them."""
    if isinstance(message, Losses) and message.values.ndim == 2:
        return Losses(message.step, message.update, message.values.mean(1))
    return message


def _walk(training: Training, options: TableOptions, index: int) -> Batches:
    return walk_of(training, None if options.batches == "shared" else index, options.min_batch)


def _asking(options: TableOptions) -> Asking:
    return Asking(False, options.min_batch, options.probes, options.mu_of(0))


def _walk_of_all(training: Training, options: SynZooOptions, index: int) -> Batches:
    return walk_of(training, None, options.min_batch)


def _asking_all(options: SynZooOptions) -> Asking:
    return Asking(True, options.min_batch, options.probes, options.mu_of(0))


def _no_differences(options: TableOptions) -> None:
    advice = "its parties send no perturbed embeddings, which these attackers need; use 'cascaded'"
    raise ConfigError("--protocols", "frozen", advice)


_EXPERIMENT = Experiment[ZerothOptions](_summing, _switch, _mean)
_SILENT = (Embeddings, FreshRequest)

OBSERVATIONS = Observations[TableOptions](
    answers=LOSSES,
    answer=read_answer,
    silent=_SILENT,
    upload=read_upload,
    pen=ProbePen,
    walk=_walk,
    asking=_asking,
    experiment=_EXPERIMENT,
)
FROZEN = replace(OBSERVATIONS, check=_no_differences)
ROUNDS = Observations[SynZooOptions](
    answers=LOSSES,
    answer=read_answer,
    silent=_SILENT,
    upload=read_upload,
    pen=ProbePen,
    walk=_walk_of_all,
    asking=_asking_all,
    experiment=_EXPERIMENT,
)
