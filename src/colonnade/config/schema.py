"""The config: what a user may set, checked before anything starts.

TOML becomes frozen structs. An unknown key, a wrong type or an impossible value raises ConfigError with the key, the
value and what would be right. `--set a.b=v` and `[methods.NAME]` are dotted overrides of the same keys.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from colonnade.data import Dialect, IdRules, RowSplit
from colonnade.data.texts import NO_TEXTS
from colonnade.drivers.simulator import ClockConfig
from colonnade.models import Regulariser, ServerRegulariser
from colonnade.models.precision import FULL
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.role import SERVER

__all__ = [
    "Config",
    "DataConfig",
    "DiagnoseConfig",
    "ModelConfig",
    "NetworkConfig",
    "PartyConfig",
    "PredictConfig",
    "RoleDevices",
    "RoleNorms",
    "RoleRates",
    "ServerConfig",
    "TrackConfig",
    "TrainConfig",
    "apply_overrides",
    "difference",
    "from_dict",
    "parse_override",
    "read_toml",
    "to_dict",
    "typed_tables",
]


EMBEDDED = "digits"  # the data set that needs no file


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the table comes from, and which party holds which columns."""

    source: str | None = None  # left out: `digits`, unless the config belongs to one member of a federation
    format: str | None = None  # of the file that `source` names, if its name does not tell
    dir: str | None = None
    parties: int | None = None
    split: str | dict[str, list[str] | float] = "even"
    scale: str | None = None
    test_fraction: float = 0.2
    validation_fraction: float = 0.1  # of the training rows, held out to choose settings and to stop by; 0: none
    split_seed: int = 0  # chooses the test and validation rows, independent of train.seed
    label: str | None = None
    id: str | None = None
    categorical: list[str] = []
    missing: str = "refuse"
    sparse: bool = False
    test: str | None = None  # a file with the test rows, of the same format
    header: bool | None = None  # of CSV files: false if the first line has no column names
    separator: str | None = None  # left out: found in the first lines
    decimal: str | None = None  # "," if 1,5 is a number
    missing_values: list[str] = []  # texts that mean a missing value, beside the usual ones
    text: list[str] = []  # columns with one document per row
    vocabulary: int = NO_TEXTS.size  # words of each party's vocabulary
    text_length: int = NO_TEXTS.length  # words of a document that count

    @property
    def name(self) -> str:
        """The source to load; `digits` if none is given."""
        return EMBEDDED if self.source is None else self.source

    def rows(self, test_rows: int = 0) -> RowSplit:
        """Return which rows are held out; `test_rows`: number of rows of a given test set."""
        return RowSplit(self.test_fraction, self.validation_fraction, self.split_seed, test_rows)


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The networks of the parties and the server, and their devices."""

    party: str | list[str] | None = None  # this and the next three left out: the method's defaults
    embedding: int | list[int] | None = None
    server: str | None = None
    aggregate: str | None = None
    device: "str | RoleDevices" = "cpu"
    precision: str = FULL  # of the training passes: "fp32", or "bf16" for mixed precision


class RoleDevices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Different devices for the server and the parties."""

    server: str = "cpu"  # the device of the server's network
    party: str | list[str] = "cpu"  # of every party's network, or a list with one for each party


class RoleRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Different rates for the server and the parties."""

    server: float  # the server's rate
    party: float | list[float]  # the rate of every party, or a list with one for each party


class RoleNorms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Different limits for the server and the parties."""

    server: float | None = None  # of the server's gradients; left out: no limit
    party: float | list[float] | None = None  # of every party's gradients, or a list with one for each party


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to train, how long, and how to evaluate."""

    batch_size: int | None = None  # left out: the method's own, and fewer if there are few rows
    learning_rate: float | RoleRates | Literal["auto"] = "auto"
    optimiser: str | dict[str, Any] | None = None  # left out: the method's own; "sgd" if a rate is given
    regulariser: Regulariser | list[Regulariser] = Regulariser()
    server_regulariser: ServerRegulariser | None = None  # of the server's network, as `regulariser` is of the parties'
    loss: Literal["squared", "l1", "huber"] | None = None  # of numbers as labels; left out: squared
    huber_delta: float | None = None  # δ of loss = "huber", in standard deviations of the training labels; left out: 1
    sampling: Literal["walk", "iid"] | None = None  # of batches; left out: the method's own, mostly "walk"
    max_gradient_norm: float | RoleNorms | None = None  # longer gradients are shortened to it; no part of [privacy]
    step_rule: str = "constant"
    step_offset: float = 1000.0  # K0 of step_rule = "inverse"
    step_factor: float | None = None  # of step_rule = "step"; left out: 0.1
    step_every: int | str | None = None  # of step_rule = "step": updates, or e.g. "5 epochs"
    warm_up: int | str | None = None  # the rate rises for so long, before any rule
    epochs: float | None = None
    updates: int | None = None
    seconds: float | None = None
    metric: str | None = None
    also: list[str] = []  # further metrics, in every line of metrics.jsonl
    patience: int | None = None  # the run ends after so many evaluations without a better one; 0: it continues
    target: float | None = None
    until_target: bool = False  # the run ends at the first evaluation that reaches the target
    eval_every: int | str | None = None
    checkpoint_every: int | str | None = None
    seed: int = 0
    trace: str = "headers"
    party_dropout: float = 0.0


class NetworkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which parties take part, time and size limits, and the files of this member's certificate."""

    parties: list[str] = []  # the allow-list, in the order that all members agree upon
    heartbeat_s: float = 2.0
    lost_after_s: float = 10.0
    give_up_s: float = 600.0
    max_message_mb: float = 64.0
    max_in_flight: int = 64
    max_queue: int = 1024
    max_queue_mb: float = 128.0
    durability: Literal["process", "power"] = "process"  # what a journal survives: kill -9, or also a power cut
    max_log_mb: float = 32.0
    checkpoint_s: float = 30.0
    max_refusals: int = 8
    handshake_s: float = 10.0
    max_calls: int = 8
    max_joins: int = 120
    max_connections: int = 1024
    max_per_address: int = 256
    admit_late: bool = True
    address: str = "127.0.0.1:7450"
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    members: str | None = None
    metrics_port: int | None = None
    audit_mb: float = 16.0  # of one file of the audit log
    audit_files: int = 32  # old files of it that are kept

    def __post_init__(self) -> None:
        times = ("heartbeat_s", "lost_after_s", "give_up_s", "checkpoint_s", "handshake_s")
        for name in (*times, "max_message_mb", "max_queue_mb", "max_log_mb", "audit_mb"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"network.{name}", getattr(self, name), "must be above 0")
        if self.lost_after_s < 2 * self.heartbeat_s:
            advice = f"must be at least two heartbeats (network.heartbeat_s = {self.heartbeat_s:g})"
            raise ConfigError("network.lost_after_s", self.lost_after_s, advice)
        for name in ("max_in_flight", "max_queue"):
            if getattr(self, name) < 2:
                raise ConfigError(f"network.{name}", getattr(self, name), "must be 2 or more messages")
        if self.max_refusals < 1:
            raise ConfigError("network.max_refusals", self.max_refusals, "must be 1 or more refused messages")
        for name in ("max_calls", "max_joins", "max_connections", "max_per_address", "audit_files"):
            if getattr(self, name) < 1:
                raise ConfigError(f"network.{name}", getattr(self, name), "must be 1 or more")
        if self.metrics_port is not None and not 0 < self.metrics_port < 2**16:
            raise ConfigError("network.metrics_port", self.metrics_port, "must be from 1 to 65535")


class PartyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A party's private settings: never sent, never part of the shared digest."""

    data: str | None = None
    format: str | None = None  # of that file (and of predict_data), if its name does not tell
    header: bool | None = None  # this and the next three: as in [data]
    separator: str | None = None
    decimal: str | None = None
    missing_values: list[str] = []
    id: str | None = None
    aligned: str | None = None  # the file with the order of its rows: `align` writes it, `join` reads it
    label: str | None = None
    columns: list[str] | None = None
    categorical: list[str] = []  # this and the next two: as in [data], for this party's columns
    scale: str | None = None  # as in [data]
    missing: str = "refuse"  # as in [data]
    optimiser: str | dict[str, Any] | None = None
    learning_rate: float | None = None
    predict_data: str | None = None  # further rows of the same columns, for predictions alone
    drop_columns: list[str] = []  # columns of the run that this one continues, whose weights may go
    budget: Budget | None = None
    budgets: dict[str, Budget] = {}  # if one config stands for several parties: in the simulator and `up`

    @property
    def dialect(self) -> Dialect:
        """How the party's CSV files are written."""
        return Dialect(
            self.header is not False, self.separator, self.decimal or ".", tuple(self.missing_values), "party"
        )


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's private settings: never sent, never part of the shared digest."""

    data: str | None = None
    format: str | None = None  # of that file, if its name does not tell
    header: bool | None = None  # this and the next three: as in [data]
    separator: str | None = None
    decimal: str | None = None
    missing_values: list[str] = []
    label: str | None = None
    id: str | None = None
    aligned: str | None = None  # the file with the order of its rows: `align` writes it, `serve` reads it
    rows: int | None = None  # the number of rows, if the parties have the labels and the server has no file
    test_rows: int = 0  # of `rows`, the number of test rows; 0: data.test_fraction of them
    table: str = "memory"  # where the embeddings are kept: in "memory", or in a "file" of the run's folder
    table_dtype: str = "float32"  # or "float16"

    def __post_init__(self) -> None:
        for name, known in (("table", ("memory", "file")), ("table_dtype", ("float32", "float16"))):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"server.{name}", value, f"use one of {', '.join(map(repr, known))}")

    @property
    def dialect(self) -> Dialect:
        """How the server's CSV files are written."""
        return Dialect(
            self.header is not False, self.separator, self.decimal or ".", tuple(self.missing_values), "server"
        )


STAND_INS: tuple[Literal["cached", "fallback", "refuse"], ...] = ("cached", "fallback", "refuse")


class PredictConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Private settings of a member: what it answers after training, and how.

    A party reads `stay`, the keys that begin with `answer`, and `audit_mb`. The other keys are the server's.
    """

    stay: bool = False  # continue with predictions when training has ended
    http: str = "127.0.0.1:7460"
    tls: bool = True  # false: plain HTTP, on loopback only
    certificate: str | None = None  # of the endpoint, with `key`; left out: the server's certificate in [network]
    key: str | None = None
    away: list[Literal["cached", "fallback", "refuse"]] = msgspec.field(default_factory=lambda: list(STAND_INS))
    min_parties: int = 1  # number of parties that an answer must rest on
    deadline_s: float = 5.0
    max_ids: int = 10_000
    max_body_mb: float = 4.0
    cache_rows: int = 100_000
    caller_requests_per_minute: int = 6_000
    caller_rows_per_day: int = 1_000_000
    max_requests: int = 64  # of all callers, at the same time
    max_waiting: int = 256  # connections without an admitted request
    max_waiting_per_address: int = 32
    request_s: float = 15.0  # time for the head of a request, and for its body
    idle_s: float = 30.0  # time until the next request on a connection
    answer: Literal["aligned", "all"] = "aligned"  # the ids that a party answers for
    answer_rows_per_minute: int = 1_000_000
    answer_rows_per_day: int = 10_000_000
    audit_mb: float = 16.0  # of the party's audit file, and as much of the one before it

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                "predict.certificate", self.certificate, "give predict.certificate and predict.key, or neither"
            )
        if not self.away or self.away[-1] != "refuse" or len(set(self.away)) < len(self.away):
            advice = (
                'list the replacements of a missing party, in order, with "refuse" at the end: ["fallback", "refuse"]'
            )
            raise ConfigError("predict.away", self.away, advice)
        for name in ("deadline_s", "max_body_mb", "request_s", "idle_s", "audit_mb"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"predict.{name}", getattr(self, name), "must be above 0")
        counts = ("min_parties", "max_ids", "cache_rows", "max_requests", "max_waiting", "max_waiting_per_address")
        quotas = ("caller_requests_per_minute", "caller_rows_per_day", "answer_rows_per_minute", "answer_rows_per_day")
        for name in (*counts, *quotas):
            if getattr(self, name) < 1:
                raise ConfigError(f"predict.{name}", getattr(self, name), "must be 1 or more")


class RoleResources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one role requests from a Ray cluster; Ray reserves it for the role and does not enforce it."""

    cpus: float = 0.1  # eight parties and a server fit on one CPU
    gpus: float = 0.0  # fractions of a GPU, or whole ones
    custom: dict[str, float] = {}  # resources by the cluster's own names: pins a role to the nodes that have them

    def __post_init__(self) -> None:
        amounts = {"cpus": self.cpus, "gpus": self.gpus} | {f"custom.{name}": n for name, n in self.custom.items()}
        for name, amount in amounts.items():
            if not 0 <= amount < float("inf"):
                raise ConfigError(f"resources: {name}", amount, "must be 0 or more")
            if amount > 1 and amount != int(amount):
                raise ConfigError(
                    f"resources: {name}", amount, "must be a whole number if it is above 1, because Ray requires it"
                )
        if {"CPU", "GPU", "memory"} & set(self.custom):
            raise ConfigError(
                "resources: custom", self.custom, "must not be CPU, GPU or memory; use the keys cpus and gpus"
            )

    @property
    def amounts(self) -> dict[str, float]:
        """The request by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, **self.custom}


class ResourcesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For --driver ray: what each role requests."""

    server: RoleResources = RoleResources()
    party: RoleResources = RoleResources()
    parties: dict[str, RoleResources] = {}  # by the party's name, instead of `party`

    def of(self, role: str) -> RoleResources:
        """Return the resources of the server, or of a party."""
        return self.server if role == SERVER else self.parties.get(role, self.party)


class TrackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the lines of metrics.jsonl are sent, live; private to a member, never part of the shared digest."""

    to: list[Literal["mlflow", "tensorboard", "wandb"]] = []
    project: str = "colonnade"  # MLflow calls it an experiment
    run: str | None = None  # the run's name there; left out: that of the run's folder


class DiagnoseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the simulator computes at each evaluation from all roles together; no role learns it."""

    training: bool = False  # the metrics on a sample of the training rows
    gradient: bool = False  # F and ‖∇F‖² on the sample
    estimates: int = 0  # zeroth-order methods: so many estimates of each party's gradient on the sample; 0: none
    rows: int = 512  # of the sample; all training rows, if there are fewer

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError("diagnose.rows", self.rows, "must be 1 or more training rows")
        if self.estimates < 0 or self.estimates == 1:
            advice = "must be 2 or more, because a variance needs two; or 0, for none"
            raise ConfigError("diagnose.estimates", self.estimates, advice)

    @property
    def wanted(self) -> list[str]:
        """The keys that ask for something."""
        return [name for name in ("training", "gradient", "estimates") if getattr(self, name)]

    def refuse_apart(self) -> None:
        """Raise ConfigError if roles that are not in one process would have to be diagnosed."""
        for name in self.wanted:
            advice = "needs the columns of all parties in one place: use the simulator (--driver sim), or leave it out"
            raise ConfigError(f"diagnose.{name}", getattr(self, name), advice)


