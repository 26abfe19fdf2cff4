"""Reports in a real browser: charts, legend, tables, widths and colors, without any request to a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.report_runs import write_run, write_runs
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from coterie.commands.compare import compare_runs
from coterie.envs.video import write_video
from coterie.reports.page import ReportContent, page, write_page
from coterie.reports.page_media import Video

HOSTILE = "</script><b>x" + "a_very_long_name_of_an_algorithm" * 3
CHART = "figure[data-chart=task0] svg.chart"


class Shown:
    """A report that the browser shows."""

    def __init__(self, browser: webdriver.Chrome, path: Path):
        self.browser = browser
        browser.get_log("browser")
        browser.get(path.as_uri())
        assert self.run("return document.documentElement.dataset.ready") == "true"

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def find(self, css: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        return [found.text for found in self.browser.find_elements(By.CSS_SELECTOR, css)]

    def ticks(self, chart: str = CHART) -> list[str]:
        """Labels of the horizontal axis."""
        return self.texts(f"{chart} .grid text[text-anchor=middle]:not(.title)")

    def at(self, share: float, height: float = 0.5) -> tuple[WebElement, int, int]:
        """Returns the chart, and the offset from its center to a place: shares of its width and height."""
        svg = self.find(CHART)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)
        return svg, round((share - 0.5) * svg.size["width"]), round((height - 0.5) * svg.size["height"])

    def drag(self, start: float, end: float) -> None:
        svg, x, y = self.at(start)
        actions = ActionChains(self.browser, duration=0).move_to_element_with_offset(svg, x, y).click_and_hold()
        actions.move_by_offset(round((end - start) * svg.size["width"]), 4).release().perform()

    def use(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Sets the size of the page and the preferred colors. Nothing moves, so that clicks meet their aims."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = write_runs(folder / "runs")
    write_run(runs / "z-hostile", algo=HOSTILE, env="matrix/penalty")
    content = ReportContent(compare_runs([runs]).comparison, videos=[video(folder)])
    write_page(folder / "report.html", page(content))
    return folder / "report.html"


def video(folder: Path) -> Video:
    """Returns a video of 20 red images at 10 images per second."""
    file = write_video(folder / "red.mp4", [np.full((64, 96, 3), (220, 20, 20), np.uint8)] * 20)
    return Video("matrix/climbing", "vdn", "runs/x", "best", 16.0, 9, 1.0, file.read_bytes())


@pytest.fixture
def shown(chromium: webdriver.Chrome, report_file: Path) -> Iterator[Shown]:
    opened = Shown(chromium, report_file)
    opened.use()
    yield opened
    requests = opened.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    errors = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get("about:blank")
    assert errors == []
    assert [name for name in requests if not name.startswith(("blob:", "data:"))] == []


def test_hovering_shows_the_values_of_all_algorithms(shown: Shown) -> None:
    svg, x, y = shown.at(0.98)
    ActionChains(shown.browser, duration=0).move_to_element_with_offset(svg, x - 8, y).perform()
    assert shown.find(f"{CHART} .cursor")
    rows = shown.texts("figure[data-chart=task0] .tip tr")
    assert [row.split()[0] for row in rows] == ["vdn", "ippo"]  # the best first
    assert "[" in rows[0]
    assert "steps" in shown.find("figure[data-chart=task0] .tip .at").text
    ActionChains(shown.browser, duration=0).move_to_element(shown.find("h1")).perform()
    assert not shown.find("figure[data-chart=task0] .tip").is_displayed()


def test_dragging_zooms_and_a_double_click_resets(shown: Shown) -> None:
    before = shown.ticks()
    assert before[0] == "0"
    assert before[-1] in ("1,500", "2,000")
    shown.drag(0.5, 0.75)
    assert shown.find(CHART).get_attribute("data-zoomed") == "true"
    zoomed = [float(text.replace(",", "")) for text in shown.ticks()]
    assert 700 < zoomed[0] < zoomed[-1] < 1700
    assert shown.find("figure[data-chart=task1] svg.chart").get_attribute("data-zoomed") == "false"
    svg, x, y = shown.at(0.5)
    ActionChains(shown.browser, duration=0).move_to_element_with_offset(svg, x, y).double_click().perform()
    assert shown.ticks() == before
    shown.drag(0.5, 0.75)
    shown.find("figure[data-chart=task0] .reset").click()
    assert shown.ticks() == before


def test_zooming_ends_where_numbers_cannot_tell_places_apart(shown: Shown) -> None:
    svg = shown.find(CHART)
    svg.send_keys("+" * 80)
    assert svg.get_attribute("data-zoomed") == "true"
    assert shown.ticks()
    svg.send_keys(Keys.ESCAPE)
    assert svg.get_attribute("data-zoomed") == "false"


def test_the_legend_hides_an_algorithm_in_all_charts(shown: Shown) -> None:
    def lines() -> list[str]:
        return shown.run("return [...document.querySelectorAll('path.mean')].map((line) => line.dataset.group)")

    before = lines()
    chip = next(c for c in shown.browser.find_elements(By.CSS_SELECTOR, ".chip") if c.text == "vdn")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert lines() == [name for name in before if name != "vdn"]
    chip.click()
    assert lines() == before


def test_an_algorithm_has_one_color_everywhere(shown: Shown) -> None:
    for algo in ("ippo", "vdn"):
        colors = shown.run(
            "const own = (all) => [...all].filter((one) => one.textContent === arguments[0]);"
            "const color = (one) => getComputedStyle(one.firstChild).backgroundColor;"
            "return [...own(document.querySelectorAll('.algo')).map(color),"
            "...[...document.querySelectorAll('path.mean')].filter((line) => line.dataset.group === arguments[0])"
            ".map((line) => getComputedStyle(line).stroke)]",
            algo,
        )
        assert len(colors) > 8
        assert len(set(colors)) == 1


def test_the_axis_changes_to_seconds_and_single_seeds_appear(shown: Shown) -> None:
    assert shown.find(f"{CHART} text.title").text == "environment steps"
    shown.find("input[name=axis][value=seconds]").click()
    assert shown.find(f"{CHART} text.title").text == "wall time (seconds)"
    assert not shown.browser.find_elements(By.CSS_SELECTOR, "path.seed")
    shown.find("input[name=seeds]").click()
    assert len(shown.browser.find_elements(By.CSS_SELECTOR, f"{CHART} path.seed")) == 6


def test_the_keyboard_moves_the_cursor_and_zooms(shown: Shown) -> None:
    svg = shown.find(CHART)
    svg.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    spoken = shown.find("figure[data-chart=task0] output").get_attribute("textContent")
    assert spoken is not None
    assert spoken.startswith("500 steps")
    assert "vdn" in spoken
    svg.send_keys("+")
    assert svg.get_attribute("data-zoomed") == "true"
    svg.send_keys(Keys.ESCAPE)
    assert svg.get_attribute("data-zoomed") == "false"


def test_tables_sort_by_value(shown: Shown) -> None:
    final = next(b for b in shown.browser.find_elements(By.CSS_SELECTOR, ".runs .sort") if b.text.startswith("Final"))
    for direction in (1, -1):
        shown.run("arguments[0].click()", final)
        script = (
            "return [...document.querySelectorAll('.runs tbody tr')].map((row) => Number(row.cells[6].dataset.value))"
        )
        values = shown.run(script)
        assert values == sorted(values, reverse=direction < 0)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(shown: Shown, width: int) -> None:
    shown.use(width=width, height=740)
    shown.run("for (const part of document.querySelectorAll('details')) part.open = true")
    wide = shown.run("const {scrollWidth, clientWidth} = document.documentElement; return [scrollWidth, clientWidth]")
    assert wide[0] <= wide[1] <= width
    assert (
        shown.run("return Math.max(...[...document.querySelectorAll('svg.chart')].map((c) => c.clientWidth))") <= width
    )


def test_dark_colors_are_used_where_they_are_preferred(shown: Shown) -> None:
    background = "return getComputedStyle(document.documentElement).backgroundColor"
    light = shown.run(background)
    shown.use(dark=True)
    dark = shown.run(background)
    assert light == "rgb(251, 251, 249)"
    assert dark == "rgb(20, 23, 27)"


def test_names_with_markup_stay_text(shown: Shown) -> None:
    assert HOSTILE in shown.texts(".chip")
    assert not shown.browser.find_elements(By.CSS_SELECTOR, "b")


def test_videos_play_from_the_file(shown: Shown) -> None:
    player = shown.find("video")
    WebDriverWait(shown.browser, 20, 0.05).until(lambda _: shown.run("return arguments[0].readyState", player) >= 2)
    assert shown.run("return [arguments[0].videoWidth, arguments[0].videoHeight]", player) == [96, 64]
    assert shown.run("return arguments[0].duration", player) == pytest.approx(2.0, abs=0.11)
    assert shown.run("return arguments[0].paused", player)  # nothing moves until the reader wants it
    color = shown.run(
        "const copy = document.createElement('canvas').getContext('2d');"
        "copy.drawImage(arguments[0], 0, 0); return [...copy.getImageData(5, 5, 1, 1).data]",
        player,
    )
    assert color[0] > 180
    assert max(color[1:3]) < 60
