"""Open every page of the built site in a headless browser (`make docs-check`).

    python docs/tools/check.py SITE [SCREENSHOTS]

Fails on an error in the browser's console, a request that fails or leaves the site, a dead internal link or anchor, a
page that scrolls sideways at a width of 400 px, and a page that does not follow the system's light or dark setting.
SCREENSHOTS: a folder for pictures of all pages at 400 px, light and dark.
"""

import shutil
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

WIDTH = 400
SCHEMES = {"light": "default", "dark": "slate"}  # the system's setting → the scheme of the theme
_LINKS = "() => [...document.querySelectorAll('a[href], img[src]')].map(link => link.href || link.src)"
_IDS = "() => [...document.querySelectorAll('[id]')].map(part => part.id)"
_TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
_BROKEN_IMAGES = "() => [...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
_LAZY = "() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def check(browser: Browser, site: Path, home: str, pages: list[str], pictures: Path | None) -> list[str]:
    """What is wrong with the pages that `home` serves from the folder `site`, one line each."""
    faults: list[str] = []
    links: dict[str, set[str]] = {}
    ids: dict[str, set[str]] = {}
    for setting, scheme in SCHEMES.items():
        context = browser.new_context(color_scheme=setting, viewport={"width": WIDTH, "height": 800})
        for name in pages:
            page = context.new_page()
            _listen(page, home, f"{name} ({setting})", faults)
            page.goto(home + name, wait_until="load")
            page.evaluate(_LAZY)
            page.wait_for_load_state("networkidle")
            links[name], ids[name] = set(page.evaluate(_LINKS)), set(page.evaluate(_IDS))
            if (shown := page.get_attribute("body", "data-md-color-scheme")) != scheme:
                faults.append(f"{name}: the scheme is {shown!r} where the system asks for {setting}")
            if (more := page.evaluate(_TOO_WIDE)) > 0:
                faults.append(f"{name}: {more} px wider than {WIDTH} px")
            faults += [f"{name}: the picture {image} does not show" for image in page.evaluate(_BROKEN_IMAGES)]
            if pictures is not None:
                page.screenshot(path=pictures / f"{name.replace('/', '-')}-{setting}.png", full_page=True)
            page.close()
        context.close()
    return faults + _dead_links(site, home, links, ids)


def _listen(page: Page, home: str, name: str, faults: list[str]) -> None:
    page.on("console", lambda line: faults.append(f"{name}: {line.text}") if line.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(f"{name}: {error}"))
    page.on("requestfailed", lambda request: faults.append(f"{name}: cannot load {request.url}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((home, "data:", "blob:"))
            else faults.append(f"{name}: asks another site for {request.url}")
        ),
    )


def _dead_links(site: Path, home: str, links: dict[str, set[str]], ids: dict[str, set[str]]) -> list[str]:
    faults = []
    for name, targets in links.items():
        for target in sorted(targets):
            if not target.startswith(home):
                continue
            address, anchor = urldefrag(target)
            path = unquote(urlsplit(address).path).lstrip("/") or "index.html"
            if path in ids:
                if anchor and unquote(anchor) not in ids[path]:
                    faults.append(f"{name}: {path} has no anchor #{anchor}")
            elif not (site / path).is_file():
                faults.append(f"{name}: dead link to {path}")
    return faults


def main() -> int:
    """Serve the folder on loopback and look at all of its pages."""
    site = Path(sys.argv[1])
    pictures = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        # The system's Chromium, or else the one that `playwright install chromium` fetches.
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        # The sandbox does not start for root in a container. All pages are our own.
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        faults = check(browser, site, f"http://127.0.0.1:{server.server_port}/", pages, pictures)
        browser.close()
    good = f"{len(pages)} pages: no console errors, no dead links, none wider than {WIDTH} px"
    print("\n".join(faults) if faults else good)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
