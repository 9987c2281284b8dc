"""The commands: what they print and write; a bad input gives one clear line and exit code 2."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from colonnade.cli import printing, progress_bars
from colonnade.cli.main import app, main
from colonnade.deployment import up
from colonnade.drivers.ray import cluster

SMALL = """
[protocol]
name = "vafl"
[data]
source = "digits"
parties = 2
[model]
party = "linear"
embedding = 4
[train]
updates = 12
eval_every = 4
"""


@pytest.fixture
def colonnade(monkeypatch, capsys, tmp_path):
    """`colonnade ARGS` in a folder of its own: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["colonnade", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["--set", "--seed", "--out", "--driver", "--resume", "Examples"]),
        (
            "compare",
            ["--protocols", "--seeds", "--set", "--out", "Examples", "--protocols all", "synsqn-saga", "fedvs"],
        ),
        ("sweep", ["--grid", "Example", "asysqn-sgd"]),
        ("protocols", ["NAME", "what they reveal"]),
        ("report", ["DIR", "self-contained"]),
        ("demo", ["--seeds", "ten times slower"]),
    ],
)
def test_help(command, words, colonnade):
    code, out, _ = colonnade(command, "--help")
    assert code == 0
    assert all(word in out for word in words)


def commands(group, path=()):
    """Every command with the words typed to reach it."""
    for name, command in group.commands.items():
        yield (*path, name), command
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else ()


def test_help_shows_every_word_of_every_command(colonnade):
    """rich takes text in brackets for markup and drops it."""
    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 20
    for path, command in found:
        code, out, _ = colonnade(*path, "--help")
        assert code == 0
        shown = re.sub(r"[\s│]+", "", out)
        options = [param.help for param in command.params if not getattr(param, "hidden", False)]
        for text in filter(None, (command.help, *options)):
            words = text.replace("\\[", "[").split()
            lost = [word for word in words if word not in shown]
            assert not lost, f"{' '.join(path)} --help has lost {lost}"


def test_version_and_commands(colonnade):
    from colonnade import __version__
    from colonnade.release import commit

    found = commit()
    assert colonnade("--version")[:2] == (0, f"colonnade {__version__}" + (f" (commit {found})\n" if found else "\n"))
    out = colonnade("--help")[1]
    assert all(command in out for command in ("run", "compare", "demo", "protocols", "report"))


def test_protocols_fits_one_screen(colonnade):
    from colonnade.algorithms import METHODS

    code, out, _ = colonnade("protocols")
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 40 and max(map(len, lines)) <= 100 and "…" not in out
    for name, method in METHODS.items():
        assert [line for line in lines if line.split() == [name, *method.summary.split()]], name
        assert f"{method.exposes}:" in lines


def test_protocols_tells_all_of_one(colonnade):
    code, out, _ = colonnade("protocols", "cascaded")
    assert code == 0
    for words in (
        "Paper: Wang et al.: cascaded hybrid optimisation (2023), Alg. 1\n",
        "Page: docs/methods/zeroth.md\n",
        "Reveals: server: every party's embeddings, perturbed ones too",
        '  model.party = "dense"\n',
        "  train.learning_rate = {server = 0.01, party = 0.003}\n",
        "  smoothing = 0.001\n",
        "colonnade run --set protocol.name=cascaded\n",
    ):
        assert words in out
    assert "model." not in colonnade("protocols", "asysqn-sgd")[1], "it has no networks"
    code, _, err = colonnade("protocols", "vaffl")
    assert code == 2 and "did you mean 'vafl'" in err


def test_run_writes_its_folder(colonnade, config, tmp_path):
    code, out, _ = colonnade(
        "run",
        config,
        "--set",
        "protocol.name=t-sync",
        "--set",
        "train.updates=5",
        "--seed",
        7,
        "--out",
        tmp_path / "out",
    )
    assert code == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["protocol"], summary["seed"], summary["updates"], summary["status"]) == ("t-sync", 7, 5, "finished")
    assert "t-sync: finished" in out and f"{summary['value']:.4f}" in out
    assert f"Folder: {tmp_path / 'out'}" in out, "a path is never broken over lines"


def test_run_without_out_takes_the_next_free_folder(colonnade, config):
    for number in (1, 2):
        assert colonnade("run", config)[0] == 0
        assert Path(f"runs/small-{number}/summary.json").exists()


def test_compare_prints_a_table_and_writes_a_report(colonnade, config, tmp_path):
    code, out, _ = colonnade("compare", config, "--protocols", "sync, vafl", "--seeds", 2, "--out", tmp_path / "race")
    assert code == 0
    assert "mean ± sd" in out and "sync" in out and "vafl" in out and "±" in out
    assert len(json.loads((tmp_path / "race" / "comparison.json").read_text())) == 4
    assert (tmp_path / "race" / "report.html").exists()
    assert f"Report: {tmp_path / 'race' / 'report.html'}" in out


