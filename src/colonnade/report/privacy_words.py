"""The privacy officer's page: results of experiments/privacy_report.py, in words for a reader who is no engineer."""

from collections.abc import Iterable
from itertools import groupby
from math import e, isfinite, log10

from colonnade import __version__
from colonnade.algorithms.observations import LOSSES
from colonnade.experiments.attempts import Attempt
from colonnade.experiments.outflow import Flow
from colonnade.experiments.privacy_report import PrivacyReport, Spending
from colonnade.privacy.plan import Needs
from colonnade.protocol.role import SERVER
from colonnade.report.document import Document, Grid, Part

__all__ = ["in_words", "number", "share", "size"]

WEAK = 10.0  # an ε above this is seldom called protection


def in_words(report: PrivacyReport, config: str, command: str) -> Document:
    """Write the whole page; `config` is the name of the file."""
    held = report.held
    views = {"all": "a simulation: all parties", SERVER: "the server's config"}
    facts = [
        ("Made", f"{report.made:%Y-%m-%d %H:%M} UTC, before any training, with Colonnade {__version__}"),
        ("Config", f"{config}, sha256 of its settled form {report.digest}"),
        ("View", views.get(held.view, f"the config of the party {held.view}")),
        ("Method", f"{report.method.name}: {report.method.paper}"),
        ("Data", _data(report)),
        ("Command", command),
    ]
    parts = [_short(report), _leaves(report), _reveals(report), _guarantee(report), _attacks(report), _lower(report)]
    return Document(f"Privacy report on {config}", facts, [*parts, _made(report)])


def _data(report: PrivacyReport) -> str:
    held, data = report.held, report.held.data
    held_out = len(data.y_test)
    rows = f"{len(data.y_train):,} training rows and {held_out:,} held-out rows in {len(data.parties)} parties"
    if held.all_real:
        return f"{rows}; all real"
    names = ", ".join("the labels" if name == SERVER else f"the columns of {name}" for name in sorted(held.real))
    return f"{rows}; {f'real are {names}, the rest is made up' if names else 'all rows are made up'}"


def _short(report: PrivacyReport) -> Part:
    made = report.attempts.made
    successes = sum(attempt.succeeds for attempt in made)
    biggest = max(report.outflow.flows, key=lambda flow: flow.size_bytes)
    receiver = "the server" if biggest.receiver == SERVER else biggest.receiver
    attacks = f"{successes} of {len(made)} attacks that were run succeeded." if made else "No attack could be run."
    points = [
        f"Most of what leaves a party: {biggest.what}, to {receiver} ({size(biggest.size_bytes)} in a run).",
        _formal(report),
        f"{attacks} {len(report.attempts.left_out)} were not run. An attack that fails here is no proof of safety.",
    ]
    return Part("In short", points=points)


def _formal(report: PrivacyReport) -> str:
    spending = report.spending
    if spending is None:
        return f"No ε: {report.method.name} adds no noise, so it has no differential privacy."
    if not spending.on:
        return "No formal guarantee: [privacy] is off in this config. Nothing bounds what the server can learn."
    epsilon = spending.epsilon(spending.most)
    weak = f" That is above {WEAK:g}: such a large ε hardly protects anything." if epsilon > WEAK else ""
    return f"Formal guarantee against the server: ε of at most {number(epsilon)} at δ = {_delta(spending)}.{weak}"


# What leaves.


def _leaves(report: PrivacyReport) -> Part:
    found, view = report.outflow, report.held.view
    flows = [flow for flow in found.flows if view in ("all", SERVER) or flow.sender == view]
    head = ("from", "to", "what", "how often", "bytes in all")
    fast = ("at most",) if found.uneven else ()
    rows = [_flow_row(group, len(report.held.data.parties), found.uneven) for group in _alike(flows)]
    how = (
        f"The run was simulated to its end ({found.updates:,} updates): these numbers are measured."
        if found.whole
        else f"Measured: the first {found.updates:,} updates of the run. Extrapolated: the rest, at the same rate."
    )
    paragraphs = [
        f"{how} Bytes are those of the real messages, without encryption and framing. Speeds are those of [clock] in "
        "the config, or equal ones if it has none."
    ]
    if found.uneven:
        paragraphs.append("“At most” counts a party that is far faster than all others.")
    points = []
    if report.held.in_deployment:
        points.append(
            "Besides these messages a party sends the server its name and certificate, the shared part of the config, "
            "its number of rows and a digest of the row ids when it connects, and its account at the end. "
            "`colonnade align` compares ids beforehand: docs/align.md."
        )
    more = "they are on in this config: " if report.stays else ""
    points.append(f"Predictions after the training send further messages for every question ({more}docs/predict.md).")
    return Part("What leaves each party", paragraphs, Grid(head + fast, rows, (*head[3:], *fast)), points)


