"""The page of recorded episodes in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser.conftest import Page
from selenium.webdriver.common.keys import Keys

from coterie.playing.episode_recording import Recorder, encode

Open = Callable[..., Page]


def record(path: Path, lengths: list[int], shade: int) -> Path:
    """Records episodes of the given lengths; timestep k of the file has an image of color (shade, k, episode)."""
    agent = {"name": "a", "team": "t", "role": "r", "choices": [2], "choice_names": [["stay", "go"]]}
    header = {"title": f"shade {shade}", "env": "nothing", "seed": 0, "agents": [agent], "width": 40, "height": 30}
    with Recorder(path, header) as recorder:
        k = 0
        for episode, length in enumerate(lengths):
            for t in range(length):
                action = {"action": {"discrete": [t % 2], "continuous": []}} if t else {}
                fields = {"alive": True, "probability": [0.25, 0.75], "total": float(t), "reward": 1.0, "value": 0.5}
                timestep = {
                    "timestep": t,
                    "final": t + 1 == length,
                    "agents": [fields | action],
                    "returns": {"t": float(t)},
                }
                recorder.add(timestep, encode(np.full((30, 40, 3), (shade, k, episode), np.uint8)))
                k += 1
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [str(record(tmp_path / "one.zip", [6, 4], 10)), str(record(tmp_path / "two.zip", [3, 8], 200))]


def shows(page: Page, *index: int) -> None:
    """Waits until the panels show these timesteps of their files."""
    page.until(lambda: [c.get_attribute("data-index") for c in page.all("canvas")] == [str(i) for i in index])


def pixels(page: Page) -> list[list[int]]:
    return [page.pixels(f".panel:nth-child({i + 1}) canvas", [(5, 5)])[0] for i in range(len(page.all(".panel")))]


def scrub(page: Page, timestep: int) -> None:
    script = "const s = document.querySelector('#scrub'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    page.run(script, timestep)


def test_scrubbing_shows_the_selected_timestep(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    assert pixels(shown) == [[10, 0, 0]]
    for t in (4, 1, 5):
        scrub(shown, t)
        shows(shown, t)
        assert pixels(shown) == [[10, t, 0]]
        assert shown.text(".panel .line span").startswith(f"episode 1 · timestep {t}")
    assert shown.text("#where") == "timestep 5 of 5"
    assert "the episode is over" in shown.text(".panel .line")


def test_the_action_taken_at_the_timestep_is_highlighted(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    assert [e.get_attribute("title") for e in shown.all(".choice.action")] == ["go"]  # led to timestep 1
    shown.keys(Keys.ARROW_RIGHT)
    shows(shown, 1)
    assert [e.get_attribute("title") for e in shown.all(".choice.action")] == ["stay"]
    assert [e.text for e in shown.all(".choice .probability")] == ["25.0%", "75.0%"]
    scrub(shown, 5)
    shows(shown, 5)
    assert shown.all(".choice.action") == []


def test_two_recordings_are_synchronized_and_the_shorter_one_waits(page: Open, files: list[str]):
    shown = page("view", *files)
    shows(shown, 0, 0)
    assert pixels(shown) == [[10, 0, 0], [200, 0, 0]]
    for t, both in ((1, (1, 1)), (2, (2, 2)), (3, (3, 2)), (4, (4, 2))):
        shown.keys(Keys.ARROW_RIGHT)
        shows(shown, *both)
        assert pixels(shown) == [[10, both[0], 0], [200, both[1], 0]]
        assert shown.text("#where") == f"timestep {t} of 5"
    shown.keys(Keys.PAGE_DOWN)  # both start their second episode
    shows(shown, 6, 3)
    assert pixels(shown) == [[10, 6, 1], [200, 3, 1]]
    scrub(shown, 7)
    shows(shown, 9, 10)
    shown.keys(Keys.ARROW_LEFT)
    shows(shown, 9, 9)
    shown.keys(Keys.HOME)
    shows(shown, 6, 3)
    shown.keys(Keys.ARROW_LEFT)
    shows(shown, 5, 2)


def test_all_panels_change_at_the_same_time(page: Open, files: list[str]):
    shown = page("view", *files)
    shows(shown, 0, 0)
    shown.run(
        "window.pairs = new Set();"
        "const both = () => [...document.querySelectorAll('canvas')].map((c) => c.dataset.index).join();"
        "new MutationObserver(() => window.pairs.add(both()))"
        ".observe(document.body, {attributes: true, subtree: true, attributeFilter: ['data-index']})"
    )
    shown.run("const s = document.querySelector('#speed'); s.value = 5.9; s.dispatchEvent(new Event('input'))")
    shown.keys(Keys.SPACE)
    shows(shown, 9, 10)  # to the end, through both episodes
    shown.until(lambda: shown.text("#pause span") == "Play")
    expected = {f"{min(t, 5)},{min(t, 2)}" for t in range(1, 6)} | {
        f"{6 + min(t, 3)},{3 + min(t, 7)}" for t in range(8)
    }
    assert set(shown.run("return [...window.pairs]")) <= expected | {"0,0"}
    shown.keys(Keys.SPACE)  # and again from the start
    shows(shown, 9, 10)


def test_links_select_an_episode_and_a_timestep(page: Open, files: list[str]):
    shown = page("view", *files)
    shows(shown, 0, 0)
    shown.browser.get("about:blank")
    shown.browser.get(f"{shown.url}#episode=2&timestep=2")
    shows(shown, 8, 5)
    assert shown.find("#episode").get_attribute("value") == "1"
    assert shown.text("#where") == "timestep 2 of 7"


def test_the_curve_of_returns_has_a_cursor(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    points = shown.find(".curve polyline").get_attribute("points").split()
    assert [float(p.split(",")[0]) for p in points] == [0, 20, 40, 60, 80, 100]
    heights = [float(p.split(",")[1]) for p in points]
    assert heights == sorted(heights, reverse=True)
    scrub(shown, 3)
    shows(shown, 3)
    assert shown.find(".curve .cursor").get_attribute("x1") == "60"


def test_curves_have_numbers_and_one_scale_for_all_episodes_and_files(page: Open, files: list[str]):
    def axes() -> list[str]:
        return [span.text for span in shown.all(".axes .values span")]

    shown = page("view", *files)
    shows(shown, 0, 0)
    found = axes()
    assert len(found) == 2 * len(files)
    assert found == found[:2] * len(files)
    assert float(found[0]) > float(found[1]) >= 0 or float(found[0]) >= 0 > float(found[1])
    shown.browser.get("about:blank")
    shown.browser.get(f"{shown.url}#episode=2&timestep=2")
    shows(shown, 8, 5)
    assert axes() == found
    assert [span.text for span in shown.all(".axes .times span")][::2][:1] == ["0"]


def test_a_team_has_one_color_in_legend_curve_and_cards(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    color = "return getComputedStyle(arguments[0])[arguments[1]]"
    legend = {
        element.text.split()[0]: shown.run(color, element.find_element("css selector", ".swatch"), "backgroundColor")
        for element in shown.all(".line .team")
    }
    assert len(set(legend.values())) == len(legend) > 0
    for line in shown.all(".curve polyline"):
        assert shown.run(color, line, "stroke") == legend[line.get_attribute("data-team")]
    for badge in shown.all(".card .badge:has(.swatch)"):
        swatch = badge.find_element("css selector", ".swatch")
        assert shown.run(color, swatch, "backgroundColor") == legend[badge.text]