def test_methods_that_cannot_run_are_listed_and_the_others_race(colonnade, config, tmp_path):
    race = ("compare", config, "--protocols", "sync,afsgd,wait,afsaga", "--out", tmp_path / "race")
    code, out, _ = colonnade(*race, "--set", "model.aggregate=concat")
    assert code == 0
    assert re.search(r"^ +wait +0\.\d{4}.*\n +mean +$", out, re.MULTILINE), "its replacement is shown below its name"
    assert "afsgd, afsaga take no part: data.parties = 2: masked sums need at least 3 parties" in out
    assert not re.search(r"^ +afsgd", out, re.MULTILINE)


def test_a_failed_contestant_is_named_and_the_exit_code_says_so(colonnade, config, tmp_path):
    text = (
        SMALL.replace("updates = 12", "updates = 100")
        + '\n[methods."wild[big]"]\n"protocol.name" = "vafl"\n"train.learning_rate" = 1e20\n'
    )
    config.write_text(text)
    code, out, _ = colonnade("compare", config, "--protocols", "wild[big],centralised", "--out", tmp_path / "race")
    assert code == 1
    assert "wild[big]-seed0" in out and "lower train.learning_rate" in out
    assert re.search(r"^ +wild\[big\] \(diverged\) +– ", out, re.MULTILINE), "no number of the test rows, and why"
    assert re.search(r"centralised +0\.\d{4} ", out)
    assert len(json.loads((tmp_path / "race" / "comparison.json").read_text())) == 2


def test_a_diverged_run_ends_with_code_1_and_says_why(colonnade, config, tmp_path):
    code, out, _ = colonnade("run", config, "--set", "train.learning_rate=1e20", "--set", "train.updates=100")
    assert code == 1 and "lower train.learning_rate" in out
    assert re.search(r"accuracy, \d+ validation rows +│ 0\.\d{4} \(evaluated before it diverged\)", out)
    assert re.search(r"accuracy, \d+ test rows +│ – ", out), "the test rows are judged at the end only"
    assert re.search(r"Warning: diverged at update \d+; its validation metric and loss are those of update \d+", out)


def test_a_run_with_a_warning_says_so(colonnade, config, tmp_path):
    config.write_text(SMALL + '[clock]\nfaults = [{party = "party-2", kind = "crash", at_s = 0.1}]\n')
    code, out, _ = colonnade("run", config, "--set", "train.updates=100", "--out", tmp_path / "out")
    assert code == 0 and "vafl: finished, with warnings" in out and "(see the warnings)" in out
    (warning,) = json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"]
    assert f"Warning: {warning}" in out


def test_a_grid_without_a_result_has_no_best_point(colonnade, config, tmp_path):
    grid = ["--grid", "train.learning_rate=1e19,1e20", "--set", "train.updates=60"]
    code, out, _ = colonnade("sweep", config, *grid, "--protocols", "vafl", "--out", tmp_path / "out")
    assert code == 1 and "vafl: no best point" in out and "best at" not in out


def test_report_of_a_run(colonnade, config, tmp_path):
    colonnade("run", config, "--out", tmp_path / "out")
    code, out, _ = colonnade("report", tmp_path / "out")
    assert code == 0 and (tmp_path / "out" / "report.html").exists() and "report.html" in out


# --- bad inputs


