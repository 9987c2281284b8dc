"""Checks of the machine and of the installation, for `colonnade doctor`."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from colonnade import __version__
from colonnade.extras import EXTRAS
from colonnade.release import commit

__all__ = ["Check", "examine", "installed_versions", "own_requirements"]

OLDEST = (3, 11)
FEW_BYTES = 10**9  # far more than a run's folder of checkpoints and metrics needs
FEW_FILES = 256  # a server opens one for each party, and some more
CLOCKS_APART_S = 2.0  # some file systems store times with a resolution of two seconds


class Check(NamedTuple):
    """One finding; a fault keeps Colonnade from working, a note does not."""

    name: str
    status: Literal["ok", "note", "fault"]
    text: str


def own_requirements() -> list[Requirement]:
    """Return what this installation of Colonnade requires, extras included; empty if it is not installed."""
    try:
        return [Requirement(text) for text in importlib.metadata.requires("colonnade") or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def examine(folder: Path, requirements: list[Requirement]) -> list[Check]:
    """Run all checks; `folder` is where runs are written, and need not exist."""
    return [
        _python(),
        _colonnade(),
        *_packages(requirements),
        *_extras(requirements),
        *_computing(),
        _alignment(),
        _simulator(),
        _disk(folder),
        _descriptors(),
        _clock(folder),
    ]


def installed_versions(requirements: Iterable[Requirement]) -> dict[str, str | None]:
    """Return name → version; None for a missing package."""
    return {one.name: _version(one.name) for one in requirements if one.name != "colonnade"}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    text = f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    wanted = ".".join(map(str, OLDEST))
    if sys.version_info < OLDEST:
        return Check("python", "fault", f"{text}: {wanted} or newer is needed")
    return Check("python", "ok", text)


def _colonnade() -> Check:
    found = commit()
    return Check("colonnade", "ok", __version__ + (f", commit {found}" if found else ""))


def _packages(requirements: list[Requirement]) -> list[Check]:
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not needed:
        return [Check("packages", "fault", "unknown: Colonnade is not installed; in a checkout: pip install -e .")]
    faults = [Check("packages", "fault", text) for text in map(_fault, needed) if text]
    faulty = {one.name for one in needed if _fault(one)}
    fitting = ", ".join(f"{one.name} {_version(one.name)}" for one in needed if one.name not in faulty)
    return [*faults, Check("packages", "ok", fitting)] if fitting else faults


def _fault(one: Requirement) -> str:
    """Say what is wrong with a package; empty if it is installed in a version in range."""
    found = _version(one.name)
    if found is None:
        return f"{one.name} is missing: pip install '{one.name}{one.specifier}'"
    if not one.specifier.contains(found, prereleases=True):
        return f"{one.name} {found} is not {one.specifier}: pip install '{one.name}{one.specifier}'"
    return ""


def _extras(requirements: list[Requirement]) -> list[Check]:
    complete, checks = [], []
    for extra, enables in EXTRAS.items():
        own = [one for one in requirements if _only_with(one, extra)]
        if not own or any(_fault(one) for one in own if one.name != "colonnade"):
            checks.append(Check("extras", "note", f"pip install 'colonnade[{extra}]' would enable {enables}"))
        else:
            complete.append(extra)
    return [Check("extras", "ok", f"installed: {', '.join(complete)}"), *checks] if complete else checks


def _only_with(one: Requirement, extra: str) -> bool:
    marker = one.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _computing() -> list[Check]:
    cores = os.cpu_count() or 1
    usable = cores
    if sys.platform == "linux":
        usable = len(os.sched_getaffinity(0))
    processor = f"{usable} of {cores} cores may be used, {platform.machine()}"
    loop = "uvloop" if find_spec("uvloop") is not None else "asyncio"
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return [Check("cores", "ok", processor), Check("torch", "fault", f"cannot be imported: {error}")]
    processor += f"; torch would use {torch.get_num_threads()} threads, a run uses one; event loop: {loop}"
    count = torch.cuda.device_count()
    names = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(count)]
    gpu = ", ".join(names) or "none that torch can use; a GPU is not needed"
    return [Check("cores", "ok", processor), Check("gpu", "ok", gpu)]


def _alignment() -> Check:
    """Say which arithmetic raises points; both give the same points."""
    if importlib.import_module("colonnade.privacy.compiled").AVAILABLE:
        return Check("alignment", "ok", "compiled: eight points at a time (AVX-512 IFMA)")
    text = "one point at a time, by OpenSSL"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return Check("alignment", "ok", f"{text}: there is no compiled file for this platform")
    try:
        file = importlib.import_module("colonnade.privacy._curve25519")
    except ImportError:
        advice = "an install from source with a C compiler and Python's headers is faster"
        return Check("alignment", "note", f"{text}; {advice}")
    if not file.supported():
        return Check("alignment", "ok", f"{text}: this processor lacks AVX-512 IFMA")
    advice = "install from source again, with another C compiler (CC)"
    return Check("alignment", "note", f"{text}: the compiled file computes other points; {advice}")


def _simulator() -> Check:
    """Say whether the simulator's timeline and hash chain are compiled; both ways give the same numbers."""
    bins = importlib.import_module("colonnade.drivers.simulator.timeline").Bins is not None
    chain = bool(importlib.import_module("colonnade.protocol.trace").COMPILED)
    if bins and chain:
        return Check("simulator", "ok", "compiled: the timeline and the hash chain")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return Check("simulator", "ok", "plain Python: there are no compiled files for this platform")
    if bins:
        return Check("simulator", "ok", "compiled: the timeline; this processor lacks SHA instructions")
    advice = "an install from source with a C compiler and Python's headers delivers a fifth more events"
    return Check("simulator", "note", f"plain Python; {advice}")


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing one above it."""
    folder = folder.resolve()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _disk(folder: Path) -> Check:
    there = _existing(folder)
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free in {there}"
    if not os.access(there, os.W_OK):
        return Check("disk", "fault", f"{text}, which cannot be written to: choose another folder with --out")
    return Check("disk", "ok" if free >= FEW_BYTES else "note", text)


def _descriptors() -> Check:
    if sys.platform == "win32":
        return Check("files", "ok", "Windows has no limit on open files")
    import resource  # noqa: PLC0415 - Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    few = not unlimited and soft < FEW_FILES
    text = "unlimited" if unlimited else f"{soft} may be open at once"
    return Check(
        "files", "note" if few else "ok", text + (f": raise it with ulimit -n {min(hard, 4096)}" if few else "")
    )


def _clock(folder: Path) -> Check:
    """Check the clock of this process against the file system's, and against the time of the installation."""
    monotonic = time.get_clock_info("monotonic")
    with tempfile.TemporaryFile(dir=_existing(folder) if os.access(_existing(folder), os.W_OK) else None) as file:
        file.write(b"x")
        file.flush()
        apart = os.fstat(file.fileno()).st_mtime - time.time()
    text = f"{time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime())}, monotonic to {monotonic.resolution:.0e} s"
    if not monotonic.monotonic or monotonic.adjustable:
        return Check("clock", "fault", f"{text}: the monotonic clock may run backwards")
    if abs(apart) > CLOCKS_APART_S:
        return Check("clock", "note", f"{text}; files are dated {apart:+.0f} s from it: set one of the two clocks")
    if time.time() < Path(__file__).stat().st_mtime:
        return Check("clock", "note", f"{text}; earlier than this installation: certificates may be refused")
    return Check("clock", "ok", f"{text}; files are dated within {CLOCKS_APART_S:.0f} s of it")
