from __future__ import annotations

import io
import math
import sys

import pytest
from rich.console import Console

from coterie.runs.progress import LineProgress, NullProgress, PeriodicProgress, RichProgress, duration, number, progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0.00"),
        (-79.04, "-79.04"),
        (123.45, "123.5"),
        (-1234.5, "-1,234"),
        (0.1234, "0.123"),
        (1.234e-5, "1.2e-05"),
        (1.5e12, "1.5e+12"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_formatted_with_significant_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3725, "1 h 2 min"),
        (90000, "1 d 1 h"),
        (math.nan, "-"),
        (math.inf, "-"),
        (-1, "-"),
    ],
)
def test_durations_are_formatted_with_at_most_two_units(seconds, text):
    assert duration(seconds) == text


# ---------------------------------------------------------------------------------------------------------- plain lines


def test_a_line_is_written_first_at_evaluations_every_ten_seconds_and_at_the_end(clock):
    stream = io.StringIO()
    display = LineProgress("mappo on particle/simple_spread", stream=stream, clock=clock)
    for second in range(1, 31):
        clock.now += 1
        row = {"rollout/return_mean": -80.0 + second, "loss/policy": 0.0123, "policy/entropy": 1.25}
        if second == 15:
            row["eval/return_mean"] = -60.0
        display.update(second * 1000, 30_000, row)
    display.close()
    assert stream.getvalue() == (
        "mappo on particle/simple_spread\n"
        "1,000 / 30,000 steps · 3% · 1,000 steps/s · 29 s left · team return: training -79.00 · "
        "policy loss 0.012 · entropy 1.25\n"
        "11,000 / 30,000 steps · 36% · 1,000 steps/s · 19 s left · team return: training -69.00 · "
        "policy loss 0.012 · entropy 1.25\n"
        "15,000 / 30,000 steps · 50% · 1,000 steps/s · 15 s left · team return: training -65.00, evaluation -60.00 · "
        "policy loss 0.012 · entropy 1.25\n"
        "25,000 / 30,000 steps · 83% · 1,000 steps/s · 5 s left · team return: training -55.00, evaluation -60.00 · "
        "policy loss 0.012 · entropy 1.25\n"
        "30,000 / 30,000 steps · 100% · 1,000 steps/s · done · team return: training -50.00, evaluation -60.00 · "
        "policy loss 0.012 · entropy 1.25\n"
    )


def test_the_end_is_one_line_with_or_without_an_evaluation(clock):
    for evaluated in (True, False):
        stream = io.StringIO()
        display = LineProgress(stream=stream, clock=clock)
        display.update(1000, 3000, {})
        display.update(3000, 3000, {"rollout/return_mean": -50.0})  # the entry of the last update
        if evaluated:
            display.update(3000, 3000, {"eval/return_mean": -60.0})
        display.close()
        display.close()
        first, last = stream.getvalue().splitlines()
        assert first.startswith("1,000 / 3,000 steps")
        assert last.startswith("3,000 / 3,000 steps")
        assert ("evaluation -60.00" in last) == evaluated


def test_a_resumed_run_displays_its_first_step_and_excludes_earlier_steps_from_its_speed(clock):
    stream = io.StringIO()
    display = LineProgress("mappo", start=500_000, stream=stream, clock=clock)
    clock.now += 10
    display.update(501_000, 600_000, {})
    assert stream.getvalue() == (
        "mappo · resumed at 500,000 steps\n501,000 / 600,000 steps · 83% · 100 steps/s · 16 min 30 s left\n"
    )


def test_teams_are_named_and_the_latest_finite_value_is_kept(clock):
    stream = io.StringIO()
    display = LineProgress(stream=stream, clock=clock)
    display.update(1, 100, {"eval/red/return_mean": 1.0, "eval/blue/return_mean": -2.0, "loss/red/policy": 0.5})
    clock.now += 20
    display.update(
        2, 100, {"eval/red/return_mean": math.nan, "rollout/red/return_mean/red_0": 9.0, "loss/policy": math.inf}
    )
    last = stream.getvalue().splitlines()[-1]
    assert last.endswith("evaluation red 1.00, blue -2.00 · policy loss red 0.500")


def test_the_speed_is_that_of_recent_steps(clock):
    stream = io.StringIO()
    display = LineProgress(stream=stream, clock=clock)
    steps = 0
    for second in range(300):
        clock.now += 1
        steps += 10 if second < 150 else 1000
        display.update(steps, 10**6, {})
    assert " · 1,000 steps/s · " in stream.getvalue().splitlines()[-1]


# --------------------------------------------------------------------------------------------------------- live display


def make_display(clock, width=100, **more):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={})
    return RichProgress("mappo on simple_tag · seed 3", console=console, clock=clock, **more), console


def test_the_live_display_is_drawn_at_most_four_times_per_second(clock, monkeypatch):
    display, _ = make_display(clock)
    drawn = []
    monkeypatch.setattr(display._live, "update", lambda *_, **__: drawn.append(1))
    for _ in range(1000):
        clock.now += 0.01
        display.update(1, 10, {"rollout/return_mean": 1.0})
    assert 35 <= len(drawn) <= 42
    display.close()


# ------------------------------------------------------------------------------------------------ choice of the display


class Stream(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("mode", "terminal", "term", "expected"),
    [
        ("auto", True, "xterm", RichProgress),
        ("auto", True, "dumb", LineProgress),
        ("auto", False, "xterm", LineProgress),
        ("rich", False, "xterm", RichProgress),
        ("lines", True, "xterm", LineProgress),
        ("off", True, "xterm", NullProgress),
    ],
)
def test_the_display_depends_on_mode_and_terminal(monkeypatch, mode, terminal, term, expected):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    with progress(mode, "title", start=5) as display:
        assert type(display) is expected
        display.update(6, 10, {})
        display.print_line("noted")
    assert ("noted" in stream.getvalue()) == (mode != "off")


def test_periodic_progress_prints_completed_episodes_at_intervals() -> None:
    now, messages = [0.0], []
    report = PeriodicProgress(messages.append, "random play", first_s=2.0, interval_s=10.0, clock=lambda: now[0])
    for seconds, done in ((1.0, 1), (2.0, 2), (11.0, 3), (12.5, 1500), (30.0, 2000)):
        now[0] = seconds
        report(done, 2000)
    assert messages == ["random play: 2 of 2,000 episodes", "random play: 1,500 of 2,000 episodes"]