def _alike(flows: Iterable[Flow]) -> list[list[Flow]]:
    """Group flows that differ only by their sender."""

    def key(flow: Flow) -> tuple[str, str, int, int]:
        return flow.receiver, flow.kind, round(flow.messages), round(flow.size_bytes)

    return [list(group) for _, group in groupby(sorted(flows, key=key), key)]


def _flow_row(group: list[Flow], parties: int, uneven: bool) -> tuple[str, ...]:
    flow = group[0]
    several = f"each of {len(group)} parties" if len(group) == parties > 1 else ", ".join(one.sender for one in group)
    receiver = "the server" if flow.receiver == SERVER else flow.receiver
    cells = (several, receiver, flow.what, f"{flow.messages:,.0f} times", size(flow.size_bytes))
    return (*cells, f"{flow.most:,.0f} times, {size(flow.most_bytes)}") if uneven else cells


# What it reveals.


def _reveals(report: PrivacyReport) -> Part:
    method, paragraphs = report.method, []
    seen = method.observations
    if method.capabilities.party_labels:
        paragraphs.append("Every party holds the labels. No server computes anything with data.")
    if seen is not None and seen.upload is not None:
        paragraphs.append(
            "The server sees, for each row, the numbers that each party's network makes of it (embeddings). They are "
            "not the party's columns. Columns can often be worked out from them, if the server knows some rows already."
        )
    elif seen is not None and seen.sums is not None:
        paragraphs.append("The server sees sums of the embeddings of several parties, not those of one party alone.")
    elif not method.capabilities.party_labels:
        paragraphs.append("The method's own words below say what the server sees.")
    if report.shares_labels:
        paragraphs.append("The server tells every party the labels.")
    elif seen is not None and seen.answers == LOSSES:
        paragraphs.append(
            "A party is told how well the model does on its batches, as one number for a batch. A party that sends "
            "made-up numbers can read labels off these answers."
        )
    elif seen is not None:
        paragraphs.append(
            "A party is told, for each row, in which direction its numbers should move (a gradient). This often "
            "reveals the label of the row to a curious party."
        )
    if report.protects:
        paragraphs.append(f"The method's own protection: {report.protects}")
    paragraphs.append(f"In the method's own words: {report.reveals}.")
    return Part("What the method reveals", paragraphs)


# ε and δ.


def _guarantee(report: PrivacyReport) -> Part:
    title, spending = "ε and δ: the formal guarantee", report.spending
    if spending is None:
        own = " Its own protection is of another kind, see above." if report.protects else ""
        text = (
            f"There is none. {report.method.name} cannot add noise, and its messages are not accounted for. That is "
            f"not ε = 0: no bound is known.{own}"
        )
        return Part(title, [text])
    if not spending.on:
        return Part(title, [_NO_GUARANTEE, *_counted(report, spending)], _accounts(report, spending))
    return Part(
        title,
        [_EPSILON.format(odds=_odds(spending.epsilon(spending.most))), *_counted(report, spending)],
        _accounts(report, spending),
        _budgets(report, spending),
    )


_NO_GUARANTEE = (
    "There is no formal guarantee: [privacy] is off in this config. Embeddings leave as they are, and nothing bounds "
    "what the server can learn from them. The table counts what would have to be protected."
)
_EPSILON = (
    "ε bounds how much all that a party sends can tell the server about one person's record, whatever the server "
    "knows and computes: the odds of any guess change by a factor of {odds} at most. δ is the chance that the bound "
    "does not hold. The neighbour of a table has one record replaced. It is a bound for each party by itself."
)


