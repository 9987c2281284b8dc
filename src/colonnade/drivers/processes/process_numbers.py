"""Memory and descriptors of this process, for metrics. A number that the system does not give is left out."""

import os
import sys
from pathlib import Path

from colonnade.drivers.processes.descriptors import open_descriptors

if sys.platform != "win32":
    import resource

__all__ = ["process_numbers"]


def process_numbers() -> dict[str, int]:
    found = {}
    if descriptors := len(open_descriptors()):
        found["open_descriptors"] = descriptors
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            found["descriptor_limit"] = soft
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        found["resident_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
    return found
