"""The descriptors of this process: how many connections may take, and what is left for files."""

import contextlib
import errno
import os
import sys

if sys.platform != "win32":
    import resource

__all__ = ["connections_allowed", "descriptors_left", "open_descriptors", "raise_descriptor_limit"]

RESERVE = 128  # descriptors for files and for connections of other kinds
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the system lets it have."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS says "infinity", and refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed(wanted: int) -> int:
    """This number, or what the descriptors allow if that is less. A reserve of descriptors is left for files."""
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - len(open_descriptors()) - min(RESERVE, soft // 4)))


def descriptors_left() -> bool:
    """Whether two more files can be opened now: what a checkpoint needs."""
    spare: list[int] = []
    try:
        for _ in range(2):
            spare.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return False
        raise
    finally:
        for descriptor in spare:
            os.close(descriptor)
    return True


def open_descriptors() -> list[int]:
    """The descriptors of this process; [] if the system gives no list."""
    try:
        return [int(entry.name) for entry in os.scandir(_DESCRIPTORS)]
    except OSError:
        return []  # no such list on this system, or no descriptor left to read it
