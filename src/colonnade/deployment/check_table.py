"""`colonnade check`: a member's table, its ids, its alignment, and the role that is made from them."""

from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import make_plan, method_of, parties_of
from colonnade.config.schema import Config, PartyConfig
from colonnade.config.settle import settled
from colonnade.config.trust import modules_of, refuse_untrusted
from colonnade.data import Alignment, clean_ids, read_id_column
from colonnade.data.formats import TABLES, format_of
from colonnade.data.report_progress import silent
from colonnade.data.tables import column_names
from colonnade.deployment import party_side, server_side
from colonnade.deployment.finding import Finding, Findings, error, fine, tried, warning
from colonnade.deployment.own_side import SHARE, alignment_of, refuse_joint
from colonnade.deployment.own_table import Own, table_faults
from colonnade.protocol.errors import ColonnadeError, DataError

__all__ = ["table_findings", "trust_finding"]


def table_findings(config: Config, name: str, path: Path, trusted: bool) -> Findings:
    """The checks of the table and of the method; `trusted`: the config imports no module that is not allowed."""
    section, own = own_part(config, name)
    plan = tried("method", lambda: _method(config)) if trusted else None
    if plan is not None:
        yield plan
    known = plan is not None and plan.status == "ok"
    if name == SERVER and own.data is None and known and method_of(config.protocol)[0].capabilities.party_labels:
        yield tried("table", lambda: f"none: {server_side.load_share(config).rows} rows, labels at the parties")
        return
    if own.data is not None and own.data.endswith(SHARE):
        yield fine("table", f"{own.data}, a share that this machine prepared")
        return
    faults = table_faults(own, section)
    yield from (error("table", str(fault)) for fault in faults)
    if not faults:
        yield fine("table", f"{own.data}: all columns are there")
    ids = None if faults else _ids(config, own, section, name)
    if ids is not None:
        yield ids
    aligned = _alignment(own, section, name, config, path, bool(faults))
    yield aligned
    if not faults and known:
        yield _role(config, own, name, aligned.status == "ok")


def own_part(config: Config, name: str) -> tuple[str, Own]:
    """The name of this member's own section, and its content."""
    return (SERVER, config.server) if name == SERVER else ("party", config.party)


def _method(config: Config) -> str:
    plan = make_plan(config, parties_of(config), rows=1000, task=None)
    refuse_joint(plan)
    return f"{plan.method.name}, {len(plan.parties)} parties"


def _ids(config: Config, own: Own, section: str, name: str) -> Finding | None:
    if own.id is None:
        text = f"{section}.id is not set: all members must have the same rows in the same order"
        return warning("ids", text, "name the column with the ids, and run colonnade align")

    def read() -> str:
        column = read_id_column(str(own.data), own.id, section, format=own.format, dialect=own.dialect)
        found = clean_ids(column, config.align, f"{name}: {own.data}")
        return f"{len(found.texts):,} ids; {found.empty} empty, {found.repeated} repeated"

    return tried("ids", read)


def _alignment(own: Own, section: str, name: str, config: Config, path: Path, faulty: bool) -> Finding:
    if own.aligned is None:
        return warning("alignment", f"{section}.aligned is not set: the rows are used in the order of the file")
    file = Path(own.aligned).expanduser()
    if not file.parent.is_dir() or file.suffix != SHARE:
        return error("alignment", f"{section}.aligned = {own.aligned!r}: must end in {SHARE}, in a folder that exists")
    if not file.is_file():
        return warning("alignment", f"{own.aligned} is not there yet", f"colonnade align {path}, at all members")

    def read() -> str:
        found = alignment_of(own.aligned, name, section)
        assert found is not None
        if not faulty:
            _check_fit(found, own, section, config)
        return f"{len(found.rows):,} rows in common, digest {found.sha256[:16]}"

    return tried("alignment", read, "all members run colonnade align again")


def _check_fit(found: Alignment, own: Own, section: str, config: Config) -> None:
    """Raise DataError if the table or the list of parties has changed since the alignment."""
    absent = [party for party in parties_of(config) if party not in found.members]
    if absent:
        raise DataError(f"{own.aligned}: {', '.join(absent)} took no part in this alignment")
    column = read_id_column(str(own.data), own.id, section, format=own.format, dialect=own.dialect)
    found.rows_of(Path(str(own.data)), column)


def _role(config: Config, own: Own, name: str, aligned: bool) -> Finding:
    """Read the rows and build the role's network, as training will."""

    def build() -> str:
        ready = config if aligned else _without_order(config, own, name)
        if name == SERVER:
            share = server_side.load_share(ready)
            _build_server(settled(ready, len(share.y_train), share.validation), share)
            return f"{share.rows:,} rows, {share.task.kind}"
        held = party_side.load_share(ready, name)
        party_side.plan_and_role(ready, name, held)
        return f"{held.rows:,} rows, {len(held.columns)} columns, {held.train.shape[1]} features"

    try:
        return tried("rows", build)
    except (OSError, MemoryError) as wrong:
        return error("rows", f"{own.data}: {wrong}")


def _build_server(config: Config, share: Any) -> None:
    plan = make_plan(config, parties_of(config), len(share.y_train), share.task, share.validation)
    if share.absent is not None:
        plan.refuse_lacking()
    assert plan.method.server is not None
    plan.method.server(plan.server(share.task, share.y_train, share.y_test, share.absent))


def _without_order(config: Config, own: Own, name: str) -> Config:
    """The config for a table that is not aligned yet: `align` will treat ids that are not unique, not the reader."""
    replaced = msgspec.structs.replace
    if not isinstance(own, PartyConfig):
        return replaced(config, server=replaced(own, aligned=None, id=None))
    columns = own.columns
    if columns is None and format_of(str(own.data), own.format, TABLES, "party") is not None:
        names = column_names(Path(str(own.data)).expanduser(), silent, own.dialect)
        columns = [name for name in names if name not in (own.id, own.label)]
    return replaced(config, party=replaced(own, aligned=None, id=None, columns=columns))


def trust_finding(config: Config, trusted: list[str]) -> Finding | None:
    """An error if the config would import a module that this side has not allowed; None if it imports none."""
    try:
        refuse_untrusted(config, trusted)
    except ColonnadeError as wrong:
        return error("trust", str(wrong))
    found = modules_of(config)
    return fine("trust", f"imports {', '.join(found)}") if found else None