# Keys that only one member's config of a real federation has; [server] table, [party] budget, … also apply to
# simulations.
_ONE_SIDE = {
    "server": ("data", "label", "id", "aligned", "rows"),
    "party": ("data", "id", "aligned", "label", "columns", "predict_data"),
    "network": ("parties", "certificate", "key", "authority", "members"),
}
_NO_DATA = (
    "belongs to one member of a real federation, but this command needs the columns of all members in one table. "
    "To train with the other members: colonnade serve, or colonnade join. To "
    "simulate: --set data.source=TABLE.csv --set data.label=COLUMN, or --set data.source=digits for built-in data"
)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The config of a whole run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    protocol: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}
    clock: ClockConfig = ClockConfig()
    train: TrainConfig = TrainConfig()
    network: NetworkConfig = NetworkConfig()
    align: IdRules = IdRules()
    party: PartyConfig = PartyConfig()
    server: ServerConfig = ServerConfig()
    predict: PredictConfig = PredictConfig()
    privacy: PrivacySettings = PrivacySettings()
    resources: ResourcesConfig = ResourcesConfig()
    track: TrackConfig = TrackConfig()
    diagnose: DiagnoseConfig = DiagnoseConfig()

    def refuse_one_side(self) -> None:
        """Raise ConfigError for one member's config without data.source: it must not run on embedded data."""
        if self.data.source is not None:
            return
        for section, names in _ONE_SIDE.items():
            for name in names:
                value = getattr(getattr(self, section), name)
                if value:
                    raise ConfigError(f"{section}.{name}", value, _NO_DATA)

    def budget_of(self, party: str) -> Budget | None:
        """Return the budget of this party, if it has one."""
        return self.party.budgets.get(party, self.party.budget)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a config file as nested tables; raises ConfigError if that fails."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("CONFIG", str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("CONFIG", str(path), f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("CONFIG", str(path), f"is not TOML: {error}") from None


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `a.b=v` into a key and a TOML value; a text that is not a TOML value becomes a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("--set", text, "must be KEY=VALUE, e.g. train.learning_rate=0.05")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def typed_tables(
    config: Path | None,
    settings: Sequence[str] | None = None,
    more: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the tables of a config file with the overrides that were typed: `KEY=VALUE` settings, then dotted options.

    Without a file, start from the tables of an earlier start (`before`), or from none.
    """
    tables = read_toml(config) if config is not None else before or {}
    overrides = dict(parse_override(text) for text in settings or [])
    return apply_overrides(tables, {**overrides, **(more or {})})


def apply_overrides(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the tables with dotted keys replaced."""
    result = _copy(tables)
    for dotted, value in overrides.items():
        *path, last = dotted.split(".")
        place = result
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(dotted, value, f"{part!r} is a value, not a table")
            place = inner
        place[last] = value
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def from_dict(tables: Mapping[str, Any]) -> Config:
    """Convert tables to a Config; raises ConfigError with the key, the value and advice."""
    try:
        return msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise _explain(str(error), tables) from None


def to_dict(config: Config) -> dict[str, Any]:
    """Return a Config as tables without empty values, ready for TOML."""
    return _prune(msgspec.to_builtins(config, enc_hook=lambda value: getattr(value, "__qualname__", repr(value))))


def _prune(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _prune(item) for key, item in value.items() if item is not None}
    return [_prune(item) for item in value] if isinstance(value, list) else value


_AT = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")


def _explain(message: str, tables: Mapping[str, Any]) -> ConfigError:
    """Convert msgspec's message to a ConfigError with key, value and advice."""
    found = _AT.search(message)
    path = found["path"].lstrip(".") if found else ""
    text = _AT.sub("", message).replace(" | null`", "`")  # TOML has no null: the user leaves the key out
    unknown = _UNKNOWN.search(text)
    if path == "train.learning_rate" and text.startswith("Invalid enum"):
        return ConfigError(path, _lookup(tables, path), "give a number, {server = ..., party = ...}, or 'auto'")
    if unknown is None:
        return ConfigError(path or "CONFIG", _lookup(tables, path), text[:1].lower() + text[1:])
    name = unknown["name"]
    key = f"{path}.{name}" if path else name
    return ConfigError(key, _lookup(tables, key), unknown_key(name, _fields_at(path)))


def unknown_key(name: str, known: Sequence[str]) -> str:
    """Return advice for an unknown key."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown key; {hint}known here: {', '.join(known) or 'none'}"


def _lookup(tables: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(tables, Mapping):
            tables = tables.get(part)
        elif isinstance(tables, list) and part.isdecimal():
            tables = tables[int(part)]
        else:
            return None
    return tables


def _fields_at(path: str) -> list[str]:
    """Return the keys of the struct at a path such as `clock.server`."""
    kind: Any = Config
    for part in re.findall(r"[^.\[\]]+", path):
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if part not in fields:
            continue  # an index into a list
        candidates = _structs_in(fields[part])
        if not candidates:
            return []
        kind = candidates[0]
    return [field.name for field in msgspec.structs.fields(kind)]


def _structs_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _structs_in(part)]


def difference(left: Any, right: Any, path: str = "") -> str | None:
    """Return the first key at which two table trees differ, with both values; None if they are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            found = difference(left.get(key), right.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return None
    return None if left == right else f"{path}: {left!r} there, {right!r} here"
