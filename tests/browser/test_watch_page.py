"""The page of a run that is watched: the same page as that of a game, with the state of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browser.conftest import Page

from tinyruns import train

Open = Callable[..., Page]


def test_the_state_of_a_run_is_shown_and_its_policy_plays(page: Open, tmp_path: Path):
    train(tmp_path / "run", "algo=ippo", "steps=120", "eval.every=40", "checkpoint.every=40")
    (tmp_path / "run" / "lock").unlink()  # names this process, which is still running
    shown = page("watch", str(tmp_path / "run"))
    shown.until(lambda: shown.text("#run-state") == "The run has finished its 120 steps.")
    assert shown.find("#run-progress").get_attribute("value") == "1"
    assert [cell.text for cell in shown.all("#run-returns thead th")][:3] == ["team return", "training", "evaluation"]
    shown.until(lambda: int(shown.find("#picture").get_attribute("data-timestep") or 0) > 1)
    assert shown.browser.title.startswith("ippo on particle/simple_spread (run)")
    shown.find("#pause").click()
    shown.until(lambda: shown.text("#link") == "paused")
    assert shown.end() == 0
    shown.until(lambda: "coterie watch has stopped" in shown.text("#note"))
    assert not shown.find("#pause").is_enabled()


def test_a_game_shows_no_run(page: Open):
    shown = page("play", "--algo", "random", "--env", "corridor:make", "--human", "a")
    shown.until(lambda: shown.find("#picture").get_attribute("data-timestep") == "0")
    assert not shown.find("#run").is_displayed()
