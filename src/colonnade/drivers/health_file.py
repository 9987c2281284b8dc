"""OUT/health.json: a process says every few seconds that it lives, and what keeps it from making progress.

A party has no port, so `colonnade health` reads this file, for a server and for a party alike. The process writes it
from its event loop, into the folder of its state. So a fresh file shows that the loop turns and the disk takes writes.
The age is measured with the system's monotonic clock, which all processes of one machine share, and the boot id.
"""

import time
from pathlib import Path

import msgspec

from colonnade.drivers.files import DISK

__all__ = ["HEALTH_FILE", "REFRESH_S", "STALE_AFTER_S", "Health", "newest_health", "write_health"]

HEALTH_FILE = "health.json"
REFRESH_S = 2.0
STALE_AFTER_S = 15.0
MOST_BYTES = 2**16


class Health(msgspec.Struct, frozen=True):
    """The content of the file."""

    role: str
    aim: str  # training, alignment or predictions
    pid: int
    boot: str
    monotonic_s: float
    causes: list[str] = []  # why the process cannot make progress now; none: it is ready

    def age_s(self) -> float:
        """Seconds since the file was written; infinite if that was before the machine started."""
        same = self.boot == DISK.boot_id().hex()
        age_s = time.monotonic() - self.monotonic_s
        return age_s if same and age_s >= 0 else float("inf")


def write_health(folder: Path, role: str, aim: str, pid: int, causes: list[str]) -> None:
    """Replace the file, without a sync: after a power cut nothing reads it. Raises OSError."""
    health = Health(role, aim, pid, DISK.boot_id().hex(), time.monotonic(), causes)
    temporary = folder / f".{HEALTH_FILE}.tmp"
    temporary.write_bytes(msgspec.json.encode(health) + b"\n")
    temporary.replace(folder / HEALTH_FILE)


def newest_health(folder: Path) -> Health | None:
    """The newest file in this folder, or in the folders under runs/ in it; None if there is none that can be read."""
    places = [folder / HEALTH_FILE, *(folder / "runs").glob(f"*/{HEALTH_FILE}"), *folder.glob(f"*/{HEALTH_FILE}")]
    found = [health for path in places if (health := _read(path)) is not None]
    return min(found, key=Health.age_s, default=None)


def _read(path: Path) -> Health | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=Health)
    except (OSError, msgspec.MsgspecError):
        return None
