"""One SIGTERM ends every command that keeps running, with its state saved; the exit code says how a command ended."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colonnade.cli import main
from colonnade.cli.main import app
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.dial import FinalRefusal, ServerGone
from colonnade.protocol import errors

from ..starting import Popen, run

PATIENCE_S = 120.0
ROOT = Path(__file__).parents[2]
OPERATE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process at once on Windows")


def start(folder, *words):
    command = [sys.executable, "-m", "colonnade", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def end(process, there):
    """Send SIGTERM once `there` says that the command is at work; returns the exit code and what was printed."""
    until = time.monotonic() + PATIENCE_S
    try:
        while not there():
            assert process.poll() is None and time.monotonic() < until, "it never began"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, said


def has_text(path):
    return path.is_file() and path.stat().st_size > 0


LONG = ["--set", "train.epochs=100000", "--set", "train.eval_every=50", "--set", "data.parties=2"]


def test_a_run_saves_its_state_and_says_how_to_continue(tmp_path):
    process = start(tmp_path, "run", *LONG, "--out", "one")
    code, said = end(process, lambda: has_text(tmp_path / "one" / "metrics.jsonl"))
    assert code == 130 and "--resume one" in said and "To continue from the last checkpoint" in said, said


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["compare", "--protocols", "vafl,sync"], ["sweep", "--grid", "train.learning_rate=0.1,0.2"]],
    ids=["compare", "sweep"],
)
def test_a_race_saves_its_state_and_says_how_to_continue(words, tmp_path):
    process = start(tmp_path, *words, *LONG, "--out", "race")
    code, said = end(process, lambda: any(map(has_text, (tmp_path / "race").glob("**/metrics.jsonl"))))
    assert code == 130 and "To continue:" in said, said


def test_a_server_that_aligns_ends_with_0_and_its_audit_says_so(tmp_path):
    throw_away(("bank",), tmp_path / "keys")
    (tmp_path / "ids.csv").write_text("client,y\n" + "".join(f"{number},0\n" for number in range(20)))
    (tmp_path / "server.toml").write_text(
        '[network]\nparties = ["bank"]\naddress = "127.0.0.1:0"\ncertificate = "keys/server.pem"\n'
        'key = "keys/server.key"\nauthority = "keys/ca.pem"\nmembers = "keys/members.toml"\n'
        '[server]\ndata = "ids.csv"\nid = "client"\nlabel = "y"\naligned = "aligned.safetensors"\n'
    )
    process = start(tmp_path, "align", "server.toml", "--log-file", "align.log", "--log-json")
    folder = tmp_path / "runs" / "server-align"
    code, said = end(process, (folder / "address").is_file)
    assert code == 0, said
    audit = (folder / "audit.jsonl").read_text()
    assert '"aim": "alignment"' in audit and '"status": "stopped"' in audit
    assert '"event":"listening"' in (tmp_path / "align.log").read_text().replace('": "', '":"')
    assert not (folder / "health.json").exists()


def test_sigusr1_opens_the_log_file_again(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom colonnade.cli.one_side import log_of\n"
        "log = log_of('server', False, 'info', Path('log'))\nlog.info('one')\nPath('log').rename('old')\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nlog.info('two')\n"
    )
    run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    assert "one" in (tmp_path / "old").read_text() and "two" in (tmp_path / "log").read_text()


# Exit codes


def every_error():
    waiting, found = [errors.ColonnadeError], []
    while waiting:
        found.append(waiting.pop())
        waiting += [kind for kind in found[-1].__subclasses__() if kind.__module__.startswith("colonnade.")]
    return found


def test_every_error_has_a_documented_exit_code():
    codes = {kind.exit_code for kind in every_error()}
    table = OPERATE.partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == {1, 2, 3} and documented == {0, 1, 2, 3, 130, 143}


def test_a_cause_that_may_pass_has_another_code_than_wrong_input():
    assert ServerGone.exit_code == errors.NotWritable.exit_code == errors.WorkerLost.exit_code == 3
    assert FinalRefusal.exit_code == errors.ConfigError.exit_code == errors.MissingExtra.exit_code == 2
    assert errors.TrainingDiverged.exit_code == 1 and errors.LocalProtocolError.exit_code == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["run", "--no-such-option"], 2),
        (["run", "none.toml"], 2),
        (["serve", "none.toml"], 2),
        (["health", "."], 1),
        (["audit", "verify", "."], 2),
    ],
)
def test_commands_end_with_the_documented_code(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert ends(monkeypatch, words) == code and "Traceback" not in capsys.readouterr().err


def test_a_server_that_is_gone_ends_a_party_with_3(monkeypatch, capsys):
    def gone():
        raise ServerGone("the server at 127.0.0.1:1 could not be reached for 600 s")

    monkeypatch.setattr(main, "app", gone)
    assert ends(monkeypatch, []) == 3 and "could not be reached" in capsys.readouterr().err


def ends(monkeypatch, words):
    """The exit code of the console script, in this process."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["colonnade", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code


def test_the_page_names_every_command_that_keeps_running():
    commands = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"`(\w+)`", OPERATE.partition("## Stopping")[2].partition("\n## ")[0]))
    assert {"serve", "join", "align", "up", "run", "compare", "sweep"} <= named & commands
