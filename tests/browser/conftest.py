"""A headless Chromium that opens the pages served by commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1", "--window-size=1280,900"),
)
TESTS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for option in (*_OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert binary is not None
    assert driver is not None
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


def _accept_ctrl_c() -> None:
    """Restores the default handler: background processes of a shell ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Page:
    """The page of a running `coterie` command."""

    def __init__(self, browser: webdriver.Chrome, command: list[str], folder: Path):
        self.browser = browser
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        program = [sys.executable, "-m", "coterie", *command]
        self.process = subprocess.Popen(
            program, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
            preexec_fn=_accept_ctrl_c,
        )  # fmt: skip
        assert self.process.stderr is not None
        output = ""
        for line in self.process.stderr:
            output += line
            found = re.search(r"http://\S+", line)
            if found:
                self.url = found.group()
                break
        else:
            self.process.stderr.close()
            raise AssertionError(output)
        self.stderr_lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.stderr_lines.extend(self.process.stderr or []), daemon=True)
        self._reader.start()
        browser.get_log("browser")
        browser.get(self.url)

    def find(self, css: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        return self.find(css).text

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits until a condition is true. TimeoutException after 30 seconds."""
        return WebDriverWait(self.browser, 30, 0.02).until(lambda _: condition())

    def keys(self, *keys: str) -> None:
        """Presses and releases keys, one after the other."""
        for key in keys:
            self.find("body").send_keys(key)

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs JavaScript and returns its result."""
        return self.browser.execute_script(script, *arguments)

    def pixels(self, canvas: str, points: list[tuple[int, int]]) -> list[list[int]]:
        """Red, green and blue of points (x, y) of a canvas, read in one moment: the image of a running game changes."""
        script = (
            "const source = document.querySelector(arguments[0]);"
            "const copy = document.createElement('canvas').getContext('2d', {willReadFrequently: true});"
            "[copy.canvas.width, copy.canvas.height] = [source.width, source.height];"
            "copy.drawImage(source, 0, 0);"
            "return arguments[1].map(([x, y]) => [...copy.getImageData(x, y, 1, 1).data].slice(0, 3))"
        )
        return self.run(script, canvas, points)

    def errors(self) -> list[str]:
        """Errors and warnings in the browser console."""
        return [
            entry["message"] for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]

    def end(self) -> int:
        """Presses Ctrl-C and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def page(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens pages of commands; afterwards the console must have no errors, and Ctrl-C must end the command."""
    opened: list[Page] = []

    def open_page(*command: str) -> Page:
        opened.append(Page(chromium, list(command), tmp_path))
        return opened[-1]

    yield open_page
    for one in opened:
        errors = one.errors()
        chromium.get("about:blank")
        assert one.end() == 0, one.stderr_lines
        assert errors == []
        assert not any("Traceback" in line for line in one.stderr_lines)
