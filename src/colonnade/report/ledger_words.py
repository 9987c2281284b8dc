"""A party's ledgers as a page like the privacy report: what was actually released, and its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import sqrt
from typing import Any

from colonnade import __version__
from colonnade.privacy.accountant import STEP, Account
from colonnade.privacy.gaussian import epsilon_of
from colonnade.report.document import Document, Grid, Part
from colonnade.report.privacy_words import number

__all__ = ["ReadLedger", "ledger_in_words"]

LedgerLine = Mapping[str, Any]
KINDS = {
    "warm-up": "training rows, once at the start",
    "batch": "rows of training batches",
    "fresh rows": "rows that the server asked for again",
    "evaluation": "rows held out for evaluation",
    "prediction": "rows that predictions were asked for",
    STEP: "steps of the party's own network: they send nothing, but change what is sent later",
}


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """A ledger whose chain of hashes has been checked."""

    name: str
    digest: str  # sha256 of the file
    terms: LedgerLine
    lines: Sequence[LedgerLine]
    account: Account


def ledger_in_words(ledgers: Sequence[ReadLedger], last: int, delta: float, made: datetime) -> Document:
    """Write the page; the costs of runs on the same records add up."""
    total = sqrt(sum(one.account.mu**2 for one in ledgers if not _is_included(one, ledgers)))
    parties = ", ".join(dict.fromkeys(str(one.terms["party"]) for one in ledgers))
    facts = [("Made", f"{made:%Y-%m-%d %H:%M} UTC, after the training, with Colonnade {__version__}")]
    facts += [("Ledger", f"{one.name}, sha256 {one.digest}") for one in ledgers]
    together = f"Together: μ = {total:.6g}, ε = {epsilon_of(total, delta):.6g} at δ = {delta:g}. The chain is whole."
    parts = [Part("In short", points=[together, "Each line was written before its message could leave."])]
    for one in ledgers:
        parts += [_leaves(one), _newest(one, last, delta)]
    return Document(f"Privacy ledger of {parties}", facts, [*parts, _meaning()])


def _is_included(ledger: ReadLedger, ledgers: Sequence[ReadLedger]) -> bool:
    """Whether another ledger's run continues this one's after its last line, and so has counted all of it."""
    newest = ledger.lines[-1] if ledger.lines else ledger.terms
    head = f"{newest['n']}:{newest['hash']}"
    return any(one.terms.get("earlier", {}).get("head") == head for one in ledgers)


def _leaves(ledger: ReadLedger) -> Part:
    terms = ledger.terms
    steps = terms["dp_sgd"]
    private = f", steps clipped to {steps['clip']:g} with {steps['noise']:g}" if steps else ""
    text = (
        f"{ledger.name}: {terms['party']}, mechanism {terms['mechanism']}, rows clipped to norm {terms['clip']:g}, "
        f"noise {terms['noise']:g}, local updates {terms['local_updates']}{private}; {terms['train_rows']} training "
        f"rows, {terms['test_rows']} rows held out"
    )
    if "earlier" in terms:
        count = sum(event[2] for event in terms["earlier"]["events"])
        text += f". The run continues an earlier one: μ and ε include the cost of {count:,} releases in that"
    head = ("kind", "what left this party", "releases", "rows", "from", "to")
    rows = [_kind_row(what, ledger.lines) for what in dict.fromkeys(line["what"] for line in ledger.lines)]
    return Part("What left this party", [text], Grid(head, rows, ("releases", "rows")))


def _kind_row(what: str, lines: Sequence[LedgerLine]) -> tuple[str, ...]:
    own = [line for line in lines if line["what"] == what]
    rows = sum(line["rows"] for line in own)
    return what, KINDS.get(what, ""), f"{len(own):,}", f"{rows:,}", _moment(own[0]), _moment(own[-1])


def _newest(ledger: ReadLedger, last: int, delta: float) -> Part:
    text = "Δ: how much one record can change the release. μ and ε: of everything up to and including the line."
    head = ("n", "UTC", "what", "rows", "Δ", "noise", "μ", "ε")
    shown = ledger.lines[-last:] if last > 0 else []
    rows = [
        (
            str(line["n"]),
            _moment(line),
            line["what"],
            str(line["rows"]),
            f"{line['sensitivity']:.4g}",
            f"{line['noise']:g}",
            f"{line['mu']:.4g}",
            number(epsilon_of(line["mu"], delta)),
        )
        for line in shown
    ]
    title = f"The newest {len(rows):,} of {len(ledger.lines):,} releases"
    return Part(title, [text], Grid(head, rows, ("n", *head[3:])) if rows else None)


def _meaning() -> Part:
    text = (
        "ε bounds how much all that this party sent can tell the server about one person's record, whatever the server "
        "knows and computes. δ is the chance that the bound does not hold. Ledgers of several runs on the same records "
        "add up: name them all."
    )
    return Part("ε and δ: the formal guarantee", [text])


def _moment(line: LedgerLine) -> str:
    return str(line["time"][:16]).replace("T", " ")
