"""Make the pictures of docs/watch.md: a federation that runs, one party away, the end, dark, and on a phone.

    python docs/tools/watch_pictures.py [FOLDER]

Starts a federation of processes and its page, opens the page in a headless browser, kills a party with SIGKILL and
lets it come back. Takes about two minutes.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

CONFIG = """
[data]
source = "digits"
parties = 4
[protocol]
name = "vafl"
[model]
party = "mlp:64"
[train]
seconds = 150.0
eval_every = "1s"
batch_size = 256
target = 0.95
[network]
lost_after_s = 60.0
"""
KILLED = "party-3"
PATIENCE_MS = 180_000
COMMAND = [sys.executable, "-m", "colonnade"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


def main() -> None:
    """Write all pictures into the folder."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        home = Path(folder)
        (home / "credit.toml").write_text(CONFIG, encoding="utf-8")
        run = subprocess.Popen(
            [*COMMAND, "run", "credit.toml", "--driver", "processes", "--out", "runs/credit"],
            cwd=home, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # the system may send SIGHUP to a stopped process when others of its session end
        )  # fmt: skip
        page_of = None
        try:
            while not (home / "runs/credit/nodes/server/run/live.json").is_file():
                time.sleep(0.1)
            page_of = subprocess.Popen(
                [*COMMAND, "watch", "runs/credit"], cwd=home, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
            )
            assert page_of.stdout is not None
            address = page_of.stdout.readline().split()[1]
            # The sandbox does not start for root in a container. The page is our own.
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            take_all(browser, address, run, home / "runs/credit", out)
            browser.close()
        finally:
            for process in (page_of, run):
                if process is not None and process.poll() is None:
                    process.terminate()
                    process.wait(60)


def take_all(browser: Browser, address: str, run: subprocess.Popen[bytes], folder: Path, out: Path) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 1180}, color_scheme="light")
    page.goto(address)
    page.wait_for_selector("html[data-ready]", timeout=PATIENCE_MS)
    while int(page.inner_text("#done").rstrip("%")) < 35:  # the page's policy forbids the browser to evaluate texts
        page.wait_for_timeout(500)
    take(page, out / "watch-running.png")
    os.kill(run.pid, signal.SIGSTOP)  # it would start the party again at once
    try:
        os.kill(pid_of(folder), signal.SIGKILL)
        page.wait_for_selector(f"#parties li[data-name={KILLED}][data-tone=bad]", timeout=PATIENCE_MS)
        page.wait_for_timeout(6000)
        take(page, out / "watch-away.png")
    finally:
        os.kill(run.pid, signal.SIGCONT)
    page.wait_for_selector(f"#parties li[data-name={KILLED}][data-tone=good]", timeout=PATIENCE_MS)
    page.wait_for_selector("#state[data-tone=calm]", timeout=PATIENCE_MS)
    take(page, out / "watch-finished.png")
    page.emulate_media(color_scheme="dark")
    take(page, out / "watch-dark.png")
    page.set_viewport_size({"width": 400, "height": 1180})
    page.emulate_media(color_scheme="light")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    take(page, out / "watch-phone.png")


def take(page: Page, path: Path) -> None:
    page.wait_for_timeout(1500)  # charts and bars have come to rest
    page.screenshot(path=path)
    print(path)


def pid_of(folder: Path) -> int:
    """The process of the party, found by its arguments."""
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = found.read_text().split("\0")
        except OSError:
            continue
        if KILLED in words and any(word.endswith(f"{folder.name}/nodes/{KILLED}/run") for word in words):
            return int(found.parent.name)
    raise SystemExit(f"{KILLED} does not run")


if __name__ == "__main__":
    main()
