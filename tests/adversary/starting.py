"""Start `colonnade` commands as processes of the operating system, quickly.

`python starting.py` imports everything that `serve` and `join` need, once. It then forks a process for each command:
a new process group with its own log, which runs the same entry point as the console script.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


class Starter:
    """The process that forks, as the test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, log: Path, *words: str | Path) -> "Command":
        """Start `colonnade` with these words; its output goes to the end of `log`."""
        return Command(self, self.ask({"words": [str(word) for word in words], "log": str(log)}), log)

    def close(self) -> None:
        """End, with all commands that still run."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Command:
    """A process that runs a command."""

    def __init__(self, starter: Starter, pid: int, log: Path) -> None:
        self._starter, self.pid, self.log, self._code = starter, pid, log, None

    @property
    def code(self) -> int | None:
        """The exit code, −n after signal n; None while it runs."""
        if self._code is None:
            self._code = self._starter.ask({"pid": self.pid})
        return self._code

    def wait(self) -> int:
        """Return its exit code once it has ended by itself."""
        end = time.monotonic() + PATIENCE_S
        while (code := self.code) is None:
            assert time.monotonic() < end, self.log.read_text()[-2000:]
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def stop(self) -> int:
        """End it as an operator does."""
        if self.code is None:
            os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _run(words: list[str], log: str) -> None:
    """In the new process: run the command, and leave."""
    from colonnade.cli.main import main

    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for old, new in ((null, 0), (file, 1), (file, 2)):
        os.dup2(old, new)
    sys.argv = ["colonnade", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _fork() -> None:
    import colonnade.cli.main
    import colonnade.deployment.alignment
    import colonnade.deployment.party_training
    import colonnade.deployment.server_training
    import colonnade.predict.processes  # noqa: F401

    running: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "words" in question:
            answer: int | None = os.fork()
            if answer == 0:
                _run(question["words"], question["log"])
            running.add(answer or 0)
        else:
            pid, status = os.waitpid(question["pid"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _fork()
