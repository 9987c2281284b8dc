"""The live page: its files, and a cache of its content."""

import threading
import time
from collections.abc import Callable
from typing import Any

from plotly.offline import get_plotlyjs

from colonnade.dashboard.content import content
from colonnade.dashboard.door import Answer, Door
from colonnade.dashboard.figures import Figures
from colonnade.dashboard.source import Source
from colonnade.report.plain import asset

__all__ = ["open_door"]

FRESH_S = 0.5  # several open pages share one content
HERE = "colonnade.dashboard"


def open_door(source: Source, port: int = 0) -> Door:
    """Serve the page of this source on loopback."""
    return Door(port, _files(), _cached(source))


def _files() -> dict[str, Answer]:
    script, style = "text/javascript", "text/css"
    return {
        "/": Answer("text/html", asset("watch.html", HERE).encode()),
        "/watch.css": Answer(style, (asset("page.css") + asset("watch.css", HERE)).encode()),
        "/watch.js": Answer(script, (asset("charts.js") + asset("watch.js", HERE)).encode()),
        "/plotly.js": Answer(script, get_plotlyjs().encode()),
    }


def _cached(source: Source) -> Callable[[], dict[str, Any]]:
    lock, figures, made_at, made = threading.Lock(), Figures(), 0.0, dict[str, Any]()

    def latest() -> dict[str, Any]:
        nonlocal made_at, made
        with lock:
            if time.monotonic() - made_at > FRESH_S:
                made = _made(source, figures)
                made_at = time.monotonic()
            return made

    return latest


def _made(source: Source, figures: Figures) -> dict[str, Any]:
    state = source.state()
    try:
        return content(state, figures)
    except (OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        trouble = f"The state of this run has another form ({error!r}): install the release that runs it."
        return {"name": state.name, "trouble": trouble}
