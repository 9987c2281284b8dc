"""OpenTelemetry spans of a member's process, as an extra: off unless the standard OTEL_* variables ask for them.

    join          a party's handshake, at the server;      connect      the same at the party
    update        from one update to the next              evaluation   from its first message to its result
    checkpoint    writing one                              prediction   one request

Attributes are numbers, such as the update and how many rows were asked for, and never ids, texts of others or values.
`OTEL_TRACES_EXPORTER` (otlp or console), or an OTLP endpoint in the environment, switches spans on. Sampling, queue and
endpoint are the SDK's own variables. If spans are off, `span` returns a context that does nothing.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from colonnade.drivers.processes.logs import Log
from colonnade.extras import require_extra
from colonnade.protocol.errors import MissingExtra

__all__ = ["past_span", "span", "spans_on", "start_spans", "use_tracer"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NOTHING: AbstractContextManager[None] = nullcontext()
_tracer: Any = None


def use_tracer(tracer: Any) -> None:
    """Make all spans with this tracer of OpenTelemetry; None switches spans off."""
    global _tracer  # noqa: PLW0603 - one process has one tracer
    _tracer = tracer


def spans_on() -> bool:
    return _tracer is not None


def span(name: str, **numbers: int) -> AbstractContextManager[None]:
    """A span as long as this context is open. An error ends it with the error's kind, without its text."""
    return _NOTHING if _tracer is None else _open(name, numbers)


def past_span(name: str, began_ns: int, **numbers: int) -> None:
    """A span that began at this time of day and ends now."""
    if _tracer is not None:
        _tracer.start_span(name, start_time=began_ns, attributes=numbers).end(end_time=time.time_ns())


@contextmanager
def _open(name: str, numbers: dict[str, int]) -> Iterator[None]:
    from opentelemetry.trace import Status, StatusCode

    quiet = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(name, attributes=numbers, **quiet) as made:
        try:
            yield
        except Exception as error:
            made.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def wanted_exporter() -> str:
    """The exporter that the environment asks for; "" if it asks for none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    named = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if named:
        return "" if named == "none" else named
    return "otlp" if any(os.environ.get(name) for name in _ENDPOINTS) else ""


def start_spans(role: str, log: Log) -> Callable[[], None]:
    """Send spans if the environment asks for them; returns the function that sends the rest and stops.

    A missing package or an unknown exporter is a warning: the variables may be meant for other programs.
    """
    wanted = wanted_exporter()
    if not wanted or spans_on():
        return lambda: None
    try:
        require_extra("otel", "sending spans", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        exporter = _exporter(wanted)
    except (MissingExtra, ModuleNotFoundError, ValueError) as error:
        log.warning("spans are not sent", cause=str(error))
        return lambda: None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = os.environ.get("OTEL_SERVICE_NAME") or f"colonnade-{role}"
    provider = TracerProvider(resource=Resource.create({"service.name": named}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use_tracer(provider.get_tracer("colonnade"))
    log.info("sending spans", exporter=wanted)

    def stop() -> None:
        use_tracer(None)
        provider.shutdown()

    return stop


def _exporter(wanted: str) -> Any:
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if wanted != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER = {wanted!r}: use otlp, console or none")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