def _counted(report: PrivacyReport, spending: Spending) -> list[str]:
    counted = spending.counted
    part = "all of the run" if counted.whole else "the start of the run, and the rest is extrapolated upwards"
    mechanism = spending.mechanism
    steps = "" if mechanism.dp_sgd is None else f", private steps with noise {mechanism.dp_sgd.noise:g}"
    noise = f" Noise of standard deviation {mechanism.noise:g} on rows of norm {mechanism.clip:g} at most{steps}."
    return [
        "Dry runs counted the uploads with the speeds of [clock], with equal speeds, with one party far faster, and "
        f"with one far slower than the others. They went through {part}. The last line is an upper bound for every "
        f"party.{noise if spending.on else ''}",
        f"Assumed: {'; '.join(counted.assumed)}.",
    ]


def _accounts(report: PrivacyReport, spending: Spending) -> Grid:
    counted, view = spending.counted, report.held.view
    needs = [need for need in counted.by_clock if view in ("all", SERVER) or need.party == view]
    head: tuple[str, ...] = ("party", "uploads", "rows in them")
    if not spending.on:
        return Grid(head, [_need_row(name, need) for name, need in _named(needs, spending)], head[1:])
    head = (*head, "ε")
    rows = [(*_need_row(name, need), number(spending.epsilon(need))) for name, need in _named(needs, spending)]
    return Grid(head, rows, head[1:])


def _need_row(name: str, need: Needs) -> tuple[str, ...]:
    return name, f"{need.uploads:,}", f"{need.rows:,}"


def _named(needs: list[Needs], spending: Spending) -> list[tuple[str, Needs]]:
    own = [(f"{need.party}, with the speeds of [clock]", need) for need in needs]
    return [*own, ("any party at any speed, at most", spending.most)]


def _budgets(report: PrivacyReport, spending: Spending) -> list[str]:
    view = report.held.view
    lines = [
        f"{name} has a budget of ε = {budget.epsilon:g} at δ = {budget.delta:g}: it stops uploading, for good, before "
        "it spends more. That holds whatever the speeds are."
        for name, budget in spending.budgets.items()
        if view in ("all", SERVER) or name == view
    ]
    none = "No party has a budget (party.budget): nothing stops a party that uploads more than assumed here."
    return [*(lines or [none]), *(f"Warning: {note}." for note in spending.notes)]


def _odds(epsilon: float) -> str:
    if not isfinite(epsilon):
        return "any size"
    power = epsilon * log10(e)
    return f"{e**epsilon:.3g}" if power < 6 else f"10 to the power of {power:,.0f}"


def _delta(spending: Spending) -> str:
    return f"{spending.mechanism.delta:g}"


# Attacks.


def _attacks(report: PrivacyReport) -> Part:
    tried = report.attempts
    paragraphs = [
        f"Each attack ran once, on {tried.rows:,} training rows, in a training of {tried.epochs:g} epochs with this "
        "config's method and model. In a longer training an attacker sees more, and noise averages out. "
        "“Control” is the same attacker on data from which nothing can be learned."
    ]
    if not report.held.all_real:
        paragraphs.append(
            "Some rows are made up. A success on made-up rows is a real leak of the method. A failure on made-up rows "
            "shows nothing: real columns depend on each other, and an attacker uses that. Run this report where the "
            "data are, or on data like them, before you rely on a failure."
        )
    if any(not attempt.own_model for attempt in tried.made):
        paragraphs.append(
            "Label inference needs a server that only sums. This config's server has its own layers, so the "
            "attack ran against a server that only sums: the numbers show what the method's answers reveal in "
            "the worst case. This report has no attack on labels through a server's layers, which does not make "
            "labels safe."
        )
    head = ("attack", "attacker", "aims at", "success", "by chance", "control", "result")
    rows = [_attempt_row(attempt, tried.epochs) for attempt in tried.made]
    points = [
        f"{name} was not run: {reason}. This says nothing about safety." for name, reason in tried.left_out.items()
    ]
    return Part("Attacks that were tried", paragraphs, Grid(head, rows, head[3:6]) if rows else None, points)


