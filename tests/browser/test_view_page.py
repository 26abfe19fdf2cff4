"""The page that shows recorded episodes, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys

from browser.conftest import Page
from coterie.playing.recording import Recorder, encode

Open = Callable[..., Page]


def record(path: Path, lengths: list[int], shade: int) -> Path:
    """Episodes of so many rows; row k of the file is a picture of color (shade, k, episode)."""
    agent = {"name": "a", "team": "t", "role": "r", "choices": [2], "choice_names": [["stay", "go"]]}
    header = {"title": f"shade {shade}", "env": "nothing", "seed": 0, "agents": [agent], "width": 40, "height": 30}
    with Recorder(path, header) as recorder:
        k = 0
        for episode, length in enumerate(lengths):
            for row in range(length):
                did = {"did": {"discrete": [row % 2], "continuous": []}} if row else {}
                told = {"alive": True, "probability": [0.25, 0.75], "total": float(row), "reward": 1.0, "value": 0.5}
                words = {"row": row, "closing": row + 1 == length, "agents": [told | did], "returns": {"t": float(row)}}
                recorder.add(words, encode(np.full((30, 40, 3), (shade, k, episode), np.uint8)))
                k += 1
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [str(record(tmp_path / "one.zip", [6, 4], 10)), str(record(tmp_path / "two.zip", [3, 8], 200))]


def shows(page: Page, *index: int) -> None:
    """Waits until the panels show these rows of their files."""
    page.until(lambda: [c.get_attribute("data-index") for c in page.all("canvas")] == [str(i) for i in index])


def pixels(page: Page) -> list[list[int]]:
    return [page.pixel(f".panel:nth-child({i + 1}) canvas", 5, 5) for i in range(len(page.all(".panel")))]


def scrub(page: Page, row: int) -> None:
    script = "const s = document.querySelector('#scrub'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    page.run(script, row)


def test_scrubbing_shows_that_very_row(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    assert pixels(shown) == [[10, 0, 0]]
    for row in (4, 1, 5):
        scrub(shown, row)
        shows(shown, row)
        assert pixels(shown) == [[10, row, 0]]
        assert shown.text(".panel .line span").startswith(f"episode 1 · row {row}")
    assert shown.text("#where") == "row 5 of 5"
    assert "the episode is over" in shown.text(".panel .line")


def test_what_is_pointed_out_is_what_is_done_in_the_row(page: Open, files: list[str]):
    shown = page("view", files[0])
    shows(shown, 0)
    assert [e.get_attribute("title") for e in shown.all(".choice.did")] == ["go"]  # what led to row 1
    shown.keys(Keys.ARROW_RIGHT)
    shows(shown, 1)
    assert [e.get_attribute("title") for e in shown.all(".choice.did")] == ["stay"]
    assert [e.text for e in shown.all(".choice .share")] == ["25.0%", "75.0%"]
    scrub(shown, 5)
    shows(shown, 5)
    assert shown.all(".choice.did") == []


def test_two_runs_stay_in_step_and_the_shorter_one_waits(page: Open, files: list[str]):
    shown = page("view", *files)
    shows(shown, 0, 0)
    assert pixels(shown) == [[10, 0, 0], [200, 0, 0]]
    for row, both in ((1, (1, 1)), (2, (2, 2)), (3, (3, 2)), (4, (4, 2))):
        shown.keys(Keys.ARROW_RIGHT)
        shows(shown, *both)
        assert pixels(shown) == [[10, both[0], 0], [200, both[1], 0]]
        assert shown.text("#where") == f"row {row} of 5"
    shown.keys(Keys.PAGE_DOWN)  # both begin their second episode
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
        "window.seen = new Set();"
        "const both = () => [...document.querySelectorAll('canvas')].map((c) => c.dataset.index).join();"
        "new MutationObserver(() => window.seen.add(both()))"
        ".observe(document.body, {attributes: true, subtree: true, attributeFilter: ['data-index']})"
    )
    shown.run("const s = document.querySelector('#speed'); s.value = 5.9; s.dispatchEvent(new Event('input'))")
    shown.keys(Keys.SPACE)
    shows(shown, 9, 10)  # to the very end, through both episodes
    shown.until(lambda: shown.text("#pause span") == "Play")
    expected = {f"{min(t, 5)},{min(t, 2)}" for t in range(1, 6)} | {
        f"{6 + min(t, 3)},{3 + min(t, 7)}" for t in range(8)
    }
    assert set(shown.run("return [...window.seen]")) <= expected | {"0,0"}
    shown.keys(Keys.SPACE)  # and again from the start
    shows(shown, 9, 10)


def test_an_episode_and_a_row_can_be_linked_to(page: Open, files: list[str]):
    shown = page("view", *files)
    shows(shown, 0, 0)
    shown.browser.get("about:blank")
    shown.browser.get(f"{shown.url}#episode=2&row=2")
    shows(shown, 8, 5)
    assert shown.find("#episode").get_attribute("value") == "1"
    assert shown.text("#where") == "row 2 of 7"


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
