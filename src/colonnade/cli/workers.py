"""`--workers` and `--address`: which threads, processes or cluster compute in the simulator."""

from contextlib import AbstractContextManager, nullcontext

from colonnade.protocol.errors import ConfigError

__all__ = ["cluster", "parse_workers"]


def parse_workers(text: str) -> int | str:
    """Parse a number of threads (of a run) or processes (of a race), or "ray"."""
    if text == "ray":
        return text
    if not text.isdecimal():
        raise ConfigError("--workers", text, "give a number, or 'ray'")
    return int(text)


def cluster(wanted: bool, address: str | None) -> AbstractContextManager[None]:
    """Connect to Ray, if it is wanted."""
    from colonnade.drivers.ray.cluster import connected

    if not wanted and address is not None:
        raise ConfigError("--address", address, "is the address of a Ray cluster: add --workers ray or --driver ray")
    return connected(address) if wanted else nullcontext()
