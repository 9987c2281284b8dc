"""The live page in a real browser: a party is killed with SIGKILL and comes back (`make watch-check`)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make watch-check installs it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(sys.platform == "win32", reason="one command starts all roles on Linux and macOS only"),
]

PATIENCE_S = 180.0
CONFIG = """
[data]
source = "digits"
parties = 3
[protocol]
name = "vafl"
[model]
party = "linear"
embedding = 8
[train]
seconds = 600.0
eval_every = "1s"
[privacy]
mechanism = "output"
clip = 1.0
noise = 300.0
[party.budgets.party-1]
epsilon = 40.0
delta = 1e-5
[network]
heartbeat_s = 1.0
lost_after_s = 3.0
"""
KILLED = "party-2"
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """() => [...document.querySelectorAll(".chart")].some(
  (chart) => chart.scrollWidth > chart.parentElement.clientWidth)"""
# Of the timeline's hidden rows, which carry the numbers: whether the role was busy in any bin.
WAS_BUSY = """(role) => {
  const chart = document.getElementById("timeline");
  const place = chart.layout.yaxis.ticktext.indexOf(role);
  const rows = chart.data.filter((trace) => trace.customdata);
  return rows[place].customdata[0].some((shares) => shares[0] > 0);
}"""


def colonnade(folder: Path, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "colonnade", *arguments]
    # In a session of its own: the system may send SIGHUP to a stopped process when others of its session end.
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **more)


def until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, f"waited in vain for {what}"
        time.sleep(0.1)


def seen(page: Any, condition: str, of: str) -> None:
    """Wait for a condition. The page's policy forbids what playwright's own waiting does."""
    ends = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition, of):
        assert time.monotonic() < ends, f"waited in vain for {condition} of {of}"
        page.wait_for_timeout(200)


def pid_of(folder: Path, party: str) -> int:
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = found.read_text().split("\0")
        except OSError:
            continue
        if str(folder / "nodes" / party / "run") in words:
            return int(found.parent.name)
    raise AssertionError(f"{party} does not run")


@pytest.fixture
def run(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    (tmp_path / "config.toml").write_text(CONFIG)
    out = str(tmp_path / "run")
    with (tmp_path / "said").open("w") as said:
        process = colonnade(
            tmp_path, "run", "config.toml", "--driver", "processes", "--out", out, stdout=said, stderr=said
        )
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def address(tmp_path: Path, run: "subprocess.Popen[str]") -> Iterator[str]:
    live = tmp_path / "run" / "nodes" / "server" / "run" / "live.json"
    until(lambda: live.is_file() or run.poll() is not None, "live.json")
    assert run.poll() is None, (tmp_path / "said").read_text()
    process = colonnade(tmp_path, "watch", str(tmp_path / "run"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Open http://127.0.0.1:"), line
    yield line.split()[1]
    process.terminate()
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and rest.endswith("The page is closed.\n"), rest


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        # The sandbox does not start for root in a container. The page is our own.
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        opened.set_default_timeout(1000 * PATIENCE_S)
        opened.faults = []
        opened.on("console", lambda message: opened.faults.append(message.text))
        opened.on("pageerror", lambda error: opened.faults.append(str(error)))
        opened.on("request", lambda request: opened.faults.extend([] if "127.0.0.1" in request.url else [request.url]))
        opened.goto(address)
        opened.wait_for_selector("html[data-ready]")
        yield opened
        browser.close()


def test_a_party_is_killed_and_comes_back_while_the_page_is_open(page: Any, run: Any, tmp_path: Path) -> None:
    assert "token" not in page.url
    for party in ("party-1", "party-2", "party-3"):
        page.wait_for_selector(f"#parties li[data-name={party}][data-tone=good]")
        seen(page, WAS_BUSY, party)
    page.wait_for_selector("#privacy .bars path", state="attached")
    assert " of 40" in page.inner_text("#parties li[data-name=party-1]")

    os.kill(run.pid, signal.SIGSTOP)  # it would start the party again at once
    os.kill(pid_of(tmp_path / "run", KILLED), signal.SIGKILL)
    row = f"#parties li[data-name={KILLED}]"
    page.wait_for_selector(f"{row}[data-tone=bad]")
    assert "away" in page.inner_text(row) or "lost" in page.inner_text(row)
    page.wait_for_selector("#events li[data-kind=lost]")
    assert page.inner_text("#events li[data-kind=lost] b") == KILLED
    assert page.inner_text("#events li[data-kind=away] b") == KILLED
    others = [page.get_attribute(f"#parties li[data-name={name}]", "data-tone") for name in ("party-1", "party-3")]
    assert others == ["good", "good"]

    os.kill(run.pid, signal.SIGCONT)
    page.wait_for_selector(f"{row}[data-tone=good]")
    page.wait_for_selector("#events li[data-kind=back]")
    assert page.inner_text("#events li[data-kind=back] b") == KILLED

    updates = "#tiles div:nth-child(3) b"
    before = page.inner_text(updates)
    seen(page, f"(before) => document.querySelector('{updates}').textContent !== before", before)

    os.kill(run.pid, signal.SIGTERM)
    run.wait(PATIENCE_S)
    page.wait_for_selector("#state[data-tone=warn]")
    assert page.inner_text("#state") == "stopped"
    assert page.faults == []


def test_a_finished_run_on_a_desk_and_on_a_phone_light_and_dark(finished: Path, tmp_path: Path) -> None:
    process = colonnade(tmp_path, "watch", str(finished), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        with playwright.sync_playwright() as play:
            browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            for width in (1200, 400):
                for scheme, ink in (("light", "#1d2129"), ("dark", "#e6e9ee")):
                    _look(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), address, ink)
            browser.close()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _look(page: Any, address: str, ink: str) -> None:
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(address)
    page.wait_for_selector("html[data-ready]", timeout=1000 * PATIENCE_S)
    assert page.inner_text("#state") == "finished" and page.evaluate(TOO_WIDE) <= 0
    charts = page.evaluate("() => [...document.querySelectorAll('.chart')].map((chart) => [chart.id, !!chart.data])")
    assert dict(charts) == {name: name != "privacy" for name, _ in charts} and len(charts) == 8
    assert page.evaluate("() => document.getElementById('metric').layout.font.color") == ink
    assert not page.evaluate(OUTSIDE), "every chart fits its card"
    page.click("#routine")
    assert page.query_selector("#events li[data-kind=evaluation]") is not None
    assert faults == []
    page.close()
