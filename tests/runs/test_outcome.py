"""Where a run ended: below or above what it is compared with, fallen, or not to be told apart from noise."""

from __future__ import annotations

import math

import pytest

from coterie.runs.outcome import Level, Outcome, outcome_of


def of(*returns: float, random: float | None = 0.0, error: float = 1.0) -> Outcome:
    points = [Level(mean, error, 1000 * k) for k, mean in enumerate(returns)]
    found = outcome_of(points, None if random is None else Level(random, error))
    assert found is not None
    return found


def test_the_end_is_the_mean_of_the_last_returns() -> None:
    outcome = of(0, 1, 2, 3, 4, 5)
    assert (outcome.end.mean, outcome.count) == (4.0, 3)
    assert outcome.end.error == pytest.approx(math.sqrt(3) / 3)
    long = of(*[0.0] * 41, *range(10))
    assert (long.end.mean, long.count) == (7.0, 5)  # a tenth of 50


@pytest.mark.parametrize(
    ("end", "is_below", "is_above"), [(-3.4, False, False), (-3.6, True, False), (3.6, False, True)]
)
def test_three_standard_errors_differ(end: float, is_below: bool, is_above: bool) -> None:
    outcome = of(0, 0, end, end, end)  # the error of the difference is sqrt(1 + 1 / 3) = 1.15
    assert (outcome.is_below, outcome.is_above) == (is_below, is_above)
    assert outcome.is_poor is not is_above


def test_a_run_that_loses_more_than_half_of_its_gain_has_fallen() -> None:
    assert of(0, 20, 20, 20, 9, 9, 9).has_fallen
    assert not of(0, 20, 20, 20, 11, 11, 11).has_fallen
    assert not of(0, 20, 20, 20, 9, 9, 9, error=4.0).has_fallen
    assert (
        of(0, 20, 20, 20, 9, 9, 9).describe("{:.0f}".format)
        == "9 above the random policy (0), fell by 11 since step 3,000"
    )


@pytest.mark.parametrize(
    ("returns", "problem"),
    [
        ([0, 20, 20, 20], ""),
        ([0, -9, -9, -9], "below random"),
        ([0, 20, 20, 20, -9, -9, -9], "below random"),
        ([0, 20, 20, 20, 9, 9, 9], "fell"),
        ([0, 1, -1, 1], "nothing learned"),
        ([0, 1], ""),  # too early
    ],
)
def test_a_run_has_one_problem_at_most(returns: list[float], problem: str) -> None:
    assert of(*returns).problem == problem


def test_a_run_that_ends_below_its_start_has_fallen() -> None:
    assert of(20, 19, 15, 12, 12, 12).has_fallen  # it was started with what another run had learned
    assert not of(20, 19, 15, 18, 18, 18).has_fallen
    assert not of(-20, -30, -40, -40, -40).has_fallen  # never above the random policy, which is a finding of its own


def test_without_a_random_policy_the_start_is_the_reference() -> None:
    outcome = of(5, 2, 2, 2, random=None)
    assert (outcome.reference.mean, outcome.reference_name, outcome.is_below) == (5, "the start", False)
    assert of(5, -1, -1, -1, random=None).is_below


def test_an_unknown_error_of_the_random_policy_is_that_of_the_start() -> None:
    outcome = outcome_of([Level(0.0, 1.0)] * 4, Level(9.0))
    assert outcome is not None
    assert outcome.is_below


def test_without_returns_after_the_start_nothing_is_judged() -> None:
    assert outcome_of([]) is None
    outcome = of(-99)
    assert (outcome.is_below, outcome.is_above, outcome.has_fallen, outcome.is_poor) == (False,) * 4


def test_one_return_with_a_known_error_is_enough_to_be_below_and_not_to_have_fallen() -> None:
    outcome = of(0, -99)
    assert (outcome.is_below, outcome.has_fallen, outcome.is_poor) == (True, False, True)
    assert outcome.describe(str) == "99.0 below the random policy (0.0)"
    assert not of(0, 1).is_poor  # too early


def test_unknown_errors_are_the_scatter_of_the_second_half() -> None:
    assert of(0, -90, -99, -95, -97, error=math.nan).is_below
    noisy = of(0, -90, 80, -90, 70, -80, error=math.nan)
    assert (noisy.is_below, noisy.is_above) == (False, False)
    assert not of(0, -99, error=math.nan).is_below  # nothing to take it from
