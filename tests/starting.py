"""Start Python processes as the operating system sees them, without the seconds that each import of torch costs.

`Popen` and `run` take the arguments of `subprocess.Popen` and `subprocess.run`, for a command
`[sys.executable, "-m", MODULE, …]`, `[sys.executable, "-c", CODE, …]` or `[sys.executable, SCRIPT, …]`.
A starter process, one for all tests of a pytest process, imports torch and colonnade once. It forks for each command:
the child has its own pid, folder, environment and descriptors, and ends as any Python process ends.

What an interpreter reads only when it starts is the starter's: PYTHONHASHSEED, PYTHONWARNINGS, the number of threads.
A test of these, or of the start itself, uses `subprocess`. So do all tests where the system is not Linux.
"""

import asyncio
import atexit
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
LINUX = sys.platform == "linux"
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
AT_START = ("PYTHONHASHSEED", "PYTHONWARNINGS", "GRPC_EXPERIMENTS", *THREADS)
LARGEST_REQUEST = 1 << 20
WARM = ("sklearn.datasets", "typer.rich_utils", "uvloop")
WARM_PACKAGES = ("cli", "deployment", "experiments", "predict")
COLD = ("on_ray",)  # Ray starts threads
SLEEPING = {"jemalloc_bg_thd", "polars-ooc-clea"}  # threads of polars that hold no lock while polars is not used
MAIN = "from colonnade.cli.main import main; main()"
# `-m colonnade` with forked members. A forked process has this module, under this name.
WITH_MEMBERS = """
import runpy, starting
starting.fork_members()
runpy.run_module("colonnade", run_name="__main__", alter_sys=True)
"""
# Gives the process another release number, in every module that has taken it over.
PRETEND = """
import sys, colonnade, colonnade.cli.main
before = colonnade.__version__
for name, module in list(sys.modules.items()):
    if name.startswith("colonnade") and getattr(module, "__version__", "") == before:
        module.__version__ = {release!r}
colonnade.cli.main.main()
"""


class Starter:
    """The process that forks, as the tests see it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST_REQUEST)
        self.settings = {name: value for name, value in os.environ.items() if name in AT_START} | THREADS
        with theirs:
            self.pid = self._begin(theirs)
        self._lock = threading.Lock()

    def _begin(self, theirs: socket.socket) -> int:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | THREADS,
        )
        return self._process.pid

    def ask(self, question: dict[str, Any], files: tuple[int, ...] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(question).encode()], list(files))
            answer = self._socket.recv(LARGEST_REQUEST)
        assert answer, "the starter has ended"
        return json.loads(answer)

    def close(self) -> None:
        """End, with all commands that still run."""
        self._socket.close()
        self._process.wait(PATIENCE_S)


STARTERS: list[Starter] = []  # at most one


def starter() -> Starter:
    """The starter of this pytest process, or of this command; it ends with that process."""
    if not STARTERS:
        STARTERS.append(Starter())
        atexit.register(STARTERS[0].close)
    return STARTERS[0]


class InnerStarter(Starter):
    """A starter that a forked command has forked from itself; it ends with the command."""

    def _begin(self, theirs: socket.socket) -> int:
        if pid := os.fork():
            return pid
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._socket.close()
        with theirs:
            typed = serve_tests(theirs)
        if typed:
            leave(typed)
        os._exit(0)


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process that the starter has forked; all that `subprocess.Popen` does with pipes and waiting is as there."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        words, environment = list(map(os.fspath, asked["args"])), dict(asked["env"] or os.environ)
        assert words[0] == sys.executable, f"{words[0]} is not this Python: use subprocess"
        for name in environment.keys() & set(AT_START):
            same = environment[name] == starter().settings.get(name)
            assert same, f"{name} acts only at a true start: use subprocess"
        files = tuple(
            standard if file == -1 else file
            for standard, file in enumerate((asked["p2cread"], asked["c2pwrite"], asked["errwrite"]))
        )
        question = {
            "words": words[1:],
            "folder": str(Path.cwd() / (asked["cwd"] or "")),
            "environment": environment,
            "session": asked["start_new_session"],
        }
        self.pid = starter().ask(question, files)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None:
            self.returncode = starter().ask({"pid": self.pid})
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            file = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(file, select.POLLIN)
                if not ended.poll(None if timeout is None else 1000 * timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            finally:
                os.close(file)
        return self._internal_poll()


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
Popen = Forked if LINUX else subprocess.Popen


def run(
    command: list[Any], *, timeout: float | None = None, check: bool = False, capture_output: bool = False, **more: Any
) -> "subprocess.CompletedProcess[Any]":
    """As `subprocess.run`, without `input`."""
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Member:
    """A forked process with the part of `asyncio.subprocess.Process` that `up` and `align` use."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self.pid = process, process.pid
        self.send_signal, self.kill = process.send_signal, process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        while (code := self.returncode) is None:
            await asyncio.sleep(0.01)
        return code


