"""Every error that Colonnade raises on purpose.

ColonnadeError
├── ConfigError              a setting: names the key, its value and what would be right
├── DataError                the data themselves: names party, column and row if it can
├── ModelError               a model that cannot be built or does not fit
├── CheckpointError          a checkpoint or run folder that cannot be used
│   ├── DamagedFile          its content is not what was written: an earlier checkpoint may serve
│   └── NotWritable          a file that cannot be written now: a full disk, or another process has it
├── TrainingDiverged         the numbers left the finite range
│   └── PartyDiverged        one party says so, and the run needs that party
├── MissingExtra             packages that an extra installs: names the extra
├── WorkerLost               a worker that computed for this process is gone, with the roles it held
└── ProtocolError            the conversation between roles
    ├── LocalProtocolError   this side broke the contract: a bug here
    └── RemoteProtocolError  the peer broke the contract: names the peer
        └── CodecError       a frame that cannot be decoded

`exit_code` is what a command returns: 1 if the run ended without a result, 2 if starting again without a change would
fail again, 3 if the cause may pass.
"""

from typing import ClassVar

from colonnade.protocol.foreign import harmless

__all__ = [
    "CheckpointError",
    "CodecError",
    "ColonnadeError",
    "ConfigError",
    "DamagedFile",
    "DataError",
    "LocalProtocolError",
    "MissingExtra",
    "ModelError",
    "NotWritable",
    "PartyDiverged",
    "ProtocolError",
    "RemoteProtocolError",
    "TrainingDiverged",
    "WorkerLost",
]


class ColonnadeError(Exception):
    """The base of all errors that a user can act on."""

    exit_code: ClassVar[int] = 2


class ConfigError(ColonnadeError):
    """A setting that cannot be used: its key, its value, and advice on what would be right."""

    def __init__(self, key: str, value: object, advice: str) -> None:
        super().__init__(f"{key} = {value!r}: {advice}")
        self.key, self.value, self.advice = key, value, advice

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, str]]:
        return type(self), (self.key, self.value, self.advice)  # needed to pickle the error for another process


class DataError(ColonnadeError):
    """Data that cannot be used."""


class ModelError(ColonnadeError):
    """A model that cannot be built or does not fit its neighbours."""


class CheckpointError(ColonnadeError):
    """A checkpoint or run folder that cannot be used."""


class DamagedFile(CheckpointError):
    """A file whose checksum does not fit its content. The caller may try an earlier checkpoint."""


class NotWritable(CheckpointError):
    """A file that cannot be written now. When the disk has room, or the other process has ended, it can be."""

    exit_code: ClassVar[int] = 3


class TrainingDiverged(ColonnadeError):
    """Losses or weights left the range of finite numbers."""

    exit_code: ClassVar[int] = 1


class PartyDiverged(TrainingDiverged):
    """One party says that its training diverged. No other role confirms it, and the run cannot continue without `peer`.

    The run can be started again, since one member must not end it for good.
    """

    def __init__(self, peer: str, cause: str) -> None:
        super().__init__(f"{peer}: {cause}")
        self.peer, self.cause = peer, cause

    def __reduce__(self) -> tuple[type["PartyDiverged"], tuple[str, str]]:
        return type(self), (self.peer, self.cause)


class MissingExtra(ColonnadeError):
    """The packages for a requested feature are not installed."""

    def __init__(self, purpose: str, extra: str, modules: list[str]) -> None:
        super().__init__(
            f"{purpose} needs {', '.join(modules)}, which the extra {extra!r} installs: "
            f"pip install 'colonnade[{extra}]'"
        )
        self.purpose, self.extra, self.modules = purpose, extra, modules

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str, list[str]]]:
        return type(self), (self.purpose, self.extra, self.modules)


class WorkerLost(ColonnadeError):
    """A worker process is gone, and the roles that it held with it."""

    exit_code: ClassVar[int] = 3


class ProtocolError(ColonnadeError):
    """A broken rule in the conversation between roles."""

    exit_code: ClassVar[int] = 3


class LocalProtocolError(ProtocolError):
    """This side broke the contract: a bug here."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the contract; `peer` names it. The cause may quote what the peer sent, so it is made harmless."""

    def __init__(self, peer: str, cause: str) -> None:
        self.peer, self.cause = peer, harmless(cause)
        super().__init__(f"{peer}: {self.cause}")

    def __reduce__(self) -> tuple[type["RemoteProtocolError"], tuple[str, str]]:
        return type(self), (self.peer, self.cause)


class CodecError(RemoteProtocolError):
    """A frame that cannot be decoded."""
