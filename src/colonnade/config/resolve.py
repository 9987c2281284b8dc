"""From a checked config to roles: fill in every default, and check every combination.

    Config        the TOML as typed: of one member, or of all
    Plan          what all members agree upon; each member makes its own Setup from it and from its own data
    ServerSetup   what one role is made from
    PartySetup

A `Federation` is a plan with the data and the setups of all roles, for drivers that have them all in one place.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec
import torch
from scipy.sparse import issparse

from colonnade.algorithms import DEFAULT_METHOD, METHODS, find_method
from colonnade.algorithms.method import SERVER, Defaults, Method, Options, PartySetup, ServerSetup, Top
from colonnade.algorithms.table_file import Tables
from colonnade.algorithms.training import Every, Training
from colonnade.config.continuing import Continuation
from colonnade.config.schema import Config, RoleDevices, RoleRates, TrainConfig, unknown_key
from colonnade.config.settle import limits_of, settled
from colonnade.config.steps import every_of, gradient_norms, loss_of, refuse_unsupported, step_rule
from colonnade.data import NOTHING_FITTED, Fitted, Partition, Task, load, split
from colonnade.data.suggest import listing
from colonnade.models import Factory, OptimiserSpec, default_metric
from colonnade.models.metrics import require_also, require_metric
from colonnade.models.on_device import on_device
from colonnade.models.precision import FULL, PRECISIONS
from colonnade.privacy.guard import check_budget
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array
from colonnade.protocol.role import Coordinating, Role

__all__ = [
    "Federation",
    "Loading",
    "Plan",
    "federation",
    "find_optimiser",
    "limit_of",
    "load_partition",
    "make_plan",
    "parties_of",
    "privacy_of",
    "refuse_dropped",
    "refuse_fitted",
    "refuse_unbuildable",
    "scale_of",
]

EVALUATIONS, CHECKPOINTS = 40, 10  # per run, unless the config says otherwise


@dataclass(frozen=True, slots=True)
class Federation:
    """All roles of a plan in one place, for the simulator, after all checks that are possible before the start.

    A deployment never has one: the server and each party know only the plan and their own data.
    """

    config: Config
    plan: "Plan"
    data: Partition
    server: ServerSetup[Any]
    parties: list[PartySetup[Any]]
    notes: tuple[str, ...] = ()  # remarks for readers of the results
    before: Continuation | None = None  # the run that this one continues

    @property
    def method(self) -> Method[Any]:
        return self.plan.method

    @property
    def options(self) -> Options:
        return self.plan.options

    @property
    def training(self) -> Training:
        return self.plan.training

    def made(self) -> tuple[Coordinating, list[Role]]:
        """Make new roles: the coordinating one, and the parties."""
        method = self.method
        if method.joint is not None:
            return method.joint(self.server, self.parties), []
        assert method.server is not None and method.party is not None
        return method.server(self.server), [method.party(party) for party in self.parties]

    def roles(self) -> list[Role]:
        """Make new roles in one list, the server first."""
        server, parties = self.made()
        return [server, *parties]


Labels = tuple[Task, Array, Array]  # the task, the labels to train on, and those of the rows held out
Loading = Callable[[str, float], None]  # called with what is being read, and the part of it that is read (0 to 1)


def load_partition(
    config: Config, progress: Loading | None = None, before: Mapping[str, Fitted] = NOTHING_FITTED
) -> Partition:
    """Load the data of all parties; raises ConfigError for the config of one member, which has only its own data.

    `before` is what the parties fitted in the run that this one continues.
    """
    config.refuse_one_side()
    data = config.data
    table = load(
        data.name,
        format=data.format,
        dir=data.dir,
        label=data.label,
        id=data.id,
        categorical=data.categorical,
        sparse=data.sparse,
        header=data.header,
        separator=data.separator,
        decimal=data.decimal,
        missing_values=data.missing_values,
        test=data.test,
        progress=progress,
    )
    return split(
        table,
        parties=data.parties,
        how=data.split,
        scale=scale_of(config),
        missing=data.missing,
        test_fraction=data.test_fraction,
        validation_fraction=data.validation_fraction,
        split_seed=data.split_seed,
        release=True,  # no other code holds this table
        before=before,
        text=data.text,
        vocabulary=data.vocabulary,
        text_length=data.text_length,
    )


def scale_of(config: Config) -> str | None:
    """Return the scaling of the columns: the config's, else the method's; None: the dataset's own."""
    method, _ = method_of(config.protocol)
    return method.defaults.scale if config.data.scale is None else config.data.scale