def _attempt_row(attempt: Attempt, epochs: float) -> tuple[str, ...]:
    result = "succeeds" if attempt.succeeds else f"no better than chance in {epochs:g} epochs"
    if not attempt.succeeds and not attempt.real:
        result = "shows nothing: made-up rows"
    return (
        attempt.attack,
        attempt.attacker,
        attempt.aim + ("" if attempt.own_model else ", with a server that only sums"),
        f"{share(attempt.success)} {attempt.unit}",
        share(attempt.chance),
        share(attempt.control),
        result,
    )


# What would lower it.


def _lower(report: PrivacyReport) -> Part:
    head = ("change", "effect", "cost")
    spending = report.spending
    rows: list[tuple[str, ...]] = [] if spending is None else _by_noise(spending)
    rows += [(f"method {', '.join(one.methods)}", one.less, one.cost) for one in report.alternatives]
    rows.append(("model.embedding: fewer numbers for each row", "less to work columns out from; no ε", "accuracy"))
    text = (
        "Each line is one change by itself. Only a run on the data shows what a change costs in accuracy. "
        "`colonnade protocols` says what each method reveals."
    )
    return Part("What would lower it, and what that costs", [text], Grid(head, rows))


def _by_noise(spending: Spending) -> list[tuple[str, ...]]:
    delta, able = _delta(spending), spending.mechanism
    if not spending.on:
        return [
            (
                f"privacy.mechanism = 'output', clip = {able.clip:g}, noise = {noise:.6g}",
                f"ε of at most {epsilon:g} at δ = {delta}",
                f"accuracy: noise {noise / (able.clip or 1.0):.3g} times as large as a row",
            )
            for epsilon, noise in spending.needed
        ]
    rows: list[tuple[str, ...]] = [
        (
            f"noise × {factor:g}: {_noise(spending, factor)}",
            f"ε of at most {number(epsilon)} instead of {number(spending.epsilon(spending.most))}",
            "accuracy" if factor > 1 else "privacy: this is more ε, not less",
        )
        for factor, epsilon in spending.at_other_noises
    ]
    again = "fewer rows leave, so a lower ε: run this report again with --set"
    rows.append(("a shorter training (train.epochs, updates or seconds)", again, "accuracy"))
    rows.append(("evaluations less often (train.eval_every)", again, "fewer looks at the training"))
    modes = [mode for mode in spending.modes if mode != "plain"]
    if modes and not able.by_record:
        effect = "only the uploads of a record's own row count, not all outputs of the network for other rows"
        rows.append((f"privacy.local_updates = {' or '.join(map(repr, modes))}", effect, "accuracy: docs/privacy.md"))
    return rows


def _noise(spending: Spending, factor: float) -> str:
    """Return the keys to set; a method with its own mechanism has another key, which its page names."""
    rows, steps = factor * spending.noise.rows, spending.noise.steps
    key = "privacy.noise =" if spending.modes else "a standard deviation of"
    return f"{key} {rows:.4g}" + ("" if steps is None else f", privacy.dp_sgd.noise = {factor * steps:.4g}")


def _made(report: PrivacyReport) -> Part:
    notes = [f"Assumed, because this member does not know it: {note}." for note in report.held.notes]
    points = [
        *notes,
        "Messages and uploads come from simulations of the real roles of this method, not from a formula.",
        "No party's rows leave this machine for this report: the simulations run here.",
        "`colonnade privacy ledger FILE --out PAGE.html` makes the page of what was really spent, after the training.",
    ]
    return Part("How this page was made", points=points)


# Numbers for readers.


def number(value: float) -> str:
    """Three digits, never rounded down; large numbers with commas."""
    if not isfinite(value):
        return "infinite"
    shown = float(f"{value:.3g}")
    if shown < value:
        unit = 10 ** (len(f"{int(value)}") - 3) if value >= 100 else 10.0 ** (int(f"{value:.2e}".split("e")[1]) - 2)
        shown = float(f"{shown + unit:.3g}")
    return f"{shown:,.0f}" if 1000 <= shown < 1e9 else f"{shown:.3g}"


def share(value: float) -> str:
    """Return a percentage; a negative share counts as 0."""
    return f"{100 * max(value, 0.0):.1f} %"


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"