async def fork_member(*words: str, **more: Any) -> Member:
    """In place of `asyncio.create_subprocess_exec`: members of `up` and `align` that run inside the test's process.

    A member ends with its parent, which is the starter.
    """
    command = list(words)
    if LINUX and "--parent" in command:
        command[command.index("--parent") + 1] = str(starter().pid)
    return Member(Popen(command, **more))


def fork_members() -> None:
    """In a forked command that has done nothing else yet: it forks the members that it starts."""
    STARTERS.append(InnerStarter())
    asyncio.create_subprocess_exec = fork_member  # type: ignore[assignment]


class Command:
    """A `colonnade` command in a process group of its own; its output goes to the end of a log."""

    def __init__(self, log: Path, *words: str | Path, folder: Path | None = None, release: str = "") -> None:
        """With `release`, the process is one of that release, as far as its number goes."""
        self.log = log
        code = PRETEND.format(release=release) if release else MAIN
        with log.open("ab") as file:
            self._process = Popen(
                [sys.executable, "-c", code, *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, −n after signal n; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Return its exit code once it has ended by itself."""
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log.read_text()[-2000:]) from None

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        self._process.kill()
        self.wait()

    def stop(self) -> int:
        """End it as an operator does."""
        self._process.terminate()
        return self.wait()

    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Commands:
    """Starts commands, and kills those that still run when it is closed."""

    def __init__(self) -> None:
        self._started: list[Command] = []

    def start(self, log: Path, *words: str | Path, folder: Path | None = None, release: str = "") -> Command:
        self._started.append(Command(log, *words, folder=folder, release=release))
        return self._started[-1]

    def close(self) -> None:
        for command in self._started:
            command.kill()


# In the starter and its children


def warm_up() -> None:
    """Import all that a command may need."""
    for name in WARM:
        importlib.import_module(name)
    for package in WARM_PACKAGES:
        found = importlib.import_module(f"colonnade.{package}")
        for module in pkgutil.iter_modules(found.__path__, f"{found.__name__}."):
            if not module.name.endswith(COLD):
                importlib.import_module(module.name)
    threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert len(threads - SLEEPING) == 1, f"a process with threads cannot be forked: {threads}"
    gc.collect()
    gc.freeze()  # a child that collects garbage copies no page of what it has inherited


def prepare_child(question: dict[str, Any], files: list[int]) -> None:
    """Take over what the command was started with."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if question["session"]:
        os.setsid()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(question["folder"])
    os.environ.clear()
    os.environ.update(question["environment"])
    sys.modules["colonnade.cli.printing"].console.__init__()  # it keeps the width that COLUMNS has when it is made


def run_child(words: list[str]) -> None:
    """Run the command as the interpreter would; what it raises ends the process."""
    kind = words.pop(0) if words[0] in ("-m", "-c") else ""
    first = {"-m": str(Path.cwd()), "-c": ""}.get(kind, str(Path(words[0]).parent.resolve()))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [first, *filter(None, paths)]
    if kind == "-c":
        module = types.ModuleType("__main__")
        sys.argv, sys.modules["__main__"] = ["-c", *words[1:]], module
        exec(words[0], module.__dict__)
    elif kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def leave(words: list[str]) -> None:
    """Run the command and end as the interpreter does, except that the modules are not taken apart first."""
    code: Any = 0
    try:
        run_child(words)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(code if isinstance(code, int) else int(code is not None))


def serve_tests(line: socket.socket) -> list[str]:
    """Fork for each request until the tests end; in a child, return the words of its command."""
    running: set[int] = set()
    while True:
        message, files, *_ = socket.recv_fds(line, LARGEST_REQUEST, 3)
        if not message:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return []
        question = json.loads(message)
        if "words" in question:
            answer: int | None = os.fork()
            if answer == 0:
                line.close()
                prepare_child(question, files)
                return list(question["words"])
            running.add(answer or 0)
            for file in files:
                os.close(file)
        else:
            pid, status = os.waitpid(question["pid"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        line.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    sys.modules["starting"] = sys.modules["__main__"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for pytest and the commands
    with socket.socket(fileno=int(sys.argv[1])) as line:
        warm_up()
        typed = serve_tests(line)
    if typed:
        leave(typed)