def federation(
    config: Config,
    data: Partition | None = None,
    load_data: Callable[[Config], Partition] = load_partition,
    before: Continuation | None = None,
) -> Federation:
    """Resolve a config; `data` may be given instead of loaded. `before`: the run that this one continues."""
    method_of(config.protocol)  # before the data are read, which may take minutes
    data = load_data(config) if data is None else data
    config = settled(config, len(data.y_train), data.validation)
    plan = make_plan(config, data.parties, len(data.y_train), data.task, data.validation)
    config.clock.check(data.parties)
    refuse_fitted(config, any(scaler.fitted for scaler in data.scalers), "data.scale", scale_of(config))
    if not plan.method.capabilities.sparse and any(issparse(block) for block in data.train):
        raise ConfigError(
            "protocol.name", plan.method.name, "needs a dense table; only the linear methods take sparse ones"
        )
    server = plan.server(data.task, data.y_train, data.y_test)
    shares = zip(data.train, data.test, data.shapes, strict=True)
    labels = (data.task, data.y_train, data.y_test)
    setups = [plan.party(index, *share, labels) for index, share in enumerate(shares)]
    if before is not None:
        dropped = config.party.drop_columns
        former = before.former()
        before.require((SERVER, *(name for name in data.parties if name in former)))
        before.check_dropped(dropped, data.parties)
        server = before.server(server)
        setups = [before.party(setup, data.fitted(setup.index), dropped, "data") for setup in setups]
    else:
        refuse_dropped(config)
    _check_diagnose(config, plan)
    notes = plan.method.check(server, setups) if plan.method.check is not None else ()
    return Federation(
        config=config,
        plan=plan,
        data=data,
        server=server,
        parties=setups,
        notes=(*data.notes, *notes, *plan.privacy.notes(len(data.y_train))),
        before=before,
    )


def _check_diagnose(config: Config, plan: "Plan") -> None:
    """Raise ConfigError for a diagnosis that would be of another model than the evaluated one."""
    for name in config.diagnose.wanted:
        if plan.privacy.on:
            advice = (
                "leave it out: with a privacy mechanism, embeddings of training rows would be one more release, which "
                "the account does not have"
            )
            raise ConfigError(f"diagnose.{name}", getattr(config.diagnose, name), advice)
    predictor = plan.method.predictor
    if config.diagnose.gradient and (predictor is None or not predictor.joint):
        advice = f"leave it out: {plan.method.name} does not train networks, so that this release knows no gradient"
        raise ConfigError("diagnose.gradient", True, advice)
    if config.diagnose.estimates and not plan.options.estimates:
        advice = f"leave it out: the parties of {plan.method.name} estimate no gradient; 'cascaded' and 'zoo' do"
        raise ConfigError("diagnose.estimates", config.diagnose.estimates, advice)


def refuse_dropped(config: Config) -> None:
    """Raise ConfigError for `party.drop_columns` in a run that continues no other."""
    if config.party.drop_columns:
        raise ConfigError("party.drop_columns", config.party.drop_columns, "is for a run with --continue: leave it out")


def refuse_unbuildable(config: Config, data: Partition, before: Continuation | None = None) -> None:
    """Make every role once, on the CPU, so that errors appear before anything is started elsewhere."""
    replaced = msgspec.structs.replace
    federation(replaced(config, model=replaced(config.model, device="cpu")), data, before=before).roles()


