"""Numbers for Prometheus and answers for probes at http://127.0.0.1:PORT, on loopback only, read on each request.

/metrics    the numbers in `METRICS`; docs/operate.md lists them
/healthz    200 if the process lives and its event loop turns
/readyz     200 if it can make progress; 503 with the causes
"""

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from colonnade.extras import require_extra
from colonnade.protocol.errors import ConfigError

__all__ = ["METRICS", "Metric", "serve_metrics"]

MAX_REQUESTS = 16  # at the same time
REQUEST_S = 5.0  # for a request to arrive


class Metric(NamedTuple):
    """A name, in /metrics after "colonnade_", and what it means. A counter's name gets "_total" there."""

    words: str
    labels: tuple[str, ...] = ()
    counter: bool = False
    of: str = "both"  # the server, a party or both


_SERVER, _PARTY = "server", "party"
METRICS = {
    "info": Metric("1, with the release and the aim: training, alignment or predictions.", ("release", "aim")),
    "ready": Metric("1 if the process can make progress: as /readyz."),
    "updates": Metric("Updates of the global model; at a party, the last one that it knows of."),
    "epochs": Metric("Epochs: N·M party-rows each.", of=_SERVER),
    "clock_s": Metric("Seconds of training."),
    "fraction": Metric("The finished part of the run, from 0 to 1.", of=_SERVER),
    "waited_s": Metric("Seconds since the last update.", of=_SERVER),
    "value": Metric("The metric at the last evaluation: on the validation rows, if there are any.", of=_SERVER),
    "damaged_files": Metric("Damaged files that the process found at its start, and did without."),
    "journal_bytes": Metric("Size of the journal in use."),
    "checkpoint_age_s": Metric("Seconds since the last checkpoint, or since the start."),
    "certificate_days": Metric("Days until a member's certificate, or the authority's, expires.", ("member",)),
    "open_descriptors": Metric("Descriptors in use: files and connections."),
    "descriptor_limit": Metric("Descriptors that the process may have."),
    "resident_bytes": Metric("Memory in use (Linux)."),
    "epsilon": Metric("ε that the party has spent, at the δ of its budget or of [privacy].", of=_PARTY),
    "epsilon_budget": Metric("The ε of the party's budget.", of=_PARTY),
    "connected": Metric("1 if the party is connected to the server.", of=_PARTY),
    "peer_queued_bytes": Metric("Bytes of messages that wait for the peer's acknowledgement.", ("peer",), of=_PARTY),
    "refused": Metric("Refusals, by cause.", ("limit",), counter=True),
    "party_connected": Metric("1 if the party is connected.", ("party",), of=_SERVER),
    "party_steps_per_s": Metric("Recent uploads per second.", ("party",), of=_SERVER),
    "party_staleness": Metric("Mean staleness of its embeddings at the last evaluation.", ("party",), of=_SERVER),
    "party_bytes_up": Metric("Bytes of its messages to the server.", ("party",), of=_SERVER),
    "party_bytes_down": Metric("Bytes of the server's messages to it.", ("party",), of=_SERVER),
    "party_bytes_eval": Metric("Bytes of evaluation, both ways.", ("party",), of=_SERVER),
    "party_queued_bytes": Metric("Bytes of messages that wait for its acknowledgement.", ("party",), of=_SERVER),
    "party_last_seen_s": Metric("Seconds since the party's last message.", ("party",), of=_SERVER),
    "party_remarks": Metric("Remarks of the method on the party, e.g. on wrong answers.", ("party",), of=_SERVER),
    "party_owes": Metric("1 if the party owes this; numbers in the words are N.", ("party", "what"), of=_SERVER),
    "party_owed_s": Metric("Seconds for which it has owed the run the same thing.", ("party",), of=_SERVER),
    "party_refused": Metric("Its messages that were refused since the server started.", ("party",), of=_SERVER),
    "party_epsilon": Metric("ε that it has spent, once it has told: at the end of a run.", ("party",), of=_SERVER),
    "predict_requests": Metric("Admitted requests.", ("caller",), counter=True, of=_SERVER),
    "predict_rows": Metric("Ids asked for.", ("caller",), counter=True, of=_SERVER),
    "predict_refused": Metric('Refused requests; without a token: caller "".', ("caller", "why"), True, of=_SERVER),
    "predict_declined": Metric("Questions that a party declined.", ("party",), counter=True, of=_SERVER),
}

