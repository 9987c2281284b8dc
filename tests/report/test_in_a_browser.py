"""The page in a real browser: charts are drawn, the console is empty, a click on a name hides it everywhere."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from colonnade.report.page import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome to open the page")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=60000",
    "--dump-dom",
]

# Clicks when the page is ready and writes what it saw into the document.
PROBE = """<script>
const shown = () => Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => [chart.id,
  chart.data.filter((trace) => trace.legendgroup && trace.visible !== false).map((trace) => trace.legendgroup)]));
const paths = () => document.querySelectorAll("#value-clock_s .scatterlayer .trace .js-line").length;
const waiting = setInterval(async () => {
  if (!document.documentElement.dataset.ready) return;
  clearInterval(waiting);
  const pause = () => new Promise((resolve) => setTimeout(resolve, 500));
  const seen = {before: shown(), paths: [paths()], theme: [document.documentElement.dataset.theme]};
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  const button = document.querySelector("#legend button[value=sync]");
  button.click(); await pause();
  seen.hidden = shown(); seen.paths.push(paths());
  seen.lane = document.querySelector("section[data-label=sync]").hidden;
  button.click(); await pause();
  seen.again = shown(); seen.paths.push(paths());
  document.getElementById("theme").click(); await pause();
  seen.theme.push(document.documentElement.dataset.theme);
  seen.ink = document.getElementById("value-clock_s").layout.font.color;
  seen.upload = document.querySelectorAll('[data-title*="hare"], [data-title*="loud"]').length;
  const note = document.createElement("script");
  note.type = "application/json"; note.id = "seen"; note.textContent = JSON.stringify(seen);
  document.body.append(note);
}, 50);
</script>"""


@pytest.fixture(scope="module")
def opened(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], str]:
    """The document after the clicks, the probe's result, and the browser's log."""
    assert BROWSER is not None
    path = tmp_path_factory.mktemp("browser")
    page = write_report(folders / "race").read_text(encoding="utf-8")
    (path / "page.html").write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={path / 'profile'}", f"file://{path / 'page.html'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r'id="seen">(.*?)</script>', ended.stdout, re.DOTALL)
    assert found is not None, ended.stderr[-3000:]
    return ended.stdout, json.loads(found[1]), ended.stderr


def test_every_chart_is_drawn(opened: tuple[str, dict[str, Any], str]) -> None:
    document, seen, _ = opened
    assert len(seen["before"]) == 13
    assert document.count("js-plotly-plot") >= 13
    assert document.count('class="main-svg"') >= 13
    assert seen["paths"][0] >= 2
    assert seen["overflow"] <= 0, "nothing sticks out to the right"


def test_the_console_is_silent(opened: tuple[str, dict[str, Any], str]) -> None:
    log = opened[2]
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]


def test_a_click_hides_a_label_in_every_chart(opened: tuple[str, dict[str, Any], str]) -> None:
    seen = opened[1]
    with_lines = [chart for chart, labels in seen["before"].items() if "sync" in labels]
    assert len(with_lines) == 8, "six curves, time to target, utilisation"
    assert all("sync" not in labels for labels in seen["hidden"].values())
    assert all("ahead<1>" in seen["hidden"][chart] for chart in with_lines)
    assert seen["lane"] is True
    assert seen["paths"][1] < seen["paths"][0] == seen["paths"][2], "its paths are gone from the drawing, then back"
    assert seen["again"] == seen["before"]


def test_the_theme_can_be_changed(opened: tuple[str, dict[str, Any], str]) -> None:
    seen = opened[1]
    assert seen["theme"] == ["light", "dark"]
    assert seen["ink"] == "#e6e9ee"


def test_no_button_uploads_a_chart(opened: tuple[str, dict[str, Any], str]) -> None:
    assert opened[1]["upload"] == 0