@dataclass(frozen=True, slots=True)
class Plan:
    """What all members of a federation agree upon: each makes its own role from it and its own data."""

    method: Method[Any]
    options: Options
    parties: tuple[str, ...]
    training: Training
    target: float | None  # of the metric; None: there is none
    checkpoint_every: Every
    widths: tuple[int, ...]
    models: tuple[Factory, ...]
    server_model: Factory
    aggregate: str
    devices: tuple[str, ...]  # of the server, then of the parties; the process that runs the role checks that it exists
    privacy: PrivacySettings
    budgets: tuple[Budget | None, ...]
    tables: Tables

    def server(
        self, task: Task, y_train: Array, y_test: Array, absent: tuple[Array, Array] | None = None
    ) -> ServerSetup[Any]:
        """Return what the server is made from; it has no labels if the parties have them."""
        if self.method.capabilities.party_labels:
            y_train, y_test = y_train[:0], y_test[:0]
        device = _device(self.devices[0])
        return ServerSetup(
            options=self.options,
            training=self.training,
            parties=self.parties,
            widths=self.widths,
            model=self.server_model,
            aggregate=self.aggregate,
            task=task,
            y_train=y_train,
            y_test=y_test,
            device=device,
            absent=absent,
            tables=replace(self.tables, device=device),
        )

    def refuse_lacking(self) -> None:
        """Raise ConfigError if the method cannot train with rows that some parties lack."""
        if not self.method.capabilities.lacking:
            able = ", ".join(method.name for method in METHODS.values() if method.capabilities.lacking)
            advice = (
                "needs every row of every party, but some parties do not have all rows of this alignment. Use one "
                f"of {able}; or set align.min_parties = 0 in every member's config, and run colonnade align again"
            )
            raise ConfigError("protocol.name", self.method.name, advice)

    def party(
        self, index: int, train: Any, test: Any, shape: tuple[int, ...], labels: Labels | None = None
    ) -> PartySetup[Any]:
        """Return what a party is made from; only methods whose parties need labels get them."""
        device = _device(self.devices[1 + index])
        setup = PartySetup(
            options=self.options,
            training=self.training,
            name=self.parties[index],
            index=index,
            parties=len(self.parties),
            width=self.widths[index],
            model=self.models[index],
            train=on_device(train, device),
            test=on_device(test, device),
            shape=shape,
            device=device,
            top=Top(self.server_model, self.aggregate, self.widths),
            names=self.parties,
            privacy=self.privacy,
            budget=self.budgets[index],
        )
        if not self.method.capabilities.party_labels:
            return setup
        if labels is None:
            advice = f"{self.method.name}: every party holds the labels; name the column of this party's file"
            raise ConfigError("party.label", None, advice)
        return replace(setup, task=labels[0], y_train=labels[1], y_test=labels[2])


def make_plan(config: Config, parties: tuple[str, ...], rows: int, task: Task | None, validation: int = 0) -> Plan:
    """Fill in and check everything that does not depend on the data; a party does not know the task.

    `rows` is the number of training rows, `validation` the number of validation rows among those held out.
    """
    config = settled(config, rows, validation)
    method, options = method_of(config.protocol)
    count = len(parties)
    options.check(count)
    refuse_unsupported(config.train, method)
    _check_party_dropout(config.train.party_dropout, method, options)
    privacy = options.mechanism or config.privacy
    budgets = _check_privacy(config, method, privacy, parties)
    training, model = _training(config.train, count, (rows, validation), task, (method.defaults, options)), config.model
    # A rate that follows the columns depends on the record, and accounting by record does not cover that.
    training = replace(training, measured=training.measured and not (privacy.on and privacy.by_record))
    training = _shortening(training, gradient_norms(config.train, count, method, privacy))
    training = _in_precision(training, model.precision, method, privacy)
    if privacy.on:  # every evaluation releases rows once more
        every = every_of("train.eval_every", config.train.eval_every, training.limit, EVALUATIONS)
        training = replace(training, eval_every=every)
    assert model.embedding is not None and model.server is not None and model.aggregate is not None  # by `settled`
    return Plan(
        method=method,
        options=options,
        parties=parties,
        training=training,
        target=config.train.target,
        checkpoint_every=every_of("train.checkpoint_every", config.train.checkpoint_every, training.limit, CHECKPOINTS),
        widths=_embeddings(model.embedding, count),
        models=_party_models(model.party, count),
        server_model=model.server,
        aggregate=model.aggregate,
        devices=_devices(config.model.device, count, method),
        privacy=privacy,
        budgets=budgets,
        tables=Tables(config.server.table, config.server.table_dtype),
    )


def _shortening(training: Training, norms: tuple[float | None, tuple[float | None, ...]]) -> Training:
    """Return the training with limits on the gradients of the server and of each party."""
    server, parties = norms
    limited = zip(training.party_optimisers, parties, strict=True)
    return replace(
        training,
        server_optimiser=msgspec.structs.replace(training.server_optimiser, max_norm=server),
        party_optimisers=tuple(msgspec.structs.replace(spec, max_norm=norm) for spec, norm in limited),
    )


