"""The built site in a real browser: search, equations, widths, the sidebar, and no request to a network."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from places import ROOT


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built where only the extra `docs` is installed."""
    out = tmp_path_factory.mktemp("site") / "html"
    builder = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html", "docs", str(out)]
    command = [sys.executable, "tests/helpers/only_extras.py", "docs", *builder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return out


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(pages: Path) -> Iterator[str]:
    """Address of the site on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(pages)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def resize(browser: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def browser(chromium: webdriver.Chrome, site: str) -> Iterator[webdriver.Chrome]:
    """The browser; afterwards, nothing of the last page may come from elsewhere."""
    resize(chromium, 1280)
    yield chromium
    loaded = chromium.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.get("about:blank")
    assert [name for name in loaded if not name.startswith((site, "data:"))] == []


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("learning rate", "how-to/configure-a-run.html#settings-that-are-changed-most-often"),
        ("own environment", "tutorials/own-environment.html"),
        ("plot", "how-to/watch-and-plot.html#plot-metrics"),
        ("jupyter", "tutorials/notebook-first-run.html"),
        ("quiet", "how-to/configure-a-run.html#quiet-runs"),
        ("QMIX", "algorithms/qlearning.html"),
    ],
)
def test_the_first_hit_of_the_search_is_the_page_that_answers(
    browser: webdriver.Chrome, site: str, query: str, page: str
) -> None:
    browser.get(f"{site}/search.html?q={query.replace(' ', '+')}")
    first = "const hit = document.querySelector('#search-results li > a'); return hit && hit.getAttribute('href')"
    found = WebDriverWait(browser, 30, 0.05).until(lambda _: browser.execute_script(first))
    assert found == page


@pytest.mark.parametrize(
    "name",
    [
        *("ppo", "happo", "poca", "mat", "sable", "coma", "qlearning", "pqn", "vdac", "seac", "pac", "ddpg", "sac"),
        *("hasac", "magpo"),
    ],
)
def test_equations_are_typeset(browser: webdriver.Chrome, site: str, name: str) -> None:
    browser.get(f"{site}/algorithms/{name}.html")
    equations = browser.execute_script(
        "return [...document.querySelectorAll('.equation')]"
        ".map((equation) => [...equation.querySelectorAll('math mtr')]"
        ".map((row) => [...row.children].map((cell) => cell.getBoundingClientRect().right)))"
    )
    assert any(len(rows) >= 2 for rows in equations)
    for rows in equations:
        assert all(left < right for left, right in rows)
        assert len({left for left, _ in rows}) <= 1  # aligned at the equals signs
    assert "\\" not in browser.execute_script("return [...document.querySelectorAll('math')].map((m) => m.textContent)")


def test_no_page_is_wider_than_a_phone(browser: webdriver.Chrome, site: str, pages: Path) -> None:
    resize(browser, 390)
    wide = {}
    for page in sorted(pages.rglob("*.html")):
        name = page.relative_to(pages).as_posix()
        browser.get(f"{site}/{name}")
        browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
        shown, width = browser.execute_script(
            "const {scrollWidth, clientWidth} = document.documentElement; return [scrollWidth, clientWidth]"
        )
        if shown > width:
            wide[name] = shown
    assert wide == {}


def test_the_sidebar_is_folded_and_opens_at_the_page(browser: webdriver.Chrome, site: str) -> None:
    visible = (
        "return [...document.querySelectorAll('.sidebar-tree a.reference')]"
        ".filter((link) => link.checkVisibility()).map((link) => link.textContent)"
    )
    browser.get(f"{site}/index.html")
    folded = browser.execute_script(visible)
    assert 10 <= len(folded) <= 20
    assert "Compare runs" not in folded
    browser.get(f"{site}/how-to/compare-runs.html")
    opened = browser.execute_script(visible)
    assert "Compare runs" in opened
    assert "COMA" not in opened


def test_the_first_page_shows_moving_pictures_and_three_cards(browser: webdriver.Chrome, site: str) -> None:
    browser.get(f"{site}/index.html")
    shown = (
        "return [...document.querySelectorAll('.gallery img')].map((one) => [one.src, one.complete, one.naturalWidth])"
    )
    pictures = browser.execute_script(shown)
    assert len(pictures) == 4
    assert all(src.endswith(".gif") and complete and width > 200 for src, complete, width in pictures)
    assert browser.execute_script("return document.querySelectorAll('.card').length") == 3
