"""A forked process is, for a test, what a process of its own is."""

import os
import signal
import subprocess
import sys

import pytest

from .starting import LINUX, Popen, run

pytestmark = pytest.mark.skipif(not LINUX, reason="other systems start every process truly")
WORDS = ["-c", "import os, sys; print(sys.argv, os.getcwd(), os.environ['SEEN'], sys.path[:2]); sys.exit(7)", "one"]
GROUP = "import os; print(os.getpid() == os.getpgrp() == os.getsid(0))"
LATE = """
import atexit, sys, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.1), print("late"))).start()
"""


@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        ["-c", "import sys; sys.exit('said at the end')"],
        ["-c", "1 / 0"],
        ["-c", "raise KeyboardInterrupt"],
        ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
        ["-c", LATE],
        ["script.py", "two"],
        ["-m", "script", "three"],
    ],
)
def test_a_command_ends_and_says_the_same_as_when_it_is_started_truly(words, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv, __name__, sys.path[0])\n")
    (tmp_path / "more").mkdir()
    environment = os.environ | {"SEEN": "yes", "PYTHONPATH": str(tmp_path / "more"), "OMP_NUM_THREADS": "1"}
    more = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    forked, true = (start([sys.executable, *words], **more) for start in (run, subprocess.run))
    assert (forked.returncode, forked.stdout) == (true.returncode, true.stdout)
    assert forked.stderr.splitlines()[-1:] == true.stderr.splitlines()[-1:]


def test_it_has_its_own_session_if_asked_for():
    assert run([sys.executable, "-c", GROUP], capture_output=True, text=True, start_new_session=True).stdout == "True\n"
    assert run([sys.executable, "-c", GROUP], capture_output=True, text=True).stdout == "False\n"


def test_signals_reach_the_process_itself():
    with Popen([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"],
               stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert int(process.stdout.readline()) == process.pid and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(60) == process.returncode == -signal.SIGKILL


def test_the_console_has_the_width_of_the_process():
    words = [sys.executable, "-c", "from colonnade.cli.printing import console; print(console.width)"]
    for width in ("77", "200"):
        assert run(words, env=os.environ | {"COLUMNS": width}, capture_output=True, text=True).stdout == f"{width}\n"


@pytest.mark.parametrize("words, more", [(["/bin/true"], {}), ([sys.executable], {"PYTHONHASHSEED": "4711"})])
def test_what_needs_a_true_start_is_refused(words, more):
    with pytest.raises(AssertionError, match="use subprocess"):
        Popen(words, env=os.environ | more)