Sample = tuple[str, tuple[str, ...], float]


def samples(found: dict[str, Any]) -> Iterator[Sample]:
    """The numbers in a status; a number that is missing or None is left out."""
    if "release" in found:
        yield "info", (found["release"], found["aim"]), 1
    for name, metric in METRICS.items():
        if not metric.labels and found.get(name) is not None:
            yield name, (), found[name]
    for member, days in found.get("certificate_days", {}).items():
        yield "certificate_days", (member,), days
    for cause, count in found.get("refused_by_limit", {}).items():
        yield "refused", (cause,), count
    for peer, count in found.get("queued_bytes", {}).items():
        yield "peer_queued_bytes", (peer,), count
    for party in found.get("parties", ()):
        yield from _of_party(party)
    for caller in found.get("callers", ()):
        yield "predict_requests", (caller["name"],), caller["requests"]
        yield "predict_rows", (caller["name"],), caller["rows"]
        for why, count in caller["refused"].items():
            yield "predict_refused", (caller["name"], why), count
    for party, count in found.get("declined", {}).items():
        yield "predict_declined", (party,), count


def _of_party(party: dict[str, Any]) -> Iterator[Sample]:
    who = (party["name"],)
    yield "party_connected", who, float(party["state"] == "connected")
    for name, metric in METRICS.items():
        value = party.get(name.removeprefix("party_"))
        if name.startswith("party_") and metric.labels == ("party",) and isinstance(value, int | float):
            yield name, who, value
    if party.get("owes"):
        yield "party_owes", (party["name"], re.sub(r"\d[\d.,]*", "N", party["owes"])), 1


class _Collector:
    """Makes the samples on each request."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """Yield one family for each metric that has a sample now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, labels, value in samples(self._status()):
            metric = METRICS[name]
            if name not in families:
                kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
                families[name] = kind(f"colonnade_{name}", metric.words, labels=metric.labels)
            families[name].add_metric(labels, float(value))
        yield from (families[name] for name in METRICS if name in families)


def serve_metrics(
    port: int, status: Callable[[], dict[str, Any]], unready: Callable[[], list[str]] = list
) -> Callable[[], None]:
    """Serve on loopback; returns the function that stops it. Raises ConfigError if the port is taken.

    Both functions are called on another thread, and raise TimeoutError if the event loop does not answer.
    """
    require_extra("serve", "network.metrics_port", "prometheus_client")
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    try:
        server = _Server(("127.0.0.1", port), registry, unready)
    except OSError as error:
        raise ConfigError(
            "network.metrics_port", port, f"cannot listen there: {error.strerror}; choose another port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=2)

    return stop


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: Any, unready: Callable[[], list[str]]) -> None:
        self.registry, self.unready = registry, unready
        self._slots = threading.Semaphore(MAX_REQUESTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, or hang up if too many requests are under way."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the caller has gone."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer one of the three pages."""
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                self._metrics()
            elif path == "/healthz":
                self.server.unready()  # whatever it says: the event loop has answered
                self._send(200, "ok\n")
            elif path == "/readyz":
                causes = self.server.unready()
                self._send(503 if causes else 200, "".join(f"{cause}\n" for cause in causes) or "ok\n")
            else:
                self._send(404, "there are /metrics, /healthz and /readyz\n")
        except TimeoutError:
            self._send(503, "the event loop does not answer\n")

    def _metrics(self) -> None:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        self._send(200, encode(self.server.registry), kind)

    def _send(self, code: int, content: str | bytes, kind: str = "text/plain; charset=utf-8") -> None:
        data = content.encode() if isinstance(content, str) else content
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