def csv(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    return ["--set", f"data.source={tmp_path / 'table.csv'}", "--set", "model.party=linear"]


GOOD_ROWS = "".join(f"{i},{i * i % 7},{i % 3},{i % 2}\n" for i in range(20))
REFUSALS = {
    "unknown key": (["--set", "train.learning_rat=0.1"], ["train.learning_rat = 0.1", "did you mean 'learning_rate'"]),
    "unknown section": (["--set", "trian.epochs=1"], ["trian", "unknown key", "did you mean 'train'"]),
    "unknown method": (["--set", "protocol.name=vaffl"], ["protocol.name = 'vaffl'", "did you mean 'vafl'", "t-sync"]),
    "t above M": (
        ["--set", "protocol={name='t-sync', t=3}"],
        ["protocol.t = 3", "between 1 and the number of parties, 2"],
    ),
    "wrong dotted model": (
        ["--set", "model.party=no_such_package.nets:Net"],
        ["model.party of party-1", "no_such_package.nets:Net", "cannot import"],
    ),
    "wrong class": (["--set", "model.server=torch.nn:Lineer"], ["model.server = 'torch.nn:Lineer'", "has no 'Lineer'"]),
    "width": (["--set", "model.party=torch.nn:Identity"], ["model.party of party-1", "(2, 32)", "should be (2, 4)"]),
    "server none": (
        ["--set", "model.server=none"],
        ["model.server = 'none'", "8 wide", "10 outputs", "model.embedding = 10"],
    ),
    "no columns": (["--set", "data.parties=65"], ["data.parties = 65", "party-65 would have no columns"]),
    "empty list": (
        ["--set", "data={source='wine', split={a=['alcohol'], b=[]}}"],
        ["data.split", "b has no columns"],
    ),
    "overlap": (
        ["--set", "data={source='wine', split={a=['alcohol'], b=['alcohol', 'ash']}}"],
        ["data.split = 'alcohol'", "both a and b"],
    ),
    "wrong type": (["--set", "train.batch_size=many"], ["train.batch_size = 'many'", "expected `int`"]),
    "two limits": (["--set", "train.epochs=3"], ["train.epochs and train.updates", "give only one"]),
    "metric": (["--set", "train.metric=mae"], ["train.metric = 'mae'", "accuracy, auc"]),
    "no such file": (["--set", "data.source=nowhere.csv"], ["data.source = 'nowhere.csv'", "there is no file"]),
    "brackets": (["--set", "data.source=[/bold]"], ["data.source = '[/bold]'"]),
    "no equals sign": (["--set", "train.epochs"], ["--set = 'train.epochs'", "must be KEY=VALUE"]),
    "driver": (["--driver", "dask"], ["--driver = 'dask'", "'sim', 'processes' or 'ray'"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_with_code_2_and_no_folder(case, colonnade, config, tmp_path):
    settings, words = REFUSALS[case]
    code, out, err = colonnade("run", config, *settings, "--out", tmp_path / "out")
    assert code == 2
    line = re.sub(r"\s+", " ", err)
    assert line.startswith("Error: ") and "Traceback" not in err
    assert err.count("\n") == 1, "one line, whatever the terminal's width"
    assert all(word in line for word in words), line
    assert out == "" and not (tmp_path / "out").exists()


def test_bad_tables_are_refused(colonnade, config, tmp_path):
    def refused(text, *settings):
        config.write_text(SMALL.replace('source = "digits"', ""))
        code, _, err = colonnade("run", config, *csv(tmp_path, text), *settings, "--out", tmp_path / "out")
        assert code == 2 and not (tmp_path / "out").exists()
        return err

    good = "a,b,c,y\n" + GOOD_ROWS
    assert "data.label = None: name the column of table.csv to predict" in refused(good)
    assert "data.label = 'Y': no such column in table.csv" in refused(good, "--set", "data.label=Y")
    bad = good.replace("\n7,0,1,1\n", "\n7,0,NaN,1\n")
    error = refused(bad, "--set", "data.label=y")
    assert "party-2" in error and "'c'" in error and "row 7" in error


def test_nan_in_an_npz_names_party_and_column(colonnade, config, tmp_path):
    x, y = np.random.default_rng(0).random((30, 4)), np.arange(30) % 2
    x[5, 2] = np.nan
    np.savez(tmp_path / "table.npz", x=x, y=y)
    code, _, err = colonnade("run", config, "--set", f"data.source={tmp_path / 'table.npz'}", "--out", tmp_path / "out")
    assert code == 2 and "party-2" in err and "'x2'" in err and "row 5" in err
    assert not (tmp_path / "out").exists()


def test_an_out_folder_in_use(colonnade, config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note.txt").write_text("mine")
    for command in (["run"], ["compare"]):
        code, _, err = colonnade(*command, config, "--out", tmp_path / "out")
        assert code == 2 and "--out" in err and "exists and is not empty" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["note.txt"]


def test_resuming_another_config(colonnade, config, tmp_path):
    assert colonnade("run", config, "--out", tmp_path / "out")[0] == 0
    before = (tmp_path / "out" / "summary.json").read_bytes()
    code, _, err = colonnade("run", config, "--set", "train.updates=13", "--resume", tmp_path / "out")
    assert code == 2 and "another config (train.updates: 12 there, 13 here)" in err
    code, _, err = colonnade("run", config, "--resume", tmp_path / "nothing")
    assert code == 2 and "this folder holds no run" in err
    code, _, err = colonnade("run", config, "--resume", tmp_path / "out", "--out", tmp_path / "new")
    assert code == 2 and "remove --out" in err
    assert (tmp_path / "out" / "summary.json").read_bytes() == before and not (tmp_path / "new").exists()


def test_a_finished_run_that_is_resumed_is_shown_and_left_as_it_is(colonnade, config, tmp_path):
    folder = tmp_path / "out"
    assert colonnade("run", config, "--set", "train.checkpoint_every=4", "--out", folder)[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, _ = colonnade("run", "--resume", folder)
    assert code == 0 and "This run had already ended" in out and "vafl: finished" in out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_of_processes_is_not_gone_on_with_in_the_simulator(colonnade, config, tmp_path):
    assert colonnade("run", config, "--out", tmp_path / "out")[0] == 0
    (tmp_path / "out" / "summary.json").unlink()
    (tmp_path / "out" / "nodes").mkdir()
    code, _, err = colonnade("run", "--resume", tmp_path / "out")
    assert code == 2 and "add --driver processes" in err


def test_config_files_that_cannot_be_read(colonnade, tmp_path):
    code, _, err = colonnade("run", tmp_path / "none.toml", "--out", tmp_path / "out")
    assert code == 2 and "none.toml" in err and "there is no such file" in err
    (tmp_path / "bad.toml").write_text("[train\n")
    code, _, err = colonnade("run", tmp_path / "bad.toml", "--out", tmp_path / "out")
    assert code == 2 and "is not TOML" in err and "line 1" in err
    assert not (tmp_path / "out").exists()


def test_report_of_nothing(colonnade, tmp_path):
    code, _, err = colonnade("report", tmp_path)
    assert code == 2 and "holds no finished run, comparison or attack" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("address=127.0.0.1:7450", ["network.address = '127.0.0.1:7450'", "a free port", "colonnade serve"]),
        ("parties=['a', 'b']", ["network.parties = ['a', 'b']", "data.split"]),
        ("key=a.key", ["network.key = 'a.key'", "its own certificates"]),
    ],
)
def test_what_up_sets_itself_is_not_overridden_in_silence(colonnade, tmp_path, setting, words):
    code, _, err = colonnade("up", "--set", f"network.{setting}", "--out", tmp_path / "out")
    assert code == 2 and all(word in err for word in words), err
    assert not (tmp_path / "out").exists()


# --- Ctrl-C


@pytest.fixture
def ctrl_c_when(monkeypatch):
    """A real SIGINT when the bar is drawn and a condition holds, so never while a file is being opened."""

    def when(condition):
        def draw(at):
            if condition():
                signal.raise_signal(signal.SIGINT)
            return shown(at)

        shown = progress_bars._state
        monkeypatch.setattr(progress_bars, "_state", draw)

    return when


LONG = ["--set", "train.updates=10000000"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_stopped_has_a_checkpoint_and_says_how_to_go_on(
    colonnade, config, tmp_path, ctrl_c_when, workers
):
    out = tmp_path / "out"
    ctrl_c_when(lambda: True)
    code, said, _ = colonnade(
        "run", config, *LONG, "--set", f"train.checkpoint_every={10**7}", "--out", out, "--workers", workers
    )
    assert code == 130
    assert f"To continue from the last checkpoint: colonnade run --driver sim --resume {out}\n" in said
    assert (out / "checkpoint.safetensors").is_file()


@pytest.mark.parametrize(
    ("typed", "again"),
    [(["--out", "race"], "race"), ([], "runs/small-comparison-1")],
    ids=["out", "no-out"],
)
def test_a_race_that_is_stopped_says_how_to_go_on(colonnade, config, ctrl_c_when, typed, again):
    config.write_text(SMALL + f'[methods.endless]\n"protocol.name" = "sync"\n"train.updates" = {10**7}\n')
    common = ["compare", str(config), "--protocols", "vafl,endless"]
    ctrl_c_when((Path(again) / "endless-seed0").exists)
    command = shlex.join(["colonnade", *common, "--resume", again])
    code, said, _ = colonnade(*common, *typed)
    assert code == 130 and f"Stopped; 1 of 2 runs are finished and kept. To continue: {command}\n" in said
    checkpoint = Path(again) / "endless-seed0" / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    code, said, _ = colonnade(*common, "--resume", again)
    assert code == 130 and f"To continue: {command}\n" in said, "the same again"
    assert checkpoint.read_bytes() != before, "the run continued"


def test_a_demo_that_is_stopped_says_how_to_go_on(colonnade, ctrl_c_when):
    ctrl_c_when(Path("runs/demo-1/swift-seed0").exists)
    code, said, _ = colonnade("demo")
    assert (
        code == 130 and "1 of 16 runs are finished and kept. To continue: colonnade demo --resume runs/demo-1\n" in said
    )
    assert Path("runs/demo-1/swift-seed0/checkpoint.safetensors").is_file()


def test_a_sweep_that_is_stopped_says_how_to_go_on(colonnade, config, ctrl_c_when):
    typed = ["sweep", str(config), "--grid", "train.learning_rate=0.01,0.1", *LONG]
    ctrl_c_when(lambda: True)
    code, said, _ = colonnade(*typed)
    again = shlex.join(["colonnade", *typed, "--resume", "runs/small-sweep-1"])
    assert code == 130 and f"0 of 2 runs are finished and kept. To continue: {again}\n" in said
    assert len(list(Path("runs/small-sweep-1").glob("*/checkpoint.safetensors"))) == 1


@pytest.mark.parametrize("command", [["compare"], ["demo"], ["sweep", "--grid", "train.learning_rate=0.1"]])
def test_a_race_is_resumed_only_where_one_lies(colonnade, tmp_path, command):
    code, _, err = colonnade(*command, "--resume", tmp_path / "nowhere")
    assert code == 2 and "this folder holds no comparison" in err
    code, _, err = colonnade(*command, "--resume", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert code == 2 and "--resume continues in its own folder" in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_to_go_on_can_be_typed_where_the_name_is_not_found(monkeypatch, tmp_path):
    script = tmp_path / "venv" / "bin" / "colonnade"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo", "--out=a", "--seeds", "2", "--resume", "b"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert printing.command_to_resume(Path("runs/a b")) == f"{script} demo --seeds 2 --resume 'runs/a b'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert printing.program() == "colonnade"
    monkeypatch.setattr(sys, "argv", ["/somewhere/colonnade/__main__.py", "demo"])
    assert printing.program() == f"{sys.executable} -m colonnade"


def test_an_unknown_option_is_refused(colonnade, config):
    code, _, err = colonnade("run", config, "--sed", "1")
    assert code == 2 and "--sed" in err and not Path("runs").exists()


def test_the_installed_command(tmp_path):
    """Once with a real process, started in another folder."""
    command = Path(sys.executable).with_name("colonnade")
    result = subprocess.run(
        [command, "run", "--set", "protocol.name=vaffl"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "did you mean 'vafl'" in result.stderr and list(tmp_path.iterdir()) == []


def test_the_command_and_the_winners_are_kept_and_said(colonnade, config, tmp_path):
    code, out, _ = colonnade("compare", config, "--protocols", "sync,vafl", "--out", tmp_path / "race")
    assert code == 0
    typed = (tmp_path / "race" / "command.txt").read_text()
    assert typed == f"colonnade compare {config} --protocols sync,vafl --out {tmp_path / 'race'}\n"
    last = out.strip().splitlines()[-1]
    assert re.search(r"[Bb]est accuracy: \S+ .*fewest bytes: \S+ ", last)
    assert colonnade("run", config, "--out", tmp_path / "run")[0] == 0
    (tmp_path / "run" / "summary.json").unlink()  # as if it had been cut off
    assert colonnade("run", "--resume", tmp_path / "run")[0] == 0
    assert (tmp_path / "run" / "command.txt").read_text().splitlines() == [
        f"colonnade run {config} --out {tmp_path / 'run'}",
        f"colonnade run --resume {tmp_path / 'run'}",
    ]


@pytest.mark.parametrize(
    "words, cause",
    [
        (["--workers", "2", "--driver", "processes"], "is for the simulator"),
        (["--workers", "many"], "give a number, or 'ray'"),
        (["--workers", "0"], "1 or more"),
        (["--address", "127.0.0.1:1"], "add --workers ray"),
        (["--workers", "2", "--driver", "ray"], "with --driver ray every role has its own"),
        (["--driver", "ray", "--address", "127.0.0.1:1"], "no Ray answers there"),
    ],
    ids=["processes", "many", "none", "address", "actors", "silence"],
)
def test_workers_that_cannot_be(colonnade, tmp_path, words, cause):
    code, _, err = colonnade("run", "--out", tmp_path / "out", *words)
    assert code == 2 and cause in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["--driver", "ray"], ["--workers", "ray"], ["--driver", "processes"]])
def test_what_cannot_be_built_is_refused_before_anything_is_started(colonnade, tmp_path, monkeypatch, words):
    monkeypatch.setattr(cluster, "connected", lambda address: pytest.fail("a cluster was started"))
    monkeypatch.setattr(up.Child, "start", lambda child: pytest.fail("a process was started"))
    code, _, err = colonnade("run", "--out", tmp_path / "out", "--set", "model.party=nosuch", *words)
    assert code == 2 and "'nosuch': unknown model" in err
    assert not (tmp_path / "out").exists()