def _in_precision(training: Training, precision: str, method: Method[Any], privacy: PrivacySettings) -> Training:
    """Give the precision to every network; raises ConfigError if the method or the noise needs float32."""
    key = "model.precision"
    if precision not in PRECISIONS:
        raise ConfigError(key, precision, f"use one of {', '.join(map(repr, PRECISIONS))}")
    if precision == FULL:
        return training
    if not mixes(method):
        raise ConfigError(key, precision, f"{method.name} does not compute with torch's networks alone; use {FULL!r}")
    if privacy.on:
        advice = f"rounding would exceed the bounds that the privacy account relies on; use {FULL!r}, or no noise"
        raise ConfigError(key, precision, advice)
    server, *parties = (
        msgspec.structs.replace(spec, precision=precision)
        for spec in (training.server_optimiser, *training.party_optimisers)
    )
    return replace(training, server_optimiser=server, party_optimisers=tuple(parties))


def mixes(method: Method[Any]) -> bool:
    """Whether a method's networks can train in bfloat16: not linear models, and no sums over a finite field."""
    return method.defaults.party is not None and not method.capabilities.party_models


def privacy_of(config: Config) -> PrivacySettings:
    """Return the settings that perturb the uploads: the method's own mechanism, or `[privacy]`."""
    _, options = method_of(config.protocol)
    return options.mechanism or config.privacy


def _check_privacy(
    config: Config, method: Method[Any], mechanism: PrivacySettings, parties: tuple[str, ...]
) -> tuple[Budget | None, ...]:
    """Refuse a mechanism that the method does not have; returns every party's budget."""
    settings = config.privacy
    settings.check()
    if settings.on and mechanism is not settings:
        advice = f"{method.name} has a mechanism of its own (protocol.epsilon, delta, clip): leave [privacy] out"
        raise ConfigError("privacy.mechanism", settings.mechanism, advice)
    if settings.on and not method.capabilities.local_updates:
        advice = (
            f"{method.name} cannot add noise, and its messages are not accounted for; set 'none', or use e.g. 'vafl' "
            "or 'flex'"
        )
        raise ConfigError("privacy.mechanism", settings.mechanism, advice)
    if settings.on and settings.local_updates not in method.capabilities.local_updates:
        advice = f"{method.name} supports {' and '.join(map(repr, method.capabilities.local_updates))}"
        raise ConfigError("privacy.local_updates", settings.local_updates, advice)
    unknown = [name for name in config.party.budgets if name not in parties]
    if unknown:
        raise ConfigError("party.budgets", unknown[0], f"no such party; there are: {listing(parties)}")
    budgets = tuple(config.budget_of(name) for name in parties)
    for budget in budgets:
        check_budget(mechanism, budget)
    return budgets


def refuse_fitted(config: Config, scaled: bool, key: str, scale: str | None) -> None:
    """Refuse fitted scaling with accounting by record: a record moves the statistics, and with them every row.

    `scale` is the value of `key`; None: the key is left out, and the data's own scale is fitted.
    """
    if not (config.privacy.on and config.privacy.by_record):
        return
    updates = f"with privacy.local_updates = {config.privacy.local_updates!r} only a record's own row may change"
    if scaled:
        what = "is" if scale else "the default scale is"
        bounds = f"set {key} = 'none' (the word), and scale the columns beforehand with bounds that are not secret"
        raise ConfigError(key, scale or "(left out)", f"{what} fitted on the training rows; {updates}: {bounds}")
    if config.data.text:
        raise ConfigError("data.text", config.data.text, f"the vocabulary is fitted on the training rows; {updates}")
    if "mean" in (config.data.missing, config.party.missing):
        raise ConfigError(
            "data.missing", "mean", f"is fitted on the training rows; {updates}: fill the gaps beforehand"
        )


