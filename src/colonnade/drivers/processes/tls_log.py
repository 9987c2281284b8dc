"""Logs handshakes that TLS itself refused, once each.

gRPC reports them only on the error stream, so this module reads that stream. Other lines pass through unchanged. gRPC's
own messages through Python's logging (a call was cut at a bad moment) are logged once, too, without their tracebacks.
"""

import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from colonnade.drivers.processes.logs import Log, Once

__all__ = ["tls_refusals_to"]

_LINE = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\] (?P<text>.*)$")
EXPIRED, TOO_NEW = "an expired certificate", "a certificate that is not yet valid"
_BY_DATE = (EXPIRED, TOO_NEW)
_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "certificate has expired": EXPIRED,
    "certificate is not yet valid": TOO_NEW,
    "unable to get local issuer certificate": "a certificate of another authority",
    "self signed certificate": "a certificate of another authority",
    "self-signed certificate": "a certificate of another authority",
    "WRONG_VERSION_NUMBER": "does not speak TLS",
    "HTTP_REQUEST": "does not speak TLS",
    "unsuitable certificate purpose": "a certificate that is not for this",
}


def cause_of(line: str) -> str | None:
    """Why a handshake failed, in our words; None if the line is about something else."""
    found = _LINE.match(line)
    if found is None or "andshake failed" not in found["text"]:
        return None
    return next((words for key, words in _CAUSES.items() if key in found["text"]), "handshake failed")


def _clock(cause: str) -> dict[str, str]:
    """This machine's date, if a date was the reason: the clock may be wrong."""
    return {"clock": time.strftime("%Y-%m-%d UTC", time.gmtime())} if cause in _BY_DATE else {}


@contextmanager
def tls_refusals_to(log: Log, refused: Counter[str] | None = None) -> Iterator[None]:
    """While this context is open, log refused handshakes, each kind once with its count; `refused` counts all."""
    complaints = Once(log)
    original = os.dup(2)
    before = log.stream
    if before is sys.stderr:
        log.stream = open(original, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    read_end, write_end = os.pipe()
    sys.stderr.flush()
    os.dup2(write_end, 2)
    os.close(write_end)
    reader = threading.Thread(target=_pass_on, args=(read_end, original, complaints, refused), daemon=True)
    reader.start()
    said, logger = _Said(complaints), logging.getLogger("grpc")
    logger.addHandler(said)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(said)
        sys.stderr.flush()
        os.dup2(original, 2)  # closes the pipe's only writer, which ends the reader
        reader.join(timeout=2)
        log.stream = before
        os.close(original)


class _Said(logging.Handler):
    def __init__(self, complaints: Once) -> None:
        super().__init__(logging.WARNING)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        name = "" if error is None else f": {type(error).__name__}"
        self._complaints.warning("network trouble", cause=f"{record.getMessage()[:200]}{name}")


def _pass_on(read_end: int, original: int, complaints: Once, refused: Counter[str] | None) -> None:
    with open(read_end, encoding="utf-8", errors="replace") as lines:
        for line in _without_cut_calls(lines):
            cause = cause_of(line.rstrip("\n"))
            if cause is not None:
                complaints.warning("refused", cause=cause, **_clock(cause))
                if refused is not None:
                    refused["tls"] += 1
            elif not _LINE.match(line):
                os.write(original, line.encode())


def _without_cut_calls(lines: Iterable[str]) -> Iterator[str]:
    """Drop gRPC's own tracebacks about a cancelled call, which is not an error of this program."""
    held: list[str] = []
    for line in lines:
        if line.startswith("Traceback ") or (held and line.startswith(" ")):
            held.append(line)
            continue
        cut = line.startswith("asyncio.exceptions.CancelledError") and all(
            "grpc/_cython" in place for place in held if place.startswith("  File ")
        )
        if not (held and cut):
            yield from held
            yield line
        held = []
    yield from held
