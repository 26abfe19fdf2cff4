"""The play page in a real browser, with the corridor of tests/helpers/tables.py."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser.conftest import Page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coterie.playing.episode_recording import Recording

Open = Callable[..., Page]
CORRIDOR = ("play", "--algo", "random", "--env", "corridor:make")


def ready(page: Page, timestep: int = 0) -> None:
    """Waits until the image of a timestep is shown."""
    page.until(lambda: page.find("#picture").get_attribute("data-timestep") == str(timestep))


def squares(page: Page) -> list[list[int]]:
    """Color of each of the corridor's five squares, read from the image."""
    return page.pixels("#picture", [(96 * k + 40, 40) for k in range(5)])


def square(page: Page) -> int:
    """Square of agent a, read from the image."""
    shades = [red for red, _, _ in squares(page)]
    assert sorted(shades) == [0, 0, 0, 0, 255]
    return shades.index(255)


def choice(name: str, agent: str = "a_0") -> str:
    return f"[data-agent={agent}] .choice[title='{name}']"


def test_keys_move_the_agent_by_one_square_each(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    assert square(shown) == 1
    for n, (key, position) in enumerate(((Keys.ARROW_RIGHT, 2), ("d", 3), (Keys.ARROW_LEFT, 2), ("1", 1), ("0", 1)), 1):
        shown.keys(key)
        ready(shown, n)
        assert square(shown) == position
    assert shown.text("#where") == "episode 1 · timestep 5"
    assert shown.text("[data-agent=a_0] .facts div:nth-child(2) dd") == "9.00"  # 2 + 3 + 2 + 1 + 1
    assert "a 11.5" in shown.text("#returns")  # and a group reward of 0.5 per step
    assert "action" in shown.find(choice("stay")).get_attribute("class").split()


def test_other_keys_do_nothing(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    shown.keys("x", "7", Keys.ARROW_UP)
    shown.keys(Keys.ARROW_RIGHT)
    ready(shown, 1)
    assert square(shown) == 2


def test_masked_keys_and_buttons_are_refused_with_a_note(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    shown.keys(Keys.ARROW_LEFT)
    ready(shown, 1)
    assert shown.text("#note") == ""
    left = shown.find(choice("left"))
    assert "masked" in left.get_attribute("class").split()
    assert left.get_attribute("aria-disabled") == "true"
    assert left.find_element(By.CSS_SELECTOR, ".probability").text == "masked"
    before = shown.find("#picture").rect
    shown.keys(Keys.ARROW_LEFT)
    shown.until(lambda: "a_0 cannot choose 'left' now (masked)" in shown.text("#note"))
    assert shown.find("#picture").get_attribute("data-timestep") == "1"
    assert shown.find("#picture").rect == before  # the note does not move the image
    shown.keys(Keys.ARROW_RIGHT)
    ready(shown, 2)
    assert shown.text("#note") == ""
    shown.keys(Keys.ARROW_LEFT)
    ready(shown, 3)
    shown.find(choice("left")).click()
    shown.until(lambda: "now (masked)" in shown.text("#note"))
    assert square(shown) == 0


def test_buttons_move_the_agent_and_show_probabilities(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    assert [e.text for e in shown.all("[data-agent=b_0] .probability")] == ["prob.", "33.3%", "33.3%", "33.3%"]
    shown.find(choice("right")).click()
    ready(shown, 1)
    assert square(shown) == 2
    assert shown.all("[data-agent=b_0] button") == []


def test_the_game_runs_pauses_and_steps(page: Open):
    shown = page(*CORRIDOR, "--human", "a", "--fps", "30", "env.limit=2000")
    ready(shown)
    shown.keys(".")
    ready(shown, 1)
    assert shown.text("#link") == "paused"
    shown.keys(Keys.SPACE)
    shown.until(lambda: shown.text("#link") == "playing")
    shown.until(lambda: int(shown.find("#picture").get_attribute("data-timestep")) > 5)
    assert shown.text("#pause span") == "Pause"
    ActionChains(shown.browser).key_down(Keys.ARROW_RIGHT).perform()
    shown.until(lambda: square(shown) == 4)
    shown.until(lambda: "now (masked)" in shown.text("#note"))  # held against the wall
    ActionChains(shown.browser).key_up(Keys.ARROW_RIGHT).perform()
    shown.find("#pause").click()
    shown.until(lambda: shown.text("#link") == "paused")
    timestep = int(shown.find("#picture").get_attribute("data-timestep"))
    shown.find("#step").click()
    ready(shown, timestep + 1)
    shown.keys("n")
    ready(shown, 0)
    assert (shown.text("#where"), square(shown)) == ("episode 2 · timestep 0", 1)


def test_the_game_pauses_at_the_end_of_an_episode(page: Open):
    shown = page(*CORRIDOR, "--human", "a", "--fps", "60", "env.limit=8")
    ready(shown)
    shown.keys(Keys.SPACE)
    ready(shown, 8)
    shown.until(lambda: shown.text("#link") == "paused")
    assert shown.text("#where") == "episode 1 · timestep 8 · the episode is over · position 1.00"
    shown.find("#new").click()
    shown.until(lambda: shown.text("#where") == "episode 2 · timestep 0")


def test_a_slider_sets_a_continuous_value(page: Open):
    shown = page(*CORRIDOR, "--human", "b", "env.numbers=true")
    ready(shown)
    shown.run("const s = document.querySelector('.dial input'); s.value = 3.1; s.dispatchEvent(new Event('input'))")
    shown.until(lambda: shown.text(".yours .dial .value") == "3.10")
    shown.keys(".")
    ready(shown, 1)
    position = float(shown.find(".yours .gauge .action").value_of_css_property("left").removesuffix("px"))
    width = shown.find(".yours .gauge").rect["width"]
    assert position / width == pytest.approx((3.1 + 2) / 6, abs=0.01)


def test_two_players_share_a_keyboard(page: Open):
    shown = page(*CORRIDOR, "--human", "a", "--human", "b")
    ready(shown)
    for n, key in enumerate((Keys.ARROW_RIGHT, "a", "a"), 1):
        shown.keys(key)
        ready(shown, n)
    assert square(shown) == 2
    assert [green for _, green, _ in squares(shown)] == [0, 255, 0, 0, 0]


def test_focus_is_visible_and_space_activates_a_focused_button(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    shown.find(choice("left")).send_keys(Keys.TAB)  # to the next button
    focused = shown.browser.switch_to.active_element
    assert focused.get_attribute("title") == "right"
    assert focused.value_of_css_property("outline-style") == "solid"
    focused.send_keys(Keys.SPACE)
    ready(shown, 1)
    assert (square(shown), shown.text("#link")) == (2, "paused")


def test_played_episodes_are_recorded_and_the_page_reports_the_end_of_the_game(page: Open, tmp_path: Path):
    shown = page(*CORRIDOR, "--human", "a", "--record", "mine.zip")
    ready(shown)
    shown.keys(Keys.ARROW_RIGHT)
    ready(shown, 1)
    image = shown.run("return document.querySelector('#picture').toDataURL()")
    assert image.startswith("data:image/png")
    assert shown.end() == 0
    shown.until(lambda: "The game has ended" in shown.text("#note"))
    assert not shown.find("#pause").is_enabled()
    found = Recording(tmp_path / "mine.zip")
    assert [r.agents[0].action.discrete for r in found.timesteps if r.agents[0].action] == [(2,)]
    found.close()
    assert zipfile.is_zipfile(tmp_path / "mine.zip")


def test_dark_and_light_color_schemes_have_enough_contrast(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    for scheme in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        colors = shown.run(
            "const s = getComputedStyle(document.documentElement);"
            "return [s.color, s.backgroundColor, getComputedStyle(document.querySelector('.card')).backgroundColor]"
        )
        ink, paper, card = (
            np.array([int(x) for x in color[color.index("(") + 1 : -1].split(",")[:3]]) for color in colors
        )
        assert abs(luminance(ink) - luminance(paper)) > 0.5
        assert (luminance(paper) > 0.5) == (scheme == "light")
        assert (max(luminance(ink), luminance(card)) + 0.05) / (min(luminance(ink), luminance(card)) + 0.05) > 7
    shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def luminance(color: np.ndarray) -> float:
    """Relative luminance of an sRGB color, as defined by WCAG 2."""
    c = color / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def test_key_caps_stay_within_their_column(page: Open):
    shown = page(*CORRIDOR, "--human", "a")
    ready(shown)
    script = (
        "return [...document.querySelectorAll('.yours .choice')].map((row) => {"
        "const left = row.querySelector('.probability').getBoundingClientRect().right;"
        "const right = row.getBoundingClientRect().right;"
        "return [...row.querySelectorAll('kbd')].every((cap) => {"
        "const box = cap.getBoundingClientRect(); return box.left >= left && box.right <= right;});})"
    )
    for width in (1280, 420):
        shown.browser.set_window_size(width, 900)
        fits = shown.run(script)
        assert len(fits) == 3
        assert all(fits)
    shown.browser.set_window_size(1280, 900)
