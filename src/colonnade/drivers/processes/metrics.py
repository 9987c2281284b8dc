"""Metrics for Prometheus at http://127.0.0.1:PORT/metrics, on loopback only, read from the status on each request."""

from collections.abc import Callable, Iterator
from typing import Any

from colonnade.extras import require_extra
from colonnade.protocol.errors import ConfigError

__all__ = ["serve_metrics"]

_RUN = {
    "updates": "Updates of the global model.",
    "epochs": "Epochs: N·M party-rows each.",
    "clock_s": "Seconds of training.",
    "fraction": "The finished part of the run, from 0 to 1.",
    "waited_s": "Seconds since the last update.",
    "damaged_files": "Damaged files that the server found at its start, and did without.",
    "value": "The metric at the last evaluation: on the validation rows, if there are any.",
}
_PARTY = {
    "steps_per_s": "Recent uploads per second.",
    "staleness": "Mean staleness of its embeddings at the last evaluation.",
    "bytes_up": "Bytes of its messages to the server.",
    "bytes_down": "Bytes of the server's messages to it.",
    "bytes_eval": "Bytes of evaluation, both ways.",
    "last_seen_s": "Seconds since the party's last message.",
    "remarks": "Remarks of the method on the party since the server started, e.g. on wrong answers.",
    "owed_s": "Seconds for which it has owed the run the same thing.",
    "refused": "Its messages that were refused since the server started.",
}


def serve_metrics(port: int, status: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Serve metrics on loopback; returns the function that stops it. Raises ConfigError if the port is taken."""
    require_extra("serve", "network.metrics_port", "prometheus_client")
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise ConfigError(
            "network.metrics_port", port, f"cannot listen there: {error.strerror}; choose another port"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=2)

    return stop


class _Collector:
    """Makes the samples on each request."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """Yield the gauges of the run, then those of each party."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for key, words in _RUN.items():
            gauge = GaugeMetricFamily(f"colonnade_{key}", words)
            if status[key] is not None:
                gauge.add_metric([], status[key])
            yield gauge
        for key, words in _PARTY.items():
            gauge = GaugeMetricFamily(f"colonnade_party_{key}", words, labels=["party"])
            for party in status["parties"]:
                if party[key] is not None:
                    gauge.add_metric([party["name"]], party[key])
            yield gauge
        refused = CounterMetricFamily("colonnade_refused", "Refusals by the kind of limit.", labels=["limit"])
        for limit, count in status["refused_by_limit"].items():
            refused.add_metric([limit], count)
        yield refused
        connected = GaugeMetricFamily("colonnade_party_connected", "Whether the party is connected.", labels=["party"])
        for party in status["parties"]:
            connected.add_metric([party["name"]], float(party["state"] == "connected"))
        yield connected
        days = GaugeMetricFamily("colonnade_certificate_days", "Days until it expires.", labels=["member"])
        for member, left in status["certificate_days"].items():
            days.add_metric([member], left)
        yield days
        if "callers" in status:
            yield from _of_callers(status)


def _of_callers(status: dict[str, Any]) -> Iterator[Any]:
    """Yield the counts of a server that predicts. A refusal without a valid token has the caller ""."""
    from prometheus_client.core import CounterMetricFamily

    requests = CounterMetricFamily("colonnade_predict_requests", "Admitted requests.", labels=["caller"])
    rows = CounterMetricFamily("colonnade_predict_rows", "Ids asked for.", labels=["caller"])
    refused = CounterMetricFamily("colonnade_predict_refused", "Refused, by reason.", labels=["caller", "why"])
    for caller in status["callers"]:
        requests.add_metric([caller["name"]], caller["requests"])
        rows.add_metric([caller["name"]], caller["rows"])
        for why, count in caller["refused"].items():
            refused.add_metric([caller["name"], why], count)
    declined = CounterMetricFamily("colonnade_predict_declined", "Questions that a party declined.", labels=["party"])
    for party, count in status["declined"].items():
        declined.add_metric([party], count)
    yield from (requests, rows, refused, declined)