def method_of(protocol: dict[str, Any]) -> tuple[Method[Any], Options]:
    """Return the method, and its options from `[protocol]`."""
    fields = dict(protocol)
    method = find_method(str(fields.pop("name", DEFAULT_METHOD)))
    known = [field.name for field in msgspec.structs.fields(method.options)]
    for key, value in fields.items():
        if key not in known:
            raise ConfigError(f"protocol.{key}", value, f"{method.name}: {unknown_key(key, known)}")
    try:
        return method, msgspec.convert(fields, method.options)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`")
        raise ConfigError(
            f"protocol.{key}", fields.get(key), _choices(method.options, key) or text[:1].lower() + text[1:]
        ) from None


def _choices(options: type[Options], key: str) -> str:
    """List the valid words of an option, if it has only a few."""
    kind = {field.name: field.type for field in msgspec.structs.fields(options)}.get(key)
    parts = (kind, *get_args(kind))
    words = [repr(word) for part in parts for word in get_args(part) if isinstance(word, str)]
    numbers = ["a number"] if {int, float} & set(parts) else []
    return f"use one of {', '.join(dict.fromkeys([*numbers, *words]))}" if words else ""


def _devices(value: str | RoleDevices, parties: int, method: Method[Any]) -> tuple[str, ...]:
    """Return the devices of the server, then of the parties."""
    if isinstance(value, str):
        devices: tuple[str, ...] = (value,) * (1 + parties)
    else:
        devices = (value.server, *_per_party("model.device.party", value.party, parties))
    elsewhere = [device for device in devices if device != "cpu"]
    if elsewhere and method.capabilities.sparse:
        raise ConfigError("model.device", elsewhere[0], f"{method.name}: linear models are computed on the CPU")
    return devices


def _device(name: str) -> str:
    """Return "cpu", or a GPU that torch finds. GPUs are faster for large models, but not reproducible bit for bit."""
    if name == "cpu":
        return name
    seen = torch.cuda.device_count() if re.fullmatch(r"cuda(:\d+)?", name) else 0
    if not seen or int(name.partition(":")[2] or 0) >= seen:
        count = f"torch sees {seen} here" if seen else "torch sees none here"
        raise ConfigError("model.device", name, f"use 'cpu'; 'cuda' and 'cuda:1' need a GPU, and {count}")
    return name


def _training(
    train: TrainConfig, parties: int, sizes: tuple[int, int], task: Task | None, method: tuple[Defaults, Options]
) -> Training:
    (rows, validation), (defaults, options) = sizes, method
    evaluations = defaults.evaluations if train.patience else EVALUATIONS
    assert train.batch_size is not None and train.optimiser is not None and train.patience is not None  # by `settled`
    if train.batch_size < 1:
        raise ConfigError("train.batch_size", train.batch_size, "must be 1 or more rows")
    limit = limit_of(train)
    metric = train.metric or (default_metric(task) if task is not None else "")
    if task is not None:
        require_metric(metric, task)
        require_also(train.also, task)
    server_optimiser, party_optimisers = _optimisers(train.optimiser, parties)
    measured, rate = train.learning_rate == "auto", train.learning_rate
    server_rate, party_rates = _rates(_own_rate(defaults) if rate == "auto" else rate, parties)
    if train.trace not in ("headers", "full"):
        raise ConfigError("train.trace", train.trace, "use 'headers' or 'full'")
    if train.patience < 0:
        raise ConfigError(
            "train.patience", train.patience, "must be 1 or more evaluations; or 0, to train to the limit"
        )
    if train.until_target and train.target is None:
        raise ConfigError("train.until_target", True, "needs a target: set train.target, e.g. 0.9")
    if train.patience and not validation:
        advice = (
            "needs validation rows, because it must not choose weights on the test rows; set "
            "data.validation_fraction above 0"
        )
        raise ConfigError("train.patience", train.patience, advice)
    return Training(
        seed=train.seed,
        rows=rows,
        batch_size=min(train.batch_size, rows),
        server_rate=server_rate,
        party_rates=party_rates,
        server_optimiser=server_optimiser,
        party_optimisers=party_optimisers,
        regularisers=_per_party("train.regulariser", train.regulariser, parties),
        rule=step_rule(train, limit, min(train.batch_size, rows), rows, parties, options),
        limit=limit,
        eval_every=every_of("train.eval_every", train.eval_every, limit, evaluations),
        metric=metric,
        also=tuple(train.also),
        measured=measured,
        party_dropout=train.party_dropout,
        loss=loss_of(train, task),
        sampling=train.sampling,
        server_regulariser=train.server_regulariser,
        validation=validation,
        patience=train.patience,
        until=train.target if train.until_target else None,
    )


def _check_party_dropout(probability: float, method: Method[Any], options: Options) -> None:
    """Refuse party dropout unless the server has the parties' blocks, which it must replace."""
    key = "train.party_dropout"
    if not 0 <= probability < 1:
        raise ConfigError(key, probability, "must be a probability: 0 (off) or more, and below 1")
    if probability and not method.capabilities.party_dropout:
        able = ", ".join(able.name for able in METHODS.values() if able.capabilities.party_dropout)
        raise ConfigError(key, probability, f"{method.name} does not support it: use one of {able}")
    if probability and options.shares_labels:
        raise ConfigError(
            key,
            probability,
            "labels = 'shared' does not support it, because parties then run the server's model too; use "
            "labels = 'server'",
        )


def limit_of(train: TrainConfig) -> Every:
    """Return the limit of a settled config; raises ConfigError if there are several."""
    given = limits_of(train)
    if len(given) > 1:
        raise ConfigError("train." + " and train.".join(given), list(given.values()), "give only one of them")
    unit, amount = next(iter(given.items()))
    if not 0 < amount < float("inf"):
        raise ConfigError(f"train.{unit}", amount, "must be above 0")
    return Every(unit, amount)  # type: ignore[arg-type]


def _own_rate(defaults: Defaults) -> float | RoleRates:
    """Return the rate with which a method begins, before its roles measure."""
    rate = defaults.learning_rate
    return RoleRates(*rate) if isinstance(rate, tuple) else 1.0 if rate == "auto" else rate


def _rates(rate: float | RoleRates, parties: int) -> tuple[float, tuple[float, ...]]:
    if isinstance(rate, RoleRates):
        server, of_parties = rate.server, _per_party("train.learning_rate.party", rate.party, parties)
    else:
        server, of_parties = rate, (rate,) * parties
    for value in (server, *of_parties):
        if not 0 <= value < float("inf"):
            raise ConfigError("train.learning_rate", value, "must be 0 or more")
    return server, of_parties


def _optimisers(value: Any, parties: int) -> tuple[OptimiserSpec, tuple[OptimiserSpec, ...]]:
    if isinstance(value, dict) and "name" not in value:
        unknown = set(value) - {"server", "party"}
        if unknown or set(value) != {"server", "party"}:
            raise ConfigError("train.optimiser", value, "a table needs `name`, or both `server` and `party`")
        of_parties = _per_party("train.optimiser.party", value["party"], parties)
        specs = [find_optimiser("train.optimiser", one) for one in (value["server"], *of_parties)]
        return specs[0], tuple(specs[1:])
    spec = find_optimiser("train.optimiser", value)
    return spec, (spec,) * parties


def find_optimiser(key: str, value: Any) -> OptimiserSpec:
    """Parse 'adam', or {name = "adam", betas = ...}."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ConfigError(key, value, "use 'sgd', 'momentum', 'adam', a class of torch.optim or {name = ..., options}")
    own = {key: value[key] for key in ("prox", "decay") if key in value}
    if not all(isinstance(item, int | float) for item in own.values()):
        raise ConfigError(key, own, "`prox` and `decay` are numbers")
    spec = OptimiserSpec(value["name"], {k: v for k, v in value.items() if k not in ("name", *own)}, **own)
    spec.check()
    return spec


def _embeddings(value: int | list[int], parties: int) -> tuple[int, ...]:
    widths = _per_party("model.embedding", value, parties)
    if not all(width >= 1 for width in widths):
        raise ConfigError("model.embedding", value, "must be 1 or more")
    return widths


def _party_models(value: Any, parties: int) -> tuple[Factory, ...]:
    return _per_party("model.party", value, parties)


def _per_party(key: str, value: Any, parties: int) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        return (value,) * parties
    if len(value) != parties:
        raise ConfigError(key, value, f"a list needs one entry for each of {parties} parties")
    return tuple(value)


def parties_of(config: Config) -> tuple[str, ...]:
    """Return the allow-list of the parties' names; raises ConfigError if it is empty or ambiguous."""
    names = tuple(config.network.parties)
    if not names or len(set(names)) < len(names) or SERVER in names:
        raise ConfigError(
            "network.parties", list(names), "name every party once, in the same order in every member's config"
        )
    return names
